"""Advice about RL iterations and weight updates, on results made by hand."""

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.analysis.result import RoleResults
from tracekit.documents.roles import Iteration, RolloutTail, WeightUpdate
from tracekit.report.view.roles import role_advice

MS = 1_000_000


def advice(**results):
    clocks = SimpleNamespace(table=pl.DataFrame({"uncertainty_ns": [0]}))
    return role_advice(
        SimpleNamespace(role_results=RoleResults(**results), clocks=clocks, reload=None)
    )


def iteration(index, tail_rank):
    tail = RolloutTail(tail_rank, 20 * MS, 40 * MS, tail_rank, 0, None, None)
    phases = {"rollout": 60 * MS, "train": 40 * MS, "weight_sync": 0, "idle": 0}
    return Iteration(index, 100 * MS * index, 100 * MS * (index + 1), phases, (), tail)


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ((3, 3), "the rollout of rank 3 takes 20.0 ms"),
        ((3, 1), "not always the same rank's) takes 20.0 ms"),
    ],
)
def test_a_tail_is_a_ranks_only_if_it_is_in_every_iteration(ranks, named):
    (text,) = advice(iterations=tuple(iteration(index, rank) for index, rank in enumerate(ranks)))
    assert named in text
    assert ("rank 3" in text) is (len(set(ranks)) == 1)


def update(start_ms, took_ms, ideal_ms):
    gap = {"host_and_rpc": (took_ms - ideal_ms) * MS}
    begin, end = start_ms * MS, (start_ms + took_ms) * MS
    return WeightUpdate(
        begin, end, 1000, 1, 0, 0, 0, 0, ideal_ms * MS, 1.0, None, None, 1000, (0,), gap, None
    )


def test_the_longest_weight_update_is_the_one_to_shorten():
    """The first takes 12 of 10 ms, the second 30."""
    (text,) = advice(weight_updates=(update(0, 12, 10), update(100, 30, 10)))
    assert text.startswith("20.0 ms of the 20.0 ms between the weight update and its ideal")
