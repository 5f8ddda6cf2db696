"""Checks of a rank's recording: damage, repeated events, missing GPU work, steps that are cut off.

Kernels without a name may compute or communicate, and kernels without times ran at any moment. Above a small share of
either, no figure of the rank can be trusted, and its file is refused; below it, idle time and the bubble are unknown.
"""

import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.schema import DAMAGED, GPU_KINDS, NAMELESS, UNTIMED, RankEvents, Source

MAX_DAMAGED_SHARE = 0.01
"""Share of a rank's GPU events without times, or of its kernels' time without a name, above which it is refused."""
MAX_UNLAUNCHED_PERCENT = 1
"""Per cent of GPU events without a launch, above which there is a notice."""
_RECORD_AGAIN = {
    "nsight": "export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep",
    "kineto": "record this rank again",
}
_IDENTITY = ("device", "stream", "start_ns", "end_ns", "name", "correlation")
"""Columns in which two GPU events are equal only if one of them is a copy."""
_OTHER_ACCELERATORS = r"(?i)\b(npu|ascend|aclnn|aclrt|aclop|hccl|xpu|hpu|mps|tpu)"
"""Names in the runtimes and operators of accelerators that are not supported."""


def _record_again(source: Source) -> str:
    return _RECORD_AGAIN.get(source.reader, _RECORD_AGAIN["kineto"])


def damage_notices(rank: RankEvents) -> list[Notice]:
    """Return notices of a rank whose GPU events could not all be read; raise if it lost too many.

    >>> from tracekit.schema import EVENTS
    >>> lost = Source("rank0.sqlite", "nsight", 0, "name", skipped={UNTIMED: 3})
    >>> damage_notices(RankEvents(EVENTS.to_frame(), lost))
    Traceback (most recent call last):
    tracekit.errors.InputError: rank0.sqlite: 3 of 3 GPU events have no usable start or end (export the report again: \
nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep)
    """
    if rank.source.reader == "nsight":  # only its files have names in a table of their own
        _refuse_nameless(rank)
    untimed = rank.source.skipped.get(UNTIMED, 0)
    unreadable = rank.source.skipped.get(DAMAGED, 0)
    if untimed:
        total = untimed + int(rank.events["kind"].is_in(GPU_KINDS).sum())
        text = f"{untimed:,} of {total:,} GPU events have no usable start or end"
        reader_text = next((note.message for note in rank.source.notices if note.code == "damaged-rows"), "")
        error_text = reader_text.partition(": ")[2] or text
        lost = untimed
    elif unreadable:  # any of them may have run on the GPU
        lost, total = unreadable, unreadable + rank.events.height
        error_text = text = f"{lost:,} of {total:,} events are damaged and may have run on the GPU"
    else:
        return []
    hint = _record_again(rank.source)
    if lost > MAX_DAMAGED_SHARE * total:
        raise InputError(f"{rank.source.path}: {error_text}", hint=hint)
    return [Notice("gpu-events-lost", f"{text}: idle time and the bubble are null; {hint}")]


def _refuse_nameless(rank: RankEvents) -> None:
    """Raise if kernels without a name take too large a share of all kernels' time."""
    kernels = rank.events.select("kind", "name", "start_ns", "end_ns").filter(pl.col("kind") == "kernel")
    is_nameless, ns = pl.col("name") == NAMELESS, pl.col("end_ns") - pl.col("start_ns")
    count, nameless_ns, total_ns = kernels.select(
        is_nameless.sum(), nameless=ns.filter(is_nameless).sum(), total=ns.sum()
    ).row(0)
    if nameless_ns > MAX_DAMAGED_SHARE * total_ns:
        text = (
            f"{rank.source.path}: {count:,} of {len(kernels):,} kernels have no name (the table StringIds is missing "
            "or incomplete): compute cannot be told from communication"
        )
        raise InputError(text, hint=_RECORD_AGAIN["nsight"])


def repetition_notices(labelled: pl.DataFrame, source: Source) -> list[Notice]:
    """Return a notice if many GPU events are in the file twice: a stream never runs two at the same time.

    A few may be short events whose times were rounded to the same values.

    >>> from tracekit.schema import EVENTS, conform
    >>> row = {"kind": "kernel", "name": "k", "start_ns": 0, "end_ns": 5}
    >>> twice = conform(pl.DataFrame([{"id": 0, **row}, {"id": 1, **row}]), EVENTS)
    >>> [notice.code for notice in repetition_notices(twice, Source("rank0.sqlite", "nsight", 0, "name"))]
    ['repeated-events']
    """
    # Only events that start at the same time can be copies: compare these alone.
    may_be_copy = (pl.col("end_ns") > pl.col("start_ns")) & pl.col("start_ns").is_duplicated()
    candidates = labelled.select(_IDENTITY).filter(may_be_copy)
    copies = len(candidates) - candidates.n_unique()
    if copies <= MAX_DAMAGED_SHARE * len(labelled):
        return []
    text = f"{copies:,} of {len(labelled):,} GPU events stand in the file more than once: counts and sums of kernels"
    return [Notice("repeated-events", f"{text} are too large, and so is what rests on them; {_record_again(source)}")]


def content_notices(gpu_events: pl.DataFrame, steps: pl.DataFrame, rank: RankEvents) -> list[Notice]:
    """Return notices about what the recording lacks.

    Args:
        gpu_events: The rank's labelled GPU events in the selected steps.
        steps: Its table of steps.
        rank: All its events, and its source.

    """
    if gpu_events.is_empty():
        return [Notice("no-gpu-events", f"there are no GPU events: {no_gpu_reason(rank)}")]
    notices = []
    if gpu_events["step"].null_count() == len(gpu_events):
        notices.append(Notice("no-steps", "there are no step marks: the whole trace is taken as one step"))
    for row in steps.filter("partial").iter_rows(named=True):
        text = f"step {row['step']} holds only {row['events']} GPU events: it looks cut off"
        notices.append(Notice("partial-step", text))
    graphs = int((gpu_events["kind"] == "graph").sum())
    if graphs:
        text = f"{graphs} CUDA graphs were recorded whole, without their kernels: they count as compute labelled other"
        notices.append(Notice("graphs-whole", text))
    unlaunched, total = gpu_events["launch_ns"].null_count(), len(gpu_events)
    if 100 * unlaunched > MAX_UNLAUNCHED_PERCENT * total:
        text = f"{unlaunched} of {total} GPU events have no launch in the file: what their gaps waited for is not known"
        notices.append(Notice("no-launches", text))
    return notices


def no_gpu_reason(rank: RankEvents) -> str:
    """Return why *rank* has no GPU events, and what would help.

    >>> from tracekit.schema import EVENTS, conform
    >>> events = conform(pl.DataFrame({"kind": ["cpu_op"], "name": ["aclnnMatmul"]}), EVENTS)
    >>> no_gpu_reason(RankEvents(events, Source("a.json", "kineto", 0, "name")))
    "it is another accelerator's trace: only CUDA and ROCm traces are read here"
    """
    if any(notice.code == "truncated" for notice in rank.source.notices):
        return "the file ends before them: copy it again, or record again"
    kinds = set(rank.events["kind"].cast(pl.String).unique().to_list())
    names = rank.events["name"].unique().cast(pl.String)
    if names.str.contains(_OTHER_ACCELERATORS).any():
        return "it is another accelerator's trace: only CUDA and ROCm traces are read here"
    if not kinds & {"cpu_op", "runtime", "driver", "annotation", "python"}:
        return "nothing in it comes from PyTorch's profiler or Nsight Systems: only their traces are read here"
    return "record with CUDA activities on"
