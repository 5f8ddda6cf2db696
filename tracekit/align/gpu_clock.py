"""Clock of a rank's GPU against that of its host.

A profiler records the host's calls by the host's clock and GPU work by the GPU's, which it converts. Where
that is off, work seems to start before it was launched, or to end after the host had waited for its end. Each
launch and each wait bounds what has to be added to the GPU's times:

- work starts after its launch call begins: at least launch − start;
- work has ended when a call that waits for it returns: at most return − end.

The smallest shift within all bounds is taken; where none lies within them, a shift that changes steadily with
time (the clock drifts). Where that does not explain the times either, they are left as they are, and what rests
on launches is withheld (``is_clock_unexplained``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Floats, Ints, as_int64
from tracekit.errors import Notice, NoticeValues
from tracekit.schema import GPU_KINDS, RankEvents, Source

MIN_IMPOSSIBLE_NS = 1_000
"""Time by which work starts before its launch from which that is impossible: times may be rounded to microseconds."""
MIN_LATE_NS = 10_000
"""Time by which work ends after the host has waited for it, from which the GPU's clock is late: some profilers
record the end of work, or the return of a wait, off by microseconds."""
MAX_UNUSABLE_SHARE = 0.01
"""Share of the launches, and of the waits, that may contradict the others."""
MAX_UNCONFIRMED_SHIFT_NS = 1_000_000
"""Longest shift that a single launch can ask for; longer ones are confirmed by another launch."""
CONFIRMING_NS = 100_000
"""Time within which the shifts that two launches ask for confirm each other: work waits longer for other reasons."""
FLOOR_NS = 5_000
"""Time within which launches on an idle GPU start their work alike."""
LAUNCH_LATENCY_NS = 4_000
"""Time from a launch call to the start of its work on an idle GPU, at least, on the GPUs of recordings that were looked
at (V100 to B300, MI210 to MI300X: 4.2 to 35 us)."""
MIN_FLOOR_LAUNCHES = 3
MIN_FLOOR_SHARE = 0.002
MIN_FLOOR_SPAN = 0.25
"""Share of the recording over which such launches must spread to tell a drift."""
"""Launches, and their share, that start their work within ``FLOOR_NS`` of the fastest if that is as fast as a launch
can be: a launch behind other work waits for as long as that takes."""
MAX_GPU_CLOCK_DRIFT = 0.05
"""Largest change of the shift per time."""
DRIFT_SEARCH_STEPS = 80
"""Halvings of the range of drifts: enough for nanoseconds over an hour."""
WITHHOLDING_CASES = ("unexplained", "drift_unknown")
"""Cases of the notice in which what rests on launches is withheld."""
_MOVED_KINDS = (*GPU_KINDS, "gpu_annotation")
_WAITS_FOR_ALL = "(Device|Ctx)Synchronize"
_WAITS_FOR_STREAM = "StreamSynchronize"


class _Bounds(NamedTuple):
    """Bounds of what has to be added to a GPU's times: at some of its times, at least or at most so many ns."""

    time_ns: Ints
    shift_ns: Ints

    def take(self, rows: Bools) -> _Bounds:
        return _Bounds(self.time_ns[rows], self.shift_ns[rows])


class _Correction(NamedTuple):
    """What is added to a GPU's times: ``shift_ns`` at ``since_ns``, and ``drift`` more for each ns after it."""

    shift_ns: float
    drift: float
    since_ns: int
    is_certain: bool = True
    """False if the bounds leave open how fast the clock drifts."""

    def at(self, time_ns: Ints) -> Ints:
        return as_int64(np.rint(self.shift_ns + self.drift * (time_ns - self.since_ns)))


