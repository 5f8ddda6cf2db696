"""Nsight exports: what each version writes, and the traps in them, on files small enough to count by hand."""

from __future__ import annotations

import io
import json
import sqlite3
import struct
from contextlib import closing

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.parsers.nsight_files import EPOCH, NONE, VERSIONS, Report, packed
from tracekit.parsers import nsight
from tracekit.schema import EVENTS


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.sqlite"


def only(report, path, version="3.20.3", **options):
    """The one rank of a report."""
    (rank,) = nsight.read(report.save(path, version, **options))
    return rank


def rows(rank, kind, *columns):
    frame = rank.events.filter(pl.col("kind") == kind).select(columns)
    return [row[0] if len(columns) == 1 else row for row in frame.rows()]


def codes(rank):
    return {notice.code for notice in rank.source.notices}


def training(report=None):
    """A forward and a backward op with a kernel each, a copy and a memset: what every version can say."""
    report = report or Report()
    report.range("aten::mm, seq = 5, op_id = 1, sizes = [[2, 3], [3, 4]]", 10, 20, tid=1)
    report.call("cudaLaunchKernel_v7000", 12, 14, corr=1, tid=1).kernel("gemm_f", 30, 40, corr=1)
    report.range("autograd::engine::evaluate_function: MmBackward0, op_id = 2", 50, 70, tid=2)
    report.range("MmBackward0, seq = 5, op_id = 3, sizes = [[2, 4]]", 51, 69, tid=2)
    report.call("cuLaunchKernelEx", 55, 56, corr=2, tid=2, driver=1).kernel("gemm_b", 60, 75, corr=2)
    report.call("cudaMemcpyAsync_v3020", 71, 72, corr=3).copy(80, 90, kind=2, src=2, dst=1, corr=3)
    report.call("cudaMemsetAsync_ptsz_v7000", 73, 74, corr=4).memset(95, 96, corr=4)
    return report


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_the_same_table(path, version):
    rank = only(training(), path, version)
    assert rows(rank, "kernel", "name", "start_ns", "end_ns", "device", "stream", "correlation") == [
        ("gemm_f", EPOCH + 30, EPOCH + 40, 0, 7, 1),
        ("gemm_b", EPOCH + 60, EPOCH + 75, 0, 7, 2),
    ]
    assert rows(rank, "memcpy", "name", "bytes") == [("Memcpy DtoH (Device -> Pinned)", 64)]
    assert rows(rank, "memset", "name", "bytes") == [("Memset (Device)", 4)]
    assert rows(rank, "runtime", "name") == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"]
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


# --- tables and columns that are not there ---


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
        assert "no-launch" in codes(rank)


def test_missing_columns_become_null_or_the_next_best(path):
    gone = ["KERNEL.demangledName", "KERNEL.graphNodeId", "MEMCPY.srcKind", "MEMCPY.dstKind", "RUNTIME.eventClass"]
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


def test_processes_never_mix_though_correlations_repeat_and_both_are_device_0(path):
    report = Report()
    for pid in (100, 200):
        report.call("cudaLaunchKernel", pid, pid + 1, corr=1, pid=pid, tid=pid)
        report.kernel(f"k{pid}", 500, 510, corr=1, pid=pid, device=0)
        report.range(f"r{pid}", pid - 5, pid + 5, pid=pid, tid=pid)
    first, second = nsight.read(report.save(path))
    assert [first.source.rank, second.source.rank] == [0, 1]
    for rank, pid in ((first, 100), (second, 200)):
        assert rows(rank, "kernel", "name") == [f"k{pid}"]
        assert rows(rank, "runtime", "start_ns") == [EPOCH + pid]
        assert rows(rank, "annotation", "name") == [f"r{pid}"]
        assert rank.events["rank"].unique().to_list() == [rank.source.rank]


def test_one_process_with_two_gpus_is_two_ranks_that_share_its_calls(path):
    report = Report().call("cudaLaunchKernel", 1, 2, corr=1).call("cudaLaunchKernel", 3, 4, corr=2)
    report.kernel("a", 5, 6, corr=1, device=0).kernel("b", 5, 6, corr=2, device=1)
    first, second = nsight.read(report.save(path))
    assert rows(first, "kernel", "name", "device") == [("a", 0)]
    assert rows(second, "kernel", "name", "device") == [("b", 1)]
    assert len(rows(first, "runtime", "name")) == len(rows(second, "runtime", "name")) == 2


