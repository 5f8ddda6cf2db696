"""ZB-1p and ZB-2p: an order searched for the given times under a memory limit (Qi et al.

2023, section 3.1).

Micro-batch by micro-batch, forwards are placed down the ranks and backwards for input up the ranks.
A W is placed into a gap if it fits, if memory is full, or if the gap would make the rank the one
with the most idle time. The search tries all combinations of the heuristic's options and returns
the shortest order.
"""

import itertools

import numpy as np

from tracekit.pipeline.schedules.ops import Op, backward_input, backward_weight, forward
from tracekit.pipeline.schedules.times import Times


def search(pp: int, microbatches: int, times: Times, *, limit: int) -> list[list[Op]]:
    """Return the order whose longest rank is shortest, with activations of at most *limit* micro-batches per rank.

    >>> " ".join(map(str, search(2, 2, Times(), limit=2)[1]))
    '1F0 1I0 1F1 1I1 1W0 1W1'
    """
    best: _Plan | None = None
    options = itertools.product((0, 1), (False, True), (False, True), (False, True))
    for freed_by_i, overfill, hold_back, even_out in options:
        plan = _Plan(pp, microbatches, times, limit, freed_by_i)
        plan.run(overfill=bool(overfill), hold_back=bool(hold_back), even_out=bool(even_out))
        if best is None or plan.length() < best.length():
            best = plan
    assert best is not None
    return best.orders


