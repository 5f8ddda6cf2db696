"""Cost of the recording on the host: the time that PyTorch's profiler added, event by event.

Recording an operator, a call of the GPU's library or a Python frame delays the thread that runs it.
Each recorded event gives its cost back where it was recorded; the replay of the run
(``event_graph``) then tells what that is worth. The costs per event are measured
(``constants``) on one CPU. How fast another one is, and how fast each thread of it is at the time (threads
share caches and cores with others, and change places), shows in events that always do the same: the
median of those around an event says what recording it cost. A thread that has to
share its core stands still more often the more it has to do: of that time, too, the recording has
its share.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats, Ints, as_int64
from tracekit.classify.names import HOST_CALLS
from tracekit.graph.constants import (
    GPU_CALL_COST_NS,
    GRAPH_NODE_COST_NS,
    HOST_STATE_EXPONENT,
    HOST_STATE_RANGE,
    LAUNCH_CALL_NS,
    LAUNCH_STATE_EXPONENT,
    MIN_FREE_HOST_SHARE,
    MIN_TRIVIAL_EVENTS,
    OPERATOR_COST_NS,
    PYTHON_FRAME_COST_NS,
    SHAPES_COST_NS,
    TRIVIAL_EVENTS_IN_WINDOW,
    TRIVIAL_OPERATOR_NS,
)
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.host.events import QUEUED_PATTERN, HostEvents, NamedRows
from tracekit.schema import RankEvents


def count_frames(rank: RankEvents) -> int:
    """Return the number of Python frames in a rank's file, read or not."""
    source = rank.source
    return source.counts.get("python", 0) + source.skipped.get("python", 0)


