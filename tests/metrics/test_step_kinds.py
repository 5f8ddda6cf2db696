"""Prefill and decode steps of an inference server, counted by hand."""

import json

import polars as pl
import pytest

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
