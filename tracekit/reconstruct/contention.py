"""What pipeline messages cost the compute beside them: the same kernel, alone and while a message ran."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.intervals import Intervals

CONTENTION = pl.Schema(
    {
        "op": pl.String(),  # F, I, W or B
        "size": pl.Int64(),  # kernels of its chunk
        "place": pl.Int64(),  # its number among them, in the order launched
        "alone": pl.Int64(),  # how often it ran with no message beside it
        "alone_ns": pl.Float64(),  # and its median time then
        "beside": pl.Int64(),  # how often it ran beside messages
        "took_ns": pl.Int64(),  # its time then, in all
        "beside_ns": pl.Int64(),  # of that, beside messages
    }
)
"""Kernels at the same place of chunks with as many kernels are the same kernel."""


def contention(used: pl.DataFrame, messages: Intervals) -> pl.DataFrame:
    """Return for every place in a chunk how long its kernel took alone and beside *messages*, on one rank.

    *used* are kernels of chunks: chunk, op, host_ns, start_ns, end_ns. A kernel's time runs to the start of the next
    one in its chunk, unless the host was late with that.

    >>> used = pl.DataFrame({"chunk": [0, 1, 2], "op": ["F"] * 3, "host_ns": [0, 1, 2], "start_ns": [0, 20, 40],
    ...     "end_ns": [10, 30, 55]})
    >>> from tracekit.intervals import union
    >>> import numpy as np
    >>> contention(used, union(np.array([40]), np.array([55]))).rows()
    [('F', 1, 0, 2, 10.0, 1, 15, 15)]
    """
    if used.is_empty():
        return pl.DataFrame(schema=CONTENTION)
    rows = used.sort("chunk", "host_ns", "start_ns").with_columns(
        size=pl.len().over("chunk"), place=pl.int_range(pl.len()).over("chunk")
    )
    following, launched = (pl.col(n).shift(-1).over("chunk") for n in ("start_ns", "host_ns"))
    prompt = (following > pl.col("end_ns")) & (launched < pl.col("end_ns"))
    rows = rows.with_columns(until=pl.when(prompt).then(following).otherwise("end_ns"))
    covered = messages.covered_ns(rows["start_ns"].to_numpy(), rows["until"].to_numpy())
    rows = rows.with_columns(took=pl.col("until") - pl.col("start_ns"), covered=pl.Series(covered))
    free = pl.col("covered") == 0
    by_place = rows.group_by("op", "size", "place").agg(
        alone=free.sum(),
        alone_ns=pl.col("took").filter(free).median(),
        beside=(~free).sum(),
        took_ns=pl.col("took").filter(~free).sum(),
        beside_ns=pl.col("covered").sum(),
    )
    return by_place.select(pl.col(name).cast(kind) for name, kind in CONTENTION.items()).sort("op", "size", "place")


def lost(ranks: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return by op: kernels that ran beside messages, for how long they did, and how much longer than alone they took.

    Alone is what the same kernel took with no message beside it on any rank, times how much slower than the others
    the rank was with all it ran alone.

    >>> one = {"op": ["F"], "size": [1], "place": [0], "alone": [2], "alone_ns": [10.0], "beside": [1]}
    >>> lost([pl.DataFrame({**one, "took_ns": [15], "beside_ns": [15]}, schema=CONTENTION)]).rows()
    [('F', 1, 15, 5)]
    """
    table = pl.concat(
        [pl.DataFrame(schema=CONTENTION).with_columns(rank=pl.lit(0))]
        + [rows.with_columns(rank=pl.lit(at)) for at, rows in enumerate(ranks)]
    )
    key = ["op", "size", "place"]
    usual = table.drop_nulls("alone_ns").group_by(key).agg(usual=pl.col("alone_ns").median())
    known = table.join(usual, on=key)
    alone = known.drop_nulls("alone_ns").group_by("op", "size", "rank")
    pace = alone.agg(pace=pl.col("alone_ns").sum() / pl.col("usual").sum())
    known = known.filter(pl.col("beside") > 0).join(pace, on=["op", "size", "rank"], how="left")
    known = known.with_columns(usual=pl.col("usual") * pl.col("pace").fill_null(1.0).fill_nan(1.0))
    return (
        known.group_by("op")
        .agg(
            kernels=pl.col("beside").sum(),
            beside_ns=pl.col("beside_ns").sum(),
            lost_ns=(pl.col("took_ns") - pl.col("usual") * pl.col("beside")).sum().round().cast(pl.Int64),
        )
        .sort("op")
    )
