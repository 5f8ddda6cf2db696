"""The tables of an export, whatever file format holds them.

An ``Export`` knows which tables it has, which columns each of them has, and reads the columns it is asked for;
a column the file does not have comes back as null. Integers come back as Int64 (ids are unsigned in Arrow and
Parquet and signed in sqlite: the same bits), everything else as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import polars as pl

from tracekit.errors import Notice

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
        """Return the columns *table* has in this file."""
        ...

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that are there, in any integer type."""
        ...

    def close(self) -> None:
        """Close the file."""
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
    stored = frame.schema.get(name, pl.Null())
    if stored == pl.UInt64:
        return pl.col(name).reinterpret(signed=True)
    if stored == wanted or (stored == pl.Binary and name == "binaryData"):
        return pl.col(name)
    if stored in (pl.Null, pl.Binary):
        return pl.lit(None, dtype=wanted).alias(name)
    return pl.col(name).cast(wanted, strict=False)
