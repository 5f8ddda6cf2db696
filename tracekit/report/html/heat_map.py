"""Heat map of the page's section on many ranks: the bubble or idle time of each rank, placed as in the mesh."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tracekit._util.text import ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.spread import Figure, Spread, by_rank

MAX_HEAT_ROWS = 64
"""Ranks in the heat map of ranks and steps."""
HEAT_MAP_COLUMNS = 64
"""Columns of the heat map side by side; a broader mesh continues below."""


class HeatCell(msgspec.Struct, frozen=True):
    """One rank in the heat map."""

    rank: int | None
    heat: float | None
    """Strength of its colour, 0 to 1; None if its figure is unknown."""
    text: str
    title: str


class HeatBand(msgspec.Struct, frozen=True):
    """Columns of the heat map that stand side by side."""

    columns: range
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]
    """Name and cells of each row."""


class HeatMap(msgspec.Struct, frozen=True):
    """Bubble or idle time of each rank, placed as in the mesh."""

    bands: tuple[HeatBand, ...]
    figure: str
    """``bubble`` or ``idle``."""
    least: str
    most: str
    column: str
    """What a column is: ``replica`` or ``rank``."""


class StepHeat(msgspec.Struct, frozen=True):
    """Busy time of each rank in each step."""

    steps: tuple[int, ...]
    rows: tuple[tuple[int, tuple[HeatCell, ...]], ...]
    """Rank and its cells, one per step."""
    least: str
    most: str
    more: str
    """Sentence about what is left out; empty if nothing is."""


def step_heat_map(analysis: Analysis) -> StepHeat | None:
    """Return the busy time of ranks by step; None for one rank, one step or unnumbered steps."""
    ranks = analysis.rank_results[:MAX_HEAT_ROWS]
    all_steps = sorted({scope.step for rank in ranks for scope in rank.per_step if scope.step is not None})
    steps = all_steps[:HEAT_MAP_COLUMNS]
    if len(ranks) < 2 or len(steps) < 2:
        return None
    busy_ns = {
        (rank.rank, scope.step): scope.budget.span_ns - scope.budget.idle_ns - sum(filter(None, scope.wait_ns.values()))
        for rank in ranks
        for scope in rank.per_step
    }
    least, most = min(busy_ns.values()), max(busy_ns.values())

    def cell(rank: int, step: int) -> HeatCell:
        ns = busy_ns.get((rank, step))
        if ns is None:
            return HeatCell(rank, None, "", f"rank {rank}, step {step}: not recorded")
        heat = (ns - least) / (most - least) if most > least else 0.0
        return HeatCell(
            rank,
            heat,
            f"{ns / 1e6:.0f}" if ns >= 1e7 else f"{ns / 1e6:.1f}",
            f"rank {rank}, step {step}: busy {ms(ns)}",
        )

    hidden = (
        [f"{len(analysis.rank_results) - len(ranks)} more ranks"] if len(ranks) < len(analysis.rank_results) else []
    )
    hidden += [f"{len(all_steps) - len(steps)} more steps"] if len(steps) < len(all_steps) else []
    more = f"Not shown: {' and '.join(hidden)}." if hidden else ""
    rows = tuple((rank.rank, tuple(cell(rank.rank, step) for step in steps)) for rank in ranks)
    return StepHeat(tuple(steps), rows, ms(least), ms(most), more)


def heat_map(spread: Spread | None) -> HeatMap | None:
    """Return the heat map; None for runs of few ranks, which have a bar each, and without such a figure."""
    figure = spread.heat if spread is not None else None
    if spread is None or figure is None:
        return None
    figures_of_rank = by_rank(spread)
    bands = []
    for start in range(0, spread.mesh.width, HEAT_MAP_COLUMNS):
        rows = tuple(
            (name, tuple(_heat_cell(rank, figures_of_rank, figure) for rank in ranks[start : start + HEAT_MAP_COLUMNS]))
            for name, ranks in zip(spread.mesh.rows, spread.mesh.cells, strict=True)
        )
        bands.append(HeatBand(range(start, start + max(len(cells) for _, cells in rows)), rows))
    return HeatMap(tuple(bands), figure.name, percent(figure.least), percent(figure.most), spread.mesh.column)


def _heat_cell(rank: int | None, figures_of_rank: Mapping[int, Mapping[str, float | None]], shown: Figure) -> HeatCell:
    if rank is None:
        return HeatCell(None, None, "", "no trace")
    figures = figures_of_rank[rank]
    share = figures[shown.name]
    title = (
        f"rank {rank}: {shown.name} {percent(share)}, compute {percent(figures['compute'])}, "
        f"span {ms(figures['span_ns'])}"
    )
    if share is None:
        return HeatCell(rank, None, "?", title)
    return HeatCell(rank, shown.shade(share), f"{100 * share:.0f}", title)
