"""Orders compared with each other: equal up to how finely a run split its work, or how far apart.

An order is compared as units of work: B is I then W, FB is F then B. So a run that fused I and W, or that ran the two
halves of an FB one after the other, still equals its schedule, and the difference in grain is counted and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

import msgspec
import numpy as np

from tracekit._loops import edit_distance
from tracekit.schedules import Op

Unit = tuple[str, int, int]
"""Kind (F, I or W), stage, micro-batch. Stage -1: not known."""


class Difference(msgspec.Struct, frozen=True):
    """Where a rank's order departs from the schedule's: ops it ran, ops the schedule has there."""

    rank: int
    position: int
    measured: tuple[str, ...]
    expected: tuple[str, ...]


def units(op: Op) -> list[Unit]:
    """Return the units of work that an op is made of.

    >>> units(Op.parse("(0F7;3B2)"))
    [('F', 0, 7), ('I', 3, 2), ('W', 3, 2)]
    """
    if op.kind == "FB":
        back = (-1 if op.b_stage is None else op.b_stage, -1 if op.b_microbatch is None else op.b_microbatch)
        return [("F", op.stage, op.microbatch), ("I", *back), ("W", *back)]
    if op.kind == "B":
        return [("I", op.stage, op.microbatch), ("W", op.stage, op.microbatch)]
    return [(op.kind, op.stage, op.microbatch)]


def pattern(order: Sequence[Op]) -> list[Op]:
    """Return the order with micro-batches numbered by their forwards on this rank and stages left out.

    >>> pattern([Op.parse(t) for t in ("3F4", "1F9", "1B9")])
    [Op(0F0), Op(0F1), Op(0B1)]
    """
    seen: dict[tuple[int, int], int] = {}
    for op in order:
        if op.kind in ("F", "FB"):
            seen.setdefault((op.stage, op.microbatch), len(seen))
    number: Callable[[int | None, int | None], int] = lambda s, m: seen.setdefault((s or 0, m or 0), len(seen))  # noqa: E731
    return [
        Op("FB", 0, number(op.stage, op.microbatch), 0, number(op.b_stage, op.b_microbatch))
        if op.kind == "FB"
        else Op(op.kind, 0, number(op.stage, op.microbatch))
        for op in order
    ]


def same_work(measured: Sequence[Op], expected: Sequence[Op], *, weights_by_count: bool = False) -> bool:
    """Whether two orders do the same work in the same order, whatever they fused.

    The halves of an FB may come either way round. With *weights_by_count* a W matches any W.

    >>> same_work([Op.parse(t) for t in ("0B0", "0F3")], [Op.parse("(0F3;0B0)")])
    True
    >>> same_work([Op.parse(t) for t in ("0I0", "0W0")], [Op.parse("0B0")])
    True
    """
    if len(measured) == len(expected) and list(measured) == list(expected):
        return True
    left, right = _Reader(measured, weights_by_count), _Reader(expected, weights_by_count)
    if len(left.units) != len(right.units):
        return False
    at = 0
    while at < len(left.units):
        if left.units[at] == right.units[at]:
            at += 1
        elif not (left.turn(at, right.units) or right.turn(at, left.units)):
            return False
    return True


class _Reader:
    """An order as units; a block FB can be turned round where that makes it fit."""

    def __init__(self, order: Sequence[Op], any_weight: bool) -> None:
        self.units: list[Unit] = []
        self.blocks: set[int] = set()
        for op in order:
            if op.kind == "FB":
                self.blocks.add(len(self.units))
            self.units += [("W", -1, -1) if any_weight and u[0] == "W" else u for u in units(op)]

    def turn(self, at: int, other: Sequence[Unit]) -> bool:
        if at not in self.blocks:
            return False
        self.blocks.discard(at)
        block = self.units[at : at + 3]
        turned = [block[1], block[2], block[0]]
        if list(other[at : at + 3]) != turned:
            return False
        self.units[at : at + 3] = turned
        return True


def grain(measured: Sequence[Op], expected: Sequence[Op]) -> Counter[str]:
    """How many blocks FB and fused B the schedule has and the run did not keep.

    >>> grain([Op.parse("0F1"), Op.parse("0B0")], [Op.parse("(0F1;0B0)")])
    Counter({'FB': 1})
    """
    have, want = Counter(op.kind for op in measured), Counter(op.kind for op in expected)
    return Counter({kind: want[kind] - have[kind] for kind in ("FB", "I") if want[kind] > have[kind]})


def distance(measured: Sequence[Op], expected: Sequence[Op], *, limit: int = 400) -> int:
    """Units to insert and delete to turn one order into the other; stops counting beyond *limit*.

    >>> distance([Op.parse(t) for t in ("0F0", "0F1")], [Op.parse("0F1"), Op.parse("0F0")])
    2
    """
    code: dict[Unit, int] = {}
    a, b = (
        np.array([code.setdefault(u, len(code)) for op in order for u in units(op)], np.int64)
        for order in (measured, expected)
    )
    return edit_distance.count_edits(a, b, limit, np.zeros(2 * limit + 3, np.int64))


def differences(rank: int, measured: Sequence[Op], expected: Sequence[Op], *, most: int = 20) -> list[Difference]:
    """Return the places where two orders differ.

    >>> differences(0, [Op.parse("0F1"), Op.parse("0B0")], [Op.parse("0B0"), Op.parse("0F1")])[0].expected
    ('0B0',)
    """
    a, b = [str(op) for op in measured], [str(op) for op in expected]
    places = []
    for tag, i, j, k, n in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            places.append(Difference(rank, i, tuple(a[i:j]), tuple(b[k:n])))
            if len(places) == most:
                break
    return places
