"""Checks of a rank's recording: damage, repeated events, missing GPU work, steps that are cut off.

Kernels without a name may compute or communicate, and kernels without times ran at any moment.
Above a small share of either, no figure of the rank can be trusted, and its file is refused; below
it, idle time and the bubble are unknown.
"""

from pathlib import Path

import polars as pl

from tracekit._util.text import counted, percent, record_again, verb
from tracekit.classify.captured_graphs import Mismatch
from tracekit.classify.graph_replays import Replays
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.metrics.completeness import MAX_MISSING_LAUNCH_SHARE, count_missing_launches
from tracekit.schema import DAMAGED, GPU_KINDS, NAMELESS, UNTIMED, GraphCapture, RankEvents, Source

MAX_DAMAGED_SHARE = 0.01
"""Share of a rank's GPU events without times, or of its kernels' time without a name, above which
it is refused."""
_EVENT_IDENTITY = ("device", "stream", "start_ns", "end_ns", "name", "correlation")
"""Columns in which two GPU events are equal only if one of them is a copy."""
COARSE_RESOLUTION_NS = 1_000
"""Resolution of the times of PyTorch before 2.1."""
_OTHER_ACCELERATORS = r"(?i)\b(npu|ascend|aclnn|aclrt|aclop|hccl|xpu|hpu|mps|tpu)"
"""Names in the runtimes and operators of accelerators that are not supported."""


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
        case = "untimed"
        lost = untimed
        problem = f"{lost:,} of {total:,} GPU events {_why_untimed(rank.source)}"
    elif unreadable:  # any of them may have run on the GPU
        case = "unreadable"
        lost = unreadable
        total = unreadable + rank.events.height
        problem = f"{lost:,} of {total:,} events are damaged and may have run on the GPU"
    else:
        return []
    if lost > MAX_DAMAGED_SHARE * total:
        raise InputError(problem, path=rank.source.path, hint=record_again(rank.source.reader))
    values: NoticeValues = {
        "case": case,
        "count": lost,
        "total": total,
        "reader": rank.source.reader,
    }
    lost_events = "are damaged and may have run on the GPU"
    noun = "events"
    if untimed:
        noun = "GPU events"
        lost_events = "have no usable start or end, or lie outside of the recording"
    message = (
        f"{lost:,} of {total:,} {noun} {lost_events}: idle time and the bubble are null; "
        f"{record_again(rank.source.reader)}"
    )
    return [Notice("gpu-events-lost", message, values=values)]


def capture_notices(replays: Replays | None, capture: GraphCapture | None) -> tuple[Notice, ...]:
    """Return how much of a rank's replays has the operators of the capture, and why the rest has not."""
    if replays is None or capture is None or replays.calls.is_empty():
        return ()
    file = Path(capture.path).name
    notices = []
    if len(replays.joined):
        values: NoticeValues = {
            "file": file,
            "replays": replays.replays_joined,
            "launches": len(replays.calls),
            "share": replays.joined_ns / max(1, replays.replay_ns),
        }
        notices.append(
            Notice(
                "capture-joined",
                (
                    f"{counted(replays.replays_joined, 'graph replay')} "
                    f"{verb(replays.replays_joined, 'has', 'have')} the operators, "
                    f"shapes and modules of the capture {file}: "
                    f"{percent(replays.joined_ns / max(1, replays.replay_ns))} of "
                    "the GPU time of all replays"
                ),
                values=values,
                severity="note",
            )
        )
    for mismatch in replays.mismatches[:1]:
        unjoined = len(replays.calls) - replays.replays_joined
        values = {
            "case": mismatch.case,
            "file": file,
            "captured": mismatch.captured,
            "replayed": mismatch.replayed,
            "share": mismatch.share,
            "replays": unjoined,
        }
        message = _why_capture_unused(mismatch, file, unjoined)
        notices.append(Notice("capture-unused", message, values=values))
    return tuple(notices)


