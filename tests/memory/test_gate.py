"""The gate on memory."""

from __future__ import annotations

import pytest

import tracekit
from tests.kept import analysis_of

pytestmark = pytest.mark.slow


def test_bytes_can_be_limited(snapshots):
    leaking = analysis_of(snapshots / "leak")
    peak = leaking.memory.peak_bytes
    assert tracekit.gate(leaking, require=[f"peak_bytes < {round(1.1 * peak)}"]).exit_code == 0
    assert tracekit.gate(leaking, require=[f"peak_bytes < {round(0.9 * peak)}"]).exit_code == 1
    assert tracekit.gate(leaking, require=["leaked_bytes < 1000"]).exit_code == 1
    assert tracekit.gate(leaking, require=[f"reserved_bytes < {peak}"]).exit_code == 1


def test_a_run_that_keeps_nothing_passes_a_limit_on_leaks(snapshots):
    sound = analysis_of(snapshots / "fsdp")
    assert tracekit.gate(sound, require=["leaked_bytes < 1000"]).exit_code == 0


def test_leaks_of_a_trace_of_few_steps_are_not_known(samples):
    inconclusive = 3
    assert (
        tracekit.gate(analysis_of(samples / "memory"), require=["leaked_bytes < 1000"]).exit_code
        == inconclusive
    )
