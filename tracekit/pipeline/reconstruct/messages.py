"""Point-to-point messages of one rank: the chunk whose output each carries, and their cost to kernels beside them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.classify.messages import parse_messages
from tracekit.intervals import Intervals
from tracekit.pipeline.reconstruct.kernels import AUTOGRAD, FORWARD, LOOSE_WGRAD, MESSAGE
from tracekit.schema import conform

RANK_MESSAGES = pl.Schema(
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
    """Return the messages (``RANK_MESSAGES``) of a rank.

    Args:
        rows: GPU events of the rank, as ``prepare`` returns them.
        chunks: Forwards and backwards of the rank (``CHUNKS``).

    """
    computes = pl.col("category").is_in((FORWARD, AUTOGRAD, LOOSE_WGRAD))
    compute_streams = rows.select("category", "stream").filter(computes)["stream"].unique()
    kernels = rows.filter(pl.col("category") == MESSAGE)
    message = pl.col("messages").struct
    table = (
        kernels.with_columns(parse_messages(kernels["p2p"]))
        .explode("messages")
        .select(
            *("step", "start_ns", "end_ns", "group", "stream", "bytes"),
            kernel="id",
            send=message.field("send"),
            peer=message.field("peer"),
            launch_ns="host_ns",
            inline=pl.col("stream").is_in(compute_streams.implode()),
        )
    )
    return conform(table.with_columns(made=_carried_ops(table, chunks)), RANK_MESSAGES)


def _carried_ops(messages: pl.DataFrame, chunks: pl.DataFrame) -> pl.Series:
    """Return F or B for each send, by the chunk whose output it carries.

    Null for receives and where none is known.
    """
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


class SendBatch(NamedTuple):
    """Sends with no chunk launched between them."""

    sends: range
    """Their rows."""
    chunks: range
    """Rows of the chunks launched since the batch before."""


def batch_sends(work: pl.DataFrame, sends: pl.DataFrame) -> list[SendBatch]:
    """Return the batches of sends, each with the chunks whose output it may carry: the last one, or several.

    Args:
        work: Forwards and backwards in the order of ``last_ns``, which have an output to send.
        sends: Messages that are sent, in the order of ``launch_ns``.

    >>> batch_sends(pl.DataFrame({"last_ns": [10, 20, 30]}), pl.DataFrame({"launch_ns": [12, 35, 35]}))
    [SendBatch(sends=range(0, 1), chunks=range(0, 1)), SendBatch(sends=range(1, 3), chunks=range(1, 3))]
    """
    chunks_before = np.searchsorted(
        work["last_ns"].to_numpy(), sends["launch_ns"].to_numpy(), side="right"
    )
    count_of_batch, first_send = np.unique(chunks_before, return_index=True)
    rows_of_batches = pairwise([*first_send.tolist(), sends.height])
    chunks_of_batches = pairwise([0, *count_of_batch.tolist()])
    return [
        SendBatch(range(*rows), range(*chunks))
        for rows, chunks in zip(rows_of_batches, chunks_of_batches, strict=True)
    ]


def find_senders(work: pl.DataFrame, sends: pl.DataFrame) -> Ints:
    """Return for each send, in launch order, the row of the chunk whose output it carries.

    -1: none.

    A send carries the output of the chunk launched last before it. Of several sends with no chunk
    between them, the last carries the output of the last chunk, the one before it that of the chunk
    before, and so on.

    Args:
        work: Forwards and backwards in the order of ``last_ns``.
        sends: Messages that are sent.

    >>> work = pl.DataFrame({"last_ns": [10, 20]})
    >>> find_senders(work, pl.DataFrame({"launch_ns": [12, 25]})).tolist()
    [0, 1]
    >>> find_senders(work, pl.DataFrame({"launch_ns": [25, 25]})).tolist()
    [0, 1]

    """
    senders = np.full(sends.height, -1, np.int64)
    for batch in batch_sends(work, sends.sort("launch_ns")):
        senders[batch.sends] = batch.chunks.stop - len(batch.sends) + np.arange(len(batch.sends))
    return np.maximum(senders, -1)


CONTENTION = pl.Schema(
    {
        "op": pl.String(),  # F, I, W or B
        "size": pl.Int64(),  # kernels in its chunk
        "place": pl.Int64(),  # its index among them, in launch order
        "alone": pl.Int64(),  # times it ran with no message beside it
        "alone_ns": pl.Float64(),  # its median time then
        "beside": pl.Int64(),  # times it ran beside messages
        "took_ns": pl.Int64(),  # its time then, in all
        "beside_ns": pl.Int64(),  # of that, beside messages
    }
)
"""Kernels with the same index in chunks of the same op and the same number of kernels are the same
kernel."""

_KERNEL_KEY = ["op", "size", "place"]


def measure_contention(kernels: pl.DataFrame, messages: Intervals) -> pl.DataFrame:
    """Return for every kernel of a chunk how long it took alone and beside messages, on one rank (``CONTENTION``).

    A kernel's time runs to the start of the next one in its chunk, unless the host launched that
    one late.

    Args:
        kernels: Columns chunk, op, host_ns (launch), start_ns and end_ns.
        messages: Time in which messages ran.

    >>> from tracekit.intervals import union
    >>> kernels = pl.DataFrame({"chunk": [0, 1, 2], "op": ["F"] * 3, "host_ns": [0, 1, 2], "start_ns": [0, 20, 40],
    ...     "end_ns": [10, 30, 55]})
    >>> measure_contention(kernels, union([40], [55])).rows()
    [('F', 1, 0, 2, 10.0, 1, 15, 15)]

    """
    next_start = pl.col("start_ns").shift(-1).over("chunk")
    next_launch = pl.col("host_ns").shift(-1).over("chunk")
    is_next_prompt = (next_start > pl.col("end_ns")) & (next_launch < pl.col("end_ns"))
    table = kernels.sort("chunk", "host_ns", "start_ns", maintain_order=True).with_columns(
        size=pl.len().over("chunk"),
        place=pl.int_range(pl.len()).over("chunk"),
        until_ns=pl.when(is_next_prompt).then(next_start).otherwise("end_ns"),
    )
    covered_ns = messages.covered_ns(table["start_ns"].to_numpy(), table["until_ns"].to_numpy())
    table = table.with_columns(
        pl.Series("covered_ns", covered_ns), took_ns=pl.col("until_ns") - pl.col("start_ns")
    )
    is_alone = pl.col("covered_ns") == 0
    measured = table.group_by(_KERNEL_KEY).agg(
        alone=is_alone.sum(),
        alone_ns=pl.col("took_ns").filter(is_alone).median(),
        beside=(~is_alone).sum(),
        took_ns=pl.col("took_ns").filter(~is_alone).sum(),
        beside_ns=pl.col("covered_ns").sum(),
    )
    return conform(measured.sort(_KERNEL_KEY), CONTENTION)


def contention_losses(ranks: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return by op: kernels that ran beside messages, the time they did, and how much longer than alone they took.

    The time alone is the median over ranks of what the same kernel took with no message beside it,
    times how much slower than that the rank was with all kernels it ran alone. *ranks* holds the
    ``CONTENTION`` of each.

    >>> one = {"op": ["F"], "size": [1], "place": [0], "alone": [2], "alone_ns": [10.0], "beside": [1]}
    >>> contention_losses([pl.DataFrame({**one, "took_ns": [15], "beside_ns": [15]}, schema=CONTENTION)]).rows()
    [('F', 1, 15, 5)]
    """
    tables = [table.with_columns(rank=pl.lit(rank)) for rank, table in enumerate(ranks)]
    table = pl.concat([pl.DataFrame(schema=CONTENTION).with_columns(rank=pl.lit(0)), *tables])
    usual = (
        table.drop_nulls("alone_ns").group_by(_KERNEL_KEY).agg(usual_ns=pl.col("alone_ns").median())
    )
    table = table.join(usual, on=_KERNEL_KEY)
    slowdown = (
        table.drop_nulls("alone_ns")
        .group_by("op", "size", "rank")
        .agg(slowdown=pl.col("alone_ns").sum() / pl.col("usual_ns").sum())
    )
    beside = table.filter(pl.col("beside") > 0).join(
        slowdown, on=["op", "size", "rank"], how="left"
    )
    alone_ns = (
        pl.col("usual_ns") * pl.col("slowdown").fill_null(1.0).fill_nan(1.0) * pl.col("beside")
    )
    return (
        beside.group_by("op")
        .agg(
            kernels=pl.col("beside").sum(),
            beside_ns=pl.col("beside_ns").sum(),
            lost_ns=(pl.col("took_ns") - alone_ns).sum().round().cast(pl.Int64),
        )
        .sort("op")
    )
