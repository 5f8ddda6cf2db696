"""Ranks that number the same steps differently are not compared step by step."""

from __future__ import annotations

import json

import pytest

from tracekit import analyze
from tracekit.errors import InputError

STEP_US = 10_000


def write_rank(folder, rank, first_step, *, steps=3, late_us=0):
    """Write a rank of steps of 10 ms, each with 5 ms of compute, the first at the same time on every rank."""
    events = []
    for n in range(steps):
        start = 1_000_000 + n * STEP_US + late_us
        name = f"ProfilerStep#{first_step + n}"
        events += [
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 1, "ts": start, "dur": STEP_US},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 1,
             "ts": start + 10, "dur": 5, "args": {"correlation": n + 1}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start + 20 + rank, "dur": 5_000,
             "args": {"device": 0, "stream": 7, "correlation": n + 1}},
        ]  # fmt: skip
    ranks = {"rank": rank, "world_size": 3, "backend": "nccl"}
    trace = {"schemaVersion": 1, "distributedInfo": ranks, "traceEvents": events}
    (folder / f"rank{rank}.json").write_text(json.dumps(trace))


@pytest.mark.parametrize(("other", "words"), [(5, "1 higher"), (104, "100 higher"), (3, "1 lower")])
def test_a_rank_that_numbers_the_same_steps_differently_is_refused(tmp_path, other, words):
    for rank, first_step in enumerate((4, 4, other)):
        write_rank(tmp_path, rank, first_step)
    with pytest.raises(InputError, match=f"rank 2 numbers the steps {words}"):
        analyze(tmp_path)
    assert analyze(tmp_path, ranks="0-1").step.time_ns == STEP_US * 1_000


def test_ranks_without_a_common_step_are_refused(tmp_path):
    write_rank(tmp_path, 0, 4, steps=1)
    write_rank(tmp_path, 1, 9, steps=1, late_us=5 * STEP_US)
    with pytest.raises(InputError, match="no step in common: they recorded step 4 and step 9"):
        analyze(tmp_path)


@pytest.mark.parametrize("late_us", [0, 3_000, 12_000, 3_600_000])
def test_clocks_that_are_set_differently_are_no_reason(tmp_path, late_us):
    write_rank(tmp_path, 0, 4)
    write_rank(tmp_path, 1, 4, late_us=late_us)
    assert analyze(tmp_path).step.time_ns == STEP_US * 1_000


def test_a_rank_that_recorded_fewer_steps_is_no_reason(tmp_path):
    write_rank(tmp_path, 0, 4)
    write_rank(tmp_path, 1, 5, steps=2, late_us=STEP_US)
    assert analyze(tmp_path).step.time_ns == STEP_US * 1_000