def _why_capture_unused(mismatch: Mismatch, file: str, replays: int) -> str:
    """Return why *replays* of graphs have not the operators of the capture in *file*."""
    captured = mismatch.captured or 0
    replayed = mismatch.replayed or 0
    share = percent(mismatch.share or 0.0)
    of_replays = counted(replays, "graph replay")
    if mismatch.case == "no_graphs":
        return f"{file}: no graph was captured in this trace"
    if mismatch.case == "sizes":
        return (
            f"{file} is the capture of another batch size: its shapes ask for {counted(captured, 'block')} where "
            f"{of_replays} {verb(replays, 'runs', 'run')} {replayed}"
        )
    if mismatch.case == "short_launch":
        return (
            f"{of_replays} {verb(replays, 'is', 'are')} not joined with {file}: the launch and the time until the "
            f"host's next event take {replayed:,} ns, too short for the order of {captured:,} captured times"
        )
    if mismatch.case == "several_graphs":
        return (
            f"{captured} graphs of {file} fit {of_replays} of {replayed} nodes equally well, and differ in their "
            "operators: it cannot be told which was replayed"
        )
    were_captured = f"{verb(captured, 'was', 'were')} captured, and a replay has {replayed}"
    copies = f"{captured} {verb(captured, 'copy was', 'copies were')}"
    reasons = {
        "kernel_count": f"{counted(captured, 'kernel')} {were_captured}",
        "memset_count": f"{counted(captured, 'memset')} {were_captured}",
        "memcpy_count": f"{copies} captured, and a replay has {replayed}",
        "order": "kernels, copies and memsets come in another order",
        "names": f"only {share} of the captured kernels have the name of a replayed one",
        "kernels": f"only {share} of the launches would always be the same kernel",
    }
    return f"{file} is not the capture of {of_replays}: {reasons[mismatch.case]}"


def _why_untimed(source: Source) -> str:
    """Return why GPU events have no times, for an error message."""
    for notice in source.notices:
        if notice.code == "bad-events" and notice.values["case"] == "no_column":
            return (
                f"were left out: {notice.values['table']} has no column {notice.values['column']!r}"
            )
    return "have no usable start or end"


def _refuse_nameless(rank: RankEvents) -> None:
    """Raise if kernels without a name take too large a share of all kernels' time."""
    kernels = rank.events.select("kind", "name", "start_ns", "end_ns").filter(
        pl.col("kind") == "kernel"
    )
    is_nameless = pl.col("name") == NAMELESS
    ns = pl.col("end_ns") - pl.col("start_ns")
    count, nameless_ns, total_ns = kernels.select(
        is_nameless.sum(), nameless=ns.filter(is_nameless).sum(), total=ns.sum()
    ).row(0)
    if nameless_ns > MAX_DAMAGED_SHARE * total_ns:
        text = (
            f"{rank.source.path}: {count:,} of {len(kernels):,} kernels have no name (the table StringIds is missing "
            "or incomplete): compute cannot be told from communication"
        )
        raise InputError(text, hint=record_again("nsight"))


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
    candidates = labelled.select(_EVENT_IDENTITY).filter(may_be_copy)
    copies = len(candidates) - candidates.n_unique()
    if copies <= MAX_DAMAGED_SHARE * len(labelled):
        return []
    values: NoticeValues = {
        "case": "events",
        "count": copies,
        "total": len(labelled),
        "reader": source.reader,
    }
    return [
        Notice(
            "repeated-events",
            (
                f"{copies:,} of {len(labelled):,} GPU events stand in the file more than "
                "once: counts and sums of kernels are too large, and so is what rests on "
                f"them; {record_again(source.reader)}"
            ),
            values=values,
        )
    ]


