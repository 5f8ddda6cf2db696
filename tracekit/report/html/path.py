"""The critical path on the page: its pieces in a rank's lanes, and its time in each cell of the schedule."""

from __future__ import annotations

import polars as pl

from tracekit.analysis import Analysis
from tracekit.compare import StepComparison
from tracekit.critical_path.path import CriticalPath

PATH_LANE = "Critical path"
"""Name of the lane that shows the path on a rank."""
HOST_KIND = "host"
"""Name, in the lanes, of the path's time without work on the GPU."""
HOST_COLOUR = "#8A97A3"
NO_PIECES = pl.Schema({"start_ns": pl.Int64(), "end_ns": pl.Int64(), "label": pl.String(), "description": pl.String()})
MAX_PIECES = 20_000
"""Pieces of one rank's path that the page holds, the longest."""


def path_pieces(analysis: Analysis, rank: int, step: int | None) -> pl.DataFrame:
    """Return the pieces of the path on *rank* in *step*, on the rank's own clock; none if no path was computed.

    Column ``description`` tells what ran and where the path comes from and goes on.
    """
    if analysis.critical is None:
        return NO_PIECES.to_frame()
    # Pieces in order of time over all ranks: a neighbour on another rank is where the path comes from or goes on.
    pieces = analysis.critical.pieces.filter(pl.col("step").eq_missing(step)).sort("start_ns")
    rank_before, rank_after = pl.col("rank").shift(1), pl.col("rank").shift(-1)
    comes_from = pl.when(pl.col("rank") != rank_before).then(pl.format("\nthe path comes from rank {}", rank_before))
    goes_on = pl.when(pl.col("rank") != rank_after).then(pl.format("\nthe path goes on with rank {}", rank_after))
    until = pl.when(pl.col("kind") == "host").then(pl.lit("until ")).otherwise(pl.lit(""))
    what = pl.coalesce(pl.format("{}{}", until, "what"), "kind")
    description = pl.concat_str(what, comes_from.fill_null(""), goes_on.fill_null(""))
    own = pieces.with_columns(description=description).filter(rank=rank)
    times = [
        pl.Series(name, analysis.clocks.to_recorded(rank, own[name].to_numpy())) for name in ("start_ns", "end_ns")
    ]
    return own.with_columns(times).top_k(MAX_PIECES, by=pl.col("end_ns") - pl.col("start_ns")).sort("start_ns")


def path_time_in_cells(critical: CriticalPath | None, held: StepComparison) -> pl.Series:
    """Return the path's time (``path_ns``) in each of the pipeline's cells, 0 where it does not run through."""
    # The path names its cells by stage, op and micro-batch; a pair (FB) by those of its forward.
    name = pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch")
    cells = held.cells.select(pl.col("rank").cast(pl.Int64), name=name)
    if critical is None:
        return pl.Series("path_ns", [0] * len(cells), dtype=pl.Int64)
    on_path = (
        critical.segments.filter((pl.col("kind") == "cell") & pl.col("step").eq_missing(held.pipeline.step))
        .group_by(pl.col("rank").cast(pl.Int64), name="what")
        .agg(path_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    return cells.join(on_path, on=["rank", "name"], how="left", maintain_order="left")["path_ns"].fill_null(0)
