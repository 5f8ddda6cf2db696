"""Which reader of tables a path takes: sqlite, a folder of Arrow or Parquet files, or one Arrow file."""

from __future__ import annotations

import os
from pathlib import Path

from tracekit.errors import InputError
from tracekit.parsers.nsight.columnar import FolderExport, StreamExport
from tracekit.parsers.nsight.sqlite import SqliteExport
from tracekit.parsers.nsight.tables import KNOWN, Export

SQLITE_MAGIC = b"SQLite format 3\x00"


def open_export(path: Path) -> Export:
    """Return an open export of any format; the error says why *path* is not one."""
    if path.is_dir():
        export: Export = FolderExport(path)
    else:
        try:
            with path.open("rb") as file:
                head = file.read(16)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
        if size == 0:
            raise InputError(f"{path}: is empty", hint="export the report again: nsys export --type sqlite REPORT")
        if head == SQLITE_MAGIC:
            export = SqliteExport(path)
        elif path.suffix == ".arrow":
            export = StreamExport(path)
        else:
            raise InputError(
                f"{path}: is not an Nsight Systems export (neither sqlite nor Arrow)",
                hint="export the report: nsys export --type sqlite REPORT.nsys-rep",
            )
    if not export.tables.intersection(KNOWN):
        export.close()
        raise InputError(
            f"{path}: holds no Nsight Systems tables",
            hint="give what `nsys export` wrote (sqlite, parquetdir, arrowdir or arrow)",
        )
    return export
