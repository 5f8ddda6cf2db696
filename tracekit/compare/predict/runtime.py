"""How the run's own program ordered its messages: which of the known ways explains what its ranks issued."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit.compare.predict.programs import WAYS, Program
from tracekit.schedules import Schedule

Issued = Mapping[int, list[frozenset[tuple[bool, int]]]]
"""By position: what each of its kernels carried, (sends, peer), in the order launched."""

OWN_WAYS = {"gpipe": "just-in-time", "1f1b": "grouped"}
"""How PyTorch orders the messages of a schedule; all others are posted by the sender."""


_QUEUES = {
    "one": "one queue of messages per rank",
    "peer": "a queue of messages per peer",
    "way": "a queue of messages per peer and direction",
    "compute": "messages on the compute stream",
    "free": "receives that wait for no compute",
}

EARLY = 0.1
"""Share of receives that must begin before the compute launched before them has ended for none to wait for compute."""

AGREE = 0.9
"""Share of a rank's kernels that a way must issue at the same place for the run to have gone that way."""


class Runtime(msgspec.Struct, frozen=True):
    """The way the run ordered its messages, and how they queue."""

    way: str | None  # None: no known way issues what the run did
    queues: str  # see Machine.queues

    def program(self, schedule: Schedule, own: Schedule) -> Program:
        """Return what ranks would issue for *schedule* under this runtime."""
        if self.queues == "free":  # nothing is held up by the order, so none groups
            return WAYS["posted"](schedule)
        if schedule.name == own.name and self.way is not None:
            return WAYS[self.way](schedule)
        return WAYS[OWN_WAYS.get(schedule.name, "posted")](schedule)

    def words(self) -> str:
        """Return in words how messages are assumed to be ordered."""
        queues = _QUEUES[self.queues]
        unknown = "each posted with its send: the order this run posts them in is not a known one"
        how = "ordered as this run's were" if self.way else unknown
        return f"{queues}, {how}"


def find_runtime(own: Schedule, messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> Runtime:
    """Return which way of ordering messages makes every rank issue what it did, or nearly."""
    ran = issued(messages)
    shares = {name: _agreement(write(own), ran) for name, write in WAYS.items()}
    way = max(shares, key=lambda name: shares[name])
    return Runtime(way if shares[way] >= AGREE else None, _queues(messages, cells))


def issued(messages: Mapping[int, pl.DataFrame]) -> dict[int, list[frozenset[tuple[bool, int]]]]:
    """Return what every position's kernels carried, in the order they were launched.

    >>> rows = pl.DataFrame({"kernel": [5, 5, 9], "send": [True, False, True], "peer": [1, 1, 2],
    ...     "launch_ns": [1, 1, 3]})
    >>> [sorted(kernel) for kernel in issued({0: rows})[0]]
    [[(False, 1), (True, 1)], [(True, 2)]]
    """
    by_position = {}
    for at, table in messages.items():
        kernels = table.group_by("kernel", maintain_order=True).agg("send", "peer", pl.col("launch_ns").min())
        ordered = kernels.sort("launch_ns", maintain_order=True).select("send", "peer").rows()
        by_position[at] = [frozenset(zip(send, peer, strict=True)) for send, peer in ordered]
    return by_position


def _agreement(program: Program, ran: Issued) -> float:
    """Return the smallest share, over ranks, of kernels that stand where the program has them."""
    shares = [1.0]
    for at, kernels in ran.items():
        made = program.issued(at)
        same = sum(a == b for a, b in zip(made, kernels, strict=False))
        shares.append(same / max(len(made), len(kernels), 1))
    return min(shares)


def _queues(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> str:
    """Return how messages queue: see ``Machine.queues``. A stream that the trace does not name is one for all."""
    tables = [table for table in messages.values() if table.height]
    if _early(messages, cells) > EARLY:
        return "free"
    if all(table["inline"].fill_null(False).all() for table in tables):
        return "compute"
    if all(table["stream"].n_unique() == 1 for table in tables):
        return "one"
    by_peer = all((table.group_by("peer").agg(pl.col("stream").n_unique())["stream"] == 1).all() for table in tables)
    return "peer" if by_peer else "way"


def _early(messages: Mapping[int, pl.DataFrame], cells: pl.DataFrame) -> float:
    """Return the share of receives that began before the op launched before them had ended."""
    early, known = 0, 0
    for at, table in messages.items():
        ops = cells.filter(pl.col("position") == at).sort("launch_ns").select("launch_ns", "end_ns")
        receives = table.filter(~pl.col("send")).sort("launch_ns").select("launch_ns", "start_ns")
        after_op = receives.join_asof(ops, on="launch_ns", strategy="backward").drop_nulls("end_ns")
        early += int((after_op["start_ns"] < after_op["end_ns"]).sum())
        known += after_op.height
    return early / known if known else 0.0
