"""Gap between measured and ideal makespan, split by cause.

The cells are replayed in the order they ran, with one more cause each time. In the last replay every cell has its own
duration and its own delay, so it equals the run to the nanosecond, and the parts sum to the gap.

=============  ==============================================================================================
ideal          every op takes its mean over stages (of medians over micro-batches); no transfer, no stall
imbalance      … its own stage's median
variation      … its own time, without the stalls inside it
early_output   − where a cell started before one it waits for had ended (its input was there already)
p2p            + time between an input's readiness and the cell's start spent in pipeline communication
exposed_ep     + dispatch and combine that no compute hid, inside cells and before them
offload        + offload and onload that no compute hid
exposed_comm   + other communication that no compute hid
host           + idle before a kernel that the host launched too late, and before a rank's first one
other_work     + kernels outside the pipeline's cells that stood in the way
unexplained    what is left
=============  ==============================================================================================
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.align.clocks import Clocks
from tracekit.compare.replay import CellGraph, GraphCache, Shares, cell_graph
from tracekit.intervals import union
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.rank_pipeline import STALLS, RankPipeline
from tracekit.schedules import Times
from tracekit.schema import GAP_CAUSES, STALL_CAUSES

PARTS = tuple(GAP_CAUSES)
"""Parts of the gap, in the order they are replayed."""

_CAUSES_INSIDE_CELLS = ("exposed_ep", "offload", "exposed_comm", "host")
"""Causes that can stop a cell while it runs. Pipeline transfers only delay its start."""


class StepReplays(msgspec.Struct, frozen=True, eq=False):
    """One pipeline in one step, ready to be replayed. Arrays have one value per cell, in nanoseconds."""

    graph: CellGraph
    start: Ints  # measured, from the start of the first cell
    end: Ints
    work: Ints  # duration without stalls
    balanced: Ints  # mean work of the op over all stages
    typical: Ints  # median work of the op on its stage
    inside: Mapping[str, Ints]  # by cause: time for which it stopped the cell while it ran
    before: Mapping[str, Ints]  # by cause and "unexplained": time between the cell's readiness and its start
    early: Shares  # [cell, k]: share of dependency k by which the cell started before its end; see CellGraph.run

    @property
    def makespan(self) -> int:
        """Measured time from the first cell's start to the last one's end."""
        return int(self.end.max(initial=0))


def prepare_replays(
    pipelines: Sequence[Pipeline], ranks: Mapping[int, RankPipeline], graphs: GraphCache
) -> list[StepReplays]:
    """Return each of *pipelines* ready to be replayed. They are of one run, and handled in one table for speed."""
    if not pipelines:
        return []
    cells = pl.concat([pipeline.detail for pipeline in pipelines])
    start, end = cells["start_ns"].to_numpy(), cells["end_ns"].to_numpy()
    bounds = np.cumsum([0, *(pipeline.detail.height for pipeline in pipelines)]).tolist()
    rows_of_pipelines = [slice(first, last) for first, last in pairwise(bounds)]
    pipeline_graphs = [cell_graph(pipeline, graphs) for pipeline in pipelines]
    ready_times = [
        graph.find_ready_times(start[rows], end[rows])
        for graph, rows in zip(pipeline_graphs, rows_of_pipelines, strict=True)
    ]
    ready = np.concatenate([ready for ready, _ in ready_times])
    before = _stalls_before_start(cells["rank"].to_numpy(), ranks, pipelines[0].clocks, ready, start)
    inside = {cause: cells[f"{cause}_ns"].to_numpy() for cause in _CAUSES_INSIDE_CELLS}
    work = np.maximum(end - start - sum(inside.values()), 0)
    # Stalls that add up to more than the cell's duration are taken from the host's.
    inside["host"] = end - start - work - sum(ns for cause, ns in inside.items() if cause != "host")
    replays = []
    for graph, rows, (_, early) in zip(pipeline_graphs, rows_of_pipelines, ready_times, strict=True):
        typical, balanced = graph.average(work[rows])
        origin = int(start[rows].min()) if rows.stop > rows.start else 0
        replays.append(
            StepReplays(
                graph,
                start[rows] - origin,
                end[rows] - origin,
                work[rows],
                balanced,
                typical,
                {cause: ns[rows] for cause, ns in inside.items()},
                {cause: ns[rows] for cause, ns in before.items()},
                early,
            )
        )
    return replays


def _stalls_before_start(
    rank: npt.NDArray[np.int32], ranks: Mapping[int, RankPipeline], clocks: Clocks, ready: Ints, start: Ints
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
    stalls = [ranks[number].stalls for number in distinct_ranks.tolist()]
    stall_rank_index = np.repeat(np.arange(len(distinct_ranks)), [table.height for table in stalls])
    cause, stall_start, stall_end = (pl.concat(stalls)[name].to_physical().to_numpy() for name in STALLS)
    # One set of intervals per cause and rank, numbered cause × ranks + rank index.
    intervals = union(stall_start, stall_end, cause.astype(np.int64) * len(distinct_ranks) + stall_rank_index)
    before = {
        name: intervals.covered_ns(ready_recorded, start_recorded, code * len(distinct_ranks) + rank_index)
        for code, name in enumerate(STALL_CAUSES)
    }
    before["unexplained"] = start - ready - sum(before.values())
    return before


def split_gap(replays: StepReplays, ideal_ns: int) -> dict[str, int]:
    """Return the parts of the gap between the measured makespan and *ideal_ns*; they sum to it."""
    names = ("order", "imbalance", "variation", "early_output", *STALL_CAUSES)
    # One replay per row: the order run with balanced work, then one more cause in each row.
    work = replays.work
    durations = np.stack([replays.balanced, replays.typical, work, work, *[work] * len(STALL_CAUSES)])
    delays = np.zeros_like(durations)
    for row, cause in enumerate(STALL_CAUSES, names.index(STALL_CAUSES[0])):
        delays[row:] += replays.before[cause]
        durations[row:] += replays.inside.get(cause, 0)
    makespans = replays.graph.makespans(durations, delays, replays.early, first_early=names.index("early_output"))
    steps = pairwise([ideal_ns, *makespans, replays.makespan])
    return {name: after - before for name, (before, after) in zip((*names, "unexplained"), steps, strict=True)}


MAX_WEIGHT_GRADIENT_SHARE = 0.9
"""Largest share of a backward's time that is taken as weight gradients."""


