"""V-Half and V-Min: V-shaped schedules with controllable memory (Qi et al. 2024).

A block of F, F, I, I on both legs of the V repeats every six time slots; W takes the first free
slot. The shape of the block determines how long an activation lives, and so the memory. Then gaps
at both ends are filled without more memory.
"""

from itertools import chain, pairwise

import numpy as np

from tracekit._loops import gap_filling
from tracekit._util.arrays import Ints
from tracekit.schedules.ops import Kind, Op

PERIOD = 6
"""Time slots from one micro-batch to the next."""
MAX_LOOKAHEAD = 32
"""Ops to look ahead for one that fits into a gap; more never helped, and costs time."""

_KINDS: tuple[Kind, ...] = ("F", "I", "W")
_F = gap_filling.F
_I = gap_filling.I
_W = gap_filling.W


def v_half(pp: int, microbatches: int) -> list[list[Op]]:
    """Run V-Half, with about half of 1F1B's memory: (pp+2)//2 micro-batches.

    >>> " ".join(map(str, v_half(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    shift = 3 if pp % 2 == 0 else 0
    blocks = []
    for i in range(pp):
        blocks.append((2 * i, 3 * pp - i - 2, 3 * pp + shift + 2 * i - 1, 6 * pp + shift - i - 2))
    return _fill_gaps(_repeat_block(blocks, microbatches), limit=2 * ((pp + 2) // 2))


def v_min(pp: int, microbatches: int) -> list[list[Op]]:
    """Run V-Min, with about a third of 1F1B's memory: (pp+4)//3 micro-batches.

    >>> " ".join(map(str, v_min(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    shift = 2 if pp % 3 == 0 else 0
    blocks = [(i, 2 * pp - i - 1, 2 * pp + shift + i, 4 * pp + shift - i - 1) for i in range(pp)]
    return _fill_gaps(_repeat_block(blocks, microbatches), limit=2 * ((pp + 4) // 3))


_CodedOp = tuple[int, int, int]
"""Number of the kind, stage and micro-batch."""


def _repeat_block(
    blocks: list[tuple[int, int, int, int]], microbatches: int
) -> list[list[_CodedOp]]:
    """Return the order of each rank: a block repeated for each micro-batch, with each W in the first free slot.

    *blocks* holds for each rank the slots of the first micro-batch's F and F (down, up), I and I
    (up, down).
    """
    pp = len(blocks)
    orders = []
    for rank, block in enumerate(blocks):
        down = rank
        up = 2 * pp - 1 - rank
        slots: dict[int, _CodedOp] = {}
        for kind, stage, slot in zip((_F, _F, _I, _I), (down, up, up, down), block, strict=True):
            slots |= {slot + PERIOD * i: (kind, stage, i) for i in range(microbatches)}
        free = 0  # no slot before is free for a W
        for slot in sorted(slots):
            kind, stage, i = slots[slot]
            if kind == _I:
                free = max(free, slot + 1)
                while free in slots:
                    free += 1
                slots[free] = (_W, stage, i)
        orders.append([slots[slot] for slot in sorted(slots)])
    return orders


def _fill_gaps(orders: list[list[_CodedOp]], *, limit: int) -> list[list[Op]]:
    """Return the orders of the shorter of two ways to fill gaps.

    *limit* is in activations of a chunk.
    """
    ops = list(chain.from_iterable(orders))
    coded = np.array(ops, np.int64)
    first = np.cumsum([0, *map(len, orders)])  # first op of each rank, and the end
    late_slots, late_order = _fill_gaps_one_way(coded, first, limit, eager=False)
    eager_slots, eager_order = _fill_gaps_one_way(coded, first, limit, eager=True)
    order = eager_order if eager_slots < late_slots else late_order
    filled = []
    for row in order.tolist():
        kind, stage, microbatch = ops[row]
        filled.append(Op(_KINDS[kind], stage, microbatch))
    return [filled[start:end] for start, end in pairwise(first.tolist())]


def _fill_gaps_one_way(ops: Ints, first: Ints, limit: int, *, eager: bool) -> tuple[int, Ints]:
    """Return how many slots the ranks take, and the ops in the order they run, rank after rank."""
    kind, stage, microbatch = ops.T.copy()
    f_done, i_done = np.full(
        (2, 2 * (len(first) - 1), microbatch.max() + 1), gap_filling.UNSTARTED, np.int64
    )
    order = np.empty(len(kind), np.int64)
    slots = gap_filling.fill_gaps(
        kind=kind,
        stage=stage,
        microbatch=microbatch,
        next_op=np.arange(1, len(order) + 1),
        head=first[:-1].copy(),
        rank_end=first[1:],
        next_row=first[:-1].copy(),
        forwards_left=np.add.reduceat((kind == _F).astype(np.int64), first[:-1]),
        activations=np.zeros(len(first) - 1, np.int64),
        f_done=f_done,
        i_done=i_done,
        max_activations=limit,
        window=min(2 * limit, MAX_LOOKAHEAD),
        eager=eager,
        order=order,
    )
    return slots, order
