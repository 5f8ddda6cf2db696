"""Copies between device and host, and other copies: bytes, bandwidth, hidden share, and the stalls they cause."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracekit.schema import COPY_LABELS, conform

COPIES = pl.Schema(
    {
        "part": pl.Int64(),
        "label": pl.String(),
        "count": pl.Int64(),
        "bytes": pl.Int64(),
        "ns": pl.Int64(),
        "bandwidth_gb_s": pl.Float64(),  # bytes / union of the copies' time; null when the file gives no bytes
        "link_gb_s": pl.Float64(),  # of the link to the host, one way; null where not known or not used
        "of_link": pl.Float64(),  # bandwidth / link; null above it: then the link is not what it seems
        "hidden_ns": pl.Int64(),
        "hidden": pl.Float64(),  # of ns
        "stall_ns": pl.Int64(),  # the part that the budget charges to it: no compute, no earlier label
        "stalls": pl.Int64(),  # how many separate stalls
    }
)


LINKED = ("offload", "onload")
"""Copies that cross the link between a GPU and its host."""


def copies(
    times: pl.DataFrame, stalls: Mapping[tuple[int, str], tuple[int, int]], *, link_gb_s: float | None = None
) -> pl.DataFrame:
    """Return a row per copy label of a ``label_times`` table; *stalls* gives (ns, how many) by part and label.

    *link_gb_s* is what the link to the host carries in one direction.

    >>> from tracekit.metrics.lanes import Lanes
    >>> from tracekit.metrics.overlap import label_times
    >>> events = pl.DataFrame({"label": ["forward", "offload"], "start_ns": [0, 50], "end_ns": [100, 150],
    ...                        "bytes": [None, 5000]})
    >>> times = label_times(events, Lanes.of(events))
    >>> made = copies(times, {(0, "offload"): (50, 1)}, link_gb_s=63)
    >>> made.select("bandwidth_gb_s", pl.col("of_link").round(2), "hidden", "stall_ns").rows()
    [(50.0, 0.79, 0.5, 50)]
    """
    table = times.filter(pl.col("label").is_in(COPY_LABELS))
    keys = list(table.select("part", "label").iter_rows())
    ns = [stalls.get(key, (0, 0))[0] for key in keys]
    count = [stalls.get(key, (0, 0))[1] for key in keys]
    busy = pl.when(pl.col("ns") > 0).then(pl.col("ns"))
    rate = pl.col("bytes") / busy  # bytes a nanosecond are GB a second
    link = pl.when(pl.col("label").is_in(LINKED)).then(pl.lit(link_gb_s, pl.Float64))
    return conform(
        table.with_columns(
            bandwidth_gb_s=rate,
            link_gb_s=link,
            of_link=pl.when(rate <= link).then(rate / link),
            hidden=pl.col("hidden_ns") / busy,
            stall_ns=pl.Series(ns, dtype=pl.Int64),
            stalls=pl.Series(count, dtype=pl.Int64),
        ),
        COPIES,
    )