class RecordingCost(msgspec.Struct, frozen=True, eq=False):
    """What the recording cost a rank's host, as a function of time."""

    time_ns: Ints
    """Starts of recorded host events, in order."""
    states: Floats | None
    """How slow the thread of each of them was then, over the host that the costs were measured on; None: not known."""
    until_ns: Floats
    """Cost of all events before each of them; one more than there are events."""
    per_ns: float
    """Cost per time of the host of events whose times were not read."""
    stalls: Intervals
    """When the host stood still."""
    per_stalled_ns: float
    """Cost per time in which it did."""

    def between(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the cost of the events that start from *start_ns* on and before *end_ns*."""
        first = np.searchsorted(self.time_ns, start_ns)
        last = np.maximum(np.searchsorted(self.time_ns, end_ns), first)
        cost_ns = self.until_ns[last] - self.until_ns[first]
        cost_ns = cost_ns + self.per_ns * np.maximum(end_ns - start_ns, 0)
        if self.stalls.total_ns:
            cost_ns = cost_ns + self.per_stalled_ns * self.stalls.covered_ns(start_ns, end_ns)
        return as_int64(cost_ns)

    def states_at(self, times_ns: Ints) -> Floats | None:
        """Return how slow the host was at each time, by the last event that had started; None: not known."""
        if self.states is None:
            return None
        last = np.searchsorted(self.time_ns, times_ns, side="right") - 1
        return self.states[np.maximum(last, 0)]


def find_recording_cost(
    rank: RankEvents,
    host: HostEvents,
    correlation: pl.Series | None = None,
    *,
    stalls: Intervals = EMPTY,
) -> RecordingCost | None:
    """Return what the recording cost the host of a rank; None if that is not known.

    It is known of PyTorch's profiler where it recorded operators: without them the trace has no
    host, and what Nsight Systems costs was not measured.

    Args:
        rank: The rank.
        host: Its host events.
        correlation: That of its GPU events; those of a graph have one call in common.
        stalls: When the host stood still (``metrics.host.stalls``).
    """
    if rank.source.reader == "nsight":
        return None
    calls = host.calls
    if not len(host.operators) or not len(calls):
        return None
    operator_ns = OPERATOR_COST_NS + (SHAPES_COST_NS if rank.source.record_shapes else 0)
    operators = host.operators.on_threads(np.array(calls.threads))
    queues_work = calls.named(QUEUED_PATTERN)
    took_ns = (calls.rows["end_ns"] - calls.rows["start_ns"]).to_numpy()
    events = pl.concat(
        [operators.rows.select("tid", "start_ns"), calls.rows.select("tid", "start_ns")]
    )
    order = np.argsort(events["start_ns"].to_numpy(), kind="stable")
    events = events[order]
    states = measure_host_states(events, find_trivial_events(operators, calls))
    # A call that queues nothing is over sooner than its record is written: it costs what it took.
    scaled_ns = np.concatenate(
        [np.full(len(operators), operator_ns), queues_work * GPU_CALL_COST_NS]
    )
    of_others_ns = np.where(queues_work, 0, np.minimum(took_ns, GPU_CALL_COST_NS))
    of_graphs_ns = _graph_costs_ns(calls, correlation)
    fixed_ns = np.concatenate([np.zeros(len(operators)), of_others_ns + of_graphs_ns])
    slowness = np.ones(len(order)) if states is None else states**HOST_STATE_EXPONENT
    cost_ns = scaled_ns[order] * slowness + fixed_ns[order]
    time_ns = events["start_ns"].to_numpy()
    span_ns = int(time_ns[-1] - time_ns[0])
    frames_ns = count_frames(rank) * PYTHON_FRAME_COST_NS * float(np.median(slowness))
    running_ns = max(span_ns - stalls.total_ns, 1)
    cost_share = (float(cost_ns.sum()) + frames_ns) / running_ns
    return RecordingCost(
        time_ns=time_ns,
        states=states,
        until_ns=np.concatenate([[0.0], np.cumsum(cost_ns)]),
        per_ns=frames_ns / max(span_ns, 1),
        stalls=stalls,
        per_stalled_ns=min(cost_share, 1 - MIN_FREE_HOST_SHARE),
    )


def _graph_costs_ns(calls: NamedRows, correlation: pl.Series | None) -> Ints:
    """Return what recording the work of a graph adds to each call; 0 for those that launch none.

    It is no more than the call took.

    >>> calls = pl.DataFrame({"name": ["cudaGraphLaunch", "cudaFree"], "correlation": [1, 2], "start_ns": [0, 0],
    ...                       "end_ns": [9_000, 9_000]})
    >>> _graph_costs_ns(NamedRows(calls), pl.Series("correlation", [1] * 4)).tolist()
    [5200, 0]
    """
    none = np.zeros(len(calls), np.int64)
    launches_graph = calls.named(HOST_CALLS["launch_graph"])
    if correlation is None or not launches_graph.any():
        return none
    counts = correlation.drop_nulls().value_counts(name="events")
    rows = calls.rows.select("correlation", ns=pl.col("end_ns") - pl.col("start_ns"))
    events = rows.join(counts, on="correlation", how="left", maintain_order="left")["events"]
    cost_ns = pl.DataFrame([events.fill_null(0).cast(pl.Int64) * GRAPH_NODE_COST_NS, rows["ns"]])
    return np.where(launches_graph, cost_ns.min_horizontal().to_numpy(), none)


def find_trivial_events(operators: NamedRows, calls: NamedRows) -> pl.DataFrame:
    """Return the events that always do the same: thread, start, and ``state``, the logarithm of how slow each was.

    >>> rows = {"name": ["aten::as_strided", "aten::mm"], "tid": [1, 1], "start_ns": [0, 9], "end_ns": [570, 99]}
    >>> operators = NamedRows(pl.DataFrame(rows, schema_overrides={"name": pl.Categorical}))
    >>> find_trivial_events(operators, operators.select(np.zeros(2, np.bool_))).rows()
    [(1, 0, 0.0)]
    """
    duration_ns = (pl.col("end_ns") - pl.col("start_ns")).clip(1)
    launches = calls.select(calls.named(HOST_CALLS["launch_kernel"])).rows
    tables = [
        launches.select(
            "tid", "start_ns", state=(duration_ns / LAUNCH_CALL_NS).log() * LAUNCH_STATE_EXPONENT
        )
    ]
    for name, usual_ns in TRIVIAL_OPERATOR_NS.items():
        named = operators.select(operators.named((name,))).rows
        tables.append(named.select("tid", "start_ns", state=(duration_ns / usual_ns).log()))
    return pl.concat(tables)


def measure_host_states(events: pl.DataFrame, trivial: pl.DataFrame) -> Floats | None:
    """Return how slow the thread of each event was then: 1 is the host that costs were measured on.

    It is the median of the trivial events around it on its thread, else of all; None if there are
    too few.

    Args:
        events: Thread and start of each event, in the order of their starts.
        trivial: Events that always do the same (``find_trivial_events``).
    """
    if trivial.height < MIN_TRIVIAL_EVENTS:
        return None
    around = (
        trivial.sort("start_ns")
        .filter(pl.len().over("tid") >= MIN_TRIVIAL_EVENTS)
        .with_columns(
            pl.col("state")
            .rolling_median(
                TRIVIAL_EVENTS_IN_WINDOW, center=True, min_samples=MIN_TRIVIAL_EVENTS // 2
            )
            .over("tid")
        )
    )
    nearest = events.join_asof(
        around, on="start_ns", by="tid", strategy="nearest", check_sortedness=False
    )
    states = nearest["state"].fill_null(trivial["state"].median())
    low, high = (math.log(bound) for bound in HOST_STATE_RANGE)
    return states.clip(low, high).exp().to_numpy()
