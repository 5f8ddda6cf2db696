"""All-to-alls told from point-to-point messages among NCCL's own ranges, with and without payloads."""

from __future__ import annotations

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tracekit.classify import classify
from tracekit.parsers import nsight

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class Calls(Report):
    """NCCL calls one after another on a thread, each group followed by its kernel."""

    def __init__(self, payloads):
        super().__init__()
        self.at, self.corr, self.payloads = 0, 0, payloads
        self.domain("NCCL", 1)

    def nccl(self, name, *, peer=None, size=64, comm=7):
        text = f'{{"NCCL communicator ID":{comm},"Message size [bytes]":{size},"Peer rank":{peer}}}'
        more = {"jsonText": text} if self.payloads and peer is not None else {}
        self.range(name, self.at, self.at + 5, domain=1, **more)
        self.at += 10

    def launch(self):
        self.corr += 1
        self.call("cudaLaunchKernelExC", self.at, self.at + 5, corr=self.corr)
        self.kernel(KERNEL, self.at + 7, self.at + 17, corr=self.corr, stream=20)
        self.at += 20

    def exchange(self, members, *, counted=False, missing=()):
        if counted:
            self.nccl("ncclCommCount")
        self.nccl("ncclGroupStart")
        for peer in range(members):
            for way in ("ncclSend", "ncclRecv"):
                if (way, peer) not in missing:
                    self.nccl(way, peer=peer, size=64 * (peer + 1))
        self.nccl("ncclGroupEnd")
        self.launch()

    def messages(self, *sent):
        """Batched messages: a group for each, inside one."""
        self.nccl("ncclGroupStart")
        for way, peer in sent:
            self.nccl("ncclGroupStart")
            self.nccl(way, peer=peer)
            self.nccl("ncclGroupEnd")
        self.nccl("ncclGroupEnd")
        self.launch()


def answers(calls, path):
    (rank,) = nsight.read(calls.save(path / "rank0.sqlite"))
    asked = rank.events.filter(pl.col("kind") == "cpu_op", pl.col("collective") != "part")
    rows = asked.select(pl.col("collective").cast(pl.String), "peer", "bytes").rows()
    kernels = classify(rank.events).sort("start_ns")
    return rows, kernels.select(pl.col("collective", "p2p", "label").cast(pl.String)).rows()


@pytest.mark.parametrize("payloads", [True, False])
def test_messages_to_every_member_in_one_group_are_an_all_to_all(tmp_path, payloads):
    calls = Calls(payloads)
    calls.exchange(2)
    calls.messages(("ncclSend", 1), ("ncclRecv", 1))
    rows, kernels = answers(calls, tmp_path)
    peer, size = (1, 64) if payloads else (None, None)
    assert rows == [
        ("all_to_allv", None, 192 if payloads else None),
        ("send", peer, size),
        ("recv", peer, size),
    ]
    name = peer if payloads else "?"
    assert [row[:2] for row in kernels] == [
        ("all_to_allv", None),
        ("coalesced", f"send:{name},recv:{name}"),
    ]
    assert kernels[1][2] == "pp_comm"
    assert kernels[0][2] != "pp_comm"


@pytest.mark.parametrize("payloads", [True, False])
def test_batched_messages_to_two_neighbours_are_none(tmp_path, payloads):
    """Each stands in a group of its own."""
    calls = Calls(payloads)
    calls.messages(("ncclSend", 0), ("ncclRecv", 0), ("ncclSend", 2), ("ncclRecv", 2))
    _, kernels = answers(calls, tmp_path)
    expected = "send:0,recv:0,send:2,recv:2" if payloads else "send:?,recv:?,send:?,recv:?"
    assert kernels == [("coalesced", expected, "pp_comm")]


def test_an_exchange_with_neighbours_alone_is_none_where_the_peers_are_known(tmp_path):
    """A group of a program's own with both neighbours leaves itself out: nobody sends to rank 1 here."""
    calls = Calls(payloads=True)
    calls.nccl("ncclGroupStart")
    for peer in (0, 2):
        calls.nccl("ncclSend", peer=peer)
        calls.nccl("ncclRecv", peer=peer)
    calls.nccl("ncclGroupEnd")
    calls.launch()
    _, kernels = answers(calls, tmp_path)
    assert kernels == [("coalesced", "send:0,recv:0,send:2,recv:2", "pp_comm")]


@pytest.mark.parametrize("payloads", [True, False])
def test_empty_parts_of_an_all_to_all_are_not_sent(tmp_path, payloads):
    """The library asks over how many members it goes, and leaves out who gets nothing."""
    calls = Calls(payloads)
    calls.exchange(2, counted=True, missing=[("ncclSend", 1)])
    _, kernels = answers(calls, tmp_path)
    assert [row[:2] for row in kernels] == [("all_to_allv", None)]
