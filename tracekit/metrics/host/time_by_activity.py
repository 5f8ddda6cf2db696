"""Time of the host by what it does, and how long the GPU has nothing to do meanwhile.

Each nanosecond of the threads that launch GPU work belongs to one activity: the first of
``TIMED_ACTIVITIES`` that matches. Compilation, data loading, copies of pageable memory, allocations,
synchronisations and operators that run on the CPU are recognised by what was recorded; where
nothing was, the host is in Python. The rest is launching.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from tracekit._loops.nesting import OP
from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify.host_ranges import Nested, nest
from tracekit.classify.names import HOST_ACTIVITIES, HOST_CALLS
from tracekit.intervals import EMPTY, Intervals, overlaps_any, union, union_of
from tracekit.metrics.host.events import BLOCKING_PATTERN, LAUNCH_PATTERN, HostEvents, NamedRows
from tracekit.schema import EVENTS

TIMED_ACTIVITIES = (
    "compile",
    "data_loading",
    "unused_parameters",
    "pageable_copy",
    "allocator",
    "host_sync",
    "host_compute",
    "python",
    "launch_bound",
)
"""What the host can do, in order: time that two match belongs to the first."""
OWN_WORK = frozenset({"compile", "data_loading", "unused_parameters", "host_compute", "python"})
"""Activities in which the host works itself: what they delay, they delay by no more than they take.

