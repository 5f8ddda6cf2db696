"""Steps of a whole run from the sequence of its operations, which repeats.

Recorders have no marks of steps. The sequence of operations (kind, size and group) of each rank
repeats from step to step: its period is found, and a step begins where the pause before an
operation is longest. What comes before the first repetition is warm-up: it belongs to no step, and
the steps after it are counted from 1. Steps of ranks are numbered alike through the operations that
they share, and as the profiler numbers them where it recorded some.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints

MIN_REPETITIONS = 3
"""Times that a sequence must run for its length to be taken as that of a step."""
MAX_EXTRA_MISMATCHES_PER_PERIOD = 0.2
"""Mismatches per repetition that a shorter period may have more than the best one.

A period within a step (the layers of a model) mismatches at least once per step."""
MAX_MISMATCH_SHARE = 0.25
"""Share of operations that may differ from those one period earlier: beyond it, nothing repeats."""
MAX_OPS_TO_COMPARE = 4_096
"""Operations, the latest, from which the period of a rank is found."""

StepNumbers = Literal["start", "first recorded", "profiler"]
"""What steps are counted from: the start of the run, the first step that is still recorded, or as
the profiler does."""


class RecordedSteps(msgspec.Struct, frozen=True):
    """Steps of a run."""

    count: int
    """Steps that repeat."""
    has_warm_up: bool
    """Whether operations came before the first step that repeats."""
    ops_per_step: int | None
    """Operations in a step of the rank with most of them; None if nothing repeats."""
    numbered_from: StepNumbers


def find_steps(members: pl.DataFrame, *, from_start: bool) -> tuple[pl.DataFrame, RecordedSteps]:
    """Return the members with ``step`` and ``place`` (position in the step, from 0), and what the steps are.

    Both are null where nothing repeats, and ``step`` in warm-up. ``step`` is the same for all
    members of an operation.

    Args:
        members: Operations (``recorded_ops.RECORDED_MEMBERS``).
        from_start: Whether the record begins with the run's first operation.

    """
    ordered = members.sort("rank", "order_ns", "op_id")
    cycles_of_ranks: list[_Cycles] = []
    cycles_by_symbols: dict[bytes, _Cycles] = {}  # most ranks run the same operations
    for _, rows in ordered.group_by("rank", maintain_order=True):
        symbols = _symbols(rows)
        key = symbols.tobytes()
        if key not in cycles_by_symbols:
            order_ns = rows["order_ns"].fill_null(0).to_numpy()
            cycles_by_symbols[key] = find_cycles(symbols, order_ns)
        cycles_of_ranks.append(cycles_by_symbols[key])
    longest_period = max((cycles.period for cycles in cycles_of_ranks), default=0)
    if not longest_period:
        nothing = members.with_columns(place=pl.lit(None, pl.Int64), step=pl.lit(None, pl.Int64))
        return nothing, RecordedSteps(0, False, None, "first recorded")
    cycle = np.concatenate([cycles.cycle for cycles in cycles_of_ranks])
    position = np.concatenate([cycles.position for cycles in cycles_of_ranks])
    table = ordered.with_columns(
        cycle=pl.Series(cycle, dtype=pl.Int64).replace(_IN_NO_CYCLE, None),
        place=pl.Series(position, dtype=pl.Int64).replace(_IN_NO_CYCLE, None),
    )
    shifts = _shifts(table)
    aligned = table.join(shifts, on="rank", how="left", maintain_order="left")
    step_of_op = (
        aligned.with_columns(number=pl.col("cycle") + pl.col("shift"))
        .drop_nulls("number")
        .group_by("op_id")
        .agg(number=pl.col("number").mode().min(), place=pl.col("place").mode().min())
    )
    numbered = members.join(step_of_op, on="op_id", how="left", maintain_order="left")
    # A whole cycle has the number 0 or more on the rank that others are numbered by: what is before
    # it is warm-up.
    has_warm_up = bool((numbered["number"] < 0).any())
    first: Any = 0 if has_warm_up else numbered["number"].min()
    numbered = numbered.with_columns(
        number=pl.when(pl.col("number") >= 0).then(pl.col("number") - first + int(has_warm_up))
    )
    numbers, numbered_from = number_members(numbered, from_start=from_start)
    count = numbers["number"].drop_nulls().n_unique()
    steps = RecordedSteps(count, has_warm_up, longest_period, numbered_from)
    return numbers.with_columns(step=pl.col("number")).drop("number"), steps


_IN_NO_CYCLE = int(np.iinfo(np.int64).min)


class _Cycles(msgspec.Struct, frozen=True, eq=False):
    """Repetitions of one rank's operations."""

    cycle: Ints
    """Repetition of each operation, from 0; -1 before the first, ``_IN_NO_CYCLE`` if nothing repeats."""
    position: Ints
    """Position of each operation in its repetition, from 0; ``_IN_NO_CYCLE`` if it is in none."""
    period: int
    """Operations of a repetition; 0 if nothing repeats."""


