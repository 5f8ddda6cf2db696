"""V-Half and V-Min: V-shaped schedules with controllable memory (Qi et al. 2024).

A block of F, F, I, I on both legs of the V repeats every six slots; W takes the first free slot. The block's shape sets
how long an activation lives, and so the memory. Then the ends are squeezed: gaps are filled without more memory.
"""

from __future__ import annotations

import itertools
from collections import deque

from tracekit.schedules.ops import Op, backward_input, backward_weight, forward

PERIOD = 6
WINDOW = 32  # ops to look ahead for one that fits a gap; more never helped, and costs time
_FREED = {"F": 1, "I": 0, "W": -1}  # chunks of activations an op takes


def v_half(pp: int, microbatches: int) -> list[list[Op]]:
    """About half of 1F1B's memory: (pp+2)//2 micro-batches.

    >>> " ".join(map(str, v_half(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    c = 3 if pp % 2 == 0 else 0
    blocks = [(2 * i, 3 * pp - i - 2, 3 * pp + c + 2 * i - 1, 6 * pp + c - i - 2) for i in range(pp)]
    return _best_squeeze(_repeat(blocks, microbatches), limit=2 * ((pp + 2) // 2))


def v_min(pp: int, microbatches: int) -> list[list[Op]]:
    """About a third of 1F1B's memory: (pp+4)//3 micro-batches.

    >>> " ".join(map(str, v_min(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    c = 2 if pp % 3 == 0 else 0
    blocks = [(i, 2 * pp - i - 1, 2 * pp + c + i, 4 * pp + c - i - 1) for i in range(pp)]
    return _best_squeeze(_repeat(blocks, microbatches), limit=2 * ((pp + 4) // 3))


def _repeat(blocks: list[tuple[int, int, int, int]], microbatches: int) -> list[list[Op]]:
    """Lay the block down once for each micro-batch: the slots of F0, F1, I1, I0, and W where there is room."""
    pp = len(blocks)
    orders = []
    for rank, block in enumerate(blocks):
        down, up = rank, 2 * pp - 1 - rank
        slots: dict[int, Op] = {}
        for i in range(microbatches):
            ops = (forward(down, i), forward(up, i), backward_input(up, i), backward_input(down, i))
            slots.update(zip((slot + PERIOD * i for slot in block), ops, strict=True))
        free = 0
        for slot, op in sorted(slots.items()):
            if op.kind == "I":
                free = max(free, slot + 1)
                while free in slots:
                    free += 1
                slots[free] = backward_weight(op.stage, op.microbatch)
        orders.append([op for _, op in sorted(slots.items())])
    return orders


def _best_squeeze(orders: list[list[Op]], *, limit: int) -> list[list[Op]]:
    """Take the shorter of two ways to fill gaps."""
    tries = [_Squeeze(orders, limit, eager=eager).run() for eager in (False, True)]
    return min(tries, key=lambda done: done[0])[1]


class _Squeeze:
    """Run the ranks slot by slot; a rank whose next op is not ready takes a later one that is, if memory allows.

    With forwards left, a rank leaves its order only for a gap (*eager*: also to run I before W); with none left, I goes
    before W, because other ranks wait for I alone.
    """

    def __init__(self, orders: list[list[Op]], limit: int, *, eager: bool) -> None:
        self.left: list[deque[Op]] = [deque(order) for order in orders]
        self.forwards = [sum(op.kind == "F" for op in order) for order in orders]
        self.held = [0] * len(orders)
        self.limit, self.eager = limit, eager
        self.window = min(2 * limit, WINDOW)
        self.last_stage = 2 * len(orders) - 1
        self.done: dict[tuple[str, int, int], int] = {}

    def run(self) -> tuple[int, list[list[Op]]]:
        orders: list[list[Op]] = [[] for _ in self.left]
        now = 0
        while any(self.left):
            picks = [(rank, self.pick(rank, now)) for rank in range(len(orders)) if self.left[rank]]
            now += 1
            for rank, at in picks:
                if at is not None:
                    op = self.left[rank][at]
                    del self.left[rank][at]
                    self.forwards[rank] -= op.kind == "F"
                    self.held[rank] += _FREED[op.kind]
                    self.done[op.kind, op.stage, op.microbatch] = now
                    orders[rank].append(op)
        return now, orders

    def pick(self, rank: int, now: int) -> int | None:
        """Position of the op to run now: the best of those that are ready and keep the memory within the limit."""
        best: tuple[int, int] | None = None
        held = peak = self.held[rank]
        ops = self.left[rank]
        for at, op in enumerate(itertools.islice(ops, self.window)):
            fits = op.kind != "F" or max(peak, self.held[rank]) < self.limit or at == 0
            if fits and self.ready(op, now):
                choice = (self.worth(rank, ops[0], op, at), at)
                best = choice if best is None else min(best, choice)
                if best[0] <= (at > 0):
                    break
            held += _FREED[op.kind]
            peak = max(peak, held)
        return None if best is None else best[1]

    def worth(self, rank: int, head: Op, op: Op, at: int) -> int:
        """0 is best."""
        if self.eager:
            urgent = (at == 0 and op.kind != "W") or (op.kind == "I" and head.kind == "W")
            return 0 if urgent else 1 + "FIW".index(op.kind)
        if self.forwards[rank]:
            return 0 if at == 0 else 1 + "IFW".index(op.kind)
        return "IFW".index(op.kind)

    def ready(self, op: Op, now: int) -> bool:
        i, stage = op.microbatch, op.stage
        if op.kind == "F":
            return stage == 0 or self.by(("F", stage - 1, i), now)
        if op.kind == "W":
            return self.by(("I", stage, i), now)
        return self.by(("F", stage, i), now) and (stage == self.last_stage or self.by(("I", stage + 1, i), now))

    def by(self, made: tuple[str, int, int], now: int) -> bool:
        return self.done.get(made, now + 1) <= now
