"""From an analysis to samples: every number counted by hand."""

from __future__ import annotations

import copy

import pytest
from msgspec import UNSET

from tracekit.diffs.metrics import resolve
from tracekit.diffs.run_samples import from_analysis
from tracekit.diffs.verdict import default_metrics
from tracekit.documents.gate import GateSettings
from tracekit.errors import InputError


def test_two_ranks_counted_by_hand(make):
    data = make([10.0], ranks=2)
    # Rank 1 takes 12 ms: 5 compute, 4 exposed pp_comm (of 5, so 0.2 hidden), 3 idle.
    other = copy.deepcopy(data["ranks"][1]["per_step"][0])
    other |= {
        "span_ns": 12_000_000,
        "time_ns": 12_000_000,
        "time_budget_ns": {
            "compute": 5_000_000,
            "exposed": {"pp_comm": 4_000_000},
            "idle": 3_000_000,
        },
    }
    other["label_ns"] = {"pp_comm": 5_000_000}
    other["set_ns"] = {"communication": 5_000_000}
    other["bubble"] = {
        "idle_ns": 3_000_000,
        "wait_ns": 1_000_000,
        "fraction": 4 / 12,
        "lower_bound": False,
    }
    data["ranks"][1]["per_step"] = [other]
    run = from_analysis(data, name="x")
    got = {name: run.values(name)[0] for name in run.metric_names}
    assert got["step_ms"] == 11.0  # the median over ranks
    assert got["compute_ms"] == pytest.approx((6 + 5) / 2)
    assert got["idle_ms"] == pytest.approx((1.5 + 3) / 2)
    assert got["exposed_ms.pp_comm"] == pytest.approx((2.5 + 4) / 2)
    assert got["label_ms.forward"] == pytest.approx((2 + 0) / 2)
    assert got["bubble_fraction"] == pytest.approx((1.5 + 4) / 22)
    assert got["bubble_ms"] == pytest.approx((1.5 + 4) / 2)
    assert got["wait_ms"] == pytest.approx((0 + 1) / 2)
    assert got["overlap.pp_comm"] == pytest.approx((0.2 * 3.125 + 0.2 * 5) / 8.125)


def test_exposed_time_by_cause_is_there_when_asked_for(make):
    data = make([10.0], ranks=2)
    for rank, ns in zip(data["ranks"], (1_000_000, 500_000), strict=True):
        rank["per_step"] = [
            {**rank["per_step"][0], "exposed_because_ns": {"pp_comm": {"peer_late": ns}}}
        ]
    run = from_analysis(data, name="x")
    named = resolve("exposed_ms.pp_comm.peer_late")
    assert run.values(named.name) == (0.75,)
    assert named.nature == "waiting"
    assert named not in default_metrics(
        [run], [run], GateSettings()
    )  # causes trade places: only the label is checked unasked
    assert from_analysis(make([10.0]), name="old").values(named.name) == ()


@pytest.mark.parametrize(
    ("options", "named"),
    [(["shapes", "stacks"], "shapes + stacks"), ([], "none"), (None, UNSET)],
)
def test_runs_are_compared_by_the_options_they_were_recorded_with(make, options, named):
    data = make([10.0])
    data["source"]["options"] = options
    assert from_analysis(data, name="x").facts.options == named


def test_one_rank_alone(make):
    data = make([10.0, 20.0], ranks=2)
    run = from_analysis(data, name="x")
    assert run.values("step_ms@1") == (10.0, 20.0)
    assert run.values("step_ms@7") == ()


def test_only_steps_that_every_rank_has(make):
    data = make([10.0, 20.0, 30.0])
    data["ranks"][1]["per_step"] = data["ranks"][1]["per_step"][1:]
    assert from_analysis(data, name="x").values("step_ms") == (20.0, 30.0)


