"""Limits up to which a schedule is named, each from both sides."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.pipeline.against_ideal.find_schedule import (
    MAX_IDEAL_EXCESS,
    MAX_MISPLACED_SHARE,
    MAX_UNEXPLAINED_SHARE,
    find_doubt,
    misplaced_share,
)
from tracekit.pipeline.against_ideal.identify import Match
from tracekit.pipeline.reconstruct import stalls
from tracekit.pipeline.reconstruct.stalls import crossed_share
from tracekit.pipeline.schedules import generate

SCHEDULE = generate("1f1b", pp=2, microbatches=10)
ORDERS = {position: list(order) for position, order in enumerate(SCHEDULE.ranks)}
UNITS = 2 * 10 * 3  # ranks × micro-batches × (F, I, W)


def doubt(*, ideal_ns=900, **gap_ns):
    """Return the doubt about a run of 1000 ns; the part of the gap that is not given is p2p."""
    gap = {"p2p": 1000 - ideal_ns - sum(gap_ns.values()), "unexplained": 0} | gap_ns
    return find_doubt(Match(SCHEDULE, 0), measured_ns=1000, ideal_ns=ideal_ns, gap_ns=gap)


@pytest.mark.parametrize(("distance", "near"), [(6, True), (7, False)])
def test_a_tenth_of_the_units_may_stand_elsewhere(distance, near):
    assert MAX_MISPLACED_SHARE == 0.1
    assert misplaced_share(ORDERS, Match(SCHEDULE, distance)) == distance / UNITS
    assert (misplaced_share(ORDERS, Match(SCHEDULE, distance)) <= MAX_MISPLACED_SHARE) is near


def test_an_ideal_above_the_measurement_is_none():
    assert MAX_IDEAL_EXCESS == 0.01
    assert doubt(ideal_ns=1000) is None
    assert doubt(ideal_ns=1010) is None
    assert doubt(ideal_ns=1011).case == "ideal_above"


@pytest.mark.parametrize("sign", [1, -1])
def test_little_may_stay_unexplained(sign):
    assert MAX_UNEXPLAINED_SHARE == 0.1
    assert doubt(unexplained=100 * sign) is None
    assert doubt(unexplained=101 * sign).case == "unexplained"


def test_little_may_be_explained_twice():
    assert doubt(early_output=-100) is None
    assert doubt(early_output=-101).case == "two_causes"


def test_a_part_of_a_pipeline_is_not_judged_by_the_whole_ideal():
    assert find_doubt(Match(SCHEDULE, 0), measured_ns=500, ideal_ns=900, gap_ns=None) is None


@pytest.mark.parametrize(("crossed_ns", "overlaps"), [(10, False), (11, True)])
def test_a_rank_overlaps_micro_batches_where_a_tenth_runs_beside_the_other_pass(
    crossed_ns, overlaps
):
    rows = {"phase": ["steady", "FB"], "lane": "communication", "pass": "forward", "total_ns": [100, 100],
            "beside_other_pass_ns": [crossed_ns, 100]}  # fmt: skip
    assert stalls.MIN_CROSSED_SHARE == 0.1
    assert (crossed_share(pl.DataFrame(rows)) > stalls.MIN_CROSSED_SHARE) is overlaps
