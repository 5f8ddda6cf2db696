"""NVTX ranges and marks of an Nsight export: their text, domains and ends, and the ops among them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import polars as pl
import pytest

from tests.parsers.nsight_files import EPOCH, Report, packed
from tests.parsers.nsight_reading import only, rows
from tracekit.parsers import nsight

pytestmark = pytest.mark.slow


def test_text_may_be_registered(path):
    report = (
        Report().kernel("k", 0, 1).range("spoken", 1, 2).range("registered", 3, 4, registered=True)
    )
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
        connection.execute(
            "UPDATE NVTX_EVENTS SET text = CAST(x'636166e9' AS TEXT) WHERE text = 'caf?'"
        )
    (rank,) = nsight.read(path)
    assert rows(rank, "annotation", "name") == ["tea", "caf\ufffd"]


def test_domains_are_named_per_process(path):
    report = Report().domain("NCCL", 1, pid=100).domain("Megatron", 1, pid=200)
    for pid in (100, 200):
        report.kernel("k", 50, 60, pid=pid).range("x", 1, 2, domain=1, pid=pid).range(
            "y", 3, 4, pid=pid
        )
    first, second = nsight.read(report.save(path))
    assert rows(first, "annotation", "name", "domain") == [("x", "NCCL"), ("y", None)]
    assert rows(second, "annotation", "name", "domain") == [("x", "Megatron"), ("y", None)]


def test_a_windowed_file_lost_its_domain_names(path):
    report = (
        Report()
        .kernel("k", 0, 1)
        .range("ncclGroupStart", 1, 2, domain=1)
        .range("z", 1, 2, domain=3)
    )
    assert rows(only(report, path), "annotation", "domain") == ["NCCL", "domain 3"]


def test_start_end_ranges_carry_no_thread(path):
    report = (
        Report()
        .kernel("k", 0, 1)
        .range("across", 1, 9, kind=60, tid=4, endGlobalTid=packed(100, 5))
    )
    assert rows(only(report, path), "annotation", "name", "tid", "end_ns") == [
        ("across", None, EPOCH + 9)
    ]


def test_an_unclosed_range_ends_with_the_session(path):
    report = Report().kernel("k", 0, 1).range("open", 10, None)
    assert rows(only(report, path), "annotation", "end_ns") == [EPOCH + 1000]


def test_marks_are_instants(path):
    report = Report().kernel("k", 0, 1).mark("here", 7)
    assert rows(only(report, path), "mark", "name", "start_ns", "end_ns") == [
        ("here", EPOCH + 7, EPOCH + 7)
    ]


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
        (
            "flash_attn::_flash_attn_forward, op_id = 3",
            ("cpu_op", "flash_attn::_flash_attn_forward", None, 3, None),
        ),
        (
            "Optimizer.step#AdamW.step, op_id = 5",
            ("annotation", "Optimizer.step#AdamW.step", None, 5, None),
        ),
        ("nccl:coalesced, op_id = 6", ("annotation", "nccl:coalesced", None, 6, None)),
        (
            "FSDP::pre_forward (blocks.9), op_id = 2",
            ("annotation", "FSDP::pre_forward (blocks.9)", None, 2, None),
        ),
        ("moe_dispatch forward", ("annotation", "moe_dispatch forward", None, None, None)),
        ("a, b and c", ("annotation", "a, b and c", None, None, None)),
        (
            "torch::autograd::AccumulateGrad, op_id = 1, sizes = [[4]]",
            ("cpu_op", "torch::autograd::AccumulateGrad", None, 1, "[[4]]"),
        ),
        (
            "TSL:XlaModule#op, op_id = x",
            ("annotation", "TSL:XlaModule#op, op_id = x", None, None, None),
        ),
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
    assert rows(only(report, path), "annotation", "name", "sequence") == [
        ("aten::mm, seq = 1", None)
    ]


def test_backward_nodes_name_the_thread_of_their_forward(path):
    report = Report().kernel("k", 0, 1)
    report.range("aten::mm, seq = 5", 10, 20, tid=3)
    report.range("aten::mm, seq = 5", 30, 40, tid=4)  # numbers repeat: the latest forward counts
    report.range("autograd::engine::evaluate_function: MmBackward0, op_id = 2", 50, 70, tid=9)
    report.range("MmBackward0, seq = 5", 51, 69, tid=9)
    report.range("aten::mm, op_id = 8", 52, 60, tid=9)
    report.range(
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 3",
        80,
        90,
        tid=9,
    )
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
