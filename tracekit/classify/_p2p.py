"""What a point-to-point kernel moves: the sends and receives issued just before it on its thread.

A batch of point-to-point ops runs as one ``SendRecv`` kernel that carries no peer of its own. The ops recorded
on the launching thread (``record_param_comms`` in PyTorch traces, NCCL's own ranges in Nsight's) say who and which way.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.coded import Ints, Text, among

_CALLS = ["send", "recv", "isend", "irecv"]
_OWN = [*_CALLS, "coalesced"]
_MOVES = r"(?i)sendrecv|nccl.*generic"
_FOUND = {"id": pl.Int64(), "p2p": pl.String()}


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
    collective = Text.of(events["collective"])
    host = events["kind"].is_in(["cpu_op", "annotation"]).to_numpy()
    ops = np.flatnonzero(host & collective.map(_CALLS.__contains__))
    nameless = ~collective.present | collective.map(_OWN.__contains__)
    kernels = np.flatnonzero((events["kind"] == "kernel").to_numpy() & nameless)
    kernels = kernels[Text.of(events["name"].gather(kernels)).matches(_MOVES)]
    if not len(ops) or not len(kernels):
        return pl.DataFrame(schema=_FOUND)
    launched = _launches(events, kernels)
    asked = events.select("tid", "start_ns", "peer")[ops].with_columns(op=pl.Series(ops)).drop_nulls("tid")
    moved = (
        asked.sort("start_ns", maintain_order=True)
        .join_asof(launched, on="start_ns", by="tid", strategy="forward", check_sortedness=False)
        .drop_nulls("id")
    )
    call = pl.Series([str(collective.value(op)).removeprefix("i") for op in moved["op"].to_list()], dtype=pl.String)
    message = pl.format("{}:{}", call, pl.col("peer").cast(pl.String).fill_null("?"))
    return moved.select("id", p2p=message).group_by("id", maintain_order=True).agg(pl.col("p2p").str.join(","))


def _launches(events: pl.DataFrame, kernels: Ints) -> pl.DataFrame:
    """Return ``id`` of each kernel whose launch is known, with ``tid`` and ``start_ns`` of the first call; by start."""
    asked = events["kind"].is_in(["runtime", "driver"]) & events["correlation"].is_not_null()
    rows = np.flatnonzero(asked.to_numpy())
    number = events["correlation"].gather(rows).to_numpy()
    wanted = events.select("id", "correlation")[kernels].drop_nulls()
    rows = rows[among(number, np.sort(wanted["correlation"].to_numpy()))]
    calls = events.select("correlation", "tid", "start_ns")[rows].unique("correlation", keep="first")
    return wanted.join(calls, on="correlation").select("id", "tid", "start_ns").sort("start_ns")
