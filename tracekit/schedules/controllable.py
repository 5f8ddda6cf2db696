"""V-Half and V-Min: V-shaped schedules with controllable memory (Qi et al. 2024).

A block of F, F, I, I on both legs of the V repeats every six slots; W takes the first free slot. The block's shape sets
how long an activation lives, and so the memory. Then the ends are squeezed: gaps are filled without more memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from tracekit._util.native import Native
from tracekit.schedules.ops import Kind, Op, from_columns

PERIOD = 6
WINDOW = 32  # ops to look ahead for one that fits a gap; more never helped, and costs time
NATIVE_OPS = 10_000
"""Ops from which native code does the squeezing even where it has to be compiled first."""

_KINDS: tuple[Kind, ...] = ("F", "I", "W")
_F, _I, _W = range(3)


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


def _squeezed(ops: _Ops, limit: int, *, eager: bool) -> tuple[int, Any]:
    """Return how many slots it takes, and the ops in the order they run, rank after rank."""
    total, ranks = len(ops.kind), len(ops.first) - 1
    forwards = [ops.kind[a:b].count(_F) for a, b in pairwise(ops.first)]
    tables: list[Any] = [
        np.array([ops.kind, ops.stage, ops.microbatch, range(1, total + 1), [0] * total], np.int64),
        np.array([ops.first[:-1], ops.first[1:], ops.first[:-1], forwards, [0] * ranks], np.int64),
        np.full((2, 2 * ranks * (max(ops.microbatch) + 1)), 2**62, np.int64),
        np.array([limit, min(2 * limit, WINDOW), int(eager)], np.int64),
    ]
    if total >= NATIVE_OPS or _native_squeeze.at_hand():
        return _native_squeeze(*tables), tables[0][4]
    plain = [table.tolist() for table in tables]
    return _squeeze(*plain), plain[0][4]


def _squeeze(ops: Any, ranks: Any, done: Any, rules: Any) -> int:  # noqa: PLR0912, PLR0915 - native code is one function
    """Return how many slots the ranks take; one whose next op is not ready takes a later one that is, if memory allows.

    With forwards left, a rank leaves its order only for a gap (*eager*: also to run I before W); with none left, I goes
    before W, because other ranks wait for I alone.
    """
    kind, stage, microbatch, following, order = ops[0], ops[1], ops[2], ops[3], ops[4]
    head, end, placed, forwards, activations = ranks[0], ranks[1], ranks[2], ranks[3], ranks[4]
    done_f, done_i = done[0], done[1]
    limit, window, eager = rules[0], rules[1], rules[2]
    count, now, left = len(head), 0, len(kind)
    batches = len(done_f) // (2 * count)
    while left:
        for rank in range(count):
            best, best_worth, best_before = -1, 9, -1
            before, op, at = -1, head[rank], 0
            running = peak = activations[rank]
            while op < end[rank] and at < window:
                what, cell = kind[op], stage[op] * batches + microbatch[op]
                if what == 0:
                    ready = at == 0 or max(peak, activations[rank]) < limit
                    ready = ready and (stage[op] == 0 or done_f[cell - batches] <= now)
                elif what == 1:
                    ready = done_f[cell] <= now and (stage[op] == 2 * count - 1 or done_i[cell + batches] <= now)
                else:
                    ready = done_i[cell] <= now
                if ready:
                    urgent = (at == 0 and what != 2) or (what == 1 and kind[head[rank]] == 2)
                    inputs_first = (1, 0, 2)[what]
                    if eager:  # 0 is best
                        worth = 0 if urgent else 1 + what
                    elif forwards[rank]:
                        worth = 0 if at == 0 else 1 + inputs_first
                    else:
                        worth = inputs_first
                    if worth < best_worth:
                        best, best_worth, best_before = op, worth, before
                    if best_worth <= min(at, 1):
                        break
                running += (1, 0, -1)[what]
                peak = max(peak, running)
                before, op, at = op, following[op], at + 1
            if best < 0:
                continue
            if best_before < 0:
                head[rank] = following[best]
            else:
                following[best_before] = following[best]
            what, cell = kind[best], stage[best] * batches + microbatch[best]
            activations[rank] += (1, 0, -1)[what]
            if what == 0:
                forwards[rank] -= 1
                done_f[cell] = now + 1
            elif what == 1:
                done_i[cell] = now + 1
            order[placed[rank]] = best
            placed[rank] += 1
            left -= 1
        now += 1
    return now


_native_squeeze = Native("int64(int64[:,::1], int64[:,::1], int64[:,::1], int64[::1])", _squeeze, __file__)