def test_a_gpu_that_is_only_touched_is_no_rank(path):
    report = Report().kernel("k", 5, 6, device=1).memset(7, 8, device=0)
    rank = only(report, path)
    assert rows(rank, "kernel", "device") == [1]
    assert rank.source.counts == {"kernel": 1}
    assert rank.source.skipped == {"events on other devices": 1}


def test_several_calls_can_share_a_correlation(path):
    report = Report().call("cudaLaunchKernel_v7000", 1, 9, corr=1).call("cuLaunchKernel", 2, 8, corr=1, driver=1)
    rank = only(report.kernel("k", 20, 30, corr=1), path)
    assert len(rows(rank, "kernel", "name")) == 1
    assert rank.source.counts == {"runtime": 1, "driver": 1, "kernel": 1}


def test_no_stream_is_null(path):
    rank = only(Report().kernel("k", 1, 2, stream=NONE), path)
    assert rows(rank, "kernel", "stream") == [None]


def test_kernels_without_a_launch_are_kept_and_counted(path):
    report = Report().call("cudaLaunchKernel", 1, 2, corr=1).kernel("in", 5, 6, corr=1).kernel("out", 3, 4, corr=99)
    rank = only(report, path)
    assert rows(rank, "kernel", "name") == ["out", "in"]
    (notice,) = [n for n in rank.source.notices if n.code == "no-launch"]
    assert "1 of 2" in notice.message


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
        ["cudaStreamGetCaptureInfo_v2_v11030", "cudaLaunchKernel_ptsz_v7000", "cuMemcpyDtoHAsync_v2"]
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
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=3, end=8, correlationId=4, globalPid=packed(100), syncType=wrong
    )
    assert rows(only(report, path), "sync", "name", "start_ns") == [("cudaDeviceSynchronize", EPOCH + 3)]


# --- CUDA graphs ---


def test_graph_mode_is_said_and_never_idle(path):
    rank = only(Report().graph(10, 50, corr=1).call("cudaGraphLaunch_v10000", 1, 2, corr=1), path)
    assert rows(rank, "graph", "name", "start_ns", "end_ns", "graph") == [("CUDA graph 5", EPOCH + 10, EPOCH + 50, 5)]
    assert "graph-mode" in codes(rank)


def test_node_mode_measures_the_kernels_of_a_graph(path):
    report = Report().call("cudaGraphLaunch_v10000", 1, 2, corr=1)
    report.kernel("a", 10, 20, corr=1, graphNodeId=41).kernel("b", 20, 30, corr=1, graphNodeId=42)
    rank = only(report, path)
    assert rows(rank, "kernel", "name", "graph", "correlation") == [("a", 41, 1), ("b", 42, 1)]
    assert "graph-mode" not in codes(rank)


# --- NVTX ---


def test_text_may_be_registered(path):
    report = Report().kernel("k", 0, 1).range("spoken", 1, 2).range("registered", 3, 4, registered=True)
    assert rows(only(report, path), "annotation", "name") == ["spoken", "registered"]


def test_text_after_many_registered_rows_is_still_text(path):
    report = Report().kernel("k", 0, 1)
    for i in range(3000):
        report.range("registered", i, i + 1, registered=True)
    rank = only(report.range("spoken", 5000, 5001), path)
    assert rows(rank, "annotation", "name")[-1] == "spoken"


