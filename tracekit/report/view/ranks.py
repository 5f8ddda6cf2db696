"""What differs between ranks and steps: bubbles, stragglers, the spread of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import counted
from tracekit.analysis import Analysis, RankResult
from tracekit.report.view.pace import beyond_noise
from tracekit.schema import IDLE_CAUSES, PHASES

MOST_BUBBLES = 16
MOST_STRAGGLERS = 10
MOST_STEPS = 100


class BubbleRow(msgspec.Struct, frozen=True):
    """Why one rank was idle, and its bubble."""

    rank: int
    idle_ns: int | None
    causes: Mapping[str, float | None]
    """Shares of the idle time by cause, as ``schema.IDLE_CAUSES`` names them."""
    wait_ns: int | None
    bubble: float | None
    lower_bound: bool
    phase_ns: Mapping[str, int | None]
    """Bubble in each phase of the pipeline; empty where there are none."""


class Straggler(msgspec.Struct, frozen=True):
    """A rank that starts operations last, and what that costs the others."""

    rank: int
    label: str
    caused_ns: int
    operations: int
    share: float
    """Of the worst."""


class StepRow(msgspec.Struct, frozen=True):
    """One step over the ranks."""

    step: int | None
    least_ns: int
    median_ns: float
    most_ns: int
    longest: int
    """A rank on which it took longest."""
    slowest: int | None
    """That rank, where it is slower than every other beyond noise."""
    partial: bool
    share: float
    """Median of the longest step's."""


class Steps(msgspec.Struct, frozen=True):
    """The spread of steps, where there are several."""

    rows: tuple[StepRow, ...]
    more: int
    one_rank: bool


def bubble_rows(analysis: Analysis) -> tuple[BubbleRow, ...]:
    """Return why each rank was idle, the largest bubble first; empty where nothing was."""
    ran = [one for one in analysis.rank_results if one.whole.budget.span_ns]
    phased = bool(analysis.total.label_ns.get("pp_comm"))
    rows = [_bubble(one, phased=phased) for one in ran]
    if not any(row.idle_ns or row.wait_ns or row.idle_ns is None for row in rows):
        return ()
    return tuple(sorted(rows, key=lambda row: -((row.bubble if analysis.total.pipeline else row.idle_ns) or 0.0)))


def _bubble(one: RankResult, *, phased: bool) -> BubbleRow:
    whole, idle = one.whole, one.whole.budget.idle_ns
    shares = {name: one.idle_causes.get(name, 0) / idle if idle else None for name in IDLE_CAUSES}
    return BubbleRow(
        rank=one.rank,
        idle_ns=idle if whole.idle_known else None,
        causes=shares if whole.idle_known else dict.fromkeys(IDLE_CAUSES),
        wait_ns=whole.bubble.wait_ns,
        bubble=whole.bubble_fraction,
        lower_bound=whole.lower_bound,
        phase_ns={phase: _in_phase(one.phases, phase) for phase in PHASES} if phased and one.phases else {},
    )


def _in_phase(phases: Sequence[Mapping[str, Any]], name: str) -> int | None:
    rows = [p for p in phases if p["phase"] == name]
    if not rows or any(p["idle_ns"] is None for p in rows):
        return None
    return sum(int(p["idle_ns"]) + int(p["wait_ns"] or 0) for p in rows)


def stragglers(analysis: Analysis) -> tuple[Straggler, ...]:
    """Return the ranks that arrive last, by the waiting they cause."""
    table = analysis.tables["stragglers"].sort("caused_ns", descending=True).head(MOST_STRAGGLERS)
    rows = [row for row in table.to_dicts() if row["caused_ns"]]
    worst = max((row["caused_ns"] for row in rows), default=0) or 1
    return tuple(
        Straggler(row["rank"], row["label"], row["caused_ns"], row["operations"], row["caused_ns"] / worst)
        for row in rows
    )


def clock_note(analysis: Analysis) -> str:
    """Return how well the ranks' clocks agree, in words; empty where nothing was matched."""
    residual = analysis.clocks.residual_ns
    if residual is None:
        return ""
    moved = len(analysis.clocks.table.filter(pl.col("offset_ns") != 0))
    worst = analysis.clocks.worst_ns or 0
    said = f"Matched ends lie {residual / 1e3:,.1f} µs apart (median; {worst / 1e3:,.1f} at most)"
    return f"{said}; {counted(moved, 'clock')} {'was' if moved == 1 else 'were'} corrected" if moved else said


def steps_view(analysis: Analysis) -> Steps | None:
    """Return the spread of each step over ranks; None where there is one step."""
    table = analysis.tables["steps"]
    if table["step"].n_unique() < 2:
        return None
    spans = table.group_by("step").agg(
        least=pl.col("span_ns").min(),
        median=pl.col("span_ns").median(),
        most=pl.col("span_ns").max(),
        longest=pl.col("rank").sort_by("span_ns").last(),
        second=pl.col("span_ns").top_k(2).min(),
        partial=pl.col("partial").any(),
    )
    widest = int(spans["most"].to_numpy().max(initial=1))
    rows = tuple(
        StepRow(
            step,
            least,
            median,
            most,
            longest,
            longest if beyond_noise(most, second) else None,
            partial,
            median / widest,
        )
        for step, least, median, most, longest, second, partial in spans.sort("step").head(MOST_STEPS).iter_rows()
    )
    return Steps(rows, max(0, len(spans) - MOST_STEPS), table["rank"].n_unique() == 1)
