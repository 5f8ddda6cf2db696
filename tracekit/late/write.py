"""Lateness over a whole run in files: JSON, a page and CSV."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tracekit._util.files import atomic_write
from tracekit.errors import OptionError
from tracekit.late.page import render_late_page
from tracekit.late.result import WholeRun

LATE_EXTENSIONS = (".json", ".html", ".csv")
"""Files that a result can be written to."""


def check_late_output(path: Path) -> None:
    """Raise if a result cannot be written to a file of this name."""
    if path.suffix not in LATE_EXTENSIONS:
        raise OptionError(
            f"cannot write {path.suffix or 'a file without extension'}",
            path=path,
            hint=f"use {', '.join(LATE_EXTENSIONS)}",
        )


def write_late(run: WholeRun, path: Path) -> None:
    """Write a result.

    The extension decides what: the document, the page, or the lateness of every rank and step.
    """
    writers: dict[str, Callable[[], str]] = {
        ".json": run.to_json,
        ".html": partial(render_late_page, run),
        ".csv": run.lateness.table.write_csv,
    }
    content = writers[path.suffix]()
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
