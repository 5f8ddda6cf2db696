"""What each rank does, and in which order: a schedule's orders plus the messages between ranks.

The orders come from ``tracekit schedule NAME … --json``. Every message gets a place in one total
order over the whole pipeline (the time its producer would finish if all ops took one unit), and
every rank issues its ops and messages in that order. A message then only ever waits for things
before it, so no set of ranks can wait for each other.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_SINGLE = re.compile(r"^(\d+)([FBIW])(\d+)$")
_PAIR = re.compile(r"^\((\d+F\d+);(\d+B\d+)\)$")


@dataclass(frozen=True)
class Op:
    """One op of an order; an overlapped block holds its forward and its backward."""

    kind: str  # F, B, I, W or FB
    parts: tuple[tuple[str, int, int], ...]  # (kind, stage, micro-batch), one or two of them
    text: str

    @classmethod
    def parse(cls, text: str) -> Op:
        """Read ``0F3`` or ``(0F7;7B3)``."""
        pair = _PAIR.match(text)
        if pair:
            return cls("FB", tuple(_single(part) for part in pair.groups()), text)
        part = _single(text)
        return cls(part[0], (part,), text)


def _single(text: str) -> tuple[str, int, int]:
    match = _SINGLE.match(text)
    if match is None:
        raise SystemExit(f"{text!r} is not an op such as 0F3, 7I0, 0W2, 4B1 or (0F7;7B3)")
    return match[2], int(match[1]), int(match[3])


@dataclass(frozen=True)
class Message:
    """An activation or a gradient that crosses ranks."""

    kind: str  # "activation" or "gradient"
    stage: int  # the stage that needs it
    microbatch: int
    source: int
    target: int


@dataclass(frozen=True)
class Plan:
    """The orders of one pipeline and, for each rank, its actions: ops, sends and receives."""

    name: str
    microbatches: int
    stages: int
    orders: tuple[tuple[Op, ...], ...]
    actions: tuple[tuple[Op | Message, ...], ...]

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Build the plan from the JSON that ``tracekit schedule`` writes."""
        data = json.loads(path.read_text())
        orders = tuple(tuple(Op.parse(text) for text in rank) for rank in data["ranks"])
        cells = [part for rank in orders for op in rank for part in op.parts]
        return cls(
            name=data["name"],
            microbatches=1 + max(m for _, _, m in cells),
            stages=1 + max(s for _, s, _ in cells),
            orders=orders,
            actions=_actions(orders),
        )

    def stages_of(self, rank: int) -> list[int]:
        """The stages whose weights this rank holds."""
        return sorted({stage for op in self.orders[rank] for _, stage, _ in op.parts})

    def peak_chunks(self, rank: int) -> int:
        """How many micro-batch activations this rank ever holds at once."""
        held = peak = 0
        for op in self.orders[rank]:
            held += sum(kind == "F" for kind, _, _ in op.parts)
            peak = max(peak, held)
            held -= sum(kind in "BW" for kind, _, _ in op.parts)
        return peak


def _actions(orders: tuple[tuple[Op, ...], ...]) -> tuple[tuple[Op | Message, ...], ...]:
    owner = {
        (s, m): rank
        for rank, order in enumerate(orders)
        for op in order
        for k, s, m in op.parts
        if k == "F"
    }
    last = max(stage for stage, _ in owner)
    start, end = _unit_times(orders, owner, last)
    timed: list[list[tuple[tuple[float, ...], Op | Message]]] = [[] for _ in orders]
    for rank, order in enumerate(orders):
        for op in order:
            timed[rank].append(((start[op], 1), op))
            for kind, stage, microbatch in op.parts:
                message = _message((kind, stage, microbatch), rank, owner, last)
                if message is not None:
                    # After every op that starts before this end, in an order all ranks agree on.
                    key = (end[op], 0, message.kind == "gradient", stage, microbatch)
                    timed[rank].append((key, message))
                    timed[message.target].append((key, message))
    return tuple(
        tuple(action for _, action in sorted(actions, key=lambda item: item[0]))
        for actions in timed
    )


def _message(
    part: tuple[str, int, int], rank: int, owner: dict[tuple[int, int], int], last: int
) -> Message | None:
    kind, stage, microbatch = part
    if kind == "F" and stage < last:
        what, needs = "activation", stage + 1
    elif kind in "BI" and stage > 0:
        what, needs = "gradient", stage - 1
    else:
        return None
    target = owner[needs, microbatch]
    return None if target == rank else Message(what, needs, microbatch, rank, target)


def _unit_times(
    orders: tuple[tuple[Op, ...], ...], owner: dict[tuple[int, int], int], last: int
) -> tuple[dict[Op, float], dict[Op, float]]:
    done: dict[tuple[str, int, int], float] = {}
    start: dict[Op, float] = {}
    end: dict[Op, float] = {}
    at = [0] * len(orders)
    free = [0.0] * len(orders)
    while any(position < len(order) for position, order in zip(at, orders, strict=True)):
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                op = order[at[rank]]
                needs = [need for part in op.parts for need in _needs(part, last)]
                if any(need not in done for need in needs):
                    break
                start[op] = max([free[rank], *(done[need] for need in needs)])
                end[op] = free[rank] = start[op] + len(op.parts)
                for kind, stage, microbatch in op.parts:
                    done["B" if kind == "I" else kind, stage, microbatch] = end[op]
                at[rank] += 1
                moved = True
        if not moved:
            stuck = [
                order[position].text
                for position, order in zip(at, orders, strict=True)
                if position < len(order)
            ]
            raise SystemExit(f"this order deadlocks: {', '.join(stuck)} wait for each other")
    return start, end


def _needs(part: tuple[str, int, int], last: int) -> list[tuple[str, int, int]]:
    kind, stage, microbatch = part
    if kind == "F":
        return [("F", stage - 1, microbatch)] if stage > 0 else []
    if kind == "W":
        return [("B", stage, microbatch)]
    return [("F", stage, microbatch), *([("B", stage + 1, microbatch)] if stage < last else [])]