A host that waits is different: what it launches next starts behind a queue that has run empty.
"""
MIN_CPU_OPERATOR_NS = 200_000
"""Time from which an operator that launches nothing works on the CPU: it takes a tenth of that to
make a view."""
MIN_PYTHON_NS = 500_000
"""Stretch without any range from which the host is in Python; shorter ones lie between two
launches."""
MIN_WITHOUT_CALL_NS = 2_000_000
"""Stretch without any call of the GPU's library from which the host does not launch at all: even
short operators in it work on the CPU."""
MIN_LEAD_NS = 1_000_000
"""Time by which the host launches work before the GPU starts it, from which on it is ahead: with
less, the GPU runs out of work at the next few short kernels."""
MAX_PLACES = 5
"""Places that are kept for each activity, those where the GPU is idle longest."""

HostStretches = dict[tuple[str, str], Intervals]
"""When the host did what, by activity and (of synchronisations) the operator that asks."""
_ACTIVITY_RANGES = pl.Schema(
    {
        "name": pl.String(),
        "tid": EVENTS["tid"],
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "op": pl.String(),  # operator around it
    }
)
_NO_RANGES = _ACTIVITY_RANGES.to_frame()
HOST_TIME = pl.Schema(
    {
        "part": pl.Int64(),
        "code": pl.String(),
        "host_ns": pl.Int64(),  # of the host in this activity
        "idle_ns": pl.Int64(),  # of the GPU meanwhile
        "idle_after_ns": pl.Int64(),  # of the GPU while the host launches and has not regained its lead
        "count": pl.Int64(),  # of its ranges, without those inside another
        "name": pl.String(),  # call or range that takes most of it
        "op": pl.String(),  # operator around it
    }
)
HOST_PLACES = pl.Schema(
    {
        "code": pl.String(),
        "part": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
        "name": pl.String(),
        "source": pl.String(),  # function and line where Python's stacks were recorded, else the range around a wait
    }
)


def measure_host_time(
    host: HostEvents,
    frames: NamedRows,
    gpu_events: pl.DataFrame,
    steps: pl.DataFrame,
    *,
    busy: Intervals,
    gaps: pl.DataFrame,
) -> tuple[pl.DataFrame, pl.DataFrame, HostStretches]:
    """Return the host's time by step and activity (``HOST_TIME``), and where the GPU is idle longest (``HOST_PLACES``).

    The third is when the host did what in timed steps, by activity, and synchronisations also by the operator
    that asks: the stretches are disjoint. Launching is left out: it is the rest.

    Args:
        host: Events of the threads that launch the rank's GPU work.
        frames: Its Python frames.
        gpu_events: Its GPU events.
        steps: Its steps with their intervals (``align.steps.STEPS``).
        busy: Time in which any GPU event runs.
        gaps: Idle gaps with their causes (``metrics.budget.gaps``): only idle time before a launch
            is the host's.

    Without events of the host all are empty: what it did is not known.
    """
    host = _without_step_marks(host)
    tables = (host.calls, host.operators, host.ranges)
    timed = steps.with_row_index("part").filter(pl.col("time_ns").is_not_null())
    if not any(map(len, tables)) or timed.is_empty():
        return HOST_TIME.to_frame(), HOST_PLACES.to_frame(), {}
    window = union(timed["interval_start_ns"].to_numpy(), timed["interval_end_ns"].to_numpy())
    idle = window - busy - _idle_after_launches(gaps)
    stretches, ranges = _stretches_and_ranges(host, gpu_events, window)
    recovered_ns = _times_of_lead(gpu_events)
    idle_while_launching = idle & stretches.get("launch_bound", EMPTY)
    lost_lead = EMPTY
    times = []
    places = []
    for code, covered in stretches.items():
        named = ranges.get(code, _NO_RANGES)
        after = EMPTY
        if code != "launch_bound":  # while the host did something else the GPU's queue ran empty
            after = _until_recovered((covered & idle).end_ns, recovered_ns, window) - lost_lead
        lost_lead = lost_lead | after
        idle_after = after & idle_while_launching
        times.append(
            _time_by_part(code, named, timed, covered=covered, idle=idle, idle_after=idle_after)
        )
        start_ns, end_ns = _with_idle_after(covered & idle, (covered | after) & idle)
        places.append(_longest_places(code, start_ns, end_ns, named, timed))
    all_places = pl.concat(places) if places else HOST_PLACES.to_frame()
    threads = {thread for table in tables for thread in table.threads}
    with_lines = add_lines(all_places, frames.on_threads(np.array([*threads])))
    with_lines = _with_ranges(with_lines, host.ranges)
    all_times = pl.concat(times) if times else HOST_TIME.to_frame()
    return all_times, with_lines, _by_operator(stretches, ranges)


def _by_operator(
    stretches: Mapping[str, Intervals], ranges: Mapping[str, pl.DataFrame]
) -> HostStretches:
    """Return the stretches of all activities but launching, those of synchronisations by operator, else by call."""
    by_operator: HostStretches = {}
    for code, covered in stretches.items():
        if code == "host_sync":
            asked = ranges[code].with_columns(pl.coalesce("op", "name").alias("op"))
            left = covered
            for (op,), of_op in asked.group_by("op", maintain_order=True):
                by_operator[code, str(op)] = left & union_of(of_op)
                left = left - union_of(of_op)
        elif code != "launch_bound":
            by_operator[code, ""] = covered
    return by_operator


def _without_step_marks(host: HostEvents) -> HostEvents:
    """Return the events of the host without ranges that mark steps."""
    marks = host.ranges.named(HOST_ACTIVITIES["step_mark"])
    return replace(host, ranges=host.ranges.select(~marks))


def _stretches_and_ranges(
    host: HostEvents, gpu_events: pl.DataFrame, window: Intervals
) -> tuple[dict[str, Intervals], dict[str, pl.DataFrame]]:
    """Return the time of each activity that occurs, by ``TIMED_ACTIVITIES``, and the ranges that it is known by."""
    tables = (host.calls, host.operators, host.ranges)
    in_calls, in_operators, in_ranges = (union_of(table.rows) for table in tables)
    without_calls = _long_stretches(window - in_calls, MIN_WITHOUT_CALL_NS)
    ranges = _ranges_by_code(host, gpu_events, without_calls)
    outside_ranges = window - (in_calls | in_operators | in_ranges)
    in_python = _long_stretches(outside_ranges, MIN_PYTHON_NS) | (outside_ranges & without_calls)
    stretches = {}
    taken = EMPTY
    for code in TIMED_ACTIVITIES:
        if code == "python":
            covered = in_python - taken
        elif code == "launch_bound":
            covered = window - taken
        else:
            rows = ranges[code]
            covered = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()) - taken
        taken = taken | covered
        if len(covered):
            stretches[code] = covered
    return stretches, ranges


def _ranges_by_code(
    host: HostEvents, gpu_events: pl.DataFrame, without_calls: Intervals
) -> dict[str, pl.DataFrame]:
    """Return the ranges of each activity (``_ACTIVITY_RANGES``) that is recognised by a name or by a copy's kind."""
    calls = host.calls
    return {
        "compile": _named_ranges(host, HOST_ACTIVITIES["compile"]),
        "data_loading": _named_ranges(host, HOST_ACTIVITIES["data_loading"]),
        "unused_parameters": _named_ranges(host, HOST_ACTIVITIES["unused_parameters"]),
        "pageable_copy": _pageable_copies(host, gpu_events),
        "allocator": _with_operator(calls.select(calls.named(HOST_CALLS["allocation"])), host),
        "host_sync": _synchronisations(host),
        "host_compute": _cpu_operators(host, without_calls),
    }


