"""CUDA (or HIP) calls of the host: launches, streams told to wait for events, and calls that block the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import polars as pl

from tracekit._loops.interval_sets import NEVER
from tracekit._loops.nesting import OP
from tracekit._util.arrays import Bools, Int32s, Ints, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify.host_ranges import Nested, nest
from tracekit.classify.names import HOST_CALLS
from tracekit.documents.analysis import HostActivity
from tracekit.documents.coding import table_schema
from tracekit.intervals import Intervals, overlaps_any, union_of
from tracekit.schema import KINDS, conform

LAUNCH_PATTERN = "|".join(HOST_CALLS[kind] for kind in ("launch_kernel", "launch_graph", "copy"))
"""Calls that put work on the GPU."""
BLOCKING_PATTERN = "|".join(HOST_CALLS[kind] for kind in ("synchronize", "blocking_copy"))
"""Calls in which the host waits until GPU work has ended."""
QUEUED_PATTERN = f"{LAUNCH_PATTERN}|{HOST_CALLS['memset']}"
"""Calls that put an entry into a queue of the GPU."""
MIN_SLOW_LAUNCH_NS = 100_000
"""A launch call takes microseconds. One that takes longer than this also did something else, such
as loading code."""
FULL_QUEUE_LAUNCHES = 512
"""Launches whose work has not started, from which on a slow launch call is taken to wait for room in the queue.

CUDA's queue of a stream has 1,024 entries; records of events and waits for them take entries as
well, and are not counted. With so much work before it, a launch is early by any measure.
"""

WAITING_CALLS = pl.Schema(
    {
        "name": pl.String(),
        "tid": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "blocks": pl.Boolean(),  # the host waits; else a stream does
    }
)
API_COLUMNS = ("kind", "name", "tid", "correlation", "start_ns", "end_ns", "step")
"""Columns of the host's calls that metrics read; filtering fewer columns is faster."""


@dataclass(frozen=True, eq=False)
class ApiCalls:
    """The host's calls of CUDA (or HIP), in the order of the file."""

    calls: pl.DataFrame

    @cached_property
    def names(self) -> CategoryColumn:
        """Name of each call."""
        return CategoryColumn.from_series(self.calls["name"])

    def named(self, pattern: str) -> Bools:
        """Return the mask of calls in whose name *pattern* is found.

        >>> ApiCalls(pl.DataFrame({"name": ["cudaFree", "cudaLaunchKernel"]})).named("Launch").tolist()
        [False, True]
        """
        return self.names.matches(pattern)


def find_api_calls(events: pl.DataFrame) -> ApiCalls:
    """Return the host's calls of CUDA (or HIP) among all events.

    >>> from tracekit.schema import EVENTS
    >>> events = pl.DataFrame({"kind": ["runtime", "cpu_op"], "name": ["cudaFree", "aten::mm"]})
    >>> find_api_calls(conform(events, EVENTS)).calls.select("kind", "name").rows()
    [('runtime', 'cudaFree')]
    """
    return ApiCalls(events.select(API_COLUMNS).filter(pl.col("kind").is_in(["runtime", "driver"])))


