"""Order and queues of the messages of a run, found by comparison with the known orders (``rank_programs``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import polars as pl

from tracekit.compare.predict.machine import Queues
from tracekit.compare.predict.rank_programs import (
    POST,
    PROGRAM_WRITERS,
    RUN,
    WAIT,
    CarriedMessages,
    Kernel,
    Message,
    Piece,
    Program,
)
from tracekit.schedules import Schedule

PYTORCH_MESSAGE_ORDERS = {"gpipe": "just-in-time", "1f1b": "grouped"}
"""Message orders of PyTorch's schedules; all schedules not listed use ``posted``."""

_QUEUES_IN_WORDS: Mapping[Queues, str] = {
    "one": "one queue of messages per rank",
    "peer": "a queue of messages per peer",
    "direction": "a queue of messages per peer and direction",
    "compute": "messages on the compute stream",
    "free": "receives that wait for no compute",
}

MAX_SHARE_OF_EARLY_RECEIVES = 0.1
"""Share of receives that start before the compute launched before them has ended, above which none wait for compute."""

MIN_SHARE_OF_EQUAL_KERNELS = 0.9
"""Share of a rank's message kernels that a known order must have at the same index for the run to follow it."""


class MessageOrder(msgspec.Struct, frozen=True):
    """Order in which the run posted its messages, and their queues."""

    name: str | None  # key of PROGRAM_WRITERS; None if no known order explains the run
    queues: Queues

    def program(self, schedule: Schedule, own: Schedule) -> Program:
        """Return the program of *schedule* in a run whose own schedule is *own*."""
        if self.queues == "free":  # the order holds nothing up, so that grouping would change nothing
            order = "posted"
        elif schedule.name == own.name and self.name is not None:
            order = self.name
        else:
            order = PYTORCH_MESSAGE_ORDERS.get(schedule.name, "posted")
        return PROGRAM_WRITERS[order](schedule)

    def in_words(self) -> str:
        """Return the assumption about messages as text for users."""
        unknown = "each posted with its send: the order this run posts them in is not a known one"
        order = "ordered as this run's were" if self.name else unknown
        return f"{_QUEUES_IN_WORDS[self.queues]}, {order}"


def find_message_order(own: Schedule, messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> MessageOrder:
    """Find the known message order that explains what every rank posted.

    Args:
        own: Schedule of the run.
        messages: Messages (``MESSAGES``) of each rank of one step, by position in the pipeline.
        cells: Cells of the step.
    """
    posted = posted_messages(messages)
    equal_shares = {name: _equal_share(write(own), posted) for name, write in PROGRAM_WRITERS.items()}
    best = max(equal_shares, key=lambda name: equal_shares[name])
    name = best if equal_shares[best] >= MIN_SHARE_OF_EQUAL_KERNELS else None
    return MessageOrder(name, _find_queues(messages, cells))


def posted_messages(messages: Mapping[int, pl.DataFrame]) -> dict[int, list[CarriedMessages]]:
    """Return what each message kernel of the run carried, by position, in the order in which they were launched.

    >>> rows = pl.DataFrame({"kernel": [5, 5, 9], "send": [True, False, True], "peer": [1, 1, 2],
    ...     "launch_ns": [1, 1, 3]})
    >>> [sorted(kernel) for kernel in posted_messages({0: rows})[0]]
    [[(False, 1), (True, 1)], [(True, 2)]]
    """
    posted = {}
    for position, table in messages.items():
        kernels = table.group_by("kernel", maintain_order=True).agg("send", "peer", pl.col("launch_ns").min())
        in_launch_order = kernels.sort("launch_ns", maintain_order=True).select("send", "peer").rows()
        posted[position] = [frozenset(zip(sends, peers, strict=True)) for sends, peers in in_launch_order]
    return posted


def recorded_program(cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame], *, host_waits: bool = False) -> Program:
    """Return the program that the run followed: every rank's ops and message kernels in the order of their launches.

    An op waits for the receives launched before it that had ended when it started, as far as no earlier op did.

    Args:
        cells: Cells of the step (``DETAILED``).
        messages: Messages (``MESSAGES``) of the step by position, peers as positions; every one has its other side.
        host_waits: Whether the host waits for every message kernel before its next launch.
    """
    steps: list[tuple[tuple[int, int], ...]] = []
    pieces: list[Piece] = []
    kernels: list[Kernel] = []
    numbers: dict[tuple[int, int, int], int] = {}  # message by source, target and index among those between them
    sent: dict[tuple[bool, int, int], int] = {}  # messages so far by direction, source and target

    def message_number(send: bool, source: int, target: int) -> int:
        index = sent.get((send, source, target), 0)
        sent[send, source, target] = index + 1
        return numbers.setdefault((source, target, index), len(numbers))

    for position in sorted(messages):
        rank_steps: list[tuple[int, int]] = []
        open_receives: list[tuple[int, int]] = []  # end and number of kernels that no op has waited for
        for launched in _in_launch_order(position, cells, messages[position]):
            if "op" not in launched:
                ends = [(s, position, p) if s else (s, p, position) for s, p in launched["carried"]]
                carried = [(end[0], message_number(*end)) for end in ends]
                sends, receives = (tuple(n for send, n in carried if send is side) for side in (True, False))
                rank_steps.append((POST, len(kernels)))
                if host_waits:
                    rank_steps.append((WAIT, len(kernels)))
                elif receives:
                    open_receives.append((launched["end_ns"], len(kernels)))
                kernels.append(Kernel(position, sends, receives))
                continue
            ended = [kernel for end, kernel in open_receives if end <= launched["start_ns"]]
            open_receives = [(end, kernel) for end, kernel in open_receives if kernel not in ended]
            rank_steps += [(WAIT, kernel) for kernel in ended]
            for piece in _pieces_of_cell(launched):
                rank_steps.append((RUN, len(pieces)))
                pieces.append(piece)
        steps.append(tuple(rank_steps))
    return Program(tuple(steps), tuple(pieces), tuple(kernels), tuple(Message(s, t) for s, t, _ in numbers))


