"""Order and queues of the messages of a run, found by comparison with the known orders (``rank_programs``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit.compare.predict.machine import Queues
from tracekit.compare.predict.rank_programs import PROGRAM_WRITERS, CarriedMessages, Program
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
