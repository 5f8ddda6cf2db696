"""Programs of ranks: the ops of a schedule in order, and between them the kernels that send and receive.

Runtimes differ in the order in which they post messages. Kernels on one queue run in that order, so
a receive that is posted early blocks every send behind it. Three orders are known:

- ``just-in-time``: a receive is posted right before its op, a send right after it (PyTorch's
  GPipe);
- ``grouped``: where forward and backward alternate, a send and the receive for the next op form one
  kernel (1F1B of PyTorch and Megatron-Core);
- ``posted``: a receive is posted when its sender posts the send, all ranks taken in turn (PyTorch's
  runtime for schedules of several chunks).
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from tracekit.graph.constants import MAX_SHARE_OF_EARLY_RECEIVES
from tracekit.graph.machine import Queues
from tracekit.pipeline.schedules import Op, Schedule

RUN, POST, WAIT = range(3)
"""Actions of a program step: run a piece, post a message kernel, let compute wait for a message
kernel."""

FORWARD_FLOW = "forward"
BACKWARD_FLOW = "backward"
"""Directions in which data flows through the stages: activations and gradients."""

Output = tuple[str, int, int]
"""Result of a piece that another stage needs: direction, stage that computed it, micro-batch."""


class Piece(NamedTuple):
    """A part of an op that runs by itself.

    An FB has two, its forward and its backward; every other op has one.
    """

    kind: str  # F, I, W or B
    stage: int
    microbatch: int
    in_block: bool = False  # half of an FB

    @property
    def direction(self) -> str | None:
        """Direction in which its output flows; None for a W, whose output no other stage needs."""
        return {"F": FORWARD_FLOW, "W": None}.get(self.kind, BACKWARD_FLOW)

    @property
    def output(self) -> Output | None:
        """Its result; None for a W."""
        return None if self.direction is None else (self.direction, self.stage, self.microbatch)


class Message(NamedTuple):
    """A message from one rank to another, both by their position in the pipeline."""

    source: int
    target: int


class MessageKernel(NamedTuple):
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
    kernels: tuple[MessageKernel, ...]
    messages: tuple[Message, ...]

    @property
    def rank_pieces(self) -> list[list[int]]:
        """Numbers of the pieces that each rank runs, in order."""
        pieces = []
        for steps in self.steps:
            pieces.append([number for action, number in steps if action == RUN])
        return pieces


class _ProgramWriter:
    """A program under construction."""

    def __init__(self, ranks: int) -> None:
        self.steps: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        self.pieces: list[Piece] = []
        self.kernels: list[MessageKernel] = []
        self.messages: dict[Hashable, Message] = {}
        self.numbers: dict[Hashable, int] = {}  # of the messages

    def run(self, rank: int, piece: Piece) -> None:
        """Let a rank run a piece."""
        self.steps[rank].append((RUN, len(self.pieces)))
        self.pieces.append(piece)

    def post(
        self, rank: int, sends: Iterable[int | None] = (), receives: Iterable[int | None] = ()
    ) -> int:
        """Let a rank post a kernel with these messages, without those that are None.

        Return the kernel's number.
        """
        self.steps[rank].append((POST, len(self.kernels)))
        carried = []
        for messages in (sends, receives):
            carried.append(tuple(message for message in messages if message is not None))
        self.kernels.append(MessageKernel(rank, *carried))
        return len(self.kernels) - 1

    def wait(self, rank: int, kernel: int) -> None:
        """Let the compute of a rank wait for a message kernel."""
        self.steps[rank].append((WAIT, kernel))

    def message(self, key: Hashable, source: int, target: int) -> int:
        """Return the number of a message, which *key* tells from all others."""
        self.messages.setdefault(key, Message(source, target))
        return self.numbers.setdefault(key, len(self.numbers))

    def program(self) -> Program:
        """Return the finished program."""
        messages = tuple(self.messages.values())
        return Program(
            tuple(map(tuple, self.steps)), tuple(self.pieces), tuple(self.kernels), messages
        )


class ScheduleWriter(_ProgramWriter):
    """The program of a schedule under construction."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(len(schedule.ranks))
        self.stage_ranks = schedule.stage_ranks
        self.stages = schedule.stages

    def input_of(self, piece: Piece) -> Output | None:
        """Return the output of another stage that a piece needs; None if it needs none."""
        if piece.output is None:
            return None
        direction, stage, microbatch = piece.output
        producer = stage - 1 if direction == FORWARD_FLOW else stage + 1
        return (direction, producer, microbatch) if 0 <= producer < self.stages else None

    def message_of(self, output: Output | None) -> int | None:
        """Return the number of the message that carries an output.

        None if no other rank needs it.
        """
        if output is None:
            return None
        direction, stage, microbatch = output
        consumer = stage + 1 if direction == FORWARD_FLOW else stage - 1
        if not 0 <= consumer < self.stages:
            return None
        source = int(self.stage_ranks[stage, microbatch])
        target = int(self.stage_ranks[consumer, microbatch])
        return None if source == target else self.message(output, source, target)


