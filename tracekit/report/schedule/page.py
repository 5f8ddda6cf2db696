"""HTML page of a schedule: the grid as inline SVG with a tooltip per cell, its figures and its orders; no scripts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from tracekit._util.text import html
from tracekit.report.html.templates import asset, render_template
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR
from tracekit.report.schedule.layout import (
    OP_NAMES,
    RANK_COLUMNS,
    ScheduleLayout,
    layout_simulation,
    rank_rows,
    reload_headline,
    schedule_headline,
    simulation_facts,
)
from tracekit.report.schedule.svg import LEFT_PX, MAX_TOOLTIPS, round_ticks, svg_cells, svg_rows
from tracekit.schedules.weight_reload import WeightReload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.schedules import Simulation

MAX_OPS_IN_ORDERS = 20_000
"""Orders of more ops in all are left out of the page."""
_TIME_AXIS = "time (units of the given times)"


def schedule_page(simulation: Simulation | WeightReload) -> str:
    """Return the page of a simulated schedule or weight reload.

    >>> from tracekit.schedules import generate, simulate
    >>> page = schedule_page(simulate(generate("1f1b", pp=2, microbatches=2)))
    >>> "<title>1F1 · rank 1 · 4 to 5</title>" in page, page.count("<rect")
    (True, 10)
    """
    css = asset("schedule.css")
    if isinstance(simulation, WeightReload):
        from tracekit.report.schedule.plot import draw_reload

        title, subtitle = reload_headline(simulation), f"makespan {simulation.makespan:g}"
        picture = _figure_as_svg(draw_reload(simulation))
        return render_template("schedule.html.j2", css=css, title=title, subtitle=subtitle, picture=picture)
    layout = layout_simulation(simulation)
    title = schedule_headline(simulation.schedule)
    return render_template(
        "schedule.html.j2",
        css=css,
        title=title,
        subtitle=simulation_facts(simulation),
        picture=_grid(layout, title),
        simulation=simulation,
        layout=layout,
        cell_colours=CELL_COLOURS,
        idle_colour=IDLE_COLOUR,
        op_names=OP_NAMES,
        time_axis=_TIME_AXIS,
        rank_columns=RANK_COLUMNS,
        rank_rows=rank_rows(simulation),
        max_ops=MAX_OPS_IN_ORDERS,
    )


def _figure_as_svg(figure: Figure) -> Markup:
    """Return a matplotlib figure as an SVG element, without the XML header."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    text = file.getvalue()
    return Markup(text[text.index("<svg") :])


def _grid(layout: ScheduleLayout, title: str) -> Markup:
    """Return the grid: rank names, idle time, cells, and a time axis below."""
    width = 1380.0
    if len(layout.boxes) <= MAX_TOOLTIPS:
        shortest = float((layout.boxes["end"] - layout.boxes["start"]).to_numpy().min())
        width = float(np.clip(layout.end / max(shortest, 1e-12) * 18, 900, 6000))
    row_height = 26 if len(layout.ranks) <= 24 else 14
    height = len(layout.ranks) * row_height + 24
    px_per_unit = width / layout.end
    ticks = [
        f'<text x="{LEFT_PX + tick * px_per_unit:.1f}" y="{height - 6}" text-anchor="middle">{tick:g}</text>'
        for tick in round_ticks(layout.end)
    ]
    elements = [
        f'<svg width="{width + LEFT_PX + 20:.0f}" height="{height + 18}" role="img" aria-label="{html(title)}">',
        *svg_rows(layout, top=0, row_height=row_height, px_per_unit=px_per_unit),
        *svg_cells(layout, top=0, row_height=row_height, px_per_unit=px_per_unit),
        *ticks,
        f'<text x="{LEFT_PX + width / 2:.1f}" y="{height + 12}" text-anchor="middle">{_TIME_AXIS}</text>',
        "</svg>",
    ]
    return Markup("\n".join(elements))
