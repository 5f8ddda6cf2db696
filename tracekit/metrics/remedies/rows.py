"""The table of remedies, and the rank's work that they are found in."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import polars as pl

from tracekit.metrics.loops import LOOPS
from tracekit.metrics.remedies.speeds import Speeds
from tracekit.metrics.sites import SITES

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


HOST_OPERATORS = pl.Schema(
    {
        "name": pl.Categorical(),
        "tid": pl.Int64(),
        "step": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "shapes": pl.Categorical(),
        "concrete": pl.Categorical(),
        "sequence": pl.Int64(),
    }
)
"""Operators of one rank, those that launch nothing among them."""


class RankWork(msgspec.Struct, frozen=True, eq=False):
    """One rank's GPU events with their work, and the speeds of its GPU."""

    events: pl.DataFrame
    """``work.WORK`` beside ``ns``, start, end, launch, part, label, pass, stream, op_id, module, chain,
    node and bytes of a copy."""
    calls: pl.DataFrame
    """Calls of products, convolutions and attention: kind, op, dtype, flop, ns, whether PyTorch ``keeps_precision``
    of them, and the ``call`` that ``events`` have as well."""
    speeds: Speeds
    sites: pl.DataFrame = msgspec.field(default_factory=SITES.to_frame)
    """``sites.SITES``; events have the ``site`` of each."""
    loops: pl.DataFrame = msgspec.field(default_factory=LOOPS.to_frame)
    """``loops.LOOPS``; events have the ``loop`` that launched each, or whose backward it is; null: none."""
    operators: pl.DataFrame = msgspec.field(default_factory=HOST_OPERATORS.to_frame)
    """``HOST_OPERATORS`` of the rank, in the order of the file."""

    def operators_named(self, pattern: str) -> pl.DataFrame:
        """Return the operators whose names match, with their ``part``: that of the GPU events of their step."""
        names = self.operators["name"].unique()
        matching_names = names.filter(names.cast(pl.String).str.contains(pattern))
        matching = self.operators.filter(pl.col("name").is_in(matching_names.implode()))
        parts = self.events.select("step", "part").unique("step")
        return matching.join(parts, on="step", how="inner", nulls_equal=True, maintain_order="left")


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
