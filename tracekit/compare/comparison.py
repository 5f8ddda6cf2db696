"""The run compared with its ideal: what everything downstream renders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import asdict

from tracekit._util.html import html_table
from tracekit.compare.alternatives import WhatIf
from tracekit.compare.gap import Replays
from tracekit.compare.identify import Match
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.schedules import Op
from tracekit.schema import CELLS, conform

SHIFT = pl.Schema({**CELLS, "ideal_start_ns": pl.Int64(), "ideal_end_ns": pl.Int64(), "shift_ns": pl.Int64()})
"""Cells with their ideal times, both from the start of the step's first cell; shift = measured − ideal start."""


Ints = npt.NDArray[np.int64]


class RankBubble(msgspec.Struct, frozen=True):
    """One rank's idle time in the pipeline, measured and ideal, by phase; and its peak of held activations (chunks)."""

    rank: int
    measured_ns: Mapping[str, int]
    ideal_ns: Mapping[str, int]
    peak_activations: int


class Held(msgspec.Struct, frozen=True, eq=False):
    """One pipeline in one step, compared with its ideal."""

    pipeline: Pipeline
    match: Match
    replays: Replays
    ideal_ns: int
    ideal_bubble: float
    gap_ns: Mapping[str, int] | None  # None: ranks are missing, so the causes are not known
    bubbles: tuple[RankBubble, ...]
    ideal_times: tuple[Ints, Ints]
    notices: tuple[Any, ...] = ()

    @property
    def cells(self) -> pl.DataFrame:
        """Its cells beside the ideal's (``SHIFT``)."""
        return shifted([self])

    @property
    def measured_ns(self) -> int:
        """Makespan: first cell's start to last cell's end."""
        return self.replays.makespan

    @property
    def measured_bubble(self) -> float:
        """Share of ranks × makespan in which a rank was in no cell."""
        idle = sum(sum(b.measured_ns.values()) for b in self.bubbles)
        whole = len(self.bubbles) * self.measured_ns
        return idle / whole if whole else 0.0

    def orders(self) -> list[list[str]]:
        """Return what each rank of the pipeline ran, in the notation; empty for a rank without a trace."""
        ran: Mapping[int, list[Op]] = self.pipeline.orders()
        return [[str(op) for op in ran.get(at, [])] for at in range(len(self.pipeline.ranks))]

    def summary(self) -> dict[str, Any]:
        """One line about this pipeline and step."""
        return {
            "ranks": list(self.pipeline.ranks),
            "step": self.pipeline.step,
            "name": self.match.schedule.name,
            "exact": self.match.exact,
            "measured_ns": self.measured_ns,
            "ideal_ns": self.ideal_ns,
            "gap_ns": None if self.gap_ns is None else dict(self.gap_ns),
        }


def shifted(steps: Sequence[Held]) -> pl.DataFrame:
    """Return the cells of several steps beside their ideals' (``SHIFT``)."""
    start, end = (np.concatenate([held.ideal_times[i] for held in steps]) for i in range(2))
    ran = np.concatenate([held.replays.start for held in steps])
    ideal = {"ideal_start_ns": start, "ideal_end_ns": end, "shift_ns": ran - start}
    table = pl.concat([held.pipeline.detail for held in steps])
    return conform(table.with_columns(pl.Series(name, ns) for name, ns in ideal.items()), SHIFT)


