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

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.align.clocks import Clocks
from tracekit.compare.replay import Graph, Graphs, Shares
from tracekit.intervals import union
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.rank import STALLS, RankPipeline
from tracekit.schema import GAP_CAUSES, STALL_CAUSES

Ints = npt.NDArray[np.int64]

PARTS = tuple(GAP_CAUSES)
"""Parts of the gap, in the order they are replayed."""

_INSIDE = ("exposed_ep", "offload", "exposed_comm", "host")
"""Causes that can stop a cell once it runs. Pipeline transfers only hold up its start."""


class Replays(msgspec.Struct, frozen=True, eq=False):
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


def replays(pipelines: Sequence[Pipeline], ranks: Mapping[int, RankPipeline], graphs: Graphs) -> list[Replays]:
    """Return what every cell of each of *pipelines* took and what held it up; they are of the same run."""
    if not pipelines:
        return []
    cells = pl.concat([pipeline.detail for pipeline in pipelines])
    first = np.cumsum([0, *(pipeline.detail.height for pipeline in pipelines)]).tolist()
    rows = [slice(a, b) for a, b in pairwise(first)]
    made = [graphs.of(pipeline) for pipeline in pipelines]
    start, end = cells["start_ns"].to_numpy(), cells["end_ns"].to_numpy()
    known = [graph.ready(start[at], end[at]) for graph, at in zip(made, rows, strict=True)]
    ready = np.concatenate([ready for ready, _ in known])
    before = _held_up(cells["rank"].to_numpy(), ranks, pipelines[0].clocks, ready, start)
    inside = {cause: cells[f"{cause}_ns"].to_numpy() for cause in _INSIDE}
    work = np.maximum(end - start - sum(inside.values()), 0)
    inside["host"] = end - start - work - sum(inside[c] for c in _INSIDE if c != "host")
    replayed = []
    for graph, at, (_, early) in zip(made, rows, known, strict=True):
        typical, balanced = graph.averages(work[at])
        origin = int(start[at].min()) if at.stop > at.start else 0
        replayed.append(
            Replays(
                graph,
                start[at] - origin,
                end[at] - origin,
                work[at],
                balanced,
                typical,
                {cause: ns[at] for cause, ns in inside.items()},
                {cause: ns[at] for cause, ns in before.items()},
                early,
            )
        )
    return replayed


def _held_up(
    rank: npt.NDArray[np.int32], ranks: Mapping[int, RankPipeline], clocks: Clocks, ready: Ints, start: Ints
) -> dict[str, Ints]:
    """Return what each cell, once *ready*, waited for until its *start*."""
    there = np.unique(rank)
    place = np.searchsorted(there, rank)
    low = clocks.to_recorded_each(rank, ready)
    high = clocks.to_recorded_each(rank, np.maximum(start, ready))
    stalls = [ranks[one].stalls for one in there.tolist()]
    rows = np.repeat(np.arange(len(there)), [table.height for table in stalls])
    cause, begin, end = (pl.concat(stalls)[name].to_physical().to_numpy() for name in STALLS)
    # One set of intervals for each cause and rank: what does not occur holds nothing up.
    stalled = union(begin, end, cause.astype(np.int64) * len(there) + rows)
    before = {
        name: stalled.covered_ns(low, high, number * len(there) + place) for number, name in enumerate(STALL_CAUSES)
    }
    before["unexplained"] = start - ready - sum(before.values())
    return before


def split_gap(r: Replays, ideal_ns: int) -> dict[str, int]:
    """Return the gap between measured and *ideal_ns*, in parts that sum to it."""
    names = ("order", "imbalance", "variation", "early_output", *STALL_CAUSES)
    durations = np.stack([r.balanced, r.typical, r.work, r.work, *[r.work] * len(STALL_CAUSES)])
    delays = np.zeros_like(durations)
    first = len(names) - len(STALL_CAUSES)
    for row, cause in enumerate(STALL_CAUSES, first):
        delays[row:] += r.before[cause]
        durations[row:] += r.inside.get(cause, 0)
    makespans = r.graph.makespans(durations, delays, r.early, first_early=names.index("early_output"))
    parts, last = {}, ideal_ns
    for name, makespan in zip((*names, "unexplained"), (*makespans, r.makespan), strict=True):
        parts[name] = makespan - last
        last = makespan
    return parts
