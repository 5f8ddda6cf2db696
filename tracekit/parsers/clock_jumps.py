"""Jumps of a recording's clock: moments at which all times of a rank become later by the same amount.

A profiler's mark of a step ends where the next one begins, that of the last one with the recording. Where a clock jumps
within a step (it was set, or the machine was suspended), the step's mark, which has its true length, ends too early by
the jump: the next one begins that much later, work is launched between the two, and for as long as the jump nothing at
all begins, neither on the host nor on the GPU, and no call lasts as long. Later times are moved back by the jump.
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.text import short_ms
from tracekit.errors import Notice
from tracekit.parsers.steps import find_profiler_steps
from tracekit.schema import GPU_KINDS

MIN_JUMP_NS = 1_000_000
"""Time between the marks of two steps from which it may be a jump: a profiler takes less from one to the next."""
MAX_SPACING_SHARE = 0.1
"""Share of the time between two marks by which the time without events may differ from it: there is some between
any two events, and any two marks."""


class _Jump(NamedTuple):
    from_ns: int
    """Start of the first event behind the jump."""
    ns: int


def undo_clock_jumps(
    events: pl.DataFrame, memory: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, tuple[Notice, ...]]:
    """Return the events and the memory table of a rank without jumps of its clock, and a notice if there were any.

    >>> mark = {"kind": "annotation", "end_ns": 10_000_000}
    >>> launch = {"kind": "runtime", "correlation": 1}
    >>> rows = [{**mark, "name": "ProfilerStep#1", "start_ns": 0},
    ...         {**launch, "start_ns": 4_000_000, "end_ns": 4_000_001},
    ...         {**launch, "start_ns": 56_000_000, "end_ns": 56_000_001},
    ...         {"kind": "kernel", "correlation": 1, "start_ns": 57_000_000, "end_ns": 57_000_009},
    ...         {**mark, "name": "ProfilerStep#2", "start_ns": 60_000_000, "end_ns": 70_000_000}]
    >>> moved, _, (notice,) = undo_clock_jumps(pl.DataFrame(rows), pl.DataFrame(schema={"at_ns": pl.Int64}))
    >>> moved["start_ns"].to_list(), notice.values
    ([0, 4000000, 6000000, 7000000, 10000000], {'count': 1, 'jump_ns': 50000000})
    """
    jumps = _find_jumps(events)
    if not jumps:
        return events, memory, ()
    from_ns = np.array([jump.from_ns for jump in jumps])
    # What was passed of the jumps at each time: of none before the first.
    passed_ns = np.concatenate([[0], np.cumsum([jump.ns for jump in jumps])])

    def jumped_ns(times: pl.Series) -> Ints:
        passed: Ints = passed_ns[np.searchsorted(from_ns, times.to_numpy(), side="right")]
        return passed

    of_event = pl.Series(jumped_ns(events["start_ns"]))
    moved = events.with_columns(pl.col("start_ns", "end_ns") - of_event)
    of_memory = pl.Series(jumped_ns(memory["at_ns"]), dtype=pl.Int64)
    longest_ns = max(jump.ns for jump in jumps)
    times = "" if len(jumps) == 1 else f" {len(jumps)} times, once"
    message = (
        f"the clock of the recording jumped{times} by {short_ms(longest_ns)}, in which nothing began on the host or "
        "on the GPU: later times were moved back"
    )
    notice = Notice("clock-jump", message, values={"count": len(jumps), "jump_ns": longest_ns})
    return moved, memory.with_columns(pl.col("at_ns") - of_memory), (notice,)


def _find_jumps(events: pl.DataFrame) -> list[_Jump]:
    """Return the jumps of a rank's clock, in order of time."""
    marks = find_profiler_steps(events).unique("step", keep="none").sort("start_ns")
    if marks.is_empty():
        return []
    # The profiler stops at the end of the last step.
    calls = events.filter(pl.col("kind").is_in(["runtime", "driver"]))
    host_end_ns = calls["end_ns"].max()
    next_start_ns = pl.col("start_ns").shift(-1, fill_value=host_end_ns)
    gaps = marks.select(
        mark_start_ns="start_ns",
        mark_end_ns="end_ns",
        next_start_ns=next_start_ns,
        gap_ns=next_start_ns - pl.col("end_ns"),
    ).filter(pl.col("gap_ns") >= MIN_JUMP_NS)
    if gaps.is_empty():
        return []
    launched = events.filter(pl.col("kind").is_in(GPU_KINDS))["correlation"].drop_nulls()
    starts = events["start_ns"].drop_nulls().sort().to_numpy()
    jumps = []
    for mark_start_ns, mark_end_ns, next_start_ns, gap_ns in gaps.iter_rows():
        first, behind = np.searchsorted(starts, [mark_start_ns, next_start_ns])
        in_step = starts[first : behind + 1]
        longest = int(np.diff(in_step).argmax())
        since_ns = int(in_step[longest])
        until_ns = int(in_step[longest + 1])
        silence_ns = until_ns - since_ns
        is_like_gap = abs(silence_ns - gap_ns) <= MAX_SPACING_SHARE * gap_ns
        is_within_step = since_ns < mark_end_ns and until_ns < next_start_ns
        if not (is_like_gap and is_within_step):
            continue
        held_ns = pl.col("end_ns").clip(upper_bound=until_ns) - pl.col("start_ns").clip(since_ns)
        if calls.select((held_ns >= (1 - MAX_SPACING_SHARE) * silence_ns).any()).item():
            continue  # the host was held in a call
        behind_mark = calls.filter(pl.col("start_ns").is_between(mark_end_ns, next_start_ns))
        if behind_mark["correlation"].is_in(launched.implode()).any():
            jumps.append(_Jump(until_ns, min(gap_ns, silence_ns)))
    return jumps
