"""Ranks that join late, at the limits of what is reported."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tracekit.documents.late import LateRanks, OperationPlace
from tracekit.late import late_ranks

FACT = LateRanks(
    ranks=(1,),
    hosts=(),
    kind="periodic",
    period=3,
    steps=tuple(range(10)),
    since_step=0,
    since_ns=None,
    until_step=None,
    from_beginning=True,
    late_ns=1,
    late_range_ns=(1, 1),
    at=OperationPlace(0, "all_reduce", 8, "0"),
    caused_wait_ns=0,
    cost_ns=1_000,
    share=0.0,
    cause="host",
    uncertain=False,
    growth_ns=None,
)


def late_in(steps, count):
    is_late = np.zeros(count, bool)
    is_late[list(steps)] = True
    return is_late


@pytest.mark.parametrize(("duration_ns", "is_reported"), [(1_000_000, True), (1_010_000, False)])
def test_lateness_that_repeats_is_reported_from_a_thousandth_of_the_record_on(
    duration_ns, is_reported
):
    assert late_ranks.is_worth_reporting(FACT, duration_ns, 1_000.0) is is_reported


@pytest.mark.parametrize(("duration_ns", "is_reported"), [(100_000, True), (101_000, False)])
def test_lateness_that_does_not_repeat_is_reported_from_a_hundredth_of_the_record_on(
    duration_ns, is_reported
):
    occasional = replace(FACT, kind="occasional")
    assert late_ranks.is_worth_reporting(occasional, duration_ns, 1_000.0) is is_reported


@pytest.mark.parametrize(
    ("steps", "kind"), [(range(3, 6), "occasional"), (range(3, 7), "constant")]
)
def test_four_late_steps_make_a_pattern(steps, kind):
    assert late_ranks.find_recurrence(late_in(steps, 40))[0] == kind


@pytest.mark.parametrize(
    ("dense", "single", "kind"),
    [(7, (20, 31, 47), "constant"), (6, (20, 31, 47, 54), "occasional")],
)
def test_a_span_must_hold_seven_tenths_of_the_late_steps(dense, single, kind):
    assert late_ranks.find_recurrence(late_in([*range(dense), *single], 60))[0] == kind


@pytest.mark.parametrize(("runs_of_late", "hits"), [(4, 8), (2, 2)])
def test_one_step_on_time_weighs_three_late_ones(runs_of_late, hits):
    """Two runs of late steps with one step on time between them: 4 − 3 + 4 > 4, but 2 − 3 + 2 < 2."""
    steps = [*range(runs_of_late), *range(runs_of_late + 1, 2 * runs_of_late + 1)]
    assert late_ranks.densest_span(late_in(steps, 30))[2] == hits


@pytest.mark.parametrize(
    ("last_third", "drifts"), [((151, 152, 153), True), ((149, 150, 151), False)]
)
def test_lateness_drifts_from_half_as_much_again_on(last_third, drifts):
    amount = np.array([100, 101, 102, 120, 121, 122, *last_third], float)
    assert late_ranks.is_growing(amount) is drifts


@pytest.mark.parametrize(
    ("middle", "drifts"),
    [((9, 8, 7, 6, 5, 4), True), ((11.5, 9, 8, 7, 6, 2), False)],
)
def test_lateness_that_drifts_grows_in_three_of_four_pairs(middle, drifts):
    """Growing pairs minus shrinking ones, over all: just above one half with the first, just below with the other."""
    amount = np.array([2.5, 3.0, 3.5, *middle, 10.0, 10.5, 11.0])
    later_minus_earlier = [np.sign(b - a) for i, a in enumerate(amount) for b in amount[i + 1 :]]
    share = float(np.mean(later_minus_earlier))
    assert (0.5 <= share < 0.6) if drifts else (0.25 < share < 0.5)
    assert late_ranks.is_growing(amount) is drifts


@pytest.mark.parametrize(("common", "together"), [(8, True), (7, False)])
def test_ranks_are_late_together_if_four_fifths_of_their_late_steps_are_the_same(common, together):
    other = replace(FACT, ranks=(2,), steps=(*range(common), *range(100, 110 - common)))
    assert late_ranks.are_late_together(FACT, other) is together


@pytest.mark.parametrize(
    ("count", "period", "kind"), [(4_096, 1_024, "periodic"), (8_192, 2_048, "occasional")]
)
def test_a_period_is_looked_for_in_the_last_4096_steps(count, period, kind):
    assert late_ranks.find_recurrence(late_in(range(0, count, period), count))[0] == kind
