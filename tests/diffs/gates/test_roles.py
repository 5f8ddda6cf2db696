"""Baselines hold every role of a run, and the gate compares role by role."""

from __future__ import annotations

import pytest

from tracekit.diffs import Run, Side, gate, make_samples, read_side
from tracekit.diffs.baseline import write_baseline
from tracekit.documents.diff import Facts
from tracekit.errors import InputError

STEADY = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.001, 0.999)


def run(trainer_ms, rollout_ms, name="run", damage=None, **rollout_facts):
    def role(ms, **facts):
        steps = tuple(ms * factor for factor in STEADY)
        return Run(
            name,
            make_samples({"step_ms": steps, "compute_ms": steps}),
            Facts(reader="kineto", **facts),
            main_role="trainer",
        )

    main = role(trainer_ms, **({} if damage is None else {"damage": damage}))
    return Run(
        name,
        main.samples,
        main.facts,
        main_role="trainer",
        roles={"rollout": role(rollout_ms, **rollout_facts)},
    )


@pytest.fixture
def baseline(tmp_path):
    file = tmp_path / "baseline.json"
    write_baseline(file, [run(100.0, 40.0)])
    return file


def verdicts(result):
    return {check.metric: check.verdict for check in result.checks}


def test_a_role_that_got_slower_is_named(baseline):
    result = gate(Side((run(100.0, 44.0),), {}), baseline)
    assert result.verdict == "regressed"
    assert verdicts(result) == {
        "step_ms": "pass",
        "compute_ms": "pass",
        "rollout/step_ms": "regressed",
        "rollout/compute_ms": "regressed",
    }


def test_one_role_is_judged_alone(baseline):
    assert verdicts(gate(Side((run(150.0, 40.0),), {}), baseline, role="rollout")) == {
        "step_ms": "pass",
        "compute_ms": "pass",
    }


def test_facts_of_a_role_that_differ_stop_its_comparison(tmp_path):
    file = tmp_path / "baseline.json"
    write_baseline(file, [run(100.0, 40.0, gpu="H100")])
    result = gate(Side((run(100.0, 44.0, gpu="H200"),), {}), file)
    assert result.obstacles == ("rollout: GPU differs: H100 before, H200 after",)
    assert verdicts(result)["rollout/step_ms"] == "inconclusive"
    assert verdicts(result)["step_ms"] == "pass"


@pytest.mark.parametrize("role", [None, "rollout"])
def test_damage_that_reading_noticed_leaves_no_role_a_verdict(baseline, role):
    result = gate(Side((run(100.0, 80.0, damage=["truncated"]),), {}), baseline, role=role)
    assert result.verdict == "inconclusive"
    assert {check.verdict for check in result.checks} == {"inconclusive"}
    assert {check.reason for check in result.checks} == {"run was not read whole: truncated"}


def test_noise_is_calibrated_by_role(tmp_path):
    file = tmp_path / "baseline.json"
    runs = [run(100.0, 40.0 + i, name=str(i)) for i in (-2, 0, 2)]
    with pytest.raises(InputError, match=r"rollout/step_ms could worsen by"):
        write_baseline(file, runs, calibrated=True)
    write_baseline(file, runs, calibrated=True, accept_noise=True)
    side = read_side([file], what="baseline")
    assert side.noise["step_ms"].deviation == pytest.approx(0, abs=1e-6)
    assert side.of_role("rollout").noise["step_ms"].deviation == pytest.approx(2.0, rel=1e-3)
    # A rollout of 44 ms is within the noise of 38, 40 and 42 ms; a trainer of 110 ms is not.
    assert verdicts(gate(Side((run(110.0, 44.0),), {}), file)) == {
        "step_ms": "regressed",
        "compute_ms": "regressed",
        "rollout/step_ms": "pass",
        "rollout/compute_ms": "pass",
    }
