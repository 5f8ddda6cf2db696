"""Waiting inside communication, and for whom.

wait = an operation's duration − the shortest duration among the ranks of the same matched operation; the rest is
transfer. The rank that arrives last makes the others wait.
"""

from __future__ import annotations

import polars as pl

from tracekit.align.clocks import Clocks


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
    aligned = clocks.align(members, "start_ns", "end_ns").with_columns(
        last_rank=pl.col("rank").sort_by("start_ns").last().over("match"),
        late_ns=pl.col("start_ns") - pl.col("start_ns").min().over("match"),
    )
    # A kernel of several messages waits for its slowest partner no longer than its own shortest match allows.
    own = aligned.sort("row", "transfer_ns", "match").group_by("row", maintain_order=True)
    columns = ("row", "match", "last_rank", "late_ns", "wait_ns", "transfer_ns")
    first = own.first().select(columns).join(own.agg(matched=pl.len()), on="row")
    rows = pl.select(row=pl.int_range(len(operations), dtype=pl.Int64))
    found = rows.join(first, on="row", how="left", maintain_order="left").drop("row")
    messages = operations["p2p"].str.count_matches(":").fill_null(0)
    open_ = (messages > found["matched"].fill_null(0)).alias("open")
    return operations.with_columns(*found.drop("matched").get_columns(), open_)


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
