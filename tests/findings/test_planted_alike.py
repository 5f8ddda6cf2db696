"""Delays of 6 ms in steps of 20, planted into written recordings: path, cause, finding and change state them alike."""

from __future__ import annotations

import pytest

from tests.findings.conftest import Recording
from tests.findings.test_communication import ALL_REDUCE
from tests.findings.test_host import LOADER_WITH_WORKERS
from tracekit import analyze
from tracekit.graph.change import parse_change

MS = 1_000_000
STEPS = 4


def ms_per_step(ns):
    return ns / STEPS / MS


def of_path(result, column, *, rank=0, kind=None):
    """Return the sum of a column over the path's segments, per step; they sum to the steps."""
    segments = result.walked_path.segments
    time_ns = segments["end_ns"] - segments["start_ns"]
    assert time_ns.sum() / MS == pytest.approx(20 * STEPS, abs=0.2)
    chosen = segments["rank"] == rank
    if kind is not None:
        chosen &= segments["kind"] == kind
    return ms_per_step((segments.with_columns(ns=time_ns)).filter(chosen)[column].sum())


def saves_ms(result, change):
    return result.graph.predict([parse_change(change)]).saves_ns / MS


@pytest.mark.parametrize(
    ("waiting", "code", "change"),
    [
        (None, "python", "no host delay"),
        (LOADER_WITH_WORKERS, "data_loading", "no data loading"),
    ],
)
def test_a_late_launch_and_a_slow_loader(analysis_of_steps, waiting, code, change):
    """The GPU has nothing to do from 8 on, and the next kernel is launched at 14: the host loads, or is in Python."""

    def fill(recording, start, _):
        recording.kernel(start + 0.01, start + 0.02, start + 8)
        if waiting:
            recording.op(waiting, start + 0.1, start + 13.98)
        recording.kernel(start + 13.99, start + 14, start + 19.98)

    result = analysis_of_steps(fill)
    finding = next(finding for finding in result.findings if finding.code == code)
    planted = pytest.approx(6, rel=0.03)
    assert of_path(result, "idle_ns", kind="host") == planted
    assert ms_per_step(result.to_dict()["ranks"][0]["idle_causes_ns"]["launch_bound"]) == planted
    assert finding.cost_ns / MS == planted
    assert saves_ms(result, change) == planted
    assert finding.saves_ns / MS == planted


def test_a_late_peer(tmp_path):
    """Rank 1 computes for 6 longer than rank 0, which waits for it in the all-reduce."""
    for rank, compute_end in enumerate((4, 10)):
        recording = Recording(rank, 2)
        for number in range(STEPS):
            start = number * 20.0
            recording.step(number, start, start + 20)
            recording.kernel(start + 0.1, start + 0.2, start + compute_end)
            recording.kernel(
                start + 0.3, start + compute_end + 0.01, start + 18, op="nccl:all_reduce", stream=20,
                name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", args=ALL_REDUCE,
                **ALL_REDUCE,
            )  # fmt: skip
            recording.kernel(start + 0.5, start + 18.01, start + 19.9)
            recording.call("cudaDeviceSynchronize", start + 0.6, start + 19.95)
        recording.write(tmp_path)
    result = analyze(tmp_path, schedule="none")
    planted = pytest.approx(6, rel=0.03)
    document = result.to_dict()
    assert (
        ms_per_step(document["ranks"][0]["exposed_because_ns"]["tp_comm"]["peer_late"]) == planted
    )
    assert document["stragglers"][0]["rank"] == 1
    assert ms_per_step(document["stragglers"][0]["caused_ns"]) == planted
    assert of_path(result, "ns", rank=1, kind="kernel") == pytest.approx(9.8, rel=0.01)
    assert of_path(result, "ns", rank=0, kind="collective") == pytest.approx(8, rel=0.01)
    assert saves_ms(result, "rank 1 like others") == planted
