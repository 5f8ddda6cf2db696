"""What the page's schedule draws: each pipeline and step, measured above its ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.text import format_ranges
from tracekit.analysis import Analysis
from tracekit.compare import StepComparison
from tracekit.critical_path.path import CriticalPath
from tracekit.intervals import union_of
from tracekit.report.html.pack import BOXES, WAITING, last_ns, pack
from tracekit.report.html.path import time_in_cells
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR
from tracekit.report.schedule.plot import NAMES, chunks, colour, shaded
from tracekit.schema import GAP_CAUSES

if TYPE_CHECKING:
    from tracekit.schedules import Schedule

MOST_CHOICES = 16
"""Pipelines and steps the page holds …"""
MOST_CELLS = 60_000
"""… and cells of all of them; the one the numbers are of is always there."""


def schedule_data(analysis: Analysis) -> dict[str, Any] | None:
    """Return every pipeline and step that can be chosen, the one the numbers are of first."""
    found = analysis.schedule
    if found is None:
        return None
    others = [held for held in found.all if held is not found.head]
    choices, cells = [found.head], len(found.head.cells)
    for held in others[: MOST_CHOICES - 1]:
        cells += len(held.cells)
        if cells <= MOST_CELLS:
            choices.append(held)
    several = len({held.pipeline.ranks for held in choices}) > 1
    causes = [cause.words for cause in GAP_CAUSES.values()]
    return {"causes": causes, "choices": [_choice(held, analysis.critical, several=several) for held in choices]}


def _choice(held: StepComparison, critical: CriticalPath | None, *, several: bool) -> dict[str, Any]:
    ranks = sorted(held.cells["rank"].unique().to_list())
    cells = held.cells.with_columns(*_waiting(held), time_in_cells(critical, held))
    origin = int(cells["start_ns"].to_numpy().min(initial=last_ns(cells)))
    measured = cells.with_columns(pl.col("start_ns", "end_ns") - origin)
    ideal = held.cells.with_columns(start_ns="ideal_start_ns", end_ns="ideal_end_ns")
    looks = _Looks.of(held.match.schedule, cells["op"].cast(pl.String).unique().to_list())
    end = max(last_ns(measured), last_ns(ideal))
    step = [] if held.pipeline.step is None else [f"step {held.pipeline.step}"]
    return {
        "name": ", ".join([*step, *([f"ranks {format_ranges(ranks)}"] if several else [])]) or "the pipeline",
        "kinds": looks.kinds(),
        "shaded": looks.count > 1,
        "rows": [f"rank {rank}" for rank in ranks],
        "ranks": ranks,
        "step": held.pipeline.step,
        "end_ns": end,
        "cells": _names(held),
        "sections": [
            {"name": "measured", "boxes": pack(_cell_boxes(measured, ranks, looks, end))},
            {"name": "ideal", "boxes": pack(_cell_boxes(ideal, ranks, looks, int(held.ideal_ns)))},
        ],
    }


def _names(held: StepComparison) -> list[str]:
    """Return every cell's name, to say what another one waited for."""
    columns = ("op", "stage", "microbatch", "b_stage", "b_microbatch", "rank")
    names = []
    for op, stage, batch, b_stage, b_batch, rank in held.cells.select(columns).iter_rows():
        name = f"({stage}F{batch};{b_stage}B{b_batch})" if op == "FB" else f"{stage}{op}{batch}"
        names.append(f"{name} on rank {rank}")
    return names


def _waiting(held: StepComparison) -> list[pl.Series]:
    """Return for each cell what held it up: the largest cause after its inputs were there, and the last input."""
    replay = held.replays
    names = [name for name in GAP_CAUSES if name in replay.before]
    held_up = np.stack([replay.before[name] for name in names]) if names else np.zeros((1, len(held.cells)), np.int64)
    worst = held_up.argmax(axis=0)
    code = np.array([list(GAP_CAUSES).index(name) for name in names] or [-1])[worst]
    wait = np.take_along_axis(held_up, worst[None], axis=0)[0]
    waits = replay.graph.waits
    ends = np.where(waits >= 0, np.append(replay.end, 0)[waits], -1)
    last = np.where(ends.max(axis=1) >= 0, np.take_along_axis(waits, ends.argmax(axis=1)[:, None], axis=1)[:, 0], -1)
    return [
        pl.Series("cause", np.where(wait > 0, code, -1), dtype=pl.Int8),
        pl.Series("wait_ns", np.maximum(wait, 0), dtype=pl.Int64),
        pl.Series("after", last, dtype=pl.Int32),
    ]