def _pieces_of(ops: Iterable[Op]) -> list[Piece]:
    """Return the pieces of ops in order.

    The halves of an FB run one after the other, each when its input is there.
    """
    pieces = []
    for op in ops:
        if op.kind == "FB":
            pieces += [
                Piece("F", op.stage, op.microbatch, True),
                Piece("B", op.b_stage, op.b_microbatch, True),
            ]
        else:
            pieces.append(Piece(op.kind, op.stage, op.microbatch))
    return pieces


def write_just_in_time(schedule: Schedule) -> Program:
    """Return the program that posts a receive right before its op and a send right after it.

    The sends of forwards are waited for before the first backward.

    >>> from tracekit.pipeline.schedules import generate
    >>> program = write_just_in_time(generate("gpipe", pp=2, microbatches=1))
    >>> [(kernel.sends, kernel.receives) for kernel in program.kernels if kernel.rank == 0]
    [((0,), ()), ((), (1,))]
    """
    writer = ScheduleWriter(schedule)
    for rank, order in enumerate(schedule.ranks):
        pending_sends: list[int] = []
        backward_begun = False
        for piece in _pieces_of(order):
            if piece.direction == BACKWARD_FLOW and not backward_begun:
                for kernel in pending_sends:
                    writer.wait(rank, kernel)
                pending_sends = []
                backward_begun = True
            received = writer.message_of(writer.input_of(piece))
            if received is not None:
                writer.wait(rank, writer.post(rank, receives=[received]))
            writer.run(rank, piece)
            sent = writer.message_of(piece.output)
            if sent is not None:
                pending_sends.append(writer.post(rank, [sent]))
    return writer.program()


def write_grouped(schedule: Schedule) -> Program:
    """Return the program in which a send and the receive for the next op form one kernel if the direction changes.

    >>> from tracekit.pipeline.schedules import generate
    >>> program = write_grouped(generate("1f1b", pp=2, microbatches=2))
    >>> [(len(kernel.sends), len(kernel.receives)) for kernel in program.kernels if kernel.rank == 1]
    [(0, 1), (1, 1), (1, 0)]
    """
    writer = ScheduleWriter(schedule)
    for rank, order in enumerate(schedule.ranks):
        pieces = _pieces_of(order)
        delayed_send: int | None = None  # message that goes with the next receive
        pending_send: int | None = None  # kernel of a send that nothing has waited for yet
        for i, piece in enumerate(pieces):
            received = writer.message_of(writer.input_of(piece))
            if delayed_send is not None or received is not None:
                writer.wait(rank, writer.post(rank, [delayed_send], [received]))
            delayed_send = None
            writer.run(rank, piece)
            sent = writer.message_of(piece.output)
            if pending_send is not None and piece.direction:
                writer.wait(rank, pending_send)
                pending_send = None
            if sent is None:
                continue
            next_direction = next(
                (later.direction for later in pieces[i + 1 :] if later.direction), None
            )
            if next_direction not in (None, piece.direction):
                delayed_send = sent
            else:
                pending_send = writer.post(rank, [sent])
        if pending_send is not None:
            writer.wait(rank, pending_send)
    return writer.program()


