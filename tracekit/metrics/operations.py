"""One rank's communication operations: what each one is, when, and how much of it compute hides."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.metrics.lanes import Lanes, among_labels
from tracekit.schema import COMMUNICATION_LABELS, conform

OPERATIONS = pl.Schema(
    {
        "rank": pl.Int32(),
        "part": pl.Int64(),
        "step": pl.Int64(),
        "label": pl.String(),
        "pass": pl.String(),
        "what": pl.String(),  # the collective: "all_to_allv", "broadcast", … or "p2p"
        "group": pl.Categorical(),
        "group_ranks": pl.Categorical(),  # a list as long as the group, on every row
        "p2p": pl.String(),  # "send:2,recv:0"
        "order_ns": pl.Int64(),  # when it was launched (else: when it started)
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "hidden_ns": pl.Int64(),
        "bytes": pl.Int64(),
        "id": pl.Int64(),  # event of the rank, as in EVENTS
        "received": pl.Int64(),  # bytes that come in, where the trace says
    }
)

_KERNEL = r"(?i)(allreduce|allgather|reducescatter|broadcast|alltoall|sendrecv|reduce|dispatch|combine|gather|scatter)"
_P2P = ("send", "recv", "isend", "irecv")


def operations(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """Return the communication of one rank in launch order, with the part of each operation that compute hides.

    >>> from tracekit.schema import LABELLED
    >>> rows = [{"rank": 1, "label": "forward", "start_ns": 0, "end_ns": 6},
    ...         {"rank": 1, "label": "pp_comm", "name": "ncclDevKernel_SendRecv", "p2p": "send:2",
    ...          "start_ns": 4, "end_ns": 8}]
    >>> events = conform(pl.DataFrame(rows), LABELLED)
    >>> operations(events, Lanes.of(events)).select("what", "p2p", "hidden_ns").rows()
    [('p2p', 'send:2', 2)]
    """
    at = np.flatnonzero(among_labels(lanes.code, COMMUNICATION_LABELS))
    if not len(at):
        return OPERATIONS.to_frame()
    asked = [name for name in (*OPERATIONS, "collective", "name", "peer", "launch_ns") if name in labelled.columns]
    # Text is only unpacked for communication, the few among the many.
    rows = labelled.select(asked)[at].with_columns(
        pl.col("collective", "p2p", "name").cast(pl.String),
        part=pl.col(part).cast(pl.Int64) if part is not None else pl.lit(0, pl.Int64),
    )
    single, batch = pl.col("collective").is_in(_P2P), pl.col("collective") == "coalesced"
    named = pl.format("{}:{}", pl.col("collective").str.strip_prefix("i"), pl.col("peer"))
    both_ways = pl.format("send:{},recv:{}", pl.col("peer"), pl.col("peer"))  # a batch with one peer is an exchange
    rows = rows.with_columns(
        p2p=pl.coalesce("p2p", pl.when(single).then(named), pl.when(batch).then(both_ways)),
        order_ns=pl.coalesce("launch_ns", "start_ns"),
        hidden_ns=pl.Series(lanes.compute.covered_ns(*(rows[c].to_numpy() for c in ("start_ns", "end_ns", "part")))),
    )
    unknown_peer = single | batch | ((pl.col("label") == "pp_comm") & pl.col("collective").is_null())
    what = (
        pl.when(pl.col("p2p").is_not_null() | unknown_peer)
        .then(pl.lit("p2p"))
        .otherwise(
            pl.coalesce(
                "collective",
                pl.col("name").str.extract(_KERNEL).str.to_lowercase(),
                pl.col("name").str.extract(r"^([^(<]{1,80})"),
            )
        )
    )
    return conform(rows.with_columns(what=what).sort("order_ns", "start_ns"), OPERATIONS)
