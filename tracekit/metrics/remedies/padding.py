"""Remedies of products whose sizes are odd."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.metrics.alternatives.remedy import new_durations
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import MIN_KERNEL_NS

MAX_PADDED_SHARE = 0.8
"""Time of a padded product over the present one, above which odd sizes are not what makes it slow."""


def padding_remedies(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies ``pad sizes``."""
    odd = rank.calls.drop_nulls(["padding", "flop"])
    for dtype in odd["dtype"].unique().sort().to_list():
        peak = rank.speeds.peaks.get(dtype)
        if peak is None:
            continue
        reached: Share = rank.speeds.product_share(dtype)
        at_peak_ns = pl.col("flop") * pl.col("padding") / peak
        priced = odd.filter(pl.col("dtype") == dtype).select(
            "call",
            low_ns=pl.max_horizontal(at_peak_ns / reached.high, MIN_KERNEL_NS),
            likely_ns=pl.max_horizontal(at_peak_ns / reached.likely, MIN_KERNEL_NS),
            high_ns=pl.max_horizontal(at_peak_ns / reached.low, MIN_KERNEL_NS),
            call_ns="ns",
        )
        slow = priced.filter(pl.col("likely_ns") < MAX_PADDED_SHARE * pl.col("call_ns"))
        events = rank.events.select("row", "ns", "call").join(slow, on="call", how="inner")
        yield new_durations(events.with_columns(group="call"), "pad sizes")
