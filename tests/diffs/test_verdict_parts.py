"""Verdicts on one metric, from figures on both sides of each limit."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from tracekit.diffs import verdict
from tracekit.diffs.verdict import _check_limit, _check_without_test, _decide, _decide_exceeded
from tracekit.documents.gate import CheckResult, Counts, GateSettings

RULES = GateSettings(alpha=0.02, min_steps=5)


def check_result(**figures):
    known = {field.name: None for field in msgspec.structs.fields(CheckResult) if field.required}
    known |= {"metric": "m", "verdict": "pass", "before": 100.0, "after": 110.0, "change": 10.0}
    return CheckResult(**{**known, "steps": Counts(9, 9), "runs": Counts(2, 2), **figures})


def case_of(
    *, noise_floor=None, once_a_run=False, unit="ms", requirement=None, check=None, **options
):
    """A metric that grew by 10, whose noise is 3 and whose limit is 0; larger is worse."""
    check = check or check_result()
    noise = None if noise_floor is None else SimpleNamespace(floor=lambda runs: noise_floor)
    family = SimpleNamespace(once_a_run=once_a_run, unit=unit, level="median")
    usual = {
        "metric": SimpleNamespace(family=family), "requirement": requirement, "sign": 1, "check": check,
        "before": [[1.0]], "after": [[1.0]], "floor": 3.0, "noise": noise, "worsening": 10.0, "limit": 0.0,
        "may_be_chance": False,
    }  # fmt: skip
    case = SimpleNamespace(**{**usual, **options})
    case.undecided = lambda reason: msgspec.structs.replace(
        check, verdict="inconclusive", reason=reason
    )
    return case


LIMIT = SimpleNamespace(
    text="m < 3", kind="limit", op="<", limit=108.0, holds=lambda value: value < 108.0
)
NOISY = "past the limit, but it may be noise: record more"


@pytest.mark.parametrize(
    ("options", "p_worse", "uncorrected_p", "decided"),
    [
        ({}, 0.02, 0.02, "regressed"),
        ({}, 0.021, 0.04, "looks worse, but may be noise: record more"),
        ({}, 0.021, 0.041, NOISY),
        ({"worsening": 6.1}, 0.021, 0.04, "looks worse, but may be noise: record more"),
        ({"worsening": 6.0}, 0.021, 0.04, NOISY),  # twice the noise
        (
            {"may_be_chance": True},
            0.02,
            0.02,
            "one run per side may wait this much longer by chance",
        ),
        (
            {"requirement": LIMIT, "noise_floor": 10.0},
            0.0,
            0.0,
            "past the limit, but within the calibrated noise",
        ),
        ({"requirement": LIMIT, "noise_floor": 9.9}, 0.0, 0.0, "regressed"),
        ({"noise_floor": 10.0}, 0.0, 0.0, "regressed"),  # no limit that somebody asked for
        ({"requirement": LIMIT}, 0.0, 0.0, "regressed"),
    ],
)
def test_a_change_beyond_its_limit_regressed_unless_it_may_be_noise(
    monkeypatch, options, p_worse, uncorrected_p, decided
):
    monkeypatch.setattr(verdict, "_regression_reason", lambda case: "regressed")
    found, reason = _decide_exceeded(
        case_of(**options), SimpleNamespace(p_worse=uncorrected_p), p_worse, RULES
    )
    assert reason.startswith(decided)
    assert found == ("regressed" if decided == "regressed" else "inconclusive")


@pytest.mark.parametrize(
    ("options", "interval", "p_better", "verdict_and_reason"),
    [
        ({"worsening": 0.0}, [-1, 1], 1.0, ("pass", None)),
        ({"worsening": -3.1}, [-9, -1], 0.02, ("improved", None)),
        ({"worsening": -3.0}, [-9, -1], 0.02, ("pass", None)),  # no more than the noise
        ({"worsening": -3.1}, [-9, -1], 0.021, ("pass", None)),
        ({"worsening": -3.1, "may_be_chance": True}, [-9, -1], 0.0, ("pass", None)),
        ({"worsening": 10.0, "limit": 10.0}, [1, 19], 1.0, ("pass", "worse, within the limit")),
        ({"worsening": 10.0, "limit": 10.0}, [0, 19], 1.0, ("pass", None)),
        ({"worsening": 10.0, "limit": 10.0, "sign": -1}, [-19, -1], 1.0, ("pass", "worse, within the limit")),
        ({"worsening": 10.1, "limit": 10.0}, [1, 19], 1.0, ("regressed", "it")),
    ],
)  # fmt: skip
def test_a_change_within_its_limit_passes_or_improves(
    monkeypatch, options, interval, p_better, verdict_and_reason
):
    monkeypatch.setattr(verdict, "_decide_exceeded", lambda *args: ("regressed", "it"))
    test = SimpleNamespace(interval=interval, method="rank test")
    decided = _decide(case_of(**options), test, 0.5, p_better, RULES)
    assert (decided.verdict, decided.reason) == verdict_and_reason
    assert (decided.p, decided.method) == (0.5, "rank test")


@pytest.mark.parametrize(
    ("value", "options", "decided"),
    [
        (104.9, {}, ("pass", "only 4 steps, but beyond the noise floor")),
        (105.0, {}, ("inconclusive", "only 4 steps, and the limit is within the noise floor")),
        (111.0, {}, ("inconclusive", "only 4 steps, and the limit is within the noise floor")),
        (111.1, {}, ("regressed", "only 4 steps, but beyond the noise floor")),
        (108.0, {"floor": 0.0}, ("inconclusive", "only 4 steps, and the limit is within the noise floor")),
        (108.0, {"floor": 0.0, "unit": "count"}, ("regressed", "only 4 steps, but beyond the noise floor")),
        (108.0, {"unit": "count"}, ("inconclusive", "only 4 steps, and the limit is within the noise floor")),
        (111.1, {"once_a_run": True}, ("regressed", "one value per run, but beyond the noise floor")),
    ],
)  # fmt: skip
def test_of_few_steps_only_a_distance_beyond_the_noise_decides(value, options, decided):
    check = check_result(steps=Counts(9, 4))
    found = _check_limit(case_of(check=check, **options), LIMIT, value, RULES)
    assert (found.verdict, found.reason) == decided


@pytest.mark.parametrize(
    ("check", "options", "obstacle", "damage", "reason"),
    [
        ({}, {}, "", "", None),
        ({}, {}, "", "it was cut", "it was cut"),
        ({"after": None}, {}, "", "", "the candidate has no such metric"),
        ({}, {}, "another model", "", "another model"),
        ({"before": None}, {}, "", "", "the baseline has no such metric"),
        ({"steps": Counts(4, 9)}, {}, "", "", "4 steps before, 9 after; at least 5 are needed"),
        ({"steps": Counts(9, 4)}, {}, "", "", "9 steps before, 4 after; at least 5 are needed"),
        ({"steps": Counts(5, 5)}, {}, "", "", None),
        ({"steps": Counts(3, 3)}, {"once_a_run": True}, "", "", None),
        ({"steps": Counts(2, 3)}, {"once_a_run": True}, "", "", "2 runs before, 3 after; at least 3 are needed"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_undecided(check, options, obstacle, damage, reason):
    case = case_of(check=check_result(**check), **options)
    found = _check_without_test(case, RULES, obstacle, damage)
    assert (found and (found.verdict, found.reason)) == (reason and ("inconclusive", reason))
