"""What every rank issues, in order: its ops, and between them the kernels that send and receive.

Runtimes differ in how they order messages, and on one queue order is everything: a receive that is posted early blocks
every send behind it. Three ways are known:

- ``just-in-time``: a receive is posted when its op is next, a send when its op is done (PyTorch's GPipe);
- ``grouped``: where forward and backward alternate, a send and the receive for the next op go as one (1F1B of
  PyTorch and Megatron-Core);
- ``posted``: a receive is posted when its sender posts the send, all ranks taken in turn (PyTorch's runtime for
  schedules of several chunks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tracekit.schedules import Op, Schedule

RUN, POST, WAIT = range(3)
"""What a step of a program does: run a piece, post a kernel of messages, let compute wait for one."""


class Piece(NamedTuple):
    """A part of an op that runs by itself: an FB whose halves run one after the other has two."""

    kind: str
    stage: int
    microbatch: int
    op: int  # index in ``schedule.table``


class Message(NamedTuple):
    """What one op's output costs: from one rank to another, an activation (``F``) or a gradient (``B``)."""

    source: int
    target: int
    kind: str
    stage: int  # that made it
    microbatch: int


class Kernel(NamedTuple):
    """Messages that go as one, on one of a rank's queues."""

    rank: int
    sends: tuple[int, ...]
    receives: tuple[int, ...]


class Program(msgspec.Struct, frozen=True, eq=False):
    """Steps of every rank, and the pieces, kernels and messages they name by number."""

    steps: tuple[tuple[tuple[int, int], ...], ...]
    pieces: tuple[Piece, ...]
    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]

    def issued(self, rank: int) -> list[frozenset[tuple[bool, int]]]:
        """Return what a rank's kernels carry in the order they are posted: (sends, peer) of each message."""
        return [self._carried(self.kernels[at]) for code, at in self.steps[rank] if code == POST]

    def _carried(self, kernel: Kernel) -> frozenset[tuple[bool, int]]:
        sent = {(True, self.messages[m].target) for m in kernel.sends}
        return frozenset(sent | {(False, self.messages[m].source) for m in kernel.receives})


