"""How much of the GPU's work is in the file: launches without their kernel, and idle time that may be unrecorded work.

A launch without a kernel is one of four things: a call between the begin and the end of a graph's capture, which runs
nothing; one of the recording's last (or first), cut off with it; a kernel that was lost inside; or a graph whose nodes
were not traced. Idle time in which lost work may have run is *unrecorded*, a part of the budget of its own: the true
idle time lies between the budget's idle, and idle and unrecorded together.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import present
from tracekit._util.text import percent
from tracekit.errors import Notice
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.host import LAUNCHES, Api
from tracekit.schema import GPU_KINDS

Bools = npt.NDArray[np.bool_]

LOST_LAUNCHES = 0.02
"""Share of kernel launches lost inside the recording above which idle time is not known at all."""
EDGE = 0.1
"""Share of a recording's launches, at either end, in which a stream must have work to be cut off there with it."""
BESIDE = 64
"""Launches before and after a lost one among which a stream must have work for the lost work to be its."""
NODE_GAP_NS = 20_000
"""Idle time between two nodes of one graph launch above which nodes between them were not recorded."""
QUEUED_GAP_NS = 200_000
"""Idle time before or after a graph, with work queued, above which nodes of the graph were not recorded."""

_ASKED = ("correlation", "start_ns", "end_ns", "device", "stream", "launch_ns")
"""What is asked of GPU events."""
CAPTURES = "StreamBeginCapture|StreamEndCapture"
"""Names of the calls around a graph's capture."""


class Recorded(msgspec.Struct, frozen=True, eq=False):
    """What is missing in a rank's file of the work that was launched."""

    idle_known: bool = True
    unrecorded: Intervals = msgspec.field(default_factory=lambda: EMPTY)
    """When lost work may have run; only where nothing else did does it count."""
    cut_steps: tuple[int | None, ...] = ()
    """Steps recorded only in part, at the recording's beginning or end; None where there are no step marks."""
    notices: tuple[Notice, ...] = ()


def with_launches(events: pl.DataFrame) -> pl.DataFrame:
    """Return what ran on the GPU with the start of the call that launched it, as ``recorded`` reads it.

    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "name": ["cudaLaunchKernel", "k"], "correlation": [1, 1],
    ...                        "start_ns": [3, 9], "end_ns": [4, 12]})
    >>> with_launches(events).select("start_ns", "launch_ns").rows()
    [(9, 3)]
    """
    calls = events.filter(pl.col("kind").is_in(["runtime", "driver"]) & pl.col("correlation").is_not_null())
    begun = calls.select("correlation", launch_ns="start_ns").unique("correlation", keep="last")
    gpu = events.filter(pl.col("kind").is_in(GPU_KINDS))
    return gpu.join(begun, on="correlation", how="left", maintain_order="left")


def recorded(api: Api, labelled: pl.DataFrame) -> Recorded:
    """Return what is missing in the file: *api* are the host's calls, *labelled* what ran on the GPU.

    >>> calls = {"kind": "runtime", "name": "cudaLaunchKernel", "correlation": [1, 2, 3], "tid": 1,
    ...          "start_ns": [0, 1, 2], "end_ns": [1, 2, 3], "step": None}
    >>> ran = {"kind": "kernel", "correlation": [1, 3], "start_ns": [5, 30], "end_ns": [9, 40], "stream": 7,
    ...        "device": 0, "launch_ns": [0, 2]}
    >>> done = recorded(Api(pl.DataFrame(calls)), pl.DataFrame(ran))
    >>> done.unrecorded, [notice.code for notice in done.notices]
    (Intervals([9, 30)), ['gpu-events-lost'])
    """
    launched = np.flatnonzero(api.named(LAUNCHES) & present(api.calls["correlation"]))
    if not len(launched) or labelled.is_empty():
        return Recorded()
    there = api.calls["correlation"].is_in(labelled["correlation"].implode())
    missing = ~there.fill_null(value=False).to_numpy()[launched]
    if not missing.any() and not api.named("GraphLaunch").any():
        return Recorded()
    gpu = labelled.select(_ASKED)
    calls = api.calls[launched].with_columns(missing=pl.Series(missing)).sort("start_ns")
    lost = calls.filter("missing")
    if len(lost) <= gpu["launch_ns"].null_count():  # events of which no launch is known may well be theirs
        lost = lost.clear()
    captured = _captured(api.calls.filter(pl.Series(api.named(CAPTURES))), lost)
    notices = _capture_notice(int(captured.sum()))
    lost = lost.filter(pl.Series(~captured))
    graph = pl.col("name").cast(pl.String).str.contains("GraphLaunch")
    holes = _graph_holes(gpu, calls.filter(graph))
    if unseen := len(lost.filter(graph)):
        return Recorded(False, holes, (), (*notices, _unseen_graphs(unseen, len(calls.filter(graph)))))
    early, late = _edges(gpu, lost)
    inside = lost.filter(pl.Series(~(early | late)))
    cut = _cut_steps(calls, lost.filter(pl.Series(early | late)))
    notices += _cut_notice(int(early.sum()), int(late.sum()))
    if inside.is_empty():
        return Recorded(True, holes, cut, (*notices, *_hole_notice(holes, gpu)))
    known = len(inside) <= LOST_LAUNCHES * len(calls)
    holes = holes | _windows(inside, calls, gpu)
    return Recorded(known, holes, cut, (*notices, _lost_notice(len(inside), len(calls), known=known)))


