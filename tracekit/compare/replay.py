"""Replays: the cells of a pipeline run again with other durations and delays, in the order they were run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import whole_numbers
from tracekit._util.native import native, whole

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
        b_stage = np.where(block, whole_numbers(cells["b_stage"], 0), stage)
        b_microbatch = np.where(block, whole_numbers(cells["b_microbatch"], 0), microbatch)
        waits = _waits(position, op, (stage, microbatch), (b_stage, b_microbatch))
        first = np.searchsorted(position, np.arange(int(position.max(initial=-1)) + 2))
        order, broken = _running_order(waits, first)
        return cls(position, op, stage, microbatch, waits, order, broken)

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

    def idle_by_phase(self, start: Ints, end: Ints) -> dict[int, tuple[int, int, int]]:
        """Return idle time per position: before its first backward, up to its last forward, after it."""
        low, high = int(start.min(initial=0)), int(end.max(initial=0))
        idle = {}
        for at in np.unique(self.position):
            here = self.position == at
            back, forth = start[here & self.is_backward], end[here & self.is_forward]
            warm = int(back.min()) if len(back) else high
            cool = max(warm, int(forth.max()) if len(forth) else warm)
            edges = ((low, warm), (warm, cool), (cool, high))
            idle[int(at)] = tuple(_idle(start[here], end[here], a, b) for a, b in edges)
        return idle  # type: ignore[return-value]

    def peak_activations(self) -> dict[int, int]:
        """Per position: most forwards held at once, each until its B or W."""
        freed = (self.op == "B") | (self.op == "W") | (self.op == "FB")
        peaks = {}
        for at in np.unique(self.position):
            here = self.position == at
            taken, back = self.is_forward[here].astype(int), freed[here].astype(int)
            before = np.concatenate([[0], np.cumsum(taken - back)[:-1]])
            peaks[int(at)] = int((before + taken).max(initial=0))
        return peaks


def _idle(start: Ints, end: Ints, low: int, high: int) -> int:
    inside = (np.minimum(end, high) - np.maximum(start, low)).clip(0)
    return int(max(0, high - low - inside.sum()))


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
