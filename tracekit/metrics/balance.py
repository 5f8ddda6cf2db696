"""How evenly experts are loaded: what each rank receives in a dispatch, against the mean of its group."""

from __future__ import annotations

import polars as pl

from tracekit.schema import conform

BALANCE = pl.Schema(
    {
        "rank": pl.Int32(),
        "group": pl.String(),
        "exchanges": pl.Int64(),  # matched dispatches of the forward
        "received": pl.Int64(),  # bytes, over all of them
        "over_mean": pl.Float64(),  # received / mean of the group
        "largest": pl.Int64(),  # exchanges in which this rank received most
        "wait_ns": pl.Int64(),  # what it waited in those exchanges for the others
    }
)


def expert_balance(operations: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return ``BALANCE``: per rank, what its experts were sent; empty without recorded sizes of what was received.

    *operations* are the ranks' operations as they were matched, *members* the matching's rows.
    """
    received = operations.with_row_index("row").select(pl.col("row").cast(pl.Int64), "received", "pass")
    rows = members.filter(pl.col("label") == "ep_dispatch").join(received, on="row", how="left")
    rows = rows.filter((pl.col("pass") == "forward") & pl.col("received").is_not_null().all().over("match"))
    if rows.is_empty():
        return BALANCE.to_frame()
    rows = rows.with_columns(
        mean=pl.col("received").mean().over("match"),
        most=(pl.col("received") == pl.col("received").max().over("match"))
        & (pl.col("received").n_unique().over("match") > 1),
    )
    table = rows.group_by("rank", "group").agg(
        pl.col("received").sum(),
        pl.col("wait_ns").sum(),
        exchanges=pl.len(),
        over_mean=pl.col("received").sum() / pl.col("mean").sum(),
        largest=pl.col("most").sum(),
    )
    return conform(table.sort("over_mean", "rank", descending=[True, False]), BALANCE)
