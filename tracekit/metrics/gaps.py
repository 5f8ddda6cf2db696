"""Why the GPU was idle: because the host had not launched the next work yet, or because that work was held back.

An idle gap ends when some GPU event starts. While that event had not been launched the gap is launch-bound; while a
launch call of unusual length was under way it is warm-up (code loaded, a graph built); from then on it is a dependency
(an event or a stream waited for another). Where the file has no launch for the event the gap's cause is unknown. The
four sum to the idle time.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from tracekit._util.arrays import find_sorted
from tracekit._util.columns import to_int64, with_nulls
from tracekit.intervals import EMPTY, Intervals, Longs, sums
from tracekit.metrics.budget import unrecorded_gaps
from tracekit.metrics.host import LAUNCHES
from tracekit.metrics.lanes import Lanes
from tracekit.schema import IDLE_CAUSES

GAPS = pl.Schema(
    {
        "part": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "ns": pl.Int64(),
        **{f"{cause}_ns": pl.Int64() for cause in IDLE_CAUSES},
        "next": pl.Int64(),  # row of the event that ended the gap
    }
)
CAUSES = tuple(f"{cause}_ns" for cause in IDLE_CAUSES)
"""Columns that sum to a gap."""
SLOW_CALL_NS = 100_000
"""A launch call takes microseconds. One that takes longer than this did something else too: loading code, say."""
_NEVER = np.iinfo(np.int64).max


def with_slow_calls(labelled: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the events with ``launch_end_ns``: when their launch (of *calls*) returned, where it took unusually long.

    A copy's call may take as long as the copy: only kernels' and graphs' launches count.

    >>> calls = pl.DataFrame({"name": ["cudaLaunchKernel", "hipLaunchKernel", "cudaMemcpy"],
    ...                       "correlation": [1, 2, 3], "start_ns": [0, 0, 0], "end_ns": [5_000, 900_000, 900_000]})
    >>> with_slow_calls(pl.DataFrame({"correlation": [1, 2, 3, None]}), calls)["launch_end_ns"].to_list()
    [None, 900000, None, None]
    """
    end = calls["end_ns"].to_numpy()
    rows = np.flatnonzero(end - calls["start_ns"].to_numpy() > SLOW_CALL_NS)
    number, name = to_int64(calls["correlation"][rows]).tolist(), calls["name"][rows].to_list()
    slow = {}  # by number; of several calls with one, the last
    for one, called, row in zip(number, name, rows.tolist(), strict=True):
        if one >= 0 and re.search(LAUNCHES, called):
            slow[one] = row if "Launch" in called else -1
    launches = sorted((one, row) for one, row in slow.items() if row >= 0)
    if not launches:
        return labelled.with_columns(launch_end_ns=pl.lit(None, pl.Int64))
    ordered, row = np.array(launches, np.int64).T
    at = find_sorted(to_int64(labelled["correlation"]), np.ascontiguousarray(ordered))
    return labelled.with_columns(with_nulls(end[row][at], at >= 0).alias("launch_end_ns"))


def gaps(
    labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None, unrecorded: Intervals = EMPTY
) -> pl.DataFrame:
    """Return the idle gaps inside each part with their causes, in order of time, without *unrecorded* ones.

    >>> events = pl.DataFrame({"label": ["forward", "forward"], "start_ns": [0, 10], "end_ns": [4, 12],
    ...                        "launch_ns": [0, 7]})
    >>> gaps(events, Lanes.of(events)).select("start_ns", "ns", "launch_bound_ns", "dependency_ns").rows()
    [(4, 6, 3, 3)]
    """
    holes = lanes.idle - unrecorded_gaps(lanes, unrecorded)
    if not len(holes):
        return pl.DataFrame(schema=GAPS)
    following, launch = _following(labelled, holes, part)
    length = holes.end_ns - holes.start_ns
    known = launch != _NEVER
    bound = np.where(known, np.clip(launch - holes.start_ns, 0, length), 0)
    warm = _in_call(labelled, following, holes, bound)
    return pl.DataFrame(
        {
            "part": holes.group,
            "start_ns": holes.start_ns,
            "end_ns": holes.end_ns,
            "ns": length,
            "launch_bound_ns": bound,
            "dependency_ns": np.where(known, length - bound - warm, 0),
            "warm_up_ns": warm,
            "unknown_ns": np.where(known, 0, length),
            "next": following,
        },
        schema=GAPS,
    )


