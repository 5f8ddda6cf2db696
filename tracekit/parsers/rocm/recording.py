"""Content of the files of ROCm's profilers, whichever of them wrote it: work of GPUs, calls and ranges of the host."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.errors import Notice, NoticeValues
from tracekit.schema import NAMELESS

MAX_TIME_NS = 1 << 61
"""Exclusive bound of plausible times, counted from the start of the machine (73 years)."""
MAX_GPU_EVENT_NS = 86_400_000_000_000
"""Exclusive bound of plausible durations on a GPU (one day)."""

ROCM_GPU_WORK = pl.Schema(
    {
        "kind": pl.String(),  # kernel, memcpy or memset
        "name": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "device": pl.Int32(),
        "stream": pl.Int64(),
        "correlation": pl.Int64(),  # of the call that launched it
        "process": pl.Int64(),
        "bytes": pl.Int64(),  # of a copy
    }
)
ROCM_CALLS = pl.Schema(
    {
        "kind": pl.String(),  # runtime, overhead or other
        "name": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "tid": pl.Int64(),
        "correlation": pl.Int64(),
        "process": pl.Int64(),
    }
)
ROCM_RANGES = pl.Schema(
    {
        "kind": pl.String(),  # annotation or mark
        "text": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "tid": pl.Int64(),
        "process": pl.Int64(),
    }
)


@dataclass(frozen=True)
class RocmRecording:
    """The content of a file."""

    gpu: pl.DataFrame
    """``ROCM_GPU_WORK``."""
    calls: pl.DataFrame
    """``ROCM_CALLS``."""
    ranges: pl.DataFrame
    """``ROCM_RANGES``."""
    gpus: Mapping[int, str]
    """Names of GPUs by device."""
    tool: str
    """What wrote the file, with its version where that is said."""
    other_operations: int = 0
    """Operations of queues that are no work of the GPU: barriers and markers."""
    notices: tuple[Notice, ...] = ()


COPY_NAMES_OF_WORDS = {
    "HOST_TO_DEVICE": "HtoD (Host -> Device)",
    "DEVICE_TO_HOST": "DtoH (Device -> Host)",
    "DEVICE_TO_DEVICE": "DtoD (Device -> Device)",
    "HOST_TO_HOST": "HtoH (Host -> Host)",
}
"""Words of directions, and how PyTorch writes them."""


def copy_name(direction: pl.Expr) -> pl.Expr:
    """Return names of copies as PyTorch writes them, from words such as CopyHostToDevice or HOST_TO_DEVICE.

    >>> words = pl.DataFrame({"type": ["CopyHostToDevice", "MEMORY_COPY_DEVICE_TO_HOST"]})
    >>> words.select(copy_name(pl.col("type")))["literal"].to_list()
    ['Memcpy HtoD (Host -> Device)', 'Memcpy DtoH (Device -> Host)']
    """
    letters = direction.str.to_uppercase().str.replace_all("_", "")
    name: pl.Expr = pl.lit("Memcpy (Unknown -> Unknown)")
    for words, written in COPY_NAMES_OF_WORDS.items():
        has_direction = letters.str.contains(words.replace("_", ""), literal=True)
        name = pl.when(has_direction).then(pl.lit(f"Memcpy {written}")).otherwise(name)
    return name


def usable_gpu_work(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the work of GPUs with times that can be, and how much has none."""
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    is_usable = _is_plausible("start_ns") & length_ns.is_between(
        0, MAX_GPU_EVENT_NS, closed="left"
    ).fill_null(False)
    usable = frame.filter(is_usable).with_columns(pl.col("name").fill_null(NAMELESS))
    return usable, len(frame) - len(usable)


def usable_host_events(
    frame: pl.DataFrame, noun: str, file: str
) -> tuple[pl.DataFrame, tuple[Notice, ...]]:
    """Return the events of the host that have a start, with a notice of the others.

    One without an end was not over when the recording ended: it lasts until the last time in the file.
    """
    starts = _is_plausible("start_ns")
    is_open = pl.col("end_ns").is_null() | (pl.col("end_ns") == 0)
    is_usable = starts & (is_open | (pl.col("end_ns") >= pl.col("start_ns")).fill_null(False))
    usable = frame.filter(is_usable)
    last_ns = usable.select(pl.max_horizontal(pl.col("end_ns").max(), pl.col("start_ns").max()))
    closed = usable.with_columns(
        end_ns=pl.when(is_open).then(pl.lit(last_ns.item(), pl.Int64)).otherwise("end_ns")
    )
    if len(usable) == len(frame):
        return closed, ()
    values: NoticeValues = {
        "case": "times",
        "file": file,
        "rows": noun,
        "count": len(frame) - len(usable),
        "total": len(frame),
    }
    return closed, (
        Notice(
            "bad-events",
            (
                f"{file}: {len(frame) - len(usable):,} of {len(frame):,} {noun} "
                "have no usable start or end"
            ),
            values=values,
        ),
    )


def _is_plausible(column: str) -> pl.Expr:
    return pl.col(column).is_between(0, MAX_TIME_NS, closed="left").fill_null(False)
