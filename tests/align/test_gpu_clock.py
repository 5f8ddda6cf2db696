"""The GPU's clock against the host's: impossible times are moved, explained or withheld."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.align.gpu_clock import WITHHOLDING_CASES, align_gpu_clock
from tracekit.schema import EVENTS, RankEvents, Source, conform


def recording(kernels, waits=()):
    """One rank: a kernel (launch, start, end) per launch, and calls (start, end) that wait for the device; in µs."""
    rows = []
    for number, (launch, start, end) in enumerate(kernels):
        call = {"kind": "runtime", "name": "cudaLaunchKernel", "tid": 1, "correlation": number}
        rows.append({**call, "start_ns": launch * 1000, "end_ns": launch * 1000 + 500})
        kernel = {"kind": "kernel", "name": "k", "device": 0, "stream": 7, "correlation": number}
        rows.append({**kernel, "start_ns": start * 1000, "end_ns": end * 1000})
    for start, end in waits:
        wait = {"kind": "runtime", "name": "cudaDeviceSynchronize", "tid": 1}
        rows.append({**wait, "start_ns": start * 1000, "end_ns": end * 1000})
    events = conform(pl.DataFrame(rows), EVENTS)
    return RankEvents(events, Source("rank0.json", "kineto", 0, "name"))


def moved_starts(rank):
    """Starts of the kernels in µs after the clock was aligned, and the notices."""
    aligned = align_gpu_clock(rank)
    on_gpu = aligned.events.filter(pl.col("kind") == "kernel")
    starts = (on_gpu["start_ns"] / 1000).to_list()
    return starts, [notice.values for notice in aligned.source.notices]


def test_possible_times_are_left_as_they_are():
    rank = recording([(0, 5, 20), (10, 20, 30)], waits=[(12, 32)])
    assert align_gpu_clock(rank) is rank


def test_a_clock_that_is_early_is_moved_by_the_least_that_makes_every_launch_possible():
    # 45 us early: the launches need +40, +38 and -15.
    starts, notices = moved_starts(recording([(100, 60, 70), (200, 162, 170), (210, 225, 230)]))
    assert starts == [100, 202, 265]
    assert [(n["case"], n["impossible"], n["shift_ns"]) for n in notices] == [("moved", 2, 40_000)]


def test_a_clock_that_is_late_is_moved_by_the_least_that_makes_every_wait_possible():
    kernels = [(0, 3005, 3020), (10, 3025, 3030)]
    starts, notices = moved_starts(recording(kernels, waits=[(12, 32)]))
    assert starts == [7, 27]
    assert [(n["case"], n["late"], n["shift_ns"]) for n in notices] == [("moved", 1, -2_998_000)]


def test_a_clock_that_drifts_is_moved_by_what_passed():
    # 2 % fast: after 10 ms work seems to end 200 us later than the host waited for it.
    kernels = [(at, 1.02 * (at + 5), 1.02 * (at + 15)) for at in range(0, 10_000, 100)]
    waits = [(at + 2, at + 20) for at in range(0, 10_000, 100)]
    starts, notices = moved_starts(recording(kernels, waits))
    assert [n["case"] for n in notices] == ["drifts"]
    assert starts == pytest.approx([at + 5 for at in range(0, 10_000, 100)], abs=5)


def test_times_that_no_shift_explains_are_left_and_counted():
    # One kernel starts 50 us before its launch, another is waited for 50 us before its end.
    kernels = [(0, 5, 10), (100, 50, 60), (200, 205, 300)]
    waits = [(12, 14), (110, 112), (210, 250)]
    starts, notices = moved_starts(recording(kernels, waits))
    assert starts == [5, 50, 205]
    assert notices == [{"case": "unexplained", "impossible": 1, "late": 1, "total": 3}]


def test_one_absurd_time_among_many_moves_nothing():
    kernels = [(at, at + 5, at + 15) for at in range(0, 20_000, 100)]
    starts, notices = moved_starts(recording([*kernels, (20_000, -900_000, -899_000)]))
    assert starts == [*[at + 5 for at in range(0, 20_000, 100)], -900_000]
    assert [(n["case"], n["impossible"]) for n in notices] == [("few", 1)]


@pytest.mark.parametrize("damage", [{"ts": 0, "dur": 5}, {"dur": 3.6e9}])
def test_times_outside_of_the_recording_make_no_figure(samples, tmp_path, damage):
    file = samples / "compile" / "rank0.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernels[10].update(damage)
    (tmp_path / file.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    analysis = analyze(tmp_path)
    lost = [notice.values for notice in analysis.notices if notice.code == "gpu-events-lost"]
    assert ("untimed", 1) in [(values["case"], values["count"]) for values in lost]
    times = [event["ts"] for event in trace["traceEvents"] if event.get("cat") == "cuda_runtime"]
    longest_ns = 2000 * (max(times) - min(times))
    assert all(result.whole.budget.span_ns < longest_ns for result in analysis.ranks)
    assert all(finding.cost_ns < longest_ns for finding in analysis.findings)


def with_gpu_clock(sample, folder, change):
    """Copy a sample with the starts of its GPU work changed; return the copy."""
    for file in sorted(sample.glob("*.json.gz")):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        for event in trace["traceEvents"]:
            if str(event.get("cat", "")).lower() in {"kernel", "gpu_memcpy", "gpu_memset"}:
                event["ts"] = change(event)
        (folder / file.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


@pytest.mark.parametrize("shift_us", [-300, -50])
def test_an_early_clock_does_not_change_the_answer_in_silence(samples, tmp_path, shift_us):
    whole = analysis_of(samples / "compile")
    moved = with_gpu_clock(samples / "compile", tmp_path, lambda event: event["ts"] + shift_us)
    analysis = analyze(moved)
    assert [notice.values["case"] for notice in analysis.notices if notice.code == "gpu-clock"]
    assert analysis.step.time_ns == whole.step.time_ns
    assert [finding.code for finding in analysis.findings if finding.matters] == [
        finding.code for finding in whole.findings if finding.matters
    ]


def test_where_no_shift_explains_the_times_savings_are_withheld(samples, tmp_path):
    # Every other kernel 200 us before its place: no shift fits all launches and waits.
    def shuffled(event):
        return event["ts"] - 200 * (event.get("args", {}).get("correlation", 0) % 2)

    moved = with_gpu_clock(samples / "compile", tmp_path, shuffled)
    analysis = analyze(moved)
    cases = [notice.values["case"] for notice in analysis.notices if notice.code == "gpu-clock"]
    assert cases == ["unexplained"]
    assert analysis.step.free_ns is None
    assert {finding.saves_ns for finding in analysis.findings} <= {None}


def test_where_a_clock_is_doubtful_the_schedule_is_found_by_the_order_of_launches(
    samples, tmp_path
):
    def shuffled(event):
        return event["ts"] - 200 * (event.get("args", {}).get("correlation", 0) % 2)

    whole = analysis_of(samples / "1f1b")
    analysis = analyze(with_gpu_clock(samples / "1f1b", tmp_path, shuffled))
    cases = {notice.values["case"] for notice in analysis.notices if notice.code == "gpu-clock"}
    assert cases & set(WITHHOLDING_CASES)
    assert analysis.schedule.name == whole.schedule.name
    assert analysis.comparison.head.orders() == whole.comparison.head.orders()


def test_a_drift_that_the_times_leave_open_is_least_and_said_to_be_unknown():
    # Launches are fast at one moment alone, and one wait at the end shows that the clock has gained 100 us.
    kernels = [(at, at + 5, at + 6) for at in range(0, 100, 10)]
    late = [(at, at + 5_100, at + 5_101) for at in range(1_000, 10_000, 10)]
    _, notices = moved_starts(recording([*kernels, *late], waits=[(10_000, 14_990)]))
    assert [n["case"] for n in notices] == ["drift_unknown"]


def test_a_drift_that_waits_leave_open_makes_no_finding_about_late_launches(samples, tmp_path):
    whole = analysis_of(samples / "h100-ddp")
    drifting, *others = sorted((samples / "h100-ddp").glob("*.json.gz"))
    trace = json.loads(gzip.decompress(drifting.read_bytes()))
    on_gpu = [
        event
        for event in trace["traceEvents"]
        if str(event.get("cat", "")).lower() in {"kernel", "gpu_memcpy", "gpu_memset"}
    ]
    first = min(event["ts"] for event in on_gpu)
    for event in on_gpu:
        event["ts"] = first + 1.02 * (event["ts"] - first)
    (tmp_path / drifting.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    for file in others:
        (tmp_path / file.name).symlink_to(file)
    analysis = analyze(tmp_path)
    assert analysis.step.free_ns is None
    assert {finding.code for finding in analysis.findings if finding.matters} <= {
        finding.code for finding in whole.findings if finding.matters
    }
