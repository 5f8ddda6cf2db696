"""The packs of rules that ship with tracekit, as plain tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracekit._util.toml import shipped_tables

PACKS = Path(__file__).parent / "packs"


def shipped_packs(folder: Path = PACKS) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the text and the tables of each pack, by file name, in the order they are tried.

    >>> "50-copies.toml" in shipped_packs()
    True
    """
    texts = {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.toml"))}
    tables = shipped_tables("packs.json", list(texts.values()), folder)
    return {name: (text, table) for (name, text), table in zip(texts.items(), tables, strict=True)}
