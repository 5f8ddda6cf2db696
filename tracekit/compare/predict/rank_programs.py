"""Programs of ranks: the ops of a schedule in order, and between them the kernels that send and receive.

Runtimes differ in the order in which they post messages. Kernels on one queue run in that order, so a receive that is
posted early blocks every send behind it. Three orders are known:

- ``just-in-time``: a receive is posted right before its op, a send right after it (PyTorch's GPipe);
- ``grouped``: where forward and backward alternate, a send and the receive for the next op form one kernel (1F1B of
  PyTorch and Megatron-Core);
- ``posted``: a receive is posted when its sender posts the send, all ranks taken in turn (PyTorch's runtime for
  schedules of several chunks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tracekit.schedules import Op, Schedule

RUN, POST, WAIT = range(3)
"""Actions of a program step: run a piece, post a message kernel, let compute wait for a message kernel."""

FORWARD, BACKWARD = "forward", "backward"
"""Directions in which data flows through the stages: activations and gradients."""

Output = tuple[str, int, int]
"""Result of a piece that another stage needs: direction, stage that computed it, micro-batch."""


class Piece(NamedTuple):
    """A part of an op that runs by itself. An FB has two, its forward and its backward; every other op has one."""

    kind: str  # F, I, W or B
    stage: int
    microbatch: int
    in_block: bool = False  # half of an FB

    @property
    def direction(self) -> str | None:
        """Direction in which its output flows; None for a W, whose output no other stage needs."""
        return {"F": FORWARD, "W": None}.get(self.kind, BACKWARD)

    @property
    def output(self) -> Output | None:
        """Its result; None for a W."""
        return None if self.direction is None else (self.direction, self.stage, self.microbatch)


class Message(NamedTuple):
    """A message from one rank to another, both by their position in the pipeline."""

    source: int
    target: int


class Kernel(NamedTuple):
    """A message kernel of one rank, with the numbers of the messages that it sends and receives."""

    rank: int
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()

    @property
    def carries_several(self) -> bool:
        """Whether it carries more than one message."""
        return len(self.sends) + len(self.receives) > 1


class Program(msgspec.Struct, frozen=True, eq=False):
    """Steps of every rank as (action, number), and the pieces, kernels and messages with these numbers."""

    steps: tuple[tuple[tuple[int, int], ...], ...]
    pieces: tuple[Piece, ...]
    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]


class _ProgramWriter:
    """A program under construction."""

    def __init__(self, schedule: Schedule) -> None:
        self.stage_ranks = schedule.stage_ranks
        self.stages = schedule.stages
        self.steps: list[list[tuple[int, int]]] = [[] for _ in schedule.ranks]
        self.pieces: list[Piece] = []
        self.kernels: list[Kernel] = []
        self.messages: list[Message] = []
        self.message_numbers: dict[Output, int] = {}

    def run(self, rank: int, piece: Piece) -> None:
        """Let a rank run a piece."""
        self.steps[rank].append((RUN, len(self.pieces)))
        self.pieces.append(piece)

    def post(self, rank: int, *, send: int | None = None, receive: int | None = None) -> int:
        """Let a rank post a message kernel, and return the kernel's number."""
        self.steps[rank].append((POST, len(self.kernels)))
        sends, receives = (() if message is None else (message,) for message in (send, receive))
        self.kernels.append(Kernel(rank, sends, receives))
        return len(self.kernels) - 1

    def wait(self, rank: int, kernel: int) -> None:
        """Let the compute of a rank wait for a message kernel."""
        self.steps[rank].append((WAIT, kernel))

    def input_of(self, piece: Piece) -> Output | None:
        """Return the output of another stage that a piece needs; None if it needs none."""
        if piece.output is None:
            return None
        direction, stage, microbatch = piece.output
        producer = stage - 1 if direction == FORWARD else stage + 1
        return (direction, producer, microbatch) if 0 <= producer < self.stages else None

    def message_of(self, output: Output | None) -> int | None:
        """Return the number of the message that carries an output; None if no other rank needs it."""
        if output is None:
            return None
        direction, stage, microbatch = output
        consumer = stage + 1 if direction == FORWARD else stage - 1
        if not 0 <= consumer < self.stages:
            return None
        source, target = (int(self.stage_ranks[s, microbatch]) for s in (stage, consumer))
        if source == target:
            return None
        if output not in self.message_numbers:
            self.message_numbers[output] = len(self.messages)
            self.messages.append(Message(source, target))
        return self.message_numbers[output]

    def program(self) -> Program:
        """Return the finished program."""
        return Program(tuple(map(tuple, self.steps)), tuple(self.pieces), tuple(self.kernels), tuple(self.messages))


def _pieces_of(ops: Iterable[Op]) -> list[Piece]:
    """Return the pieces of ops in order. The halves of an FB run one after the other, each when its input is there."""
    pieces = []
    for op in ops:
        if op.kind == "FB" and op.b_stage is not None and op.b_microbatch is not None:
            pieces += [Piece("F", op.stage, op.microbatch, True), Piece("B", op.b_stage, op.b_microbatch, True)]
        else:
            pieces.append(Piece(op.kind, op.stage, op.microbatch))
    return pieces


