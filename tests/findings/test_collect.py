"""The list of findings: its order, and its answers on samples and on recorded everyday runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.report.write import render_json

MS = 1_000_000
SAMPLES = [
    "1f1b",
    "compile",
    "interleaved",
    "layers",
    "megatron-moe",
    "nsys-1f1b",
    "overlapped",
    "slow-ddp",
    "steps/a",
]
EVERYDAY = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "everyday"
EVERYDAY_RUNS = [
    "good",
    "loader",
    "items",
    "pageable",
    "alloc",
    "save",
    "tiny",
    "recompile",
    "hf-moe",
    "accum",
    "accum-nosync",
    "fsdp-offload",
]
ONLY_POSSIBLE = {"slow_kernel"}
"""Codes that a run without a fault may have."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_finding_has_the_largest_predicted_saving(samples, name):
    findings = analysis_of(samples / name).findings
    savings = [finding.saves_ns or 0 for finding in findings]
    assert savings == sorted(savings, reverse=True)
    assert all(
        (finding.cost_ns or finding.cost_bytes) and finding.saves_ns != 0 for finding in findings
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_json_has_the_findings_of_the_api_with_their_sentences(samples, name):
    analysis = analysis_of(samples / name)
    entries = json.loads(render_json(analysis))["findings"]
    assert [entry["code"] for entry in entries] == [finding.code for finding in analysis.findings]
    for entry, finding in zip(entries, analysis.findings, strict=True):
        assert (entry["text"], entry["advice"]) == (finding.text, finding.advice)
        assert (entry["cost_ns"], entry["saves_ns"]) == (finding.cost_ns, finding.saves_ns)


def test_a_run_without_steps_has_no_findings(samples):
    analysis = analysis_of(samples / "reload", schedule="none")
    if not analysis.step.time_ns:
        assert analysis.findings == ()


pytestmark_everyday = pytest.mark.skipif(
    not (EVERYDAY / "truth.json").is_file(),
    reason="TRACEKIT_CORPUS is not set: the recordings are not in this repository",
)


@pytest.mark.slow
@pytestmark_everyday
@pytest.mark.parametrize("name", EVERYDAY_RUNS)
def test_the_first_finding_of_an_everyday_run_is_the_planted_fault_and_its_saving_comes_true(name):
    truth = json.loads((EVERYDAY / "truth.json").read_text())["runs"][name]
    analysis = analyze(EVERYDAY / name)
    if truth["code"] is None:
        shown = {finding.code for finding in analysis.findings if finding.share >= 0.01}
        assert shown <= ONLY_POSSIBLE
        return
    first = analysis.findings[0]
    assert first.code == truth["code"]
    if "without_ms" not in truth:
        return
    step_ns = analysis.step.time_ns
    assert step_ns is not None
    if first.code == "slow_step":  # its saving is per recorded step, of the mean of all steps
        step_ns = round(
            sum(step.time_ns for step in analysis.step.per_step) / len(analysis.step.per_step)
        )
    low_ns, high_ns = (step_ns - saving for saving in reversed(first.saves_range_ns))
    is_close = step_ns - first.saves_ns == pytest.approx(truth["without_ms"] * MS, rel=0.25)
    is_narrow = high_ns - low_ns <= 0.4 * step_ns
    assert is_close or (is_narrow and low_ns <= truth["without_ms"] * MS <= high_ns)


@pytest.mark.slow
@pytestmark_everyday
def test_the_planted_synchronisations_are_counted():
    """One after each of eight blocks."""
    first = analyze(EVERYDAY / "items").findings[0]
    assert "stops 8 times a step to wait for the GPU in aten::item" in first.text
