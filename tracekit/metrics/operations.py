"""Communication operations of one rank: kind, peers, times, and how much of each compute hides."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.metrics.label_intervals import Lanes, has_label
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
        "group_ranks": pl.Categorical(),  # "[0,1,2,3]"; categorical, since the list is long and on every row
        "p2p": pl.String(),  # messages of the operation: "send:2,recv:0"
        "order_ns": pl.Int64(),  # launch, or start where the launch is unknown
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "hidden_ns": pl.Int64(),  # time under compute
        "bytes": pl.Int64(),
        "id": pl.Int64(),  # event of the rank, as in EVENTS; negative: launched, but the kernel was not recorded
        "received": pl.Int64(),  # bytes received, where recorded
        "collective_seq": pl.Int64(),  # recorded number of the collective within its group
    }
)

_COLLECTIVE_IN_KERNEL_NAME = (
    r"(?i)(allreduce|allgather|reducescatter|broadcast|alltoall|sendrecv|reduce|dispatch|combine|gather|scatter)"
)
_PLAIN_KERNEL_NAME = r"^([^(<]{1,80})"
_SINGLE_MESSAGES = ("send", "recv", "isend", "irecv")


def operations(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """Return the communication of one rank (``OPERATIONS``), in launch order.

    Args:
        labelled: GPU events of one rank.
        lanes: Interval sets of the same events.
        part: Column with each event's part; None if all events form one part.

    >>> from tracekit.schema import LABELLED
    >>> rows = [{"rank": 1, "label": "forward", "start_ns": 0, "end_ns": 6},
    ...         {"rank": 1, "label": "pp_comm", "name": "ncclDevKernel_SendRecv", "p2p": "send:2",
    ...          "start_ns": 4, "end_ns": 8}]
    >>> events = conform(pl.DataFrame(rows), LABELLED)
    >>> operations(events, Lanes.of(events)).select("what", "p2p", "hidden_ns").rows()
    [('p2p', 'send:2', 2)]

    """
    rows = np.flatnonzero(has_label(lanes.code, COMMUNICATION_LABELS))
    if not len(rows):
        return OPERATIONS.to_frame()
    needed = (*OPERATIONS, "collective", "name", "peer", "launch_ns")
    # Select rows first: casting text is slow, and communication is a small share of all events.
    comm = labelled.select(name for name in needed if name in labelled.columns)[rows].with_columns(
        pl.col("collective", "p2p", "name").cast(pl.String),
        part=pl.col(part).cast(pl.Int64) if part is not None else pl.lit(0, pl.Int64),
    )
    collective, peer = pl.col("collective"), pl.col("peer")
    is_single, is_batch = collective.is_in(_SINGLE_MESSAGES), collective == "coalesced"
    single = pl.format("{}:{}", collective.str.strip_prefix("i"), peer)
    exchange = pl.format("send:{},recv:{}", peer, peer)  # a batch with one peer is an exchange
    is_message = is_single | is_batch | ((pl.col("label") == "pp_comm") & collective.is_null())
    what = pl.coalesce(
        "collective",
        pl.col("name").str.extract(_COLLECTIVE_IN_KERNEL_NAME).str.to_lowercase(),
        pl.col("name").str.extract(_PLAIN_KERNEL_NAME),
    )
    start, end, event_part = (comm[name].to_numpy() for name in ("start_ns", "end_ns", "part"))
    comm = comm.with_columns(
        p2p=pl.coalesce("p2p", pl.when(is_single).then(single), pl.when(is_batch).then(exchange)),
        order_ns=pl.coalesce("launch_ns", "start_ns"),
        hidden_ns=pl.Series(lanes.compute.covered_ns(start, end, event_part)),
    ).with_columns(what=pl.when(pl.col("p2p").is_not_null() | is_message).then(pl.lit("p2p")).otherwise(what))
    return conform(comm.sort("order_ns", "start_ns"), OPERATIONS)