def test_text_that_is_no_utf_8_keeps_what_can_be_read(path):
    Report().kernel("k", 0, 1).range("tea", 1, 2).range("caf?", 3, 4).save(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(x'636166e9' AS TEXT) WHERE text = 'caf?'")
    (rank,) = nsight.read(path)
    assert rows(rank, "annotation", "name") == ["tea", "caf\ufffd"]


def test_domains_are_named_per_process(path):
    report = Report().domain("NCCL", 1, pid=100).domain("Megatron", 1, pid=200)
    for pid in (100, 200):
        report.kernel("k", 50, 60, pid=pid).range("x", 1, 2, domain=1, pid=pid).range("y", 3, 4, pid=pid)
    first, second = nsight.read(report.save(path))
    assert rows(first, "annotation", "name", "domain") == [("x", "NCCL"), ("y", None)]
    assert rows(second, "annotation", "name", "domain") == [("x", "Megatron"), ("y", None)]


def test_a_windowed_file_lost_its_domain_names(path):
    report = Report().kernel("k", 0, 1).range("ncclGroupStart", 1, 2, domain=1).range("z", 1, 2, domain=3)
    assert rows(only(report, path), "annotation", "domain") == ["NCCL", "domain 3"]


def test_start_end_ranges_carry_no_thread(path):
    report = Report().kernel("k", 0, 1).range("across", 1, 9, kind=60, tid=4, endGlobalTid=packed(100, 5))
    assert rows(only(report, path), "annotation", "name", "tid", "end_ns") == [("across", None, EPOCH + 9)]


def test_an_unclosed_range_ends_with_the_session(path):
    report = Report().kernel("k", 0, 1).range("open", 10, None)
    assert rows(only(report, path), "annotation", "end_ns") == [EPOCH + 1000]


def test_marks_are_instants(path):
    report = Report().kernel("k", 0, 1).mark("here", 7)
    assert rows(only(report, path), "mark", "name", "start_ns", "end_ns") == [("here", EPOCH + 7, EPOCH + 7)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "aten::mm, seq = 883, op_id = 9181, sizes = [[1, 2], []], input_op_ids = [(1,0), (0,-1)]",
            ("cpu_op", "aten::mm", 883, 9181, "[[1,2],[]]"),
        ),
        ("aten::empty, op_id = 9", ("cpu_op", "aten::empty", None, 9, None)),
        ("aten::t, seq = 4, sizes = [[8, 9]]", ("cpu_op", "aten::t", 4, None, "[[8,9]]")),
        ("aten::view", ("cpu_op", "aten::view", None, None, None)),
        ("detach_, op_id = 7", ("cpu_op", "detach_", None, 7, None)),
        ("AllToAll4D, seq = 12, op_id = 8", ("cpu_op", "AllToAll4D", 12, 8, None)),
        ("flash_attn::_flash_attn_forward, op_id = 3", ("cpu_op", "flash_attn::_flash_attn_forward", None, 3, None)),
        ("Optimizer.step#AdamW.step, op_id = 5", ("annotation", "Optimizer.step#AdamW.step", None, 5, None)),
        ("nccl:coalesced, op_id = 6", ("annotation", "nccl:coalesced", None, 6, None)),
        ("FSDP::pre_forward (blocks.9), op_id = 2", ("annotation", "FSDP::pre_forward (blocks.9)", None, 2, None)),
        ("moe_dispatch forward", ("annotation", "moe_dispatch forward", None, None, None)),
        ("a, b and c", ("annotation", "a, b and c", None, None, None)),
        (
            "torch::autograd::AccumulateGrad, op_id = 1, sizes = [[4]]",
            ("cpu_op", "torch::autograd::AccumulateGrad", None, 1, "[[4]]"),
        ),
        ("TSL:XlaModule#op, op_id = x", ("annotation", "TSL:XlaModule#op, op_id = x", None, None, None)),
    ],
)
def test_emit_nvtx_text(path, text, expected):
    rank = only(Report().kernel("k", 0, 1).range(text, 5, 6), path)
    (row,) = (
        rank.events.filter(pl.col("kind") != "kernel")
        .select("kind", "name", "sequence", "external_id", "shapes")
        .rows()
    )
    assert row == expected


def test_ops_live_in_the_default_domain_alone(path):
    report = Report().kernel("k", 0, 1).domain("mine", 2).range("aten::mm, seq = 1", 5, 6, domain=2)
    assert rows(only(report, path), "annotation", "name", "sequence") == [("aten::mm, seq = 1", None)]


