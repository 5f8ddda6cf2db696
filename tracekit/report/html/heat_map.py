"""Heat map of the page's section on many ranks: the bubble or idle time of each rank, placed as in the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.spread import Figure, Spread, by_rank

MAX_HEAT_ROWS = 64
"""Ranks in the heat map of ranks and steps."""
HEAT_MAP_COLUMNS = 64
"""Columns of the heat map side by side; a broader mesh continues below."""


HeatCell = tuple[int | None, float | None, str, str]
"""One rank in a heat map: its number, the strength of its colour (0 to 1, None if unknown), text and title."""


def step_heat_map(analysis: Analysis) -> dict[str, Any] | None:
    """Return the busy time of ranks by step; None for one rank, one step or unnumbered steps.

    Keys: ``steps``, ``rows`` (rank and its busy time in ns by step, None if unknown), ``least_ns`` and ``most_ns``, and
    ``more``, a sentence about what is left out.
    """
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
    left_out = {"rank": len(analysis.rank_results) - len(ranks), "step": len(all_steps) - len(steps)}
    hidden = " and ".join(counted(count, f"more {noun}") for noun, count in left_out.items() if count)
    return {
        "steps": steps,
        "rows": [(rank.rank, [busy_ns.get((rank.rank, step)) for step in steps]) for rank in ranks],
        "least_ns": min(busy_ns.values()),
        "most_ns": max(busy_ns.values()),
        "more": f"Not shown: {hidden}." if hidden else "",
    }


def heat_map(spread: Spread | None) -> dict[str, Any] | None:
    """Return the heat map; None for runs of few ranks, which have a bar each, and without such a figure.

    Keys: ``bands`` (columns that stand side by side, and the name and cells of each row), ``figure`` (bubble or idle),
    its ``least`` and ``most``, and ``column`` (what a column is: replica or rank).
    """
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
        bands.append((range(start, start + max(len(cells) for _, cells in rows)), rows))
    least, most = percent(figure.least), percent(figure.most)
    return {"bands": bands, "figure": figure.name, "least": least, "most": most, "column": spread.mesh.column}


def _heat_cell(rank: int | None, figures_of_rank: Mapping[int, Mapping[str, float | None]], shown: Figure) -> HeatCell:
    if rank is None:
        return None, None, "", "no trace"
    figures = figures_of_rank[rank]
    share = figures[shown.name]
    title = (
        f"rank {rank}: {shown.name} {percent(share)}, compute {percent(figures['compute'])}, "
        f"span {ms(figures['span_ns'])}"
    )
    if share is None:
        return rank, None, "?", title
    return rank, shown.shade(share), f"{100 * share:.0f}", title
