"""The critical path on the page: its pieces on the timeline, and its time in each cell of the schedule."""

from __future__ import annotations

import polars as pl

from tracekit.analysis import Analysis
from tracekit.compare import StepComparison
from tracekit.critical_path.path import SEGMENTS, CriticalPath
from tracekit.report.evidence import CAUSE_WORDS

HOST_COLOUR = "#8A97A3"
MAX_PIECES = 200_000
"""Pieces of the path that the page holds, the longest."""


def path_pieces(analysis: Analysis) -> pl.DataFrame:
    """Return the pieces of the path of all steps on the common clock, by start; none if no path was computed.

    Columns ``rank, start_ns, end_ns, kind, label, description``; the description tells what ran, the cause of exposed
    time, and where the path comes from and goes on.
    """
    if analysis.critical is None:
        return SEGMENTS.to_frame().select("rank", "start_ns", "end_ns", "kind", "label", description="what")
    # Pieces in order of time over all ranks: a neighbour on another rank is where the path comes from or goes on.
    pieces = analysis.critical.pieces.sort("step", "start_ns")
    rank_before, rank_after = (pl.col("rank").shift(by).over("step") for by in (1, -1))
    comes_from = pl.when(pl.col("rank") != rank_before).then(pl.format("\nthe path comes from rank {}", rank_before))
    goes_on = pl.when(pl.col("rank") != rank_after).then(pl.format("\nthe path goes on with rank {}", rank_after))
    cause = pl.col("cause").replace_strict(CAUSE_WORDS, default=None, return_dtype=pl.String)
    exposed = pl.when(pl.col("exposed_ns") > 0).then(pl.format("\nexposed because: {}", cause))
    until = pl.when(pl.col("kind") == "host").then(pl.lit("until ")).otherwise(pl.lit(""))
    what = pl.coalesce(pl.format("{}{}", until, "what"), "kind")
    notes = [note.fill_null("") for note in (exposed, comes_from, goes_on)]
    described = pieces.select("rank", "start_ns", "end_ns", "kind", "label", description=pl.concat_str(what, *notes))
    return described.top_k(MAX_PIECES, by=pl.col("end_ns") - pl.col("start_ns")).sort("start_ns")


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