def align_gpu_clock(rank: RankEvents) -> RankEvents:
    """Return a rank with the times of its GPU work moved to where launches and waits allow them to be.

    A notice of its source says by how much, or that no shift explains them.

    >>> from tracekit.schema import EVENTS, conform
    >>> launch = {"kind": "runtime", "name": "cudaLaunchKernel", "start_ns": 90_000, "end_ns": 92_000, "correlation": 1}
    >>> kernel = {"kind": "kernel", "name": "k", "start_ns": 50_000, "end_ns": 60_000, "correlation": 1}
    >>> events = conform(pl.DataFrame([launch, kernel]), EVENTS)
    >>> aligned = align_gpu_clock(RankEvents(events, Source("a.json", "kineto", 0, "name")))
    >>> aligned.events["start_ns"].to_list(), aligned.source.notices[0].values["impossible"]
    ([90000, 90000], 1)
    """
    events = rank.events
    calls = events.select("kind", "name", "tid", "correlation", "start_ns", "end_ns").filter(
        pl.col("kind").is_in(["runtime", "driver"])
    )
    launches = (
        calls.drop_nulls("correlation")
        .group_by("correlation")
        .agg(
            launch_ns=pl.col("start_ns").min(),
            return_ns=pl.col("end_ns").max(),
            launch_tid=pl.col("tid").first(),
        )
    )
    gpu = events.select("kind", "device", "stream", "correlation", "start_ns", "end_ns").filter(
        pl.col("kind").is_in(GPU_KINDS)
    )
    work = gpu.join(launches, on="correlation", maintain_order="left")
    notices: list[Notice] = []
    moves: dict[int | None, _Correction] = {}
    for (device,), of_device in work.partition_by("device", as_dict=True).items():
        earliest = _bounds_of_launches(of_device)
        latest = _bounds_of_waits(of_device, calls)
        impossible = int((earliest.shift_ns >= MIN_IMPOSSIBLE_NS).sum())
        late = int((latest.shift_ns <= -MIN_LATE_NS).sum())
        if not impossible and not late:
            continue
        correction = _find_correction(earliest, latest)
        contradiction = _contradiction(impossible, late, total=len(of_device))
        values: NoticeValues = {"impossible": impossible, "late": late, "total": len(of_device)}
        if correction is None:
            message = (
                f"savings and the step without the profiler are withheld: {contradiction}, which no shift of the "
                "GPU's clock explains; what work waited for is not known either"
            )
            notices.append(Notice("gpu-clock", message, values={"case": "unexplained", **values}))
            continue
        moves[device] = correction
        moved_ns = correction.at(of_device["start_ns"].to_numpy())
        shift_ns = int(moved_ns[np.abs(moved_ns).argmax()])
        shift = f"{shift_ns / 1000:+,.0f} µs"
        cases = [  # the first that holds decides
            (
                not correction.is_certain,
                "drift_unknown",
                "savings and the step without the profiler are withheld (the GPU's clock drifts): "
                f"{contradiction}; how fast it drifts is not known, its times were moved by the least that makes "
                f"every launch and wait possible, up to {shift}",
            ),
            (
                bool(correction.drift),
                "drifts",
                f"the GPU's times were moved by up to {shift} (its clock drifts): {contradiction}; "
                f"{abs(correction.drift):.2%} of the time that passed make every launch and wait possible",
            ),
            (
                bool(shift_ns),
                "moved",
                f"the GPU's times were moved by {shift} (its clock is off): {contradiction}; it is the least that "
                "makes every launch and wait possible",
            ),
            (
                True,
                "few",
                f"{contradiction}: too few to be the GPU's clock, so that their times were left as they are",
            ),
        ]
        case, message = next((case, message) for holds, case, message in cases if holds)
        values |= {"case": case, "shift_ns": shift_ns, "drift": correction.drift}
        notices.append(Notice("gpu-clock", message, values=values))
    if not notices:
        return rank
    source = msgspec.structs.replace(rank.source, notices=(*rank.source.notices, *notices))
    return replace(rank, events=_moved(events, moves), source=source)


def _contradiction(impossible: int, late: int, *, total: int) -> str:
    """Return in which ways the GPU's times contradict those of the host."""
    parts = []
    if impossible:
        parts.append(f"{impossible:,} of {total:,} GPU events start before their launch")
    if late:
        parts.append(f"the host waited {late:,} times for GPU work that seems to end later")
    return " and ".join(parts)


def is_clock_unexplained(source: Source) -> bool:
    """Return whether GPU work starts before its launch and it is not known by how much the clock is off."""
    return any(
        notice.code == "gpu-clock" and notice.values["case"] in WITHHOLDING_CASES
        for notice in source.notices
    )


