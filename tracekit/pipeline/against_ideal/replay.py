"""Replay of a measured pipeline with other durations and delays: the gap to its ideal by cause, and slow groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Floats, Ints
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.documents.analysis import GroupSlowdown, Slowdown
from tracekit.intervals import union
from tracekit.pipeline.reconstruct.pipeline import Pipeline
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.pipeline.schedules import Times
from tracekit.pipeline.schedules.ops import OP_KINDS, Op
from tracekit.pipeline.schedules.schedule import (
    FB,
    B,
    Edges,
    Numbers,
    OpTable,
    W,
    find_running_order,
)
from tracekit.pipeline.schedules.simulation import run_ops
from tracekit.schema import GAP_CAUSES, STALL_CAUSES

if TYPE_CHECKING:
    from tracekit.pipeline.against_ideal.comparison import ScheduleComparison


@dataclass(frozen=True, eq=False)
class CellGraph:
    """Cells of a pipeline as columns, rank after rank in the order run, and their dependencies.

    ``waits[cell, k]`` is a cell that a cell waits for, -1 for none. k = 0: the cell before it on
    its rank; 1: the forward of the stage before (its input); 2: the backward of the stage after
    (its gradient); 3: its own forward, or the I of a W.
    """

    table: OpTable  # ranks are positions in the pipeline
    waits: Ints  # cells × 4
    order: Ints  # all cells, each after those it waits for
    broken: int  # dependencies that formed a ring and were dropped

    @classmethod
    def of(cls, cells: pl.DataFrame) -> CellGraph:
        """Build the graph of a table with position, op, stage, microbatch, b_stage and b_microbatch.

        The table is sorted by position, then by the order run.

        >>> cells = pl.DataFrame({"position": [0, 0, 1, 1], "op": ["F", "B", "F", "B"], "stage": [0, 0, 1, 1],
        ...     "microbatch": [0] * 4, "b_stage": [None] * 4, "b_microbatch": [None] * 4},
        ...     schema_overrides={"b_stage": pl.Int32, "b_microbatch": pl.Int32})
        >>> start, end = CellGraph.of(cells).run(np.array([1, 2, 1, 2]))
        >>> end.tolist()
        [1, 6, 2, 4]
        """
        position = to_int64(cells["position"])
        kind = to_int64(cells["op"].cast(pl.Enum(OP_KINDS)).to_physical())
        numbers = (to_int64(cells[name], 0) for name in Op._fields[1:])
        table = OpTable.of(position, kind, numbers, ranks=int(position.max(initial=-1)) + 1)
        waits = np.stack(table.find_edges(), axis=1)
        # An FB whose halves are of one micro-batch is its own forward.
        waits[waits == np.arange(len(kind))[:, None]] = -1
        broken = 0
        order, stuck = find_running_order(Edges(*waits.T), table.offsets)
        while stuck:  # all ranks wait for each other: let the cell of the first of them run
            cell, awaited = next(iter(stuck.values()))
            is_awaited = waits[cell] == awaited
            waits[cell, is_awaited] = -1
            broken += int(is_awaited.sum())
            order, stuck = find_running_order(Edges(*waits.T), table.offsets)
        return cls(table, waits, order, broken)

    def run(
        self, duration: Numbers, delay: Numbers | None = None, early: Floats | None = None
    ) -> tuple[Numbers, Numbers]:
        """Return start and end of every cell if it starts as soon as its dependencies allow, plus its delay.

        Arrays may have one more axis, the last, for several replays.

        Args:
            duration: Duration of each cell.
            delay: Delay of each cell; none if None.
            early: [cell, k]: share of dependency k's duration by which the cell may start before
                its end.
        """
        order, waits = self._with_begin
        cells, *replays = duration.shape
        durations = np.zeros((cells + 1, *replays), duration.dtype)
        durations[:cells] = duration  # the begin of the step takes no time
        latency = np.zeros((*waits.shape, *replays), durations.dtype)
        if delay is not None:
            latency[:, :cells] += delay
        if early is not None:
            lead = np.moveaxis(early, 1, 0) * durations[waits[:, :cells]]
            # None is negative, so that this rounds down.
            latency[:, :cells] -= lead.astype(durations.dtype)
        start = run_ops(order, waits, durations, latency)[:cells]
        return start, start + duration

    @cached_property
    def _with_begin(self) -> tuple[Ints, Ints]:
        """Order and waits [k, cell] with one more op, the last: the begin of the step, for which first cells wait."""
        begin = len(self.waits)
        order = np.insert(self.order, 0, begin)
        waits = np.append(self.waits, np.full((1, self.waits.shape[1]), -1), axis=0).T.copy()
        is_first = waits[0] < 0
        is_first[begin] = False
        waits[0, is_first] = begin
        return order, waits

    def find_ready_times(self, start: Ints, end: Ints) -> tuple[Ints, Floats]:
        """Return the time at which each cell could start, and by what share of a dependency it started before its end.

        A cell that started before a dependency had ended got its input early: it was ready when it
        started.

        Args:
            start: Measured start of each cell.
            end: Figures end of each cell.
        """
        origin = start.min() if len(start) else 0
        # -1 in waits selects the appended values: no dependency ends at the first start and takes no time.
        dependency_end = np.append(end, origin)[self.waits]
        dependency_duration = np.append(end - start, 0)[self.waits]
        lead = np.where(self.waits >= 0, np.maximum(dependency_end - start[:, None], 0), 0)
        lead = np.minimum(lead, dependency_duration)
        ready = np.maximum((dependency_end - lead).max(axis=1, initial=origin), origin)
        return ready, lead / np.maximum(dependency_duration, 1)

    @cached_property
    def op(self) -> npt.NDArray[np.str_]:
        """Kind of each cell."""
        return np.array(OP_KINDS)[self.table.kind]

    @cached_property
    def peak_activations(self) -> list[int]:
        """Largest number of forwards that each position holds at once, each until its B or W."""
        return self.table.count_peak_activations(B, W, FB)

    def average(self, work: Ints) -> tuple[Ints, Ints]:
        """Return for each cell the median work of its op on its stage, and the mean of these medians over stages."""
        group_of_cell, first, size, kind = self._groups
        # Sorted by group, then by work: the median is the mean of the two values in the middle of a
        # group.
        work_sorted = work[np.lexsort((work, group_of_cell))]
        below = work_sorted[first + (size - 1) // 2]
        above = work_sorted[first + size // 2]
        medians = np.rint((below + above) / 2).astype(np.int64)
        sums = np.bincount(kind, weights=medians)
        means = np.rint(sums / np.maximum(np.bincount(kind), 1)).astype(np.int64)
        return medians[group_of_cell], means[kind[group_of_cell]]

    @cached_property
    def _groups(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Groups of cells with equal op, stage and b_stage.

        The group of each cell; and of each group its first cell if cells are sorted by group, its
        size, and the code of its op.
        """
        keys = np.stack([self.table.kind, self.table.stage, self.table.b_stage], axis=1)
        distinct, group, size = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        return group.reshape(-1), np.cumsum(size) - size, size, distinct[:, 0]


