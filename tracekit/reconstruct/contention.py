"""What pipeline messages cost the compute beside them: the same kernel, alone and while a message ran."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Ints, group_rows
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


def contention(chunk: Ints, op: Sequence[str], times: tuple[Ints, Ints, Ints], messages: Intervals) -> pl.DataFrame:
    """Return for every place in a chunk how long its kernel took alone and beside *messages*, on one rank.

    Of kernels of chunks: the number of its *chunk*, and its *times*: when it was launched, started and ended; *op* is
    of each chunk. A kernel's time runs to the start of the next one in its chunk, unless the host was late with that.

    >>> from tracekit.intervals import union
    >>> start, end = np.array([0, 20, 40]), np.array([10, 30, 55])
    >>> contention(np.arange(3), ["F"] * 3, (np.arange(3), start, end), union([40], [55])).rows()
    [('F', 1, 0, 2, 10.0, 1, 15, 15)]
    """
    if not len(chunk):
        return pl.DataFrame(schema=CONTENTION)
    host, start, end = times
    order = np.lexsort((start, host, chunk))
    chunk, host, start, end = chunk[order], host[order], start[order], end[order]
    size = np.bincount(chunk)[chunk]
    place = np.arange(len(chunk)) - np.searchsorted(chunk, chunk)
    prompt = (chunk[1:] == chunk[:-1]) & (start[1:] > end[:-1]) & (host[1:] < end[:-1])
    until = end.copy()
    until[:-1][prompt] = start[1:][prompt]
    covered, took = messages.covered_ns(start, until), until - start
    ops = sorted(set(op))
    of = np.array([ops.index(name) for name in op], np.int64)[chunk]
    kind, first = group_rows(of, size, place)
    ranked = np.lexsort((place[first], size[first], of[first]))
    kind, first = np.argsort(ranked)[kind], first[ranked]
    free = covered == 0
    alone, median = _medians(kind[free], took[free], len(first))
    beside_ns, took_ns = (
        np.bincount(kind, weights, len(first)).astype(np.int64) for weights in (covered, took * ~free)
    )
    return pl.DataFrame(
        {
            "op": pl.Series([ops[at] for at in of[first].tolist()], dtype=pl.String),
            "size": size[first],
            "place": place[first],
            "alone": alone,
            "alone_ns": pl.Series(median, nan_to_null=True),
            "beside": np.bincount(kind, minlength=len(first)) - alone,
            "took_ns": took_ns,
            "beside_ns": beside_ns,
        },
        schema=CONTENTION,
    )


def _medians(kind: Ints, values: Ints, kinds: int) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return how many values each kind has, and their median; not a number where it has none."""
    count = np.bincount(kind, minlength=kinds)
    ordered = values[np.lexsort((values, kind))]
    low = np.cumsum(count) - count + (count - 1) // 2
    known = np.flatnonzero(count)
    median = np.full(kinds, np.nan)
    median[known] = (ordered[low[known]] + ordered[(low + (count - 1) % 2)[known]]) / 2
    return count, median


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
