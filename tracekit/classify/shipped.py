"""The packs of rules that ship with tracekit, as plain tables."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def shipped_packs(folder: Traversable | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the text and the tables of each pack, by file name, in the order they are tried.

    >>> "50-copies.toml" in shipped_packs()
    True
    """
    folder = folder or resources.files("tracekit.classify").joinpath("packs")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    return {name: (text, tomllib.loads(text)) for name, text in texts.items()}