def _in_launch_order(position: int, cells: pl.DataFrame, messages: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a rank's cells and message kernels (with what they carry) by launch."""
    names = ("op", "stage", "microbatch", "b_stage", "b_microbatch", "launch_ns", "start_ns")
    ops = cells.filter(pl.col("position") == position).select(pl.col("op").cast(pl.String), *names[1:]).to_dicts()
    kernels = messages.group_by("kernel", maintain_order=True).agg(
        pl.col("launch_ns").min(), pl.col("end_ns").max(), carried=pl.concat_list(pl.col("send").cast(pl.Int32), "peer")
    )
    posts = [
        {"launch_ns": launch_ns, "end_ns": end_ns, "carried": [(bool(send), peer) for send, peer in carried]}
        for launch_ns, end_ns, carried in kernels.select("launch_ns", "end_ns", "carried").rows()
    ]
    return sorted([*ops, *posts], key=lambda launched: launched["launch_ns"])


def _pieces_of_cell(cell: Mapping[str, Any]) -> list[Piece]:
    """Return the pieces of a cell."""
    if cell["op"] != "FB":
        return [Piece(cell["op"], cell["stage"] or 0, -1 if cell["microbatch"] is None else cell["microbatch"])]
    forward = Piece("F", cell["stage"], cell["microbatch"], True)
    return [forward, Piece("B", cell["b_stage"], cell["b_microbatch"], True)]


def _equal_share(program: Program, posted: Mapping[int, list[CarriedMessages]]) -> float:
    """Return the smallest share, over ranks, of kernels that carry the same in run and program at the same index."""
    shares = [1.0]
    for position, kernels in posted.items():
        planned = program.posted_messages(position)
        equal = sum(a == b for a, b in zip(planned, kernels, strict=False))
        shares.append(equal / max(len(planned), len(kernels), 1))
    return min(shares)


def _find_queues(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> Queues:
    """Return the queues of the run's messages, from their streams. Streams that are not recorded count as one."""
    tables = [table for table in messages.values() if table.height]
    if _share_of_early_receives(messages, cells) > MAX_SHARE_OF_EARLY_RECEIVES:
        return "free"
    if all(table["inline"].fill_null(False).all() for table in tables):
        return "compute"
    if all(table["stream"].n_unique() == 1 for table in tables):
        return "one"
    streams_per_peer = [table.group_by("peer").agg(pl.col("stream").n_unique())["stream"] for table in tables]
    return "peer" if all((streams == 1).all() for streams in streams_per_peer) else "direction"


def _share_of_early_receives(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> float:
    """Return the share of receives that started before the op launched before them had ended."""
    early, total = 0, 0
    for position, table in messages.items():
        ops = cells.filter(pl.col("position") == position).sort("launch_ns").select("launch_ns", "end_ns")
        receives = table.filter(~pl.col("send")).sort("launch_ns").select("launch_ns", "start_ns")
        # Each receive gets the end of the last op launched before it.
        with_op = receives.join_asof(ops, on="launch_ns", strategy="backward").drop_nulls("end_ns")
        early += int((with_op["start_ns"] < with_op["end_ns"]).sum())
        total += with_op.height
    return early / total if total else 0.0
