"""Prefill and decode steps of an inference server, counted by hand."""

import json

import polars as pl
import pytest

from tests.written_findings import written
from tracekit import analyze
from tracekit.metrics.step_kinds import summarize_step_kinds


def server_trace(path, steps):
    """Write a trace whose host launches all work of a step at once, one kernel a step and a small one before it.

    Each step is a mark, its host start and length, and the start and length of its large kernel, in µs.
    """
    events = []
    correlation = 0
    for mark, host_start, host_length, gpu_start, gpu_length in steps:
        host = {"ph": "X", "pid": 1, "tid": 1}
        gpu = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel"}
        events.append(
            {**host, "cat": "user_annotation", "name": mark, "ts": host_start, "dur": host_length}
        )
        for name, start, length in (
            ("position", host_start + 2, 1),
            ("gemm_kernel", gpu_start, gpu_length),
        ):
            correlation += 1
            args = {"correlation": correlation, "stream": 7, "device": 0}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": args}
            events.append({**host, **launch, "ts": host_start + 1, "dur": 1})
            events.append({**gpu, "name": name, "ts": start, "dur": length, "args": args})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_step_takes_the_gpu_work_that_it_launched_whatever_its_mark_says(tmp_path):
    trace = server_trace(
        tmp_path / "rank0.json",
        [
            ("step[EXTEND bs=2 toks=600]", 0, 20, 10, 490),  # its work ends at 500
            ("step[DECODE bs=2]", 30, 465, 505, 9),  # ends at 514: 14 after the step before
            ("step[DECODE bs=2]", 500, 20, 520, 11),  # ends at 531
        ],
    )
    kinds = analyze(str(trace)).to_dict()["step"]["kinds"]
    prefill, decode = kinds
    assert (prefill["kind"], prefill["steps"], prefill["time_ns"]) == ("prefill", 1, 491_000)
    assert (prefill["tokens"], prefill["interval_ns"]) == (600, None)
    assert (decode["kind"], decode["steps"], decode["time_ns"]) == ("decode", 2, 11_000)
    assert decode["interval_ns"] == (14_000 + 17_000) / 2
    assert decode["gpu_busy"] == pytest.approx(22 / 31)
    assert decode["tokens_per_s"] == pytest.approx(4 / 31e-6)


def test_a_run_without_marks_of_a_server_has_no_kinds(tmp_path):
    trace = server_trace(tmp_path / "rank0.json", [("ProfilerStep#1", 0, 20, 10, 490)])
    assert "kinds" not in analyze(str(trace)).to_dict()["step"]


def steps_of(kind, tokens, gpu_ns):
    count = len(tokens)
    return pl.DataFrame(
        {
            "step": range(count),
            "kind": [kind] * count,
            "requests": [1] * count,
            "tokens": tokens,
            "gpu_ns": gpu_ns,
            "interval_ns": gpu_ns,
            "gap_ns": [0] * count,
        }
    )


def test_the_time_of_a_prefill_grows_with_its_tokens():
    (kind,) = summarize_step_kinds(
        [steps_of("prefill", [100, 200, 300, 400], [150, 250, 350, 450])]
    )
    assert kind.ns_per_token == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("tokens", "gpu_ns"),
    [([100, 200, 300], [150, 250, 350]), ([100, 110, 120, 149], [150, 160, 170, 199])],
)
def test_too_few_or_too_similar_steps_show_no_growth(tokens, gpu_ns):
    (kind,) = summarize_step_kinds([steps_of("prefill", tokens, gpu_ns)])
    assert kind.ns_per_token is None


def test_a_tail_needs_five_steps():
    four = summarize_step_kinds([steps_of("decode", [1] * 4, [10, 10, 10, 50])])[0]
    five = summarize_step_kinds([steps_of("decode", [1] * 5, [10, 10, 10, 10, 50])])[0]
    assert four.time_tail_ns is None
    assert five.time_tail_ns == 42  # the 95th percentile lies 4/5 of the way from 10 to 50


def test_a_step_takes_the_median_of_its_ranks():
    ranks = [steps_of("decode", [1, 1], [gpu_ns, 20]) for gpu_ns in (10, 30, 90)]
    (kind,) = summarize_step_kinds(ranks)
    assert kind.steps == 2
    assert kind.time_ns == 25


def long_server_trace(path):
    """Write ten decode steps that end every 20 µs, then a prefill of 600 µs, then ten more.

    Each decode computes for 10 µs and begins 10 µs after the step before has ended.
    """
    steps = []
    start = 0
    for number in range(21):
        is_prefill = number == 10
        mark = "step[EXTEND bs=2 toks=900]" if is_prefill else "step[DECODE bs=4]"
        length = 590 if is_prefill else 10
        # The small kernel of a step runs where its host begins: right before the large one.
        steps.append((mark, start + 8, 11, start + 10, length))
        start += 10 + length
    return server_trace(path, steps)


def test_decode_that_waits_for_a_prefill_is_a_finding(tmp_path):
    analysis = analyze(str(long_server_trace(tmp_path / "rank0.json")))
    prefill, decode = analysis.step_kinds
    assert (prefill.steps, decode.steps) == (1, 20)
    assert (decode.interval_ns, prefill.interval_ns) == (20_000, 600_000)
    assert (decode.delayed_steps, decode.delay_ns) == (1, 600_000)
    (finding,) = [finding for finding in analysis.findings if finding.code == "slow_step"]
    assert finding.text == (
        "in 1 of 20 decode steps the sequences wait 0.60 ms for a prefill; otherwise a token takes 20 µs"
    )
    assert finding.cost_ns == round(600_000 / 21)


def test_decode_steps_in_a_row_wait_for_nothing(tmp_path):
    steps = [("step[DECODE bs=4]", 20 * n, 11, 20 * n + 5, 10) for n in range(6)]
    analysis = analyze(str(server_trace(tmp_path / "rank0.json", steps)))
    (decode,) = analysis.step_kinds
    assert (decode.delayed_steps, decode.delay_ns) == (0, None)
    assert not [finding for finding in analysis.findings if finding.code == "slow_step"]


def test_the_gap_before_a_step_is_counted_from_the_end_of_all_work(tmp_path):
    steps = [("step[DECODE bs=4]", 20 * n, 11, 20 * n + 3, 10) for n in range(6)]
    analysis = analyze(str(server_trace(tmp_path / "rank0.json", steps)))
    # The small kernel runs from 2 to 3, the large one to 13; the next step begins at 22.
    assert analysis.step_kinds[0].gap_ns == 9_000
    assert analysis.step_kinds[0].time_ns == 11_000
    (finding,) = [finding for finding in analysis.findings if finding.code == "launch_bound"]
    # The GPU is idle five times from 13 to 22, and in the first step from its mark at 0 to 2.
    assert finding.text.endswith("(96 % of all idle time is between two steps)")
    assert finding.advice.startswith("schedule, sample and detokenize while the GPU runs")


@pytest.mark.parametrize("share", [0.49, None])
def test_idle_time_inside_steps_is_not_said_to_be_between_them(share):
    evidence = {"workload": "inference", "between_steps_share": share}
    assert "between" not in written("python", evidence=evidence).text
