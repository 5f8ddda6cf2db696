"""What the page's lanes draw: computation, communication and copies of some ranks, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis import Analysis
from tracekit.report.html.memory import memory_points, memory_top
from tracekit.report.html.pack import BOXES, pack
from tracekit.report.html.path import HOST, HOST_COLOUR, ROW, pieces_of
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.view.lanes import labels_of, lanes_for
from tracekit.report.view.ranks import stragglers

MOST_LANE_RANKS = 16
"""Ranks whose lanes the page holds: the first, the last, those the page tells about, and those that differ most."""
MOST_LATE = 3
"""Of them, ranks that others wait for."""
MOST_LANE_STEPS = 16
"""Steps whose lanes it holds …"""
MOST_LANE_BOXES = 300_000
"""… and boxes of all of them; the first step is always there."""


def lanes_data(analysis: Analysis) -> dict[str, Any] | None:
    """Some ranks' lanes by step, the one the schedule is of first: computation, communication, copies."""
    table = analysis.tables["timeline"]
    if table.is_empty():
        return None
    present = labels_of(table)
    lanes = lanes_for(present)
    path = analysis.critical is not None and len(analysis.critical.pieces) > 0
    return {
        "kinds": [*_kinds(lanes, present), *([{"name": HOST, "colour": HOST_COLOUR}] if path else [])],
        "rows": [*lanes, *([ROW] if path else [])],
        "steps": _steps(analysis, lanes, present),
        "memory_top": memory_top(analysis),
    }


