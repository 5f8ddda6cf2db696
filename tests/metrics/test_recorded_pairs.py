"""Loops with a fault and their twins without it, as recorded: the fault is found first, and its price is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kept import analysis_of

PAIRS = Path(__file__).parents[1] / "data" / "pairs"
RUNS = json.loads((PAIRS / "truth.json").read_text(encoding="utf-8"))["runs"]
FAULTY = [name for name, run in RUNS.items() if "change" in run]
CLOSE_SHARE = 0.3
"""Share of the measured difference within which a saving is right, or ``CLOSE_SHARE_OF_STEP`` of the step."""
CLOSE_SHARE_OF_STEP = 0.05


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_is_the_first_finding_and_its_saving_what_the_twin_shows(name):
    run = RUNS[name]
    first = analysis_of(PAIRS / name).findings[0]
    assert first.change == run["change"]
    gained_ms = run["free_ms"] - RUNS[f"{name}-twin"]["free_ms"]
    close_ms = max(CLOSE_SHARE * gained_ms, CLOSE_SHARE_OF_STEP * run["free_ms"])
    assert first.saves_ns / 1e6 == pytest.approx(gained_ms, abs=close_ms)


@pytest.mark.parametrize("name", FAULTY)
def test_the_twin_has_no_such_finding(name):
    findings = analysis_of(PAIRS / f"{name}-twin").findings
    assert RUNS[name]["change"] not in {finding.change for finding in findings}
