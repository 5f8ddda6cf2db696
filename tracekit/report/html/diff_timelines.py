"""Two pipelines on one time axis as inline SVG, before above after, for the diff's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tracekit._util.text import html
from tracekit.report.schedule.layout import ScheduleLayout, layout_diff_side
from tracekit.report.schedule.svg import LEFT_PX, round_ticks, svg_cells, svg_rows

WIDTH_PX = 1100
ROW_PX = 22
SECTION_GAP_PX = 30
"""Space between the two pipelines, for the name of the second."""
MAX_RANKS = 32
"""Ranks of each pipeline that are drawn."""


def diff_layouts(sides: Mapping[str, Sequence[Mapping[str, Any]]] | None) -> dict[str, ScheduleLayout]:
    """Return the layout of each side's cells, in ms from its first cell; none if a side has no cells."""
    if not sides or not all(sides.values()):
        return {}
    return {name: layout_diff_side(cells, max_ranks=MAX_RANKS).in_ms() for name, cells in sides.items()}


def timelines_svg(layouts: Mapping[str, ScheduleLayout]) -> Markup:
    """Return the drawing of both sides, one above the other, on one time axis."""
    end = max(layout.end for layout in layouts.values())
    px_per_ms = (WIDTH_PX - LEFT_PX - 8) / end
    y = 16
    rows, cells = [], []
    for name, layout in layouts.items():
        rows.append(f'<text x="0" y="{y}" class="name">{html(name)}</text>')
        rows += svg_rows(layout, top=y + 6, row_height=ROW_PX, px_per_unit=px_per_ms)
        cells += svg_cells(layout, top=y + 6, row_height=ROW_PX, px_per_unit=px_per_ms, time_format=".3f", unit=" ms")
        y += len(layout.ranks) * ROW_PX + SECTION_GAP_PX
    axis = []
    for tick in round_ticks(end):
        x = LEFT_PX + tick * px_per_ms
        axis.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{y - 16}" class="tick"/>')
        axis.append(f'<text x="{x:.1f}" y="{y - 4}" text-anchor="middle">{tick:g}</text>')
    title = "time (ms) from each step's first cell"
    axis.append(f'<text x="{WIDTH_PX / 2}" y="{y + 12}" text-anchor="middle">{title}</text>')
    size = f'viewBox="0 0 {WIDTH_PX} {y + 18}" width="{WIDTH_PX}"'
    label = "Pipeline cells before and after, on one time axis"
    # Cells last: they lie above the lines of the axis.
    elements = "".join([*rows, *axis, *cells])
    return Markup(f'<svg {size} role="img" aria-label="{label}">{elements}</svg>')
