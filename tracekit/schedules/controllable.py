"""V-Half and V-Min: V-shaped schedules with controllable memory (Qi et al. 2024).

A block of F, F, I, I on both legs of the V repeats every six time slots; W takes the first free slot. The shape of the
block determines how long an activation lives, and so the memory. Then gaps at both ends are filled without more memory.
"""

from itertools import pairwise

import msgspec
import numpy as np

from tracekit._loops import gap_filling
from tracekit._util.arrays import Ints
from tracekit.schedules.ops import Kind, Op

PERIOD = 6
"""Time slots from one micro-batch to the next."""
MAX_LOOKAHEAD = 32
"""Ops to look ahead for one that fits into a gap; more never helped, and costs time."""

_KINDS: tuple[Kind, ...] = ("F", "I", "W")
_F, _I, _W = gap_filling.F, gap_filling.I, gap_filling.W


def v_half(pp: int, microbatches: int) -> list[list[Op]]:
    """Run V-Half, with about half of 1F1B's memory: (pp+2)//2 micro-batches.

    >>> " ".join(map(str, v_half(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    shift = 3 if pp % 2 == 0 else 0
    blocks = [(2 * i, 3 * pp - i - 2, 3 * pp + shift + 2 * i - 1, 6 * pp + shift - i - 2) for i in range(pp)]
    return _fill_gaps(_repeat_block(blocks, microbatches), limit=2 * ((pp + 2) // 2))


def v_min(pp: int, microbatches: int) -> list[list[Op]]:
    """Run V-Min, with about a third of 1F1B's memory: (pp+4)//3 micro-batches.

    >>> " ".join(map(str, v_min(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    shift = 2 if pp % 3 == 0 else 0
    blocks = [(i, 2 * pp - i - 1, 2 * pp + shift + i, 4 * pp + shift - i - 1) for i in range(pp)]
    return _fill_gaps(_repeat_block(blocks, microbatches), limit=2 * ((pp + 4) // 3))


class _Ops(msgspec.Struct, frozen=True, eq=False):
    """Ops of all ranks as columns, rank after rank; kinds are numbers."""

    first: list[int]  # first op of each rank, and the end
    kind: list[int]
    stage: list[int]
    microbatch: list[int]


def _repeat_block(blocks: list[tuple[int, int, int, int]], microbatches: int) -> _Ops:
    """Repeat a block for each micro-batch, and put each W into the first free slot.

    *blocks* holds for each rank the slots of the first micro-batch's F and F (down, up), I and I (up, down).
    """
    pp = len(blocks)
    ops = _Ops([0], [], [], [])
    for rank, block in enumerate(blocks):
        down, up = rank, 2 * pp - 1 - rank
        slots: dict[int, tuple[int, int, int]] = {}
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
        for slot in sorted(slots):
            for column, value in zip((ops.kind, ops.stage, ops.microbatch), slots[slot], strict=True):
                column.append(value)
        ops.first.append(len(ops.kind))
    return ops


def _fill_gaps(ops: _Ops, *, limit: int) -> list[list[Op]]:
    """Return the orders of the shorter of two ways to fill gaps; *limit* is in activations of a chunk."""
    _, order = min((_fill_gaps_one_way(ops, limit, eager=eager) for eager in (False, True)), key=lambda tried: tried[0])
    filled = [Op(_KINDS[ops.kind[i]], ops.stage[i], ops.microbatch[i]) for i in order.tolist()]
    return [filled[start:end] for start, end in pairwise(ops.first)]


def _fill_gaps_one_way(ops: _Ops, limit: int, *, eager: bool) -> tuple[int, Ints]:
    """Return how many slots the ranks take, and the ops in the order they run, rank after rank."""
    first = np.array(ops.first, np.int64)
    stages, microbatches = 2 * (len(first) - 1), max(ops.microbatch) + 1
    f_done, i_done = np.full((2, stages, microbatches), gap_filling.UNSTARTED, np.int64)
    order = np.empty(len(ops.kind), np.int64)
    slots = gap_filling.fill_gaps(
        kind=np.array(ops.kind, np.int64),
        stage=np.array(ops.stage, np.int64),
        microbatch=np.array(ops.microbatch, np.int64),
        next_op=np.arange(1, len(order) + 1),
        head=first[:-1].copy(),
        rank_end=first[1:],
        next_row=first[:-1].copy(),
        forwards_left=np.array([ops.kind[start:end].count(_F) for start, end in pairwise(ops.first)], np.int64),
        activations=np.zeros(len(first) - 1, np.int64),
        f_done=f_done,
        i_done=i_done,
        max_activations=limit,
        window=min(2 * limit, MAX_LOOKAHEAD),
        eager=eager,
        order=order,
    )
    return slots, order
