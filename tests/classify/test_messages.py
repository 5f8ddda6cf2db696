"""Activations or gradients: what the messages of a pipeline carry, without anybody's annotation."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.classify.conftest import ENGINE, unannotated
from tracekit._util.categories import CategoryColumn
from tracekit.classify import classify
from tracekit.classify.communication_passes import sent_passes

WORDS = ("forward", "backward")
LETTERS = {"forward": "f", "backward": "b", None: "-"}


def sent(story, peers=""):
    """Passes of the sends in a story: F and B compute, s sends, anything else is work that is not sent on."""
    computed = CategoryColumn(WORDS, np.array([{"F": 0, "B": 1}.get(c, -1) for c in story]))
    sends = np.array([c == "s" for c in story])
    peer = np.full(len(story), -1)
    peer[sends] = [int(p) for p in peers] if peers else -1
    actual = sent_passes(np.arange(len(story)), computed, sends, peer).series("pass").to_list()
    return "".join(LETTERS[v] for v, is_send in zip(actual, sends, strict=True) if is_send)


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ("FsFsBsBs", "ffbb"),
        ("FsFBsFBsBs", "fbbb"),  # of two results one went out: the last
        ("FsFBssFBssBs", "ffbfbb"),  # both went out, in the order they were done
        ("FsBFssBs", "fbfb"),
        ("FsFBBWsWsBs", "ffbb"),  # weight gradients in between are not sent on
        ("FssBssFBssss", "ffbbffbb"),  # two tensors a message
        ("FsBsFBsss", "fb---"),  # three messages from two results: nobody knows
        ("sFs", "-f"),
        ("ss", "--"),
    ],
)
def test_by_what_was_done_since_the_last_message(story, expected):
    assert sent(story) == expected


@pytest.mark.parametrize(
    ("story", "peers", "expected"),
    [
        ("FsBsFBsFBs", "1010", "fbfb"),  # activations go to 1, gradients to 0, late or not
        ("FsBsFBs", "111", "fbb"),  # one neighbour is sent both
        ("FsFsFsFsBsBsBsBsFs", "111100000", "ffffbbbbb"),  # one exception in five
        ("FsBsFsBsFBss", "100111", "fbfbfb"),  # both ranks are sent both
    ],
)
def test_by_whom_it_is_sent_to(story, peers, expected):
    assert sent(story, peers) == expected


@pytest.mark.parametrize("rank", [0, 2, 5, 6])
def test_an_overlapped_ring_sends_activations_ahead_and_gradients_back(samples, load, rank):
    """Pipelines of ranks 0, 2, 4, 6 and of 1, 3, 5, 7, each a ring.

    Forward and backward run side by side.
    """
    events = load(samples / f"vpp-overlap/rank{rank}.pt.trace.json.gz")
    for table in (events, unannotated(events)):
        rows = classify(table).filter(pl.col("label") == "pp_comm")
        ahead, back = (rank + 2) % 8, (rank - 2) % 8
        actual = set(rows.select("p2p", "pass").rows())
        assert actual <= {
            (f"send:{ahead}", "forward"),
            (f"recv:{back}", "forward"),
            (f"send:{back}", "backward"),
            (f"recv:{ahead}", "backward"),
        }


def test_what_a_product_zeroes_first_is_no_forward_work(program):
    """A memset under a deferred product's operator must not pass for a forward between two messages."""
    program.op("aten::mm", 0, 5, sequence=7)
    program.kernel("gemm_kernel", 1)
    program.op("aten::relu", 6, 8, sequence=8)
    program.nccl("send", 10, peer=1, group_desc="pp")
    program.node("MmBackward0", 20, 30, 7)
    program.kernel("k", 21, tid=ENGINE)
    program.op("aten::mm", 40, 45, sequence=8)
    program.kernel("Memset (Device)", 41, kind="memset")
    message = program.nccl("send", 50, peer=1, group_desc="pp")
    row = classify(program.events()).filter(pl.col("id") == message)
    assert row["pass"].to_list() == ["backward"]