GraphCache = dict[bytes, CellGraph]
"""Graphs by the names of their cells: pipelines and steps that ran the same order share one."""


def cell_graph(pipeline: Pipeline, cache: GraphCache) -> CellGraph:
    """Return the graph of a pipeline's cells."""
    key = pipeline.numbers.tobytes()
    if key not in cache:
        cache[key] = CellGraph.of(pipeline.detail)
    return cache[key]


# ---- Gap between measured and ideal makespan, split by cause.
#
# The cells are replayed in the order they ran, with one more cause each time. In the last replay
# every cell has its own duration and its own delay, so it equals the run to the nanosecond, and the
# parts sum to the gap.
#
# =============  =================================================================================
# ideal          every op takes its mean over stages (of medians over micro-batches); no transfer,
#                no stall
# imbalance      … its own stage's median
# variation      … its own time, without the stalls inside it
# early_output   − where a cell started before one it waits for had ended (its input was there)
# p2p            + time between an input's readiness and the cell's start in pipeline communication
# exposed_ep     + dispatch and combine that no compute hid, inside cells and before them
# offload        + offload and onload that no compute hid
# exposed_comm   + other communication that no compute hid
# host           + idle before a kernel that the host launched too late, and before a rank's first
# other_work     + kernels outside the pipeline's cells that stood in the way
# unexplained    what is left
# =============  =================================================================================


PARTS = tuple(GAP_CAUSES)
"""Parts of the gap, in the order they are replayed."""

_CAUSES_INSIDE_CELLS = ("exposed_ep", "offload", "exposed_comm", "host")
"""Causes that can stop a cell while it runs. Pipeline transfers only delay its start."""