def write_just_in_time(schedule: Schedule) -> Program:
    """Return the program that posts a receive right before its op and a send right after it.

    The sends of forwards are waited for before the first backward.

    >>> from tracekit.schedules import generate
    >>> program = write_just_in_time(generate("gpipe", pp=2, microbatches=1))
    >>> [(kernel.sends, kernel.receives) for kernel in program.kernels if kernel.rank == 0]
    [((0,), ()), ((), (1,))]
    """
    writer = _ProgramWriter(schedule)
    for rank, order in enumerate(schedule.ranks):
        pending_sends: list[int] = []
        backward_begun = False
        for piece in _pieces_of(order):
            if piece.direction == BACKWARD and not backward_begun:
                for kernel in pending_sends:
                    writer.wait(rank, kernel)
                pending_sends, backward_begun = [], True
            received = writer.message_of(writer.input_of(piece))
            if received is not None:
                writer.wait(rank, writer.post(rank, receive=received))
            writer.run(rank, piece)
            sent = writer.message_of(piece.output)
            if sent is not None:
                pending_sends.append(writer.post(rank, send=sent))
    return writer.program()


def write_grouped(schedule: Schedule) -> Program:
    """Return the program in which a send and the receive for the next op form one kernel if the direction changes.

    >>> from tracekit.schedules import generate
    >>> program = write_grouped(generate("1f1b", pp=2, microbatches=2))
    >>> [(len(kernel.sends), len(kernel.receives)) for kernel in program.kernels if kernel.rank == 1]
    [(0, 1), (1, 1), (1, 0)]
    """
    writer = _ProgramWriter(schedule)
    for rank, order in enumerate(schedule.ranks):
        pieces = _pieces_of(order)
        delayed_send: int | None = None  # message that goes with the next receive
        pending_send: int | None = None  # kernel of a send that nothing has waited for yet
        for i, piece in enumerate(pieces):
            received = writer.message_of(writer.input_of(piece))
            if delayed_send is not None or received is not None:
                writer.wait(rank, writer.post(rank, send=delayed_send, receive=received))
            delayed_send = None
            writer.run(rank, piece)
            sent = writer.message_of(piece.output)
            if pending_send is not None and piece.direction:
                writer.wait(rank, pending_send)
                pending_send = None
            if sent is None:
                continue
            next_direction = next((later.direction for later in pieces[i + 1 :] if later.direction), None)
            if next_direction not in (None, piece.direction):
                delayed_send = sent
            else:
                pending_send = writer.post(rank, send=sent)
        if pending_send is not None:
            writer.wait(rank, pending_send)
    return writer.program()


def write_posted(schedule: Schedule) -> Program:
    """Return the program in which a receive is posted together with its send, taking the ranks in turn, one op each.

    The reduction of a stage's gradients, after its last backward, takes a turn as well.

    >>> from tracekit.schedules import generate
    >>> program = write_posted(generate("interleaved", pp=2, microbatches=2))
    >>> [(len(kernel.sends), len(kernel.receives)) for kernel in program.kernels if kernel.rank == 0][:3]
    [(1, 0), (0, 1), (1, 0)]
    """
    writer = _ProgramWriter(schedule)
    turns = [_with_reduction_turns(order, schedule.microbatches) for order in schedule.ranks]
    next_turn = [0] * len(turns)
    available: set[Output] = set()  # outputs on the rank that needs them, or whose receive is posted there
    receive_kernels: dict[Output, int] = {}
    # An order in which an op waits for itself makes no more progress. Its program stays incomplete here; simulating
    # the schedule reports the mistake.
    progress = True
    while progress:
        progress = False
        for rank, ops in enumerate(turns):
            if next_turn[rank] == len(ops):
                continue
            op = ops[next_turn[rank]]
            pieces = [] if op is None else _pieces_of([op])
            inputs = [writer.input_of(piece) for piece in pieces]
            if any(needed is not None and needed not in available for needed in inputs):
                continue
            for piece, needed in zip(pieces, inputs, strict=True):
                if needed is not None and needed in receive_kernels:
                    writer.wait(rank, receive_kernels[needed])
                writer.run(rank, piece)
            for output in (piece.output for piece in pieces):
                if output is None:
                    continue
                available.add(output)
                message = writer.message_of(output)
                if message is not None:
                    writer.post(rank, send=message)
                    receive_kernels[output] = writer.post(writer.messages[message].target, receive=message)
            next_turn[rank] += 1
            progress = True
    return writer.program()


def _with_reduction_turns(order: Sequence[Op], microbatches: int) -> list[Op | None]:
    """Return the ops of a rank with None after the last backward of each stage: its gradient reduction."""
    backwards: dict[int, int] = {}
    turns: list[Op | None] = []
    for op in order:
        turns.append(op)
        stage = op.b_stage if op.kind == "FB" else op.stage
        if op.kind in ("B", "W", "FB") and stage is not None:
            backwards[stage] = backwards.get(stage, 0) + 1
            if backwards[stage] == microbatches:
                turns.append(None)
    return turns


PROGRAM_WRITERS: Mapping[str, Callable[[Schedule], Program]] = {
    "just-in-time": write_just_in_time,
    "grouped": write_grouped,
    "posted": write_posted,
}
"""Known message orders."""
