"""Data of the page's schedule chart: each pipeline and step, measured above its ideal."""

import numpy as np
import polars as pl

from tracekit._util.text import format_ranges
from tracekit.analysis import Analysis
from tracekit.compare import StepComparison
from tracekit.critical_path.path import CriticalPath
from tracekit.documents.page import Coloured, PackedColumns, ScheduleChart, ScheduleChoice, ScheduleSection
from tracekit.intervals import union
from tracekit.report.html.packed_columns import pack_intervals
from tracekit.report.schedule.layout import ScheduleLayout, layout_pipeline
from tracekit.schema import GAP_CAUSES

MAX_CHOICES = 16
"""Pipelines and steps that a page holds."""
MAX_CELLS = 60_000
"""Cells of all choices together; the pipeline and step that the numbers describe is always there."""


def schedule_data(analysis: Analysis) -> ScheduleChart | None:
    """Return every pipeline and step that can be chosen, first the one that the numbers describe."""
    comparison = analysis.schedule
    if comparison is None:
        return None
    others = [step_comparison for step_comparison in comparison.all if step_comparison is not comparison.head]
    choices, cell_count = [comparison.head], len(comparison.head.cells)
    for step_comparison in others[: MAX_CHOICES - 1]:
        cell_count += len(step_comparison.cells)
        if cell_count <= MAX_CELLS:
            choices.append(step_comparison)
    name_ranks = len({step_comparison.pipeline.ranks for step_comparison in choices}) > 1
    return ScheduleChart(
        causes=list(GAP_CAUSES.values()),
        choices=[_choice(step_comparison, analysis.critical, name_ranks=name_ranks) for step_comparison in choices],
    )


def _choice(held: StepComparison, critical: CriticalPath | None, *, name_ranks: bool) -> ScheduleChoice:
    layouts = layout_pipeline(held, extra_columns=[*_waits(held), path_time_in_cells(critical, held)])
    measured, ideal = layouts["measured"], layouts["ideal"]
    end_ns = max(int(measured.end), int(ideal.end), 1)
    step = held.pipeline.step
    name = [*([] if step is None else [f"step {step}"])]
    name += [f"ranks {format_ranges(measured.ranks)}"] if name_ranks else []
    cells = measured.cells.select(pl.format("{} on rank {}", "name", "rank"))
    return ScheduleChoice(
        name=", ".join(name) or "the pipeline",
        kinds=[
            *(Coloured(colour.name, colour.colour) for colour in measured.colours),
            Coloured("outside cells", "idle"),
        ],
        shaded=measured.shade_count > 1,
        rows=measured.rows,
        ranks=measured.ranks,
        step=step,
        end_ns=end_ns,
        origin_ns=str(measured.origin_ns),
        cells=cells.to_series().to_list(),
        sections=[
            ScheduleSection("measured", _boxes(measured, end_ns)),
            ScheduleSection("ideal", _boxes(ideal, int(ideal.end))),
        ],
    )


def _waits(held: StepComparison) -> list[pl.Series]:
    """Return for each cell its largest cause of delay after its inputs were ready, how long, and its last input."""
    replays = held.replays
    causes = [cause for cause in GAP_CAUSES if cause in replays.before]
    # One row per cause, one column per cell: the delay in front of the cell.
    delays = np.stack([replays.before[cause] for cause in causes]) if causes else np.zeros((1, len(held.cells)), int)
    largest = delays.argmax(axis=0)
    delay = delays.max(axis=0)
    code = np.array([list(GAP_CAUSES).index(cause) for cause in causes] or [-1])[largest]
    # ``inputs`` holds, per cell, the indices of the cells it waits for, -1 for none: the appended 0 is read for those.
    inputs = replays.graph.waits
    input_end = np.where(inputs >= 0, np.append(replays.end, 0)[inputs], -1)
    last_input = np.take_along_axis(inputs, input_end.argmax(axis=1)[:, None], axis=1)[:, 0]
    return [
        pl.Series("cause", np.where(delay > 0, code, -1), dtype=pl.Int8),
        pl.Series("wait_ns", np.maximum(delay, 0), dtype=pl.Int64),
        pl.Series("after", np.where(input_end.max(axis=1) >= 0, last_input, -1), dtype=pl.Int32),
    ]


def _boxes(layout: ScheduleLayout, end_ns: int) -> PackedColumns:
    """Pack the boxes of a layout and, as one more kind, the time outside cells up to *end_ns*."""
    boxes = layout.boxes.with_columns(kind="colour_key", start_ns="start", end_ns="end")
    cells = layout.cells
    busy = union(cells["start"].to_numpy(), cells["end"].to_numpy(), cells["row"].to_numpy())
    rows = np.arange(len(layout.ranks))
    outside = (union(np.zeros_like(rows), np.full_like(rows, end_ns), rows) - busy).to_frame()
    outside = outside.rename({"group": "row"}).with_columns(kind=pl.lit(len(layout.colours)), part=pl.lit(0))
    boxes = pl.concat([boxes, outside], how="diagonal_relaxed").sort("start_ns", "part")
    nulls = {"part": 0, "stage": -1, "microbatch": -1, "cause": -1, "wait_ns": 0, "after": -1, "path_ns": 0}
    filled = (pl.col(name).fill_null(null) for name, null in nulls.items() if name in boxes.columns)
    columns = boxes.select("start_ns", "end_ns", *filled, "row", "kind")
    return pack_intervals(columns.with_columns(pl.col("^(wait|path)_ns$") // 1000))  # µs, which fit into 32 bits


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