def _named_ranges(host: HostEvents, pattern: str) -> pl.DataFrame:
    """Return the operators and ranges whose name matches a pattern."""
    named = [table.select(table.named(pattern)).rows for table in (host.operators, host.ranges)]
    return _as_ranges(pl.concat(named)) if any(map(len, named)) else _NO_RANGES


def _pageable_copies(host: HostEvents, gpu_events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that copy pageable memory, under the name of the copy, which tells its direction."""
    is_pageable = CategoryColumn.from_series(gpu_events["name"]).matches("(?i)pageable")
    copies = gpu_events.select("correlation", copy="name").filter(pl.Series(is_pageable))
    copies = copies.drop_nulls().unique("correlation")
    if copies.is_empty():
        return _NO_RANGES
    is_launch = host.calls.named(LAUNCH_PATTERN)
    of_copy = host.calls.rows["correlation"].is_in(copies["correlation"].implode())
    calls = host.calls.select(is_launch & of_copy.fill_null(False).to_numpy())
    names = calls.rows.select("correlation").join(
        copies, on="correlation", how="left", maintain_order="left"
    )
    return _with_operator(calls, host).with_columns(name=names["copy"].cast(pl.String))


def _synchronisations(host: HostEvents) -> pl.DataFrame:
    """Return the calls that wait for the GPU (``is_call``), and the operators around them that ask for a value.

    The operator of a call is the one that asks, else the innermost.
    """
    calls = host.calls.select(host.calls.named(BLOCKING_PATTERN))
    if not len(calls):
        return _NO_RANGES.with_columns(is_call=pl.lit(value=True))
    asking = host.operators.select(host.operators.named(HOST_ACTIVITIES["asks_for_value"]))
    asking = asking.select(_contains_any(asking, calls))
    # Of operators inside each other, such as aten::item and aten::_local_scalar_dense, the outer one.
    outer = _outer_first(asking)
    outer = outer.filter(pl.Series(_nest(outer, calls).op_of < 0))
    asker = _names_of_rows(outer, _nest(outer, calls).point_op)
    waits = _with_operator(calls, host).with_columns(
        op=pl.coalesce(asker, "op"), is_call=pl.lit(value=True)
    )
    operators = _as_ranges(asking.rows).with_columns(op=pl.col("name"), is_call=pl.lit(value=False))
    return pl.concat([waits, operators])


def _cpu_operators(host: HostEvents, without_calls: Intervals) -> pl.DataFrame:
    """Return the operators that run on the CPU.

    They launch nothing, and take too long to be mere overhead or lie in a long stretch in which
    nothing is launched.
    """
    start = host.operators.rows["start_ns"].to_numpy()
    end = host.operators.rows["end_ns"].to_numpy()
    is_long = end - start >= MIN_CPU_OPERATOR_NS
    is_apart = without_calls.covered_ns(start, end) == end - start
    operators = host.operators.select((is_long | is_apart) & (end > start))
    operators = operators.select(~_contains_any(operators, host.calls))
    operators = operators.select(_contains_any(operators, _computing(host.operators, operators)))
    return _as_ranges(operators.rows).with_columns(op=pl.col("name"))


def _computing(operators: NamedRows, around: NamedRows) -> NamedRows:
    """Return the operators inside some others that compute: innermost ones that are no mere bookkeeping."""
    start = operators.rows["start_ns"].to_numpy()
    stretches = union_of(around.rows)
    inside = operators.select(overlaps_any(start, start + 1, stretches.start_ns, stretches.end_ns))
    by_start = _outer_first(inside)
    # In this order the next row is inside a row if it begins before that one ends on its thread.
    is_innermost = (pl.col("start_ns").shift(-1).over("tid") >= pl.col("end_ns")).fill_null(
        value=True
    )
    innermost = NamedRows(by_start.filter(is_innermost))
    return innermost.select(~innermost.named(HOST_ACTIVITIES["bookkeeping"]))


def _as_ranges(rows: pl.DataFrame) -> pl.DataFrame:
    """Return some host events as ``_ACTIVITY_RANGES``, without an operator around them."""
    return rows.select(
        pl.col("name").cast(pl.String), "tid", "start_ns", "end_ns", op=pl.lit(None, pl.String)
    )


def _contains_any(ranges: NamedRows, points: NamedRows) -> Bools:
    """Return which ranges contain the start of any of *points* on their thread."""
    contains = np.zeros(len(ranges), np.bool_)
    if not len(points):
        return contains
    start = ranges.rows["start_ns"].to_numpy()
    end = ranges.rows["end_ns"].to_numpy()
    point_start = points.rows["start_ns"].to_numpy()
    for thread in min(ranges, points, key=len).threads:
        rows = np.flatnonzero(ranges.tid == thread)
        times = np.sort(point_start[points.tid == thread], kind="stable")
        contains[rows] = np.searchsorted(times, start[rows]) < np.searchsorted(times, end[rows])
    return contains


def _with_operator(calls: NamedRows, host: HostEvents) -> pl.DataFrame:
    """Return calls as ``_ACTIVITY_RANGES``, with the innermost operator that is open when each begins."""
    if not len(calls):
        return _NO_RANGES
    operators = host.operators
    is_wrapper = operators.named(HOST_ACTIVITIES["wrapper"])
    around = _outer_first(operators.select(~is_wrapper & _contains_any(operators, calls)))
    op = _names_of_rows(around, _nest(around, calls).point_op)
    return _as_ranges(calls.rows).with_columns(op)


def _outer_first(ranges: NamedRows) -> pl.DataFrame:
    """Return ranges by thread and start, an outer one before those inside it."""
    return ranges.rows.sort("tid", "start_ns", -pl.col("end_ns"), maintain_order=True)


def _nest(ranges: pl.DataFrame, points: NamedRows) -> Nested:
    """Find what is around each range and around the start of each point; ranges are ``_outer_first``."""
    return nest(
        thread=to_int64(ranges["tid"]),
        start=ranges["start_ns"].to_numpy(),
        end=ranges["end_ns"].to_numpy(),
        kind=np.full(len(ranges), OP),
        name=np.zeros(len(ranges), np.int64),
        point_thread=points.tid,
        point_time=points.rows["start_ns"].to_numpy(),
    )


def _names_of_rows(ranges: pl.DataFrame, rows: Ints) -> pl.Series:
    """Return the names of some rows as the column ``op``; null for a negative row."""
    return NamedRows(ranges).names.take(rows).series("op", pl.String())


def _idle_after_launches(gaps: pl.DataFrame) -> Intervals:
    """Return the idle time in which the next work had been launched already, or its launch is not known."""
    launched_ns = pl.col("start_ns") + pl.col("launch_bound_ns") + pl.col("warm_up_ns")
    stretches = gaps.select(start_ns=launched_ns, end_ns="end_ns")
    return union(stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy())


def _long_stretches(intervals: Intervals, min_ns: int) -> Intervals:
    """Return the stretches of at least *min_ns*, without those between two launches."""
    is_long = intervals.end_ns - intervals.start_ns >= min_ns
    return Intervals(
        intervals.group[is_long], intervals.start_ns[is_long], intervals.end_ns[is_long]
    )


def _times_of_lead(gpu_events: pl.DataFrame) -> Ints:
    """Return the launches at which the host was ahead of the GPU, in order of time."""
    lead = pl.col("start_ns") - pl.col("launch_ns")
    times = gpu_events.select("start_ns", "launch_ns")
    ahead = times.filter(lead >= MIN_LEAD_NS)["launch_ns"].drop_nulls()
    return np.sort(ahead.to_numpy())


def _until_recovered(stopped_ns: Ints, recovered_ns: Ints, window: Intervals) -> Intervals:
    """Return the time from when the host went on after a stop until it was ahead of the GPU again."""
    if not len(stopped_ns):
        return EMPTY
    until = np.append(recovered_ns, window.end_ns.max())[np.searchsorted(recovered_ns, stopped_ns)]
    return union(stopped_ns, np.maximum(until, stopped_ns))


def _time_by_part(
    code: str,
    named: pl.DataFrame,
    steps: pl.DataFrame,
    *,
    covered: Intervals,
    idle: Intervals,
    idle_after: Intervals,
) -> pl.DataFrame:
    """Return ``HOST_TIME`` of one activity."""
    start = steps["interval_start_ns"].to_numpy()
    end = steps["interval_end_ns"].to_numpy()
    host_ns = covered.covered_ns(start, end)
    idle_ns = (covered & idle).covered_ns(start, end)
    idle_after_ns = idle_after.covered_ns(start, end)
    if code in OWN_WORK:
        idle_after_ns = np.minimum(idle_after_ns, host_ns - idle_ns)
    if code == "host_sync":
        named = _longest_wait(named)
    names = named.filter(~pl.col("name").str.contains(HOST_ACTIVITIES["wrapper"]))
    return pl.DataFrame(
        {
            "part": steps["part"].cast(pl.Int64),
            "code": [code] * len(steps),
            "host_ns": host_ns,
            "idle_ns": idle_ns,
            "idle_after_ns": idle_after_ns,
            "count": _count_in(_outermost_starts(named), start, end),
            "name": [_longest_name(names, "name")] * len(steps),
            "op": [_longest_name(names, "op")] * len(steps),
        },
        schema=HOST_TIME,
    )


def _longest_wait(synchronisations: pl.DataFrame) -> pl.DataFrame:
    """Return the calls, among those that wait for the GPU, of the operator in which they wait longest.

    Outside any operator, those of one name.
    """
    calls = synchronisations.filter(pl.col("is_call"))
    waits = calls.group_by("op", pl.when(pl.col("op").is_null()).then("name").alias("name")).agg(
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    longest = waits.sort("ns", "op", "name", descending=[True, False, False]).row(0, named=True)
    if longest["op"] is None:
        return calls.filter(pl.col("op").is_null() & (pl.col("name") == longest["name"]))
    return calls.filter(pl.col("op") == longest["op"])


def _longest_name(ranges: pl.DataFrame, column: str) -> str | None:
    """Return the name with the longest time among *ranges*.

    Operators of PyTorch before ranges around them, unless the operator takes less than half as long.
    """
    if ranges.is_empty():
        return None
    by_name = (
        ranges.drop_nulls(column)
        .group_by(column)
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    is_operator = pl.col(column).str.starts_with("aten::") & (
        2 * pl.col("ns") >= pl.col("ns").max()
    )
    longest = by_name.sort(is_operator, "ns", column, descending=[True, True, False])
    return longest[column][0] if len(longest) else None


def _outermost_starts(ranges: pl.DataFrame) -> Ints:
    """Return the starts of the ranges that lie inside no other: an operator and the call in it are one."""
    return union(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()).start_ns


def _count_in(times: Ints, start: Ints, end: Ints) -> Ints:
    """Return how many of *times* lie in each interval."""
    ordered = np.sort(times)
    return np.searchsorted(ordered, end) - np.searchsorted(ordered, start)


def _with_idle_after(inside: Intervals, with_after: Intervals) -> tuple[Ints, Ints]:
    """Return start and end of each idle stretch: from where it begins in an activity to where the GPU works again.

    A synchronisation ends long before its GPU has work again: that time belongs to the place too.

    >>> inside, with_after = union([5, 30, 36], [7, 34, 40]), union([5, 30], [12, 40])
    >>> [times.tolist() for times in _with_idle_after(inside, with_after)]
    [[5, 30], [12, 40]]

    Args:
        inside: Idle time of the GPU during the activity.
        with_after: That, and the idle time which follows from it.
    """
    # Each interval of *inside* lies in the last one of *with_after* that does not start after it.
    around = np.searchsorted(with_after.start_ns, inside.start_ns, side="right") - 1
    stretch, first_inside = np.unique(around, return_index=True)
    return inside.start_ns[first_inside], with_after.end_ns[stretch]


def _longest_places(
    code: str, start_ns: Ints, end_ns: Ints, named: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Return ``HOST_PLACES`` of one activity: the longest of its stretches of idle GPU.

    Args:
        code: The activity.
        start_ns: Starts of its stretches, in order.
        end_ns: Their ends.
        named: Its ranges, with their names.
        steps: Steps with their intervals.
    """
    longest = np.sort(np.argsort(start_ns - end_ns, kind="stable")[:MAX_PLACES])
    start_ns = start_ns[longest]
    end_ns = end_ns[longest]
    # The last step that does not start after the place; before the first one it counts as its.
    step = np.searchsorted(steps["interval_start_ns"].to_numpy(), start_ns, side="right") - 1
    return pl.DataFrame(
        {
            "code": pl.Series([code] * len(longest), dtype=pl.String),
            "part": steps["part"].cast(pl.Int64).gather(np.maximum(step, 0)),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "idle_ns": end_ns - start_ns,
            "name": _names_at(named, start_ns),
            "source": pl.Series([None] * len(longest), dtype=pl.String),
        }
    )


def _names_at(ranges: pl.DataFrame, times_ns: Ints) -> pl.Series:
    """Return the name of the range that began last before each time; null if it has ended by then."""
    by_start = np.argsort(ranges["start_ns"].to_numpy(), kind="stable")
    starts = ranges["start_ns"].to_numpy()[by_start]
    last = np.searchsorted(starts, times_ns, side="right") - 1
    if not len(starts):
        return pl.Series([None] * len(times_ns), dtype=pl.String)
    rows = by_start[np.maximum(last, 0)]
    is_open = (last >= 0) & (ranges["end_ns"].to_numpy()[rows] > times_ns)
    names = ranges["name"].gather(rows)
    return names.set(~pl.Series(is_open), None)


def add_lines(places: pl.DataFrame, frames: NamedRows) -> pl.DataFrame:
    """Return the places (``HOST_PLACES``) with the innermost frame of the program that was open in the middle of each.

    Of synchronisations at their start, because the host may have gone on elsewhere while the GPU had no
    work. Without frames of functions the places stay as they are.
    """
    functions = frames.select(~frames.named(HOST_ACTIVITIES["module_call"]))
    if not len(functions) or places.is_empty():
        return places
    by_start = NamedRows(functions.rows.sort("start_ns"))
    start = by_start.rows["start_ns"].to_numpy()
    end = by_start.rows["end_ns"].to_numpy()
    is_library = by_start.named(HOST_ACTIVITIES["library_frame"])
    lines: list[str | None] = []
    middle = (pl.col("start_ns") + pl.col("end_ns")) // 2
    is_wait = pl.col("code") == "host_sync"
    for time_ns in places.select(pl.when(is_wait).then("start_ns").otherwise(middle)).to_series():
        is_open = np.flatnonzero((start <= time_ns) & (end > time_ns))
        own = is_open[~is_library[is_open]]
        candidates = own if len(own) else is_open
        line = None
        if len(candidates):
            innermost = int(candidates[-1])
            line = by_start.names.value(innermost)
        lines.append(line)
    return places.with_columns(source=pl.Series(lines, dtype=pl.String))


def _with_ranges(places: pl.DataFrame, ranges: NamedRows) -> pl.DataFrame:
    """Return the places; those of waits without a frame get the innermost annotated range around their start."""
    is_open = (pl.col("code") == "host_sync") & pl.col("source").is_null()
    waits = places.select(is_open.alias("is_open"), "start_ns")
    if not len(ranges) or not waits["is_open"].any():
        return places
    by_start = NamedRows(ranges.rows.sort("start_ns", -pl.col("end_ns")))
    end = by_start.rows["end_ns"].to_numpy()
    behind = np.searchsorted(by_start.rows["start_ns"].to_numpy(), waits["start_ns"], side="right")
    sources = places["source"].to_list()
    for row, is_without_frame in enumerate(waits["is_open"].to_list()):
        if is_without_frame:
            around = np.flatnonzero(end[: behind[row]] > waits["start_ns"][row])
            sources[row] = by_start.names.value(int(around[-1])) if len(around) else None
    return places.with_columns(source=pl.Series(sources, dtype=pl.String))
