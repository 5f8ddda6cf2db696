"""What a point-to-point kernel moves: the sends and receives issued just before it on its thread.

A batch of point-to-point ops runs as one ``SendRecv`` kernel that carries no peer of its own. The ops recorded
on the launching thread (``record_param_comms`` in PyTorch traces, NCCL's own ranges in Nsight's) say who and which way.
"""

from __future__ import annotations

import polars as pl

from tracekit._util.coded import Text

_CALLS = ["send", "recv", "isend", "irecv"]
_OWN = [*_CALLS, "coalesced"]
_MOVES = r"(?i)sendrecv|nccl.*generic"
_COLUMNS = ("id", "kind", "name", "tid", "start_ns", "correlation", "collective", "peer")
_PEER = pl.col("peer").cast(pl.String).fill_null("?")


def point_to_point(events: pl.DataFrame) -> pl.DataFrame:
    """``id`` of every point-to-point kernel of one rank and ``p2p``, its messages in issue order: ``send:2,recv:0``.

    A peer the file does not name is ``?``.

    >>> from tracekit.schema import EVENTS, conform
    >>> rows = [
    ...     {"id": 0, "kind": "cpu_op", "tid": 1, "start_ns": 1, "end_ns": 2, "collective": "send", "peer": 2},
    ...     {"id": 1, "kind": "cpu_op", "tid": 1, "start_ns": 3, "end_ns": 4, "collective": "recv", "peer": 0},
    ...     {"id": 2, "kind": "runtime", "name": "launch", "tid": 1, "start_ns": 5, "end_ns": 6, "correlation": 7},
    ...     {"id": 3, "kind": "kernel", "name": "ncclDevKernel_SendRecv", "start_ns": 8, "end_ns": 9, "correlation": 7},
    ... ]
    >>> point_to_point(conform(pl.DataFrame(rows), EVENTS)).rows()
    [(3, 'send:2,recv:0')]
    """
    collective = pl.col("collective").cast(pl.String)
    events = events.select(_COLUMNS)
    asked = events.filter(pl.col("kind").is_in(["cpu_op", "annotation"]) & pl.col("collective").is_not_null())
    ops = asked.filter(collective.is_in(_CALLS)).select(
        "tid", at="start_ns", message=pl.format("{}:{}", collective.str.strip_prefix("i"), _PEER)
    )
    kernels = events.filter(
        (pl.col("kind") == "kernel") & (pl.col("collective").is_null() | pl.col("collective").is_in(_OWN))
    ).select("id", "correlation", "name")
    kernels = kernels.filter(pl.Series(Text.of(kernels["name"]).matches(_MOVES))).drop("name")
    if ops.is_empty() or kernels.is_empty():
        return pl.DataFrame(schema={"id": pl.Int64(), "p2p": pl.String()})
    launches = (
        events.filter(pl.col("kind").is_in(["runtime", "driver"]) & pl.col("correlation").is_not_null())
        .select("correlation", "tid", at="start_ns")
        .join(kernels.select("correlation"), on="correlation", how="semi")
        .unique("correlation", keep="first", maintain_order=True)
    )
    kernels = kernels.join(launches, on="correlation").sort("at")
    return (
        ops.sort("at")
        .join_asof(kernels, on="at", by="tid", strategy="forward", check_sortedness=False)
        .filter(pl.col("id").is_not_null())
        .group_by("id", maintain_order=True)
        .agg(p2p=pl.col("message").str.join(","))
    )
