"""Activity of the host while the GPU waited for a launch: each nanosecond of that idle time has one.

While the GPU is idle because its next work was not launched, the thread that launches it is
somewhere: inside a call that waits for the GPU, in an allocation, in the launches of other work, in
an operator, in the data loader, in garbage collection, or in Python between operators. Each
nanosecond goes to the innermost range open on that thread; where it had none, to the innermost
range of another thread that launches GPU work (the autograd engine hands over to the main thread).
The parts sum to the launch-bound idle time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit._loops.nesting import OP
from tracekit._util.arrays import Int32s, Ints, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify.host_ranges import Nested, nest
from tracekit.classify.names import HOST_ACTIVITIES, HOST_CALLS
from tracekit.documents.analysis import HostActivity
from tracekit.documents.coding import table_schema
from tracekit.intervals import overlaps_any
from tracekit.metrics.host.events import (
    BLOCKING_PATTERN,
    QUEUED_PATTERN,
    RANGE_COLUMNS,
    HostEvents,
    NamedRows,
)
from tracekit.schema import conform

ACTIVITIES = (
    "sync",
    "allocation",
    "launch",
    "garbage_collection",
    "data_loading",
    "operator",
    "annotation",
    "python",
)
"""Activities of the host: waiting for the GPU, managing its memory, launching other work, …, Python
between ranges."""
SYNC = ACTIVITIES.index("sync")
PYTHON = ACTIVITIES.index("python")
MAX_ROWS_PER_RANK = 50
"""Rows listed one by one for a rank, the longest; the rest is summed by activity."""
MAX_NESTING_DEPTH = 64
"""Levels of nested ranges through which data loading and garbage collection are passed on to what
runs inside them."""

MAX_LAUNCHING_THREADS = 64
"""Most threads whose ranges are looked at where the launching thread has none open, those with the most
launches first. Each takes time of its own; a process has a few."""

_HOST_TABLES = ("ranges", "operators", "calls")
"""Tables of ``HostEvents``, the outer ones first."""

HOST_ACTIVITY = table_schema(HostActivity)


def find_host_activity(
    host: HostEvents, frames: NamedRows, labelled: pl.DataFrame, gaps: pl.DataFrame
) -> pl.DataFrame:
    """Return the launch-bound idle time of a rank by what the host did (``HOST_ACTIVITY``), longest first.

    Args:
        host: Events of the threads that launch its GPU work.
        frames: Its Python frames.
        labelled: Its GPU events.
        gaps: Its idle gaps (``metrics.budget``), whose ``next`` are rows of *labelled*.

    >>> from tracekit.metrics.host.events import find_frames, split_host_events
    >>> from tracekit.schema import EVENTS, LABELLED
    >>> rows = [{"kind": "cpu_op", "name": "aten::item", "tid": 1, "start_ns": 10, "end_ns": 70},
    ...         {"kind": "runtime", "name": "cudaStreamSynchronize", "tid": 1, "start_ns": 20, "end_ns": 60}]
    >>> events = conform(pl.DataFrame(rows), EVENTS)
    >>> gpu = conform(pl.DataFrame({"start_ns": [0, 100], "launch_tid": [1, 1]}), LABELLED)
    >>> gaps = pl.DataFrame({"start_ns": [5], "launch_bound_ns": [75], "next": [1]})
    >>> activity = find_host_activity(split_host_events(events), find_frames(events), gpu, gaps)
    >>> activity.select("instead", "what", "ns").rows()
    [('sync', 'aten::item', 40), ('operator', 'aten::item', 20), ('python', None, 15)]

    """
    launch_bound = gaps.filter(pl.col("launch_bound_ns") > 0).sort("start_ns", maintain_order=True)
    if launch_bound.is_empty():
        return HOST_ACTIVITY.to_frame()
    start = launch_bound["start_ns"].to_numpy()
    waiting = _Stretches(
        start=start,
        end=start + launch_bound["launch_bound_ns"].to_numpy(),
        tid=to_int64(labelled["launch_tid"][launch_bound["next"].to_numpy()]),
    )
    ranges = _HostRanges.overlapping(waiting, host.ranges, host.operators, host.calls)
    if not len(ranges):
        return HOST_ACTIVITY.to_frame()
    threads = launching_threads(labelled)
    pieces, innermost = _split_by_innermost_range(waiting, ranges, threads)
    activity, shown_range = _find_activities(ranges, innermost)
    open_frames = _HostRanges.overlapping(waiting, frames.on_threads(np.array(threads)))
    # Calls of modules alone are read by default.
    has_functions = not open_frames.name.matches(HOST_ACTIVITIES["module_call"]).all()
    frame = np.full(len(pieces.start), -1, np.int64)
    if has_functions:
        frame = open_frames.find_innermost(pieces.tid, pieces.start)
    return _sum_by_activity(
        activity,
        ranges.name.take(shown_range),
        open_frames.name.take(frame),
        pieces.end - pieces.start,
    )


def keep_longest(rows: pl.DataFrame, count: int = MAX_ROWS_PER_RANK) -> pl.DataFrame:
    """Return the longest *count* rows of ``HOST_ACTIVITY``, and the rest of each activity as one row without a name."""
    rest = rows[count:].group_by("instead", maintain_order=True).agg(pl.col("ns", "count").sum())
    return pl.concat([rows[:count], conform(rest, HOST_ACTIVITY)])


class _Stretches(msgspec.Struct, frozen=True, eq=False):
    """Stretches of time, ascending and disjoint, and the thread that should have launched work in each."""

    start: Ints
    end: Ints
    tid: Ints


class _HostRanges(msgspec.Struct, frozen=True, eq=False):
    """Ranges of the host's threads by thread and start.

    Of two that start together the longer one comes first.
    """

    table: Ints
    """Index of the table that each comes from."""
    name: CategoryColumn
    tid: Ints
    start: Ints
    end: Ints

    @classmethod
    def overlapping(cls, stretches: _Stretches, *tables: NamedRows) -> _HostRanges:
        """Return the events that overlap a stretch; of equal times, those of an earlier table are around the others."""
        overlapping = []
        for number, table in enumerate(tables):
            start = table.rows["start_ns"].to_numpy()
            end = table.rows["end_ns"].to_numpy()
            rows = np.flatnonzero(overlaps_any(start, end, stretches.start, stretches.end))
            overlapping.append(
                table.rows.select(RANGE_COLUMNS)[rows].with_columns(table=pl.lit(number, pl.Int64))
            )
        ordered = pl.concat(overlapping).sort(
            "tid", "start_ns", -pl.col("end_ns"), maintain_order=True
        )
        return cls(
            table=ordered["table"].to_numpy(),
            name=CategoryColumn.from_series(ordered["name"]),
            tid=to_int64(ordered["tid"]),
            start=ordered["start_ns"].to_numpy(),
            end=ordered["end_ns"].to_numpy(),
        )

    def __len__(self) -> int:
        return len(self.start)

    def nest(self, tid: Ints, time: Ints) -> Nested:
        """Return which range is inside which, and the innermost range open on threads at some times."""
        return nest(
            thread=self.tid,
            start=self.start,
            end=self.end,
            kind=np.full(len(self), OP, np.int64),
            name=np.zeros(len(self), np.int64),
            point_thread=tid,
            point_time=time,
        )

    def find_innermost(self, tid: Ints, time: Ints) -> Ints:
        """Return the innermost range open on a thread at a time; -1 if there is none."""
        return self.nest(tid, time).point_op


def launching_threads(labelled: pl.DataFrame) -> list[int]:
    """Return the threads that launch GPU work, at most ``MAX_LAUNCHING_THREADS`` of them, in ascending order."""
    launches = labelled.select(pl.col("launch_tid").drop_nulls().value_counts(sort=True))
    most = launches.unnest("launch_tid").head(MAX_LAUNCHING_THREADS)
    return sorted(int(tid) for tid in most["launch_tid"])


def _split_by_innermost_range(
    waiting: _Stretches, ranges: _HostRanges, threads: Sequence[int]
) -> tuple[_Stretches, Ints]:
    """Cut stretches wherever a range begins or ends.

    Return the pieces and the innermost range open in each.
    """
    edges = np.sort(
        np.concatenate([ranges.start, ranges.end, waiting.start, waiting.end]), kind="stable"
    )
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    # The stretch that each edge lies in; edges outside every stretch are dropped. A piece reaches
    # from its edge to the next one, and no further than its stretch.
    stretch = np.searchsorted(waiting.start, edges, side="right") - 1
    inside = np.flatnonzero((stretch >= 0) & (edges < waiting.end[np.maximum(stretch, 0)]))
    stretch = stretch[inside]
    begin = edges[inside]
    end = np.minimum(edges[np.minimum(inside + 1, len(edges) - 1)], waiting.end[stretch])
    pieces = _Stretches(begin, end, waiting.tid[stretch])
    innermost = ranges.find_innermost(pieces.tid, begin)
    for (
        tid
    ) in threads:  # no range open on the launching thread: another thread may be at work for it
        unexplained = np.flatnonzero(innermost < 0)
        if len(unexplained):
            innermost[unexplained] = ranges.find_innermost(
                np.full(len(unexplained), tid, np.int64), begin[unexplained]
            )
    return pieces, innermost


def _find_activities(ranges: _HostRanges, innermost: Ints) -> tuple[Ints, Ints]:
    """Return the activity (index in ``ACTIVITIES``) of each piece, and the range whose name is shown; -1 for none.

    Args:
        ranges: Ranges of the host.
        innermost: Innermost range open in each piece; -1 if none is.

    """
    # Regular expressions run once for each distinct table and name.
    group, first = group_rows(ranges.table, ranges.name.codes)
    names = ranges.name.take(first).strings()
    activity_of_group = [
        ACTIVITIES.index(_activity(_HOST_TABLES[table], name or ""))
        for table, name in zip(ranges.table[first].tolist(), names, strict=True)
    ]
    activity_of_range = np.array(activity_of_group, np.int64)[group]
    no_queries = np.zeros(0, np.int64)
    parent = ranges.nest(no_queries, no_queries).op_of
    counted_range = _inherit_from_loading(activity_of_range, parent)[np.maximum(innermost, 0)]
    activity = np.where(innermost >= 0, activity_of_range[counted_range], PYTHON)
    # A synchronization inside aten::item and the like is shown as that operator.
    outer = parent[counted_range]
    is_synchronizing_op = ranges.name.matches(HOST_ACTIVITIES["asks_for_value"])[
        np.maximum(outer, 0)
    ]
    shown_range = np.where(
        (activity == SYNC) & (outer >= 0) & is_synchronizing_op, outer, counted_range
    )
    return activity, np.where(activity != PYTHON, shown_range, -1)


def _inherit_from_loading(activity: Ints, parent: Int32s) -> Ints:
    """Return the range as which each range counts: an enclosing data loading or garbage collection, else itself."""
    loading = [ACTIVITIES.index(name) for name in ("data_loading", "garbage_collection")]
    own = np.arange(len(activity))
    enclosing = np.where(np.isin(activity, loading), own, -1)
    for _ in range(
        MAX_NESTING_DEPTH
    ):  # pass it on from each range to those directly inside it, until nothing changes
        passed_on = np.where(
            (enclosing < 0) & (parent >= 0), enclosing[np.maximum(parent, 0)], enclosing
        )
        if (passed_on == enclosing).all():
            break
        enclosing = passed_on
    return np.where(enclosing >= 0, enclosing, own)


def _activity(table: str, name: str) -> str:
    """Return the activity that a range of this table and name stands for."""
    if re.search(HOST_ACTIVITIES["garbage_collection"], name):
        return "garbage_collection"
    if re.search(HOST_ACTIVITIES["data_loading"], name):
        return "data_loading"
    if table == "ranges":
        return "python" if re.search(HOST_ACTIVITIES["step_mark"], name) else "annotation"
    if table == "calls":
        cases = [  # the first that holds decides
            (BLOCKING_PATTERN, "sync"),
            (HOST_CALLS["allocation"], "allocation"),
            (f"Launch|{QUEUED_PATTERN}", "launch"),
        ]
        for pattern, activity in cases:
            if re.search(pattern, name):
                return activity
    return "operator"


def _sum_by_activity(
    activity: Ints, what: CategoryColumn, line: CategoryColumn, ns: Ints
) -> pl.DataFrame:
    """Return time and count by activity, name and Python frame (``HOST_ACTIVITY``), longest first."""
    group, first = group_rows(activity, what.codes, line.codes)
    table = pl.DataFrame(
        {
            "activity": activity[first],
            "instead": pl.Series(ACTIVITIES, dtype=HOST_ACTIVITY["instead"])[activity[first]],
            "what": pl.Series(what.take(first).strings(), dtype=pl.String),
            "line": pl.Series(line.take(first).strings(), dtype=pl.String),
            "ns": np.bincount(group, ns).astype(np.int64),
            "count": np.bincount(group),
        }
    )
    ordered = table.sort(-pl.col("ns"), "activity", "what", nulls_last=False, maintain_order=True)
    return conform(ordered, HOST_ACTIVITY)