def content_notices(
    gpu_events: pl.DataFrame, steps: pl.DataFrame, calls: pl.DataFrame, rank: RankEvents
) -> list[Notice]:
    """Return notices about what the recording lacks.

    Args:
        gpu_events: The rank's labelled GPU events in the selected steps.
        steps: Its table of steps.
        calls: Its host's calls.
        rank: All its events, and its source.

    """
    if gpu_events.is_empty():
        case, message = no_gpu_reason(rank)
        return [Notice("no-gpu-events", message, values={"case": case})]
    notices = []
    if gpu_events["step"].null_count() == len(gpu_events):
        notices.append(
            Notice(
                "no-steps",
                ("there are no step marks: the whole trace is taken as one step"),
                values={"case": "whole_trace"},
            )
        )
    for row in steps.filter("partial").iter_rows(named=True):
        notices.append(
            Notice(
                "partial-step",
                (f"step {row['step']} holds only {row['events']} GPU events: it looks cut off"),
                values={"case": "few_events", "step": row["step"], "events": row["events"]},
            )
        )
    notices += _zero_duration_notices(gpu_events)
    graphs = int((gpu_events["kind"] == "graph").sum())
    if graphs:
        notices.append(
            Notice(
                "graphs-whole",
                (
                    f"{counted(graphs, 'captured graph')} "
                    f"{verb(graphs, 'was', 'were')} recorded whole, without "
                    f"{verb(graphs, 'its kernels: it counts', 'their kernels: they count')}"
                    " as compute labelled other"
                ),
                values={"case": "labelled", "graphs": graphs},
            )
        )
    missing = count_missing_launches(calls, gpu_events)
    if missing:
        # Where a call is not in the file, ``launch_ns`` is the start of the operator that made it.
        unplaced = gpu_events["launch_ns"].null_count()
        case = "by_time" if unplaced > MAX_MISSING_LAUNCH_SHARE * len(gpu_events) else "by_operator"
        values: NoticeValues = {"case": case, "count": missing, "total": len(gpu_events)}
        instead = "the operators around it tell steps and labels, and launches count from an operator's start"
        if case == "by_time":
            instead = (
                "they count in the step in which they ran, what their gaps waited for is not known, waits and costs "
                "may be lower bounds, and what findings would save is withheld; tracekit doctor says how to record "
                "launches"
            )
        message = f"the launch of {missing:,} of {len(gpu_events):,} GPU events is not in the file: {instead}"
        notices.append(Notice("no-launches", message, values=values))
    return notices


def _zero_duration_notices(gpu_events: pl.DataFrame) -> list[Notice]:
    """Return a notice of kernels that last 0 ns, unless that may be rounding: times in whole microseconds."""
    times = gpu_events.filter(pl.col("kind") == "kernel").select("start_ns", "end_ns")
    zeros = int((times["end_ns"] == times["start_ns"]).sum())
    is_coarse = pl.all_horizontal((pl.all() % COARSE_RESOLUTION_NS == 0).all())
    if not zeros or times.select(is_coarse).item():
        return []
    return [
        Notice(
            "zero-durations",
            (
                f"{zeros:,} of {counted(len(times), 'kernel')} last 0 ns: their durations "
                "were not recorded; compute is at least what is shown"
            ),
            values={"count": zeros, "total": len(times)},
        )
    ]


def no_gpu_reason(rank: RankEvents) -> tuple[str, str]:
    """Return why *rank* has no GPU events, as the case of the notice ``no-gpu-events`` and in words.

    >>> from tracekit.schema import EVENTS, conform
    >>> events = conform(pl.DataFrame({"kind": ["cpu_op"], "name": ["aclnnMatmul"]}), EVENTS)
    >>> no_gpu_reason(RankEvents(events, Source("a.json", "kineto", 0, "name")))[0]
    'other_accelerator'
    """
    if any(notice.code == "truncated" for notice in rank.source.notices):
        why = "the file ends before them: copy it again, or record again"
        return "truncated", f"there are no GPU events: {why}"
    kinds = set(rank.events["kind"].cast(pl.String).unique().to_list())
    names = rank.events["name"].unique().cast(pl.String)
    if names.str.contains(_OTHER_ACCELERATORS).any():
        why = "it is another accelerator's trace: only CUDA and ROCm traces are read here"
        return "other_accelerator", f"there are no GPU events: {why}"
    if not kinds & {"cpu_op", "runtime", "driver", "annotation", "python"}:
        why = "nothing in it comes from PyTorch's profiler or Nsight Systems: only their traces are read here"
        return "other_program", f"there are no GPU events: {why}"
    return "not_recorded", "there are no GPU events: record with CUDA activities on"
