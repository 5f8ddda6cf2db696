"""Steps of inference against answers worked out from the raw JSON of public traces."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from tracekit import analyze
from tracekit.report.terminal.first_screen import first_screen

pytestmark = pytest.mark.slow

MARK = re.compile(r"step\[([A-Z]+) bs=(\d+)|execute_\d*_?context_(\d+)\(.*\)_generation_(\d+)\(")
KINDS = {"EXTEND": "prefill", "DECODE": "decode"}
GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
TRACES = {
    "inference/sglang_prefilldecode.json.gz": [("prefill", 15, 15_360)],
    "models/sglang_decode.json.gz": [("decode", 32, 32)],
    "models/b200_eager.json.gz": [("prefill", 1, 888)],
    "tracelens/qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz": [("decode", 16, 16)],
}
"""Kind, sequences and tokens of the steps of each trace, as its marks say."""
PERIOD_US = 500_000
COPIES = 12


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def union_ns(intervals):
    """Return the length of a union of intervals, in nanoseconds."""
    total = 0
    until = None
    for start, end in sorted(intervals):
        if until is None or start > until:
            total += end - start
            until = end
        elif end > until:
            total += end - until
            until = end
    return total


def ns(time_us):
    return round(float(time_us) * 1000)


def gpu_times_by_mark(events):
    """Return kind of mark and union of the GPU work launched inside, for each outermost mark of the host."""
    marks = []
    for event in events:
        match = MARK.match(str(event.get("name", "")))
        if event.get("cat") == "user_annotation" and match:
            prefills = match[3] is not None and int(match[3]) > 0
            kind = KINDS[match[1]] if match[1] else "prefill" if prefills else "decode"
            marks.append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), kind))
    marks.sort(key=lambda mark: (mark[0], -mark[1]))
    outer = [mark for i, mark in enumerate(marks) if not any(m[1] >= mark[1] for m in marks[:i])]
    launches = {}
    for event in events:
        if event.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in event["args"]:
            launches[event["args"]["correlation"]] = ns(event["ts"])
    times = []
    for start, end, kind in outer:
        work = []
        for event in events:
            if event.get("cat") in GPU:
                launch = launches.get(event["args"].get("correlation"))
                if launch is not None and start <= launch < end:
                    work.append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
        times.append((kind, union_ns(work)))
    return times


@pytest.mark.parametrize("name", TRACES)
def test_each_step_takes_the_union_of_the_work_launched_inside_its_mark(corpus, name):
    expected = gpu_times_by_mark(read(corpus / name)["traceEvents"])
    kinds = analyze(str(corpus / name)).step_kinds
    assert [(kind.kind, kind.requests, kind.tokens) for kind in kinds] == TRACES[name]
    assert [kind for kind, _ in expected] == [kind.kind for kind in kinds]
    # A kernel's start and end are rounded to nanoseconds one by one.
    assert [time for _, time in expected] == pytest.approx(
        [kind.time_ns for kind in kinds], rel=1e-5
    )


def repeated(trace, copies, *, longer_us=0):
    """Return a trace with its step *copies* times, one every ``PERIOD_US``.

    Copy n decodes 8 (n + 1) sequences, and its last GPU event runs n times *longer_us* longer.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    last = max((e for e in events if e.get("cat") in GPU), key=lambda e: e["ts"])
    repeated_events = []
    for n in range(copies):
        size = 8 * (n + 1)
        for event in events:
            copy = {**event, "ts": event["ts"] + n * PERIOD_US, "args": {**event.get("args", {})}}
            for key in ("correlation", "External id"):
                if key in copy["args"]:
                    copy["args"][key] += n * 10_000_000
            if event is last:
                copy["dur"] += n * longer_us
            name = str(event.get("name", ""))
            if MARK.match(name):
                in_bs = re.sub(r"bs=\d+", f"bs={size}", name)
                copy["name"] = re.sub(
                    r"generation_\d+\(sq\d+", f"generation_{size}(sq{size}", in_bs
                )
            repeated_events.append(copy)
    return {**trace, "traceEvents": repeated_events}


def test_a_recording_of_many_steps_has_medians_tails_and_growth(corpus, tmp_path):
    """A real decode step, repeated: copy n runs n ms longer and decodes eight sequences more."""
    original = read(corpus / "models/sglang_decode.json.gz")
    ((_, one_ns),) = gpu_times_by_mark(original["traceEvents"])
    long = repeated(original, COPIES, longer_us=1000)
    (tmp_path / "rank0.json").write_text(json.dumps(long))
    (decode,) = analyze(tmp_path).step_kinds
    assert (decode.kind, decode.steps) == ("decode", COPIES)
    # Copies 0 to 11 take 0 to 11 ms more: the median of them 5.5 ms, 95 % up to 10.45 ms.
    assert decode.time_ns == pytest.approx(one_ns + 5_500_000, rel=1e-5)
    assert decode.time_tail_ns == pytest.approx(one_ns + 10_450_000, rel=1e-5)
    assert decode.ns_per_token == pytest.approx(1e6 / 8, rel=1e-4)
    # Each ends a period and 1 ms after the one before.
    assert decode.interval_ns == pytest.approx(1000 * PERIOD_US + 1_000_000, rel=1e-6)
    tokens = sum(8 * (n + 1) for n in range(1, COPIES))
    assert decode.tokens_per_s == pytest.approx(tokens / (11 * 0.501), rel=1e-5)


def test_work_from_before_the_recording_is_not_saved_by_an_earlier_host(corpus):
    """The recording begins with a copy that waits 493 ms for work that it does not hold."""
    analysis = analyze(str(corpus / "inference/sglang_prefilldecode.json.gz"))
    assert analysis.step.budget_ns.unrecorded_ns > 490_000_000
    assert [row.change for row in analysis.changed_steps if "host" in row.change] == []
    # Neither idle time nor a finding, in the step without the profiler as in the recorded one.
    assert analysis.step.free_budget_ns.idle_ns < 2_000_000
    assert [finding.case for finding in analysis.findings if finding.code == "recording"] == []


@pytest.mark.parametrize(
    "name", ["inference/sglang_prefilldecode.json.gz", "models/sglang_decode.json.gz"]
)
def test_work_from_before_the_recording_is_left_out_of_shares(corpus, name):
    """The GPU works for 493 and 9.8 ms on what was recorded; the copy waits for 493 and 463 ms before."""
    analysis = analyze(str(corpus / name))
    known_ns = analysis.step.reference_ns
    assert known_ns < 0.51 * (analysis.step.free_ns or analysis.step.time_ns)
    for finding in analysis.findings:
        assert finding.share == pytest.approx(finding.cost_ns / known_ns, rel=0.001)
        assert finding.cost_ns <= known_ns
    lines = [line.plain for line in first_screen(analysis, 100)]
    shares = [int(share) for share in re.findall(r"(?:compute|idle) (\d+) %", lines[1])]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert "not recorded +" in lines[1]


def test_a_single_step_begins_when_the_gpu_has_ended_the_work_of_the_steps_before(corpus):
    """PyTorch's own mark on the GPU says when that is: its first and last kernel are of the step."""
    path = corpus / "models/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    marks = [e for e in read(path)["traceEvents"] if e.get("cat") == "gpu_user_annotation"]
    (on_gpu,) = [e for e in marks if e["name"] == "ProfilerStep#6"]
    (step,) = analyze(str(path)).step.per_step
    assert step.time_ns == pytest.approx(on_gpu["dur"] * 1000, rel=0.02)
