"""What an export says about itself: versions, GPUs, the clock, lost events. Nothing of the program or its host.

Reports embed the environment, the command line and the program's output. None of those tables is opened, and of
diagnostics only the severity and known phrases are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.errors import Notice
from tracekit.parsers.nsight.tables import Export, read_table
from tracekit.parsers.nsight.timed import LATEST_NS

_VERSIONS = {"EXPORT_PRODUCT_VERSION": "nsys", "EXPORT_SCHEMA_VERSION": "schema"}
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_LOST = (
    ("drop|lost|might have been|not all|incomplete", "some events were lost"),
    ("buffer", "a buffer ran full and events may be missing"),
    ("clock|timestamp|synchroni", "the profiler had trouble with its clocks"),
)
_WARNING, _ERROR = 2, 3


def versions(export: Export) -> dict[str, str]:
    """Return the exporter's version and its schema's, where the file says so (2020's does not)."""
    table = next((name for name in _META if name in export.tables), "")
    rows = read_table(export, table, ["name", "value"]).filter(pl.col("name").is_in(list(_VERSIONS)))
    return {_VERSIONS[name]: value for name, value in rows.select("name", "value").rows() if value}


def session_start(export: Export) -> int | None:
    """Return the wall clock at time 0 of the file, nanoseconds since the epoch; None where it names no possible one."""
    start = read_table(export, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"].drop_nulls()
    return int(start[0]) if len(start) and 0 <= start[0] < LATEST_NS else None


def session_length(export: Export) -> int:
    """How long the session lasted, 0 when the file does not say."""
    duration = read_table(export, "ANALYSIS_DETAILS", ["duration"])["duration"].drop_nulls()
    return max(0, int(duration[0])) if len(duration) else 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the process saw it: of a shared one as many multiprocessors as it was given."""

    name: str | None
    multiprocessors: int | None
    memory_bytes: int | None


def find_gpus(export: Export) -> dict[tuple[int, int | None], Gpu]:
    """Return the GPU that each (pid, device) means; -1 stands for every pid."""
    rows = read_table(export, "TARGET_INFO_GPU", ["id", "cuDevice", "name", "smCount", "totalMemory"])
    cuda = read_table(export, "TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
    possible = (pl.when(pl.col(name) > 0).then(name) for name in ("smCount", "totalMemory"))
    gpus = {number: (device, Gpu(*about)) for number, device, *about in rows.with_columns(*possible).rows()}
    found: dict[tuple[int, int | None], Gpu] = {
        (-1, device): gpu for device, gpu in gpus.values() if device is not None
    }
    return found | {(pid, device): gpus[number][1] for number, device, pid in cuda.rows() if number in gpus}


def lost_events(export: Export) -> list[Notice]:
    """Return a notice for each kind of warning or error the profiler recorded, without its text."""
    rows = read_table(export, "DIAGNOSTIC_EVENT", ["severity", "text"])
    rows = rows.filter(pl.col("severity").is_in([_WARNING, _ERROR]))
    if not rows.height:
        return []
    text = pl.col("text").str.to_lowercase()
    sentences = pl.lit("the profiler reported a problem")
    for pattern, sentence in reversed(_LOST):
        sentences = pl.when(text.str.contains(pattern)).then(pl.lit(sentence)).otherwise(sentences)
    counts = rows.group_by(sentences.alias("sentence")).len().sort("sentence")
    return [
        Notice("profiler-warnings", f"{sentence} ({count} such warnings; open the report in nsys-ui to read them)")
        for sentence, count in counts.rows()
    ]
