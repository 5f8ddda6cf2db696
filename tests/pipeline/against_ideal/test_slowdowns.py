"""Slowdown of a pipeline by stage, kind of cell and rank, on cases counted by hand."""

from __future__ import annotations

import numpy as np
import polars as pl

from tests import kept
from tracekit.pipeline.against_ideal.replay import (
    CellGraph,
    measure_slowdown,
    pipeline_slowdown,
    replay_cells,
)


def test_a_step_ends_with_its_last_cell_on_any_lane() -> None:
    # Two stages and one micro-batch: F on stage 0, F and B on stage 1, B on stage 0, one after the
    # other.
    columns = {
        "position": [0, 0, 1, 1],
        "op": ["F", "B", "F", "B"],
        "stage": [0, 0, 1, 1],
        "microbatch": [0] * 4,
    }
    none = pl.lit(None, pl.Int32)
    graph = CellGraph.of(pl.DataFrame(columns).with_columns(b_stage=none, b_microbatch=none))
    durations = np.array([[1.0, 1.0], [2.0, 5.0], [1.0, 1.0], [2.0, 2.0]])
    assert replay_cells(graph, np.array([0, 0]), durations).tolist() == [9.0]
    assert replay_cells(graph, np.array([1, 0]), durations).tolist() == [9.0, 6.0]


def test_a_slow_rank_explains_the_whole_slowdown() -> None:
    # Three ranks compute and then join; rank 2 takes 4 instead of 1 in one of two steps.
    durations = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 4.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    usual = np.ones_like(durations)
    rank = np.repeat(np.array([0, 1, 2, 0, 1, 2])[:, None], 2, axis=1)
    slowdown = measure_slowdown(
        lambda ns: ns[:3].max(axis=0) + ns[3:].max(axis=0), durations, usual, {"rank": rank}
    )
    assert slowdown.step_ratios == [1.0, 2.5]
    assert slowdown.ratio == 1.75  # (2 + 5) / (2 + 2)
    assert [(group.name, group.alone, group.explains) for group in slowdown.groups] == [
        (2, 1.75, 1.0),
        (0, 1.0, 0.0),
        (1, 1.0, 0.0),
    ]


def test_equal_durations_are_not_split() -> None:
    equal, ops = np.ones((2, 1)), np.array([["F"], ["B"]])
    slowdown = measure_slowdown(lambda durations: durations.sum(axis=0), equal, equal, {"op": ops})
    assert slowdown.ratio == 1.0
    assert not slowdown.groups


def test_a_pipeline_of_a_trace_is_split_by_stage_op_and_rank() -> None:
    comparison = kept.analysis_of("sample_traces/1f1b").comparison
    assert comparison is not None
    slowdown = pipeline_slowdown(comparison)
    assert slowdown is not None
    assert slowdown.ratio > 0.9
    if slowdown.groups:
        assert {group.by for group in slowdown.groups} == {"stage", "op", "rank"}


def test_the_stage_that_works_more_explains_the_slowdown() -> None:
    """Of the sample's two stages, the second does its feed-forward part 12 times."""
    comparison = kept.analysis_of("sample_traces/steps/straggler").comparison
    assert comparison is not None
    slowdown = pipeline_slowdown(comparison)
    assert slowdown is not None
    stages = {group.name: group for group in slowdown.groups if group.by == "stage"}
    ranks = {group.name: group for group in slowdown.groups if group.by == "rank"}
    assert slowdown.ratio > 1.1
    assert stages[1].alone > stages[0].alone
    assert stages[1].explains > 0.9
    assert ranks[1].alone == stages[1].alone  # each rank is one stage
