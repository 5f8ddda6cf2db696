"""Nsight Systems: reports and their exports (sqlite, parquetdir, arrowdir, arrow) into the events table."""

from __future__ import annotations

import os
from pathlib import Path

from tracekit.parsers.nsight.reader import read
from tracekit.parsers.nsight.report import SUFFIXES as _REPORTS
from tracekit.parsers.nsight.tables import KNOWN, SQLITE_MAGIC, SUFFIXES

__all__ = ["read", "sniff"]


def sniff(path: str | os.PathLike[str]) -> bool:
    """Whether *path* looks like an Nsight report or export: by its name, else by how it begins.

    >>> sniff("sample_traces/nsys-1f1b/rank0.sqlite"), sniff("sample_traces/nsys-1f1b")
    (True, False)
    """
    asked = Path(path)
    if asked.is_dir():
        return any((asked / f"{table}{ending}").is_file() for table in KNOWN for ending in (".parquet", ".arrow"))
    if asked.suffix in (*SUFFIXES, *_REPORTS):
        return asked.is_file()
    try:
        with asked.open("rb") as file:
            return file.read(16) == SQLITE_MAGIC
    except OSError:
        return False