def write_posted(schedule: Schedule) -> Program:
    """Return the program in which a receive is posted together with its send, taking the ranks in turn, one op each.

    The reduction of a stage's gradients, after its last backward, takes a turn as well.

    >>> from tracekit.pipeline.schedules import generate
    >>> program = write_posted(generate("interleaved", pp=2, microbatches=2))
    >>> [(len(kernel.sends), len(kernel.receives)) for kernel in program.kernels if kernel.rank == 0][:3]
    [(1, 0), (0, 1), (1, 0)]
    """
    writer = ScheduleWriter(schedule)
    turns = [deque(_turns_of_rank(order, schedule.microbatches)) for order in schedule.ranks]
    # An output is available once it was computed: it stays on its rank, or its receive is posted
    # where it is needed.
    available: set[Output] = set()
    receive_kernels: dict[Output, int] = {}
    # An order in which an op waits for itself makes no more progress. Its program stays incomplete
    # here; simulating the schedule reports the mistake.
    progress = True
    while progress:
        progress = False
        for rank, turns_left in enumerate(turns):
            if not turns_left or not _is_ready(writer, turns_left[0], available):
                continue
            pieces = turns_left.popleft()
            _run_pieces(writer, rank, pieces, receive_kernels)
            for output in _outputs_of(pieces):
                available.add(output)
                _post_output(writer, rank, output, receive_kernels)
            progress = True
    return writer.program()


def _is_ready(writer: ScheduleWriter, pieces: Sequence[Piece], available: set[Output]) -> bool:
    """Return whether everything that *pieces* need has been computed."""
    for piece in pieces:
        needed = writer.input_of(piece)
        if needed is not None and needed not in available:
            return False
    return True


def _run_pieces(
    writer: ScheduleWriter,
    rank: int,
    pieces: Sequence[Piece],
    receive_kernels: Mapping[Output, int],
) -> None:
    """Write that *rank* runs *pieces*, each after the receive of what it needs, if that is a message."""
    for piece in pieces:
        needed = writer.input_of(piece)
        if needed is not None and needed in receive_kernels:
            writer.wait(rank, receive_kernels[needed])
        writer.run(rank, piece)


def _outputs_of(pieces: Sequence[Piece]) -> list[Output]:
    return [piece.output for piece in pieces if piece.output is not None]


def _post_output(
    writer: ScheduleWriter, rank: int, output: Output, receive_kernels: dict[Output, int]
) -> None:
    """Write the send of an output that another rank needs, and at once the receive there."""
    message = writer.message_of(output)
    if message is None:
        return
    writer.post(rank, [message])
    target = writer.messages[output].target
    receive_kernels[output] = writer.post(target, receives=[message])


def _turns_of_rank(order: Sequence[Op], microbatches: int) -> list[list[Piece]]:
    """Return the pieces that a rank runs in each of its turns: an op in each.

    A turn without pieces follows the last backward of each stage, for its gradient reduction.
    """
    backwards: Counter[int] = Counter()
    turns = []
    for op in order:
        turns.append(_pieces_of([op]))
        if op.kind not in ("B", "W", "FB"):
            continue
        stage = op.b_stage if op.kind == "FB" else op.stage
        backwards[stage] += 1
        if backwards[stage] == microbatches:
            turns.append([])
    return turns


PYTORCH_WRITERS: Mapping[str, Callable[[Schedule], Program]] = {
    "gpipe": write_just_in_time,
    "1f1b": write_grouped,
}
"""Message orders of PyTorch's schedules; all schedules not listed have those of
``write_posted``."""

QUEUES_IN_WORDS: Mapping[Queues, str] = {
    "one": "one queue of messages per rank",
    "peer": "a queue of messages per peer",
    "direction": "a queue of messages per peer and direction",
    "compute": "messages on the compute stream",
    "free": "receives that wait for no compute",
}


def write_program(schedule: Schedule, queues: Queues) -> Program:
    """Return the program of a schedule with messages in the order in which PyTorch posts them."""
    # Receives that wait for nothing hold nothing up, so that grouping would change nothing.
    write = write_posted if queues == "free" else PYTORCH_WRITERS.get(schedule.name, write_posted)
    return write(schedule)


