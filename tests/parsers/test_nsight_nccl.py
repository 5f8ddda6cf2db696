"""Communication in an Nsight export: what ops, NCCL's ranges and their payloads say of messages and collectives."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tests.parsers.nsight_payloads import INIT, SEND, payload, with_schemas
from tests.parsers.nsight_reading import codes, only, rows

pytestmark = pytest.mark.slow


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
    report.call("cuLaunchKernelEx", 33, 34, corr=1, driver=1).kernel(
        "ncclDevKernel_SendRecv(args)", 50, 60, corr=1
    )
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
    # Each message is told once: NCCL's ranges inside the ops do not repeat it, and a batch's kernel
    # carries none.
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

    report = batched(
        with_schemas(Report()), send=said(2**63 + 5, 4096, 3), recv=said(2**63 + 5, 8192, 1)
    )
    rank = only(report, path)
    assert records(rank)[:2] == [
        ("record_param_comms", "send", 3, 4096, str(2**63 + 5)),
        ("record_param_comms", "recv", 1, 8192, str(2**63 + 5)),
    ]
    assert codes(rank) == {"peers-in-communicator"}


def test_peers_in_a_communicator_of_the_whole_job_are_ranks(path):
    comm = {
        "jsonText": json.dumps(
            {"NCCL communicator ID": 7, "Message size [bytes]": 1, "Peer rank": 1}
        )
    }
    report = batched(with_schemas(Report()), send=comm, recv=comm)
    report.range("ncclCommInitRank", 0, 1, domain=1, binaryData=payload(INIT, 7, 2, 0, 0))
    rank = only(report, path)
    assert [row[2] for row in records(rank)] == [1, 1, None]
    assert codes(rank) == set()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "null",
        '{"Peer rank": "x"}',
        '{"Peer rank": 99999999999999999999}',
        '{"Peer rank": true}',
    ],
)
def test_payloads_that_make_no_sense_say_nothing(path, text):
    report = batched(
        with_schemas(Report()), send={"jsonText": text}, recv={"binaryData": b"\x01" * 40}
    )
    rank = only(report, path)
    assert [row[2:] for row in records(rank)] == [(None, None, None)] * 3


def test_a_collective_kernel_takes_what_its_op_says(path):
    report = Report().domain("NCCL", 1)
    report.range("c10d::alltoall_base_, op_id = 1, sizes = [[8], [8]]", 10, 40)
    report.range("record_param_comms, op_id = 2, sizes = [[8]]", 11, 39)
    report.range("nccl:all_to_all, op_id = 3", 12, 38)
    for i in range(4):
        report.range("ncclSend" if i % 2 else "ncclRecv", 13 + i, 14 + i, domain=1)
    report.call("cuLaunchKernelEx", 30, 31, corr=1, driver=1).kernel(
        "ncclDevKernel_SendRecv(args)", 50, 60, corr=1
    )
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
    report.call("cuLaunchKernelEx", 5, 6, corr=1, driver=1).kernel(
        "ncclDevKernel_AllReduce(args)", 20, 30, corr=1
    )
    rank = only(report, path)
    assert records(rank) == [("record_param_comms", "allreduce", None, None, None)]
    assert rows(rank, "kernel", "collective") == ["allreduce"]