def test_backward_nodes_name_the_thread_of_their_forward(path):
    report = Report().kernel("k", 0, 1)
    report.range("aten::mm, seq = 5", 10, 20, tid=3)
    report.range("aten::mm, seq = 5", 30, 40, tid=4)  # numbers repeat: the latest forward counts
    report.range("autograd::engine::evaluate_function: MmBackward0, op_id = 2", 50, 70, tid=9)
    report.range("MmBackward0, seq = 5", 51, 69, tid=9)
    report.range("aten::mm, op_id = 8", 52, 60, tid=9)
    report.range("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 3", 80, 90, tid=9)
    report.range("torch::autograd::AccumulateGrad, op_id = 4", 81, 89, tid=9)
    report.range("LostBackward, seq = 77", 95, 99, tid=9)  # its forward ran before the recording
    engine = "autograd::engine::evaluate_function: "
    assert rows(only(report, path), "cpu_op", "name", "sequence", "fwd_thread") == [
        ("aten::mm", 5, 0),
        ("aten::mm", 5, 0),
        (engine + "MmBackward0", 5, 4),
        ("MmBackward0", 5, 4),
        ("aten::mm", None, None),
        (engine + "torch::autograd::AccumulateGrad", None, None),
        ("torch::autograd::AccumulateGrad", None, None),
        ("LostBackward", 77, 100),
    ]


# --- steps ---


def stepped(path, *marks):
    report = Report()
    for at in (10, 30, 50):
        report.call("cudaLaunchKernel", at, at + 1, corr=at).kernel("k", at + 100, at + 110, corr=at)
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


@pytest.mark.parametrize("name", ["train_step", "[pl][profile]run_training_batch", "PipelineEngine.train_batch"])
def test_ranges_of_trainers_that_have_no_number_are_counted(path, name):
    assert stepped(path, (name, 5, 20), (name, 25, 40), (name, 45, 60)) == [0, 1, 2]


def test_ranges_around_the_forward_alone_are_no_steps(path):
    """Half of what is launched lies between them."""
    assert stepped(path, ("train_step", 5, 20), ("train_step", 45, 60)) == [None] * 3


def test_one_range_without_a_number_is_no_step(path):
    assert stepped(path, ("train_step", 5, 60)) == [None] * 3


def test_starts_and_stops_of_the_profiler_are_steps(path):
    report = Report()
    for at in (10, 30, 50):
        report.call("cudaProfilerStart", at - 4, at - 3).call("cudaProfilerStop", at + 5, at + 6)
        report.call("cudaLaunchKernel", at, at + 1, corr=at).kernel("k", at + 100, at + 110, corr=at)
    assert rows(only(report, path), "kernel", "step") == [0, 1, 2]


def test_threads_that_mark_the_same_step_widen_it(path):
    assert stepped(path, ("step 1", 5, 20), ("step 1", 15, 35), ("step 2", 45, 60)) == [1, 1, 2]


# --- communication ---

SEND = 16777225
INIT = 16777227


def payload(schema, *fields):
    body = struct.pack("<QQi4x" if schema == SEND else "<Qiii4x", *fields)
    return struct.pack("<QQQQ", 1, schema, len(body), len(body) + 32) + body


def with_schemas(report):
    named = {
        SEND: [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)],
        INIT: [("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)],
    }
    for schema, fields in named.items():
        for i, (name, kind, offset) in enumerate(fields):
            report.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=schema, idx=i, type=kind, name=name, offset=offset
            )
    return report


def batched(report, *, send=None, recv=None):
    """A send and a receive asked for one after the other, then launched together, as torch.distributed batches them."""
    report.domain("NCCL", 1)
    report.range("c10d::send, op_id = 1, sizes = [[2, 8], [], []]", 10, 20)
    report.range("record_param_comms, op_id = 2, sizes = [[2, 8], [], []]", 11, 19)
    report.range("ncclSend", 14, 15, domain=1, **(send or {}))
    report.range("c10d::recv_, seq = 3, op_id = 3, sizes = [[2, 8], [], []]", 20, 30)
    report.range("record_param_comms, op_id = 4, sizes = [[2, 8], [], []]", 21, 29)
    report.range("ncclRecv", 24, 25, domain=1, **(recv or {}))
    report.range("nccl:coalesced, op_id = 5", 31, 40)
    report.range("ncclGroupEnd", 32, 39, domain=1)
    report.call("cuLaunchKernelEx", 33, 34, corr=1, driver=1).kernel("ncclDevKernel_SendRecv(args)", 50, 60, corr=1)
    report.range("record_param_comms, op_id = 6, sizes = [[], [], []]", 41, 42)
    return report


