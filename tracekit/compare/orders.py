"""Comparison of op orders.

Orders are compared as units of work: a B is an I and a W, an FB is an F and a B. So a run that fused I and W, or that
ran the halves of an FB one after the other, still equals its schedule. Such differences in granularity are counted
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from tracekit._loops import edit_distance
from tracekit.documents.analysis import Difference
from tracekit.schedules import Op

Unit = tuple[str, int, int]
"""Unit of work: kind (F, I or W), stage (-1 if not known), micro-batch."""

MAX_COUNTED_DISTANCE = 400
"""Distance between two orders of a rank above which counting stops."""


def count_ops(order: Sequence[Op], *kinds: str) -> int:
    """Return the number of ops of these kinds.

    >>> count_ops([Op("F", 0, 0), Op("F", 0, 1), Op("B", 0, 0)], "F", "FB")
    2
    """
    return sum(op.kind in kinds for op in order)


def units(op: Op) -> list[Unit]:
    """Return the units of work of an op.

    >>> units(Op.parse("(0F7;3B2)"))
    [('F', 0, 7), ('I', 3, 2), ('W', 3, 2)]
    """
    if op.kind == "FB":
        b_stage = -1 if op.b_stage is None else op.b_stage
        b_microbatch = -1 if op.b_microbatch is None else op.b_microbatch
        return [("F", op.stage, op.microbatch), ("I", b_stage, b_microbatch), ("W", b_stage, b_microbatch)]
    kinds = ("I", "W") if op.kind == "B" else (op.kind,)
    return [(kind, op.stage, op.microbatch) for kind in kinds]


def pattern(order: Sequence[Op]) -> list[Op]:
    """Return the order with all stages 0 and micro-batches numbered by their forwards on this rank.

    >>> pattern([Op.parse(t) for t in ("3F4", "1F9", "1B9")])
    [Op(0F0), Op(0F1), Op(0B1)]
    """
    numbers: dict[tuple[int, int], int] = {}

    def number(stage: int | None, microbatch: int | None) -> int:
        return numbers.setdefault((stage or 0, microbatch or 0), len(numbers))

    for op in order:
        if op.kind in ("F", "FB"):
            number(op.stage, op.microbatch)
    return [
        Op("FB", 0, number(op.stage, op.microbatch), 0, number(op.b_stage, op.b_microbatch))
        if op.kind == "FB"
        else Op(op.kind, 0, number(op.stage, op.microbatch))
        for op in order
    ]


def same_work(measured: Sequence[Op], expected: Sequence[Op], *, any_weight_gradient: bool = False) -> bool:
    """Return whether two orders have the same units of work in the same order.

    The halves of an FB may come either way round. With *any_weight_gradient* a W equals any other W.

    >>> same_work([Op.parse(t) for t in ("0B0", "0F3")], [Op.parse("(0F3;0B0)")])
    True
    >>> same_work([Op.parse(t) for t in ("0I0", "0W0")], [Op.parse("0B0")])
    True
    """
    if len(measured) == len(expected) and list(measured) == list(expected):
        return True
    left, right = _UnitOrder(measured, any_weight_gradient), _UnitOrder(expected, any_weight_gradient)
    if len(left.units) != len(right.units):
        return False
    i = 0
    while i < len(left.units):
        if left.units[i] == right.units[i]:
            i += 1
        elif not (left.turn_block(i, right.units) or right.turn_block(i, left.units)):
            return False
    return True


class _UnitOrder:
    """An order as units of work, in which blocks FB can be turned round."""

    def __init__(self, order: Sequence[Op], any_weight_gradient: bool) -> None:
        self.units: list[Unit] = []
        self.block_starts: set[int] = set()  # blocks that may still be turned
        for op in order:
            if op.kind == "FB":
                self.block_starts.add(len(self.units))
            self.units += [("W", -1, -1) if any_weight_gradient and unit[0] == "W" else unit for unit in units(op)]

    def turn_block(self, i: int, other: Sequence[Unit]) -> bool:
        """Put the backward of the block at index *i* before its forward if *other* has that order there."""
        if i not in self.block_starts:
            return False
        self.block_starts.discard(i)
        forward, input_grad, weight_grad = self.units[i : i + 3]
        turned = [input_grad, weight_grad, forward]
        if list(other[i : i + 3]) != turned:
            return False
        self.units[i : i + 3] = turned
        return True


def distance(measured: Sequence[Op], expected: Sequence[Op], *, limit: int = MAX_COUNTED_DISTANCE) -> int:
    """Return the number of units to insert and delete to turn one order into the other; *limit* + 1 if it is larger.

    >>> distance([Op.parse(t) for t in ("0F0", "0F1")], [Op.parse("0F1"), Op.parse("0F0")])
    2
    """
    codes: dict[Unit, int] = {}
    a, b = (
        np.array([codes.setdefault(unit, len(codes)) for op in order for unit in units(op)], np.int64)
        for order in (measured, expected)
    )
    return edit_distance.count_edits(a, b, limit, np.zeros(2 * limit + 3, np.int64))


def differences(rank: int, measured: Sequence[Op], expected: Sequence[Op]) -> list[Difference]:
    """Return the places at which two orders of a rank differ.

    >>> differences(0, [Op.parse("0F1"), Op.parse("0B0")], [Op.parse("0B0"), Op.parse("0F1")])[0].expected
    ('0B0',)
    """
    a, b = [str(op) for op in measured], [str(op) for op in expected]
    opcodes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [
        Difference(rank, a_start, tuple(a[a_start:a_end]), tuple(b[b_start:b_end]))
        for tag, a_start, a_end, b_start, b_end in opcodes
        if tag != "equal"
    ]
