"""Time of the host by what it does, and how long the GPU has nothing to do meanwhile.

Each nanosecond of the threads that launch GPU work belongs to one activity: the first of
``HOST_CODES`` that matches. Compilation, data loading, copies of pageable memory, allocations,
synchronisations and operators that run on the CPU are recognised by what was recorded; where
nothing was, the host is in Python. The rest is launching.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.columns import to_int64
from tracekit.classify.names import HOST_CALLS
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.host_calls import BLOCKING_PATTERN, LAUNCH_PATTERN

HOST_CODES = (
    "compile",
    "data_loading",
    "pageable_copy",
    "allocator",
    "host_sync",
    "host_compute",
    "python",
    "launch_bound",
)
"""What the host can do, in order: time that two match belongs to the first."""
COMPILATION = (
    r"(?i)dynamo_timed|inductor_compile|compile_fx|entire_(frame|backward)_compile|autotun|do_bench"
)
"""Ranges of ``torch.compile`` and of Triton's benchmarks while they compile; a look into their
cache is none."""
DATA_LOADING = r"(?i)dataloader.*__next__|dataset.*__next__|load_batch|next_batch"
SYNCHRONIZING_OPS = (
    r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|masked_select|equal|unique|_unique2)$"
)
"""Operators that ask the GPU for a value: without them their synchronisation is gone as well."""
WRAPPERS = (
    r"^(PythonSubclass|PythonDispatchMode|autograd::engine|Torch-Compiled Region|\[pytorch\|)"
)
"""Ranges that say nothing about what they wrap."""
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
        "source": pl.String(),  # function and line, where Python's stacks were recorded
    }
)


def measure_host_time(
    events: pl.DataFrame,
    gpu_events: pl.DataFrame,
    steps: pl.DataFrame,
    *,
    busy: Intervals,
    gaps: pl.DataFrame,
    frames: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the host's time by step and activity (``HOST_TIME``), and where the GPU is idle longest (``HOST_PLACES``).

    Args:
        events: All events of one rank.
        gpu_events: Its GPU events, with the thread that launched each.
        steps: Its steps with their intervals (``align.steps.STEPS``).
        busy: Time in which any GPU event runs.
        gaps: Idle gaps with their causes (``metrics.budget.gaps``): only idle time before a launch
            is the host's.
        frames: Its Python frames, if they were read beside *events*.

    Without events of the host both are empty: what it did is not known.
    """
    host = _launching_threads(events, gpu_events)
    timed = steps.with_row_index("part").filter(pl.col("time_ns").is_not_null())
    if host.is_empty() or timed.is_empty():
        return HOST_TIME.to_frame(), HOST_PLACES.to_frame()
    window = union(timed["interval_start_ns"].to_numpy(), timed["interval_end_ns"].to_numpy())
    idle = window - busy - _idle_after_launches(gaps)
    without_calls = _long_stretches(window - _calls(host), MIN_WITHOUT_CALL_NS)
    ranges = _ranges_by_code(host, gpu_events, without_calls)
    any_range = union(host["start_ns"].to_numpy(), host["end_ns"].to_numpy())
    outside_ranges = window - any_range
    in_python = _long_stretches(outside_ranges, MIN_PYTHON_NS) | (outside_ranges & without_calls)
    recovered_ns = _times_of_lead(gpu_events)
    lost_lead = EMPTY
    times = []
    places = []
    taken = EMPTY
    for code in HOST_CODES:
        if code == "python":
            covered = in_python - taken
        elif code == "launch_bound":
            covered = window - taken
        else:
            rows = ranges[code]
            covered = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()) - taken
        taken = taken | covered
        if not len(covered):
            continue
        named = ranges.get(code, host.clear())
        after = EMPTY
        if code != "launch_bound":  # while the host did something else the GPU's queue ran empty
            after = _until_recovered((covered & idle).end_ns, recovered_ns, window) - lost_lead
        lost_lead = lost_lead | after
        times.append(_time_by_part(code, named, timed, covered=covered, idle=idle, after=after))
        start_ns, end_ns = _with_idle_after(covered & idle, (covered | after) & idle)
        places.append(_longest_places(code, start_ns, end_ns, named, timed))
    lines = _source_lines(events if frames is None else frames, host)
    all_places = pl.concat(places) if places else HOST_PLACES.to_frame()
    return (pl.concat(times) if times else HOST_TIME.to_frame()), _with_lines(all_places, lines)