class StepReplays(msgspec.Struct, frozen=True, eq=False):
    """One pipeline in one step, ready to be replayed.

    Arrays have one value per cell, in nanoseconds.
    """

    graph: CellGraph
    start: Ints  # measured, from the start of the first cell
    end: Ints
    work: Ints  # duration without stalls
    balanced: Ints  # mean work of the op over all stages
    typical: Ints  # median work of the op on its stage
    inside: Mapping[str, Ints]  # by cause: time for which it stopped the cell while it ran
    # By cause and "unexplained": time between the cell's readiness and its start.
    before: Mapping[str, Ints]
    early: Floats  # [cell, k]: share of dependency k by which the cell started before its end; see CellGraph.run

    @property
    def makespan(self) -> int:
        """Measured time from the first cell's start to the last one's end."""
        return int(self.end.max(initial=0))


def prepare_replays(
    pipelines: Sequence[Pipeline], ranks: Mapping[int, RankPipeline], graphs: GraphCache
) -> list[StepReplays]:
    """Return each of *pipelines* ready to be replayed.

    They are of one run, and handled in one table for speed.
    """
    if not pipelines:
        return []
    cells = pl.concat([pipeline.detail for pipeline in pipelines])
    start = cells["start_ns"].to_numpy()
    end = cells["end_ns"].to_numpy()
    pipeline_graphs = [cell_graph(pipeline, graphs) for pipeline in pipelines]
    rows_of_pipelines: list[slice] = []
    ready_times: list[Ints] = []
    early_shares: list[Floats] = []
    first = 0
    for pipeline, graph in zip(pipelines, pipeline_graphs, strict=True):
        rows = slice(first, first + pipeline.detail.height)
        first = rows.stop
        ready, early = graph.find_ready_times(start[rows], end[rows])
        rows_of_pipelines.append(rows)
        ready_times.append(ready)
        early_shares.append(early)

    before = _stalls_before_start(
        cells["rank"].to_numpy(), ranks, pipelines[0].clocks, np.concatenate(ready_times), start
    )
    inside = {cause: cells[f"{cause}_ns"].to_numpy() for cause in _CAUSES_INSIDE_CELLS}
    duration = end - start
    stalled = sum(inside.values())
    work = np.maximum(duration - stalled, 0)
    # Stalls that add up to more than the cell's duration are taken from the host's.
    inside["host"] = inside["host"] + duration - work - stalled
    replays = []
    for graph, rows, early in zip(pipeline_graphs, rows_of_pipelines, early_shares, strict=True):
        typical, balanced = graph.average(work[rows])
        origin = int(start[rows].min()) if rows.stop > rows.start else 0
        step_replays = StepReplays(
            graph=graph,
            start=start[rows] - origin,
            end=end[rows] - origin,
            work=work[rows],
            balanced=balanced,
            typical=typical,
            inside={cause: ns[rows] for cause, ns in inside.items()},
            before={cause: ns[rows] for cause, ns in before.items()},
            early=early,
        )
        replays.append(step_replays)
    return replays


def _stalls_before_start(
    rank: npt.NDArray[np.int32],
    ranks: Mapping[int, RankPipeline],
    clocks: Clocks,
    ready: Ints,
    start: Ints,
) -> dict[str, Ints]:
    """Return by cause the stall time of each cell between its readiness and its start.

    Args:
        rank: Rank of each cell.
        ranks: Tables of the ranks; their stalls are on each rank's own clock.
        clocks: Clocks of the ranks.
        ready: Time at which each cell could start.
        start: Start of each cell.
    """
    distinct_ranks = np.unique(rank)
    rank_index = np.searchsorted(distinct_ranks, rank)
    ready_recorded = clocks.to_recorded_each(rank, ready)
    start_recorded = clocks.to_recorded_each(rank, np.maximum(start, ready))
    tables = []
    for index, number in enumerate(distinct_ranks.tolist()):
        tables.append(ranks[number].stalls.with_columns(rank_index=pl.lit(index, pl.Int64)))
    stalls = pl.concat(tables)
    # One set of intervals per cause and rank, numbered cause × ranks + rank index.
    cause = stalls["cause"].to_physical().cast(pl.Int64)
    number_of_set = cause * len(distinct_ranks) + stalls["rank_index"]
    intervals = union(
        stalls["start_ns"].to_numpy(), stalls["end_ns"].to_numpy(), number_of_set.to_numpy()
    )
    before = {}
    for code, name in enumerate(STALL_CAUSES):
        before[name] = intervals.covered_ns(
            ready_recorded, start_recorded, code * len(distinct_ranks) + rank_index
        )
    before["unexplained"] = start - ready - sum(before.values())
    return before


