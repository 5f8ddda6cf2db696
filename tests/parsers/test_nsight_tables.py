"""Tables of an Nsight export: what each version writes, and tables and columns that are not there."""

from __future__ import annotations

import pytest
from polars.testing import assert_frame_equal

from tests.parsers.nsight_files import EPOCH, VERSIONS, training
from tests.parsers.nsight_reading import codes, only, rows
from tracekit.schema import EVENTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_the_same_table(path, version):
    rank = only(training(), path, version)
    assert rows(
        rank, "kernel", "name", "start_ns", "end_ns", "device", "stream", "correlation"
    ) == [
        ("gemm_f", EPOCH + 30, EPOCH + 40, 0, 7, 1),
        ("gemm_b", EPOCH + 60, EPOCH + 75, 0, 7, 2),
    ]
    assert rows(rank, "memcpy", "name", "bytes") == [("Memcpy DtoH (Device -> Pinned)", 64)]
    assert rows(rank, "memset", "name", "bytes") == [("Memset (Device)", 4)]
    assert rows(rank, "runtime", "name") == [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
    ]
    assert rows(rank, "driver", "name", "tid", "pid") == [("cuLaunchKernelEx", 2, 100)]
    assert rows(rank, "cpu_op", "name", "tid", "sequence", "fwd_thread", "shapes") == [
        ("aten::mm", 1, 5, 0, "[[2,3],[3,4]]"),
        ("autograd::engine::evaluate_function: MmBackward0", 2, 5, 1, None),
        ("MmBackward0", 2, 5, 1, "[[2,4]]"),
    ]
    assert rank.events.schema == EVENTS
    expected = {} if version == "none" else {"nsys": "2099.1", "schema": version}
    assert dict(rank.source.versions) == expected
    assert rank.source.devices == ("NVIDIA Toy",)
    assert rank.source.record_shapes is True
    assert codes(rank) == set()


def test_row_order_in_the_file_does_not_matter(tmp_path):
    report = training()
    report.kernel("twin", 30, 40, corr=1, stream=9).kernel("twin", 30, 41, corr=1)
    forward = only(report, tmp_path / "a.sqlite")
    backward = only(report, tmp_path / "b.sqlite", reverse=True)
    assert_frame_equal(forward.events, backward.events)
    assert forward.events["id"].to_list() == list(range(forward.events.height))
    assert forward.events["start_ns"].is_sorted()


@pytest.mark.parametrize(
    "gone",
    [
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "PROCESSES",
        "TARGET_INFO_GPU",
        "ANALYSIS_DETAILS",
    ],
)
def test_a_missing_table_costs_only_its_own_events(path, gone):
    rank = only(training(), path, without=[gone])
    assert rows(rank, "kernel", "name") == ["gemm_f", "gemm_b"]
    if gone == "NVTX_EVENTS":
        assert "no-ranges" in codes(rank)
        assert rank.source.record_shapes is None
    if gone == "CUPTI_ACTIVITY_KIND_RUNTIME":
        assert "no-launches" in codes(rank)


def test_missing_columns_become_null_or_the_next_best(path):
    gone = [
        "KERNEL.demangledName",
        "KERNEL.graphNodeId",
        "MEMCPY.srcKind",
        "MEMCPY.dstKind",
        "RUNTIME.eventClass",
    ]
    rank = only(training(), path, without=[f"CUPTI_ACTIVITY_KIND_{name}" for name in gone])
    assert rows(rank, "kernel", "name", "graph") == [("gemm_f", None), ("gemm_b", None)]
    assert rows(rank, "memcpy", "name") == ["Memcpy DtoH (Device -> Unknown)"]
    assert rows(rank, "driver", "name") == ["cuLaunchKernelEx"]  # by its name


def test_gpu_events_that_name_no_process(path):
    rank = only(training(), path, without=["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"])
    assert rows(rank, "kernel", "name", "pid") == [("gemm_f", 100), ("gemm_b", 100)]


def test_without_a_string_table_events_stay(path):
    rank = only(training(), path, without=["StringIds"])
    assert rows(rank, "kernel", "name") == ["[unknown kernel]"] * 2
    assert "unnamed" in codes(rank)  # and an analysis of it is refused: see test_nsight_damage


def test_without_a_clock_times_count_from_zero_and_that_is_said(path):
    rank = only(training(), path, without=["TARGET_INFO_SESSION_START_TIME"])
    assert rows(rank, "kernel", "start_ns") == [30, 60]
    assert "no-clock" in codes(rank)
