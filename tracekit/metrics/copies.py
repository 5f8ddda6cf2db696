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
        "hidden_ns": pl.Int64(),
        "hidden": pl.Float64(),  # of ns
        "stall_ns": pl.Int64(),  # the part that the budget charges to it: no compute, no earlier label
        "stalls": pl.Int64(),  # how many separate stalls
    }
)


def copies(times: pl.DataFrame, stalls: Mapping[tuple[int, str], tuple[int, int]]) -> pl.DataFrame:
    """Return a row per copy label of a ``label_times`` table; *stalls* gives (ns, how many) by part and label.

    >>> from tracekit.metrics.lanes import Lanes
    >>> from tracekit.metrics.overlap import label_times
    >>> events = pl.DataFrame({"label": ["forward", "offload"], "start_ns": [0, 50], "end_ns": [100, 150],
    ...                        "bytes": [None, 5000]})
    >>> times = label_times(events, Lanes.of(events))
    >>> copies(times, {(0, "offload"): (50, 1)}).select("bandwidth_gb_s", "hidden", "stall_ns").rows()
    [(50.0, 0.5, 50)]
    """
    table = times.filter(pl.col("label").is_in(COPY_LABELS))
    keys = list(table.select("part", "label").iter_rows())
    ns = [stalls.get(key, (0, 0))[0] for key in keys]
    count = [stalls.get(key, (0, 0))[1] for key in keys]
    busy = pl.when(pl.col("ns") > 0).then(pl.col("ns"))
    return conform(
        table.with_columns(
            bandwidth_gb_s=pl.col("bytes") / busy,  # bytes a nanosecond are GB a second
            hidden=pl.col("hidden_ns") / busy,
            stall_ns=pl.Series(ns, dtype=pl.Int64),
            stalls=pl.Series(count, dtype=pl.Int64),
        ),
        COPIES,
    )
