"""Limits that were given hold, and more runs or steps never weaken a verdict."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tracekit.diffs import Side, gate, make_samples
from tracekit.diffs.gate_config import parse_requirement
from tracekit.diffs.noise_thresholds import calibrate
from tracekit.diffs.runs import Run
from tracekit.diffs.verdict import judge

RESTLESS = (0.9, 1.1, 1.0, 0.85, 1.15, 1.05, 0.95, 1.0)
"""Waiting that varies by a tenth from step to step."""
CALM = (100.1, 100.6, 99.4, 100.2, 99.8, 100.4, 99.6, 99.9)


def waiting_run(factor=1.0):
    """A run whose steps wait for two fifths of their time, all its times *factor* as long."""
    idle = [factor * 40.0 * f for f in RESTLESS]
    steps = [factor * 60.0 + wait for wait in idle]
    return Run("", make_samples({"step_ms": steps, "idle_ms": idle}))


def calm_run(factor=1.0, steps=CALM):
    return Run("", make_samples({"step_ms": [factor * ms for ms in steps]}))


def the_check(candidate, baseline, requirement, **options):
    (check,) = judge(candidate, baseline, [parse_requirement(requirement)], **options)
    return check


@pytest.mark.parametrize("runs", [1, 2, 3, 6])
def test_twice_the_limit_in_every_step_breaks_it_however_much_runs_may_wait(runs):
    slow = [waiting_run(1.2) for _ in range(runs)]
    check = the_check(slow, [waiting_run() for _ in range(runs)], "step_ms < +3%")
    assert check.verdict == "regressed"
    assert "in every step by more than twice" in check.reason


def test_twice_the_limit_in_every_step_breaks_it_also_inside_calibrated_noise():
    baseline = [waiting_run(factor) for factor in (0.95, 1.0, 1.05)]
    noise = calibrate(baseline)
    assert noise["step_ms"].floor((1, 3)) > 20.0
    assert the_check([waiting_run(1.2)], baseline, "step_ms < +3%", noise=noise).verdict == (
        "regressed"
    )


@pytest.mark.parametrize(
    ("slow", "base"),
    [
        ([waiting_run(1.05)], [waiting_run()]),  # less than twice
        ([waiting_run(1.2), waiting_run(1.0)], [waiting_run(), waiting_run()]),  # one run is not
    ],
)
def test_less_than_that_is_left_to_statistics(slow, base):
    check = the_check(slow, base, "step_ms < +3%")
    assert check.verdict == "inconclusive"


def test_some_steps_that_are_not_slower_leave_it_open():
    base = calm_run(steps=(100, 140, 90, 130, 100, 120, 95, 110))
    mixed = calm_run(steps=(150, 90, 170, 100, 150, 130, 90, 160))
    check = the_check([mixed], [base], "step_ms < +3%")
    assert check.change_relative > 0.06
    assert check.verdict == "inconclusive"


def test_a_share_that_must_not_fall_is_enforced_downwards():
    hidden = Run("", make_samples({"overlap.dp_comm": [0.6 + 0.05 * f for f in RESTLESS]}))
    exposed = Run("", make_samples({"overlap.dp_comm": [0.5 + 0.05 * f for f in RESTLESS]}))
    assert the_check([exposed], [hidden], "overlap.dp_comm > -0.02").verdict == "regressed"
    assert the_check([hidden], [exposed], "overlap.dp_comm > -0.02").verdict == "pass"


def test_of_a_limit_of_zero_the_noise_floor_is_what_counts():
    base = [waiting_run()]
    assert the_check([waiting_run(1.02)], base, "step_ms <= +0%").verdict == "inconclusive"
    assert the_check([waiting_run(1.04)], base, "step_ms <= +0%").verdict == "regressed"


def test_an_improvement_that_was_demanded_and_did_not_come_is_left_to_statistics():
    check = the_check([waiting_run(0.99)], [waiting_run()], "step_ms < -2%")
    assert check.verdict == "inconclusive"


def test_two_runs_that_each_regressed_alone_regressed_together():
    base, slow = [calm_run(), calm_run(1.001)], [calm_run(1.05), calm_run(1.051)]
    alone = {check.verdict for check in judge(slow[:1], base[:1])}
    together = {check.verdict for check in judge(slow, base)}
    assert (alone, together) == ({"regressed"}, {"regressed"})


factors = st.lists(st.floats(0.97, 1.03), min_size=1, max_size=3)
shapes = st.lists(st.floats(0.8, 1.2), min_size=5, max_size=9)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, base=factors, slow=factors, shift=st.floats(1.0, 1.5), limit=st.booleans())
def test_runs_that_each_regressed_alone_regressed_together(shape, base, slow, shift, limit):
    requirements = [parse_requirement("step_ms < +3%")] if limit else []
    steps = [100.0 * f for f in shape]
    baseline = [calm_run(f, steps) for f in base]
    candidate = [calm_run(f * shift, steps) for f in slow]
    alone = set()
    for after in candidate:
        for before in baseline:
            alone |= {c.metric: c.verdict for c in judge([after], [before], requirements)}.items()
    assume(("step_ms", "regressed") in alone)
    assume(not alone & {("step_ms", word) for word in ("pass", "improved", "inconclusive")})
    together = {c.metric: c.verdict for c in judge(candidate, baseline, requirements)}
    assert together["step_ms"] == "regressed"


@settings(max_examples=25, deadline=None)
@given(shape=shapes, shift=st.floats(1.0, 1.5), times=st.integers(2, 4), limit=st.booleans())
def test_the_same_steps_again_weaken_no_verdict(shape, shift, times, limit):
    requirements = [parse_requirement("step_ms < +3%")] if limit else []
    steps = [100.0 * f for f in shape]

    def regressed(repeats):
        checks = judge(
            [calm_run(shift, steps * repeats)], [calm_run(1.0, steps * repeats)], requirements
        )
        return {check.metric for check in checks if check.verdict == "regressed"}

    assert regressed(1) <= regressed(times)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ((111.2, 112.0, 111.5), "regressed"),
        ((111.2, 112.0, 111.5) * 3, "regressed"),
        ((108.5, 109.0, 108.8), "inconclusive"),  # within the floor, and too few to know better
        ((108.5, 109.0, 108.8) * 3, "regressed"),
        ((100.0, 114.0, 125.0), "inconclusive"),  # one of three keeps the limit
        ((100.0, 103.0, 101.0), "pass"),
    ],
)
def test_a_level_that_every_step_breaks_is_broken(steps, verdict):
    (check,) = judge([calm_run(steps=steps)], [], [parse_requirement("step_ms < 108")])
    assert check.verdict == verdict


def test_few_steps_far_beyond_a_limit_are_named_as_such():
    base, slow = calm_run(steps=CALM[:3]), calm_run(1.2, CALM[:3])
    result = gate(Side((slow,), {}), Side((base,), {}), require=["step_ms < +3%"])
    assert result.verdict == "inconclusive"
    assert [check.metric for check in result.far_beyond_limits] == ["step_ms"]
    result = gate(Side((base,), {}), Side((slow,), {}), require=["step_ms < -30%"])
    assert result.far_beyond_limits == ()


def test_a_default_limit_that_steps_hardly_pass_is_kept():
    """Steps of equal runs: the medians differ by 3 %, the steps overlap."""
    base = calm_run(steps=(16.2, 15.1, 15.7, 15.7, 16.1, 15.6, 15.5, 16.5))
    same = calm_run(steps=(16.2, 15.9, 15.9, 16.3, 16.7, 16.2, 16.3, 16.2))
    check = next(c for c in judge([same], [base]) if c.metric == "step_ms")
    assert check.change > check.limit
    assert (check.verdict, check.reason) == (
        "pass",
        "past the limit, by no more than equal steps differ",
    )
    # The same change of a limit that was given is not waved through.
    assert the_check([same], [base], "step_ms < +2.5%").verdict == "inconclusive"
