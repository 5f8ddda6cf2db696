"""Tables of an export, whichever file format holds them, and checks of the times in them.

An ``NsightExport`` knows its tables and their columns and reads the columns that it is asked for.
``read_table`` gives every column the same type in all formats: ids are unsigned in Arrow and
Parquet and signed in SQLite, with the same bits.

An event needs a start and, on a GPU, an end. Files can hold times that are null, text, far too
large, or an end before its start. Events that cannot be placed in time are left out and counted.

Reports embed the environment, the command line and the program's output. None of those tables is
opened. Of the profiler's diagnostics only the severity and certain phrases are used, never the
text.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from tracekit.errors import Notice, NoticeValues

VOCABULARY = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
"""Words and codes of exports."""
IDENTIFYING_TABLES = frozenset(VOCABULARY["identifying_tables"])
"""A file with any of these tables is an Nsight Systems export."""
READ_TABLES = IDENTIFYING_TABLES.union(VOCABULARY["other_tables"])
"""All tables that are read."""
EXPORT_TEXT_COLUMNS = frozenset({"text", "value", "name", "jsonText", "binaryData"})
"""Columns that hold text; all other columns that are read hold integers."""
MAX_TIME_NS = 1 << 61
"""Exclusive bound of plausible times, counted from the start of the session (73 years)."""
MAX_GPU_EVENT_NS = 86_400_000_000_000
"""Exclusive bound of plausible durations on a GPU (one day)."""


class NsightExport(Protocol):
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


def read_table(export: NsightExport, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read *columns* of *table*; a missing column is all null, a missing table has no rows."""
    frame = pl.DataFrame()
    if table in export.tables:
        existing = export.columns(table)
        frame = export.fetch(table, [name for name in columns if name in existing])
    if not frame.width:
        return pl.DataFrame(schema={name: _dtype(name) for name in columns})
    return frame.select(_as_dtype(frame, name) for name in columns)


def _dtype(name: str) -> pl.DataType:
    return pl.String() if name in EXPORT_TEXT_COLUMNS else pl.Int64()


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


def read_cpu_events(
    export: NsightExport, table: str, columns: Sequence[str], *, noun: str = "events"
) -> pl.DataFrame:
    """Read a table of CPU events without the rows that have no usable start.

    An unusable end becomes null.

    *noun* names the rows in the notice that counts unusable ones. A null end is not one: the range
    was never closed.
    """
    frame = read_table(export, table, columns)
    usable_start = frame.select(_is_plausible("start")).to_series()
    usable_end = frame.select(pl.col("end").is_null() | _is_end_after_start()).to_series()
    if usable_start.all() and usable_end.all():
        return frame
    unusable = int((~(usable_start & usable_end)).sum())
    values: NoticeValues = {
        "case": "times",
        "file": export.path.name,
        "rows": noun,
        "count": unusable,
        "total": frame.height,
    }
    export.notices.append(
        Notice(
            "bad-events",
            (
                f"{export.path.name}: {unusable:,} of {frame.height:,} "
                f"{noun} have no usable start or end"
            ),
            values=values,
        )
    )
    return frame.with_columns(end=pl.when(usable_end).then("end")).filter(usable_start)


def read_gpu_events(
    export: NsightExport, table: str, columns: Sequence[str], *, noun: str
) -> tuple[pl.DataFrame, int]:
    """Read a table of GPU events.

    Return the rows with usable times and the number of the others.
    """
    frame = read_table(export, table, columns)
    short_enough = (pl.col("end") - pl.col("start") < MAX_GPU_EVENT_NS).fill_null(False)
    usable = frame.select(_is_plausible("start") & _is_end_after_start() & short_enough).to_series()
    if usable.all():
        return frame, 0
    kept = frame.filter(usable)
    dropped = frame.height - kept.height
    values: NoticeValues = {
        "case": "left_out",
        "file": export.path.name,
        "rows": noun,
        "count": dropped,
        "total": frame.height,
    }
    missing = [name for name in ("start", "end") if name not in export.columns(table)]
    why = "they have no usable start or end"
    if missing:
        values |= {"case": "no_column", "table": table, "column": missing[0]}
        why = f"{table} has no column '{missing[0]}'"
    message = f"{export.path.name}: {dropped:,} of {frame.height:,} {noun} were left out: {why}"
    export.notices.append(Notice("bad-events", message, values=values))
    return kept, dropped


