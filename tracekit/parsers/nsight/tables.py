"""The tables of an export, whatever file format holds them.

An ``Export`` knows which tables it has, which columns each of them has, and reads the columns it is asked for;
a column the file does not have comes back as null. Integers come back as Int64 (ids are unsigned in Arrow and
Parquet and signed in sqlite: the same bits), everything else as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import polars as pl

from tracekit.errors import InputError, Notice

SQLITE_MAGIC = b"SQLite format 3\x00"
KNOWN = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "StringIds",
    "TARGET_INFO_SESSION_START_TIME",
    "ANALYSIS_DETAILS",
)
"""Any one of these makes a set of tables an Nsight Systems export."""

TEXT = frozenset({"text", "value", "name", "jsonText", "binaryData"})
"""Columns that hold text; all others that are read hold integers."""


class Export(Protocol):
    """One export, open for reading."""

    path: Path
    tables: frozenset[str]
    notices: list[Notice]

    def columns(self, table: str) -> frozenset[str]:
        """Name the columns *table* has in this file."""
        ...

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that are there, in any integer type."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def read_table(export: Export, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read *columns* of *table*; a missing column is all null, a missing table has no rows."""
    frame = pl.DataFrame()
    if table in export.tables:
        there = export.columns(table)
        frame = export.fetch(table, [name for name in columns if name in there])
    if not frame.width:
        return pl.DataFrame(schema={name: _dtype(name) for name in columns})
    return frame.select(_uniform(frame, name) for name in columns)


def _dtype(name: str) -> pl.DataType:
    return pl.String() if name in TEXT else pl.Int64()


def _uniform(frame: pl.DataFrame, name: str) -> pl.Expr:
    """Give a column its type whatever the file gave it; what cannot be that type (sqlite checks nothing) is null."""
    wanted = _dtype(name)
    found = frame.schema.get(name, pl.Null())
    if found == pl.UInt64:
        return pl.col(name).reinterpret(signed=True)
    if found == wanted or (found == pl.Binary and name == "binaryData"):
        return pl.col(name)
    if found in (pl.Null, pl.Binary):
        return pl.lit(None, dtype=wanted).alias(name)
    return pl.col(name).cast(wanted, strict=False)


def read_events(export: Export, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read a table of events: as ``read_table``, without rows that have lost their start."""
    frame = read_table(export, table, columns)
    return frame.drop_nulls("start") if frame["start"].null_count() else frame


def open_export(path: Path) -> Export:
    """Open an export of any format, or say why it is none."""
    if path.is_dir():
        from tracekit.parsers.nsight.columnar import FolderExport

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
            from tracekit.parsers.nsight.sqlite import SqliteExport

            export = SqliteExport(path)
        elif path.suffix == ".arrow":
            from tracekit.parsers.nsight.columnar import StreamExport

            export = StreamExport(path)
        else:
            raise InputError(
                f"{path}: is no Nsight Systems export (neither sqlite nor Arrow)",
                hint="export the report: nsys export --type sqlite REPORT.nsys-rep",
            )
    if not export.tables.intersection(KNOWN):
        export.close()
        raise InputError(
            f"{path}: holds no Nsight Systems tables",
            hint="pass what `nsys export` wrote (sqlite, parquetdir, arrowdir or arrow)",
        )
    return export
