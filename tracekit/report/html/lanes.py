"""Data of the page's lanes chart: computation, communication, copies and memory of some ranks, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis import Analysis
from tracekit.report.html.packed_boxes import BOX_COLUMNS, pack_boxes
from tracekit.report.html.path import HOST_COLOUR, HOST_KIND, PATH_LANE, path_pieces
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.schedule.layout import WHOLE
from tracekit.report.view.lanes import labels_of, lanes_for
from tracekit.report.view.ranks import stragglers

MAX_RANKS = 16
"""Ranks whose lanes the page holds."""
MAX_STRAGGLERS = 3
"""Ranks that others wait for whose lanes the page holds in any case."""
MAX_STEPS = 16
"""Steps whose lanes the page holds."""
MAX_BOXES = 300_000
"""Boxes of all steps together; the first step is always there."""

MemoryPoint = tuple[float, float, float | None]
"""Milliseconds from the step's start, GB allocated, GB reserved; valid until the next point."""
Lanes = Mapping[str, Mapping[str, int]]
"""Lane → label → part of the lane in which the label is drawn."""


def lanes_data(analysis: Analysis) -> dict[str, Any] | None:
    """Return the lanes of some ranks by step, first the step that the schedule shows; None without GPU events."""
    timeline = analysis.tables["timeline"]
    if timeline.is_empty():
        return None
    labels = labels_of(timeline)
    lanes = lanes_for(labels)
    has_path = analysis.critical is not None and len(analysis.critical.pieces) > 0
    kinds: list[dict[str, Any]] = [
        {"name": label, "colour": LABEL_COLOURS[label], "row": row, "part": part}
        for label in labels
        for row, part in [_lane_of_label(lanes)[label]]
    ]
    return {
        "kinds": [*kinds, *([{"name": HOST_KIND, "colour": HOST_COLOUR}] if has_path else [])],
        "rows": [*lanes, *([PATH_LANE] if has_path else [])],
        "steps": _steps(analysis, lanes, labels),
        "memory_top": _memory_top_gb(analysis),
    }


def _lane_of_label(lanes: Lanes) -> dict[str, tuple[int, int]]:
    """Return row and part in which each label is drawn."""
    return {label: (row, part) for row, parts in enumerate(lanes.values()) for label, part in parts.items()}


