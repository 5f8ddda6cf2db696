"""Copies: bytes, bandwidth, hidden share, and the stalls they cause."""

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
        "link_gb_s": pl.Float64(),  # of the link to the host, one way; null where unknown or not used
        "of_link": pl.Float64(),  # bandwidth / link; null above 1: the figure of the link is then wrong
        "hidden_ns": pl.Int64(),
        "hidden": pl.Float64(),  # hidden_ns / ns
        "stall_ns": pl.Int64(),  # exposed time as in the budget
        "stalls": pl.Int64(),  # number of separate stalls
    }
)

HOST_LINK_LABELS = ("offload", "onload")
"""Copies over the link between a GPU and its host."""


def copies(
    times: pl.DataFrame, stalls: Mapping[tuple[int, str], tuple[int, int]], *, link_gb_s: float | None = None
) -> pl.DataFrame:
    """Return one row per part and copy label (``COPIES``).

    Args:
        times: Table of ``metrics.overlap.label_times``.
        stalls: Stall time and number of stalls by part and label.
        link_gb_s: Bandwidth of the link to the host in one direction; None if unknown.

    >>> from tracekit.metrics.label_intervals import Lanes
    >>> from tracekit.metrics.overlap import label_times
    >>> events = pl.DataFrame({"label": ["forward", "offload"], "start_ns": [0, 50], "end_ns": [100, 150],
    ...                        "bytes": [None, 5000]})
    >>> times = label_times(events, Lanes.of(events))
    >>> table = copies(times, {(0, "offload"): (50, 1)}, link_gb_s=63)
    >>> table.select("bandwidth_gb_s", pl.col("of_link").round(2), "hidden", "stall_ns").rows()
    [(50.0, 0.79, 0.5, 50)]

    """
    table = times.filter(pl.col("label").is_in(COPY_LABELS))
    stall_of_row = [stalls.get(key, (0, 0)) for key in table.select("part", "label").iter_rows()]
    busy_ns = pl.when(pl.col("ns") > 0).then("ns")
    rate = pl.col("bytes") / busy_ns  # bytes per nanosecond are GB per second
    link = pl.when(pl.col("label").is_in(HOST_LINK_LABELS)).then(pl.lit(link_gb_s, pl.Float64))
    return conform(
        table.with_columns(
            bandwidth_gb_s=rate,
            link_gb_s=link,
            of_link=pl.when(rate <= link).then(rate / link),
            hidden=pl.col("hidden_ns") / busy_ns,
            stall_ns=pl.Series([ns for ns, _ in stall_of_row], dtype=pl.Int64),
            stalls=pl.Series([count for _, count in stall_of_row], dtype=pl.Int64),
        ),
        COPIES,
    )
