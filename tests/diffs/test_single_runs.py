"""One run a side: what the GPU does is judged, what merely waited longer is not, until several runs speak."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tracekit.diffs.gate_config import parse_requirement
from tracekit.diffs.metrics import resolve
from tracekit.diffs.noise_thresholds import single_run_uncertainty
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples
from tracekit.diffs.verdict import judge

RESTLESS = (0.9, 1.1, 1.0, 0.85, 1.15, 1.05, 0.95, 1.0)
"""Waiting that varies by a tenth from step to step."""
CALM = tuple(1 + 0.001 * i for i in (0, 2, -1, 1, -2, 3, -3, 1))


def run(compute=60.0, waits=40.0, shape=RESTLESS):
    idle = [waits * f for f in shape]
    samples = {
        "step_ms": [compute + i for i in idle],
        "idle_ms": idle,
        "compute_ms": [compute * f for f in CALM],
    }
    return Run("", make_samples(samples))


def verdicts(candidate, baseline):
    return {c.metric: c for c in judge(candidate, baseline)}


def test_longer_waiting_in_one_restless_run_is_inconclusive_and_says_what_to_do():
    step = verdicts([run(waits=52.0)], [run()])["step_ms"]
    assert step.p is not None
    assert step.p <= 0.05  # the steps agree, the runs were never asked
    assert step.verdict == "inconclusive"
    assert "add runs, or --calibrate" in step.reason


def test_several_runs_that_agree_decide_it():
    some = [run(waits=w) for w in (40.0, 40.5, 39.5)]
    more = [run(waits=w) for w in (70.0, 70.5, 69.5)]
    assert verdicts(more, some)["step_ms"].verdict == "regressed"
    less = [run(waits=w) for w in (12.0, 12.5, 11.5)]
    assert verdicts(less, some)["step_ms"].verdict == "improved"


def test_waiting_that_more_than_doubles_needs_no_second_run():
    assert verdicts([run(waits=95.0)], [run()])["step_ms"].verdict == "regressed"


def test_shorter_waiting_in_one_restless_run_is_no_improvement():
    assert verdicts([run(waits=30.0)], [run()])["step_ms"].verdict == "pass"


def test_calm_steps_are_believed():
    step = verdicts([run(waits=44.0, shape=CALM)], [run(shape=CALM)])["step_ms"]
    assert step.verdict == "regressed"


def test_the_gpus_own_work_is_judged_from_one_run():
    judged = verdicts([run(compute=63.0)], [run()])
    assert judged["compute_ms"].verdict == "regressed"


def test_an_asked_limit_is_no_surer_than_the_run():
    (check,) = judge([run(waits=45.0)], [run()], [parse_requirement("step_ms < +3%")])
    assert check.verdict == "inconclusive"


def test_a_share_of_a_baseline_of_zero_allows_no_growth():
    """No allowance in per cent of nothing is enough for 40 ms; equal runs keep it."""
    (check,) = judge([run(shape=CALM)], [run(waits=0.0)], [parse_requirement("idle_ms < +300%")])
    assert check.verdict == "regressed"
    (check,) = judge([run(waits=0.0)], [run(waits=0.0)], [parse_requirement("idle_ms < +300%")])
    assert check.verdict == "pass"


def test_three_calibrated_runs_do_not_blunt_the_gpus_own_work():
    from tracekit.diffs.noise_thresholds import calibrate

    # Alone, these would allow 14 deviations: 10 %.
    old = [run(compute=c) for c in (60.0, 60.3, 59.7)]
    checks = judge([run(compute=63.0)], old, noise=calibrate(old))
    assert {c.metric: c.verdict for c in checks}["compute_ms"] == "regressed"


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        ("exposed_ms.pp_comm", (8.0, 12.0), 1.25 * 10),  # waiting may more than double
        ("label_ms.offload", (10.0, 10.0), 0.45 * 10),  # copying, however calm
        ("overlap.ep_dispatch", (0.9, 0.9), 0.0),  # steps that do not differ at all
        # A share near its end moves little.
        (
            "overlap.ep_dispatch",
            (0.85, 0.95),
            1.25 * 0.9 * 0.1,
        ),
        ("label_ms.forward", (8.0, 12.0), 0.0),
    ],
)
def test_how_much_is_doubted(metric, values, expected):
    side = [Run("", make_samples({metric: values}))]
    assert single_run_uncertainty(resolve(metric), (side, side)) == pytest.approx(expected)


@pytest.fixture(scope="module")
def bench():
    path = Path(__file__).parents[2] / "benchmarks" / "gate.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_the_gate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("program", "pairs"), [("1f1b", 20), ("1f1b", 40), ("host-bound", 40), ("offload", 40)]
)
def test_real_runs_of_the_same_code_do_not_alarm(bench, program, pairs):
    """Processes of the first two differ by up to 24 %.

    The benchmark measures the rate over thousands of pairs.
    """
    import json

    runs = [
        bench.profiled(r) for r in json.loads(bench.DATA.read_text())["programs"][program]["runs"]
    ]
    draw = bench.from_runs(runs, np.random.default_rng(1))
    measured = bench.measure(draw, pairs, (1, 1.05))
    assert measured[1]["regressed"] <= pairs / 20
    assert measured[1.05]["regressed"] >= 0.8 * pairs
