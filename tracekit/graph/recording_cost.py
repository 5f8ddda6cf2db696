"""Cost of the recording on the host: the time that PyTorch's profiler added, event by event.

Recording an operator, a call of the GPU's library or a Python frame delays the thread that runs it.
Each recorded event gives its cost back where it was recorded; the replay of the run
(``event_graph``) then tells what that is worth. The costs per event are measured
(``constants``) on one CPU; how fast another one is shows in its launch calls. A thread that has to
share its core stands still more often the more it has to do: of that time, too, the recording has
its share.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats, Ints, as_int64
from tracekit.classify.names import HOST_CALLS
from tracekit.graph.constants import (
    GPU_CALL_COST_NS,
    GRAPH_NODE_COST_NS,
    HOST_SLOWNESS_EXPONENT,
    HOST_SLOWNESS_RANGE,
    LAUNCH_CALL_NS,
    MIN_FREE_HOST_SHARE,
    MIN_LAUNCHES_TO_MEASURE_HOST,
    OPERATOR_COST_NS,
    PYTHON_FRAME_COST_NS,
    SHAPES_COST_NS,
)
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.host.events import HostEvents, NamedRows
from tracekit.schema import RankEvents


def count_frames(rank: RankEvents) -> int:
    """Return the number of Python frames in a rank's file, read or not."""
    source = rank.source
    return source.counts.get("python", 0) + source.skipped.get("python", 0)


class RecordingCost(msgspec.Struct, frozen=True, eq=False):
    """What the recording cost a rank's host, as a function of time."""

    time_ns: Ints
    """Starts of recorded host events, in order."""
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
    slowness = measure_host_slowness(calls)
    operator_ns = OPERATOR_COST_NS + (SHAPES_COST_NS if rank.source.record_shapes else 0)
    operators = host.operators.on_threads(np.array(calls.threads))
    starts = np.concatenate([operators.rows["start_ns"], calls.rows["start_ns"]])
    order = np.argsort(starts, kind="stable")
    of_calls_ns = np.full(len(calls), GPU_CALL_COST_NS) + _graph_costs_ns(calls, correlation)
    of_operators_ns = np.full(len(operators), operator_ns)
    cost_ns = np.concatenate([of_operators_ns, of_calls_ns])[order] * slowness
    time_ns = starts[order]
    span_ns = int(time_ns[-1] - time_ns[0])
    frames_ns = count_frames(rank) * PYTHON_FRAME_COST_NS * slowness
    running_ns = max(span_ns - stalls.total_ns, 1)
    cost_share = (float(cost_ns.sum()) + frames_ns) / running_ns
    return RecordingCost(
        time_ns=time_ns,
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


def measure_host_slowness(calls: NamedRows) -> float:
    """Return how much slower this host is than the one that the costs were measured on, by its launch calls.

    >>> import polars as pl
    >>> calls = pl.DataFrame({"name": ["cudaLaunchKernel"] * 60, "start_ns": 0, "end_ns": 9_750})
    >>> round(measure_host_slowness(NamedRows(calls)), 2)
    1.76
    """
    launches = calls.select(calls.named(HOST_CALLS["launch_kernel"])).rows
    durations = launches["end_ns"] - launches["start_ns"]
    if len(durations) < MIN_LAUNCHES_TO_MEASURE_HOST:
        return 1.0
    middle: float = durations.median()  # type: ignore[assignment]  # polars types it as any value
    launch_slowness = float(np.clip(middle / LAUNCH_CALL_NS, *HOST_SLOWNESS_RANGE))
    slowness: float = launch_slowness**HOST_SLOWNESS_EXPONENT
    return slowness
