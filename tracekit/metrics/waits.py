"""Waiting inside communication, and for whom.

wait = an operation's duration − the shortest duration among the ranks of the same matched operation; the rest is
transfer. The rank that arrives last makes the others wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit.align.clocks import Clocks
from tracekit.align.matching import last_of_match


def waits(operations: pl.DataFrame, members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return each operation with wait_ns, transfer_ns (null: no peer's trace), match, last_rank, late_ns, open.

    ``late_ns`` is how long after the first of its match this rank began, on aligned clocks. ``open``: some of its
    messages has no match, so that it may have waited longer.

    >>> from tracekit.align.matching import match
    >>> from tracekit.align.clocks import align
    >>> from tracekit.metrics.operations import OPERATIONS
    >>> from tracekit.schema import conform
    >>> ops = conform(pl.DataFrame({"rank": [0, 1], "what": "p2p", "p2p": ["send:1", "recv:0"], "step": 2,
    ...     "order_ns": [0, 3], "start_ns": [6, 1], "end_ns": [9, 9], "label": "pp_comm"}), OPERATIONS)
    >>> members = match(ops).members
    >>> waits(ops, members, align(members, [0, 1])).select("rank", "wait_ns", "transfer_ns", "last_rank").rows()
    [(0, 0, 3, 0), (1, 5, 3, 0)]
    """
    match, row, rank = (members[name].to_numpy() for name in ("match", "row", "rank"))
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    last, earliest = last_of_match(match, start), last_of_match(match, -start)
    # A kernel of several messages waits for its slowest partner no longer than its own shortest match allows.
    transfer = members["transfer_ns"].to_numpy()
    shortest = np.full(len(operations), np.iinfo(np.int64).max)
    np.minimum.at(shortest, row, transfer)
    chosen = np.flatnonzero(transfer == shortest[row])[::-1]
    member = np.full(len(operations), -1, np.int64)
    member[row[chosen]] = chosen  # the first match stays
    found = pl.DataFrame(
        {
            "match": match,
            "last_rank": rank[last],
            "late_ns": start - start[earliest],
            "wait_ns": members["wait_ns"],
            "transfer_ns": transfer,
        }
    )
    at = pl.Series(member)
    carried, matched = _messages(operations["p2p"]), np.bincount(row, minlength=len(operations))
    return operations.with_columns(
        *found.select(pl.all().gather(at.set(at < 0, None))).get_columns(), pl.Series("open", carried > matched)
    )


def _messages(p2p: pl.Series) -> npt.NDArray[np.int64]:
    """Return how many messages each operation carries."""
    text = CategoryColumn.from_series(p2p)
    return text.look_up(np.array([*(value.count(":") for value in text.values), 0]))


def stragglers(waited: pl.DataFrame) -> pl.DataFrame:
    """Return for whom others wait: by rank and label, the wait of all others in operations where this rank came last.

    >>> waited = pl.DataFrame({"rank": [0, 1, 2], "label": ["dp_comm"] * 3, "wait_ns": [5, 0, 4],
    ...                        "last_rank": [1, 1, 1], "match": [7, 7, 7]})
    >>> stragglers(waited).rows()
    [(1, 'dp_comm', 9, 1)]
    """
    return (
        waited.filter((pl.col("wait_ns") > 0) & (pl.col("last_rank") != pl.col("rank")))
        .group_by(pl.col("last_rank").alias("rank"), "label")
        .agg(caused_ns=pl.col("wait_ns").sum(), operations=pl.col("match").n_unique().cast(pl.Int64))
        .sort("caused_ns", "rank", "label", descending=[True, False, False])
    )
