"""Why the GPU was idle: because the host had not launched the next work yet, or because that work was held back.

An idle gap ends when some GPU event starts. While that event had not been launched the gap is launch-bound; from its
launch on it is a dependency (an event or a stream waited for another, or the launch itself took time). Where the file
has no launch for the event the gap's cause is unknown. The three sum to the idle time.
"""

from __future__ import annotations

import polars as pl

from tracekit.metrics.lanes import Lanes
from tracekit.schema import conform

GAPS = pl.Schema(
    {
        "part": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "ns": pl.Int64(),
        "launch_bound_ns": pl.Int64(),
        "dependency_ns": pl.Int64(),
        "unknown_ns": pl.Int64(),
        "next_name": pl.String(),
        "next_label": pl.String(),
    }
)


def gaps(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """List the idle gaps inside each part with their causes, in order of time.

    >>> events = pl.DataFrame({"label": ["forward", "forward"], "name": ["a", "b"], "start_ns": [0, 10],
    ...                        "end_ns": [4, 12], "launch_ns": [0, 7]})
    >>> gaps(events, Lanes.of(events)).select("start_ns", "ns", "launch_bound_ns", "dependency_ns").rows()
    [(4, 6, 3, 3)]
    """
    holes = lanes.busy.gaps()
    found = pl.DataFrame({"part": holes.group, "start_ns": holes.start_ns, "end_ns": holes.end_ns})
    if found.is_empty():
        return pl.DataFrame(schema=GAPS)
    column = (pl.col(part).cast(pl.Int64) if part is not None else pl.lit(0, pl.Int64)).alias("part")
    real = pl.col("end_ns") > pl.col("start_ns")
    starts = labelled.filter(real).select(
        column, pl.col("start_ns").alias("end_ns"), "launch_ns", next_name="name", next_label="label"
    )
    # Of several events that end the gap together, the one launched first was the one it waited for.
    first = (
        starts.join(found.select("part", "end_ns"), on=["part", "end_ns"], how="semi")
        .sort("launch_ns", nulls_last=True)
        .unique(["part", "end_ns"], keep="first", maintain_order=True)
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    bound = (pl.col("launch_ns") - pl.col("start_ns")).clip(0, length)
    table = found.join(first, on=["part", "end_ns"], how="left", maintain_order="left").with_columns(
        ns=length,
        launch_bound_ns=bound.fill_null(0),
        dependency_ns=(length - bound).fill_null(0),
        unknown_ns=pl.when(pl.col("launch_ns").is_null()).then(length).otherwise(0),
    )
    return conform(table, GAPS)


def gap_causes(table: pl.DataFrame) -> pl.DataFrame:
    """Sum the causes of idleness by part.

    >>> gap_causes(pl.DataFrame({"part": [0, 0], "launch_bound_ns": [3, 1], "dependency_ns": [3, 0],
    ...                          "unknown_ns": [0, 2], "ns": [6, 3]})).rows()
    [(0, 4, 3, 2, 2)]
    """
    return (
        table.group_by("part")
        .agg(pl.col("launch_bound_ns", "dependency_ns", "unknown_ns").sum(), gaps=pl.len().cast(pl.Int64))
        .sort("part")
    )
