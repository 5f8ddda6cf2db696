"""Time budget of a step: compute + exposed communication and copies by label + idle = span, to the nanosecond.

Where GPU work is missing from the file, idle time in which it may have run is a term of its own:
unrecorded.
"""

from functools import reduce
from operator import or_

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.columns import to_int64
from tracekit.documents.analysis import Budget
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.host.events import LAUNCH_PATTERN
from tracekit.metrics.host.waiting_calls import MIN_SLOW_LAUNCH_NS
from tracekit.metrics.label_intervals import Lanes
from tracekit.schema import IDLE_CAUSES, STEP_PHASES


def budgets(lanes: Lanes, *, unrecorded: Intervals = EMPTY) -> list[Budget]:
    """Return one budget per part.

    Time that two exposed labels cover belongs to the one that comes first in the order of labels.

    Args:
        lanes: Interval sets of one rank.
        unrecorded: Time in which work that is missing from the file may have run.

    >>> import polars as pl
    >>> events = pl.DataFrame({"label": ["forward", "pp_comm", "offload", "forward"],
    ...                        "start_ns": [0, 4, 7, 12], "end_ns": [6, 8, 10, 14]})
    >>> budgets(Lanes.of(events))
    [Budget(span_ns=14, compute_ns=8, exposed_ns={'pp_comm': 2, 'offload': 2}, idle=2, unrecorded_ns=0)]

    """
    parts = lanes.parts
    span_ns = lanes.busy.hull().totals_ns(parts)
    busy_ns = lanes.busy.totals_ns(parts)
    compute_ns = lanes.compute.totals_ns(parts)
    exposed_ns = {label: exposed.totals_ns(parts) for label, exposed in lanes.exposed.items()}
    unrecorded_ns = unrecorded_gaps(lanes, unrecorded).totals_ns(parts)
    budget_of_part = []
    for part in range(parts):
        budget = Budget(
            span_ns=int(span_ns[part]),
            compute_ns=int(compute_ns[part]),
            exposed_ns={label: int(ns[part]) for label, ns in exposed_ns.items()},
            idle=int(span_ns[part] - busy_ns[part] - unrecorded_ns[part]),
            unrecorded_ns=int(unrecorded_ns[part]),
        )
        budget_of_part.append(budget)
    return budget_of_part


def unrecorded_gaps(lanes: Lanes, unrecorded: Intervals) -> Intervals:
    """Return the idle time of every part that falls into *unrecorded*, which is of the rank as a whole (group 0)."""
    if not len(unrecorded):
        return EMPTY
    # The same intervals once for every part.
    part = np.repeat(np.arange(lanes.parts), len(unrecorded))
    start = np.tile(unrecorded.start_ns, lanes.parts)
    end = np.tile(unrecorded.end_ns, lanes.parts)
    return union(start, end, part) & lanes.idle


# ---- Bubbles: idle time and exposed pipeline waiting, and the phases of a pipeline.
#
# bubble = idle + |U(waits of pp_comm) − U(compute)|; bubble fraction = bubble / span. Phases of a
# rank: warm-up before its first backward, steady until its last forward has ended, cool-down until
# its last backward has ended, then the rest (gradient sync, optimizer).


_BACKWARD_LABELS = ("dgrad", "wgrad", "backward")


def phases(lanes: Lanes) -> pl.DataFrame:
    """Return bounds, span, compute and idle time of each phase of each part.

    No rows for a part without a backward.

    >>> events = pl.DataFrame({"label": ["forward", "dgrad", "forward", "dgrad", "optimizer"],
    ...                        "start_ns": [0, 5, 8, 13, 20], "end_ns": [4, 8, 12, 16, 21]})
    >>> phases(Lanes.of(events)).select("phase", "start_ns", "end_ns", "idle_ns").rows()
    [('warm-up', 0, 5, 1), ('steady', 5, 12, 0), ('cool-down', 12, 16, 1), ('rest', 16, 21, 4)]
    """
    forward = lanes.label("forward").hull()
    backward = reduce(or_, (lanes.label(label) for label in _BACKWARD_LABELS)).hull()
    parts = np.intersect1d(forward.group, backward.group)
    part_start, part_end = _bounds(lanes.busy.hull(), parts)
    backward_start, backward_end = _bounds(backward, parts)
    steady_end = np.maximum(_bounds(forward, parts)[1], backward_start)
    # One row per part with the five edges of its four phases; then all phases of all parts below
    # each other.
    edges = np.stack(
        [part_start, backward_start, steady_end, np.maximum(backward_end, steady_end), part_end],
        axis=1,
    )
    start = edges[:, :-1].ravel()
    end = edges[:, 1:].ravel()
    part = np.repeat(parts, len(STEP_PHASES))
    return pl.DataFrame(
        {
            "part": part,
            "phase": pl.Series(list(STEP_PHASES) * len(parts), dtype=pl.String),
            "start_ns": start,
            "end_ns": end,
            "span_ns": end - start,
            "compute_ns": lanes.compute.covered_ns(start, end, part),
            "idle_ns": lanes.idle.covered_ns(start, end, part),
        }
    )


def _bounds(hull: Intervals, parts: Ints) -> tuple[Ints, Ints]:
    """Return start and end of *parts* in a set with one interval per part."""
    rows = np.searchsorted(hull.group, parts)
    return hull.start_ns[rows], hull.end_ns[rows]


def find_exposed_waits(start_ns: Ints, wait_ns: Ints, part: Ints, compute: Intervals) -> Intervals:
    """Return the waiting of operations that compute does not hide.

    An operation waits at its beginning.

    Args:
        start_ns: Start of each operation.
        wait_ns: Wait of each operation.
        part: Part of each operation.
        compute: Time in which compute runs, at least wherever the operations do; its groups are
            parts.

    >>> find_exposed_waits(np.array([0, 20]), np.array([10, 0]), np.array([0, 0]), union([4], [6]))
    Intervals([0, 4), [6, 10))

    """
    return union(start_ns, start_ns + wait_ns, part) - compute


