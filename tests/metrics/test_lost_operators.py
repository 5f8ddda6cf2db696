"""Work that is lost with its launches, and kernels without duration: both are counted and said."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.kept import analysis_of
from tracekit import analyze

STEPS = 3
OPERATORS = 100


def write(folder, *, lost=(), durations=(5,), whole_us=False):
    """Three steps of a hundred operators with a kernel each, but for *lost* (step, operator), which launch nothing."""
    events = []
    for number in range(STEPS * OPERATORS):
        step, operator = divmod(number, OPERATORS)
        start = 1_000 * step + 10 * operator
        if not operator:
            name = f"ProfilerStep#{step}"
            span = {"ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": 1_000}
            events.append({**span, "cat": "user_annotation", "name": name})
        on_host = {"ph": "X", "pid": 1, "tid": 1}
        ids = {"correlation": number, "External id": number}
        op = {**on_host, "cat": "cpu_op", "name": "aten::mm", "ts": start + 1, "dur": 6}
        events.append({**op, "args": {"External id": number}})
        if (step, operator) in lost:
            continue
        call = {**on_host, "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        events.append({**call, "ts": start + 2, "dur": 2, "args": ids})
        kernel = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "k"}
        kernel_start = start + 4 if whole_us else start + 4.25
        args = {**ids, "device": 0, "stream": 7}
        duration = durations[number % len(durations)]
        events.append({**kernel, "ts": kernel_start, "dur": duration, "args": args})
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    return analyze(folder)


def notices(analysis, code):
    return [notice.values for notice in analysis.notices if notice.code == code]


def test_operators_that_launch_nothing_in_one_step_alone_have_lost_their_work(tmp_path):
    analysis = write(tmp_path, lost={(1, operator) for operator in range(40, 50)})
    assert notices(analysis, "gpu-events-lost") == [
        {"case": "many_operators", "count": 10, "step_count": 1, "steps": (1,)}
    ]
    (rank,) = analysis.ranks
    assert rank.whole.budget.idle is None


def test_the_last_work_of_a_recording_that_is_lost_with_its_launches_is_said(tmp_path):
    analysis = write(tmp_path, lost={(2, operator) for operator in range(96, 100)})
    assert notices(analysis, "gpu-events-lost") == [
        {"case": "some_operators", "count": 4, "step_count": 1, "steps": (2,)}
    ]


@pytest.mark.parametrize("lost", [set(), {(1, 40)}, {(s, o) for s in range(3) for o in range(20)}])
def test_where_steps_launch_alike_nothing_is_lost(tmp_path, lost):
    # One of a hundred is no share to speak of; what launches in no step computes on the host.
    analysis = write(tmp_path, lost=lost)
    assert not notices(analysis, "gpu-events-lost")


def test_kernels_without_duration_are_counted(tmp_path):
    analysis = write(tmp_path, durations=(5, 5, 0))
    assert notices(analysis, "zero-durations") == [{"count": 100, "total": 300}]


def test_durations_below_the_resolution_of_the_times_are_no_damage(tmp_path):
    analysis = write(tmp_path, durations=(5, 5, 0), whole_us=True)
    assert not notices(analysis, "zero-durations")


@pytest.mark.parametrize("sample", ["layers", "mi300-ddp"])
def test_lost_work_invents_no_finding(samples, tmp_path, sample):
    first, *others = sorted((samples / sample).glob("*.json.gz"))
    for file in others:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    trace = json.loads(gzip.decompress(first.read_bytes()))
    events = trace["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    middle = len(kernels) // 2
    stretch = kernels[middle : middle + len(kernels) // 10]
    lost = {kernel["args"]["correlation"] for kernel in stretch}
    trace["traceEvents"] = [
        event
        for event in events
        if event.get("args", {}).get("correlation") not in lost or event.get("cat") == "cpu_op"
    ]
    (tmp_path / first.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    analysis = analyze(tmp_path)
    whole = analysis_of(samples / sample)
    assert "gpu-events-lost" in {notice.code for notice in analysis.notices}
    matter = {finding.code for finding in analysis.findings if finding.matters}
    assert matter <= {finding.code for finding in whole.findings if finding.matters}
