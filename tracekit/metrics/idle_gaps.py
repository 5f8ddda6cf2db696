"""Idle gaps of a rank's GPU and their causes.

An idle gap ends when some GPU event starts. While that event had not been launched the gap is launch-bound; while a
launch call of unusual length was under way it is warm-up (code loaded, a graph built); from then on it is a dependency
(an event or a stream waited for another). Where the file has no launch for the event the gap's cause is unknown. The
four sum to the idle time.
"""

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.columns import to_int64
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.budget import unrecorded_gaps
from tracekit.metrics.host_calls import LAUNCH_PATTERN, MIN_SLOW_LAUNCH_NS
from tracekit.metrics.label_intervals import Lanes
from tracekit.schema import IDLE_CAUSES

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
    ends = slow_calls.select("correlation", launch_end_ns=pl.when(name.str.contains("Launch")).then("end_ns"))
    ends = ends.unique("correlation", keep="last", maintain_order=True)
    return labelled.with_columns(
        labelled.select("correlation").join(ends, on="correlation", how="left", maintain_order="left")["launch_end_ns"]
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
        returned, begun = to_int64(labelled["launch_end_ns"][next_event], 0), idle.start_ns + launch_bound
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
    """Return the row of the event that ends each gap; of several that start together, the one launched first."""
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
    rows = table["next"].to_numpy()
    names = (labelled[column][rows].cast(pl.String).alias(f"next_{column}") for column in ("name", "label"))
    return table.drop("next").with_columns(*names)
