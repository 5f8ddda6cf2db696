"""V-Half and V-Min: V-shaped schedules with controllable memory (Qi et al. 2024).

A block of F, F, I, I on both legs of the V repeats every six slots; W takes the first free slot. The block's shape sets
how long an activation lives, and so the memory. Then the ends are squeezed: gaps are filled without more memory.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit._loops import gap_filling
from tracekit.schedules.ops import Kind, Op, from_columns

PERIOD = 6
WINDOW = 32  # ops to look ahead for one that fits a gap; more never helped, and costs time

Ints = npt.NDArray[np.int64]

_KINDS: tuple[Kind, ...] = ("F", "I", "W")
_F, _I, _W = gap_filling.F, gap_filling.I, gap_filling.W


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


class _Ops(msgspec.Struct, frozen=True, eq=False):
    """Ops of all ranks as columns, rank after rank: kinds are numbers, ``first[r]`` is where rank r begins."""

    first: list[int]
    kind: list[int]
    stage: list[int]
    microbatch: list[int]


def _repeat(blocks: list[tuple[int, int, int, int]], microbatches: int) -> _Ops:
    """Return the block repeated for each micro-batch: the slots of F0, F1, I1, I0, and W where there is room."""
    pp = len(blocks)
    ops = _Ops([0], [], [], [])
    for rank, block in enumerate(blocks):
        down, up = rank, 2 * pp - 1 - rank
        slots: dict[int, tuple[int, int, int]] = {}
        for kind, stage, slot in zip((_F, _F, _I, _I), (down, up, up, down), block, strict=True):
            slots |= {slot + PERIOD * i: (kind, stage, i) for i in range(microbatches)}
        free = 0
        for slot in sorted(slots):
            kind, stage, i = slots[slot]
            if kind == _I:
                if free <= slot:
                    free = slot + 1
                while free in slots:
                    free += 1
                slots[free] = (_W, stage, i)
        order = sorted(slots)
        for k, column in enumerate((ops.kind, ops.stage, ops.microbatch)):
            column.extend([slots[s][k] for s in order])
        ops.first.append(len(ops.kind))
    return ops


def _best_squeeze(ops: _Ops, *, limit: int) -> list[list[Op]]:
    """Return the orders of the shorter of two ways to fill gaps."""
    tries = [_squeezed(ops, limit, eager=eager) for eager in (False, True)]
    _, order = min(tries, key=lambda done: done[0])
    kind, stage, microbatch = (np.array(c)[order].tolist() for c in (ops.kind, ops.stage, ops.microbatch))
    made = from_columns([_KINDS[k] for k in kind], stage, microbatch)
    return [made[a:b] for a, b in pairwise(ops.first)]


def _squeezed(ops: _Ops, limit: int, *, eager: bool) -> tuple[int, Ints]:
    """Return how many slots the ranks take, and the ops in the order they run, rank after rank."""
    first = np.array(ops.first, np.int64)
    stages, microbatches = 2 * (len(first) - 1), max(ops.microbatch) + 1
    f_done, i_done = np.full((2, stages, microbatches), gap_filling.UNSTARTED, np.int64)
    order = np.empty(len(ops.kind), np.int64)
    slots = gap_filling.fill_gaps(
        kind=np.array(ops.kind, np.int64),
        stage=np.array(ops.stage, np.int64),
        microbatch=np.array(ops.microbatch, np.int64),
        following=np.arange(1, len(order) + 1),
        head=first[:-1].copy(),
        rank_end=first[1:],
        placed=first[:-1].copy(),
        forwards_left=np.array([ops.kind[a:b].count(_F) for a, b in pairwise(ops.first)], np.int64),
        activations=np.zeros(len(first) - 1, np.int64),
        f_done=f_done,
        i_done=i_done,
        max_activations=limit,
        window=min(2 * limit, WINDOW),
        eager=eager,
        order=order,
    )
    return slots, order