@dataclass(frozen=True)
class _Looks:
    """How cells look: a kind for each op that ran and each chunk told apart, time outside cells last."""

    ops: tuple[str, ...]
    chunk_of: npt.NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, schedule: Schedule, ran: Sequence[str]) -> _Looks:
        there = {kind for op in ran for kind in op}
        of_stage = chunks(schedule) if shaded(schedule) else np.zeros(len(schedule.stage_ranks), np.int64)
        return cls(tuple(kind for kind in CELL_COLOURS if kind in there), of_stage, int(of_stage.max(initial=0)) + 1)

    def kinds(self) -> list[dict[str, str]]:
        cells = [(op, chunk) for op in self.ops for chunk in range(self.count)]
        made = [{"name": NAMES[op], "colour": colour(op, chunk, self.count)} for op, chunk in cells]
        return [*made, {"name": "outside cells", "colour": IDLE_COLOUR}]

    def code(self, cells: pl.DataFrame) -> pl.Series:
        stage = cells["stage"].fill_null(0).to_numpy()
        op = cells["op"].replace_strict({op: at for at, op in enumerate(self.ops)}, return_dtype=pl.Int64).to_numpy()
        return pl.Series("kind", op * self.count + self.chunk_of[stage], dtype=pl.UInt8)

    @property
    def outside(self) -> int:
        return len(self.ops) * self.count


def _cell_boxes(cells: pl.DataFrame, ranks: Sequence[int], looks: _Looks, end_ns: int) -> pl.DataFrame:
    row = {rank: at for at, rank in enumerate(ranks)}
    base = cells.with_columns(
        row=pl.col("rank").replace_strict(row, return_dtype=pl.UInt16), op=pl.col("op").cast(pl.String)
    )
    single = base.filter(pl.col("op") != "FB").with_columns(half=pl.lit(0, pl.UInt8))
    both = base.filter(pl.col("op") == "FB")
    upper = both.with_columns(op=pl.lit("F"), half=pl.lit(1, pl.UInt8))
    lower = both.with_columns(
        op=pl.lit("B"), half=pl.lit(2, pl.UInt8), stage=pl.col("b_stage"), microbatch=pl.col("b_microbatch")
    )
    boxes = pl.concat([single, upper, lower])
    boxes = boxes.with_columns(looks.code(boxes))
    names = [*BOXES.names(), *(WAITING.names() if "after" in boxes.columns else [])]
    return pl.concat([boxes.select(names), _outside(base, looks.outside, end_ns)], how="diagonal_relaxed")


def _outside(cells: pl.DataFrame, kind: int, end_ns: int) -> pl.DataFrame:
    """Return where a row has no cell between 0 and the end."""
    edges = cells.select("row").unique()
    edges = pl.concat(
        [edges.with_columns(start_ns=pl.lit(t, pl.Int64), end_ns=pl.lit(t, pl.Int64)) for t in (-1, end_ns)]
    )
    edges = edges.with_columns(end_ns=pl.col("start_ns") + 1)
    holes = union_of(pl.concat([cells.select(edges.columns), edges]), "row").gaps().to_frame()
    return holes.select(
        pl.col("group").cast(pl.UInt16).alias("row"),
        pl.lit(kind, pl.UInt8).alias("kind"),
        pl.lit(0, pl.UInt8).alias("half"),
        pl.col("start_ns").clip(0),
        pl.col("end_ns"),
        pl.lit(None, pl.Int16).alias("stage"),
        pl.lit(None, pl.Int16).alias("microbatch"),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))
