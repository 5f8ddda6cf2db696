"""The packs of rules that ship with tracekit, as plain tables.

Reading TOML takes four times as long as all else that is done to them, in every process. So what was read is kept in
one file beside them, together with what it was read from: a pack that was changed since is read itself.

    python -c "from tracekit.classify.shipped import refresh; refresh()"      # after changing a pack
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_KEPT = "read.json"


def shipped_packs(folder: Traversable | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the text and the tables of each pack, by file name, in the order they are tried.

    >>> "50-copies.toml" in shipped_packs()
    True
    """
    folder = folder or resources.files("tracekit.classify").joinpath("packs")
    texts, file = _texts(folder), folder.joinpath(_KEPT)
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    tables = kept["tables"] if kept.get("of") == _digest(texts) else _read(texts)
    return {name: (text, tables[name]) for name, text in texts.items()}


def refresh(folder: Path = Path(__file__).parent / "packs") -> None:
    """Read the packs and keep their tables beside them."""
    texts = _texts(folder)
    kept = json.dumps({"of": _digest(texts), "tables": _read(texts)}, indent=1, ensure_ascii=False)
    (folder / _KEPT).write_text(kept + "\n", encoding="utf-8")


def _texts(folder: Traversable) -> dict[str, str]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def _read(texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {name: tomllib.loads(text) for name, text in texts.items()}


def _digest(texts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