def replay_balanced(all_replays: Sequence[StepReplays]) -> list[tuple[Ints, Ints]]:
    """Return start and end of the cells of each step with balanced work and nothing else."""
    starts_and_ends: dict[int, tuple[Ints, Ints]] = {}
    for indices in _by_graph(all_replays):
        balanced = np.stack([all_replays[index].balanced for index in indices], axis=1)
        start, end = all_replays[indices[0]].graph.run(balanced)
        for column, index in enumerate(indices):
            starts_and_ends[index] = (start[:, column].copy(), end[:, column].copy())
    return [starts_and_ends[index] for index in range(len(all_replays))]


def _by_graph(all_replays: Sequence[StepReplays]) -> list[list[int]]:
    """Return the indices of steps with equal graphs, which are replayed together."""
    indices: dict[int, list[int]] = {}
    for index, replays in enumerate(all_replays):
        indices.setdefault(id(replays.graph), []).append(index)
    return list(indices.values())


_GAP_STEPS = ("order", "imbalance", "variation", "early_output", *STALL_CAUSES)
"""Parts of the gap, one more in each replay."""


def split_gaps(
    all_replays: Sequence[StepReplays], ideals_ns: Sequence[int]
) -> list[dict[str, int]]:
    """Return the parts of the gap between the measured makespan and the ideal one of each step.

    They sum to it.
    """
    gaps: dict[int, dict[str, int]] = {}
    for indices in _by_graph(all_replays):
        of_graph = [all_replays[index] for index in indices]
        causes = [_durations_and_delays(replays) for replays in of_graph]
        durations = np.concatenate([duration for duration, _ in causes], axis=1)
        delays = np.concatenate([delay for _, delay in causes], axis=1)
        # [cell, k, replay]: starting early is a cause as well.
        has_early = np.arange(len(_GAP_STEPS)) >= _GAP_STEPS.index("early_output")
        early = np.concatenate(
            [replays.early[:, :, None] * has_early for replays in of_graph], axis=2
        )
        _, end = of_graph[0].graph.run(durations, delays, early)
        makespans = end.max(axis=0, initial=0).reshape(len(indices), -1).tolist()
        for index, replays, replayed_ns in zip(indices, of_graph, makespans, strict=True):
            steps = pairwise([ideals_ns[index], *replayed_ns, replays.makespan])
            gap = {}
            for name, (before, after) in zip((*_GAP_STEPS, "unexplained"), steps, strict=True):
                gap[name] = after - before
            gaps[index] = gap
    return [gaps[index] for index in range(len(all_replays))]


def _durations_and_delays(replays: StepReplays) -> tuple[Ints, Ints]:
    """Return durations and delays of cells in each replay, [cell, replay].

    The first runs the order with balanced work, then each has one more cause.
    """
    work = replays.work
    rows = [replays.balanced, replays.typical, work, work, *[work] * len(STALL_CAUSES)]
    durations = np.stack(rows, axis=1)
    delays = np.zeros_like(durations)
    for row, cause in enumerate(STALL_CAUSES, _GAP_STEPS.index(STALL_CAUSES[0])):
        delays[:, row:] += replays.before[cause][:, None]
        if cause in replays.inside:
            durations[:, row:] += replays.inside[cause][:, None]
    return durations, delays


MAX_WEIGHT_GRADIENT_SHARE = 0.9
"""Largest share of a backward's time that is taken as weight gradients."""


class StageTimes(msgspec.Struct, frozen=True):
    """Times in nanoseconds that one micro-batch takes on one rank, all layers of the rank together."""

    forward: int
    input_grad: int
    weight_grad: int
    # Time of an FB / time of its F and B one after the other; None if no FB ran.
    overlap: float | None
    split_known: bool  # whether the run shows how a backward splits into input and weight gradients
    chunks: float  # chunks per rank in the run

    def for_chunks(self, chunks: float | None = None) -> Times:
        """Return the times of ops if the layers of a rank are cut into *chunks*.

        Into those of the run if None.
        """
        chunks = chunks or self.chunks
        forward = max(1, round(self.forward / chunks))
        input_grad = max(1, round(self.input_grad / chunks))
        weight_grad = max(1, round(self.weight_grad / chunks))
        block = forward + input_grad + weight_grad
        if self.overlap is not None:
            block = max(1, round(block * self.overlap))
        return Times(F=forward, I=input_grad, W=weight_grad, B=input_grad + weight_grad, FB=block)