def _captured(captures: pl.DataFrame, lost: pl.DataFrame) -> Bools:
    """Return which launches lie between the begin and the end of a capture on their thread."""
    begins = captures.with_columns(begin=pl.col("name").cast(pl.String).str.contains("Begin"))
    edges = begins.select("tid", "begin", pl.col("start_ns")).sort("start_ns")
    asked = lost.select("tid", "start_ns").with_row_index("row").sort("start_ns")
    state = asked.join_asof(edges, on="start_ns", by="tid", strategy="backward", check_sortedness=False).sort("row")
    return state["begin"].fill_null(False).to_numpy()


def _edges(gpu: pl.DataFrame, lost: pl.DataFrame) -> tuple[Bools, Bools]:
    """Return which lost launches the recording's begin, and which its end, cut off.

    A stream runs in order. What its end cut off was launched after the last kernel that a stream at work then still
    has; what its begin cut off, before the first.
    """
    known = gpu.filter(pl.col("launch_ns").is_not_null())
    when = lost["start_ns"].to_numpy()
    if known.is_empty():
        return np.zeros(len(when), bool), np.zeros(len(when), bool)
    first, last = (known["launch_ns"].quantile(q) for q in (EDGE, 1 - EDGE))
    streams = known.group_by("device", "stream").agg(a=pl.col("launch_ns").min(), b=pl.col("launch_ns").max())
    begun, ended = streams.filter(pl.col("a") <= first)["a"].max(), streams.filter(pl.col("b") >= last)["b"].min()
    early, late = when < begun, when > ended
    # Nothing was cut off there if even the very first (last) launch has its kernel.
    some = (when < streams["a"].min()).any(), (when > streams["b"].max()).any()
    return early & some[0], late & some[1]


def _cut_steps(calls: pl.DataFrame, lost: pl.DataFrame) -> tuple[int | None, ...]:
    """Return the steps that lack more than a few of their launches' kernels."""
    share = lost.group_by("step").len().join(calls.group_by("step").agg(of=pl.len()), on="step", nulls_equal=True)
    return tuple(share.filter(pl.col("len") > LOST_LAUNCHES * pl.col("of"))["step"].sort().to_list())


def _windows(inside: pl.DataFrame, calls: pl.DataFrame, gpu: pl.DataFrame) -> Intervals:
    """Return when each lost piece of work may have run, on any of the streams in use around its launch.

    A stream runs in order: it ran after what was launched before it had ended, and before what was launched after it
    began.
    """
    turn = calls.select("correlation", turn=pl.int_range(pl.len(), dtype=pl.Int64))
    lost = inside.join(turn, on="correlation").select("turn", launch_ns="start_ns").sort("turn")
    ran = gpu.join(turn, on="correlation").sort("turn").select("device", "stream", "turn", "start_ns", "end_ns")
    windows = [lost.select("launch_ns", since="launch_ns", until=pl.lit(None, pl.Int64))] if ran.is_empty() else []
    for part in ran.partition_by("device", "stream"):
        before = part.select("turn", since="end_ns", last="turn")
        after = part.select("turn", until="start_ns", next="turn")
        near = lost.join_asof(before, on="turn").join_asof(after, on="turn", strategy="forward")
        used = (pl.col("turn") - pl.col("last") <= BESIDE) | (pl.col("next") - pl.col("turn") <= BESIDE)
        windows.append(near.filter(used).select("launch_ns", "since", "until"))
    table = pl.concat(windows)
    start = table.select(pl.max_horizontal("launch_ns", "since")).to_series().to_numpy()
    end = table["until"].fill_null(gpu["end_ns"].to_numpy().max()).to_numpy()
    return union(start, np.maximum(start, end))


