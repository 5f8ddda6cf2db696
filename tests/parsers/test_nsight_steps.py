"""Steps of an Nsight export: the ranges, instants and calls that mark them, and those that do not."""

from __future__ import annotations

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tests.parsers.nsight_reading import only, rows
from tracekit.parsers.process_ranks import find_steps

pytestmark = pytest.mark.slow


def stepped(path, *marks):
    report = Report()
    for launch in (10, 30, 50):
        report.call("cudaLaunchKernel", launch, launch + 1, corr=launch).kernel(
            "k", launch + 100, launch + 110, corr=launch
        )
    for text, start, end in marks:
        report.range(text, start, end) if end else report.mark(text, start)
    return rows(only(report, path), "kernel", "step")


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#{}",
        "step {}",
        "Step_{}",
        "iteration {}",
        "iter {}",
        "train step {}",
        "global_step: {}",
        "Step[{}]",
    ],
)
def test_ranges_mark_steps_and_kernels_belong_to_their_launch(path, name):
    assert stepped(path, (name.format(4), 5, 20), (name.format(5), 25, 40)) == [4, 5, None]


def test_instants_begin_steps(path):
    assert stepped(path, ("step 7", 20, None), ("step 8", 40, None)) == [6, 7, 8]


def test_ranges_come_before_instants(path):
    assert stepped(path, ("step 3", 20, None), ("ProfilerStep#9", 5, 60)) == [9, 9, 9]


def test_without_marks_there_are_no_steps(path):
    assert stepped(path, ("forward", 5, 60)) == [None] * 3


@pytest.mark.parametrize(
    "name", ["train_step", "[pl][profile]run_training_batch", "PipelineEngine.train_batch"]
)
def test_ranges_of_trainers_that_have_no_number_are_counted(path, name):
    assert stepped(path, (name, 5, 20), (name, 25, 40), (name, 45, 60)) == [0, 1, 2]


def test_ranges_around_the_forward_alone_are_no_steps(path):
    """Half of what is launched lies between them."""
    assert stepped(path, ("train_step", 5, 20), ("train_step", 45, 60)) == [None] * 3


def test_one_range_without_a_number_is_no_step(path):
    assert stepped(path, ("train_step", 5, 60)) == [None] * 3


def test_starts_and_stops_of_the_profiler_are_steps(path):
    report = Report()
    for start in (10, 30, 50):
        report.call("cudaProfilerStart", start - 4, start - 3).call(
            "cudaProfilerStop", start + 5, start + 6
        )
        report.call("cudaLaunchKernel", start, start + 1, corr=start).kernel(
            "k", start + 100, start + 110, corr=start
        )
    assert rows(only(report, path), "kernel", "step") == [0, 1, 2]


def test_threads_that_mark_the_same_step_widen_it(path):
    assert stepped(path, ("step 1", 5, 20), ("step 1", 15, 35), ("step 2", 45, 60)) == [1, 1, 2]


def test_steps_of_a_server_are_steps():
    ranges = pl.DataFrame(
        {
            "kind": ["annotation", "annotation"],
            "name": ["[Executor] _forward_step 8: 1 ctx reqs, 0 gen reqs", "step 3"],
            "start_ns": [10, 10],
            "end_ns": [20, 20],
        }
    )
    assert find_steps(ranges, ranges.clear()).rows() == [(0, 10, 20)]