RECORDS = ("name", "collective", "peer", "bytes", "group")


def records(rank):
    frame = rank.events.filter(pl.col("kind") == "cpu_op", pl.col("collective").is_not_null())
    return frame.select(RECORDS).rows()


def test_sends_and_receives_go_by_the_op_around_them(path):
    rank = only(batched(Report()), path)
    assert records(rank) == [
        ("record_param_comms", "send", None, None, None),
        ("record_param_comms", "recv", None, None, None),
        ("record_param_comms", "wait", None, None, None),
    ]
    assert "no-peers" in codes(rank)
    # Each message is told once: NCCL's ranges inside the ops do not repeat it, and a batch's kernel carries none.
    assert rank.events.filter(pl.col("kind") != "cpu_op")["collective"].is_null().all()
    assert rows(rank, "annotation", "name", "domain") == [
        ("ncclSend", "NCCL"),
        ("ncclRecv", "NCCL"),
        ("nccl:coalesced", None),
        ("ncclGroupEnd", "NCCL"),
    ]


@pytest.mark.parametrize("form", ["bytes", "hex", "json"])
def test_payloads_give_peer_size_and_communicator(path, form):
    def said(comm, size, peer):
        if form == "json":
            fields = {"NCCL communicator ID": comm, "Message size [bytes]": size, "Peer rank": peer}
            return {"jsonText": json.dumps({"payload": [fields]})}
        blob = payload(SEND, comm, size, peer)
        return {"binaryData": blob if form == "bytes" else blob.hex()}

    report = batched(with_schemas(Report()), send=said(2**63 + 5, 4096, 3), recv=said(2**63 + 5, 8192, 1))
    rank = only(report, path)
    assert records(rank)[:2] == [
        ("record_param_comms", "send", 3, 4096, str(2**63 + 5)),
        ("record_param_comms", "recv", 1, 8192, str(2**63 + 5)),
    ]
    assert codes(rank) == {"peers-in-communicator"}


def test_peers_in_a_communicator_of_the_whole_job_are_ranks(path):
    comm = {"jsonText": json.dumps({"NCCL communicator ID": 7, "Message size [bytes]": 1, "Peer rank": 1})}
    report = batched(with_schemas(Report()), send=comm, recv=comm)
    report.range("ncclCommInitRank", 0, 1, domain=1, binaryData=payload(INIT, 7, 2, 0, 0))
    rank = only(report, path)
    assert [row[2] for row in records(rank)] == [1, 1, None]
    assert codes(rank) == set()


@pytest.mark.parametrize(
    "text", ["", "[", "null", '{"Peer rank": "x"}', '{"Peer rank": 99999999999999999999}', '{"Peer rank": true}']
)
def test_payloads_that_make_no_sense_say_nothing(path, text):
    report = batched(with_schemas(Report()), send={"jsonText": text}, recv={"binaryData": b"\x01" * 40})
    rank = only(report, path)
    assert [row[2:] for row in records(rank)] == [(None, None, None)] * 3


def test_a_collective_kernel_takes_what_its_op_says(path):
    report = Report().domain("NCCL", 1)
    report.range("c10d::alltoall_base_, op_id = 1, sizes = [[8], [8]]", 10, 40)
    report.range("record_param_comms, op_id = 2, sizes = [[8]]", 11, 39)
    report.range("nccl:all_to_all, op_id = 3", 12, 38)
    for i in range(4):
        report.range("ncclSend" if i % 2 else "ncclRecv", 13 + i, 14 + i, domain=1)
    report.call("cuLaunchKernelEx", 30, 31, corr=1, driver=1).kernel("ncclDevKernel_SendRecv(args)", 50, 60, corr=1)
    report.call("cudaLaunchKernel", 35, 36, corr=2).kernel("not_nccl", 61, 62, corr=2)
    rank = only(report, path)
    assert rows(rank, "kernel", "name", "collective") == [
        ("ncclDevKernel_SendRecv(args)", "all_to_allv"),
        ("not_nccl", None),
    ]
    assert [row[1:] for row in records(rank)] == [("all_to_allv", None, None, None)]