def _steps(analysis: Analysis, lanes: Lanes, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps that fit into the page, each with the lanes of its ranks."""
    scheduled = analysis.schedule.head.pipeline.step if analysis.schedule is not None else None
    steps = analysis.tables["steps"]["step"].unique().sort().to_list()
    steps.sort(key=lambda step: (step != scheduled, step is None, step or 0))
    shown: list[dict[str, Any]] = []
    box_count = 0
    for step in steps[:MAX_STEPS]:
        ranks = {str(rank): _rank_lanes(analysis, rank, step, lanes, labels) for rank in _shown_ranks(analysis)}
        ranks = {rank: rank_lanes for rank, rank_lanes in ranks.items() if rank_lanes is not None}
        box_count += sum(rank_lanes["boxes"]["count"] for rank_lanes in ranks.values() if rank_lanes)
        if ranks and (not shown or box_count <= MAX_BOXES):
            shown.append({"step": step, "ranks": ranks})
    return [*shown[:1], *sorted(shown[1:], key=lambda entry: entry["step"] or 0)]


def _rank_lanes(
    analysis: Analysis, rank: int, step: int | None, lanes: Lanes, labels: Sequence[str]
) -> dict[str, Any] | None:
    """Return one rank's lanes in one step; None if nothing ran on its GPU."""
    of_step = (pl.col("rank") == rank) & pl.col("step").eq_missing(step)
    window = analysis.tables["steps"].filter(of_step)
    if window.is_empty():
        return None
    begin_ns, end_ns = window["start_ns"][0], window["end_ns"][0]
    in_window = (pl.col("end_ns") > begin_ns) & (pl.col("start_ns") < end_ns)
    events = analysis.tables["timeline"].filter((pl.col("rank") == rank) & in_window)
    if events.is_empty():
        return None
    lane_of_label = _lane_of_label(lanes)
    kind_of_label = {label: kind for kind, label in enumerate(labels)}
    label = pl.col("label").cast(pl.String)
    times = [pl.col("start_ns").clip(begin_ns) - begin_ns, pl.col("end_ns").clip(None, end_ns) - begin_ns]
    label_boxes = events.select(
        *times,
        row=label.replace_strict({name: row for name, (row, _) in lane_of_label.items()}),
        part=label.replace_strict({name: part for name, (_, part) in lane_of_label.items()}),
        kind=label.replace_strict(kind_of_label),
        stage=pl.col("pass").to_physical().cast(pl.Int64),  # the page reads the pass from this column
        microbatch=pl.lit(None, pl.Int64),
    )
    # The lane of the critical path, below the others; the page reads the index of a box's description from microbatch.
    pieces = path_pieces(analysis, rank, step).filter(in_window)
    path_kind = pl.col("label").replace_strict(kind_of_label, default=len(labels), return_dtype=pl.Int64)
    path_boxes = pieces.select(
        *times, row=pl.lit(len(lanes)), part=pl.lit(WHOLE), kind=path_kind, stage=pl.lit(None, pl.Int64)
    ).with_row_index("microbatch")
    boxes = pl.concat([label_boxes.select(*BOX_COLUMNS), path_boxes.select(*BOX_COLUMNS)], how="vertical_relaxed")
    memory = _memory_points(analysis, rank, begin_ns, end_ns)
    return {
        "end_ns": end_ns - begin_ns,
        "phases": _phases(analysis, of_step),
        "boxes": pack_boxes(boxes),
        "path": pieces["description"].to_list(),
        "cells_at_ns": _pipeline_start(analysis, rank, begin_ns, step),
        **({"memory": memory} if memory else {}),
    }


def _pipeline_start(analysis: Analysis, rank: int, begin_ns: int, step: int | None) -> int | None:
    """Return when the rank's pipeline has its time 0, in ns from the start of the rank's lanes; None without one."""
    comparisons = analysis.schedule.all if analysis.schedule is not None else ()
    for held in comparisons:
        if rank in held.pipeline.ranks and held.pipeline.step in (None, step):
            if held.cells.filter(rank=rank).is_empty():
                return None
            first_start = held.cells["start_ns"].to_numpy().min(keepdims=True)  # on the common clock
            return int(held.pipeline.clocks.to_recorded(rank, first_start)[0]) - begin_ns
    return None


def _phases(analysis: Analysis, of_step: pl.Expr) -> list[dict[str, Any]]:
    """Return the pipeline's phases on a rank in a step; none in a run without a pipeline."""
    if not analysis.total.pipeline:
        return []
    end_ns = pl.col("span_ns").cum_sum()
    phases = analysis.tables["phases"].filter(of_step)
    return phases.select(pl.col("phase").alias("name"), start_ns=end_ns - pl.col("span_ns"), end_ns=end_ns).to_dicts()


def _shown_ranks(analysis: Analysis) -> list[int]:
    """Return the ranks to show: first, last, those of the pipeline, stragglers, then those of unusual bubbles."""
    ranks = [measured.rank for measured in analysis.rank_results]
    if len(ranks) <= MAX_RANKS:
        return ranks
    bubbles = np.array([measured.whole.bubble_fraction or 0.0 for measured in analysis.rank_results])
    unusual = [ranks[i] for i in np.argsort(-np.abs(bubbles - np.median(bubbles)), kind="stable")]
    in_pipeline = analysis.schedule.head.pipeline.ranks if analysis.schedule is not None else ()
    late = [straggler.rank for straggler in stragglers(analysis)[:MAX_STRAGGLERS]]
    wanted = dict.fromkeys([ranks[0], ranks[-1], *in_pipeline, *late, *unusual])
    return sorted([rank for rank in wanted if rank in set(ranks)][:MAX_RANKS])


def _memory_top_gb(analysis: Analysis) -> float | None:
    """Return the most that any rank allocated or reserved: the top of every memory chart; None if not recorded."""
    if analysis.memory is None:
        return None
    records = [memory.measured for memory in analysis.memory.ranks]
    return max(max(record.reserved_bytes or 0, record.peak_bytes) for record in records) / 1e9


def _memory_points(analysis: Analysis, rank: int, begin_ns: int, end_ns: int) -> list[MemoryPoint]:
    """Return a rank's memory between two times; empty if it was not recorded."""
    records = () if analysis.memory is None else analysis.memory.ranks
    for memory in records:
        if memory.rank == rank:
            return memory_points_between(memory.measured.line, begin_ns, end_ns)
    return []


def memory_points_between(line: pl.DataFrame, begin_ns: int, end_ns: int) -> list[MemoryPoint]:
    """Return the points of a memory record between two times, the first of them what was allocated at the begin.

    >>> line = pl.DataFrame({"at_ns": [0, 5_000_000, 9_000_000], "allocated": [10**9, 2 * 10**9, 10**9],
    ...                      "reserved": [None, 3 * 10**9, 3 * 10**9]}, schema_overrides={"reserved": pl.Int64})
    >>> memory_points_between(line, 4_000_000, 8_000_000)
    [(0.0, 1.0, None), (1.0, 2.0, 3.0)]
    """
    points = line.filter(pl.col("allocated").is_not_null() & (pl.col("at_ns") <= end_ns))
    before = points.filter(pl.col("at_ns") <= begin_ns).tail(1)
    points = pl.concat([before, points.filter(pl.col("at_ns") > begin_ns)])
    time_ms = ((pl.col("at_ns").clip(begin_ns) - begin_ns) / 1e6).round(4)
    return points.select(time_ms, *((pl.col(name) / 1e9).round(5) for name in ("allocated", "reserved"))).rows()