@dataclass
class _Writer:
    """A program being written."""

    schedule: Schedule
    steps: list[list[tuple[int, int]]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    numbers: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = [[] for _ in self.schedule.ranks]

    def place(self, stage: int, microbatch: int) -> int:
        return int(self.schedule.stage_ranks[stage, microbatch])

    def run(self, rank: int, kind: str, stage: int, microbatch: int, op: int) -> None:
        self.steps[rank].append((RUN, len(self.pieces)))
        self.pieces.append(Piece(kind, stage, microbatch, op))

    def post(self, rank: int, sends: list[int], receives: list[int]) -> int:
        self.steps[rank].append((POST, len(self.kernels)))
        self.kernels.append(Kernel(rank, tuple(sends), tuple(receives)))
        return len(self.kernels) - 1

    def wait(self, rank: int, kernel: int) -> None:
        self.steps[rank].append((WAIT, kernel))

    def sent(self, kind: str, stage: int, microbatch: int) -> int | None:
        """Return the message with the output of an F or a backward; None where nobody else needs it."""
        after = stage + 1 if kind == "F" else stage - 1
        if not 0 <= after < self.schedule.stages:
            return None
        source, target = self.place(stage, microbatch), self.place(after, microbatch)
        if source == target:
            return None
        key = (kind, stage, microbatch)
        if key not in self.numbers:
            self.numbers[key] = len(self.messages)
            self.messages.append(Message(source, target, kind, stage, microbatch))
        return self.numbers[key]

    def needed(self, kind: str, stage: int, microbatch: int) -> int | None:
        """Return the message with the input of an F or a backward."""
        before = stage - 1 if kind == "F" else stage + 1
        if not 0 <= before < self.schedule.stages:
            return None
        return self.sent(kind, before, microbatch)

    def done(self) -> Program:
        return Program(
            tuple(tuple(s) for s in self.steps), tuple(self.pieces), tuple(self.kernels), tuple(self.messages)
        )


def _parts(op: Op) -> list[tuple[str, str, int, int]]:
    """Return the pieces of an op: kind, which message it makes and needs (``F``, ``B`` or none), stage, micro-batch.

    The halves of an FB run one after the other, each when its own input is there; sends come after both.
    """
    if op.kind == "FB" and op.b_stage is not None and op.b_microbatch is not None:
        return [("F", "F", op.stage, op.microbatch), ("B", "B", op.b_stage, op.b_microbatch)]
    way = {"F": "F", "W": ""}.get(op.kind, "B")
    return [(op.kind, way, op.stage, op.microbatch)]


def just_in_time(schedule: Schedule) -> Program:
    """Return a program that receives right before an op and sends right after it; sends are waited for at the end.

    >>> from tracekit.schedules import generate
    >>> program = just_in_time(generate("gpipe", pp=2, microbatches=1))
    >>> [[(True, 1)] == sorted(k) for k in program.issued(0)]
    [True, False]
    """
    w = _Writer(schedule)
    first = 0
    for rank, order in enumerate(schedule.ranks):
        loose: list[int] = []
        turned = False
        for index, op in enumerate(order):
            for kind, way, stage, microbatch in _parts(op):
                if way == "B" and not turned:  # forwards' sends are waited for before the first backward
                    for kernel in loose:
                        w.wait(rank, kernel)
                    loose, turned = [], True
                if way and (need := w.needed(way, stage, microbatch)) is not None:
                    w.wait(rank, w.post(rank, [], [need]))
                w.run(rank, kind, stage, microbatch, first + index)
                if way and (made := w.sent(way, stage, microbatch)) is not None:
                    loose.append(w.post(rank, [made], []))
        first += len(order)
    return w.done()


def grouped(schedule: Schedule) -> Program:
    """Return a program in which a send goes with the receive for the next op where the direction changes between them.

    >>> from tracekit.schedules import generate
    >>> program = grouped(generate("1f1b", pp=2, microbatches=2))
    >>> [sorted(k) for k in program.issued(1)]
    [[(False, 0)], [(False, 0), (True, 0)], [(True, 0)]]
    """
    w = _Writer(schedule)
    first = 0
    for rank, order in enumerate(schedule.ranks):
        parts = [(p, first + i) for i, op in enumerate(order) for p in _parts(op)]
        pending: int | None = None  # a send kept for the next receive
        loose: int | None = None  # a send on its way that nobody waits for yet
        for at, ((kind, way, stage, microbatch), op) in enumerate(parts):
            need = w.needed(way, stage, microbatch) if way else None
            sends = [] if pending is None else [pending]
            if sends or need is not None:
                w.wait(rank, w.post(rank, sends, [] if need is None else [need]))
            pending = None
            w.run(rank, kind, stage, microbatch, op)
            made = w.sent(way, stage, microbatch) if way else None
            if loose is not None and way:
                w.wait(rank, loose)
                loose = None
            if made is None:
                continue
            following = next((p[1] for p, _ in parts[at + 1 :] if p[1]), None)
            if following is not None and following != way:
                pending = made
            else:
                loose = w.post(rank, [made], [])
        if loose is not None:
            w.wait(rank, loose)
        first += len(order)
    return w.done()


def posted(schedule: Schedule) -> Program:
    """Return a program in which a receive is posted at the moment its send is, taking the ranks in turn, one op each.

    Reducing a stage's gradients, after its last backward, takes a turn as well.

    >>> from tracekit.schedules import generate
    >>> program = posted(generate("interleaved", pp=2, microbatches=2))
    >>> [sorted(k) for k in program.issued(0)][:3]
    [[(True, 1)], [(False, 1)], [(True, 1)]]
    """
    w = _Writer(schedule)
    offsets = schedule.table.offsets.tolist()
    turns = [_with_reductions(order, schedule.microbatches) for order in schedule.ranks]
    at = [0] * len(turns)
    there: set[tuple[str, int, int]] = set()  # inputs whose receive is posted, or that were made on the same rank
    receipt: dict[tuple[str, int, int], int] = {}
    left = sum(len(order) for order in turns)
    while left:
        before = left
        for rank, order in enumerate(turns):
            if at[rank] == len(order):
                continue
            index, op = order[at[rank]]
            parts = [] if op is None else _parts(op)
            needs = [_input(schedule, way, stage, mb) for _, way, stage, mb in parts]
            if any(need is not None and need not in there for need in needs):
                continue
            for (kind, _, stage, mb), need in zip(parts, needs, strict=True):
                if need is not None and need in receipt:
                    w.wait(rank, receipt[need])
                w.run(rank, kind, stage, mb, offsets[rank] + index)
            for _, way, stage, mb in parts:
                if not way:
                    continue
                there.add((way, stage, mb))
                if (made := w.sent(way, stage, mb)) is not None:
                    w.post(rank, [made], [])
                    receipt[way, stage, mb] = w.post(w.messages[made].target, [], [made])
            at[rank] += 1
            left -= 1
        if left == before:  # an order that waits for itself: the simulator says so in words
            break
    return w.done()


def _with_reductions(order: Sequence[Op], microbatches: int) -> list[tuple[int, Op | None]]:
    """Return the ops with their numbers, and after the last backward of each stage a turn without one."""
    done: dict[int, int] = {}
    turns: list[tuple[int, Op | None]] = []
    for index, op in enumerate(order):
        turns.append((index, op))
        stage = op.b_stage if op.kind == "FB" else op.stage
        if op.kind in ("B", "W", "FB") and stage is not None:
            done[stage] = done.get(stage, 0) + 1
            if done[stage] == microbatches:
                turns.append((index, None))
    return turns


def _input(schedule: Schedule, way: str, stage: int, microbatch: int) -> tuple[str, int, int] | None:
    """Return whose output an op needs, by (kind, stage, micro-batch)."""
    if not way:
        return None
    before = stage - 1 if way == "F" else stage + 1
    return (way, before, microbatch) if 0 <= before < schedule.stages else None


WAYS: Mapping[str, Callable[..., Program]] = {"just-in-time": just_in_time, "grouped": grouped, "posted": posted}
