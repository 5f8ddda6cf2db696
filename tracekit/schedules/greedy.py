"""ZB-1p and ZB-2p: an order searched for the given times under a memory limit (Qi et al. 2023, section 3.1).

Micro-batch by micro-batch, a forward sweeps down the ranks and a backward for input sweeps up. W fills a gap when
it fits, when memory is full, or when the gap would make the rank the one with the most idle time. The best of all
combinations of the heuristic's switches is kept.
"""

from __future__ import annotations

import itertools

import numpy as np

from tracekit.schedules.ops import Op, backward_input, backward_weight, forward
from tracekit.schedules.times import Times


def search(pp: int, microbatches: int, times: Times, *, limit: int) -> list[list[Op]]:
    """Return the order whose longest rank is shortest, with activations of at most *limit* micro-batches per rank.

    >>> " ".join(map(str, search(2, 2, Times(), limit=2)[1]))
    '1F0 1I0 1F1 1I1 1W0 1W1'
    """
    best: _Plan | None = None
    for freed_by_i, *switches in itertools.product((0, 1), (False, True), (False, True), (False, True)):
        plan = _Plan(pp, microbatches, times, limit, freed_by_i)
        plan.run(*map(bool, switches))
        if best is None or plan.length() < best.length():
            best = plan
    assert best is not None
    return best.orders


class _Plan:
    """One run of the heuristic: per rank, what has been placed and until when it is busy.

    Memory is counted in halves of a micro-batch's activations. W frees both halves; or, as the paper counts it, I frees
    what W does not need (*freed_by_i* = 1) and W the rest.
    """

    def __init__(self, pp: int, microbatches: int, times: Times, limit: int, freed_by_i: int) -> None:
        self.pp, self.microbatches, self.limit = pp, microbatches, limit
        self.f_time, self.i_time, self.w_time = (float(np.mean(t)) for t in (times.F, times.I, times.W))
        self.p2p = float(np.mean(times.P2P)) + times.p2p_bytes / (times.p2p_bandwidth or 1)
        self.freed_by_i, self.freed_by_w = freed_by_i, 2 - freed_by_i
        self.orders: list[list[Op]] = [[] for _ in range(pp)]
        self.first = [0.0] * pp
        self.at = [0.0] * pp
        self.idle = [0.0] * pp  # inside the order, not before its first op
        self.most_idle = 0.0
        self.f_end: list[list[float]] = [[] for _ in range(pp)]
        self.i_end: list[list[float]] = [[] for _ in range(pp)]
        self.w_done = [0] * pp

    def length(self) -> tuple[float, float]:
        """Return the longest rank's time and the makespan, less rounding noise."""
        span = max(at - first for at, first in zip(self.at, self.first, strict=True))
        return round(span, 9), round(max(self.at), 9)

    def run(self, overfill: bool, hold_back: bool, even_out: bool) -> None:
        """Place every op.

        *overfill*: forwards before the first backward may delay it; *hold_back*: no forward the next rank has no
        need of yet; *even_out*: W goes into a gap too small for it when the rank would become the idlest.
        """
        ranks = range(self.pp)
        for rank in ranks:
            self.forward(rank)
        for rank, more in enumerate(self.warmup(overfill)):
            for _ in range(more):
                self.forward(rank)
        for i in range(self.microbatches):
            for rank in ranks:
                if i and self.wants_forward(rank, hold_back):
                    self.fill(rank, self.f_ready(rank), even_out, room=True)
                    self.forward(rank)
            for rank in reversed(ranks):
                self.fill(rank, self.i_ready(rank), even_out, room=False)
                self.backward(rank)
        for rank in ranks:
            while self.w_done[rank] < self.microbatches:
                self.weight(rank)

    def warmup(self, overfill: bool) -> list[int]:
        """Return how many forwards each rank can place after its first before its first backward arrives."""
        more = [0] * self.pp
        arrival = self.at[-1] + self.i_time + self.p2p
        for rank in reversed(range(self.pp - 1)):
            room = min(self.microbatches, self.limit) - 1
            end = self.at[rank]
            while more[rank] < room and (end < arrival if overfill else end + self.f_time <= arrival):
                more[rank] += 1
                end += self.f_time
            arrival = max(end, arrival) + self.i_time + self.p2p
        for rank in range(1, self.pp):
            while more[rank] and more[rank] >= more[rank - 1] and 1 + more[rank] < self.microbatches:
                more[rank] -= 1
        return more

    def wants_forward(self, rank: int, hold_back: bool) -> bool:
        placed = len(self.f_end[rank])
        if placed == self.microbatches or (rank and placed == len(self.f_end[rank - 1])):
            return False
        waiting = len(self.i_end[rank]) - self.w_done[rank]
        if self.full(rank, after=waiting):
            return False
        if hold_back and rank + 1 < self.pp:
            following = len(self.f_end[rank + 1])
            in_hand = placed >= following + 2
            return not in_hand or self.f_end[rank][following] + self.p2p + self.f_time > self.at[rank + 1]
        return True

    def full(self, rank: int, *, after: int = 0) -> bool:
        """Return whether one more forward would break the limit, even *after* so many Ws."""
        freed = self.freed_by_i * len(self.i_end[rank]) + self.freed_by_w * (self.w_done[rank] + after)
        return 2 * (len(self.f_end[rank]) + 1) - freed > 2 * self.limit

    def f_ready(self, rank: int) -> float:
        return self.f_end[rank - 1][len(self.f_end[rank])] + self.p2p if rank else 0.0

    def i_ready(self, rank: int) -> float:
        i = len(self.i_end[rank])
        own = self.f_end[rank][i]
        return own if rank == self.pp - 1 else max(own, self.i_end[rank + 1][i] + self.p2p)

    def fill(self, rank: int, ready: float, even_out: bool, *, room: bool) -> None:
        """Place Ws before an op that is ready at *ready*; with *room*, make memory for it."""
        while self.w_done[rank] < len(self.i_end[rank]):
            gap = ready - self.at[rank]
            idlest = even_out and gap > 0 and self.idle[rank] + gap > self.most_idle
            if not (gap >= self.w_time or idlest or (room and self.full(rank))):
                break
            self.weight(rank)

    def forward(self, rank: int) -> None:
        op = forward(rank, len(self.f_end[rank]))
        self.f_end[rank].append(self.place(rank, op, self.f_ready(rank), self.f_time))

    def backward(self, rank: int) -> None:
        op = backward_input(rank, len(self.i_end[rank]))
        self.i_end[rank].append(self.place(rank, op, self.i_ready(rank), self.i_time))

    def weight(self, rank: int) -> None:
        self.place(rank, backward_weight(rank, self.w_done[rank]), 0.0, self.w_time)
        self.w_done[rank] += 1

    def place(self, rank: int, op: Op, ready: float, taken: float) -> float:
        start = max(self.at[rank], ready)
        if self.orders[rank]:
            self.idle[rank] += start - self.at[rank]
            self.most_idle = max(self.most_idle, self.idle[rank])
        else:
            self.first[rank] = start
        self.orders[rank].append(op)
        self.at[rank] = start + taken
        return self.at[rank]
