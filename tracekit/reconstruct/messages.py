"""Point-to-point messages of one rank, and the chunk whose output each of them carries."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.reconstruct.kernels import AUTOGRAD, FORWARD, LOOSE_WGRAD, MESSAGE
from tracekit.schema import conform

MESSAGES = pl.Schema(
    {
        "step": pl.Int64(),
        "kernel": pl.Int64(),  # messages of one batch share their kernel
        "send": pl.Boolean(),
        "peer": pl.Int32(),
        "launch_ns": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "group": pl.String(),  # the communicator
        "stream": pl.Int64(),
        "inline": pl.Boolean(),  # on a stream that runs compute too
        "bytes": pl.Int64(),  # of the kernel, all its messages; null where the trace does not say
        "made": pl.String(),  # of a send: F or B, the chunk whose output it carries; null where none came before it
    }
)
"""Sends and receives in the order they were issued."""


def read_messages(rows: pl.DataFrame, chunks: pl.DataFrame) -> pl.DataFrame:
    """Return the messages (``MESSAGES``) of a rank.

    Args:
        rows: GPU events of the rank, as ``prepare`` returns them. ``p2p`` lists the messages of a kernel, separated by
            commas, such as ``send:2`` or ``recv:?`` for an unknown peer.
        chunks: Forwards and backwards of the rank (``CHUNKS``).

    """
    compute_streams = rows.filter(pl.col("category").is_in((FORWARD, AUTOGRAD, LOOSE_WGRAD)))["stream"].unique()
    word = pl.col("word")
    table = (
        rows.filter(pl.col("category") == MESSAGE)
        .with_columns(word=pl.col("p2p").cast(pl.String).str.split(","))
        .explode("word")
        .select(
            "step",
            pl.col("id").alias("kernel"),
            word.str.contains(r"^send(:|$)").alias("send"),
            word.str.extract(r"^[^:]*:([0-9]{1,9})$").cast(pl.Int32).alias("peer"),
            pl.col("host_ns").alias("launch_ns"),
            "start_ns",
            "end_ns",
            pl.col("group").cast(pl.String),
            "stream",
            pl.col("stream").is_in(compute_streams.implode()).alias("inline"),
            "bytes",
        )
    )
    return conform(table.with_columns(made=_carried_ops(table, chunks)), MESSAGES)


def _carried_ops(messages: pl.DataFrame, chunks: pl.DataFrame) -> pl.Series:
    """Return F or B for each send, by the chunk whose output it carries; null for receives and where none is known."""
    ops: list[str | None] = [None] * messages.height
    work = chunks.filter(pl.col("op") != "W").sort("last_ns", maintain_order=True)
    sends = messages.with_row_index("row").filter("send")
    for (step,), step_sends in sends.group_by("step", maintain_order=True):
        step_work = work.filter(pl.col("step").eq_missing(pl.lit(step, pl.Int64)))
        op_of_chunk = ["B" if op == "I" else op for op in step_work["op"].to_list()]
        senders = find_senders(step_work, step_sends).tolist()
        for row, chunk in zip(step_sends["row"].to_list(), senders, strict=True):
            ops[row] = op_of_chunk[chunk] if chunk >= 0 else None
    return pl.Series(ops, dtype=pl.String)


def find_senders(work: pl.DataFrame, sends: pl.DataFrame) -> Ints:
    """Return for each send, in launch order, the row of the chunk whose output it carries; -1: none.

    A send carries the output of the chunk launched last before it. Of several sends with no chunk between them, the
    last carries the output of the last chunk, the one before it that of the chunk before, and so on.

    Args:
        work: Forwards and backwards in the order of ``last_ns``.
        sends: Messages that are sent.

    >>> work = pl.DataFrame({"last_ns": [10, 20]})
    >>> find_senders(work, pl.DataFrame({"launch_ns": [12, 25]})).tolist()
    [0, 1]
    >>> find_senders(work, pl.DataFrame({"launch_ns": [25, 25]})).tolist()
    [0, 1]

    """
    launch_ns = np.sort(sends["launch_ns"].to_numpy())
    chunks_before = np.searchsorted(work["last_ns"].to_numpy(), launch_ns, side="right")
    # Sends with the same number of chunks before them are one batch; count back from its end.
    _, first, batch, size = np.unique(chunks_before, return_index=True, return_inverse=True, return_counts=True)
    index_in_batch = np.arange(len(launch_ns)) - first[batch]
    senders: Ints = np.maximum(chunks_before - size[batch] + index_in_batch, -1)
    return senders
