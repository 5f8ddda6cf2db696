"""Remedies of collectives: messages too small for the link, reductions behind the backward, parameters gathered twice.

A message takes a latency and its bytes at the link's bandwidth; both follow from the shortest
durations of this run's messages by size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit.metrics.remedies.rows import REMEDIES, RankWork
from tracekit.metrics.remedies.speeds import Share

MIN_MESSAGES = 8
"""Messages of one kind in a step from which they could be fewer."""
LARGE_MESSAGE_BYTES = 25 << 20
"""Bytes of a large message: DDP's buckets."""
MIN_SIZES_APART = 4
"""Largest over smallest message from which latency and bandwidth can be told apart."""
MAX_LATENCY_NS = 200_000
"""Latency of a message, at most: what takes longer waits for another rank."""
MIN_LATE_SHARE = 0.8
"""Share of a step's reduced bytes that is launched behind the backward, from which reductions are late."""
HIDEABLE_BACKWARD = Share(0.6, 0.9, 1.0)
"""Share of the backward's time that can hide reductions: the first gradients come after its first layers."""
REDUCTIONS = "(?i)all_?reduce|reduce_?scatter"
GATHERS = "(?i)all_?gather"
BACKWARD_LABELS = ["dgrad", "wgrad", "backward"]


def message_remedies(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies ``large messages``, ``reduce in backward`` and ``gather once``."""
    of_data = rank.events.filter(
        (pl.col("label") == "dp_comm") & (pl.col("copied_bytes") > 0)
    ).drop_nulls("collective")
    if of_data.is_empty():
        return
    reductions = of_data.filter(pl.col("collective").str.contains(REDUCTIONS))
    for kind in reductions["collective"].unique().sort().to_list():
        yield from _large_messages(reductions.filter(pl.col("collective") == kind))
    yield from _reduce_in_backward(rank, reductions)
    yield _gather_once(of_data.filter(pl.col("collective").str.contains(GATHERS)))


def _large_messages(messages: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of many messages of one kind."""
    parts = messages["part"].n_unique()
    if messages.height < MIN_MESSAGES * parts:
        return
    # The shortest of each size waited least for other ranks.
    by_size = messages.group_by("copied_bytes").agg(pl.col("ns").min()).sort("copied_bytes")
    sizes = by_size["copied_bytes"].to_numpy().astype(np.float64)
    shortest_ns = by_size["ns"].to_numpy().astype(np.float64)
    if sizes[-1] < MIN_SIZES_APART * sizes[0] or sizes[0] >= LARGE_MESSAGE_BYTES:
        return
    is_large = sizes * 2 >= sizes[-1]
    bytes_per_ns = float((sizes[is_large] / shortest_ns[is_large]).max())
    latency_ns = np.clip(shortest_ns - sizes / bytes_per_ns, 0.0, MAX_LATENCY_NS)
    latency_of_size = dict(zip(by_size["copied_bytes"].to_list(), latency_ns.tolist(), strict=True))
    total_bytes = int(messages["copied_bytes"].sum()) / parts
    few = max(total_bytes / LARGE_MESSAGE_BYTES, 1.0)
    left_share = min(few / (messages.height / parts), 1.0)
    latency = pl.col("copied_bytes").replace_strict(latency_of_size, return_dtype=pl.Float64)
    saved_ns = latency * (1 - left_share)
    yield _shorter(messages, "large messages", saved_ns * 1.5, saved_ns, saved_ns * 0.5)


def _reduce_in_backward(rank: RankWork, reductions: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of reductions that are launched behind the backward of their step."""
    backward = (
        rank.events.filter(pl.col("label").is_in(BACKWARD_LABELS))
        .group_by("part")
        .agg(last_launch_ns=pl.col("launch_ns").max(), backward_ns=pl.col("ns").sum())
        .drop_nulls()
    )
    joined = reductions.join(backward, on="part", how="inner")
    is_late = pl.col("launch_ns") > pl.col("last_launch_ns")
    late_bytes = (pl.col("copied_bytes") * is_late).sum().over("part")
    all_bytes = pl.col("copied_bytes").sum().over("part")
    late = joined.filter(is_late & (late_bytes >= MIN_LATE_SHARE * all_bytes))
    if late.is_empty():
        return
    total_ns = pl.col("ns").sum().over("part")
    # The last gradient is reduced when the backward has ended, whatever is done.
    hideable_ns = total_ns - pl.col("ns").max().over("part")
    saved = []
    for share in HIDEABLE_BACKWARD[::-1]:
        hidden_ns = pl.min_horizontal(hideable_ns, pl.col("backward_ns") * share)
        saved.append(pl.col("ns") * hidden_ns / total_ns)
    yield _shorter(late, "reduce in backward", *saved)


def _gather_once(gathers: pl.DataFrame) -> pl.DataFrame:
    """Return the remedies of parameters that are gathered again for the backward."""
    in_forward = gathers.filter(~pl.col("is_backward")).select("part", "copied_bytes").unique()
    again = gathers.filter("is_backward").join(in_forward, on=["part", "copied_bytes"], how="semi")
    return again.select(
        "row",
        change=pl.lit("gather once"),
        what=pl.lit(None, pl.String()),
        low_ns=pl.lit(0),
        likely_ns=pl.lit(0),
        high_ns=pl.lit(0),
        host_share=pl.lit(0.0),
        waits=pl.lit(True),
    ).cast(REMEDIES)


def _shorter(
    events: pl.DataFrame, change: str, most_ns: pl.Expr, likely_ns: pl.Expr, least_ns: pl.Expr
) -> pl.DataFrame:
    """Return the remedies of events that take so much less: at most, likely and at least."""
    return events.select(
        "row",
        change=pl.lit(change),
        what=pl.lit(None, pl.String()),
        low_ns=(pl.col("ns") - most_ns).clip(lower_bound=0).round(),
        likely_ns=(pl.col("ns") - likely_ns).clip(lower_bound=0).round(),
        high_ns=(pl.col("ns") - least_ns).clip(lower_bound=0).round(),
        host_share=pl.lit(1.0),
        waits=pl.lit(True),
    ).cast(REMEDIES)
