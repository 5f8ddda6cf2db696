"""Metadata of an export: versions, GPUs, the clock, and warnings of the profiler.

Reports embed the environment, the command line and the program's output. None of those tables is opened. Of the
profiler's diagnostics only the severity and certain phrases are used, never the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.errors import Notice
from tracekit.parsers.nsight.tables import MAX_TIME_NS, Export, read_table

_VERSION_NAMES = {"EXPORT_PRODUCT_VERSION": "nsys", "EXPORT_SCHEMA_VERSION": "schema"}
_VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_WARNINGS = (
    ("drop|lost|might have been|not all|incomplete", "some events were lost"),
    ("buffer", "a buffer ran full and events may be missing"),
    ("clock|timestamp|synchroni", "the profiler had trouble with its clocks"),
)
"""Phrases in a diagnostic and the sentence that reports it; the first match counts."""
_WARNING, _ERROR = 2, 3


def versions(export: Export) -> dict[str, str]:
    """Return the versions of the exporter and its schema; exports of 2020 have none."""
    table = next((name for name in _VERSION_TABLES if name in export.tables), "")
    rows = read_table(export, table, ["name", "value"]).filter(pl.col("name").is_in(list(_VERSION_NAMES)))
    return {_VERSION_NAMES[name]: value for name, value in rows.rows() if value}


def session_start_ns(export: Export) -> int | None:
    """Return the wall clock at time 0 of the file, in ns since the epoch; None if missing or impossible."""
    start = read_table(export, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"].drop_nulls()
    return int(start[0]) if len(start) and 0 <= start[0] < MAX_TIME_NS else None


def session_duration_ns(export: Export) -> int:
    """Return the length of the session in ns, 0 if the file does not say."""
    duration = read_table(export, "ANALYSIS_DETAILS", ["duration"])["duration"].drop_nulls()
    return max(0, int(duration[0])) if len(duration) else 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the process saw it; a shared one has only the multiprocessors that the process was given."""

    name: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None


def find_gpus(export: Export) -> dict[tuple[int, int | None], Gpu]:
    """Return the GPU for each (pid, device); pid -1 stands for every process."""
    rows = read_table(export, "TARGET_INFO_GPU", ["id", "cuDevice", "name", "smCount", "totalMemory"])
    rows = rows.with_columns(pl.when(pl.col(name) > 0).then(name) for name in ("smCount", "totalMemory"))
    by_id = {gpu_id: (device, Gpu(*properties)) for gpu_id, device, *properties in rows.rows()}
    gpus: dict[tuple[int, int | None], Gpu] = {
        (-1, device): gpu for device, gpu in by_id.values() if device is not None
    }
    devices = read_table(export, "TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
    return gpus | {(pid, device): by_id[gpu_id][1] for gpu_id, device, pid in devices.rows() if gpu_id in by_id}


def profiler_warnings(export: Export) -> list[Notice]:
    """Return a notice for each kind of warning or error that the profiler recorded."""
    rows = read_table(export, "DIAGNOSTIC_EVENT", ["severity", "text"])
    rows = rows.filter(pl.col("severity").is_in([_WARNING, _ERROR]))
    if not rows.height:
        return []
    text = pl.col("text").str.to_lowercase()
    sentence = pl.lit("the profiler reported a problem")
    for pattern, sentence_for_pattern in reversed(_WARNINGS):
        sentence = pl.when(text.str.contains(pattern)).then(pl.lit(sentence_for_pattern)).otherwise(sentence)
    counts = rows.group_by(sentence.alias("sentence")).len().sort("sentence")
    return [
        Notice("profiler-warnings", f"{sentence} ({count} such warnings; open the report in nsys-ui to read them)")
        for sentence, count in counts.rows()
    ]
