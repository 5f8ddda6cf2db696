"""Measured and ideal makespan: every nanosecond between them given a cause.

The cells are replayed in the order they ran, with one cause more each time. At the end every cell has its own duration
and its own delay, so the last replay is the run itself, to the nanosecond, and the parts sum to the gap.

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

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import whole_numbers
from tracekit.compare.replay import Graph, Shares
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.rank import RankPipeline
from tracekit.schema import GAP_CAUSES, STALL_CAUSES

Ints = npt.NDArray[np.int64]

PARTS = tuple(GAP_CAUSES)
"""Parts of the gap, in the order they are replayed."""

_INSIDE = ("exposed_ep", "offload", "exposed_comm", "host")
"""Causes that can stop a cell once it runs. Pipeline transfers only hold up its start."""


@dataclass(frozen=True, eq=False)
class Replays:
    """One pipeline and step, ready to be run again: what each cell takes, and what held it up, by cause."""

    graph: Graph
    start: Ints  # measured, from the first cell's start
    end: Ints
    work: Ints  # duration without stalls
    balanced: Ints  # the op's mean over stages
    typical: Ints  # the op's median on its stage
    inside: Mapping[str, Ints]
    before: Mapping[str, Ints]  # includes "unexplained"
    early: Shares  # see Graph.run

    @property
    def makespan(self) -> int:
        """Measured: from the first cell's start to the last one's end."""
        return int(self.end.max(initial=0))

    def ideal(self) -> int:
        """Makespan of the order run, balanced, with nothing in the way."""
        return self.graph.makespan(self.balanced)

    def with_causes(self, work: Ints, causes: tuple[str, ...]) -> tuple[Ints, Ints]:
        """Durations and delays with these causes and no others."""
        duration, delay = work.copy(), np.zeros_like(work)
        for cause in causes:
            delay = delay + self.before[cause]
            duration = duration + self.inside.get(cause, 0)
        return duration, delay

    def run_without(self, cause: str) -> tuple[Ints, Ints]:
        """Start and end of every cell if this cause alone were gone."""
        kept = tuple(c for c in (*STALL_CAUSES, "unexplained") if c != cause)
        work = {"imbalance": self._evened, "variation": self.typical}.get(cause, self.work)
        return self.graph.run(*self.with_causes(work, kept), self.early)

    @property
    def _evened(self) -> Ints:
        """Each cell's work with its stage's difference from the mean taken away."""
        evened: Ints = np.maximum(self.work - self.typical + self.balanced, 0)
        return evened


def replays(pipeline: Pipeline, ranks: Mapping[int, RankPipeline]) -> Replays:
    """Return what every cell of *pipeline* took and what held it up."""
    cells = pipeline.detail
    graph = Graph.of(cells)
    start, end = cells["start_ns"].to_numpy(), cells["end_ns"].to_numpy()
    ready, early = graph.ready(start, end)
    before = {cause: np.zeros(len(start), np.int64) for cause in (*STALL_CAUSES, "unexplained")}
    for at in pipeline.positions:
        rank = pipeline.ranks[at]
        at_position = np.flatnonzero(graph.position == at)
        low = pipeline.clocks.to_recorded(rank, ready[at_position])
        high = pipeline.clocks.to_recorded(rank, np.maximum(start[at_position], ready[at_position]))
        for cause, stall in ranks[rank].stalled.items():
            before[cause][at_position] = stall.covered_ns(low, high)
    before["unexplained"] = start - ready - sum(before[cause] for cause in STALL_CAUSES)
    inside = {cause: cells[f"{cause}_ns"].to_numpy() for cause in _INSIDE}
    work = np.maximum(end - start - sum(inside.values()), 0)
    inside["host"] = end - start - work - sum(inside[c] for c in _INSIDE if c != "host")
    typical, balanced = _averages(cells, work)
    origin = int(start.min()) if len(start) else 0
    return Replays(graph, start - origin, end - origin, work, balanced, typical, inside, before, early)


def _averages(cells: pl.DataFrame, work: Ints) -> tuple[Ints, Ints]:
    """Median of every (op, stage), and the mean of those over the stages, for each cell."""
    ops = cells["op"].to_list()
    kinds = {op: number for number, op in enumerate(dict.fromkeys(ops))}
    kind = np.fromiter((kinds[op] for op in ops), np.int64, len(ops))
    stage, b_stage = whole_numbers(cells["stage"], 0), whole_numbers(cells["b_stage"], -1)
    keys = np.stack([kind, stage, b_stage], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    medians = np.array([_rounded(np.median(work[which == k])) for k in range(len(distinct))], np.int64)
    means = np.array([_rounded(medians[distinct[:, 0] == k].mean()) for k in range(len(kinds))], np.int64)
    return medians[which], means[kind]


def _rounded(value: np.floating) -> int:
    return int(np.rint(value))


def split_gap(r: Replays, ideal_ns: int) -> dict[str, int]:
    """Return the gap between measured and *ideal_ns*, in parts that sum to it."""
    levels = [
        ("order", r.ideal()),
        ("imbalance", r.graph.makespan(r.typical)),
        ("variation", r.graph.makespan(r.work)),
        ("early_output", r.graph.makespan(r.work, None, r.early)),
    ]
    causes: tuple[str, ...] = ()
    for cause in STALL_CAUSES:
        causes += (cause,)
        levels.append((cause, r.graph.makespan(*r.with_causes(r.work, causes), r.early)))
    levels.append(("unexplained", r.makespan))
    parts, last = {}, ideal_ns
    for name, makespan in levels:
        parts[name] = makespan - last
        last = makespan
    return parts
