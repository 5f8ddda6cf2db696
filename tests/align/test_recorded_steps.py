"""Numbers of steps in recordings of collectives alone: periods and cycles at their limits."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.align import recorded_steps


@pytest.mark.parametrize(("count", "period"), [(3, 1), (2, None)])
def test_one_operation_three_times_is_a_step_of_one_operation(count, period):
    assert recorded_steps.find_period(np.full(count, 7)) == period


@pytest.mark.parametrize(("repetitions", "period"), [(3, 3), (2, None)])
def test_a_sequence_that_runs_three_times_is_a_step(repetitions, period):
    assert recorded_steps.find_period(np.array([1, 2, 3] * repetitions)) == period


@pytest.mark.parametrize(("odd_ones", "period"), [(4, 4), (5, None)])
def test_a_quarter_of_the_operations_may_differ(odd_ones, period):
    """Each odd operation differs from the one four before it and from the one four after it: 8 or 10 of 36 pairs."""
    symbols = np.array([1, 2, 3, 4] * 10)
    for i in range(odd_ones):
        symbols[5 + 5 * i] = 100 + i
    assert recorded_steps.find_period(symbols) == period


@pytest.mark.parametrize(("count", "period"), [(110, 2), (86, 10)])
def test_a_shorter_period_may_mismatch_once_more_in_five_steps(count, period):
    """Two odd operations ten apart mismatch four times at a lag of two, and twice at a lag of ten."""
    symbols = np.array([1, 2] * (count // 2))
    symbols[[count // 2, count // 2 + 10]] = 9
    assert recorded_steps.find_period(symbols) == period


@pytest.mark.parametrize(
    ("rows", "from_start", "numbers", "counted_from"),
    [
        ([(None, 0), (None, 1)], True, [0, 1], "start"),
        ([(None, 0), (None, 1)], False, [0, 1], "first recorded"),
        (
            [(None, 0), (7, 1), (8, 2), (5, 3)],
            True,
            [6, 7, 8, 9],
            "profiler",
        ),  # what most of them say
        ([(7, None), (None, 1)], True, [None, 1], "start"),
    ],
)
def test_steps_are_numbered_as_the_profiler_does_where_it_recorded_some(
    rows, from_start, numbers, counted_from
):
    table = pl.DataFrame(rows, schema={"step": pl.Int64, "number": pl.Int64}, orient="row")
    numbered, source = recorded_steps.number_members(table, from_start=from_start)
    assert (numbered["number"].to_list(), source) == (numbers, counted_from)


@pytest.mark.parametrize(("period", "is_found"), [(1_300, True), (1_400, False)])
def test_a_step_is_looked_for_in_the_last_4096_operations(period, is_found):
    """Three steps of 1,300 operations are among them, of 1,400 not."""
    symbols = np.tile(np.arange(period), 6)
    cycles = recorded_steps.find_cycles(symbols, np.arange(len(symbols)))
    assert cycles.period == (period if is_found else 0)
