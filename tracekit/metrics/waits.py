"""Waiting inside communication, the ranks that cause it, and messages whose wait is unknown.

The wait and the transfer of a matched operation come from the matching (``align.matching``). The rank that arrives last
makes the others wait.

A bubble contains the exposed wait of pipeline messages. A message may appear in a trace as such, as a kernel that may
be one (``SendRecv`` also carries all-to-alls), as communication of unknown kind, or only as a call of the host. All of
these count as possible messages, so that a bubble is stated as exact only where no wait is unknown.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, with_nulls
from tracekit.align.clocks import Clocks
from tracekit.align.matching import last_of_match

_COLLECTIVE = (
    r"(?i)all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier|gather|scatter|reduce|dispatch|combine"
)
_MESSAGE_CALL = r"^(c10d::(i?send|i?recv)|nccl:(send|recv)|nccl(Send|Recv)\b)"
_MESSAGE_COLLECTIVE = r"^i?(send|recv)$"


def add_waits(operations: pl.DataFrame, members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return the operations with match, last_rank, late_ns, wait_ns, transfer_ns and open.

    ``last_rank`` arrived last; ``late_ns`` is how long after the first member this rank arrived, on aligned clocks; all
    are null without a peer's trace. ``open``: some message of the operation has no match, so that it may have waited
    longer.

    Args:
        operations: Operations of all ranks.
        members: Matched operations (``align.matching.MEMBERS``), whose ``row`` is a row of *operations*.
        clocks: Clock offsets of the ranks.

    >>> from tracekit.align.matching import match
    >>> from tracekit.align.clocks import align
    >>> from tracekit.metrics.operations import OPERATIONS
    >>> from tracekit.schema import conform
    >>> ops = conform(pl.DataFrame({"rank": [0, 1], "what": "p2p", "p2p": ["send:1", "recv:0"], "step": 2,
    ...     "order_ns": [0, 3], "start_ns": [6, 1], "end_ns": [9, 9], "label": "pp_comm"}), OPERATIONS)
    >>> members = match(ops).members
    >>> waited = add_waits(ops, members, align(members, [0, 1]))
    >>> waited.select("rank", "wait_ns", "transfer_ns", "last_rank").rows()
    [(0, 0, 3, 0), (1, 5, 3, 0)]

    """
    match, row, rank = (members[name].to_numpy() for name in ("match", "row", "rank"))
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    last, first = last_of_match(match, start), last_of_match(match, -start)
    transfer = members["transfer_ns"].to_numpy()
    # An operation of several messages is a member of several matches. The one with the shortest transfer has the
    # longest wait; of several, the first. Assigning in reverse lets the first one win.
    shortest = np.full(len(operations), np.iinfo(np.int64).max)
    np.minimum.at(shortest, row, transfer)
    candidates = np.flatnonzero(transfer == shortest[row])[::-1]
    member = np.full(len(operations), -1, np.int64)
    member[row[candidates]] = candidates
    figures = pl.DataFrame(
        {
            "match": match,
            "last_rank": rank[last],
            "late_ns": start - start[first],
            "wait_ns": members["wait_ns"],
            "transfer_ns": transfer,
        }
    )
    own = figures.select(pl.all().gather(with_nulls(member, member >= 0)))
    is_open = _count_messages(operations["p2p"]) > np.bincount(row, minlength=len(operations))
    return operations.with_columns(*own, pl.Series("open", is_open))


def _count_messages(p2p: pl.Series) -> Ints:
    """Return the number of messages of each operation ("send:2,recv:0" has two)."""
    text = CategoryColumn.from_series(p2p)
    return text.look_up(np.array([*(value.count(":") for value in text.values), 0]))


def find_stragglers(waited: pl.DataFrame) -> pl.DataFrame:
    """Return by rank and label the wait of all other ranks in operations where this rank arrived last.

    >>> waited = pl.DataFrame({"rank": [0, 1, 2], "label": ["dp_comm"] * 3, "wait_ns": [5, 0, 4],
    ...                        "last_rank": [1, 1, 1], "match": [7, 7, 7]})
    >>> find_stragglers(waited).rows()
    [(1, 'dp_comm', 9, 1)]
    """
    return (
        waited.filter((pl.col("wait_ns") > 0) & (pl.col("last_rank") != pl.col("rank")))
        .group_by(pl.col("last_rank").alias("rank"), "label")
        .agg(caused_ns=pl.col("wait_ns").sum(), operations=pl.col("match").n_unique().cast(pl.Int64))
        .sort("caused_ns", "rank", "label", descending=[True, False, False])
    )


def may_be_message(operations: pl.DataFrame) -> Bools:
    """Return which operations are, or may be, a send or a receive: by kind, by name, or because the kind is unknown.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "comm", "comm", "comm", "ep_dispatch"],
    ...                     "what": ["p2p", "sendrecv", "allreduce", "device_kernel", "all_to_allv"]})
    >>> ops.filter(may_be_message(ops))["what"].to_list()
    ['p2p', 'sendrecv', 'device_kernel']
    """
    label, what = CategoryColumn.from_series(operations["label"]), CategoryColumn.from_series(operations["what"])
    is_message = what.any_of("p2p", "sendrecv") | label.any_of("pp_comm")
    is_unresolved = label.any_of("comm") & ~what.matches(_COLLECTIVE)
    return is_message | is_unresolved


def has_unknown_wait(operations: pl.DataFrame) -> Bools:
    """Return which operations make the bubble a lower bound: messages whose wait or whose role is unknown.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "pp_comm", "pp_comm", "comm"], "what": ["p2p"] * 4,
    ...                     "wait_ns": [3, None, 3, 3], "open": [False, True, True, False]})
    >>> has_unknown_wait(ops).tolist()
    [False, True, True, True]
    """
    unknown = operations.select(pl.col("wait_ns").is_null() | pl.col("open") | (pl.col("label") == "comm")).to_series()
    has_unknown: Bools = may_be_message(operations) & unknown.fill_null(False).to_numpy()
    return has_unknown


def count_issued_messages(events: pl.DataFrame) -> int:
    """Return the number of the host's calls that send or receive.

    >>> events = pl.DataFrame({"kind": ["cpu_op", "cpu_op", "kernel"], "name": ["c10d::send", "aten::mm", "k"],
    ...                        "collective": [None, None, "send"]})
    >>> count_issued_messages(events)
    1
    """
    by_name = np.flatnonzero(CategoryColumn.from_series(events["name"]).matches(_MESSAGE_CALL))
    collective = events["collective"]
    is_message = CategoryColumn.from_series(collective.drop_nulls()).matches(_MESSAGE_COLLECTIVE)
    by_collective = np.flatnonzero(present(collective))[is_message]
    return int(events["kind"][np.union1d(by_name, by_collective)].is_in(["cpu_op", "annotation"]).sum())


def has_unseen_messages(issued: int, possible: int) -> bool:
    """Return whether the host issued messages but no operation on the GPU may be one.

    >>> has_unseen_messages(4, 0), has_unseen_messages(4, 1), has_unseen_messages(0, 0)
    (True, False, False)
    """
    return issued > 0 and not possible
