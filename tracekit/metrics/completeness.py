"""Completeness of a recording: launches without their GPU event, and idle time that may be unrecorded work.

A launch without a GPU event is one of four things: a call during the capture of a graph, which runs
nothing; one of the recording's last (or first) launches, cut off with it; a kernel that the
profiler lost; or a graph whose nodes were not traced. Idle time in which lost work may have run is
*unrecorded*, a term of its own in the budget: the true idle time lies between the budget's idle,
and idle and unrecorded together.
"""

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.columns import present
from tracekit._util.text import counted, first_of, ms, percent, verb
from tracekit.classify.names import HOST_CALLS
from tracekit.errors import Notice, NoticeValues
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.host.events import LAUNCH_PATTERN, NamedRows
from tracekit.schema import GPU_KINDS

MAX_LOST_SHARE = 0.02
"""Share of launches lost inside the recording above which idle time is unknown."""
EDGE_SHARE = 0.1
"""Share of the launches, at either end of a recording, among which a stream must have work to be
cut off there."""
MAX_LAUNCHES_TO_NEIGHBOUR = 64
"""Launches before or after a lost one within which a stream must have work to be the one that the
lost work ran on."""
MAX_MISSING_LAUNCH_SHARE = 0.01
"""Share of GPU events whose launch is not in the file, above which that is said."""
MIN_NODE_GAP_NS = 20_000
"""Idle time between two nodes of one graph launch above which nodes between them were not
recorded."""
MIN_QUEUED_GAP_NS = 200_000
"""Idle time before or after a graph, with work queued, above which nodes of the graph were not
recorded."""

MIN_WAIT_FOR_EARLIER_WORK_NS = 1_000_000
"""Idle time between the launch of a stream's first recorded work and its start, above which it waits
for work from before the recording; a launch takes microseconds to start."""

MAX_STEPS_NAMED = 8
"""Steps that a notice names."""

_GPU_COLUMNS = ("correlation", "start_ns", "end_ns", "device", "stream", "launch_ns")


class Completeness(msgspec.Struct, frozen=True, eq=False):
    """Missing GPU work of one rank's recording."""

    idle_known: bool = True
    unrecorded: Intervals = msgspec.field(default_factory=lambda: EMPTY)
    """Time in which lost work may have run; it counts only where nothing else ran."""
    cut_steps: tuple[int | None, ...] = ()
    """Steps recorded only in part, at the recording's beginning or end; None stands for events
    outside every step."""
    notices: tuple[Notice, ...] = ()


