"""Verdicts of the gate on noise between runs."""

from __future__ import annotations

import pytest

from tracekit.diffs import stats, verdict
from tracekit.diffs.metrics import resolve
from tracekit.diffs.noise_thresholds import prior_deviation
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples
from tracekit.documents.gate import GateSettings


def runs(*centres):
    """Runs of six steps around each centre."""
    return [[centre + 0.01 * (n % 3) for n in range(6)] for centre in centres]


@pytest.mark.parametrize(
    ("after", "sure"),
    [((102.0, 104.0, 106.0), False), ((104.0, 106.0, 108.0), True)],
    ids=["may be chance", "is not"],
)
def test_runs_must_agree_seven_and_a_half_times_better_than_steps(after, sure):
    """BETWEEN_RUNS_P_FACTOR: a p-value from the spread between runs counts twice against alpha."""
    before = runs(99.0, 101.0, 103.0)
    baseline, candidate = (
        [Run(str(i), make_samples({"step_ms": run})) for i, run in enumerate(s)]
        for s in (before, runs(*after))
    )
    case = verdict.make_case(
        resolve("step_ms"),
        None,
        baseline=baseline,
        candidate=candidate,
        rules=GateSettings(floors={"step_ms": 1.0}),
        noise=None,
    )
    deviation = prior_deviation(case.floor, case.uncertainty)
    spread = stats.between_runs(runs(*after), before, prior=deviation, prior_df=4.0)
    chance = spread.p_not_above(case.tested_change)
    result = verdict.run_test(case, 0.02)
    assert chance < 0.02
    assert result.p_worse >= min(1.0, 2.0 * chance)
    assert (result.p_worse <= 0.02) is sure