def _launching_threads(events: pl.DataFrame, gpu_events: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of the threads that launch GPU work, without marks of steps, as kind, name, tid and times."""
    threads = gpu_events["launch_tid"].drop_nulls().unique()
    kinds = ("cpu_op", "annotation", "runtime", "driver")
    host = events.lazy().filter(
        pl.col("kind").is_in(kinds) & pl.col("tid").is_in(threads.implode())
    )
    columns = ("kind", "name", "tid", "correlation", "start_ns", "end_ns")
    named = host.select(columns).with_columns(
        pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)
    )
    is_mark = (pl.col("kind") == "annotation") & pl.col("name").str.contains(
        r"^ProfilerStep#|^PyTorch Profiler"
    )
    return named.filter(~is_mark).sort("tid", "start_ns", maintain_order=True).collect()


def _calls(host: pl.DataFrame) -> Intervals:
    """Return the time in which any launching thread is in a call of the GPU's library."""
    calls = host.filter(pl.col("kind").is_in(["runtime", "driver"]))
    return union(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())


def _ranges_by_code(
    host: pl.DataFrame, gpu_events: pl.DataFrame, without_calls: Intervals
) -> dict[str, pl.DataFrame]:
    """Return the ranges of each activity that is recognised by a name or by a copy's kind.

    With the operator around.
    """
    is_call = pl.col("kind").is_in(["runtime", "driver"])
    names = host["name"].unique()

    def is_named(pattern: str) -> pl.Expr:
        """Return whether a range's name matches; the pattern is tried once per distinct name."""
        return pl.col("name").is_in(names.filter(names.str.contains(pattern)).implode())

    gpu_names = gpu_events["name"].unique()
    pageable_names = gpu_names.filter(gpu_names.cast(pl.String).str.contains("(?i)pageable"))
    copies = gpu_events.select("correlation", copy="name").drop_nulls().unique("correlation")
    pageable = copies.filter(pl.col("copy").is_in(pageable_names.implode())).with_columns(
        pl.col("copy").cast(pl.String)
    )
    allocation = HOST_CALLS["allocation"]
    ranges = {
        "compile": host.filter(~is_call & is_named(COMPILATION)),
        "data_loading": host.filter(~is_call & is_named(DATA_LOADING)),
        "pageable_copy": _named_after_copies(
            host.filter(is_call & is_named(LAUNCH_PATTERN)), pageable
        ),
        "allocator": host.filter(is_call & is_named(allocation)),
        "host_sync": _synchronisations(host),
        "host_compute": _cpu_operators(host, without_calls),
    }
    for code in ("pageable_copy", "allocator"):
        ranges[code] = _with_operator(ranges[code], host)
    return ranges


def _named_after_copies(calls: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that launch *copies*, under the name of the copy, which tells its direction."""
    if copies.is_empty():
        return calls.clear()
    launching = calls.join(copies, on="correlation", maintain_order="left")
    return launching.with_columns(name="copy").drop("copy")


def _synchronisations(host: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that wait for the GPU, and the operators around them that ask for a value."""
    calls = host.filter(
        pl.col("kind").is_in(["runtime", "driver"]) & pl.col("name").str.contains(BLOCKING_PATTERN)
    )
    if calls.is_empty():
        return calls.with_columns(op=pl.lit(None, pl.String))
    asking = host.filter(
        (pl.col("kind") == "cpu_op") & pl.col("name").str.contains(SYNCHRONIZING_OPS)
    )
    asking = asking.filter(pl.Series(_contains_any(asking, calls)))
    operators = asking.with_columns(op=pl.col("name"))
    return pl.concat([_with_operator(calls, host), operators])


def _cpu_operators(host: pl.DataFrame, without_calls: Intervals) -> pl.DataFrame:
    """Return the operators that run on the CPU.

    They launch nothing, and take too long to be mere overhead or lie in a long stretch in which
    nothing is launched.
    """
    all_operators = host.filter(pl.col("kind") == "cpu_op")
    is_long = pl.col("end_ns") - pl.col("start_ns") >= MIN_CPU_OPERATOR_NS
    start = all_operators["start_ns"].to_numpy()
    end = all_operators["end_ns"].to_numpy()
    is_apart = without_calls.covered_ns(start, end) == end - start
    operators = all_operators.filter(is_long | pl.Series(is_apart, dtype=pl.Boolean))
    calls = host.filter(pl.col("kind").is_in(["runtime", "driver"]))
    return operators.filter(~pl.Series(_contains_any(operators, calls))).with_columns(
        op=pl.col("name")
    )


def _contains_any(ranges: pl.DataFrame, points: pl.DataFrame) -> Bools:
    """Return which ranges contain the start of any of *points* on their thread."""
    contains = np.zeros(len(ranges), np.bool_)
    tid = to_int64(ranges["tid"])
    start = to_int64(ranges["start_ns"])
    end = to_int64(ranges["end_ns"])
    point_tid = to_int64(points["tid"])
    point_start = points["start_ns"].to_numpy()
    for thread in np.unique(tid).tolist():
        rows = np.flatnonzero(tid == thread)
        times = np.sort(point_start[point_tid == thread])
        contains[rows] = np.searchsorted(times, start[rows]) < np.searchsorted(times, end[rows])
    return contains


def _with_operator(calls: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Return calls with the operator that each is made in: the last one that began before it, if it had not ended."""
    if calls.is_empty():
        return calls.with_columns(op=pl.lit(None, pl.String))
    operators = host.filter(pl.col("kind") == "cpu_op").select(
        "tid", "start_ns", op="name", op_end_ns="end_ns"
    )
    joined = calls.sort("start_ns").join_asof(
        operators.sort("start_ns"),
        on="start_ns",
        by="tid",
        strategy="backward",
        check_sortedness=False,
    )
    is_inside = pl.col("start_ns") < pl.col("op_end_ns")
    return joined.with_columns(op=pl.when(is_inside).then("op")).drop("op_end_ns")


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
    ahead = gpu_events.filter(lead >= MIN_LEAD_NS)["launch_ns"].drop_nulls()
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
    after: Intervals,
) -> pl.DataFrame:
    """Return ``HOST_TIME`` of one activity."""
    start = steps["interval_start_ns"].to_numpy()
    end = steps["interval_end_ns"].to_numpy()
    longest = None
    operator = None
    if len(named):
        names = named.filter(~pl.col("name").str.contains(WRAPPERS))
        longest = _longest_name(names, "name")
        operator = _longest_name(names, "op") if "op" in names.columns else None
    return pl.DataFrame(
        {
            "part": steps["part"].cast(pl.Int64),
            "code": [code] * len(steps),
            "host_ns": covered.covered_ns(start, end),
            "idle_ns": (covered & idle).covered_ns(start, end),
            "idle_after_ns": ((after & idle) - covered).covered_ns(start, end),
            "count": _count_in(_outermost_starts(named), start, end),
            "name": [longest] * len(steps),
            "op": [operator] * len(steps),
        },
        schema=HOST_TIME,
    )


def _longest_name(ranges: pl.DataFrame, column: str) -> str | None:
    """Return the name with the longest time among *ranges*.

    Operators of PyTorch before ranges around them.
    """
    by_name = (
        ranges.drop_nulls(column)
        .group_by(column)
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort(
            pl.col(column).str.starts_with("aten::"), "ns", column, descending=[True, True, False]
        )
    )
    return by_name[column][0] if len(by_name) else None


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
    names = ranges["name"].cast(pl.String).gather(rows)
    return names.set(~pl.Series(is_open), None)


def _source_lines(events: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Return the Python frames of the launching threads, in order of start.

    None if only modules were recorded.
    """
    frames = events.filter(
        (pl.col("kind") == "python") & pl.col("tid").is_in(host["tid"].unique().implode())
    )
    named = frames.select("start_ns", "end_ns", name=pl.col("name").cast(pl.String))
    return named.filter(~pl.col("name").str.starts_with("nn.Module: ")).sort("start_ns")


def _with_lines(places: pl.DataFrame, frames: pl.DataFrame) -> pl.DataFrame:
    """Return the places with the innermost frame of the program that was open in the middle of each."""
    if frames.is_empty() or places.is_empty():
        return places
    start = frames["start_ns"].to_numpy()
    end = frames["end_ns"].to_numpy()
    is_library = (
        frames["name"]
        .str.contains(r"site-packages|dist-packages|^<built-in|torch/|threading.py")
        .to_numpy()
    )
    lines: list[str | None] = []
    for place_start, place_end in places.select("start_ns", "end_ns").iter_rows():
        middle = (place_start + place_end) // 2
        is_open = np.flatnonzero((start <= middle) & (end > middle))
        own = is_open[~is_library[is_open]]
        candidates = own if len(own) else is_open
        line = None
        if len(candidates):
            innermost = int(candidates[-1])
            line = frames["name"][innermost]
        lines.append(line)
    return places.with_columns(source=pl.Series(lines, dtype=pl.String))
