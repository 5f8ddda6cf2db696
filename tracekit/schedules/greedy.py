"""ZB-1p and ZB-2p: an order searched for the given times under a memory limit (Qi et al. 2023, section 3.1).

Micro-batch by micro-batch, a forward sweeps down the ranks and a backward for input sweeps up. W fills a gap when
it fits, when memory is full, or when the gap would make the rank the one with the most idle time. The best of all combinations
of the heuristic's switches is kept.
"""

from __future__ import annotations

import itertools

from tracekit.schedules.ops import Op, backward_input, backward_weight, forward
from tracekit.schedules.schedule import Schedule
from tracekit.schedules.simulator import simulate
from tracekit.schedules.times import Times


def search(pp: int, microbatches: int, times: Times, *, limit: int) -> list[list[Op]]:
    """Find the order with the shortest rank, then the shortest makespan, holding at most *limit* chunks a rank.

    >>> " ".join(map(str, search(2, 2, Times(), limit=2)[1]))
    '1F0 1I0 1F1 1I1 1W0 1W1'
    """
    best: tuple[float, float, list[list[Op]]] | None = None
    for switches in itertools.product((False, True), repeat=3):
        orders = _Plan(pp, microbatches, times, limit).run(*switches)
        done = simulate(Schedule("search", pp, microbatches, 1, tuple(map(tuple, orders))), times)
        found = (max(done.span), done.makespan, orders)
        if best is None or found[:2] < best[:2]:
            best = found
    assert best is not None
    return best[2]


class _Plan:
    """One run of the heuristic: per rank, what has been placed and until when it is busy."""

    def __init__(self, pp: int, microbatches: int, times: Times, limit: int) -> None:
        self.pp, self.microbatches, self.limit = pp, microbatches, limit
        self.f_time, self.i_time, self.w_time, self.p2p = times.F, times.I, times.W, times.P2P
        self.orders: list[list[Op]] = [[] for _ in range(pp)]
        self.at = [0.0] * pp
        self.idle = [0.0] * pp  # inside the order, not before its first op
        self.f_end: list[list[float]] = [[] for _ in range(pp)]
        self.i_end: list[list[float]] = [[] for _ in range(pp)]
        self.w_done = [0] * pp

    def run(self, overfill: bool, hold_back: bool, even_out: bool) -> list[list[Op]]:
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
        return self.orders

    def warmup(self, overfill: bool) -> list[int]:
        """Count the forwards each rank can place after its first before its first backward arrives."""
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
        if self.held(rank) == self.limit and self.w_done[rank] == len(self.i_end[rank]):
            return False
        if hold_back and rank + 1 < self.pp:
            following = len(self.f_end[rank + 1])
            in_hand = placed >= following + 2
            return not in_hand or self.f_end[rank][following] + self.p2p + self.f_time > self.at[rank + 1]
        return True

    def held(self, rank: int) -> int:
        return len(self.f_end[rank]) - self.w_done[rank]

    def f_ready(self, rank: int) -> float:
        return self.f_end[rank - 1][len(self.f_end[rank])] + self.p2p if rank else 0.0

    def i_ready(self, rank: int) -> float:
        i = len(self.i_end[rank])
        own = self.f_end[rank][i]
        return own if rank == self.pp - 1 else max(own, self.i_end[rank + 1][i] + self.p2p)

    def fill(self, rank: int, ready: float, even_out: bool, *, room: bool) -> None:
        """Place Ws before an op that is ready at *ready*; with *room*, make memory for it."""
        while self.waiting(rank):
            fits = self.at[rank] + self.w_time <= ready
            gap = ready - self.at[rank]
            idlest = even_out and gap > 0 and self.idle[rank] + gap > max(self.idle)
            if not (fits or idlest or (room and self.held(rank) >= self.limit)):
                break
            self.weight(rank)

    def waiting(self, rank: int) -> bool:
        return self.w_done[rank] < len(self.i_end[rank])

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
        self.orders[rank].append(op)
        self.at[rank] = start + taken
        return self.at[rank]
