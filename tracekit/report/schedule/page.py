"""HTML page of a schedule: the grid as inline SVG with a tooltip per cell, its figures and its orders; no scripts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from markupsafe import Markup

from tracekit.report.figures import render_figure
from tracekit.report.html.canvas import Canvas
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
from tracekit.schedules.weight_reload import WeightReload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.schedules import Simulation

MAX_TOOLTIPS = 8_000
"""A layout of more boxes is drawn by matplotlib, without tooltips."""
NAME_PX = 64
"""Width of the column with the names of the ranks."""
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
    from tracekit.report.schedule.plot import draw_reload, draw_schedule

    if isinstance(simulation, WeightReload):
        title, subtitle = reload_headline(simulation), f"makespan {simulation.makespan:g}"
        picture = _figure_as_svg(draw_reload(simulation))
        return render_template("schedule.html.j2", css=css, title=title, subtitle=subtitle, picture=picture)
    layout = layout_simulation(simulation)
    is_large = len(layout.boxes) > MAX_TOOLTIPS
    title = schedule_headline(simulation.schedule)
    return render_template(
        "schedule.html.j2",
        css=css,
        title=title,
        subtitle=simulation_facts(simulation),
        picture=_figure_as_svg(draw_schedule(simulation)) if is_large else _grid(layout, title),
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
    text = render_figure(figure, ".svg").decode()
    return Markup(text[text.index("<svg") :])


def _grid(layout: ScheduleLayout, title: str) -> Markup:
    """Return the grid: rank names, idle time, cells, and a time axis below."""
    shortest = float((layout.boxes["end"] - layout.boxes["start"]).to_numpy().min())
    width = float(np.clip(layout.end / max(shortest, 1e-12) * 18, 900, 6000)) + NAME_PX
    canvas = Canvas(0, layout.end, width=width, name_width=NAME_PX, row_height=24 if len(layout.ranks) <= 24 else 12)
    boxes = layout.boxes.with_columns(colour=pl.Series(layout.box_colours, dtype=pl.String))
    for row, rank in enumerate(layout.ranks):
        canvas.row(f"rank {rank}")
        for box in boxes.filter(row=row).iter_rows(named=True):
            tip = f"{box['name']} · rank {rank} · {box['start']:g} to {box['end']:g}"
            edges = box["top"], box["bottom"]
            canvas.box(box["start"], box["end"], box["colour"], tip, text=str(box["microbatch"]), edges=edges)
    ticks = {tick: f"{tick:g}" for tick in round_ticks(layout.end)}
    return canvas.svg(title, ticks, attributes=f'width="{width:.0f}"')


def round_ticks(end: float) -> list[float]:
    """Return about ten round times from 0 to *end*.

    >>> round_ticks(47)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    """
    power = 10.0 ** math.floor(math.log10(end / 10))
    step = next(power * factor for factor in (1, 2, 5, 10) if end / (power * factor) <= 12)
    return [i * step for i in range(int(end / step) + 1)]