def _symbols(rows: pl.DataFrame) -> Ints:
    """Return a number for each operation of a rank: alike where group, kind and size are.

    Sizes of all-to-alls follow the tokens, which change from step to step.
    """
    size = pl.when(pl.col("op") != "all_to_all").then(pl.col("bytes"))
    return (
        rows.select(pl.struct("group", "op", size.alias("size")).rank("dense"))
        .to_series()
        .to_numpy()
        .astype(np.int64)
    )


def find_cycles(symbols: Ints, order_ns: Ints) -> _Cycles:
    """Return the cycle of each operation and its position in it.

    What comes before the first whole cycle has cycle -1, and what comes between two belongs to the
    one before it.
    """
    period = find_period(symbols[-MAX_OPS_TO_COMPARE:])
    if period is None:
        unknown = np.full(len(symbols), _IN_NO_CYCLE)
        return _Cycles(cycle=unknown, position=unknown, period=0)
    pattern, first = _find_pattern(symbols, order_ns, period)
    cycle = np.full(len(symbols), -1)
    position = np.full(len(symbols), _IN_NO_CYCLE)
    number = -1
    row = first
    while row < len(symbols):
        block = symbols[row : row + period]
        if np.array_equal(block, pattern[: len(block)]):  # the last one may not have ended
            number += 1
            cycle[row : row + period] = number
            position[row : row + period] = np.arange(len(block))
            row += len(block)
        else:
            cycle[row] = number
            row += 1
    return _Cycles(cycle, position, period)


def find_period(symbols: Ints) -> int | None:
    """Return the length after which the sequence repeats; None if it does not."""
    count = len(symbols)
    longest = count // MIN_REPETITIONS
    if longest < 1:
        return None
    # Share of operations that differ from the one *period* before, for each possible period.
    periods = np.arange(1, longest + 1)
    rates = np.array([np.mean(symbols[period:] != symbols[:-period]) for period in periods])
    best = int(np.argmin(rates))
    if rates[best] > MAX_MISMATCH_SHARE:
        return None
    allowed = rates[best] + MAX_EXTRA_MISMATCHES_PER_PERIOD / periods[best]
    shortest = int(np.argmax(rates <= allowed))  # the first one that is allowed
    return int(periods[shortest])


def _find_pattern(symbols: Ints, order_ns: Ints, period: int) -> tuple[Ints, int]:
    """Return the operations of a step, from the one with the longest usual pause before it, and where the first begins.

    Of the places in the sequence where the next *period* operations run again, those alike in
    position are compared.
    """
    # Row r of ``window`` is the *period* operations from operation r on.
    window = np.lib.stride_tricks.sliding_window_view(symbols, period)
    repeats = np.all(window[:-period] == window[period:], axis=1)
    starts = np.flatnonzero(repeats)
    if not len(starts):
        starts = np.array([max(0, len(symbols) - period)])
    first_regular = int(starts[0])
    phases = (starts - first_regular) % period
    pauses = np.diff(order_ns, prepend=order_ns[0])
    usual_pause = np.full(period, -1.0)
    for phase in range(period):
        # The pause before the very first operation is not known.
        starts_of_phase = starts[(phases == phase) & (starts > 0)]
        if len(starts_of_phase):
            usual_pause[phase] = np.median(pauses[starts_of_phase])
    phase = int(np.argmax(usual_pause))
    begin = int(starts[phases == phase][0])
    pattern = symbols[begin : begin + period]
    matches = np.flatnonzero(np.all(window == pattern, axis=1))
    return pattern, int(matches[0])


def _shifts(table: pl.DataFrame) -> pl.DataFrame:
    """Return what to add to each rank's cycles so that operations have one number on all their members."""
    counts = (
        table.drop_nulls("cycle")
        .group_by("rank")
        .len()
        .sort(["len", "rank"], descending=[True, False])
    )
    rows = table.select("op_id", "rank", "cycle").drop_nulls()
    shifts = pl.DataFrame({"rank": counts["rank"][:1], "shift": pl.Series([0], dtype=pl.Int64)})
    while shifts.height < counts.height:
        numbers = (
            rows.join(shifts, on="rank")
            .group_by("op_id")
            .agg(number=(pl.col("cycle") + pl.col("shift")).mode().min())
        )
        shared = rows.join(shifts, on="rank", how="anti").join(numbers, on="op_id")
        added = shared.group_by("rank").agg(shift=(pl.col("number") - pl.col("cycle")).mode().min())
        if added.is_empty():
            # The remaining ranks share no operation with these: their own count is all there is.
            rest = counts.join(shifts, on="rank", how="anti").select(
                "rank", shift=pl.lit(0, pl.Int64)
            )
            return pl.concat([shifts, rest])
        shifts = pl.concat([shifts, added])
    return shifts


def number_members(numbered: pl.DataFrame, *, from_start: bool) -> tuple[pl.DataFrame, StepNumbers]:
    """Return the members with the numbers of steps, and what they are counted from.

    Where the profiler recorded some of the steps, all are numbered as it numbers them.
    """
    profiled = numbered.drop_nulls(["step", "number"])
    if not profiled.is_empty():
        difference: Any = (profiled["step"] - profiled["number"]).mode().min()
        return numbered.with_columns(number=pl.col("number") + difference), "profiler"
    return numbered, "start" if from_start else "first recorded"
