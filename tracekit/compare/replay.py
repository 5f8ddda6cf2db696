"""Replays: the cells of a pipeline run again with other durations and delays, in the order they were run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import replay
from tracekit._util.arrays import as_int64
from tracekit._util.columns import to_int64
from tracekit.reconstruct.pipeline import Pipeline

Ints = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Graph:
    """Cells as columns, rank after rank in the order run, and for each the cells it waits for (-1: none)."""

    position: Ints
    op: npt.NDArray[np.str_]
    stage: Ints
    microbatch: Ints
    b_stage: Ints  # of FB: the stage of its backward; else -1
    waits: Ints  # cells × 4: before it on its rank, its input, its gradient, its own forward (of W: its I)
    order: Ints  # an order in which every cell follows what it waits for
    broken: int  # waits that went in a ring and were dropped

    @classmethod
    def of(cls, cells: pl.DataFrame) -> Graph:
        """From a table with position, op, stage, microbatch, b_stage, b_microbatch, sorted by position, then order run.

        >>> cells = pl.DataFrame({"position": [0, 0, 1, 1], "op": ["F", "B", "F", "B"], "stage": [0, 0, 1, 1],
        ...     "microbatch": [0] * 4, "b_stage": [None] * 4, "b_microbatch": [None] * 4},
        ...     schema_overrides={"b_stage": pl.Int32, "b_microbatch": pl.Int32})
        >>> Graph.of(cells).makespan(np.array([1, 2, 1, 2]))
        6
        """
        position = cells["position"].to_numpy().astype(np.int64)
        op = cells["op"].cast(pl.String).to_numpy().astype(str)
        stage, microbatch = (to_int64(cells[n], 0) for n in ("stage", "microbatch"))
        block = op == "FB"
        other = to_int64(cells["b_stage"], -1)
        b_stage = np.where(block, np.maximum(other, 0), stage)
        b_microbatch = np.where(block, to_int64(cells["b_microbatch"], 0), microbatch)
        waits = _waits(position, op, (stage, microbatch), (b_stage, b_microbatch))
        first = np.searchsorted(position, np.arange(int(position.max(initial=-1)) + 2))
        order, broken = _running_order(waits, first)
        return cls(position, op, stage, microbatch, other, waits, order, broken)

    def run(self, duration: Ints, delay: Ints | None = None, early: Shares | None = None) -> tuple[Ints, Ints]:
        """Start and end of every cell: as soon as what it waits for is there, plus its own delay.

        *early* (cells × 4) is the share of an awaited cell's time by which it may be ahead of that cell's end.
        """
        still = np.zeros(len(duration), np.int64) if delay is None else delay
        lead = np.zeros(self.waits.shape, np.int64)
        if early is not None:
            lead = np.floor(early * np.append(duration, 0)[self.waits]).astype(np.int64)
        start, end = np.zeros((2, len(duration)), np.int64)
        replay.run_cells(self.order, self.waits, as_int64(duration), as_int64(still), lead, start, end)
        return start, end

    def makespan(self, duration: Ints, delay: Ints | None = None, early: Shares | None = None) -> int:
        """From 0 to the end of the last cell."""
        return int(self.run(duration, delay, early)[1].max(initial=0))

    def makespans(self, durations: Ints, delays: Ints, early: Shares, *, first_early: int) -> list[int]:
        """Return the makespan of each row of *durations* and *delays*; *early* counts from row *first_early* on."""
        ends, makespans = np.zeros(durations.shape[1], np.int64), np.zeros(len(durations), np.int64)
        replay.measure_makespans(
            self.order,
            self.waits,
            as_int64(durations),
            as_int64(delays),
            np.ascontiguousarray(early, np.float64),
            first_early,
            ends,
            makespans,
        )
        return makespans.tolist()

    def ready(self, start: Ints, end: Ints) -> tuple[Ints, Shares]:
        """Return when each cell's inputs were all there, and by what share of an awaited cell it was ahead of its end.

        A cell that started before one it waits for had ended got what it needed early.
        """
        origin = start.min() if len(start) else 0
        ends, took = np.append(end, origin), np.append(end - start, 0)
        lead = np.where(self.waits >= 0, np.maximum(ends[self.waits] - start[:, None], 0), 0)
        lead = np.minimum(lead, took[self.waits])
        ready = np.maximum((ends[self.waits] - lead).max(axis=1, initial=origin), origin)
        return ready, lead / np.maximum(took[self.waits], 1)

    @cached_property
    def is_forward(self) -> Bools:
        """Cells with a forward in them."""
        has_forward: Bools = (self.op == "F") | (self.op == "FB")
        return has_forward

    @cached_property
    def is_backward(self) -> Bools:
        """Cells with a backward in them."""
        has_backward: Bools = self.op != "F"
        return has_backward

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The positions that have cells."""
        return tuple(np.unique(self.position).tolist())

    def idle_by_phase(self, start: Ints, end: Ints) -> dict[int, tuple[int, ...]]:
        """Return idle time per position: before its first backward, up to its last forward, after it."""
        if not self.positions:
            return {}
        begin, final = min(int(start.min()), 0), max(int(end.max()), 0)
        first_backward = np.full(self.positions[-1] + 1, np.iinfo(np.int64).max)
        np.minimum.at(first_backward, self.position[self.is_backward], start[self.is_backward])
        first_backward[first_backward == np.iinfo(np.int64).max] = final  # positions without a backward
        last_forward = np.full_like(first_backward, begin)
        np.maximum.at(last_forward, self.position[self.is_forward], end[self.is_forward])
        edges = [begin, first_backward, np.maximum(first_backward, last_forward), final]
        idle = []
        for since, until in pairwise(np.broadcast_to(edge, first_backward.shape) for edge in edges):
            busy = np.minimum(end, until[self.position]) - np.maximum(start, since[self.position])
            phase_idle = until - since
            np.subtract.at(phase_idle, self.position, np.maximum(busy, 0))
            idle.append(np.maximum(phase_idle, 0).tolist())
        return {at: tuple(phase[at] for phase in idle) for at in self.positions}

    def averages(self, work: Ints) -> tuple[Ints, Ints]:
        """Return for each cell the median of its op on its stage, and the mean of those over the stages."""
        groups = self._alike
        ordered = work[np.lexsort((work, groups.of_cell))]
        low, high = ordered[groups.first + (groups.size - 1) // 2], ordered[groups.first + groups.size // 2]
        medians = np.rint((low + high) / 2).astype(np.int64)
        sums = np.bincount(groups.kind, weights=medians)
        means = np.rint(sums / np.maximum(np.bincount(groups.kind), 1)).astype(np.int64)
        return medians[groups.of_cell], means[groups.kind[groups.of_cell]]

    @cached_property
    def _alike(self) -> _Alike:
        _, kind = np.unique(self.op, return_inverse=True)
        keys = np.stack([kind.reshape(-1), self.stage, self.b_stage], axis=1)
        distinct, which, size = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        return _Alike(which.reshape(-1), np.cumsum(size) - size, size, distinct[:, 0])

    def peak_activations(self) -> dict[int, int]:
        """Per position: most forwards held at once, each until its B or W."""
        return self._peaks

    @cached_property
    def _peaks(self) -> dict[int, int]:
        freed = (self.op == "B") | (self.op == "W") | (self.op == "FB")
        peaks = {}
        for at in np.unique(self.position):
            here = self.position == at
            taken, back = self.is_forward[here].astype(int), freed[here].astype(int)
            before = np.concatenate([[0], np.cumsum(taken - back)[:-1]])
            peaks[int(at)] = int((before + taken).max(initial=0))
        return peaks


class _Alike(msgspec.Struct, frozen=True, eq=False):
    """Cells of one op on one stage, as groups."""

    of_cell: Ints
    first: Ints  # of each group, in order of group
    size: Ints
    kind: Ints  # each group's op


class Graphs:
    """Graphs by what they are made from: ranks and steps that ran the same order share one."""

    def __init__(self) -> None:
        self._made: dict[bytes, Graph] = {}

    def copy(self) -> Graphs:
        """Return the same graphs, to which others can be added."""
        other = Graphs()
        other._made = dict(self._made)
        return other

    def of(self, pipeline: Pipeline) -> Graph:
        """Return the graph of a pipeline's cells."""
        key = pipeline.numbers.tobytes()
        if key not in self._made:
            self._made[key] = Graph.of(pipeline.detail)
        return self._made[key]


def _waits(position: Ints, op: npt.NDArray[np.str_], forth: tuple[Ints, Ints], back: tuple[Ints, Ints]) -> Ints:
    n = len(op)
    index = np.arange(n)
    stages = int(max(forth[0].max(initial=0), back[0].max(initial=0))) + 2
    batches = int(max(forth[1].max(initial=0), back[1].max(initial=0))) + 1
    makes_f, makes_i = np.full((stages, batches), -1, np.int64), np.full((stages, batches), -1, np.int64)
    f_part, i_part = (op == "F") | (op == "FB"), (op == "B") | (op == "I") | (op == "FB")
    makes_f[forth[0][f_part], forth[1][f_part]] = index[f_part]
    makes_i[back[0][i_part], back[1][i_part]] = index[i_part]
    waits = np.full((n, 4), -1, np.int64)
    same = position[1:] == position[:-1]
    waits[1:, 0][same] = index[:-1][same]
    inner = f_part & (forth[0] > 0)
    waits[inner, 1] = makes_f[forth[0][inner] - 1, forth[1][inner]]
    waits[i_part, 2] = makes_i[back[0][i_part] + 1, back[1][i_part]]
    waits[i_part, 3] = makes_f[back[0][i_part], back[1][i_part]]
    w_part = op == "W"
    waits[w_part, 3] = makes_i[back[0][w_part], back[1][w_part]]
    waits[waits == index[:, None]] = -1
    return waits


def _running_order(waits: Ints, first: Ints) -> tuple[Ints, int]:
    """Return an order in which every cell comes after those it waits for, and how many dropped waits formed a ring."""
    order, done = np.empty(len(waits), np.int64), np.zeros(len(waits), np.uint8)
    dropped = replay.find_running_order(waits, first[:-1].copy(), first[1:], done, order)
    return order, dropped
