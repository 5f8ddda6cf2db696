"""Slowdown of a pipeline by stage, kind of operation and worker.

The operations of a step are replayed with their dependencies. With every duration set to what is usual for its kind
(the mean over all stages, replicas and steps) the step takes its usual time; the slowdown is the measured durations'
time over it. A group of operations contributes what its measured durations alone cost, and what setting them to the
usual ones saves (Lin et al., arXiv 2505.05713).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Bools, Ints
from tracekit.compare.replay import CellGraph
from tracekit.documents.analysis import GroupSlowdown, Slowdown

if TYPE_CHECKING:
    from tracekit.compare.comparison import ScheduleComparison

Times = npt.NDArray[np.float64]
StepTimes = Callable[[Times], Times]
"""Function that returns the time of each step if its operations (rows) take these durations on every lane (columns). A
lane is one replica in one step."""
MIN_SLOWDOWN_TO_SPLIT = 1.03
"""Slowdown from which its parts are worth computing."""
MAX_PIPELINE_GROUPS = 16
"""Stages, and ranks, that a pipeline is replayed for: those whose cells took longest beyond the usual."""


def measure_slowdown(
    step_times: StepTimes,
    durations: Times,
    usual: Times,
    groups: Mapping[str, npt.NDArray[Any]],
    *,
    min_ratio: float = MIN_SLOWDOWN_TO_SPLIT,
    max_groups: int | None = None,
) -> Slowdown:
    """Return the slowdown and the contribution of each group.

    Args:
        step_times: Replay of the steps with other durations.
        durations: Measured durations, operations × lanes.
        usual: Durations without stragglers, likewise.
        groups: By what to split it: the group of every operation and lane, an array like *durations*.
        min_ratio: Slowdown from which it is split.
        max_groups: Groups of each kind to replay, those with the most time beyond the usual; all by default.

    >>> stage = np.array([[0], [1]])
    >>> slow = measure_slowdown(
    ...     lambda durations: durations.sum(axis=0), np.array([[1.0], [3.0]]), np.ones((2, 1)), {"stage": stage}
    ... )
    >>> slow.ratio, slow.groups[0].name, slow.groups[0].alone, slow.groups[0].explains
    (2.0, 1, 2.0, 1.0)

    """
    measured, ideal = step_times(durations), step_times(usual)
    measured_mean, ideal_mean = float(measured.mean()), float(ideal.mean())
    ratio = measured_mean / ideal_mean
    if ratio < min_ratio:
        return Slowdown(ratio, (measured / ideal).tolist(), [])
    contributions = []
    for by, group in groups.items():
        names, index = np.unique(group, return_inverse=True)
        excess = np.bincount(index.ravel(), (durations - usual).ravel())
        for name in names[np.argsort(-excess)][:max_groups].tolist():
            alone, without = replay_group(step_times, durations, usual, group == name)
            explains = (measured_mean - without) / (measured_mean - ideal_mean)
            contributions.append(GroupSlowdown(by, name, alone / ideal_mean, explains))
    contributions.sort(key=lambda part: (part.by, -part.alone))
    return Slowdown(ratio, (measured / ideal).tolist(), contributions)


def replay_group(step_times: StepTimes, durations: Times, usual: Times, selected: Bools) -> tuple[float, float]:
    """Return the mean step time with only the selected operations as measured, and with only them as usual."""
    alone = step_times(np.where(selected, durations, usual)).mean()
    without = step_times(np.where(selected, usual, durations)).mean()
    return float(alone), float(without)


def pipeline_slowdown(comparison: ScheduleComparison) -> Slowdown | None:
    """Return the slowdown of a run's pipelines by stage, kind of cell and rank; None if steps differ in their order.

    Lanes are pipelines and steps; messages take no time.
    """
    first = comparison.all[0].replays.graph
    lanes = [step for step in comparison.all if _same_cells(step.replays.graph, first)]
    if 2 * len(lanes) <= len(comparison.all):
        return None
    durations = np.stack([step.replays.work for step in lanes], axis=1).astype(np.float64)
    usual = np.empty_like(durations)
    for op in np.unique(first.op):
        usual[first.op == op] = durations[first.op == op].mean()
    numbers = [step.pipeline.step for step in lanes]
    lane_step = np.array([sorted(set(numbers), key=str).index(number) for number in numbers])
    ranks = np.array([[step.pipeline.ranks[position] for step in lanes] for position in first.table.rank])
    spread = np.ones((1, len(lanes)), np.int64)
    groups = {"stage": first.table.stage[:, None] * spread, "op": np.repeat(first.op[:, None], len(lanes), axis=1)}
    step_times = partial(replay_cells, first, lane_step)
    return measure_slowdown(step_times, durations, usual, {**groups, "rank": ranks}, max_groups=MAX_PIPELINE_GROUPS)


def replay_cells(graph: CellGraph, lane_step: Ints, durations: Times) -> Times:
    """Return the time of each step: the end of its last cell on any lane; *lane_step* is each lane's step, from 0."""
    end = np.zeros((len(durations) + 1, durations.shape[1]))  # the last row: a dependency of -1, which ends at 0
    for cell in graph.order.tolist():
        end[cell] = end[graph.waits[cell]].max(axis=0) + durations[cell]
    step_end = np.zeros(int(lane_step.max()) + 1)
    np.maximum.at(step_end, lane_step, end.max(axis=0))
    return step_end


def _same_cells(graph: CellGraph, other: CellGraph) -> bool:
    names = ("rank", "kind", "stage", "microbatch")
    return all(np.array_equal(getattr(graph.table, name), getattr(other.table, name)) for name in names)