def _bounds_of_launches(work: pl.DataFrame) -> _Bounds:
    """Return the least shift that each launch asks for: of a graph's nodes, the first counts."""
    first = work.group_by("correlation").agg(pl.col("launch_ns").first(), pl.col("start_ns").min())
    start_ns = first["start_ns"].to_numpy()
    return _Bounds(start_ns, first["launch_ns"].to_numpy() - start_ns)


def _bounds_of_waits(work: pl.DataFrame, calls: pl.DataFrame) -> _Bounds:
    """Return the largest shift that each call allows in which the host waits for work.

    A device is waited for with all that was launched on it before, a stream with the last that the thread launched
    before: of several streams it may be another, unless that was a copy, for whose result the host waits.
    """
    name = calls["name"].cast(pl.String)
    launched = work.select(
        pl.col("return_ns").alias("time_ns"),
        "end_ns",
        "kind",
        tid="launch_tid",
    ).sort("time_ns")
    waits = calls.select(
        "tid", time_ns="start_ns", return_ns="end_ns", all=name.str.contains(_WAITS_FOR_ALL)
    ).filter(name.str.contains(f"{_WAITS_FOR_ALL}|{_WAITS_FOR_STREAM}"))
    waits = waits.sort("time_ns")
    for_all = waits.filter("all").join_asof(
        launched.select("time_ns", pl.col("end_ns").cum_max()), on="time_ns"
    )
    has_one_stream = work["stream"].n_unique() == 1
    for_stream = (
        waits.filter(~pl.col("all"))
        .join_asof(launched, on="time_ns", by="tid", check_sortedness=False)
        .filter((pl.col("kind") == "memcpy") | has_one_stream)
    )
    bounds = pl.concat(
        [table.select("end_ns", "return_ns") for table in (for_all, for_stream)]
    ).drop_nulls()
    end_ns = bounds["end_ns"].to_numpy()
    return _Bounds(end_ns, bounds["return_ns"].to_numpy() - end_ns)


def _find_correction(earliest: _Bounds, latest: _Bounds) -> _Correction | None:
    """Return the correction within the bounds, or within nearly all of them; None if there is none.

    Args:
        earliest: Least shifts, by launches.
        latest: Largest shifts, by waits.
    """
    launches = len(earliest.shift_ns)
    droppable = int(launches * MAX_UNUSABLE_SHARE)
    tries = [(earliest, latest)]
    if droppable:
        limit = np.partition(earliest.shift_ns, launches - droppable - 1)[launches - droppable - 1]
        tries.append((earliest.take(earliest.shift_ns <= limit), latest))
    for least, most in tries:
        if not _is_confirmed(least):
            continue
        correction = _constant_within(least, most) or _line_within(least, most)
        if correction is not None:
            return correction
    return None


def _is_confirmed(least: _Bounds) -> bool:
    """Return whether the longest shift asked for is short, or asked for by another launch, too."""
    if not len(least.shift_ns):
        return True
    longest_ns = least.shift_ns.max()
    is_like_longest = least.shift_ns >= longest_ns - CONFIRMING_NS
    return bool(longest_ns <= MAX_UNCONFIRMED_SHIFT_NS or is_like_longest.sum() > 1)


