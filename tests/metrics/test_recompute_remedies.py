"""Remedies of recomputed forwards, from the launches of one step that can be counted by hand."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.alternatives.recompute import NoRecompute
from tracekit.metrics.alternatives.remedy import HOST_ALONE
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds


def rank_of(launches):
    """Events of a step from (operator, label, time since the launch before); a call each."""
    events = []
    launch_ns = 0
    for row, (op, label, since_ns) in enumerate(launches):
        launch_ns += since_ns
        is_backward = label in ("dgrad", "recompute", "cleared")
        events.append(
            {"row": row, "part": 0, "ns": 7, "label": "memory" if label == "cleared" else label, "op": op, "name": op,
             "launch_ns": launch_ns, "call": row, "is_backward": is_backward}
        )  # fmt: skip
    speeds = Speeds({}, None)
    return RankWork(pl.DataFrame(events), pl.DataFrame(), speeds)


BLOCK = ("norm", "mm", "gelu")


def checkpointed(*, entry_ns=400, exit_ns=300, kernels=BLOCK, before_block=()):
    """Two blocks whose launches are 100 ns apart, but for the first of a block and the first behind it."""
    forward = [("embedding", "forward", 100)]
    for _ in range(2):
        forward += [(op, "dp_comm", 100) for op in before_block]
        forward += [
            (op, "forward", 100 + (entry_ns - 100) * (i == 0)) for i, op in enumerate(kernels)
        ]
        forward += [("norm", "forward", 100)]
    backward = [("loss", "dgrad", 100)]
    for _ in range(2):
        backward += [(op, "recompute", 100) for op in kernels]
        backward += [("mm_backward", "dgrad", exit_ns), ("norm_backward", "dgrad", 100)]
    return forward + backward


def remedies_of(launches):
    remedies = pl.concat(list(NoRecompute().find(rank_of(launches))))
    gone = remedies.filter(pl.col("what").is_null())
    around = remedies.filter(pl.col("what") == HOST_ALONE).sort("row")
    return gone, around


def test_recomputed_work_goes_with_its_launches():
    launches = checkpointed()
    gone, _ = remedies_of(launches)
    rows = [row for row, (_, label, _) in enumerate(launches) if label == "recompute"]
    assert gone["row"].to_list() == rows
    assert gone.select("likely_ns", "host_share").unique().rows() == [(0, 0.0)]


def test_the_host_is_spared_what_it_does_where_a_block_begins_and_behind_it():
    """300 of 400 ns where each block runs first, 200 of 300 behind each recomputed one; others take 100."""
    launches = checkpointed()
    _, around = remedies_of(launches)
    named = {row: launches[row][0] for row in around["row"].to_list()}
    assert [named[row] for row in sorted(named)] == ["norm", "norm", "mm_backward", "mm_backward"]
    assert around["row"].to_list()[0] == 1  # behind the embedding
    assert around["host_share"].to_list() == pytest.approx([1 / 4, 1 / 4, 1 / 3, 1 / 3])
    assert around["likely_ns"].to_list() == [7] * 4


@pytest.mark.parametrize(
    ("launches", "spared"),
    [
        (checkpointed(entry_ns=100, exit_ns=100), []),
        # Two launches do not show where a block began.
        (checkpointed(kernels=("norm", "mm")), ["mm_backward", "mm_backward"]),
        # Parameters are gathered for every block, recomputed or not.
        (checkpointed(before_block=("gather",)), ["mm_backward", "mm_backward"]),
    ],
)
def test_other_launches_keep_the_hosts_time(launches, spared):
    _, around = remedies_of(launches)
    assert [launches[row][0] for row in around["row"].to_list()] == spared


def test_one_launch_that_waits_for_something_else_is_spared_no_more_than_the_others():
    """The second block begins 100 µs later than the first and the third, which are spared 300 ns."""
    launches = [("embedding", "forward", 100)]
    for since_ns in (400, 100_000, 400):
        launches += [
            ("norm", "forward", since_ns),
            ("mm", "forward", 100),
            ("gelu", "forward", 100),
        ]
        launches += [("norm", "forward", 100)]
    launches += [("loss", "dgrad", 100)]
    for _ in range(3):
        launches += [(op, "recompute", 100) for op in BLOCK] + [("mm_backward", "dgrad", 100)]
    _, around = remedies_of(launches)
    assert around["host_share"].to_list() == pytest.approx([0.25, 1 - 300 / 100_000, 0.25])


def test_what_an_operator_clears_goes_with_its_recomputed_kernel():
    rank = rank_of(
        [("mm", "forward", 1), ("mm", "cleared", 1), ("mm", "recompute", 1), ("sum", "cleared", 1)]
    )
    same_call = pl.when(pl.col("row") == 1).then(2).otherwise("call").alias("call")
    rank = RankWork(rank.events.with_columns(same_call), rank.calls, rank.speeds)
    (gone, *_) = NoRecompute().find(rank)
    assert gone["row"].to_list() == [1, 2]