def _is_plausible(name: str) -> pl.Expr:
    return pl.col(name).is_between(-MAX_TIME_NS, MAX_TIME_NS, closed="none").fill_null(False)


def _is_end_after_start() -> pl.Expr:
    return _is_plausible("end") & (pl.col("end") >= pl.col("start")).fill_null(False)


_VERSION_NAMES = {"EXPORT_PRODUCT_VERSION": "nsys", "EXPORT_SCHEMA_VERSION": "schema"}
_VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_WARNINGS = (
    ("drop|lost|might have been|not all|incomplete", "events_lost"),
    ("buffer", "buffer_full"),
    ("clock|timestamp|synchroni", "trouble_with_clocks"),
)
"""Phrases in a diagnostic and the case of the notice ``profiler-warnings``; the first match
counts."""
_WARNING = 2
_ERROR = 3


def versions(export: NsightExport) -> dict[str, str]:
    """Return the versions of the exporter and its schema; exports of 2020 have none."""
    table = next((name for name in _VERSION_TABLES if name in export.tables), "")
    rows = read_table(export, table, ["name", "value"]).filter(
        pl.col("name").is_in(list(_VERSION_NAMES))
    )
    return {_VERSION_NAMES[name]: value for name, value in rows.rows() if value}


def session_start_ns(export: NsightExport) -> int | None:
    """Return the wall clock at time 0 of the file, in ns since the epoch.

    None if missing or impossible.
    """
    start = read_table(export, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])[
        "utcEpochNs"
    ].drop_nulls()
    return int(start[0]) if len(start) and 0 <= start[0] < MAX_TIME_NS else None


def session_duration_ns(export: NsightExport) -> int:
    """Return the length of the session in ns, 0 if the file does not say."""
    duration = read_table(export, "ANALYSIS_DETAILS", ["duration"])["duration"].drop_nulls()
    return max(0, int(duration[0])) if len(duration) else 0


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """A GPU as the process saw it.

    A shared one has only the multiprocessors that the process was given.
    """

    name: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None


def find_gpus(export: NsightExport) -> dict[tuple[int, int | None], RecordedGpu]:
    """Return the GPU for each (pid, device); pid -1 stands for every process."""
    rows = read_table(
        export, "TARGET_INFO_GPU", ["id", "cuDevice", "name", "smCount", "totalMemory"]
    )
    rows = rows.with_columns(
        pl.when(pl.col(name) > 0).then(name) for name in ("smCount", "totalMemory")
    )
    by_id = {
        gpu_id: (device, RecordedGpu(*properties)) for gpu_id, device, *properties in rows.rows()
    }
    gpus = {(-1, device): gpu for device, gpu in by_id.values() if device is not None}
    devices = read_table(export, "TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
    return gpus | {
        (pid, device): by_id[gpu_id][1] for gpu_id, device, pid in devices.rows() if gpu_id in by_id
    }


PROBLEMS_OF_PROFILER = {
    "buffer_full": "a buffer ran full and events may be missing",
    "events_lost": "some events were lost",
    "trouble_with_clocks": "the profiler had trouble with its clocks",
    "unknown_problem": "the profiler reported a problem",
}
"""What a profiler's warning is about, in words."""


def profiler_warnings(export: NsightExport) -> list[Notice]:
    """Return a notice for each kind of warning or error that the profiler recorded."""
    rows = read_table(export, "DIAGNOSTIC_EVENT", ["severity", "text"])
    rows = rows.filter(pl.col("severity").is_in([_WARNING, _ERROR]))
    if not rows.height:
        return []
    text = pl.col("text").str.to_lowercase()
    case_of_row = pl.lit("unknown_problem")
    for pattern, case in reversed(_WARNINGS):
        case_of_row = pl.when(text.str.contains(pattern)).then(pl.lit(case)).otherwise(case_of_row)
    counts = rows.group_by(case_of_row.alias("case")).len().sort("case")
    notices = []
    for case, count in counts.rows():
        message = f"{PROBLEMS_OF_PROFILER[case]} ({count} such warnings; open the report in nsys-ui to read them)"
        notices.append(Notice("profiler-warnings", message, values={"case": case, "count": count}))
    return notices