def _constant_within(least: _Bounds, most: _Bounds) -> _Correction | None:
    """Return the smallest shift within the bounds; None if there is none.

    A clock that is off is moved to where its fastest launches take as long as a launch does, if there are enough that
    are as fast: the host returns from a wait much later than the work ends if it does something else in that call.
    """
    low_ns = int(least.shift_ns.max(initial=np.iinfo(np.int64).min // 4))
    high_ns = int(most.shift_ns.min(initial=np.iinfo(np.int64).max // 4))
    if low_ns > high_ns + MIN_IMPOSSIBLE_NS + MIN_LATE_NS:
        return None
    is_off = low_ns >= MIN_IMPOSSIBLE_NS or high_ns <= -MIN_LATE_NS
    if is_off and _has_floor(least.shift_ns):
        return _Correction(_behind_launches(low_ns, high_ns), 0.0, 0)
    return _Correction(float(max(low_ns, min(0, high_ns))), 0.0, 0)


def _behind_launches(low_ns: float, high_ns: float) -> float:
    """Return the shift with which the fastest launches take as long as a launch at least does, if waits allow it."""
    return float(max(low_ns, min(low_ns + LAUNCH_LATENCY_NS, high_ns)))


def _has_floor(least_ns: Ints | Floats) -> bool:
    """Return whether the launches that ask for the largest shift are as fast as a launch can be."""
    at_floor = int((least_ns >= least_ns.max() - FLOOR_NS).sum()) if len(least_ns) else 0
    return at_floor >= max(MIN_FLOOR_LAUNCHES, MIN_FLOOR_SHARE * len(least_ns))


def _line_within(least: _Bounds, most: _Bounds) -> _Correction | None:
    """Return a shift that changes steadily and is within the bounds; None if there is none.

    It is the line on which the fastest launches are just possible, and all others are as near to it as can be. Where
    that contradicts a wait, or these launches are not as fast as a launch can be, it is the line of the least drift.
    """
    if not len(least.time_ns) or not len(most.time_ns):
        return None
    since_ns = int(min(least.time_ns.min(), most.time_ns.min()))
    least_after_ns = (least.time_ns - since_ns).astype(np.float64)
    most_after_ns = (most.time_ns - since_ns).astype(np.float64)
    mean_after_ns = float(least_after_ns.mean())

    def lower(drift: float) -> Floats:
        return least.shift_ns - drift * least_after_ns

    def upper(drift: float) -> Floats:
        return most.shift_ns - drift * most_after_ns

    # The distance of the launches from the line shrinks as the drift grows as long as the launch on it lies behind
    # their mean.
    drift = _halve(lambda drift: least_after_ns[lower(drift).argmax()] > mean_after_ns)
    tolerance_ns = MIN_IMPOSSIBLE_NS + MIN_LATE_NS
    on_line = lower(drift)
    high_ns = float(upper(drift).min())
    at_floor = least_after_ns[on_line >= on_line.max() - FLOOR_NS]
    is_spread = np.ptp(at_floor) >= MIN_FLOOR_SPAN * np.ptp(least_after_ns)
    if on_line.max() <= high_ns + tolerance_ns and _has_floor(on_line) and is_spread:
        return _Correction(_behind_launches(float(on_line.max()), high_ns), drift, since_ns)
    # The room between the bounds grows with the drift as long as the launch that bounds it lies behind the wait.
    drift = _halve(
        lambda drift: least_after_ns[lower(drift).argmax()] > most_after_ns[upper(drift).argmin()]
    )
    if lower(drift).max() > upper(drift).min() + tolerance_ns:
        return None
    most_room = drift
    drift = _halve(
        lambda share: lower(share * most_room).max() > upper(share * most_room).min(), 0.0, 1.0
    )
    drift *= most_room
    return _Correction(float(lower(drift).max()), drift, since_ns, is_certain=False)


def _halve(
    should_grow: Callable[[float], bool],
    low: float = -MAX_GPU_CLOCK_DRIFT,
    high: float = MAX_GPU_CLOCK_DRIFT,
) -> float:
    """Return the value from *low* to *high* up to which *should_grow* holds."""
    for _ in range(DRIFT_SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if should_grow(middle) else (low, middle)
    return high


def _moved(events: pl.DataFrame, moves: dict[int | None, _Correction]) -> pl.DataFrame:
    """Return the events with the GPU's times corrected, by device."""
    start_ns = events["start_ns"].to_numpy().copy()
    end_ns = events["end_ns"].to_numpy().copy()
    on_gpu = events["kind"].is_in(_MOVED_KINDS)
    for device, correction in moves.items():
        rows = np.flatnonzero((on_gpu & events["device"].eq_missing(device)).to_numpy())
        for time_ns in (start_ns, end_ns):
            time_ns[rows] += correction.at(time_ns[rows])
    return events.with_columns(start_ns=pl.Series(start_ns), end_ns=pl.Series(end_ns))
