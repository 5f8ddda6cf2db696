"""Thresholds of matching, clocks and waits, each on both sides."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.align import recorded_steps, snapshot_clock, waits
from tracekit.align.clock_bounds import Compared
from tracekit.align.matching import MEMBERS
from tracekit.align.sequences import Sequences
from tracekit.schema import conform


@pytest.mark.parametrize(("members", "pairs"), [(8, 28), (9, 15)])
def test_all_of_up_to_eight_members_are_compared_with_each_other(members, pairs):
    """Eight make 8 × 7 / 2 pairs. Of nine, eight are compared with the lowest, and seven with the next lower."""
    match = pl.DataFrame({"match": 0, "rank": range(members), "what": "all_reduce"})
    low, high = Compared.of(conform(match, MEMBERS)).pairs()
    assert len(low) == len(high) == pairs


@pytest.mark.parametrize(("ranks", "references"), [(9, 8), (10, 8), (8, 7)])
def test_a_sequence_is_compared_with_eight_others(ranks, references):
    """All have one operation, so that each is as long as the longest."""
    first = np.arange(ranks)
    ones = np.ones(ranks, np.int64)
    sequences = Sequences(first, first, ones, np.zeros(ranks, np.int64), ones)
    assert sequences.references(0, []) == list(range(1, references + 1))


@pytest.mark.parametrize(("period", "is_found"), [(1_300, True), (1_400, False)])
def test_a_step_is_looked_for_in_the_last_4096_operations(period, is_found):
    """Three steps of 1,300 operations are among them, of 1,400 not."""
    symbols = np.tile(np.arange(period), 6)
    cycles = recorded_steps.find_cycles(symbols, np.arange(len(symbols)))
    assert cycles.period == (period if is_found else 0)


@pytest.mark.parametrize(("certain_ns", "is_bound"), [(51, False), (49, True)])
def test_half_of_a_labels_waiting_must_be_longer_than_clocks_are_off(certain_ns, is_bound):
    """The second wait is shorter than its clocks are off: only the first is certain."""
    wait_ns = np.array([certain_ns, 100 - certain_ns])
    uncertainty_ns = np.array([10, 100])
    nothing = np.zeros(2, np.int64)
    bound = waits.is_uncertain_wait(pl.Series(["dp_comm"] * 2), wait_ns, uncertainty_ns, nothing)
    assert bound.tolist() == [is_bound] * 2


@pytest.mark.parametrize(("error_ns", "is_bound"), [(5, False), (6, True)])
def test_clocks_that_were_set_may_change_a_twentieth_of_the_waiting(error_ns, is_bound):
    bound = waits.is_uncertain_wait(
        pl.Series(["dp_comm"]), np.array([100]), np.array([10]), np.array([error_ns])
    )
    assert bound.tolist() == [is_bound]


@pytest.mark.parametrize(("arrived_at", "is_awaited"), [(2, True), (1, False)])
def test_a_root_is_at_most_eight_operations_ahead(arrived_at, is_awaited):
    """Rank 1 comes to one broadcast while the root is in the tenth, and to the later ones after it.

    The third broadcast is the eighth back from the tenth, which counts; the second is the ninth.
    """
    rows = []
    for n in range(10):
        rows.append({"match": n, "rank": 0, "start_ns": 10 * n, "end_ns": 10 * n + 5})
        start_ns = 1_000 + n
        if n <= arrived_at:
            start_ns = 92 if n == arrived_at else 1
        rows.append({"match": n, "rank": 1, "start_ns": start_ns, "end_ns": start_ns + 2})
    table = pl.DataFrame(rows).with_columns(what=pl.lit("broadcast"), group=pl.lit("0"))
    members = conform(table, MEMBERS)
    last = waits.last_awaited(members, members["start_ns"].to_numpy())
    root_in_tenth = 18
    rank_1_at_broadcast = 2 * arrived_at + 1
    assert last[root_in_tenth] == (rank_1_at_broadcast if is_awaited else root_in_tenth)


def agreed_offset(offsets_ns):
    """The offset that pairs of different rows agree on."""
    rows = {"row": range(len(offsets_ns)), "at_ns": 0, "offset_ns": offsets_ns}
    pairs = pl.DataFrame(rows, schema_overrides=snapshot_clock.PAIRS)
    return snapshot_clock.find_agreed_offset(pairs, span=(-(10**9), 10**9))


@pytest.mark.parametrize(("apart_ns", "offset_ns"), [(20_000, 10_000), (20_002, 1_000_000)])
def test_offsets_within_twenty_microseconds_are_counted_together(apart_ns, offset_ns):
    """Of two groups of two, the first counts unless its two lie too far apart."""
    agreed = agreed_offset([0, apart_ns, 1_000_000, 1_000_000])
    assert agreed is not None
    assert agreed[0] == offset_ns


@pytest.mark.parametrize(("deviation_ns", "agreeing"), [(200_000, 4), (200_001, 3)])
def test_a_pair_agrees_up_to_two_hundred_microseconds(deviation_ns, agreeing):
    agreed = agreed_offset([0, 0, 0, deviation_ns])
    assert agreed is not None
    assert agreed[2] == agreeing


@pytest.mark.parametrize(("agreeing", "is_believed"), [(5, True), (4, False)])
def test_half_of_the_rows_must_agree_on_an_offset(agreeing, is_believed):
    others = [1_000_000 * n for n in range(1, 11 - agreeing)]
    assert (agreed_offset([0] * agreeing + others) is not None) is is_believed


def fitted_offset(times_ns, start_ns):
    """The offset of allocations at these times beside operators that begin, and end, at *start_ns*."""
    placed = pl.DataFrame({"action": "alloc", "at_ns": times_ns})
    operators = pl.DataFrame({"start_ns": start_ns, "end_ns": start_ns})
    return snapshot_clock.fit_to_operators(placed, operators, 0, min_share=0.2)


@pytest.mark.parametrize(("count", "is_refused"), [(19, False), (20, True)])
def test_twenty_allocations_outside_operators_refuse_a_snapshot(count, is_refused):
    times_ns = [1_000_000 * n for n in range(count)]
    far_off_ns = [1_000_000 * n + 500_000 for n in range(count)]
    assert (fitted_offset(times_ns, far_off_ns) is None) is is_refused


def test_an_offset_is_moved_in_steps_of_two_microseconds():
    times_ns = [1_000_000 * n for n in range(20)]
    later_ns = [at_ns + 2_000 for at_ns in times_ns]
    assert fitted_offset(times_ns, later_ns) == 2_000
    between_ns = [at_ns + 1_000 for at_ns in times_ns]
    assert fitted_offset(times_ns, between_ns) is None