def test_unknown_idle_is_left_out(make):
    data = make([10.0])
    for rank in data["ranks"]:
        for step in rank["per_step"]:
            step["budget_ns"]["idle"] = step["time_budget_ns"]["idle"] = None
            step["bubble"] |= {"idle_ns": None, "wait_ns": None, "fraction": None}
    metrics = from_analysis(data, name="x").metric_names
    assert "step_ms" in metrics
    assert {"idle_ms", "idle_fraction", "bubble_fraction", "wait_ms"}.isdisjoint(metrics)


def test_a_step_of_unknown_idle_time_is_left_out_and_one_without_a_label_took_none(make):
    data = make([10.0, 20.0])
    for rank in data["ranks"]:
        step = copy.deepcopy(rank["per_step"][0])
        step["time_budget_ns"] |= {"idle": None, "exposed": {}}
        rank["per_step"] = [step, rank["per_step"][1]]
    run = from_analysis(data, name="x")
    assert len(run.values("step_ms")) == 2
    assert len(run.values("idle_ms")) == 1
    without, with_label = run.values("exposed_ms.pp_comm")
    assert without == 0.0 < with_label


def test_the_gap_of_a_schedule(make):
    run = from_analysis(make(), name="x")
    assert run.values("makespan_ms") == (90.0,)
    assert run.values("gap_ms.total") == (10.0,)
    assert run.values("gap_ms.p2p") == (5.0,)


def test_the_gap_of_every_step(make):
    data = make()
    pipeline = data["schedule"]["pipelines"][0] | {"ideal_ns": 8_000_000}
    data["schedule"]["pipelines"] = [
        pipeline | {"step": 2, "measured_ns": 9_000_000, "gap_ns": {"p2p": 1_000_000}},
        pipeline | {"step": 2, "measured_ns": 9_500_000, "gap_ns": {"p2p": 1_500_000}},
        pipeline | {"step": 3, "measured_ns": 9_200_000, "gap_ns": None},
    ]
    run = from_analysis(data, name="x")
    assert run.values("makespan_ms") == (9.5, 9.2)  # the slower pipeline of each step
    assert run.values("gap_ms.p2p") == (1.5,)


@pytest.mark.parametrize(
    "damage", [{"format": "tracekit.analysis/9"}, {"ranks": []}, {"ranks": [{"rank": 0}]}]
)
def test_a_damaged_analysis_is_refused(make, damage):
    with pytest.raises(InputError, match="x: "):
        from_analysis({**make(), **damage}, name="x")


@pytest.mark.parametrize(("least", "there"), [(False, True), (True, False)])
def test_a_lower_bound_of_the_bubble_is_no_sample(make, least, there):
    """It could break a limit and never keep one: gate calls the limit inconclusive, diff shows no change."""
    data = make([10.0])
    for rank in data["ranks"]:
        rank["per_step"][0]["bubble"] |= {"wait_ns": None if least else 0, "lower_bound": least}
    assert ("bubble_fraction" in from_analysis(data, name="demo").metric_names) is there


def test_lateness_and_unequal_work_are_samples_by_step(make):
    data = make([10.0, 10.0, 10.0], ranks=2)
    data["lateness"] = {
        "steps": [1, 2, 3],
        "ranks": [{"rank": 1, "late_ns": [0, 4_000_000, 1_000_000]}],
    }
    step = {"group": None, "most_work_rank": 1, "tokens_max": 9, "tokens_mean": 8.0, "cost_ns": 1}
    data["imbalance"] = {
        "share": 0.2,
        "steps": [{**step, "step": 1, "share": 0.3}, {**step, "step": 2, "share": 0.1}],
    }
    run = from_analysis(data, name="x")
    assert run.values("late_ms.rank") == (0.0, 4.0, 1.0)
    assert run.values("late_ms.rank@1") == (0.0, 4.0, 1.0)
    assert run.values("late_ms.rank@0") == (0.0, 0.0, 0.0)  # never late
    assert run.values("imbalance") == (0.3, 0.1)
    assert not from_analysis(make([10.0]), name="y").values("late_ms.rank")
