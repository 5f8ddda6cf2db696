"""Slowdown of a pipeline by stage, kind of cell and rank, on cases counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests import kept
from tracekit.compare.slowdowns import OperationGraph, measure_slowdown, pipeline_slowdown, usual_durations
from tracekit.errors import ScheduleError


def test_a_transfer_starts_when_its_last_member_does_on_all_lanes_of_the_step() -> None:
    # Two lanes of one step: compute of 3 and 7, then a joint transfer of 2.
    graph = OperationGraph([[], [0]], transfers=[[1]], joint=frozenset({0}))
    durations = np.array([[3.0, 7.0], [2.0, 2.0]])
    assert graph.run(durations, np.array([0, 0])).tolist() == [9.0]
    assert graph.run(durations, np.array([0, 1])).tolist() == [5.0, 9.0]


def test_a_ring_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="ring"):
        OperationGraph([[1], [0]]).run(np.ones((2, 1)), np.array([0]))


def test_a_slow_rank_explains_the_whole_slowdown() -> None:
    # Three ranks compute and then join; rank 2 takes 4 instead of 1 in one of two steps.
    graph = OperationGraph([[], [], [], [0], [1], [2]], transfers=[[3, 4, 5]])
    durations = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 4.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    usual = np.ones_like(durations)
    rank = np.repeat(np.array([0, 1, 2, 0, 1, 2])[:, None], 2, axis=1)
    slowdown = measure_slowdown(graph, durations, usual, np.array([0, 1]), {"rank": rank})
    assert slowdown.step_ratios == [1.0, 2.5]
    assert slowdown.ratio == 1.75  # (2 + 5) / (2 + 2)
    assert [(part.name, part.alone, part.explains) for part in slowdown.groups] == [
        (2, 1.75, 1.0),
        (0, 1.0, 0.0),
        (1, 1.0, 0.0),
    ]


def test_equal_durations_are_not_split() -> None:
    graph = OperationGraph([[], [0]])
    slowdown = measure_slowdown(
        graph, np.ones((2, 1)), np.ones((2, 1)), np.array([0]), {"op": np.array([["F"], ["B"]])}
    )
    assert slowdown.ratio == 1.0
    assert not slowdown.groups


def test_usual_is_the_mean_of_compute_and_the_median_of_transfers() -> None:
    usual = usual_durations(np.array([[1.0, 2.0, 6.0]] * 2), ["F", "send"], np.array([False, True]))
    assert usual.tolist() == [[3.0] * 3, [2.0] * 3]


def test_a_pipeline_of_a_trace_is_split_by_stage_op_and_rank() -> None:
    comparison = kept.analysis_of("sample_traces/1f1b").schedule
    assert comparison is not None
    slowdown = pipeline_slowdown(comparison)
    assert slowdown is not None
    assert slowdown.ratio > 0.9
    if slowdown.groups:
        assert {part.by for part in slowdown.groups} == {"stage", "op", "rank"}


def test_the_stage_that_works_more_explains_the_slowdown() -> None:
    """Of the sample's two stages, the second does its feed-forward part 12 times."""
    comparison = kept.analysis_of("sample_traces/steps/straggler").schedule
    assert comparison is not None
    slowdown = pipeline_slowdown(comparison)
    assert slowdown is not None
    stages = {part.name: part for part in slowdown.groups if part.by == "stage"}
    ranks = {part.name: part for part in slowdown.groups if part.by == "rank"}
    assert slowdown.ratio > 1.1
    assert stages[1].alone > stages[0].alone
    assert stages[1].explains > 0.9
    assert ranks[1].alone == stages[1].alone  # each rank is one stage
