"""Kernels, copies, calls and CUDA graphs of an Nsight export: their ids and their names."""

from __future__ import annotations

import pytest

from tests.parsers.nsight_files import EPOCH, NONE, Report, packed
from tests.parsers.nsight_reading import codes, only, rows
from tracekit.report.notices import notice_sentence

pytestmark = pytest.mark.slow

# --- ids ---


def test_ids_with_the_top_bit_set_are_negative_in_sqlite(path):
    report = (
        Report()
        .kernel("k", 5, 9, corr=1, pid=77, machine=200)
        .call("cudaLaunchKernel", 1, 2, corr=1, pid=77, tid=9, machine=200)
    )
    assert packed(77, machine=200) < 0
    rank = only(report, path)
    assert rows(rank, "runtime", "pid", "tid") == [(77, 9)]
    assert rows(rank, "kernel", "pid") == [77]


def test_several_calls_can_share_a_correlation(path):
    report = (
        Report()
        .call("cudaLaunchKernel_v7000", 1, 9, corr=1)
        .call("cuLaunchKernel", 2, 8, corr=1, driver=1)
    )
    rank = only(report.kernel("k", 20, 30, corr=1), path)
    assert len(rows(rank, "kernel", "name")) == 1
    assert rank.source.counts == {"runtime": 1, "driver": 1, "kernel": 1}


def test_no_stream_is_null(path):
    rank = only(Report().kernel("k", 1, 2, stream=NONE), path)
    assert rows(rank, "kernel", "stream") == [None]


def test_kernels_without_a_launch_are_kept_and_counted(path):
    report = (
        Report()
        .call("cudaLaunchKernel", 1, 2, corr=1)
        .kernel("in", 5, 6, corr=1)
        .kernel("out", 3, 4, corr=99)
    )
    rank = only(report, path)
    assert rows(rank, "kernel", "name") == ["out", "in"]
    (notice,) = [n for n in rank.source.notices if n.code == "no-launches"]
    assert "1 of 2" in notice_sentence(notice)


# --- names ---


def test_copies_are_named_as_in_pytorch_traces(path):
    report = Report().kernel("k", 0, 1)
    for i, (kind, src, dst) in enumerate(
        [(1, 1, 2), (1, 0, 2), (2, 2, 0), (8, 2, 2), (10, 2, 2), (11, None, None), (0, 7, 7)]
    ):
        report.copy(10 + i, 11 + i, kind=kind, src=src, dst=dst)
    assert rows(only(report, path), "memcpy", "name") == [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy DtoD (Device -> Device)",
        "Memcpy PtoP (Device -> Device)",
        "Memcpy HtoD (Managed -> Device)",
        "Memcpy Unknown (Unknown -> Unknown)",
    ]


def test_kernel_names_spell_template_arguments_as_pytorch_does(path):
    name = "void at::native::<unnamed>::f<(int)4, (bool)1, (bool)0, (unsigned long)4096, (unsigned int)2>(T1 *)"
    rank = only(Report().kernel(name, 0, 1), path)
    assert rows(rank, "kernel", "name") == [
        "void at::native::(anonymous namespace)::f<4, true, false, 4096ul, 2u>(T1 *)"
    ]


def test_call_versions_go_but_a_v2_that_is_part_of_the_name_stays(path):
    report = Report().kernel("k", 9, 10)
    for i, name in enumerate(
        [
            "cudaStreamGetCaptureInfo_v2_v11030",
            "cudaLaunchKernel_ptsz_v7000",
            "cuMemcpyDtoHAsync_v2",
        ]
    ):
        report.call(name, i, i + 1)
    assert rows(only(report, path), "runtime", "name") == [
        "cudaStreamGetCaptureInfo_v2",
        "cudaLaunchKernel",
        "cuMemcpyDtoHAsync_v2",
    ]


def test_a_synchronisation_goes_by_its_call_not_by_its_type(path):
    report = Report().kernel("k", 0, 1).call("cudaDeviceSynchronize_v3020", 2, 9, corr=4)
    wrong = 1  # "event sync"
    report.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=3,
        end=8,
        correlationId=4,
        globalPid=packed(100),
        syncType=wrong,
    )
    assert rows(only(report, path), "sync", "name", "start_ns") == [
        ("cudaDeviceSynchronize", EPOCH + 3)
    ]


# --- CUDA graphs ---


def test_graph_mode_is_said_and_never_idle(path):
    rank = only(Report().graph(10, 50, corr=1).call("cudaGraphLaunch_v10000", 1, 2, corr=1), path)
    assert rows(rank, "graph", "name", "start_ns", "end_ns", "graph") == [
        ("CUDA graph 5", EPOCH + 10, EPOCH + 50, 5)
    ]
    assert "graphs-whole" in codes(rank)


def test_node_mode_measures_the_kernels_of_a_graph(path):
    report = Report().call("cudaGraphLaunch_v10000", 1, 2, corr=1)
    report.kernel("a", 10, 20, corr=1, graphNodeId=41).kernel("b", 20, 30, corr=1, graphNodeId=42)
    rank = only(report, path)
    assert rows(rank, "kernel", "name", "graph", "correlation") == [("a", 41, 1), ("b", 42, 1)]
    assert "graphs-whole" not in codes(rank)
