"""Lateness over a whole run in files: JSON, a page and CSV."""

from __future__ import annotations

from pathlib import Path

from tracekit._util.files import atomic_write
from tracekit.errors import OptionError
from tracekit.whole_run.result import WholeRun

EXTENSIONS = (".json", ".csv")
"""Files that a result can be written to."""


def check_late_output(path: Path) -> None:
    """Raise if a result cannot be written to a file of this name."""
    if path.suffix not in EXTENSIONS:
        raise OptionError(
            f"{path}: cannot write {path.suffix or 'a file without extension'}", hint=f"use {', '.join(EXTENSIONS)}"
        )


def write_late(run: WholeRun, path: Path) -> None:
    """Write a result; the extension decides what: the document, the page, or the lateness of every rank and step."""
    content = run.to_json() if path.suffix == ".json" else run.lateness.table.write_csv()
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
