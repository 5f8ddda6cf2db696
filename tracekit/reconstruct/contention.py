"""Contention: the cost of pipeline messages to the kernels that run at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.intervals import Intervals
from tracekit.schema import conform

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
"""Kernels with the same index in chunks of the same op and the same number of kernels are the same kernel."""

_KERNEL = ["op", "size", "place"]


def measure_contention(kernels: pl.DataFrame, messages: Intervals) -> pl.DataFrame:
    """Return for every kernel of a chunk how long it took alone and beside messages, on one rank (``CONTENTION``).

    A kernel's time runs to the start of the next one in its chunk, unless the host launched that one late.

    Args:
        kernels: Columns chunk, op, host_ns (launch), start_ns and end_ns.
        messages: Time in which messages ran.

    >>> from tracekit.intervals import union
    >>> kernels = pl.DataFrame({"chunk": [0, 1, 2], "op": ["F"] * 3, "host_ns": [0, 1, 2], "start_ns": [0, 20, 40],
    ...     "end_ns": [10, 30, 55]})
    >>> measure_contention(kernels, union([40], [55])).rows()
    [('F', 1, 0, 2, 10.0, 1, 15, 15)]

    """
    next_start, next_launch = (pl.col(name).shift(-1).over("chunk") for name in ("start_ns", "host_ns"))
    is_next_prompt = (next_start > pl.col("end_ns")) & (next_launch < pl.col("end_ns"))
    table = kernels.sort("chunk", "host_ns", "start_ns", maintain_order=True).with_columns(
        size=pl.len().over("chunk"),
        place=pl.int_range(pl.len()).over("chunk"),
        until_ns=pl.when(is_next_prompt).then(next_start).otherwise("end_ns"),
    )
    covered_ns = messages.covered_ns(table["start_ns"].to_numpy(), table["until_ns"].to_numpy())
    table = table.with_columns(pl.Series("covered_ns", covered_ns), took_ns=pl.col("until_ns") - pl.col("start_ns"))
    is_alone = pl.col("covered_ns") == 0
    measured = table.group_by(_KERNEL).agg(
        alone=is_alone.sum(),
        alone_ns=pl.col("took_ns").filter(is_alone).median(),
        beside=(~is_alone).sum(),
        took_ns=pl.col("took_ns").filter(~is_alone).sum(),
        beside_ns=pl.col("covered_ns").sum(),
    )
    return conform(measured.sort(_KERNEL), CONTENTION)


def contention_losses(ranks: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return by op: kernels that ran beside messages, the time they did, and how much longer than alone they took.

    The time alone is the median over ranks of what the same kernel took with no message beside it, times how much
    slower than that the rank was with all kernels it ran alone. *ranks* holds the ``CONTENTION`` of each.

    >>> one = {"op": ["F"], "size": [1], "place": [0], "alone": [2], "alone_ns": [10.0], "beside": [1]}
    >>> contention_losses([pl.DataFrame({**one, "took_ns": [15], "beside_ns": [15]}, schema=CONTENTION)]).rows()
    [('F', 1, 15, 5)]
    """
    tables = [table.with_columns(rank=pl.lit(rank)) for rank, table in enumerate(ranks)]
    table = pl.concat([pl.DataFrame(schema=CONTENTION).with_columns(rank=pl.lit(0)), *tables])
    usual = table.drop_nulls("alone_ns").group_by(_KERNEL).agg(usual_ns=pl.col("alone_ns").median())
    table = table.join(usual, on=_KERNEL)
    slowdown = (
        table.drop_nulls("alone_ns")
        .group_by("op", "size", "rank")
        .agg(slowdown=pl.col("alone_ns").sum() / pl.col("usual_ns").sum())
    )
    beside = table.filter(pl.col("beside") > 0).join(slowdown, on=["op", "size", "rank"], how="left")
    alone_ns = pl.col("usual_ns") * pl.col("slowdown").fill_null(1.0).fill_nan(1.0) * pl.col("beside")
    return (
        beside.group_by("op")
        .agg(
            kernels=pl.col("beside").sum(),
            beside_ns=pl.col("beside_ns").sum(),
            lost_ns=(pl.col("took_ns") - alone_ns).sum().round().cast(pl.Int64),
        )
        .sort("op")
    )