class _Plan:
    """One run of the heuristic: for each rank the ops placed so far, and the time until which it is busy.

    Memory is counted in halves of a micro-batch's activations. Either W frees both halves, or, as
    the paper counts, I frees what W does not need (*freed_by_i* = 1) and W the rest.
    """

    def __init__(
        self, pp: int, microbatches: int, times: Times, limit: int, freed_by_i: int
    ) -> None:
        self.pp = pp
        self.microbatches = microbatches
        self.limit = limit
        self.f_time = float(np.mean(times.F))
        self.i_time = float(np.mean(times.I))
        self.w_time = float(np.mean(times.W))
        self.p2p = float(np.mean(times.P2P)) + times.p2p_bytes / (times.p2p_bandwidth or 1)
        self.freed_by_i = freed_by_i
        self.freed_by_w = 2 - freed_by_i
        self.orders: list[list[Op]] = [[] for _ in range(pp)]
        self.first_start = [0.0] * pp
        self.busy_until = [0.0] * pp
        self.idle = [0.0] * pp  # between ops, not before the first one
        self.most_idle = 0.0
        self.f_end: list[list[float]] = [[] for _ in range(pp)]
        self.i_end: list[list[float]] = [[] for _ in range(pp)]
        self.w_done = [0] * pp

    def length(self) -> tuple[float, float]:
        """Return the longest rank's time and the makespan, less rounding noise."""
        span = max(
            end - start for end, start in zip(self.busy_until, self.first_start, strict=True)
        )
        return round(span, 9), round(max(self.busy_until), 9)

    def run(self, *, overfill: bool, hold_back: bool, even_out: bool) -> None:
        """Place every op.

        Args:
            overfill: Forwards before the first backward may delay it.
            hold_back: Place no forward before the next rank needs it.
            even_out: Place W into a gap too small for it if the rank would become the one with the
                most idle time.

        """
        ranks = range(self.pp)
        for rank in ranks:
            self.forward(rank)
        for rank, count in enumerate(self.count_warmup(overfill)):
            for _ in range(count):
                self.forward(rank)
        for i in range(self.microbatches):
            for rank in ranks:
                if i and self.wants_forward(rank, hold_back):
                    self.fill(rank, self.f_ready(rank), even_out, make_room=True)
                    self.forward(rank)
            for rank in reversed(ranks):
                self.fill(rank, self.i_ready(rank), even_out, make_room=False)
                self.backward(rank)
        for rank in ranks:
            while self.w_done[rank] < self.microbatches:
                self.weight(rank)

    def count_warmup(self, overfill: bool) -> list[int]:
        """Return how many forwards each rank can place after its first before its first backward arrives."""
        more = [0] * self.pp
        most = min(self.microbatches, self.limit) - 1
        arrival = self.busy_until[-1] + self.i_time + self.p2p
        for rank in reversed(range(self.pp - 1)):
            end = self.busy_until[rank]
            while more[rank] < most and (
                end < arrival if overfill else end + self.f_time <= arrival
            ):
                more[rank] += 1
                end += self.f_time
            arrival = max(end, arrival) + self.i_time + self.p2p
        # No rank places as many as the rank before it, unless it places all.
        for rank in range(1, self.pp):
            while (
                more[rank] and more[rank] >= more[rank - 1] and 1 + more[rank] < self.microbatches
            ):
                more[rank] -= 1
        return more

    def wants_forward(self, rank: int, hold_back: bool) -> bool:
        """Return whether a forward can and should be placed on a rank now."""
        placed = len(self.f_end[rank])
        if placed == self.microbatches or (rank and placed == len(self.f_end[rank - 1])):
            return False
        weights_to_run = len(self.i_end[rank]) - self.w_done[rank]
        if self.is_full(rank, after=weights_to_run):
            return False
        if hold_back and rank + 1 < self.pp:
            following = len(self.f_end[rank + 1])
            is_ahead = placed >= following + 2
            return (
                not is_ahead
                or self.f_end[rank][following] + self.p2p + self.f_time > self.busy_until[rank + 1]
            )
        return True

    def is_full(self, rank: int, *, after: int = 0) -> bool:
        """Return whether one more forward would exceed the memory limit, even *after* so many more W."""
        freed = self.freed_by_i * len(self.i_end[rank]) + self.freed_by_w * (
            self.w_done[rank] + after
        )
        return 2 * (len(self.f_end[rank]) + 1) - freed > 2 * self.limit

    def f_ready(self, rank: int) -> float:
        """Return when the input of a rank's next forward has arrived."""
        return self.f_end[rank - 1][len(self.f_end[rank])] + self.p2p if rank else 0.0

    def i_ready(self, rank: int) -> float:
        """Return when the inputs of a rank's next backward for input have arrived."""
        i = len(self.i_end[rank])
        own = self.f_end[rank][i]
        return own if rank == self.pp - 1 else max(own, self.i_end[rank + 1][i] + self.p2p)

    def fill(self, rank: int, ready: float, even_out: bool, *, make_room: bool) -> None:
        """Place W before an op that is ready at *ready*.

        With *make_room*, free memory for it as well.
        """
        while self.w_done[rank] < len(self.i_end[rank]):
            gap = ready - self.busy_until[rank]
            becomes_idlest = even_out and gap > 0 and self.idle[rank] + gap > self.most_idle
            if not (gap >= self.w_time or becomes_idlest or (make_room and self.is_full(rank))):
                break
            self.weight(rank)

    def forward(self, rank: int) -> None:
        op = forward(rank, len(self.f_end[rank]))
        self.f_end[rank].append(self.append(rank, op, self.f_ready(rank), self.f_time))

    def backward(self, rank: int) -> None:
        op = backward_input(rank, len(self.i_end[rank]))
        self.i_end[rank].append(self.append(rank, op, self.i_ready(rank), self.i_time))

    def weight(self, rank: int) -> None:
        self.append(rank, backward_weight(rank, self.w_done[rank]), 0.0, self.w_time)
        self.w_done[rank] += 1

    def append(self, rank: int, op: Op, ready: float, duration: float) -> float:
        """Append an op to a rank's order; return its end."""
        start = max(self.busy_until[rank], ready)
        if self.orders[rank]:
            self.idle[rank] += start - self.busy_until[rank]
            self.most_idle = max(self.most_idle, self.idle[rank])
        else:
            self.first_start[rank] = start
        self.orders[rank].append(op)
        self.busy_until[rank] = start + duration
        return self.busy_until[rank]