class ScheduleComparison(msgspec.Struct, frozen=True, eq=False):
    """Every pipeline and step compared with its ideal; ``head`` is the one the numbers describe.

    That is the slowest pipeline's, or the one that was asked for, and of it the step of median makespan.
    """

    head: Held
    all: tuple[Held, ...]
    lanes: pl.DataFrame
    positions: Mapping[int, Mapping[str, int]]
    what_if: tuple[WhatIf, ...] = ()
    factors: Mapping[str, Any] = {}
    chosen: bool = False
    """Whether the pipeline was asked for."""

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each pipeline; a pipeline's number is its place here."""
        return tuple(dict.fromkeys(comparison.pipeline.ranks for comparison in self.all))

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.head.match.schedule.name

    @property
    def pp(self) -> int:
        """Number of ranks in the pipeline."""
        return len(self.head.pipeline.ranks)

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per step."""
        return self.head.match.schedule.microbatches

    @property
    def virtual(self) -> int:
        """Number of chunks per rank."""
        return self.head.match.schedule.virtual

    @property
    def exact(self) -> bool:
        """Whether the order is exactly the schedule's."""
        return self.head.match.exact

    @property
    def gap_ns(self) -> Mapping[str, int] | None:
        """Parts of measured − ideal makespan; they sum to it."""
        return self.head.gap_ns

    @property
    def cells(self) -> pl.DataFrame:
        """Cells of all pipelines and steps, with ideal times and shifts."""
        return shifted(self.all)

    def __repr__(self) -> str:
        head = self.head
        return (
            f"<ScheduleComparison: {self.name}, {self.pp} ranks, {self.microbatches} micro-batches, "
            f"{head.measured_ns / 1e6:.1f} ms measured, {head.ideal_ns / 1e6:.1f} ms ideal>"
        )

    def _repr_html_(self) -> str:
        head = self.head
        gap = sorted((head.gap_ns or {}).items(), key=lambda part: (part[0] == "unexplained", -part[1]))
        rows = [
            ("ideal", f"{head.ideal_ns / 1e6:,.1f} ms"),
            *((cause, f"{ns / 1e6:+,.1f} ms") for cause, ns in gap if ns),
            ("measured", f"{head.measured_ns / 1e6:,.1f} ms"),
        ]
        return html_table(repr(self)[1:-1], ("from the ideal to the run", "time"), rows)

    def to_dict(self, rows: Callable[[Iterable[Any]], Any] = list) -> dict[str, Any]:
        """Return the ``schedule`` object of an analysis as plain data; *rows* makes lists of its longest parts."""
        head, schedule = self.head, self.head.match.schedule
        return {
            "name": schedule.name,
            "pp": self.pp,
            "microbatches": schedule.microbatches,
            "virtual": schedule.virtual,
            "ranks": head.orders(),
            "measured": {"makespan_ns": head.measured_ns, "outside_cells": head.measured_bubble},
            "ideal": {"makespan_ns": head.ideal_ns, "outside_cells": head.ideal_bubble},
            "gap_ns": None if head.gap_ns is None else dict(head.gap_ns),
            "exact": head.match.exact,
            "distance": head.match.distance,
            "differences": [asdict(d) for d in head.match.differences],
            "fb_run_apart": head.match.unfused,
            "step": head.pipeline.step,
            "pipeline_ranks": list(head.pipeline.ranks),
            "stages_from": head.pipeline.stages_from,
            "confidence": _lowest(head.cells),
            "by_rank": [msgspec.to_builtins(b) for b in head.bubbles],
            "factors": _named_by_text(self.factors),
            "lanes": rows(self.lanes.iter_rows(named=True)),
            "positions": {str(rank): dict(place) for rank, place in self.positions.items()},
            "what_if": [line.to_dict() for line in self.what_if],
            "pipelines": [comparison.summary() for comparison in self.all],
        }


def _named_by_text(factors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the factors with stages as text: JSON has no other names, and what is read back is the same."""
    return {
        name: {str(stage): share for stage, share in value.items()} if isinstance(value, Mapping) else value
        for name, value in factors.items()
    }


def _lowest(cells: pl.DataFrame) -> float | None:
    value = cells["confidence"].min()
    return None if value is None else round(float(value), 3)  # type: ignore[arg-type]


def factors(r: Replays, pipeline: Pipeline) -> dict[str, Any]:
    """How unequal stages and cells were: each stage's time over the mean, cells far from their stage's median.

    ``stage``: typical work of all ops of a stage over the mean stage's. ``spread``: median distance of a cell from its
    stage's median, as a share of it. ``slow_cells``: those at more than 1.25 times it, the slowest ten.
    """
    stages = {
        int(s): float(r.typical[r.graph.stage == s].sum() / max(1, r.balanced[r.graph.stage == s].sum()))
        for s in np.unique(r.graph.stage)
    }
    ratio = r.work / np.maximum(r.typical, 1)
    slow = np.flatnonzero(ratio > 1.25)
    slow = slow[np.argsort(-ratio[slow], kind="stable")][:10]
    cells = pipeline.detail
    return {
        "stage": stages,
        "spread": float(np.median(np.abs(ratio - 1))) if len(ratio) else 0.0,
        "slow_cells": [
            {
                "rank": int(cells["rank"][int(i)]),
                "op": str(r.graph.op[i]),
                "stage": int(r.graph.stage[i]),
                "microbatch": int(r.graph.microbatch[i]),
                "factor": float(ratio[i]),
            }
            for i in slow
        ],
    }
