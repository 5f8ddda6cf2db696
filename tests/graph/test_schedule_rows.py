"""Rows of --what-if for synthetic runs whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.graph.schedule_rows import curve_rows
from tracekit.pipeline.schedules import Times, generate
from tracekit.report.notices import notice_sentence
from tracekit.synthetic import Recipe

pytestmark = pytest.mark.slow

PLAN = generate("1f1b", pp=4, microbatches=8)
TIMES = Times(F=1_000_000, I=1_000_000, W=1_000_000)


def test_what_if_ranks_schedules(compare_recipe):
    comparison, _ = compare_recipe(
        Recipe(PLAN, TIMES, p2p_ns=200_000, stage_factor={2: 1.2}), what_if=True
    )
    schedules = [line for line in comparison.what_if if line.change == "schedule"]
    assert [s.predicted_ns for s in schedules] == sorted(s.predicted_ns for s in schedules)
    own = next(s for s in schedules if s.ran)
    assert (own.name, own.predicted_ns, own.saves_ns) == ("1f1b", comparison.head.measured_ns, 0)
    assert own.ideal_ns == pytest.approx(comparison.head.ideal_ns, rel=0.01)
    better = next(s for s in schedules if s.name == "zb-h1")
    assert better.saves_ns == comparison.head.measured_ns - better.predicted_ns > 0
    assert (
        better.ideal_ns
        < better.predicted_range_ns[0]
        <= better.predicted_ns
        <= better.predicted_range_ns[1]
    )
    assert all(line.rests_on for line in comparison.what_if)


@pytest.mark.parametrize(
    ("own", "other"), [("1f1b", "interleaved"), ("interleaved", "gpipe"), ("gpipe", "1f1b")]
)
def test_what_if_predicts_what_another_schedule_takes_on_the_same_machine(
    compare_recipe, own, other
):
    """Made-up runs of one model on one machine, so that a prediction can be held against a run."""

    def recipe(name):
        plan = generate(name, pp=4, microbatches=8)
        f, i, w = (t // plan.virtual for t in (TIMES.F, TIMES.I, TIMES.W))
        return Recipe(plan, Times(F=f, I=i, W=w), layers=4 // plan.virtual, p2p_ns=150_000)

    comparison, _ = compare_recipe(recipe(own), what_if=True)
    truth = compare_recipe(recipe(other))[0].head.measured_ns
    predicted = next(line.predicted_ns for line in comparison.what_if if line.name == other)
    assert predicted == pytest.approx(truth, rel=0.02)


def test_what_if_proposes_another_split_where_a_stage_is_slow_and_draws_a_curve(compare_recipe):
    """Stage 2 takes half as long again: of its four layers it gives one away."""
    comparison, _ = compare_recipe(
        Recipe(PLAN, TIMES, layers=4, p2p_ns=10_000, stage_factor={2: 1.5}), what_if=True
    )
    (line,) = (line for line in comparison.what_if if line.change == "layout")
    assert line.name == "layers per stage 5,4,3,4"
    assert line.layout == "Et*5|t*4|t*3|t*4L"
    assert 0 < line.saves_ns == comparison.head.measured_ns - line.predicted_ns
    points = [line.microbatches for line in comparison.what_if if line.change == "microbatches"]
    assert points == [4, 8, 16, 32]
    # Another amount of work saves nothing of this run's; as many in chunks of another size may.
    assert {line.saves_ns for line in comparison.what_if if line.change == "microbatches"} == {None}
    chunks = [line for line in comparison.what_if if line.change == "chunks"]
    assert None not in {line.saves_ns for line in chunks if line.predicted_ns is not None}
    assert [line.virtual for line in comparison.what_if if line.change == "chunks"] == [1, 2, 4]
    even, _ = compare_recipe(Recipe(PLAN, TIMES, layers=4, p2p_ns=10_000), what_if=True)
    assert not [line for line in even.what_if if line.change == "layout"]


@pytest.mark.parametrize(
    ("only", "options", "why"),
    [
        ([0, 1, 3], {}, "traces of some"),
        (None, {"schedule": "gpipe"}, "not that of a known schedule"),
    ],
)
def test_what_if_gives_ideals_alone_and_says_why(compare_recipe, only, options, why):
    comparison, notices = compare_recipe(
        Recipe(PLAN, TIMES, p2p_ns=30_000), only=only, what_if=True, **options
    )
    reported = next(notice_sentence(n) for n in notices if n.code == "what-if-limited")
    assert why in reported
    others = [line for line in comparison.what_if if line.change == "schedule" and not line.ran]
    assert others
    assert all(
        line.ideal_ns and line.predicted_ns is None and line.saves_ns is None for line in others
    )
    assert [line.ideal_ns for line in others] == sorted(line.ideal_ns for line in others)


@pytest.mark.parametrize(("microbatches", "reported"), [(8, False), (700, True)])
def test_what_if_says_what_it_did_not_try(compare_recipe, microbatches, reported):
    plan = generate("1f1b", pp=2, microbatches=microbatches)
    comparison, notices = compare_recipe(Recipe(plan, TIMES, layers=1), what_if=True)
    assert ("searched" in {n.values.get("case") for n in notices}) == reported
    assert ("zb-1p" in {line.name for line in comparison.what_if}) != reported


def layouts(compare_recipe, **problems):
    """Return the rows that propose another split of four stages with four layers each."""
    recipe = Recipe(PLAN, TIMES, layers=4, p2p_ns=10_000, replicas=2, **problems)
    comparison, _ = compare_recipe(recipe, what_if=True)
    assert comparison.no_prediction_reason is None
    return [line for line in comparison.what_if if line.change == "layout"]


def test_waiting_for_experts_is_no_work_that_another_split_could_move(compare_recipe):
    """Every stage computes 3 ms a micro-batch.

    The exchanges of the first and third wait for 2.4 ms on top.
    """
    waits = {0: 600_000, 2: 600_000}
    assert layouts(compare_recipe, ep_ns=100_000, ep_exposed_ns=100_000, ep_wait_ns=waits) == []


def test_a_split_follows_compute_where_another_stage_waits(compare_recipe):
    """Stage 2 computes half as long again, 4.5 ms.

    Stage 3 computes 3 ms and waits for 0.8: it keeps its layers.
    """
    waits = {3: 200_000}
    (line,) = layouts(
        compare_recipe,
        ep_ns=100_000,
        ep_exposed_ns=100_000,
        ep_wait_ns=waits,
        stage_factor={2: 1.5},
    )
    assert line.name == "layers per stage 5,4,3,4"


def test_curves_have_points_of_at_most_600_units_of_work():
    """A 1F1B of eight ranks: 16 units for each micro-batch. With 32 it has 512, with 64 1,024."""
    own = generate("1f1b", pp=8, microbatches=8)
    drawn = []

    def predict(schedule):
        drawn.append((schedule.virtual, schedule.microbatches))
        return "none"

    no_layers = pl.DataFrame(
        schema={"op": pl.String, "stage": pl.Int32, "b_stage": pl.Int32, "layers": pl.Int32}
    )
    curve_rows(SimpleNamespace(own=own, predict=predict), no_layers, None)
    assert {count for chunks, count in drawn if chunks == 1} == {8, 16, 32}
