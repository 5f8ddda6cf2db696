"""When a schedule is named: each threshold on both sides."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.compare import judge
from tracekit.compare.identify import Match
from tracekit.compare.judge import doubt, elsewhere
from tracekit.reconstruct import lanes
from tracekit.reconstruct.lanes import crossed_share
from tracekit.schedules import generate

PLAN = generate("1f1b", pp=2, microbatches=10)
ORDERS = {at: list(order) for at, order in enumerate(PLAN.ranks)}
UNITS = 2 * 10 * 3  # ranks × micro-batches × (F, I, W)


def held(*, ideal=900, **parts):
    """A run of 1000 ns against an ideal, the gap's parts as given."""
    gap = {"p2p": 1000 - ideal - sum(parts.values()), "unexplained": 0} | parts
    return doubt(Match(PLAN, 0), measured_ns=1000, ideal_ns=ideal, gap_ns=gap)


@pytest.mark.parametrize(("moved", "near"), [(6, True), (7, False)])
def test_a_tenth_of_the_units_may_stand_elsewhere(moved, near):
    assert judge.ELSEWHERE == 0.1
    assert elsewhere(ORDERS, Match(PLAN, moved)) == moved / UNITS
    assert (elsewhere(ORDERS, Match(PLAN, moved)) <= judge.ELSEWHERE) is near


def test_an_ideal_above_the_measurement_is_none():
    assert judge.ABOVE == 0.01
    assert held(ideal=1000) is None
    assert held(ideal=1010) is None
    assert "is above the" in held(ideal=1011).message
    assert held(ideal=1011).code == "schedule-doubtful"


@pytest.mark.parametrize("sign", [1, -1])
def test_little_may_stay_unexplained(sign):
    assert judge.UNEXPLAINED == 0.1
    assert held(unexplained=100 * sign) is None
    assert "would stay unexplained" in held(unexplained=101 * sign).message


def test_little_may_be_explained_twice():
    assert held(early_output=-100) is None
    assert "would have two causes" in held(early_output=-101).message


def test_a_part_of_a_pipeline_is_not_judged_by_the_whole_ideal():
    assert doubt(Match(PLAN, 0), measured_ns=500, ideal_ns=900, gap_ns=None) is None


@pytest.mark.parametrize(("other", "overlaps"), [(10, False), (11, True)])
def test_a_rank_overlaps_micro_batches_where_a_tenth_runs_beside_the_other_pass(other, overlaps):
    rows = {"phase": ["steady", "FB"], "lane": "communication", "pass": "forward", "total_ns": [100, 100],
            "beside_other_pass_ns": [other, 100]}  # fmt: skip
    assert lanes.CROSSED == 0.1
    assert (crossed_share(pl.DataFrame(rows)) > lanes.CROSSED) is overlaps
