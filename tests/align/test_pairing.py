"""Pairing of operations that some ranks lack."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tracekit.align.pairing import (
    OperationSequence,
    certain_partners,
    costs_with_references,
    likely_offset,
    pair_with_references,
    time_costs,
)

ENDS = np.array([10, 30, 40, 70, 150, 190, 200, 290, 340, 345, 400, 480])


def sequence(first, count):
    ends = ENDS[first : first + count]
    ones = np.ones(count, np.int64)
    times = {"start": ends - 5, "end": ends, "latest_end": ends}
    return OperationSequence(**times, size=ones, others=ones, has_own_kernel=ones > 0)


@pytest.mark.parametrize(("lacking", "paired"), [(1, True), (2, True), (3, False)])
def test_sequences_of_equal_length_may_lack_two_operations_each(lacking, paired):
    """One rank lacks the first operations, the other as many of the last: operation i is number i + lacking there."""
    partners = pair_with_references(sequence(lacking, 9), [sequence(0, 9)])
    assert (partners[:4].tolist() == [lacking + i for i in range(4)]) == paired


def one_operation(*costs):
    """Return the partner of one operation whose pairs with the operations of another rank have these *costs*."""
    shifts = np.arange(len(costs))
    return certain_partners(np.array([costs], float), shifts, len(costs)).tolist()


@pytest.mark.parametrize(("dearer", "partner"), [(0.9, -1), (1.1, 0)])
def test_a_partner_is_certain_if_every_other_costs_more_by_one(dearer, partner):
    assert one_operation(0.0, dearer) == [partner]


@pytest.mark.parametrize(("cost", "partner"), [(20.9, 0), (21.1, -1)])
def test_an_operation_stays_alone_if_a_pair_costs_more_than_leaving_out_both_sides(cost, partner):
    """Ten for each side, and one more, because they are in order."""
    costs = np.array([[np.inf, cost, np.inf]])
    assert certain_partners(costs, np.arange(-1, 2), 1).tolist() == [partner]


@pytest.mark.parametrize(("shifts", "partners"), [(64, [5, 8]), (65, [5, 6])])
def test_with_more_than_64_shifts_all_operations_have_the_same(shifts, partners):
    """The first fits at a distance of five, the second at one of seven, and hardly worse at one of five."""
    cost = np.full((2, shifts), 9.0)
    cost[0, 5] = 0.0
    cost[1, 7] = 0.0
    cost[1, 5] = 5.0
    assert certain_partners(cost, np.arange(shifts), shifts + 1).tolist() == partners


def cost_of_pair(own, other):
    return float(costs_with_references(own, [other], np.array([[0]]), np.array([[True]]))[0, 0])


def test_what_a_pair_costs():
    """Times that fit cost nothing; another size, or another place in the program, as much as two times 22,000 apart."""
    same = sequence(0, 1)
    assert cost_of_pair(same, same) == 0.0
    assert cost_of_pair(same, replace(same, size=np.array([2]))) == 10.0
    assert cost_of_pair(same, replace(same, others=np.array([2]))) == 10.0


def test_a_pair_that_ends_before_it_begins_costs_forty():
    own = sequence(0, 1)
    # It begins 30 µs after the other one has ended, and its end is not known.
    later = replace(own, start=own.end + 30_000, end=own.end, latest_end=own.end + 99_000)
    assert cost_of_pair(own, later) == 40.0


def test_a_thousandth_of_the_usual_interval_is_the_least_misfit_that_counts():
    """Two operations 2,000 ns apart: one ns is told from none at a noise of two."""
    ends = np.array([0, 2_000])
    usual = replace(sequence(0, 2), start=ends, end=ends, latest_end=ends)
    costs = time_costs(np.array([0, 2, 6]), np.zeros(2, np.int64), usual)
    assert costs.tolist() == pytest.approx([0.0, np.log(2), np.log(4)])


def operations_of(*ends):
    times = dict.fromkeys(("start", "end", "latest_end"), np.array(ends))
    same = np.ones(len(ends), np.int64)
    return OperationSequence(
        **times, size=same, others=same, has_own_kernel=same > 0, uncertainty_ns=1_000
    )


@pytest.mark.parametrize(("apart_ns", "offset_ns"), [(10, 110), (11, 100)])
def test_ends_agree_within_a_quarter_of_the_usual_interval(apart_ns, offset_ns):
    """Every 40 ns an operation ends: offsets of 100 and 110 are one, and it is nearer to most than 300."""
    other = operations_of(0, 40, 80)
    own = operations_of(100, 140 + apart_ns, 380)
    partner = np.arange(3)[:, None]
    assert likely_offset(own, other, partner, np.ones((3, 1), np.bool_)) == offset_ns