def _graph_holes(gpu: pl.DataFrame, graphs: pl.DataFrame) -> Intervals:
    """Return the long idle times inside a graph launch, and those around one while work was queued."""
    if graphs.is_empty():
        return EMPTY
    busy = union(gpu["start_ns"].to_numpy(), gpu["end_ns"].to_numpy())
    gaps = busy.gaps()
    ran = gpu.select("start_ns", "end_ns", "launch_ns", graph=pl.col("correlation")).with_columns(
        graph=pl.when(pl.col("graph").is_in(graphs["correlation"].implode())).then("graph")
    )
    holes = pl.DataFrame({"start_ns": gaps.start_ns, "end_ns": gaps.end_ns})
    before = ran.sort("end_ns").select(start_ns="end_ns", left="graph")
    after = ran.sort("start_ns", "launch_ns").select(end_ns="start_ns", right="graph", launch_ns="launch_ns")
    table = holes.join_asof(before.unique("start_ns", keep="last").sort("start_ns"), on="start_ns").join(
        after.unique("end_ns", keep="first"), on="end_ns", how="left", maintain_order="left"
    )
    queued = pl.max_horizontal("start_ns", pl.col("launch_ns").fill_null(pl.col("end_ns")))
    ends = graphs.select(right="correlation", call_end="end_ns")
    # Inside the launch call nothing is queued yet: that time is the call's own.
    table = table.join(ends, on="right", how="left", maintain_order="left")
    queued = pl.max_horizontal(queued, pl.min_horizontal(pl.col("call_end").fill_null(0), "end_ns"))
    same = (pl.col("left") == pl.col("right")).fill_null(False)
    touches = pl.col("left").is_not_null() | pl.col("right").is_not_null()
    table = table.with_columns(begin=pl.when(same).then("start_ns").otherwise(queued)).with_columns(
        ns=pl.col("end_ns") - pl.col("begin")
    )
    long = table.filter(touches & (pl.col("ns") > pl.when(same).then(NODE_GAP_NS).otherwise(QUEUED_GAP_NS)))
    return union(long["begin"].to_numpy(), long["end_ns"].to_numpy())


def _capture_notice(count: int) -> tuple[Notice, ...]:
    if not count:
        return ()
    text = f"{count} launches recorded a CUDA graph (between the begin and the end of its capture): they ran "
    return (Notice("graph-captured", f"{text}nothing, and no kernel is missing for them"),)


def _cut_notice(early: int, late: int) -> tuple[Notice, ...]:
    texts = []
    if late:
        texts.append(f"the last {late} launches have no GPU event: the recording ends before they ran")
    if early:
        texts.append(f"the first {early} launches have no GPU event: the recording begins after they ran")
    return tuple(Notice("recording-cut", f"{text}; figures are of the part that was recorded") for text in texts)


def _lost_notice(lost: int, launched: int, *, known: bool) -> Notice:
    text = f"{lost} of {launched} launches have no GPU event in the file (dropped by the profiler)"
    if known:
        text += ": idle time in which they may have run counts as not recorded, compute is at least what is shown, and "
        return Notice("gpu-events-lost", f"{text}causes of idle time and of the gap are not certain")
    return Notice("gpu-events-lost", f"{text}: idle time and the bubble are null; record fewer steps, or record again")


def _unseen_graphs(unseen: int, launched: int) -> Notice:
    text = f"{unseen} of {launched} CUDA graph launches left no GPU events in the file: what they ran is not known, "
    return Notice("graphs-unseen", f"{text}so idle time and the bubble are null; record with graph node tracing")


def _hole_notice(holes: Intervals, gpu: pl.DataFrame) -> tuple[Notice, ...]:
    if not len(holes):
        return ()
    span = int(gpu["end_ns"].to_numpy().max() - gpu["start_ns"].to_numpy().min())
    ns = int(holes.totals_ns(1)[0])
    text = (
        f"CUDA graphs ran for {ns / 1e6:.3f} ms ({percent(ns, max(1, span))} of the recording) without a kernel in the "
    )
    text += "file: this time counts as not recorded, not as idle; record with graph node tracing"
    return (Notice("graph-nodes-missing", text),)