def recorded_program(
    cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame], *, host_waits: bool
) -> Program:
    """Return the program that the run followed: every rank's ops and message kernels in the order of their launches.

    An op waits for the receives launched before it that had ended when it started, as far as no
    earlier op did.

    Args:
        cells: Cells of the step (``DETAILED``).
        messages: Messages (``MESSAGES``) of the step by position, peers as positions; every one has
            its other side.
        host_waits: Whether the host waits for every message kernel before its next launch.
    """
    writer = _ProgramWriter(max(messages, default=-1) + 1)
    # Messages so far by direction, source and target.
    sent: Counter[tuple[bool, int, int]] = Counter()

    def message_number(send: bool, position: int, peer: int) -> int:
        source, target = (position, peer) if send else (peer, position)
        index = sent[send, source, target]  # among the messages from one to the other
        sent[send, source, target] += 1
        return writer.message((source, target, index), source, target)

    for position in sorted(messages):
        # End and number of kernels that no op has waited for.
        open_receives: list[tuple[int, int]] = []
        for launched in _in_launch_order(position, cells, messages[position]):
            if "carried" in launched:
                sends: list[int] = []
                receives: list[int] = []
                for is_send, peer in launched["carried"]:
                    number = message_number(is_send, position, peer)
                    numbers = sends if is_send else receives
                    numbers.append(number)
                kernel = writer.post(position, sends, receives)
                if host_waits:
                    writer.wait(position, kernel)
                elif receives:
                    open_receives.append((launched["end_ns"], kernel))
                continue
            ended = [kernel for end, kernel in open_receives if end <= launched["start_ns"]]
            open_receives = [(end, kernel) for end, kernel in open_receives if kernel not in ended]
            for kernel in ended:
                writer.wait(position, kernel)
            for piece in _pieces_of([Op(*(launched[name] for name in Op._fields))]):
                writer.run(position, piece)
    return writer.program()


def _in_launch_order(
    position: int, cells: pl.DataFrame, messages: pl.DataFrame
) -> list[dict[str, Any]]:
    """Return a rank's cells and message kernels (with what they carry) by launch."""
    kind = pl.col("op").cast(pl.String).alias("kind")
    stage = pl.col("stage").fill_null(0)
    numbers = pl.col("microbatch", "b_stage", "b_microbatch").fill_null(-1)
    ops = (
        cells.filter(pl.col("position") == position)
        .select(kind, stage, numbers, "launch_ns", "start_ns")
        .to_dicts()
    )
    kernels = messages.group_by("kernel", maintain_order=True).agg(
        pl.col("launch_ns").min(),
        pl.col("end_ns").max(),
        carried=pl.concat_list(pl.col("send").cast(pl.Int32), "peer"),
    )
    posts = []
    for launch_ns, end_ns, carried in kernels.select("launch_ns", "end_ns", "carried").rows():
        posts.append(
            {
                "launch_ns": launch_ns,
                "end_ns": end_ns,
                "carried": [(bool(send), peer) for send, peer in carried],
            }
        )
    return sorted([*ops, *posts], key=lambda launched: launched["launch_ns"])


def find_queues(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> Queues:
    """Return the queues of the run's messages, from their streams.

    Streams that are not recorded count as one.
    """
    tables = [table for table in messages.values() if table.height]
    if share_of_early_receives(messages, cells) > MAX_SHARE_OF_EARLY_RECEIVES:
        return "free"
    if all(table["inline"].fill_null(False).all() for table in tables):
        return "compute"
    if all(table["stream"].n_unique() == 1 for table in tables):
        return "one"
    streams_per_peer = [
        table.group_by("peer").agg(pl.col("stream").n_unique())["stream"] for table in tables
    ]
    return "peer" if all((streams == 1).all() for streams in streams_per_peer) else "direction"


def share_of_early_receives(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> float:
    """Return the share of receives that started before the op launched before them had ended."""
    early = 0
    total = 0
    for position, table in messages.items():
        ops = (
            cells.filter(pl.col("position") == position)
            .sort("launch_ns")
            .select("launch_ns", "end_ns")
        )
        receives = table.filter(~pl.col("send")).sort("launch_ns").select("launch_ns", "start_ns")
        # Each receive gets the end of the last op launched before it.
        with_op = receives.join_asof(ops, on="launch_ns", strategy="backward").drop_nulls("end_ns")
        early += int((with_op["start_ns"] < with_op["end_ns"]).sum())
        total += with_op.height
    return early / total if total else 0.0
