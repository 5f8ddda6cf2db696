"""GPU events of one rank and what each waited for: the input of a replay.

An event starts after the event before it on its stream, after work of another stream that its
stream was told to wait for, and after its launch. A launch comes after the one before it on the
same host, after GPU work that the host waited for, when there is room in the launch queue, and after
the batch that the host waited for (``event_graph``). Each of these reasons has a column of its own, so
that one can be taken away while the others stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT
from tracekit._util.arrays import Bools, Ints, as_int64
from tracekit._util.columns import present, to_int64
from tracekit.graph.constants import QUEUE_ENTRIES
from tracekit.graph.recording_cost import RecordingCost
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.causes import Rank
from tracekit.metrics.start_constraints import END_TOLERANCE_NS
from tracekit.schema import COMMUNICATION_LABELS, LABELS

BEFORE = (
    "stream_before",
    "other_before",
    "launch_before",
    "released_by",
    "queue_before",
    "loader_before",
)
RANK_EVENTS = pl.Schema(
    {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "launch_ns": pl.Int64(),  # null if not recorded
        "part": pl.Int64(),
        "label": pl.Enum(LABELS),
        "name": pl.Categorical(),
        "module": pl.Categorical(),
        "op": pl.Categorical(),
        "chain": pl.Categorical(),  # operators around the launch, outermost first; without any the annotation
        "stream_before": pl.Int32(),  # row of the event before it on its stream; -1: none
        "other_before": pl.Int32(),  # row of the work of another stream that it may have waited for; -1: none
        "held_by": pl.Int8(),  # what held its start back: index in ``start_constraints.CONSTRAINT_KINDS``
        "launch_before": pl.Int32(),  # row of the event launched before it; -1: none
        "released_by": pl.Int32(),  # row of the event whose end let the host go on to its launch; -1: none
        "queue_before": pl.Int32(),  # row of the event whose end made room in the launch queue; -1: none
        "loader_before": pl.Int32(),  # row of the event launched behind the wait for the batch before; -1: none
        "blocked_ns": pl.Int64(),  # time since the launch before in which the host waited for the GPU
        "loading_ns": pl.Int64(),  # time since the launch before in which it waited for that batch
        "after_release_ns": pl.Int64(),  # work of the host since it was let go on, to the launch; -1: was not
        "recording_ns": pl.Int64(),  # time since the launch before that the profiler added; null: not known
        "host_state": pl.Float32(),  # how slow its thread was at the launch (``recording_cost``); null: not known
        "id": pl.Int64(),  # of a communication
    }
)
"""GPU events of one rank with what each waited for. A rank may add ``remedies`` (``alternatives.remedy``)."""
GAPS_WITHIN = "gaps_within_ns"
"""Column of joined events (``graph.merged_events``): time between them."""
HOST_WORK = pl.Schema(
    {
        "event": pl.Int64(),  # row of the event launched next
        "code": pl.String(),  # activity of the host
        "op": pl.String(),  # of synchronisations: the operator that asks for them, else the call; else empty
        "ns": pl.Int64(),  # its time since the launch before, without waits for work in the trace
        "after_ns": pl.Int64(),  # of that, after the host was released by the GPU
        "blocked_ns": pl.Int64(),  # its time in calls that wait for the GPU
        "waits": pl.Int64(),  # number of these calls, also of those that found nothing to wait for
    }
)
"""What a host did between two launches other than launching (``metrics.host.time_by_activity``)."""


def find_rank_events(
    rank: Rank, recording: RecordingCost | None, loading: Intervals = EMPTY
) -> pl.DataFrame:
    """Return ``RANK_EVENTS`` of one rank.

    Args:
        rank: The rank.
        recording: What the profiler cost its host; None: not known.
        loading: When its host waited for batches of other processes.
    """
    start = rank.start_ns
    end = rank.end_ns
    launch = rank.launch_ns
    launched = rank.launched
    # The host's launches in order, and the calls between them in which it waited for the GPU.
    order = np.flatnonzero(launched)
    order = order[np.argsort(launch[order], kind="stable")]
    launch_before = np.full(len(start), -1, np.int64)
    launch_before[order[1:]] = order[:-1]
    releases = _find_releases(rank, order)
    follows = order[1:]
    previous_launch = launch[order[:-1]]
    # A call that found nothing to wait for took the host's own time.
    calls = find_releasing_calls(rank)
    waited = calls.event >= 0
    blocked = union(calls.start_ns[waited], calls.end_ns[waited])
    blocked_ns = np.zeros(len(start), np.int64)
    is_released = (releases.released_by >= 0) | (releases.queue_before >= 0)
    released = is_released[follows]
    blocked_ns[follows[released]] = blocked.covered_ns(
        previous_launch[released], launch[follows[released]]
    )
    loader_before, known_loading = _find_loading(order, launch, loading)
    loading_ns = np.zeros(len(start), np.int64)
    loading_ns[follows] = known_loading.covered_ns(previous_launch, launch[follows])
    after_release_ns = np.where(
        is_released,
        launch - releases.time_ns - known_loading.covered_ns(releases.time_ns, launch),
        -1,
    )
    recording_ns = pl.Series(np.zeros(len(start), np.int64))
    host_state = pl.Series([None] * len(start), dtype=pl.Float32)
    if recording is None:
        recording_ns = recording_ns.set(pl.Series(np.ones(len(start), np.bool_)), None)
    else:
        cost_ns = np.zeros(len(start), np.int64)
        cost_ns[follows] = recording.between(previous_launch, launch[follows])
        recording_ns = pl.Series(cost_ns)
        states = recording.states_at(launch)
        if states is not None:
            host_state = pl.Series(states, dtype=pl.Float32).set(~pl.Series(launched), None)
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": end,
            "launch_ns": rank.labelled["launch_ns"],
            "part": rank.part,
            "label": pl.Series(LABELS, dtype=RANK_EVENTS["label"])[rank.label],
            **{name: rank.labelled[name].cast(pl.Categorical) for name in ("name", "module", "op")},
            "chain": rank.labelled["chain"].fill_null(rank.labelled["annotation"]),
            "stream_before": rank.constraints.stream_before,
            "other_before": rank.constraints.other_before,
            "held_by": rank.constraints.kind,
            "launch_before": launch_before,
            "released_by": releases.released_by,
            "queue_before": _find_queue_before(rank, order, releases.queue_before),
            "loader_before": loader_before,
            "blocked_ns": blocked_ns,
            "loading_ns": loading_ns,
            "after_release_ns": np.maximum(after_release_ns, -1),
            "recording_ns": recording_ns,
            "host_state": host_state,
            "id": rank.labelled["id"].set(~pl.Series(rank.labels(*COMMUNICATION_LABELS)), None),
        },
        schema_overrides=RANK_EVENTS,
    )


def _find_loading(order: Ints, launch: Ints, loading: Intervals) -> tuple[Ints, Intervals]:
    """Return of each event the event launched behind the wait for the batch before (-1: none), and the waits with one.

    When a batch comes is the loader's own time from the batch before on, whatever the host does
    meanwhile. The first batch that the host waited for stays a part of its time.

    Args:
        order: The launched events, in order of launch.
        launch: Launch of each event.
        loading: When the host waited for batches.
    """
    loader_before = np.full(len(launch), -1, np.int64)
    times = launch[order]
    following = np.searchsorted(times, loading.end_ns)
    is_followed = following < len(order)
    # Of several waits before one launch the last counts.
    is_last = np.append(np.diff(following) > 0, True) & is_followed
    waits = np.flatnonzero(is_last)
    events = order[following[waits]]
    loader_before[events[1:]] = events[:-1]
    known = waits[1:]
    return loader_before, Intervals(
        loading.group[known], loading.start_ns[known], loading.end_ns[known]
    )


def _find_queue_before(rank: Rank, order: Ints, seen_full: Ints) -> Ints:
    """Return of each event the event whose end makes room for its launch in the queue of its stream; -1: none.

    That is the one before the first of the launches that fill the queue. Where the host was seen to
    stand in front of a full queue, *seen_full* tells; how many launches it held there counts for all of that
    stream.

    Args:
        rank: The events of the rank.
        order: Its launched events, in order of launch.
        seen_full: Of each event the event that made room while the host waited for it; -1: none.
    """
    queue_before = seen_full.copy()
    stream = rank.constraints.stream[order]
    by_stream = np.argsort(stream, kind="stable")
    borders = np.flatnonzero(np.diff(stream[by_stream])) + 1
    for rows in np.split(order[by_stream], borders):
        # The work of a graph is one launch.
        launch = rank.launch_ns[rows]
        entries = rows[np.diff(launch, prepend=-1) > 0]
        ended = np.searchsorted(np.sort(rank.end_ns[entries]), rank.launch_ns[entries])
        waiting = np.arange(len(entries)) - ended
        is_seen_full = seen_full[entries] >= 0
        depth = QUEUE_ENTRIES
        if is_seen_full.any():
            depth = int(np.median(waiting[is_seen_full]))
        depth = max(depth, int(waiting.max(initial=0)) + 1)
        first = entries[:-depth] if depth < len(entries) else entries[:0]
        last = entries[len(entries) - len(first) :]
        is_hypothetical = queue_before[last] < 0
        queue_before[last[is_hypothetical]] = first[is_hypothetical]
    has_ended = (queue_before >= 0) & (rank.end_ns[queue_before] <= rank.launch_ns)
    return np.where(has_ended | (seen_full >= 0), queue_before, -1)


class ReleasingCalls(NamedTuple):
    """The calls in which a rank's host waits for the GPU, in the order in which they return."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    """The GPU event whose end released the host: the last one that ended during the call; -1: none
    did, the host did not have to wait."""
    for_room: Bools
    """Whether it waited for room in the launch queue."""


def find_releasing_calls(rank: Rank) -> ReleasingCalls:
    """Return the calls in which the threads that launch GPU work wait for it."""
    calls = rank.calls
    blocks = calls["blocks"].to_numpy()
    # Threads that launch GPU work, if recorded.
    threads = rank.labelled["launch_tid"].unique().drop_nulls().to_numpy()
    if len(threads):
        blocks = blocks & (np.isin(to_int64(calls["tid"]), threads) | ~present(calls["tid"]))
    rows = np.flatnonzero(blocks)
    rows = rows[np.argsort(calls["end_ns"].to_numpy()[rows], kind="stable")]
    start = calls["start_ns"].to_numpy()[rows]
    end = calls["end_ns"].to_numpy()[rows]
    for_room = calls["for_room"].to_numpy()[rows]
    # The GPU event that ended last before each call returned, if it ended during the call.
    by_end = np.argsort(rank.end_ns, kind="stable")
    event_end = rank.end_ns[by_end]
    latest = np.searchsorted(event_end, end + END_TOLERANCE_NS, side="right") - 1
    if not len(event_end):
        return ReleasingCalls(start, end, np.full(len(rows), -1, np.int64), for_room)
    has_waited = (latest >= 0) & (event_end[np.maximum(latest, 0)] >= start)
    return ReleasingCalls(start, end, np.where(has_waited, by_end[latest], -1), for_room)


class _Releases(NamedTuple):
    """What let the host go on to each launch, and when."""

    released_by: Ints
    """The event whose end it waited for; -1: none."""
    queue_before: Ints
    """The event whose end made room in the launch queue, if it waited for that; -1: none."""
    time_ns: Ints
    """When one of the two let it go on."""


def _find_releases(rank: Rank, order: Ints) -> _Releases:
    """Return the event whose end lets the host go on to each launch.

    That is the last event launched before the last call since the launch before in which the host
    waits. The GPU may have been done with it when the host came, which a slower GPU or a faster
    host would change: then the host goes on at the end of the call.

    Args:
        rank: The events of the rank.
        order: Its launched events, in order of launch.
    """
    released_by, queue_before, time_ns = np.full((3, len(rank.start_ns)), -1, np.int64)
    releases = _Releases(released_by, queue_before, time_ns)
    calls = find_releasing_calls(rank)
    launch = rank.launch_ns[order]
    if not len(calls.end_ns) or not len(order):
        return releases
    # Of each launch but the first: the last call since the launch before in which the host waited,
    # else the last call.
    call = _last_call_between(calls.end_ns, np.arange(len(calls.end_ns)), launch)
    waiting_calls = np.flatnonzero(calls.event >= 0)
    waiting_call = _last_call_between(calls.end_ns, waiting_calls, launch)
    call = np.where(waiting_call >= 0, waiting_call, call)
    has_call = call >= 0
    call = np.maximum(call, 0)
    # What was launched last before the call began, and had ended when it returned.
    last_launched = np.searchsorted(launch, calls.start_ns, side="right") - 1
    queued = np.where(last_launched >= 0, order[np.maximum(last_launched, 0)], -1)
    event = np.where(calls.event >= 0, calls.event, queued)
    has_ended = (event >= 0) & (rank.end_ns[event] <= calls.end_ns + END_TOLERANCE_NS)
    has_call &= has_ended[call]
    rows = order[1:][has_call]
    call = call[has_call]
    event_of_row = event[call]
    released_by[rows] = np.where(calls.for_room[call], -1, event_of_row)
    queue_before[rows] = np.where(calls.for_room[call], event_of_row, -1)
    event_end = rank.end_ns[event_of_row]
    waited = calls.event[call] >= 0
    release = np.where(waited, event_end, np.maximum(event_end, calls.end_ns[call]))
    time_ns[rows] = np.minimum(release, rank.launch_ns[rows])
    return releases


def _last_call_between(end_ns: Ints, calls: Ints, launch_ns: Ints) -> Ints:
    """Return, for each launch but the first, the last of *calls* that ended since the launch before; -1: none.

    Args:
        end_ns: Ends of all calls, ascending.
        calls: Indices of the calls that count, ascending.
        launch_ns: Times of launches, ascending.

    >>> _last_call_between(np.array([3, 5, 15]), np.array([0, 2]), np.array([0, 10, 20, 30]))
    array([ 0,  2, -1])
    """
    if not len(calls):
        return np.full(max(len(launch_ns) - 1, 0), -1, np.int64)
    position = np.searchsorted(end_ns[calls], launch_ns[1:], side="right") - 1
    last = calls[np.maximum(position, 0)]
    is_between = (position >= 0) & (end_ns[last] > launch_ns[:-1])
    return as_int64(np.where(is_between, last, -1))


def find_host_work(
    rank: Rank, graph_events: pl.DataFrame, stretches: Mapping[tuple[str, str], Intervals]
) -> pl.DataFrame:
    """Return ``HOST_WORK`` of one rank.

    Args:
        rank: Its GPU events, with the time in which the host waited for the GPU.
        graph_events: The same events as ``RANK_EVENTS``.
        stretches: When the host did what, by activity and (of synchronisations) operator.
    """
    launched = np.flatnonzero(rank.launched)
    launched = launched[np.argsort(rank.launch_ns[launched], kind="stable")]
    before = graph_events["launch_before"].to_numpy()[launched]
    until = rank.launch_ns[launched]
    since = np.where(before >= 0, rank.launch_ns[before], -NO_LIMIT)
    release_ns = _find_releases(rank, launched).time_ns[launched]
    is_released = graph_events["after_release_ns"].to_numpy()[launched] >= 0
    released = np.clip(np.where(is_released, release_ns, since), since, until)
    # A call that waits for nothing in the trace is time of the host like any other.
    waits = graph_events["blocked_ns"].to_numpy()[launched] > 0
    waits_for_batch = graph_events["loading_ns"].to_numpy()[launched] > 0
    calls = find_releasing_calls(rank)
    waited = calls.event >= 0
    waiting = union(calls.start_ns[waited], calls.end_ns[waited])
    call_starts, call_ends = calls.start_ns[~calls.for_room], calls.end_ns[~calls.for_room]
    next_launch = np.searchsorted(until, call_ends)
    tables = [HOST_WORK.to_frame()]
    for (code, op), intervals in stretches.items():
        blocked = intervals & rank.blocked
        blocked_ns = blocked.covered_ns(since, until)
        in_waits = intervals & waiting
        is_for_batch = waits_for_batch & (code == "data_loading")
        is_within = intervals.covered_ns(call_starts, call_starts + 1) > 0
        table = pl.DataFrame(
            {
                "event": launched,
                "code": [code] * len(launched),
                "op": [op] * len(launched),
                "ns": ~is_for_batch
                * (intervals.covered_ns(since, until) - waits * in_waits.covered_ns(since, until)),
                "after_ns": ~is_for_batch
                * (
                    intervals.covered_ns(released, until)
                    - waits * in_waits.covered_ns(released, until)
                ),
                "blocked_ns": blocked_ns,
                "waits": np.bincount(next_launch[is_within], minlength=len(launched) + 1)[
                    : len(launched)
                ],
            },
            schema=HOST_WORK,
        )
        is_done = (pl.col("ns") > 0) | (pl.col("blocked_ns") > 0) | (pl.col("waits") > 0)
        tables.append(table.filter(is_done | pl.Series(is_for_batch)))
    return pl.concat(tables)
