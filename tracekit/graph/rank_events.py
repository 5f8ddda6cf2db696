"""GPU events of one rank and what each waited for: the input of a replay.

An event starts after the event before it on its stream, after work of another stream that its
stream was told to wait for, and after its launch. A launch comes after the one before it on the
same host, and after GPU work that the host waited for (``event_graph``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT
from tracekit._util.arrays import Ints, as_int64
from tracekit._util.columns import present, to_int64
from tracekit.graph.recording_cost import RecordingCost
from tracekit.intervals import Intervals, union
from tracekit.metrics.causes import Rank
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.metrics.start_constraints import (
    END_TOLERANCE_NS,
    MAX_BACK_TO_BACK_NS,
    OTHER_STREAM,
    last_of_other_stream,
    previous_on_stream,
)
from tracekit.schema import COMMUNICATION_LABELS, LABELS

BEFORE = ("stream_before", "other_before", "launch_before", "released_by")
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
        "launch_before": pl.Int32(),  # row of the event launched before it; -1: none
        "released_by": pl.Int32(),  # row of the event whose end let the host go on to its launch; -1: none
        "blocked_ns": pl.Int64(),  # time since the launch before in which the host waited for that event
        "after_release_ns": pl.Int64(),  # time of the host from that event, or the end of its wait, to the launch
        "recording_ns": pl.Int64(),  # time since the launch before that the profiler added; null: not known
        "id": pl.Int64(),  # of a communication
    }
)
"""GPU events of one rank with what each waited for. A rank may add ``remedies`` (``metrics.remedies``)."""
GAPS_WITHIN = "gaps_within_ns"
"""Column of joined events (``graph.merged_events``): time between them."""
HOST_WORK = pl.Schema(
    {
        "event": pl.Int64(),  # row of the event launched next
        "code": pl.String(),  # activity of the host
        "ns": pl.Int64(),  # its time since the launch before, without waits for work in the trace
        "after_ns": pl.Int64(),  # of that, after the host was released by the GPU
        "blocked_ns": pl.Int64(),  # its time in calls that wait for the GPU
    }
)
"""What a host did between two launches other than launching (``metrics.host.time_by_activity``)."""


def find_rank_events(rank: Rank, recording: RecordingCost | None) -> pl.DataFrame:
    """Return ``RANK_EVENTS`` of one rank.

    *recording* is what the profiler cost its host; None: not known.
    """
    rank = _with_launches_of_graphs(rank)
    start = rank.start_ns
    end = rank.end_ns
    launch = rank.launch_ns
    launched = rank.launched
    constraints = rank.constraints
    stream_before = previous_on_stream(constraints.stream, start, end)
    other = last_of_other_stream(constraints.stream, start, end)
    # What was launched later cannot have been waited for.
    other[(other >= 0) & launched & launched[other] & (launch[other] > launch)] = -1
    may_wait = constraints.may_wait
    if not rank.waits_recorded:  # compute right behind its neighbour was held back by nothing else
        may_wait = (stream_before < 0) | (start - end[stream_before] > MAX_BACK_TO_BACK_NS)
    other[rank.labels(*COMPUTE_SET) & ~may_wait] = -1
    is_held = (constraints.kind == OTHER_STREAM) & (constraints.blocker >= 0)

    # The host's launches in order, and the calls between them in which it waited for the GPU.
    order = np.flatnonzero(launched)
    order = order[np.argsort(launch[order], kind="stable")]
    launch_before = np.full(len(start), -1, np.int64)
    launch_before[order[1:]] = order[:-1]
    released_by, after_release_ns = _find_releases(rank, order)
    follows = order[1:]
    previous_launch = launch[order[:-1]]
    # A call that found nothing to wait for took the host's own time.
    calls = find_releasing_calls(rank)
    waited = calls.event >= 0
    blocked = union(calls.start_ns[waited], calls.end_ns[waited])
    blocked_ns = np.zeros(len(start), np.int64)
    released = released_by[follows] >= 0
    blocked_ns[follows[released]] = blocked.covered_ns(
        previous_launch[released], launch[follows[released]]
    )
    recording_ns = pl.Series(np.zeros(len(start), np.int64))
    if recording is None:
        recording_ns = recording_ns.set(pl.Series(np.ones(len(start), np.bool_)), None)
    else:
        cost_ns = np.zeros(len(start), np.int64)
        cost_ns[follows] = recording.between(previous_launch, launch[follows])
        recording_ns = pl.Series(cost_ns)
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": end,
            "launch_ns": rank.labelled["launch_ns"],
            "part": rank.part,
            "label": pl.Series(LABELS, dtype=RANK_EVENTS["label"])[rank.label],
            **{name: rank.labelled[name].cast(pl.Categorical) for name in ("name", "module", "op")},
            "chain": rank.labelled["chain"].fill_null(rank.labelled["annotation"]),
            "stream_before": stream_before,
            "other_before": np.where(is_held, constraints.blocker, other),
            "launch_before": launch_before,
            "released_by": released_by,
            "blocked_ns": blocked_ns,
            "after_release_ns": after_release_ns,
            "recording_ns": recording_ns,
            "id": rank.labelled["id"].set(~pl.Series(rank.labels(*COMMUNICATION_LABELS)), None),
        },
        schema_overrides=RANK_EVENTS,
    )


def _with_launches_of_graphs(rank: Rank) -> Rank:
    """Return the rank with the work of graphs launched when the call for all of it returned, if that took long.

    Until then the host is still launching it. What starts before that was launched by then.
    """
    labelled = rank.labelled
    if "launch_end_ns" not in labelled.columns or labelled["launch_end_ns"].is_null().all():
        return rank
    of_graph = (pl.len().over("correlation") > 1) & (pl.col("correlation") >= 0)
    first_ns = pl.col("start_ns").min().over("correlation")
    returned_ns = pl.max_horizontal("launch_ns", pl.min_horizontal("launch_end_ns", first_ns))
    is_slow = of_graph & pl.col("launch_ns").is_not_null() & pl.col("launch_end_ns").is_not_null()
    launch_ns = labelled.select(
        pl.when(is_slow).then(returned_ns).otherwise("launch_ns").alias("launch_ns")
    )["launch_ns"]
    if launch_ns.equals(labelled["launch_ns"], null_equal=True):
        return rank
    with_launches = labelled.with_columns(launch_ns)
    return replace(rank, labelled=with_launches, launch_ns=to_int64(launch_ns, 0))


class ReleasingCalls(NamedTuple):
    """The calls in which a rank's host waits for the GPU, in the order in which they return."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    """The GPU event whose end released the host: the last one that ended during the call; -1: none
    did, the host did not have to wait."""


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
    # The GPU event that ended last before each call returned, if it ended during the call.
    by_end = np.argsort(rank.end_ns, kind="stable")
    event_end = rank.end_ns[by_end]
    latest = np.searchsorted(event_end, end + END_TOLERANCE_NS, side="right") - 1
    if not len(event_end):
        return ReleasingCalls(start, end, np.full(len(rows), -1, np.int64))
    has_waited = (latest >= 0) & (event_end[np.maximum(latest, 0)] >= start)
    return ReleasingCalls(start, end, np.where(has_waited, by_end[latest], -1))


def _find_releases(rank: Rank, order: Ints) -> tuple[Ints, Ints]:
    """Return the event whose end lets the host go on to each launch (-1: none), and its time from there on.

    That is the last event launched before the last call since the launch before in which the host
    waits. The GPU may have been done with it when the host came, which a slower GPU or a faster
    host would change: then the time counts from the end of the call.

    Args:
        rank: The events of the rank.
        order: Its launched events, in order of launch.
    """
    released_by, after_release_ns = np.full((2, len(rank.start_ns)), -1, np.int64)
    calls = find_releasing_calls(rank)
    launch = rank.launch_ns[order]
    if not len(calls.end_ns) or not len(order):
        return released_by, after_release_ns
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
    event_of_row = event[call][has_call]
    waited = calls.event[call][has_call] >= 0
    released_by[rows] = event_of_row
    event_end = rank.end_ns[event_of_row]
    release = np.where(waited, event_end, np.maximum(event_end, calls.end_ns[call][has_call]))
    after_release_ns[rows] = np.maximum(rank.launch_ns[rows] - release, 0)
    return released_by, after_release_ns


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
    rank: Rank, graph_events: pl.DataFrame, stretches: Mapping[str, Intervals]
) -> pl.DataFrame:
    """Return ``HOST_WORK`` of one rank.

    Args:
        rank: Its GPU events, with the time in which the host waited for the GPU.
        graph_events: The same events as ``RANK_EVENTS``.
        stretches: When the host did what, by activity.
    """
    launched = np.flatnonzero(rank.launched)
    before = graph_events["launch_before"].to_numpy()[launched]
    until = rank.launch_ns[launched]
    since = np.where(before >= 0, rank.launch_ns[before], -NO_LIMIT)
    after_release_ns = graph_events["after_release_ns"].to_numpy()[launched]
    released = np.where(after_release_ns >= 0, until - after_release_ns, since)
    released = np.clip(released, since, until)
    # A call that waits for nothing in the trace is time of the host like any other.
    waits = graph_events["blocked_ns"].to_numpy()[launched] > 0
    calls = find_releasing_calls(rank)
    waited = calls.event >= 0
    waiting = union(calls.start_ns[waited], calls.end_ns[waited])
    tables = [HOST_WORK.to_frame()]
    for code, intervals in stretches.items():
        blocked = intervals & rank.blocked
        blocked_ns = blocked.covered_ns(since, until)
        in_waits = intervals & waiting
        table = pl.DataFrame(
            {
                "event": launched,
                "code": [code] * len(launched),
                "ns": intervals.covered_ns(since, until)
                - waits * in_waits.covered_ns(since, until),
                "after_ns": intervals.covered_ns(released, until)
                - waits * in_waits.covered_ns(released, until),
                "blocked_ns": blocked_ns,
            },
            schema=HOST_WORK,
        )
        tables.append(table.filter((pl.col("ns") > 0) | (pl.col("blocked_ns") > 0)))
    return pl.concat(tables)