def add_launch_times(events: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU events with ``launch_ns``, the start of their launch call, as ``check_completeness`` reads them.

    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "name": ["cudaLaunchKernel", "k"], "correlation": [1, 1],
    ...                        "start_ns": [3, 9], "end_ns": [4, 12]})
    >>> add_launch_times(events).select("start_ns", "launch_ns").rows()
    [(9, 3)]
    """
    calls = events.filter(
        pl.col("kind").is_in(["runtime", "driver"]) & pl.col("correlation").is_not_null()
    )
    launches = calls.select("correlation", launch_ns="start_ns").unique("correlation", keep="last")
    gpu = events.filter(pl.col("kind").is_in(GPU_KINDS))
    return gpu.join(launches, on="correlation", how="left", maintain_order="left")


def count_missing_launches(calls: pl.DataFrame, gpu_events: pl.DataFrame) -> int:
    """Return how many GPU events lack the call that launched them; 0 if they are at most ``MAX_MISSING_LAUNCH_SHARE``.

    Nodes of a graph have no launch of their own. What ran before the first event of its stream that
    has a launch was launched before the recording began.

    Args:
        calls: The host's calls.
        gpu_events: GPU events of one rank.

    >>> calls = pl.DataFrame({"correlation": [2, 4]})
    >>> events = pl.DataFrame({"correlation": [1, 2, 3, 4], "start_ns": [0, 1, 2, 3], "graph": None,
    ...                        "device": 0, "stream": 7})
    >>> count_missing_launches(calls, events)
    1
    """
    is_launched = pl.col("correlation").is_in(calls["correlation"].drop_nulls().implode())
    max_missing = MAX_MISSING_LAUNCH_SHARE * len(gpu_events)
    without_call = gpu_events.select(is_launched.fill_null(False).not_().sum()).item()
    if without_call <= max_missing:
        return 0
    launched = gpu_events.select(
        "device", "stream", "start_ns", "graph", is_launched=is_launched.fill_null(False)
    ).sort("start_ns")
    since_first = pl.col("is_launched").cum_max().over("device", "stream")
    is_stream_launched = pl.col("is_launched").any().over("device", "stream")
    is_node = (pl.col("graph") > 0).fill_null(False)
    is_missing = ~pl.col("is_launched") & (since_first | ~is_stream_launched) & ~is_node
    count = int(launched.select(is_missing.sum()).item())
    return count if count > max_missing else 0


def check_completeness(calls: NamedRows, labelled: pl.DataFrame) -> Completeness:
    """Return which GPU work is missing from the file: lost with it, or launched before it began.

    The arguments are those of ``_check_launches``.
    """
    completeness = _check_launches(calls, labelled)
    waits = _waits_for_earlier_work(calls, labelled)
    if not len(waits):
        return completeness
    return msgspec.structs.replace(completeness, unrecorded=completeness.unrecorded | waits)


def add_lost_operators(
    completeness: Completeness, lost: pl.DataFrame, calls: NamedRows, labelled: pl.DataFrame
) -> Completeness:
    """Return the completeness of a recording that lacks GPU work together with its launches, too.

    Args:
        completeness: What launches tell.
        lost: Operators whose launches are missing (``lost_operators.find_lost_operators``).
        calls: The host's calls.
        labelled: GPU events with ``launch_ns``.

    """
    if lost.is_empty():
        return completeness
    is_launch = calls.named(LAUNCH_PATTERN) & present(calls.rows["correlation"])
    launches = calls.select(is_launch).rows.select("correlation", "start_ns")
    numbered = lost.select(correlation=-1 - pl.int_range(pl.len()), start_ns="start_ns")
    in_order = pl.concat([launches, numbered], how="vertical_relaxed").sort("start_ns")
    possible = _find_possible_times(numbered, in_order, labelled.select(_GPU_COLUMNS))
    idle_known = len(lost) <= MAX_LOST_SHARE * len(in_order)
    steps = lost["step"].unique().sort()
    values: NoticeValues = {
        "case": "some_operators" if idle_known else "many_operators",
        "count": len(lost),
        "step_count": len(steps),
        "steps": tuple(steps[:MAX_STEPS_NAMED].to_list()),
    }
    what_follows = "idle time and the bubble are null; record fewer steps, or record again"
    if idle_known:
        what_follows = "idle time in which it may have run counts as not recorded, compute is at least what is shown"
    named = first_of(steps[:MAX_STEPS_NAMED].to_list(), count=len(steps))
    message = (
        f"{counted(len(lost), 'operator')} of {verb(len(steps), 'step', 'steps')} {named} launched nothing, though in "
        f"steps of like work they do: their GPU work is missing with its launches: {what_follows}"
    )
    return Completeness(
        idle_known=completeness.idle_known and idle_known,
        unrecorded=completeness.unrecorded | possible,
        cut_steps=completeness.cut_steps,
        notices=(*completeness.notices, Notice("gpu-events-lost", message, values=values)),
    )


def _waits_for_earlier_work(calls: NamedRows, labelled: pl.DataFrame) -> Intervals:
    """Return when the GPU ran nothing that is recorded while the first work of a stream was launched and waited.

    Nothing before it in the file holds it back: it waits for work from before the recording.
    """
    if labelled.is_empty() or "launch_ns" not in labelled.columns:
        return EMPTY
    launched = labelled.select(_GPU_COLUMNS).drop_nulls(["launch_ns", "correlation"])
    first = launched.sort("start_ns").group_by("device", "stream", maintain_order=True).first()
    launched_first = pl.col("correlation").is_in(first["correlation"].implode())
    returns = (
        calls.rows.select("correlation", "end_ns")
        .filter(launched_first)
        .group_by("correlation")
        .agg(returned_ns=pl.col("end_ns").max())
    )
    waiting = first.join(returns, on="correlation").filter(
        pl.col("start_ns") - pl.col("returned_ns") >= MIN_WAIT_FOR_EARLIER_WORK_NS
    )
    if waiting.is_empty():
        return EMPTY
    busy = union(labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy())
    idle = union(waiting["returned_ns"].to_numpy(), waiting["start_ns"].to_numpy()) - busy
    is_long = idle.end_ns - idle.start_ns >= MIN_WAIT_FOR_EARLIER_WORK_NS
    return union(idle.start_ns[is_long], idle.end_ns[is_long])


def _check_launches(calls: NamedRows, labelled: pl.DataFrame) -> Completeness:
    """Return which launched GPU work is missing from the file.

    Args:
        calls: The host's calls.
        labelled: GPU events with ``launch_ns``.

    >>> calls = {"kind": "runtime", "name": "cudaLaunchKernel", "correlation": [1, 2, 3], "tid": 1,
    ...          "start_ns": [0, 1, 2], "end_ns": [1, 2, 3], "step": None}
    >>> gpu = {"kind": "kernel", "correlation": [1, 3], "start_ns": [5, 30], "end_ns": [9, 40], "stream": 7,
    ...        "device": 0, "launch_ns": [0, 2]}
    >>> completeness = check_completeness(NamedRows(pl.DataFrame(calls)), pl.DataFrame(gpu))
    >>> completeness.unrecorded, [notice.code for notice in completeness.notices]
    (Intervals([9, 30)), ['gpu-events-lost'])

    """
    launch_rows = np.flatnonzero(calls.named(LAUNCH_PATTERN) & present(calls.rows["correlation"]))
    if not len(launch_rows) or labelled.is_empty():
        return Completeness()
    has_event = (
        calls.rows["correlation"].is_in(labelled["correlation"].implode()).fill_null(value=False)
    )
    is_missing = ~has_event.to_numpy()[launch_rows]
    if not is_missing.any() and not calls.named(HOST_CALLS["launch_graph"]).any():
        return Completeness()
    gpu = labelled.select(_GPU_COLUMNS)
    launches = calls.rows[launch_rows].with_columns(missing=pl.Series(is_missing)).sort("start_ns")
    lost = launches.filter("missing")
    if len(lost) and len(lost) <= _count_unlaunched_since(gpu, int(lost["start_ns"].to_numpy()[0])):
        lost = lost.clear()  # these GPU events may well be theirs

    # 1. Launches during the capture of a graph run nothing.
    captured = _is_captured(calls.select(calls.named(HOST_CALLS["capture"])).rows, lost)
    notices: tuple[Notice, ...] = ()
    if captured.any():
        notices = (
            Notice(
                "graph-captured",
                (
                    f"{int(captured.sum())} launches recorded a graph (between the "
                    "begin and the end of its capture): they ran nothing, and no "
                    "kernel is missing for them"
                ),
                values={"launches": int(captured.sum())},
                severity="note",
            ),
        )
    lost = lost.filter(pl.Series(~captured))
    # 2. Graphs without any event, and graphs of which some nodes are missing.
    is_graph = pl.col("name").cast(pl.String).str.contains(HOST_CALLS["launch_graph"])
    graphs = launches.filter(is_graph)
    unrecorded = _find_graph_holes(gpu, graphs)
    if unseen := len(lost.filter(is_graph)):
        return Completeness(
            False, unrecorded, (), (*notices, _unseen_graphs_notice(unseen, len(graphs)))
        )
    # 3. Launches cut off with the recording's begin or end.
    cut_at_begin, cut_at_end = _find_cut_off(gpu, lost)
    is_cut = pl.Series(cut_at_begin | cut_at_end)
    cut_steps = _find_cut_steps(launches, lost.filter(is_cut))
    notices += _cut_notice(int(cut_at_begin.sum()), int(cut_at_end.sum()))
    # 4. Launches whose work was lost inside the recording.
    inside = lost.filter(~is_cut)
    if inside.is_empty():
        return Completeness(True, unrecorded, cut_steps, (*notices, *_hole_notice(unrecorded, gpu)))
    idle_known = len(inside) <= MAX_LOST_SHARE * len(launches)
    unrecorded = unrecorded | _find_possible_times(inside, launches, gpu)
    notices += (_lost_notice(len(inside), len(launches), idle_known=idle_known),)
    return Completeness(idle_known, unrecorded, cut_steps, notices)


def _count_unlaunched_since(gpu: pl.DataFrame, time_ns: int) -> int:
    """Return how many GPU events without a known launch may have been launched at *time_ns* or later.

    A stream runs in order: an event was launched before the next one on its stream.
    """
    next_launch_ns = (
        pl.col("launch_ns").backward_fill().over("device", "stream", order_by="start_ns")
    )
    return len(
        gpu.filter(
            pl.col("launch_ns").is_null() & (next_launch_ns.is_null() | (next_launch_ns > time_ns))
        )
    )


def _is_captured(captures: pl.DataFrame, lost: pl.DataFrame) -> Bools:
    """Return which launches lie between the begin and the end of a capture on their thread.

    Args:
        captures: Calls that begin or end a capture.
        lost: Launches without a GPU event.

    """
    is_begin = pl.col("name").cast(pl.String).str.contains("Begin")
    edges = captures.select("tid", "start_ns", capturing=is_begin).sort("start_ns")
    launches = lost.select("tid", "start_ns").with_row_index("row").sort("start_ns")
    # The last capture call before a launch, on the same thread, tells whether a capture was under
    # way.
    state = launches.join_asof(
        edges, on="start_ns", by="tid", strategy="backward", check_sortedness=False
    )
    return state.sort("row")["capturing"].fill_null(False).to_numpy()


def _find_cut_off(gpu: pl.DataFrame, lost: pl.DataFrame) -> tuple[Bools, Bools]:
    """Return which lost launches were cut off by the recording's begin, and which by its end.

    A stream runs in order. The recording's end cut off what was launched after the last recorded
    kernel of some stream that was in use then; its begin cut off what was launched before the first
    recorded kernel of such a stream.
    """
    launched = gpu.filter(pl.col("launch_ns").is_not_null())
    time = lost["start_ns"].to_numpy()
    if launched.is_empty():
        return np.zeros(len(time), np.bool_), np.zeros(len(time), np.bool_)
    early = launched["launch_ns"].quantile(EDGE_SHARE)
    late = launched["launch_ns"].quantile(1 - EDGE_SHARE)
    streams = launched.group_by("device", "stream").agg(
        first=pl.col("launch_ns").min(), last=pl.col("launch_ns").max()
    )
    recorded_from = streams.filter(pl.col("first") <= early)["first"].max()
    recorded_until = streams.filter(pl.col("last") >= late)["last"].min()
    # Nothing was cut off there if even the very first (last) launch has its kernel.
    has_cut_begin = (time < streams["first"].min()).any()
    has_cut_end = (time > streams["last"].max()).any()
    return (time < recorded_from) & has_cut_begin, (time > recorded_until) & has_cut_end


def _find_cut_steps(launches: pl.DataFrame, cut: pl.DataFrame) -> tuple[int | None, ...]:
    """Return the steps of which more than ``MAX_LOST_SHARE`` of the launches were cut off."""
    totals = launches.group_by("step").agg(total=pl.len())
    counts = cut.group_by("step").len().join(totals, on="step", nulls_equal=True)
    return tuple(
        counts.filter(pl.col("len") > MAX_LOST_SHARE * pl.col("total"))["step"].sort().to_list()
    )


def _find_possible_times(
    lost: pl.DataFrame, launches: pl.DataFrame, gpu: pl.DataFrame
) -> Intervals:
    """Return when lost work may have run, on any of the streams in use around its launch.

    A stream runs in order: the work ran after everything launched before it had ended, and before
    anything launched after it began.
    """
    turn = launches.select("correlation", turn=pl.int_range(pl.len(), dtype=pl.Int64))
    lost = lost.join(turn, on="correlation").select("turn", launch_ns="start_ns").sort("turn")
    ran = (
        gpu.join(turn, on="correlation")
        .sort("turn")
        .select("device", "stream", "turn", "start_ns", "end_ns")
    )
    windows = (
        [lost.select("launch_ns", since="launch_ns", until=pl.lit(None, pl.Int64))]
        if ran.is_empty()
        else []
    )
    for stream in ran.partition_by("device", "stream"):
        previous = stream.select("turn", since="end_ns", previous_turn="turn")
        following = stream.select("turn", until="start_ns", next_turn="turn")
        window = lost.join_asof(previous, on="turn").join_asof(
            following, on="turn", strategy="forward"
        )
        in_use = (pl.col("turn") - pl.col("previous_turn") <= MAX_LAUNCHES_TO_NEIGHBOUR) | (
            pl.col("next_turn") - pl.col("turn") <= MAX_LAUNCHES_TO_NEIGHBOUR
        )
        windows.append(window.filter(in_use).select("launch_ns", "since", "until"))
    possible = pl.concat(windows)
    start = possible.select(pl.max_horizontal("launch_ns", "since")).to_series().to_numpy()
    end = possible["until"].fill_null(gpu["end_ns"].to_numpy().max()).to_numpy()
    return union(start, np.maximum(start, end))


def _find_graph_holes(gpu: pl.DataFrame, graphs: pl.DataFrame) -> Intervals:
    """Return the long idle times inside a graph launch, and those beside one while work was queued."""
    if graphs.is_empty():
        return EMPTY
    idle = union(gpu["start_ns"].to_numpy(), gpu["end_ns"].to_numpy()).gaps().to_frame()
    is_of_graph = pl.col("correlation").is_in(graphs["correlation"].implode())
    ran = gpu.with_columns(graph=pl.when(is_of_graph).then("correlation"))
    # To each idle gap: the graph of the event that ends last before it, graph and launch of the
    # event that ends it, and the end of that graph's launch call.
    before = (
        ran.sort("end_ns")
        .select(start_ns="end_ns", graph_before="graph")
        .unique("start_ns", keep="last")
        .sort("start_ns")
    )
    after = (
        ran.sort("start_ns", "launch_ns")
        .select("launch_ns", end_ns="start_ns", graph_after="graph")
        .unique("end_ns", keep="first")
    )
    launch_calls = graphs.select(graph_after="correlation", call_end="end_ns")
    table = (
        idle.join_asof(before, on="start_ns")
        .join(after, on="end_ns", how="left", maintain_order="left")
        .join(launch_calls, on="graph_after", how="left", maintain_order="left")
    )
    is_inside = (pl.col("graph_before") == pl.col("graph_after")).fill_null(False)
    is_beside = pl.col("graph_before").is_not_null() | pl.col("graph_after").is_not_null()
    # Work was queued from its launch on, for a graph from the end of its launch call on.
    queued_from = pl.max_horizontal(
        "start_ns",
        pl.col("launch_ns").fill_null(pl.col("end_ns")),
        pl.min_horizontal(pl.col("call_end").fill_null(0), "end_ns"),
    )
    table = table.with_columns(begin=pl.when(is_inside).then("start_ns").otherwise(queued_from))
    min_gap_ns = pl.when(is_inside).then(MIN_NODE_GAP_NS).otherwise(MIN_QUEUED_GAP_NS)
    holes = table.filter(is_beside & (pl.col("end_ns") - pl.col("begin") > min_gap_ns))
    return union(holes["begin"].to_numpy(), holes["end_ns"].to_numpy())


def _cut_notice(early: int, late: int) -> tuple[Notice, ...]:
    notices = []
    if late:
        notices.append(
            Notice(
                "recording-cut",
                (
                    f"the last {late} launches have no GPU event: the recording "
                    "ends before they ran; figures are of the part that was "
                    "recorded"
                ),
                values={"case": "end", "launches": late},
            )
        )
    if early:
        notices.append(
            Notice(
                "recording-cut",
                (
                    f"the first {early} launches have no GPU event: the recording "
                    "begins after they ran; figures are of the part that was "
                    "recorded"
                ),
                values={"case": "begin", "launches": early},
            )
        )
    return tuple(notices)


def _lost_notice(lost: int, launched: int, *, idle_known: bool) -> Notice:
    case = "many_launches"
    what_follows = "idle time and the bubble are null; record fewer steps, or record again"
    if idle_known:
        case = "some_launches"
        what_follows = (
            "idle time in which they may have run counts as not recorded, compute is at least what is shown, and "
            "causes of idle time and of the gap are not certain"
        )
    message = f"{lost} of {launched} launches have no GPU event in the file (dropped by the profiler): {what_follows}"
    values: NoticeValues = {"case": case, "count": lost, "launches": launched}
    return Notice("gpu-events-lost", message, values=values)


def _unseen_graphs_notice(unseen: int, launched: int) -> Notice:
    return Notice(
        "graphs-unseen",
        (
            f"{unseen} of {launched} launches of graphs left no GPU events in the "
            "file: what they ran is not known, so idle time and the bubble are null; "
            "record with graph node tracing"
        ),
        values={"count": unseen, "launches": launched},
    )


def _hole_notice(holes: Intervals, gpu: pl.DataFrame) -> tuple[Notice, ...]:
    if not len(holes):
        return ()
    span = int(gpu["end_ns"].to_numpy().max() - gpu["start_ns"].to_numpy().min())
    hole_ns = int(holes.total_ns)
    return (
        Notice(
            "graph-nodes-missing",
            (
                f"captured graphs ran for {ms(hole_ns, 3)} ({percent(hole_ns / max(1, span))} "
                "of the recording) without a kernel in the file: this time counts as not "
                "recorded, not as idle; record with graph node tracing"
            ),
            values={"hole_ns": hole_ns, "share": hole_ns / max(1, span)},
        ),
    )
