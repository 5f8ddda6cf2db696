"""Replays: the cells of a pipeline run again with other durations and delays, in the order they were run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import whole_numbers
from tracekit._util.native import native, whole
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
        stage, microbatch = (whole_numbers(cells[n], 0) for n in ("stage", "microbatch"))
        block = op == "FB"
        other = whole_numbers(cells["b_stage"], -1)
        b_stage = np.where(block, np.maximum(other, 0), stage)
        b_microbatch = np.where(block, whole_numbers(cells["b_microbatch"], 0), microbatch)
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
        _replay(self.order, self.waits, whole(duration), whole(still), lead, start, end)
        return start, end

    def makespan(self, duration: Ints, delay: Ints | None = None, early: Shares | None = None) -> int:
        """From 0 to the end of the last cell."""
        return int(self.run(duration, delay, early)[1].max(initial=0))

    def makespans(self, durations: Ints, delays: Ints, early: Shares, *, first_early: int) -> list[int]:
        """Return the makespan of each row of *durations* and *delays*; *early* counts from row *first_early* on."""
        ends, made = np.zeros(durations.shape[1], np.int64), np.zeros(len(durations), np.int64)
        _replay_all(self.order, self.waits, whole(durations), whole(delays), early, first_early, ends, made)
        return made.tolist()

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
        idle = np.zeros((max(self.positions, default=-1) + 1, 3), np.int64)
        _idle(self.position, self.is_forward, self.is_backward, whole(start), whole(end), idle)
        rows = idle.tolist()
        return {at: tuple(rows[at]) for at in self.positions}

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


@native("void(int64[::1], boolean[::1], boolean[::1], int64[::1], int64[::1], int64[:,::1])")
def _idle(  # noqa: PLR0917 - compiled code takes no keywords
    position: Ints, forward: Bools, backward: Bools, start: Ints, end: Ints, idle: Ints
) -> None:
    """Fill *idle*: of each position, before its first backward, up to its last forward, and after it."""
    low, high = np.int64(0), np.int64(0)
    for i in range(len(position)):
        low, high = min(low, start[i]), max(high, end[i])
    for at in range(len(idle)):
        warm, cool, back = high, low, False
        for i in range(len(position)):
            if position[i] == at and backward[i]:
                warm, back = min(warm, start[i]) if back else start[i], True
            if position[i] == at and forward[i]:
                cool = max(cool, end[i])
        cool = max(warm, cool)
        idle[at, 0], idle[at, 1], idle[at, 2] = warm - low, cool - warm, high - cool
        for i in range(len(position)):
            if position[i] == at:
                idle[at, 0] -= max(min(end[i], warm) - max(start[i], low), 0)
                idle[at, 1] -= max(min(end[i], cool) - max(start[i], warm), 0)
                idle[at, 2] -= max(min(end[i], high) - max(start[i], cool), 0)
        for phase in range(3):
            idle[at, phase] = max(idle[at, phase], 0)


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


@native("int64(int64[:,::1], int64[::1], int64[::1], int64[::1], boolean[::1])")
def _place(waits: Ints, at: Ints, last: Ints, order: Ints, done: npt.NDArray[np.bool_]) -> int:
    """Fill *order*, taking cells from each rank's *at* up to its *last*; return how many waits had to be given up."""
    n, ranks = len(waits), len(at)
    placed, broken = 0, 0
    while placed < n:
        moved = False
        for r in range(ranks):
            while at[r] < last[r]:
                i = at[r]
                blocked = False
                for k in range(1, 4):
                    j = waits[i, k]
                    if j >= 0 and not done[j]:
                        blocked = True
                if blocked:
                    break
                order[placed] = i
                done[i] = True
                placed += 1
                at[r] += 1
                moved = True
        if not moved:
            for r in range(ranks):  # a ring: let the first stuck cell go
                if at[r] < last[r]:
                    for k in range(1, 4):
                        j = waits[at[r], k]
                        if j >= 0 and not done[j]:
                            waits[at[r], k] = -1
                            broken += 1
                    break
    return broken


def _running_order(waits: Ints, first: Ints) -> tuple[Ints, int]:
    """Return an order in which every cell comes after what it waits for, and how many waits ran in a ring."""
    order = np.empty(len(waits), np.int64)
    return order, _place(waits, first[:-1].copy(), first[1:].copy(), order, np.zeros(len(waits), np.bool_))


@native("void(int64[::1], int64[:,::1], int64[::1], int64[::1], int64[:,::1], int64[::1], int64[::1])")
def _replay(  # noqa: PLR0917 - compiled code takes no keywords
    order: Ints, waits: Ints, duration: Ints, delay: Ints, lead: Ints, start: Ints, end: Ints
) -> None:
    for i in order:
        ready = np.int64(0)
        for k in range(4):
            j = waits[i, k]
            if j >= 0 and end[j] - lead[i, k] > ready:
                ready = end[j] - lead[i, k]
        start[i] = ready + delay[i]
        end[i] = start[i] + duration[i]


@native("void(int64[::1], int64[:,::1], int64[:,::1], int64[:,::1], float64[:,::1], int64, int64[::1], int64[::1])")
def _replay_all(  # noqa: PLR0917 - compiled code takes no keywords
    order: Ints, waits: Ints, duration: Ints, delay: Ints, early: Shares, first_early: int, end: Ints, makespan: Ints
) -> None:
    """Replay every row of *duration* and *delay*, from row *first_early* on with what came early (*end*: scratch)."""
    for row in range(len(duration)):
        last = np.int64(0)
        for i in order:
            ready = np.int64(0)
            for k in range(4):
                j = waits[i, k]
                if j >= 0:
                    lead = np.int64(0)
                    if row >= first_early:
                        lead = np.int64(early[i, k] * duration[row, j])  # neither is below 0: cut off is rounded down
                    ready = max(ready, end[j] - lead)
            end[i] = ready + delay[row, i] + duration[row, i]
            last = max(last, end[i])
        makespan[row] = last
