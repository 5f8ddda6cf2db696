"""One op of a schedule, and its notation.

``0F3`` is stage 0, forward, micro-batch 3; ``7I0`` backward for input, ``0W2`` backward for weights, ``4B1`` both at
once; ``(0F7;7B3)`` is a forward and a backward of different micro-batches run as one overlapped block (FB).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tracekit.errors import ScheduleError

Kind = Literal["F", "I", "W", "B", "FB"]
KINDS: tuple[Kind, ...] = ("F", "I", "W", "B", "FB")

_PLAIN = re.compile(r"(\d{1,9})([FIWB])(\d{1,9})")
_PAIR = re.compile(r"\((\d{1,9})F(\d{1,9});(\d{1,9})B(\d{1,9})\)(?:OVERLAP_F_B)?")


class Op(NamedTuple):
    """What a rank does for one micro-batch on one stage; of an FB, ``b_stage`` and ``b_microbatch`` name the backward.

    >>> Op("F", 0, 3)
    Op(0F3)
    >>> Op.parse("(0F7;7B3)").b_microbatch
    3
    """

    kind: Kind
    stage: int
    microbatch: int
    b_stage: int | None = None
    b_microbatch: int | None = None

    def __str__(self) -> str:
        if self.kind == "FB":
            return f"({self.stage}F{self.microbatch};{self.b_stage}B{self.b_microbatch})"
        return f"{self.stage}{self.kind}{self.microbatch}"

    def __repr__(self) -> str:
        return f"Op({self})"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Return the op written in the notation; PyTorch's ``(0F7;7B3)OVERLAP_F_B`` is understood too.

        >>> Op.parse("4B1") == Op("B", 4, 1)
        True
        >>> Op.parse("F3")
        Traceback (most recent call last):
        tracekit.errors.ScheduleError: 'F3' is not an op (write stage, kind, micro-batch as in 0F3, or (0F7;7B3))
        """
        if plain := _PLAIN.fullmatch(text):
            stage, kind, microbatch = plain.groups()
            return cls(kind, int(stage), int(microbatch))  # type: ignore[arg-type]
        if pair := _PAIR.fullmatch(text):
            stage, microbatch, b_stage, b_microbatch = map(int, pair.groups())
            return cls("FB", stage, microbatch, b_stage, b_microbatch)
        raise ScheduleError(f"{text!r} is not an op", hint="write stage, kind, micro-batch as in 0F3, or (0F7;7B3)")


def parse_orders(line: str) -> tuple[Op, ...]:
    """Return one rank's order, read from ops separated by blanks.

    >>> parse_orders("0F0 0F1 0B0 0B1")
    (Op(0F0), Op(0F1), Op(0B0), Op(0B1))
    """
    return tuple(Op.parse(word) for word in line.split())


_new = tuple.__new__  # schedules have many ops: half the time of Op(…), which is a Python function


def forward(stage: int, microbatch: int) -> Op:
    """F: forward of a micro-batch through a stage."""
    return _new(Op, ("F", stage, microbatch, None, None))


def backward(stage: int, microbatch: int) -> Op:
    """B: backward for input and weights at once."""
    return _new(Op, ("B", stage, microbatch, None, None))


def backward_input(stage: int, microbatch: int) -> Op:
    """I: backward for the input alone."""
    return _new(Op, ("I", stage, microbatch, None, None))


def backward_weight(stage: int, microbatch: int) -> Op:
    """W: backward for the weights alone."""
    return _new(Op, ("W", stage, microbatch, None, None))


def from_columns(
    kind: Sequence[str],
    stage: Sequence[int],
    microbatch: Sequence[int],
    b_stage: Sequence[int | None] | None = None,
    b_microbatch: Sequence[int | None] | None = None,
) -> list[Op]:
    """Return many ops at once.

    >>> from_columns(["F", "B"], [0, 0], [3, 2])
    [Op(0F3), Op(0B2)]
    """
    none: list[None] = [None] * len(kind)
    rows = zip(kind, stage, microbatch, b_stage or none, b_microbatch or none, strict=True)
    return [_new(Op, row) for row in rows]


def overlapped(f: Op, b: Op) -> Op:
    """FB: a forward and a backward of different micro-batches as one block.

    >>> overlapped(forward(0, 7), backward(7, 3))
    Op((0F7;7B3))
    """
    return _new(Op, ("FB", f[1], f[2], b[1], b[2]))
