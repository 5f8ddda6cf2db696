"""Tables of an export, whichever file format holds them, and checks of the times in them.

An ``Export`` knows its tables and their columns and reads the columns that it is asked for. ``read_table`` gives every
column the same type in all formats: ids are unsigned in Arrow and Parquet and signed in SQLite, with the same bits.

An event needs a start and, on a GPU, an end. Files can hold times that are null, text, far too large, or an end before
its start. Events that cannot be placed in time are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import polars as pl

from tracekit.errors import Notice

IDENTIFYING_TABLES = frozenset(
    {
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
    }
)
"""A file with any of these tables is an Nsight Systems export."""
READ_TABLES = IDENTIFYING_TABLES | {
    "CUDA_GRAPH_NODE_EVENTS",
    "DIAGNOSTIC_EVENT",
    "EXPORT_META_DATA",
    "META_DATA_EXPORT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "PROFILER_OVERHEAD",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_GPU",
}
"""All tables that are read."""
TEXT_COLUMNS = frozenset({"text", "value", "name", "jsonText", "binaryData"})
"""Columns that hold text; all other columns that are read hold integers."""
MAX_TIME_NS = 1 << 61
"""Exclusive bound of plausible times, counted from the start of the session (73 years)."""
MAX_GPU_EVENT_NS = 86_400_000_000_000
"""Exclusive bound of plausible durations on a GPU (one day)."""


class Export(Protocol):
    """One export, open for reading."""

    path: Path
    tables: frozenset[str]
    notices: list[Notice]

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of *table* in this file."""
        ...

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that exist, in any integer type."""
        ...


def read_table(export: Export, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read *columns* of *table*; a missing column is all null, a missing table has no rows."""
    frame = pl.DataFrame()
    if table in export.tables:
        existing = export.columns(table)
        frame = export.fetch(table, [name for name in columns if name in existing])
    if not frame.width:
        return pl.DataFrame(schema={name: _dtype(name) for name in columns})
    return frame.select(_as_dtype(frame, name) for name in columns)


def _dtype(name: str) -> pl.DataType:
    return pl.String() if name in TEXT_COLUMNS else pl.Int64()


def _as_dtype(frame: pl.DataFrame, name: str) -> pl.Expr:
    """Cast a column to its type; values that cannot be cast become null."""
    wanted = _dtype(name)
    stored = frame.schema.get(name, pl.Null())
    if stored == pl.UInt64:
        return pl.col(name).reinterpret(signed=True)
    if stored == wanted or (stored == pl.Binary and name == "binaryData"):
        return pl.col(name)
    if stored in (pl.Null, pl.Binary):
        return pl.lit(None, dtype=wanted).alias(name)
    return pl.col(name).cast(wanted, strict=False)


def read_cpu_events(export: Export, table: str, columns: Sequence[str], *, noun: str = "events") -> pl.DataFrame:
    """Read a table of CPU events without the rows that have no usable start; an unusable end becomes null.

    *noun* names the rows in the notice that counts unusable ones. A null end is not one: the range was never closed.
    """
    frame = read_table(export, table, columns)
    usable_start = frame.select(_is_plausible("start")).to_series()
    usable_end = frame.select(pl.col("end").is_null() | _is_end_after_start()).to_series()
    if usable_start.all() and usable_end.all():
        return frame
    unusable = int((~(usable_start & usable_end)).sum())
    export.notices.append(_damaged_rows(export, f"{unusable:,} of {frame.height:,} {noun} have no usable start or end"))
    return frame.with_columns(end=pl.when(usable_end).then("end")).filter(usable_start)


def read_gpu_events(export: Export, table: str, columns: Sequence[str], *, noun: str) -> tuple[pl.DataFrame, int]:
    """Read a table of GPU events; return the rows with usable times and the number of the others."""
    frame = read_table(export, table, columns)
    short_enough = (pl.col("end") - pl.col("start") < MAX_GPU_EVENT_NS).fill_null(False)
    usable = frame.select(_is_plausible("start") & _is_end_after_start() & short_enough).to_series()
    if usable.all():
        return frame, 0
    kept = frame.filter(usable)
    dropped = frame.height - kept.height
    missing = [name for name in ("start", "end") if name not in export.columns(table)]
    reason = f"{table} has no column {missing[0]!r}" if missing else "they have no usable start or end"
    export.notices.append(_damaged_rows(export, f"{dropped:,} of {frame.height:,} {noun} were left out: {reason}"))
    return kept, dropped


def _is_plausible(name: str) -> pl.Expr:
    return pl.col(name).is_between(-MAX_TIME_NS, MAX_TIME_NS, closed="none").fill_null(False)


def _is_end_after_start() -> pl.Expr:
    return _is_plausible("end") & (pl.col("end") >= pl.col("start")).fill_null(False)


def _damaged_rows(export: Export, text: str) -> Notice:
    return Notice("damaged-rows", f"{export.path.name}: {text}")
