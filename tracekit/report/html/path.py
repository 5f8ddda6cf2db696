"""Where the critical path runs: pieces for a rank's lanes, and its time in each cell of the schedule."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analysis import Analysis
from tracekit.compare import StepComparison
from tracekit.critical_path.path import CriticalPath
from tracekit.report.view.path import PathView

ROW = "Critical path"
"""The lane that shows what the step had to wait for on a rank."""
HOST = "host"
"""What the path's time without work on the GPU is called in the lanes."""
HOST_COLOUR = "#8A97A3"
MOST_PIECES = 20_000
"""Pieces of one rank's path that the page holds, the longest."""


def pieces_of(analysis: Analysis, rank: int, step: int | None) -> pl.DataFrame | None:
    """Return the pieces of the path on *rank*, on its own clock, each with what it is in words (``said``)."""
    if analysis.critical is None:
        return None
    whole = analysis.critical.pieces.filter(pl.col("step").eq_missing(step)).sort("start_ns")
    other = pl.col("rank").ne(pl.col("rank").shift(1)), pl.col("rank").ne(pl.col("rank").shift(-1))
    came = pl.when(other[0]).then(pl.format("\nthe path comes from rank {}", pl.col("rank").shift(1)))
    goes = pl.when(other[1]).then(pl.format("\nthe path goes on with rank {}", pl.col("rank").shift(-1)))
    until = pl.when(pl.col("kind") == "host").then(pl.lit("until ")).otherwise(pl.lit(""))
    what = pl.when(pl.col("what").is_not_null()).then(pl.format("{}{}", until, "what")).otherwise("kind")
    mine = whole.with_columns(said=pl.concat_str(what, came.fill_null(""), goes.fill_null(""))).filter(rank=rank)
    times = [
        pl.Series(name, analysis.clocks.to_recorded(rank, mine[name].to_numpy())) for name in ("start_ns", "end_ns")
    ]
    return mine.with_columns(times).top_k(MOST_PIECES, by=pl.col("end_ns") - pl.col("start_ns")).sort("start_ns")


def moments(analysis: Analysis, path: PathView | None) -> list[tuple[float, float] | None]:
    """Return when each listed segment ran on its rank's lanes, in ms from the step's start there; None off them."""
    if path is None or analysis.critical is None:
        return []
    steps = analysis.tables["steps"].filter(pl.col("step").eq_missing(path.step))
    begin = dict(steps.select("rank", "start_ns").iter_rows())
    first = int(analysis.critical.segments.filter(pl.col("step").eq_missing(path.step))["start_ns"].to_numpy().min())
    found: list[tuple[float, float] | None] = []
    for row in path.rows:
        edges = np.array([first + row.from_ns, first + row.from_ns + row.ns])
        at = analysis.clocks.to_recorded(row.rank, edges) - begin.get(row.rank, 0)
        found.append((float(at[0] / 1e6), float(at[1] / 1e6)) if row.rank in begin and at[1] > 0 else None)
    return found


def time_in_cells(critical: CriticalPath | None, held: StepComparison) -> pl.Series:
    """Return the path's time in each of the pipeline's cells; 0 where it does not run through it."""
    if critical is None:
        return pl.Series("path_ns", [0] * len(held.cells), dtype=pl.Int64)
    on_path = (
        critical.segments.filter((pl.col("kind") == "cell") & pl.col("step").eq_missing(held.pipeline.step))
        .group_by(pl.col("rank").cast(pl.Int64), name="what")
        .agg(path_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    name = pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch")
    cells = held.cells.select(pl.col("rank").cast(pl.Int64), name=name)
    return cells.join(on_path, on=["rank", "name"], how="left", maintain_order="left")["path_ns"].fill_null(0)
