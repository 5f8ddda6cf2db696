"""Small cases of clocks, periods and pairs, each counted by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.align import recorded_steps
from tracekit.align.clocks import CLOCKS, Clocks
from tracekit.align.pairing import OperationSequence, likely_offset
from tracekit.schema import conform


def test_the_only_pair_of_ranks_that_was_compared_counts():
    """By way of rank 0 the two would be 50 + 80 apart."""
    table = pl.DataFrame({"rank": [0, 1, 2], "offset_ns": 0, "uncertainty_ns": [0, 50, 80]})
    clocks = Clocks(conform(table, CLOCKS), pair_uncertainty_ns={(1, 2): 30})
    assert clocks.uncertainty_between(np.array([2]), np.array([1])).tolist() == [30]


@pytest.mark.parametrize(("count", "period"), [(3, 1), (2, None)])
def test_one_operation_three_times_is_a_step_of_one_operation(count, period):
    assert recorded_steps.find_period(np.full(count, 7)) == period


def sequence(*ends):
    times = dict.fromkeys(("start", "end", "latest_end"), np.array(ends))
    same = np.ones(len(ends), np.int64)
    return OperationSequence(
        **times, size=same, others=same, has_own_kernel=same > 0, uncertainty_ns=1_000
    )


@pytest.mark.parametrize(("apart_ns", "offset_ns"), [(10, 110), (11, 100)])
def test_ends_agree_within_a_quarter_of_the_usual_interval(apart_ns, offset_ns):
    """Every 40 ns an operation ends: offsets of 100 and 110 are one, and it is nearer to most than 300."""
    other = sequence(0, 40, 80)
    own = sequence(100, 140 + apart_ns, 380)
    partner = np.arange(3)[:, None]
    assert likely_offset(own, other, partner, np.ones((3, 1), np.bool_)) == offset_ns