def measure_stage_times(replays: StepReplays, cells: pl.DataFrame, pp: int) -> StageTimes:
    """Return the mean times of the run's ops.

    A kind of op that did not run is derived from the others: a backward that never ran split is
    split by the labels of its kernels, or in half; an FB is one third forward and two thirds
    backward.

    Args:
        replays: The step.
        cells: Cells of the step (``DETAILED``).
        pp: Ranks of the pipeline.
    """
    graph = replays.graph
    table = replays.graph.table
    last_stage = int(max(table.stage.max(initial=0), table.b_stage.max(initial=0)))
    chunks = (last_stage + 1) / pp
    # All cells of one kind have the same balanced time.
    mean_ns = {}
    for op in ("F", "I", "W", "B", "FB"):
        if (graph.op == op).any():
            mean_ns[op] = int(replays.balanced[graph.op == op][0])
    is_backward = graph.op == "B"
    weight_share = weight_gradient_share(
        cells["wgrad_ns"].to_numpy()[is_backward], replays.work[is_backward]
    )

    def split_backward(backward: float) -> tuple[float, float]:
        weight_grad = round(backward * (0.5 if weight_share is None else weight_share))
        return round(backward) - weight_grad, weight_grad

    times = fill_missing_times({op: max(1, ns) for op, ns in mean_ns.items()}, split_backward)
    forward = round(times["F"])
    input_grad = round(times["I"])
    weight_grad = round(times["W"])
    overlap = None
    if mean_ns.get("FB"):
        overlap = mean_ns["FB"] / (forward + input_grad + weight_grad)
    return StageTimes(
        forward=round(forward * chunks),
        input_grad=round(input_grad * chunks),
        weight_grad=round(weight_grad * chunks),
        overlap=overlap,
        split_known=weight_share is not None or "W" in mean_ns,
        chunks=chunks,
    )


OpTime = TypeVar("OpTime", float, Floats)
"""Time of an op: one, or one per stage."""


def fill_missing_times(
    ran: Mapping[str, OpTime], split_backward: Callable[[OpTime], tuple[OpTime, OpTime]]
) -> dict[str, OpTime]:
    """Return the times of F, I, W and B; of kinds that did not run, from those that did.

    A backward that never ran whole takes as long as its halves, or two thirds of a block FB, or
    twice the only op that ran. A forward that never ran alone takes half of a backward.

    Args:
        ran: Times of the kinds that ran, FB among them; at least one.
        split_backward: Returns the times of I and W from that of a whole backward; used if one of
            them did not run.

    >>> fill_missing_times({"F": 1.0, "B": 3.0}, lambda backward: (backward / 3, backward * 2 / 3))
    {'F': 1.0, 'I': 1.0, 'W': 2.0, 'B': 3.0}
    >>> fill_missing_times({"FB": 6.0}, lambda backward: (backward / 2, backward / 2))
    {'F': 2.0, 'I': 2.0, 'W': 2.0, 'B': 4.0}
    """
    if "B" in ran:
        backward = ran["B"]
    elif "I" in ran and "W" in ran:
        backward = ran["I"] + ran["W"]
    elif "FB" in ran:
        backward = ran["FB"] * 2 / 3
    else:  # a forward alone, or one half
        backward = 2 * next(iter(ran.values()))
    input_grad, weight_grad = split_backward(backward)
    return {
        "F": ran.get("F", backward / 2),
        "I": ran.get("I", input_grad),
        "W": ran.get("W", weight_grad),
        "B": backward,
    }


def weight_gradient_share(weight_ns: Ints, total_ns: Ints) -> float | None:
    """Return the share of weight gradients in the time of whole backwards, by labels.

    None if none is labelled.
    """
    weight = int(weight_ns.sum())
    total = int(total_ns.sum())
    return min(weight / total, MAX_WEIGHT_GRADIENT_SHARE) if weight and total else None


# ---- Slowdown of a pipeline by stage, kind of operation and worker.
#
# The operations of a step are replayed with their dependencies. With every duration set to what is
# usual for its kind (the mean over all stages, replicas and steps) the step takes its usual time;
# the slowdown is the measured durations' time over it. A group of operations contributes what its
# measured durations alone cost, and what setting them to the usual ones saves (Lin et al., arXiv
# 2505.05713).


