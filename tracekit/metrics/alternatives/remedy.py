"""The table of remedies: what a change would make of each GPU event of a rank."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

HOST_ALONE = "host"
"""What is changed where an event keeps its duration, and only the host does less before its launch."""
SLOWER_OPERATORS = "slower operators"
"""What is changed where a change makes events slower, and pays for that."""
REMEDY = pl.Struct(
    {
        "change": pl.String(),  # as it is asked for: "bf16", "fused attention", …
        "what": pl.String(),  # what is changed: "norm", "loss", "causal", …; null if the change has one case
        "low_ns": pl.Int64(),  # its new duration, at least
        "likely_ns": pl.Int64(),
        "high_ns": pl.Int64(),
        "host_share": pl.Float64(),  # what remains of the host's time before its launch; 0: its launch disappears
        "waits": pl.Boolean(),  # whether the host still waits for it
    }
)
"""A change of one GPU event."""
REMEDIES = pl.Schema({"row": pl.Int32(), **{field.name: field.dtype for field in REMEDY.fields}})
"""Changes of one rank's GPU events, by row of these."""


def without_rows(events: pl.DataFrame, rows: Collection[int]) -> pl.DataFrame:
    """Return the events or remedies of all rows but *rows*."""
    return events.filter(~pl.col("row").is_in(list(rows))) if rows else events


def without_events(events: pl.DataFrame, change: str, *, what: str | None = None) -> pl.DataFrame:
    """Return the remedies of events that are not needed: they and their launches disappear."""
    return events.select(
        "row",
        change=pl.lit(change),
        what=pl.lit(what, pl.String()),
        low_ns=pl.lit(0),
        likely_ns=pl.lit(0),
        high_ns=pl.lit(0),
        host_share=pl.lit(0.0),
        waits=pl.lit(True),
    ).cast(REMEDIES)


def new_durations(
    events: pl.DataFrame,
    change: str,
    *,
    what: str | None = None,
    keeps_first: bool = False,
    may_be_longer: bool = False,
) -> pl.DataFrame:
    """Return remedies of events that share one new duration.

    Args:
        events: Columns ``row``, ``ns``, ``group`` and the new durations ``low_ns``, ``likely_ns`` and
            ``high_ns`` of each group, which its events share by their present durations.
        change: Its text.
        what: What is changed.
        keeps_first: Whether only the first launch of each group remains; else all do.
        may_be_longer: Whether new durations may exceed the present ones; else these are the most.
    """
    if events.is_empty():
        return REMEDIES.to_frame()
    old_ns = pl.col("ns").sum().over("group").clip(lower_bound=1)
    share = pl.col("ns") / old_ns
    is_first = pl.col("row") == pl.col("row").min().over("group")
    host_share = pl.when(is_first).then(1.0).otherwise(0.0) if keeps_first else pl.lit(1.0)
    names = ("low_ns", "likely_ns", "high_ns")
    new_ns = [pl.col(name) if may_be_longer else pl.min_horizontal(name, old_ns) for name in names]
    new_ns = [(share * expression).round().cast(pl.Int64) for expression in new_ns]
    frame = events.with_columns(
        **dict(zip(names, new_ns, strict=True)),
        change=pl.lit(change),
        what=pl.lit(what, pl.String()),
        host_share=host_share,
        waits=pl.lit(True),
    )
    return frame.select(REMEDIES.names()).cast(REMEDIES)