def _in_call(labelled: pl.DataFrame, following: Longs, holes: Intervals, bound: Longs) -> Longs:
    """Return the part of each gap in which the launch of the event that ended it had begun and not returned."""
    if "launch_end_ns" not in labelled.columns:
        return np.zeros(len(holes), np.int64)
    returned = to_int64(labelled["launch_end_ns"][following], 0)
    begun = holes.start_ns + bound
    inside: Longs = np.clip(returned - begun, 0, holes.end_ns - begun)
    return inside


def _following(labelled: pl.DataFrame, holes: Intervals, part: str | None) -> tuple[Longs, Longs]:
    """Return the event that ends each gap and its launch: of several that start together, the one launched first."""
    start, launch = labelled["start_ns"].to_numpy(), to_int64(labelled["launch_ns"], _NEVER)
    rows = np.flatnonzero(labelled["end_ns"].to_numpy() > start)
    group = to_int64(labelled[part])[rows] if part is not None else np.zeros(len(rows), np.int64)
    order = np.lexsort((start[rows], group))
    rows, group = rows[order], group[order]
    begins = start[rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (begins[1:] != begins[:-1]) | (group[1:] != group[:-1])
    tied = np.flatnonzero(~(first & np.append(first[1:], True)))
    rows[tied] = rows[tied[np.lexsort((launch[rows[tied]], np.cumsum(first)[tied]))]]
    rows, group, begins = rows[first], group[first], begins[first]
    # Within a part starts ascend, and a gap ends where some event starts.
    edges = np.searchsorted(group, np.arange(int(holes.group[-1]) + 2))
    follower = np.empty(len(holes), np.int64)
    borders = np.searchsorted(holes.group, np.arange(len(edges)))
    for g in np.flatnonzero(np.diff(borders)).tolist():
        here = slice(borders[g], borders[g + 1])
        follower[here] = rows[edges[g] + np.searchsorted(begins[edges[g] : edges[g + 1]], holes.end_ns[here])]
    return follower, launch[follower]


def name_gaps(table: pl.DataFrame, labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps with the name and label of the event that ended each, in place of its row.

    >>> events = pl.DataFrame({"label": ["forward", "dgrad"], "name": ["a", "b"], "start_ns": [0, 10],
    ...                        "end_ns": [4, 12], "launch_ns": [0, 7]})
    >>> name_gaps(gaps(events, Lanes.of(events)), events).select("ns", "next_name", "next_label").rows()
    [(6, 'b', 'dgrad')]
    """
    row = table["next"].to_numpy()
    named = (labelled[c][row].cast(pl.String).alias(f"next_{c}") for c in ("name", "label"))
    return table.drop("next").with_columns(*named)


def gap_causes(table: pl.DataFrame) -> pl.DataFrame:
    """Return the idle time of each part by cause; gaps stand in the order of parts.

    >>> gap_causes(pl.DataFrame({"part": [0, 0], "launch_bound_ns": [3, 1], "dependency_ns": [3, 0],
    ...                          "warm_up_ns": [0, 0], "unknown_ns": [0, 2], "ns": [6, 3]})).rows()
    [(0, 4, 3, 0, 2, 2)]
    """
    part = table["part"].to_numpy()
    parts = int(part[-1]) + 1 if len(part) else 0
    count = sums(np.ones(len(part), np.int64), part, parts)
    there = np.flatnonzero(count)
    summed = {cause: sums(table[cause].to_numpy(), part, parts)[there] for cause in CAUSES}
    return pl.DataFrame({"part": there, **summed, "gaps": count[there]})