class StageTimes(msgspec.Struct, frozen=True):
    """Times in nanoseconds that one micro-batch takes on one rank, all layers of the rank together."""

    forward: int
    input_grad: int
    weight_grad: int
    overlap: float | None  # time of an FB / time of its F and B one after the other; None if no FB ran
    split_known: bool  # whether the run shows how a backward splits into input and weight gradients
    chunks: float  # chunks per rank in the run

    def for_chunks(self, chunks: float | None = None) -> Times:
        """Return the times of ops if the layers of a rank are cut into *chunks*; into those of the run if None."""
        chunks = chunks or self.chunks
        forward, input_grad, weight_grad = (
            max(1, round(ns / chunks)) for ns in (self.forward, self.input_grad, self.weight_grad)
        )
        block = forward + input_grad + weight_grad
        if self.overlap is not None:
            block = max(1, round(block * self.overlap))
        return Times(F=forward, I=input_grad, W=weight_grad, B=input_grad + weight_grad, FB=block)


def measure_stage_times(replays: StepReplays, cells: pl.DataFrame, pp: int) -> StageTimes:
    """Return the mean times of the run's ops.

    A kind of op that did not run is derived from the others: a backward that never ran split is split by the labels of
    its kernels, or in half; an FB is one third forward and two thirds backward.

    Args:
        replays: The step.
        cells: Cells of the step (``DETAILED``).
        pp: Ranks of the pipeline.
    """
    graph, table = replays.graph, replays.graph.table
    last_stage = int(max(table.stage.max(initial=0), table.b_stage.max(initial=0)))
    chunks = (last_stage + 1) / pp
    # All cells of one kind have the same balanced time.
    mean_ns = {
        op: int(replays.balanced[graph.op == op][0]) for op in ("F", "I", "W", "B", "FB") if (graph.op == op).any()
    }
    block = mean_ns.get("FB")
    backward = mean_ns.get("B") or None
    if backward is None and "I" in mean_ns and "W" in mean_ns:
        backward = mean_ns["I"] + mean_ns["W"]
    if backward is None:
        backward = round((block or 3) * 2 / 3)
    forward = mean_ns.get("F")
    if not forward:
        forward = block - backward if block and block > backward else round(backward / 2)
    is_backward = graph.op == "B"
    weight_share = weight_gradient_share(cells["wgrad_ns"].to_numpy()[is_backward], replays.work[is_backward])
    weight_grad = mean_ns.get("W", round(backward * (0.5 if weight_share is None else weight_share)))
    input_grad = mean_ns.get("I", backward - weight_grad)
    return StageTimes(
        forward=round(forward * chunks),
        input_grad=round(input_grad * chunks),
        weight_grad=round(weight_grad * chunks),
        overlap=block / (forward + input_grad + weight_grad) if block else None,
        split_known=weight_share is not None or "W" in mean_ns,
        chunks=chunks,
    )


def weight_gradient_share(weight_ns: Ints, total_ns: Ints) -> float | None:
    """Return the share of weight gradients in the time of whole backwards, by labels; None if none is labelled."""
    weight, total = int(weight_ns.sum()), int(total_ns.sum())
    return min(weight / total, MAX_WEIGHT_GRADIENT_SHARE) if weight and total else None