def _steps(analysis: Analysis, lanes: Mapping[str, Mapping[str, int]], present: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps that fit, each with its ranks' lanes."""
    wanted = analysis.schedule.head.pipeline.step if analysis.schedule is not None else None
    every = analysis.tables["steps"]["step"].unique().sort().to_list()
    order = sorted(every, key=lambda step: (step != wanted, step is None, step or 0))[:MOST_LANE_STEPS]
    made: list[dict[str, Any]] = []
    boxes = 0
    for step in order:
        ranks = {str(rank): _rank_lanes(analysis, rank, step, lanes, present) for rank in _shown_ranks(analysis)}
        held = {rank: found for rank, found in ranks.items() if found is not None}
        boxes += sum(found["boxes"]["count"] for found in held.values())
        if not held or (made and boxes > MOST_LANE_BOXES):
            continue
        made.append({"step": step, "ranks": held})
    return [*made[:1], *sorted(made[1:], key=lambda one: one["step"] or 0)]


def _kinds(lanes: Mapping[str, Mapping[str, int]], present: Sequence[str]) -> list[dict[str, Any]]:
    """Return each label's looks and place, where the path is drawn around it."""
    place = _place(lanes)
    return [
        {"name": label, "colour": LABEL_COLOURS[label], "row": place[label][0], "half": place[label][1]}
        for label in present
    ]


def _place(lanes: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    return {label: (at, half) for at, halves in enumerate(lanes.values()) for label, half in halves.items()}


def _rank_lanes(
    analysis: Analysis, rank: int, number: int | None, lanes: Mapping[str, Mapping[str, int]], present: Sequence[str]
) -> dict[str, Any] | None:
    step = analysis.tables["steps"].filter((pl.col("rank") == rank) & pl.col("step").eq_missing(number))
    if step.is_empty():
        return None  # nothing ran on this rank's GPU
    begin, end = step["start_ns"][0], step["end_ns"][0]
    rows = analysis.tables["timeline"].filter(
        (pl.col("rank") == rank) & (pl.col("end_ns") > begin) & (pl.col("start_ns") < end)
    )
    if rows.is_empty():
        return None
    place = _place(lanes)
    label = pl.col("label").cast(pl.String)
    boxes = rows.select(
        label.replace_strict({k: v[0] for k, v in place.items()}, return_dtype=pl.UInt16).alias("row"),
        label.replace_strict({k: i for i, k in enumerate(present)}, return_dtype=pl.UInt8).alias("kind"),
        label.replace_strict({k: v[1] for k, v in place.items()}, return_dtype=pl.UInt8).alias("half"),
        pl.col("start_ns").clip(begin) - begin,
        pl.col("end_ns").clip(None, end) - begin,
        pl.col("pass").to_physical().cast(pl.Int16).alias("stage"),  # the page reads it back as the pass
        pl.lit(None, pl.Int16).alias("microbatch"),
    )
    path = _path(analysis, rank, number, (begin, end), row=len(lanes), present=present)
    return {
        "end_ns": end - begin,
        "phases": _phases(analysis, rank, number),
        "boxes": pack(pl.concat([boxes, path.drop("said")], how="vertical_relaxed")),
        "path": path["said"].to_list(),
        "cells_at_ns": _cells_at(analysis, rank, begin, number),
        **({"memory": held} if (held := memory_points(analysis, rank, (begin, end))) else {}),
    }


def _path(
    analysis: Analysis, rank: int, step: int | None, window: tuple[int, int], *, row: int, present: Sequence[str]
) -> pl.DataFrame:
    """Return the boxes of the critical path's lane; their micro-batch is the number of what is said about them."""
    found = pieces_of(analysis, rank, step)
    if found is None:
        return pl.DataFrame(schema={**BOXES, "said": pl.String()})
    begin, end = window
    codes = {label: at for at, label in enumerate(present)}
    shown = found.filter((pl.col("end_ns") > begin) & (pl.col("start_ns") < end))
    return shown.select(
        pl.lit(row, pl.UInt16).alias("row"),
        pl.col("label").replace_strict(codes, default=len(present), return_dtype=pl.UInt8).alias("kind"),
        pl.lit(0, pl.UInt8).alias("half"),
        pl.col("start_ns").clip(begin) - begin,
        pl.col("end_ns").clip(None, end) - begin,
        pl.lit(None, pl.Int16).alias("stage"),
        pl.int_range(pl.len(), dtype=pl.Int16).alias("microbatch"),
        "said",
    )


def _cells_at(analysis: Analysis, rank: int, begin: int, step: int | None) -> int | None:
    """Return when its pipeline's time 0 is on this rank's lanes in this step; None where it is in none."""
    every = analysis.schedule.all if analysis.schedule is not None else ()
    mine = [one for one in every if rank in one.pipeline.ranks and one.pipeline.step in (None, step)]
    if not mine or mine[0].cells.filter(rank=rank).is_empty():
        return None
    held = mine[0]
    origin = held.cells["start_ns"].to_numpy().min(keepdims=True)  # on the common clock
    return int(held.pipeline.clocks.to_recorded(rank, origin)[0]) - begin


def _phases(analysis: Analysis, rank: int, step: int | None) -> list[dict[str, Any]]:
    if not analysis.total.pipeline:
        return []  # warm-up and cool-down are a pipeline's
    table = analysis.tables["phases"].filter((pl.col("rank") == rank) & pl.col("step").eq_missing(step))
    ends = table["span_ns"].cum_sum().to_list()
    return [
        {"name": name, "start_ns": end - span, "end_ns": end}
        for name, span, end in zip(table["phase"], table["span_ns"], ends, strict=True)
    ]


def _shown_ranks(analysis: Analysis) -> list[int]:
    """The first and last rank, those of the pipeline shown, whom others wait for, then the oddest bubbles."""
    ranks = [one.rank for one in analysis.ranks]
    if len(ranks) <= MOST_LANE_RANKS:
        return ranks
    bubbles = np.array([one.whole.bubble_fraction or 0.0 for one in analysis.ranks])
    far = [ranks[i] for i in np.argsort(-np.abs(bubbles - np.median(bubbles)), kind="stable")]
    shown = analysis.schedule.head.pipeline.ranks if analysis.schedule is not None else ()
    late = [row.rank for row in stragglers(analysis)[:MOST_LATE]]
    wanted = dict.fromkeys([ranks[0], ranks[-1], *shown, *late, *far])
    return sorted([rank for rank in wanted if rank in set(ranks)][:MOST_LANE_RANKS])