StepTimes = Callable[[Floats], Floats]
"""Function that returns the time of each step if its operations (rows) take these durations on
every lane (columns). A lane is one replica in one step."""
MIN_SLOWDOWN_TO_SPLIT = 1.03
"""Slowdown from which its parts are worth computing."""
MAX_PIPELINE_GROUPS = 16
"""Stages, and ranks, that a pipeline is replayed for: those whose cells took longest beyond the
usual."""


def measure_slowdown(
    step_times: StepTimes,
    durations: Floats,
    usual: Floats,
    groups: Mapping[str, npt.NDArray[Any]],
    *,
    min_ratio: float = MIN_SLOWDOWN_TO_SPLIT,
    max_groups: int | None = None,
) -> Slowdown:
    """Return the slowdown and the contribution of each group.

    Args:
        step_times: Replay of the steps with other durations.
        durations: Figures durations, operations × lanes.
        usual: Durations without stragglers, likewise.
        groups: By what to split it: the group of every operation and lane, an array like
            *durations*.
        min_ratio: Slowdown from which it is split.
        max_groups: Groups of each kind to replay, those with the most time beyond the usual; all by
            default.

    >>> stage = np.array([[0], [1]])
    >>> slow = measure_slowdown(
    ...     lambda durations: durations.sum(axis=0), np.array([[1.0], [3.0]]), np.ones((2, 1)), {"stage": stage}
    ... )
    >>> slow.ratio, slow.groups[0].name, slow.groups[0].alone, slow.groups[0].explains
    (2.0, 1, 2.0, 1.0)

    """
    measured = step_times(durations)
    ideal = step_times(usual)
    measured_mean = float(measured.mean())
    ideal_mean = float(ideal.mean())
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


def replay_group(
    step_times: StepTimes, durations: Floats, usual: Floats, selected: Bools
) -> tuple[float, float]:
    """Return the mean step time with only the selected operations as measured, and with only them as usual."""
    alone = step_times(np.where(selected, durations, usual)).mean()
    without = step_times(np.where(selected, usual, durations)).mean()
    return float(alone), float(without)


def pipeline_slowdown(comparison: ScheduleComparison) -> Slowdown | None:
    """Return the slowdown of a run's pipelines by stage, kind of cell and rank.

    None if steps differ in their order.

    Lanes are pipelines and steps; messages take no time.
    """
    graph = comparison.all[0].replays.graph
    lanes = [step for step in comparison.all if _same_cells(step.replays.graph, graph)]
    if 2 * len(lanes) <= len(comparison.all):
        return None
    # From here on: one row per cell, one column per lane.
    durations = np.stack([step.replays.work for step in lanes], axis=1).astype(np.float64)
    usual = np.empty_like(durations)
    for op in np.unique(graph.op):
        is_op = graph.op == op
        usual[is_op] = durations[is_op].mean()
    ranks_of_lane = [np.array(step.pipeline.ranks)[graph.table.rank] for step in lanes]
    groups = {
        "stage": np.repeat(graph.table.stage[:, None], len(lanes), axis=1),
        "op": np.repeat(graph.op[:, None], len(lanes), axis=1),
        "rank": np.stack(ranks_of_lane, axis=1),
    }
    step_of_lane = [str(step.pipeline.step) for step in lanes]
    lane_step = np.unique(step_of_lane, return_inverse=True)[1]
    step_times = partial(replay_cells, graph, lane_step)
    return measure_slowdown(step_times, durations, usual, groups, max_groups=MAX_PIPELINE_GROUPS)


def replay_cells(graph: CellGraph, lane_step: Ints, durations: Floats) -> Floats:
    """Return the time of each step: the end of its last cell on any lane.

    *lane_step* is each lane's step, from 0.
    """
    _, end = graph.run(np.ascontiguousarray(durations))
    step_end = np.zeros(int(lane_step.max()) + 1)
    np.maximum.at(step_end, lane_step, end.max(axis=0, initial=0.0))
    return step_end


def _same_cells(graph: CellGraph, other: CellGraph) -> bool:
    own = graph.table
    return (
        np.array_equal(own.rank, other.table.rank)
        and np.array_equal(own.kind, other.table.kind)
        and np.array_equal(own.stage, other.table.stage)
        and np.array_equal(own.microbatch, other.table.microbatch)
    )
