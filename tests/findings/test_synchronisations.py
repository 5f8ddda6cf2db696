"""Who asks for a synchronisation, by the operator in which the host waits."""

from __future__ import annotations

import pytest

from tracekit.findings.synchronisations import who_waits

SCALER = "aten::_amp_foreach_non_finite_check_and_unscale_"


def waiting_in(op, *, times=1, other="aten::mm"):
    """Return a step that waits inside *op* some times, with idle time after each wait."""

    def fill(recording, start, _):
        for number in range(times):
            begin = start + number * 2.0
            recording.kernel(begin + 0.05, begin + 0.06, begin + 1.0, op=other)
            if op is not None:
                recording.op(op, begin + 0.08, begin + 1.01)
            recording.call("cudaStreamSynchronize", begin + 0.09, begin + 1.0)
        end = start + times * 2.0
        recording.kernel(end + 0.5, end + 0.51, end + 1.5)

    return fill


@pytest.mark.parametrize(
    ("op", "times", "other", "case"),
    [
        ("aten::nonzero", 6, "aten::mm", "mask"),
        ("aten::index", 6, "aten::mm", "mask"),
        ("aten::item", 6, "aten::mm", "value"),
        ("aten::item", 1, SCALER, "scaler"),
        ("aten::item", 6, SCALER, "value"),  # a scaler asks once
        ("aten::item", 1, "aten::logical_or", "clipping"),
        ("aten::copy_", 6, "aten::mm", "copy"),
        ("record_param_comms", 6, "aten::mm", "collective"),
        (None, 6, "aten::mm", "explicit"),
    ],
)
def test_advice_follows_who_waits(findings_of, op, times, other, case):
    fill = waiting_in(op, times=times, other=other)
    finding = findings_of(fill, period=times * 2.0 + 3.0)["host_sync"]
    assert finding.case == case
    says_log = "log every N steps" in finding.advice
    assert says_log is (case == "value")


@pytest.mark.parametrize(
    ("op", "call", "case"),
    [
        (None, "cudaStreamSynchronize", "explicit"),
        ("aten::mm", "cudaStreamSynchronize", ""),  # an operator asks, not the program
        (None, "cudaMemcpyAsync", ""),
        (None, None, ""),
    ],
)
def test_a_program_that_synchronises_does_so_outside_of_operators(op, call, case):
    assert who_waits(None, op, call, count=1) == case
