"""One op of a schedule, and its notation.

``0F3`` is stage 0, forward, micro-batch 3; ``7I0`` backward for input, ``0W2`` backward for
weights, ``4B1`` both at once; ``(0F7;7B3)`` is a forward and a backward of different micro-batches
run as one overlapped block (FB).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from tracekit.errors import ScheduleError

Kind = Literal["F", "I", "W", "B", "FB"]
OP_KINDS: tuple[Kind, ...] = ("F", "I", "W", "B", "FB")

_PLAIN = re.compile(r"(\d{1,9})([FIWB])(\d{1,9})")
_PAIR_OF_OPS = re.compile(r"\((\d{1,9})F(\d{1,9});(\d{1,9})B(\d{1,9})\)(?:OVERLAP_F_B)?")


class Op(NamedTuple):
    """Work of a rank for one micro-batch on one stage.

    ``b_stage`` and ``b_microbatch`` are of the backward in an FB, -1 in other ops.

    >>> Op("F", 0, 3)
    Op(0F3)
    >>> Op.parse("(0F7;7B3)").b_microbatch
    3
    """

    kind: Kind
    stage: int
    microbatch: int
    b_stage: int = -1
    b_microbatch: int = -1

    def __str__(self) -> str:
        if self.kind == "FB":
            return f"({self.stage}F{self.microbatch};{self.b_stage}B{self.b_microbatch})"
        return f"{self.stage}{self.kind}{self.microbatch}"

    def __repr__(self) -> str:
        return f"Op({self})"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Return the op written in the notation.

        PyTorch's ``(0F7;7B3)OVERLAP_F_B`` is accepted too.

        >>> Op.parse("4B1") == Op("B", 4, 1)
        True
        >>> Op.parse("F3")
        Traceback (most recent call last):
        tracekit.errors.ScheduleError: 'F3' is not an op (write stage, kind, micro-batch as in 0F3, or (0F7;7B3))
        """
        if plain := _PLAIN.fullmatch(text):
            stage, kind, microbatch = plain.groups()
            return cls(kind, int(stage), int(microbatch))  # type: ignore[arg-type]
        if pair := _PAIR_OF_OPS.fullmatch(text):
            return cls("FB", *map(int, pair.groups()))
        raise ScheduleError(
            f"{text!r} is not an op", hint="write stage, kind, micro-batch as in 0F3, or (0F7;7B3)"
        )


def parse_orders(line: str) -> tuple[Op, ...]:
    """Return the order of one rank, from ops separated by blanks.

    >>> parse_orders("0F0 0F1 0B0 0B1")
    (Op(0F0), Op(0F1), Op(0B0), Op(0B1))
    """
    return tuple(Op.parse(word) for word in line.split())


forward = partial(Op, "F")
"""Makes F: the forward of a micro-batch through a stage."""
backward = partial(Op, "B")
"""Makes B: the backward for input and weights at once."""
backward_input = partial(Op, "I")
"""Makes I: the backward for the input alone."""
backward_weight = partial(Op, "W")
"""Makes W: the backward for the weights alone."""


def overlapped(f: Op, b: Op) -> Op:
    """Return FB: a forward and a backward of different micro-batches as one block.

    >>> overlapped(forward(0, 7), backward(7, 3))
    Op((0F7;7B3))
    """
    return Op("FB", f.stage, f.microbatch, b.stage, b.microbatch)


def passes(stage: int, microbatches: int) -> tuple[list[Op], list[Op]]:
    """Return the forwards and the backwards of all micro-batches through one stage.

    >>> passes(1, 2)
    ([Op(1F0), Op(1F1)], [Op(1B0), Op(1B1)])
    """
    return [forward(stage, i) for i in range(microbatches)], [
        backward(stage, i) for i in range(microbatches)
    ]


def one_by_one(forwards: Sequence[Op], backwards: Sequence[Op], *, warmup: int) -> list[Op]:
    """Return the order with *warmup* forwards first, then a forward and a backward in turn, then the backwards left.

    >>> one_by_one(*passes(0, 2), warmup=1)
    [Op(0F0), Op(0F1), Op(0B0), Op(0B1)]
    """
    order = list(forwards[:warmup])
    for i, b in enumerate(backwards, start=warmup):
        order += [*forwards[i : i + 1], b]  # no forward when all have run
    return order


def split_backwards(order: Sequence[Op], *, delay: int) -> list[Op]:
    """Return the order with an I in place of each backward, and its W behind the I that comes *delay* later.

    >>> split_backwards(one_by_one(*passes(1, 2), warmup=0), delay=1)
    [Op(1F0), Op(1I0), Op(1F1), Op(1I1), Op(1W0), Op(1W1)]
    """
    split: list[Op] = []
    waiting: deque[Op] = deque()  # weight gradients to run
    for op in order:
        split.append(op._replace(kind="I") if op.kind == "B" else op)
        if op.kind == "B":
            waiting.append(op._replace(kind="W"))
            if len(waiting) > delay:
                split.append(waiting.popleft())
    return [*split, *waiting]