def test_nccl_calls_outside_torch_are_ops_of_their_own(path):
    report = Report().domain("NCCL", 1).range("ncclGroupStart", 1, 2, domain=1)
    report.range("ncclAllReduce", 3, 9, domain=1, registered=True)
    report.call("cuLaunchKernelEx", 5, 6, corr=1, driver=1).kernel("ncclDevKernel_AllReduce(args)", 20, 30, corr=1)
    rank = only(report, path)
    assert records(rank) == [("record_param_comms", "allreduce", None, None, None)]
    assert rows(rank, "kernel", "collective") == ["allreduce"]


def test_ranks_by_what_nccl_said(path):
    report = with_schemas(Report()).domain("NCCL", 1, pid=100).domain("NCCL", 1, pid=200)
    for pid, number in ((100, 3), (200, 2)):
        report.kernel("k", 1, 2, pid=pid)
        report.range("ncclCommInitRank", 0, 1, pid=pid, domain=1, binaryData=payload(INIT, 9, 2, number % 2, 0))
        report.range("ncclCommInitRank", 0, 1, pid=pid, domain=1, binaryData=payload(INIT, 7, 4, number, 0))
    first, second = nsight.read(report.save(path))
    assert [(r.source.rank, r.source.rank_from, r.source.world_size) for r in (first, second)] == [
        (3, "content", 4),
        (2, "content", 4),
    ]


def test_ranks_by_mpi_by_name_by_order_and_as_asked(tmp_path):
    def numbers(report, name, **options):
        return [(r.source.rank, r.source.rank_from) for r in nsight.read(report.save(tmp_path / name), **options)]

    alone = Report().kernel("k", 1, 2)
    assert numbers(alone, "report.sqlite") == [(0, "only file")]
    assert numbers(alone, "run_rank-12.sqlite") == [(12, "name")]
    assert numbers(alone, "frank3.sqlite") == [(0, "only file")]
    assert numbers(alone, "rank4.sqlite", rank=6) == [(6, "option")]
    two = Report().kernel("k", 1, 2, pid=300).kernel("k", 1, 2, pid=200)
    assert numbers(two, "rank9.sqlite") == [(0, "content"), (1, "content")]
    assert numbers(two, "two.sqlite", rank=8) == [(8, "option"), (9, "option")]
    mpi = Report().kernel("k", 1, 2).range("MPI Rank 5", 0, None, kind=39)
    assert numbers(mpi, "rank1.sqlite") == [(5, "content")]


# --- what must be said, and what must not ---


def test_lost_events_are_said_without_the_text(path):
    report = Report().kernel("k", 0, 1)
    for severity, text in [
        (1, "info SECRET"),
        (2, "Not all events: /home/SECRET"),
        (2, "lost SECRET"),
        (3, "bad SECRET"),
        (4, "SECRET"),
    ]:
        report.add("DIAGNOSTIC_EVENT", severity=severity, text=text, timestamp=0)
    said = [n.message for n in only(report, path).source.notices if n.code == "profiler-warnings"]
    assert [message.split(" (")[0] for message in said] == ["some events were lost", "the profiler reported a problem"]
    assert "2 such warnings" in said[0]
    assert not any("SECRET" in message for message in said)


def test_environment_command_line_and_output_reach_nothing(path):
    report = training()
    report.add("TARGET_INFO_SYSTEM_ENV", name="TOKEN", value="SECRET-env")
    report.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value="SECRET-command")
    report.add("META_DATA_EXPORT", name="EXPORT_HOST", value="SECRET-host")
    report.add("PROCESSES", globalPid=packed(100), pid=100, name="SECRET-process")
    report.add("ProcessStreams", globalPid=packed(100), contentId=report.string("SECRET-output"))
    rank = only(report, path)
    assert "SECRET" not in str(rank.source.to_dict())
    for write in (pl.DataFrame.write_ipc, pl.DataFrame.write_parquet):
        stored = io.BytesIO()
        write(rank.events, stored, compression="uncompressed")
        assert b"gemm_f" in stored.getvalue()
        assert b"SECRET" not in stored.getvalue()