def find_waiting_calls(api: ApiCalls, gpu_events: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the calls that make a stream or the host wait (``WAITING_CALLS``), in order of start.

    Args:
        api: The host's calls.
        gpu_events: GPU events of the rank, to see which asynchronous copies made the host wait;
            None: none did.

    >>> api = pl.DataFrame({"kind": ["runtime"] * 3, "tid": [1] * 3, "start_ns": [0, 5, 9], "end_ns": [1, 6, 20],
    ...     "name": ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaStreamSynchronize"]})
    >>> find_waiting_calls(ApiCalls(api)).select("name", "blocks").rows()
    [('cudaStreamWaitEvent', False), ('cudaStreamSynchronize', True)]
    """
    columns = ("name", "tid", "start_ns", "end_ns")
    blocks = api.named(BLOCKING_PATTERN)
    if gpu_events is not None:
        blocks = blocks | _is_pageable_copy(api, gpu_events) | _waits_for_queue(api, gpu_events)
    rows = np.flatnonzero(api.named(HOST_CALLS["stream_wait"]) | blocks)
    rows = rows[np.argsort(api.calls["start_ns"].to_numpy()[rows], kind="stable")]
    return api.calls.select(columns)[rows].with_columns(
        pl.col("name").cast(pl.String), blocks=pl.Series(blocks[rows])
    )


def _is_pageable_copy(api: ApiCalls, gpu_events: pl.DataFrame) -> Bools:
    """Return the asynchronous copies from or to pageable memory whose call returned only after the copy had begun.

    Such a copy needs the host. The call stands still until the stream has reached it: it waits for
    the work before.
    """
    copies = CategoryColumn.from_series(gpu_events["name"]).matches("(?i)pageable")
    if not copies.any():
        return np.zeros(len(api.calls), np.bool_)
    begun = (
        gpu_events.select("correlation", copy_start_ns="start_ns")
        .filter(pl.Series(copies))
        .drop_nulls()
    )
    joined = api.calls.select("correlation", "end_ns").join(
        begun.unique("correlation"), on="correlation", how="left", maintain_order="left"
    )
    waited: Bools = (joined["end_ns"] >= joined["copy_start_ns"]).fill_null(False).to_numpy()
    return waited & api.named(HOST_CALLS["async_copy"])


def _waits_for_queue(api: ApiCalls, gpu_events: pl.DataFrame) -> Bools:
    """Return the launch calls that stood still because the GPU's queue was full."""
    calls = api.calls
    is_queued = api.named(QUEUED_PATTERN)
    start_ns = calls["start_ns"].to_numpy()
    is_slow: Bools = is_queued & (calls["end_ns"].to_numpy() - start_ns > MIN_SLOW_LAUNCH_NS)
    if not is_slow.any():
        return is_slow
    begins = (
        gpu_events.select("correlation", begin_ns="start_ns")
        .drop_nulls()
        .group_by("correlation")
        .min()
    )
    launches = (
        calls.select("correlation", "start_ns")
        .filter(pl.Series(is_queued))
        .join(begins, on="correlation")
    )
    # Launches of all streams before the call whose work had not begun: those launched less those
    # begun before it.
    launched = np.searchsorted(launches["start_ns"].sort().to_numpy(), start_ns[is_slow])
    begun = np.searchsorted(launches["begin_ns"].sort().to_numpy(), start_ns[is_slow])
    waits = is_slow.copy()
    waits[is_slow] = launched - begun >= FULL_QUEUE_LAUNCHES
    return waits


def find_full_queue_time(api: ApiCalls, gpu_events: pl.DataFrame) -> Intervals:
    """Return when the host was inside a launch call that waited for room in the GPU's queue."""
    return union_of(api.calls.filter(pl.Series(_waits_for_queue(api, gpu_events))))


# ---- Host activity during launch-bound idle time: what the launching thread did while the GPU waited for a launch.
#
# While the GPU is idle because its next work was not launched, the thread that launches it is
# somewhere: inside a call that waits for the GPU, in an allocation, in the launches of other work,
# in an operator, in the data loader, in garbage collection, or in Python between operators. Each
# nanosecond goes to the innermost range open on that thread; where it had none, to the innermost
# range of another thread that launches GPU work (the autograd engine hands over to the main
# thread). The parts sum to the launch-bound idle time.


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
HOST_KINDS = ("cpu_op", "annotation", "runtime", "driver")
MAX_ROWS_PER_RANK = 50
"""Rows listed one by one for a rank, the longest; the rest is summed by activity."""
MAX_NESTING_DEPTH = 64
"""Levels of nested ranges through which data loading and garbage collection are passed on to what
runs inside them."""

_DATA_LOADING = r"(?i)dataloader|data_loader|dataset.*__next__|load_batch|next_batch"
_GARBAGE_COLLECTION = r"(?i)\bpython gc\b|garbage.?collect|\bgc[.:_ ]?collect|^gc$"
_STEP_MARK = r"^ProfilerStep#"
_SYNCHRONIZING_OPS = (
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::nonzero",
)
"""Operators that copy a value to the host: a synchronization inside them is shown under their
name."""

HOST_ACTIVITY = table_schema(HostActivity)


def find_host_activity(
    events: pl.DataFrame, labelled: pl.DataFrame, gaps: pl.DataFrame
) -> pl.DataFrame:
    """Return the launch-bound idle time of a rank by what the host did (``HOST_ACTIVITY``), longest first.

    Args:
        events: All events of the rank.
        labelled: Its GPU events.
        gaps: Its idle gaps (``metrics.budget``), whose ``next`` are rows of *labelled*.

    >>> from tracekit.schema import EVENTS, LABELLED, conform
    >>> host = [{"kind": "cpu_op", "name": "aten::item", "tid": 1, "start_ns": 10, "end_ns": 70},
    ...         {"kind": "runtime", "name": "cudaStreamSynchronize", "tid": 1, "start_ns": 20, "end_ns": 60}]
    >>> gpu = conform(pl.DataFrame({"start_ns": [0, 100], "launch_tid": [1, 1]}), LABELLED)
    >>> gaps = pl.DataFrame({"start_ns": [5], "launch_bound_ns": [75], "next": [1]})
    >>> find_host_activity(conform(pl.DataFrame(host), EVENTS), gpu, gaps).select("instead", "what", "ns").rows()
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
    threads = [int(tid) for tid in labelled["launch_tid"].drop_nulls().unique().to_list()]
    ranges = _HostRanges.overlapping(waiting, events, threads, HOST_KINDS)
    if not len(ranges):
        return HOST_ACTIVITY.to_frame()
    pieces, innermost = _split_by_innermost_range(waiting, ranges, threads)
    activity, shown_range = _find_activities(ranges, innermost)
    frames = _HostRanges.overlapping(waiting, events, threads, ("python",))
    # Calls of modules alone are read by default.
    has_functions = not frames.name.matches(r"^nn\.Module: ").all()
    none = np.full(len(pieces.start), -1, np.int64)
    frame = frames.find_innermost(pieces.tid, pieces.start) if has_functions else none
    return _sum_by_activity(
        activity, ranges.name.take(shown_range), frames.name.take(frame), pieces.end - pieces.start
    )


def keep_longest(rows: pl.DataFrame, count: int = MAX_ROWS_PER_RANK) -> pl.DataFrame:
    """Return the longest *count* rows of ``HOST_ACTIVITY``, and the rest of each activity as one row without a name."""
    rest = rows[count:].group_by("instead", maintain_order=True).agg(pl.col("ns", "count").sum())
    return pl.concat([rows[:count], conform(rest, HOST_ACTIVITY)])


def add_time_inside_launches(
    api: ApiCalls, labelled: pl.DataFrame, gaps: pl.DataFrame
) -> pl.DataFrame:
    """Return the gaps with ``inside_launch_ns``: idle time inside the launch call of the event that ended the gap.

    That time is the host's: it moves from ``dependency_ns`` to ``launch_bound_ns``, unless it is
    ``warm_up_ns``.

    >>> calls = pl.DataFrame({"kind": ["runtime"], "correlation": [7], "end_ns": [90]})
    >>> gaps = pl.DataFrame({"start_ns": [5], "end_ns": [95], "launch_bound_ns": [75], "dependency_ns": [15],
    ...                      "warm_up_ns": [0], "next": [0]})
    >>> with_calls = add_time_inside_launches(ApiCalls(calls), pl.DataFrame({"correlation": [7]}), gaps)
    >>> with_calls.select("inside_launch_ns", "launch_bound_ns", "dependency_ns").row(0)
    (10, 85, 5)
    """
    if gaps.is_empty():
        return gaps.with_columns(inside_launch_ns=pl.lit(0, pl.Int64))
    calls = api.calls.filter(pl.col("correlation") >= 0).select("correlation", returned="end_ns")
    # A call inside another has the same correlation: the outer one returns last, and counts.
    returns = calls.group_by("correlation").max()
    ended_by = labelled["correlation"][gaps["next"].to_numpy()].to_frame()
    returned = ended_by.join(returns, on="correlation", how="left", maintain_order="left")[
        "returned"
    ]
    inside_ns = (
        pl.min_horizontal("returned", "end_ns") - pl.col("start_ns") - pl.col("launch_bound_ns")
    )
    is_known = pl.col("returned").is_not_null()
    with_returns = gaps.with_columns(returned).with_columns(
        inside_launch_ns=pl.when(is_known).then(inside_ns.clip(0)).otherwise(0)
    )
    moved_ns = pl.min_horizontal(
        pl.col("inside_launch_ns") - pl.col("warm_up_ns"), "dependency_ns"
    ).clip(0)
    return with_returns.with_columns(
        launch_bound_ns=pl.col("launch_bound_ns") + moved_ns,
        dependency_ns=pl.col("dependency_ns") - moved_ns,
    ).drop("returned")


class _Stretches(msgspec.Struct, frozen=True, eq=False):
    """Stretches of time, ascending and disjoint, and the thread that should have launched work in each."""

    start: Ints
    end: Ints
    tid: Ints


class _HostRanges(msgspec.Struct, frozen=True, eq=False):
    """Ranges of the host's threads by thread and start.

    Of two that start together the longer one comes first.
    """

    kind: Ints
    """Index in ``KINDS``."""
    name: CategoryColumn
    tid: Ints
    start: Ints
    end: Ints

    @classmethod
    def overlapping(
        cls,
        stretches: _Stretches,
        events: pl.DataFrame,
        threads: Sequence[int],
        kinds: Sequence[str],
    ) -> _HostRanges:
        """Return the events of some *kinds* on these *threads* that overlap a stretch."""
        start = events["start_ns"].to_numpy()
        end = events["end_ns"].to_numpy()
        kind = events["kind"].to_physical().to_numpy()
        rows = np.flatnonzero(np.isin(kind, [KINDS.index(name) for name in kinds]))
        rows = rows[overlaps_any(start[rows], end[rows], stretches.start, stretches.end)]
        tid = to_int64(events["tid"][rows], NEVER)
        on_threads = np.isin(tid, threads)
        rows = rows[on_threads]
        tid = tid[on_threads]
        keys = pl.DataFrame({"tid": tid, "start_ns": start[rows], "end_ns": end[rows]})
        order = (
            keys.select(pl.arg_sort_by("tid", "start_ns", -pl.col("end_ns"))).to_series().to_numpy()
        )
        rows = rows[order]
        return cls(
            kind=kind[rows].astype(np.int64),
            name=CategoryColumn.from_series(events["name"][rows]),
            tid=tid[order],
            start=start[rows],
            end=end[rows],
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
    # Regular expressions run once for each distinct (kind, name).
    group, first = group_rows(ranges.kind, ranges.name.codes)
    names = ranges.name.take(first).strings()
    activity_of_group = []
    for kind, name in zip(ranges.kind[first].tolist(), names, strict=True):
        activity_of_group.append(ACTIVITIES.index(_activity(KINDS[kind], name or "")))
    activity_of_range = np.array(activity_of_group, np.int64)[group]
    no_queries = np.zeros(0, np.int64)
    parent = ranges.nest(no_queries, no_queries).op_of
    counted_range = _inherit_from_loading(activity_of_range, parent)[np.maximum(innermost, 0)]
    activity = np.where(innermost >= 0, activity_of_range[counted_range], PYTHON)
    # A synchronization inside aten::item and the like is shown as that operator.
    outer = parent[counted_range]
    is_synchronizing_op = ranges.name.any_of(*_SYNCHRONIZING_OPS)[np.maximum(outer, 0)]
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


def _activity(kind: str, name: str) -> str:
    """Return the activity that a range of this kind and name stands for."""
    if re.search(_GARBAGE_COLLECTION, name):
        return "garbage_collection"
    if re.search(_DATA_LOADING, name):
        return "data_loading"
    if kind == "annotation":
        return "python" if re.search(_STEP_MARK, name) else "annotation"
    if kind in ("runtime", "driver"):
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
