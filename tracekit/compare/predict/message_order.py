"""Order and queues of the messages of a run, and the order in which another schedule would post them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracekit.compare.predict.machine import Queues
from tracekit.compare.predict.rank_programs import (
    POST,
    PROGRAM_WRITERS,
    RUN,
    WAIT,
    Kernel,
    Message,
    Piece,
    Program,
)
from tracekit.schedules import Schedule

PYTORCH_MESSAGE_ORDERS = {"gpipe": "just-in-time", "1f1b": "grouped"}
"""Message orders of PyTorch's schedules; all schedules not listed use ``posted``."""

QUEUES_IN_WORDS: Mapping[Queues, str] = {
    "one": "one queue of messages per rank",
    "peer": "a queue of messages per peer",
    "direction": "a queue of messages per peer and direction",
    "compute": "messages on the compute stream",
    "free": "receives that wait for no compute",
}

MAX_SHARE_OF_EARLY_RECEIVES = 0.1
"""Share of receives that start before the compute launched before them has ended, above which none wait for compute."""


def write_program(schedule: Schedule, queues: Queues) -> Program:
    """Return the program of a schedule with messages in the order in which PyTorch posts them."""
    # Receives that wait for nothing hold nothing up, so that grouping would change nothing.
    order = "posted" if queues == "free" else PYTORCH_MESSAGE_ORDERS.get(schedule.name, "posted")
    return PROGRAM_WRITERS[order](schedule)


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


def find_queues(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> Queues:
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
