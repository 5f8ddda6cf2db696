"""Slowdown of a pipeline by stage, kind of operation and worker.

The operations of a step are replayed with their dependencies. With every duration set to what is usual for its kind
(the mean of computation, the median of transfers, over all stages, replicas and steps) the step takes its usual time;
the slowdown is the measured durations' time over it. A group of operations contributes what its measured durations
alone cost, and what setting them to the usual ones saves (Lin et al., arXiv 2505.05713).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Bools, Ints
from tracekit.documents.analysis import GroupSlowdown, Slowdown
from tracekit.errors import ScheduleError

if TYPE_CHECKING:
    from tracekit.compare.comparison import ScheduleComparison

Times = npt.NDArray[np.float64]
MIN_SLOWDOWN_TO_SPLIT = 1.03
"""Slowdown from which its parts are worth computing."""
MAX_PIPELINE_GROUPS = 16
"""Stages, and ranks, that a pipeline is replayed for: those whose cells took longest beyond the usual."""


class OperationGraph(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Operations of one step of one replica; a lane is one replica in one step, and all lanes have the same graph.

    >>> graph = OperationGraph([[], [0], []], transfers=[[1, 2]])
    >>> graph.run(np.array([[5.0], [2.0], [2.0]]), np.array([0])).tolist()
    [7.0]
    """

    waits_for: Sequence[Sequence[int]]
    """Operations that must have ended before each operation starts."""
    transfers: Sequence[Sequence[int]] = ()
    """Operations that are one transfer: each takes its duration from the start of the last of them."""
    joint: frozenset[int] = frozenset()
    """Transfers in which all lanes of a step take part."""

    @cached_property
    def order(self) -> list[tuple[int, Sequence[int]]]:
        """Number (-1: none) and operations of each transfer, other operations alone, after all they wait for."""
        transfer_of = {op: number for number, ops in enumerate(self.transfers) for op in ops}
        members = [*self.transfers, *([op] for op in range(len(self.waits_for)) if op not in transfer_of)]
        unit_of = {op: unit for unit, ops in enumerate(members) for op in ops}
        waiting = {
            unit: {unit_of[before] for op in ops for before in self.waits_for[op]} for unit, ops in enumerate(members)
        }
        try:
            order = TopologicalSorter(waiting).static_order()
            return [(unit if unit < len(self.transfers) else -1, members[unit]) for unit in order]
        except CycleError:
            raise ScheduleError(
                "operations wait for each other in a ring", hint="check the order of each rank"
            ) from None

    def run(self, durations: Times, lane_step: Ints) -> Times:
        """Return the time of each step: the end of its last operation on any lane.

        Args:
            durations: Operations × lanes.
            lane_step: Step of each lane, counted from 0.
        """
        end = np.zeros_like(durations)
        nothing = np.zeros(durations.shape[1])
        for transfer, ops in self.order:
            start = nothing
            for before in {before for op in ops for before in self.waits_for[op]}:
                start = np.maximum(start, end[before])
            if transfer in self.joint:
                start = _max_by_step(start, lane_step)[lane_step]
            for op in ops:
                end[op] = start + durations[op]
        return _max_by_step(end.max(axis=0), lane_step)


def _max_by_step(values: Times, lane_step: Ints) -> Times:
    result = np.full(int(lane_step.max()) + 1, -np.inf)
    np.maximum.at(result, lane_step, values)
    return result


def usual_durations(durations: Times, kinds: Sequence[Any], is_transfer: Bools) -> Times:
    """Return the usual duration of each operation: over all operations of its kind and all lanes.

    >>> usual_durations(np.array([[1.0, 2.0], [3.0, 6.0]]), ["F", "F"], np.array([False, False])).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    usual = np.empty_like(durations)
    kind = np.asarray(kinds)
    for name in dict.fromkeys(kinds):
        rows = kind == name
        middle = np.median if is_transfer[rows].all() else np.mean
        usual[rows] = middle(durations[rows])
    return usual


def measure_slowdown(
    graph: OperationGraph,
    durations: Times,
    usual: Times,
    lane_step: Ints,
    groups: Mapping[str, npt.NDArray[Any]],
    *,
    min_ratio: float = MIN_SLOWDOWN_TO_SPLIT,
    max_groups: int | None = None,
) -> Slowdown:
    """Return the slowdown and the contribution of each group.

    Args:
        graph: Operations and their dependencies.
        durations: Measured durations, operations × lanes.
        usual: Durations without stragglers, likewise.
        lane_step: Step of each lane, counted from 0.
        groups: By what to split it: the group of every operation and lane, an array like *durations*.
        min_ratio: Slowdown from which it is split.
        max_groups: Groups of each kind to replay, those with the most time beyond the usual; all by default.

    >>> graph = OperationGraph([[], [0]])
    >>> stage = np.array([[0], [1]])
    >>> slow = measure_slowdown(graph, np.array([[1.0], [3.0]]), np.ones((2, 1)), np.array([0]), {"stage": stage})
    >>> slow.ratio, slow.groups[0].name, slow.groups[0].alone, slow.groups[0].explains
    (2.0, 1, 2.0, 1.0)

    """
    measured, ideal = graph.run(durations, lane_step), graph.run(usual, lane_step)
    measured_mean, ideal_mean = float(measured.mean()), float(ideal.mean())
    ratio = measured_mean / ideal_mean
    if ratio < min_ratio:
        return Slowdown(ratio, (measured / ideal).tolist(), [])
    contributions = []
    for by, group in groups.items():
        names, index = np.unique(group, return_inverse=True)
        excess = np.bincount(index.ravel(), (durations - usual).ravel())
        for name in names[np.argsort(-excess)][:max_groups].tolist():
            alone, without = replay_group(graph, durations, usual, lane_step, group == name)
            explains = (measured_mean - without) / (measured_mean - ideal_mean)
            contributions.append(GroupSlowdown(by, name, alone / ideal_mean, explains))
    contributions.sort(key=lambda part: (part.by, -part.alone))
    return Slowdown(ratio, (measured / ideal).tolist(), contributions)


def replay_group(
    graph: OperationGraph, durations: Times, usual: Times, lane_step: Ints, selected: Bools
) -> tuple[float, float]:
    """Return the mean step time with only the selected operations as measured, and with only them as usual."""
    alone = graph.run(np.where(selected, durations, usual), lane_step).mean()
    without = graph.run(np.where(selected, usual, durations), lane_step).mean()
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
    numbers = [step.pipeline.step for step in lanes]
    lane_step = np.array([sorted(set(numbers), key=str).index(number) for number in numbers])
    graph = OperationGraph([[int(cell) for cell in row if cell >= 0] for row in first.waits])
    usual = usual_durations(durations, first.op.tolist(), np.zeros(len(durations), np.bool_))
    ranks = np.array([[step.pipeline.ranks[position] for step in lanes] for position in first.position])
    spread = np.ones((1, len(lanes)), np.int64)
    groups = {"stage": first.stage[:, None] * spread, "op": np.repeat(first.op[:, None], len(lanes), axis=1)}
    return measure_slowdown(
        graph, durations, usual, lane_step, {**groups, "rank": ranks}, max_groups=MAX_PIPELINE_GROUPS
    )


def _same_cells(graph: Any, other: Any) -> bool:
    return all(
        np.array_equal(getattr(graph, name), getattr(other, name)) for name in ("position", "op", "stage", "microbatch")
    )