# ---- Idle gaps of a rank's GPU and their causes.
#
# An idle gap ends when some GPU event starts. While that event had not been launched the gap is
# launch-bound; while a launch call of unusual length was under way it is warm-up (code loaded, a
# graph built); from then on it is a dependency (an event or a stream waited for another). Where the
# file has no launch for the event the gap's cause is unknown. The four sum to the idle time.


GAPS = pl.Schema(
    {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "ns": pl.Int64(),
        **{f"{cause}_ns": pl.Int64() for cause in IDLE_CAUSES},  # these sum to the gap
        "next": pl.Int64(),  # row of the event that ended the gap
    }
)
_NEVER = np.iinfo(np.int64).max


def add_slow_launch_ends(labelled: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU events with ``launch_end_ns``: the end of their launch call, where it took unusually long.

    Only launches of kernels and graphs count: a copy's call may take as long as the copy.

    >>> calls = pl.DataFrame({"name": ["cudaLaunchKernel", "hipLaunchKernel", "cudaMemcpy"],
    ...                       "correlation": [1, 2, 3], "start_ns": [0, 0, 0], "end_ns": [5_000, 900_000, 900_000]})
    >>> add_slow_launch_ends(pl.DataFrame({"correlation": [1, 2, 3, None]}), calls)["launch_end_ns"].to_list()
    [None, 900000, None, None]
    """
    took_long = calls.filter(pl.col("end_ns") - pl.col("start_ns") > MIN_SLOW_LAUNCH_NS)
    name = pl.col("name").cast(pl.String)
    slow_calls = took_long.filter(name.str.contains(LAUNCH_PATTERN) & (pl.col("correlation") >= 0))
    # If several calls have the same correlation, the last one counts.
    ends = slow_calls.select(
        "correlation", launch_end_ns=pl.when(name.str.contains("Launch")).then("end_ns")
    )
    ends = ends.unique("correlation", keep="last", maintain_order=True)
    return labelled.with_columns(
        labelled.select("correlation").join(
            ends, on="correlation", how="left", maintain_order="left"
        )["launch_end_ns"]
    )


def gaps(labelled: pl.DataFrame, lanes: Lanes, *, unrecorded: Intervals = EMPTY) -> pl.DataFrame:
    """Return the idle gaps with their causes (``GAPS``), in order of time.

    Args:
        labelled: GPU events of one rank.
        lanes: Interval sets of the same events, in one part.
        unrecorded: Time in which work that is missing from the file may have run; it is left out.

    >>> events = pl.DataFrame({"label": ["forward", "forward"], "start_ns": [0, 10], "end_ns": [4, 12],
    ...                        "launch_ns": [0, 7]})
    >>> gaps(events, Lanes.of(events)).select("start_ns", "ns", "launch_bound_ns", "dependency_ns").rows()
    [(4, 6, 3, 3)]

    """
    idle = lanes.idle - unrecorded_gaps(lanes, unrecorded)
    if not len(idle):
        return GAPS.to_frame()
    next_event = _find_next_events(labelled, idle)
    launch = to_int64(labelled["launch_ns"][next_event], _NEVER)
    length = idle.end_ns - idle.start_ns
    has_launch = launch != _NEVER
    launch_bound = np.where(has_launch, np.clip(launch - idle.start_ns, 0, length), 0)
    warm_up = np.zeros(len(idle), np.int64)
    if "launch_end_ns" in labelled.columns:
        # Part of the gap in which the launch call of the next event had begun and not returned.
        returned = to_int64(labelled["launch_end_ns"][next_event], 0)
        begun = idle.start_ns + launch_bound
        warm_up = np.clip(returned - begun, 0, idle.end_ns - begun)
    return pl.DataFrame(
        {
            "start_ns": idle.start_ns,
            "end_ns": idle.end_ns,
            "ns": length,
            "launch_bound_ns": launch_bound,
            "dependency_ns": np.where(has_launch, length - launch_bound - warm_up, 0),
            "warm_up_ns": warm_up,
            "unknown_ns": np.where(has_launch, 0, length),
            "next": next_event,
        },
        schema=GAPS,
    )


def _find_next_events(labelled: pl.DataFrame, idle: Intervals) -> Ints:
    """Return the row of the event that ends each gap.

    Of several that start together, the one launched first.
    """
    events = labelled.select("start_ns", "end_ns", "launch_ns", next=pl.int_range(pl.len()))
    events = events.filter(pl.col("end_ns") > pl.col("start_ns"))
    in_order = events.sort("start_ns", "launch_ns", nulls_last=True, maintain_order=True)
    first = in_order.unique("start_ns", keep="first", maintain_order=True)
    return first["next"].to_numpy()[np.searchsorted(first["start_ns"].to_numpy(), idle.end_ns)]


def name_next_events(table: pl.DataFrame, labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps with name and label of the event that ended each, in place of its row.

    >>> events = pl.DataFrame({"label": ["forward", "dgrad"], "name": ["a", "b"], "start_ns": [0, 10],
    ...                        "end_ns": [4, 12], "launch_ns": [0, 7]})
    >>> name_next_events(gaps(events, Lanes.of(events)), events).select("ns", "next_name", "next_label").rows()
    [(6, 'b', 'dgrad')]
    """
    next_events = labelled.select(next_name="name", next_label="label")[table["next"].to_numpy()]
    return table.drop("next").with_columns(next_events.cast(pl.String))
