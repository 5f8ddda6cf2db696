"""Schedules written to files; the extension decides the format.

The page has the grid as inline SVG with a tooltip per cell, its figures and its orders; no scripts.
"""

from __future__ import annotations

import json
import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from markupsafe import Markup

from tracekit._version import __version__
from tracekit.documents.coding import encode
from tracekit.errors import OptionError
from tracekit.report.html.canvas import Canvas
from tracekit.report.html.templates import asset, render_template
from tracekit.report.palette import IDLE_COLOUR
from tracekit.report.perfetto.events import TrackNumbers, event_lines
from tracekit.report.schedule.layout import (
    RANK_COLUMNS,
    ScheduleLayout,
    headline,
    layout_simulation,
    rank_rows,
    simulation_facts,
)
from tracekit.report.write import check_extension, write_file
from tracekit.schedules.registry import write_orders
from tracekit.schedules.weight_reload import WeightReload

if TYPE_CHECKING:
    from tracekit.schedules import BlockTimes, Simulation


EXTENSIONS = (".svg", ".png", ".html", ".trace.json", ".json", ".txt")


def write_schedule(
    simulation: Simulation | WeightReload,
    path: str | PathLike[str],
    *,
    lanes: bool = False,
    block_times: BlockTimes | None = None,
) -> None:
    """Write a simulated schedule or weight reload in the format of *path*'s extension (``EXTENSIONS``).

    Args:
        simulation: The schedule.
        path: File to write.
        lanes: Draw the phases inside the blocks too; pictures only.
        block_times: Times inside a block, for *lanes*.

    >>> import tempfile, pathlib
    >>> from tracekit.schedules import generate, simulate
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "1f1b.json"
    >>> write_schedule(simulate(generate("1f1b", pp=2, microbatches=2)), file)
    >>> json.loads(file.read_text())["makespan"]
    9
    """
    path = Path(path)
    extension = check_extension(path, EXTENSIONS)
    if extension == ".txt":
        if isinstance(simulation, WeightReload):
            raise OptionError(f"{path}: weight-reload has no order file", hint="use .json")
        write_orders(simulation.schedule, path)
        return
    if extension in (".svg", ".png"):
        from tracekit.report.figures import render_figure
        from tracekit.report.schedule.plot import draw_phases, draw_schedule

        if lanes and not isinstance(simulation, WeightReload):
            figure = draw_phases(simulation.schedule, block_times)
        else:
            figure = draw_schedule(simulation)
        write_file(path, render_figure(figure, extension))
    elif extension == ".json":
        write_file(path, encode(simulation.to_document(), indent=None))
    else:
        write_file(path, schedule_page(simulation) if extension == ".html" else schedule_trace(simulation))


TRACE_DETAILS = ("stage", "microbatch", "b_stage", "b_microbatch", "bucket", "round", "role")
UNIT_NS = 1_000_000
"""Nanoseconds that one unit of the given times is shown as."""


def schedule_trace(simulation: Simulation | WeightReload) -> str:
    """Return the trace as JSON text: one track per rank, or per buffer of a weight reload.

    >>> from tracekit.schedules import generate, simulate
    >>> trace = json.loads(schedule_trace(simulate(generate("1f1b", pp=1, microbatches=1))))
    >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('0F0', 0.0, 1000.0), ('0B0', 1000.0, 2000.0)]
    """
    name = simulation.name if isinstance(simulation, WeightReload) else simulation.schedule.name
    numbers, layout = TrackNumbers(), layout_simulation(simulation)
    pid = numbers.add_process(headline(simulation))
    tracks = [(pid, row) for row in layout.rows]
    cells = layout.cells.with_columns(track="row")
    start_ns, end_ns = ((pl.col(time) * UNIT_NS).cast(pl.Float64).round().cast(pl.Int64) for time in ("start", "end"))
    placed = numbers.place_events(cells.with_columns(kind="op", start_ns=start_ns, end_ns=end_ns), tracks)
    lines = [*numbers.take_lines(), *event_lines(placed, 0, details={column: column for column in TRACE_DETAILS})]
    about = {"tracekit": __version__, "schedule": name, "unit_us": UNIT_NS / 1000}
    header = json.dumps({"displayTimeUnit": "ms", "otherData": about}, ensure_ascii=False)
    return f'{header[:-1]}, "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


MAX_TOOLTIPS = 8_000
"""A layout of more boxes is drawn by matplotlib, without tooltips."""
MIN_NAME_PX, LETTER_PX = 64, 7
"""Width of the column with the names of the rows, and of a letter in it."""
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
    layout = layout_simulation(simulation)
    is_large = len(layout.boxes) > MAX_TOOLTIPS
    title = headline(simulation)
    return render_template(
        "schedule.html.j2",
        css=asset("schedule.css"),
        title=title,
        subtitle=simulation_facts(simulation),
        picture=_drawn_by_matplotlib(simulation) if is_large else _grid(layout, title),
        simulation=None if isinstance(simulation, WeightReload) else simulation,
        layout=layout,
        idle_colour=IDLE_COLOUR,
        time_axis=_TIME_AXIS,
        rank_columns=RANK_COLUMNS,
        rank_rows=() if isinstance(simulation, WeightReload) else rank_rows(simulation),
        max_ops=MAX_OPS_IN_ORDERS,
    )


def _drawn_by_matplotlib(simulation: Simulation | WeightReload) -> Markup:
    """Return a picture as an SVG element, without the XML header."""
    from tracekit.report.figures import render_figure
    from tracekit.report.schedule.plot import draw_schedule

    text = render_figure(draw_schedule(simulation), ".svg").decode()
    return Markup(text[text.index("<svg") :])


def _grid(layout: ScheduleLayout, title: str) -> Markup:
    """Return the grid: names of the rows, idle time, cells, and a time axis below."""
    name_px = max(MIN_NAME_PX, LETTER_PX * max(map(len, layout.rows)))
    shortest = float((layout.boxes["end"] - layout.boxes["start"]).to_numpy().min())
    width = float(np.clip(layout.end / max(shortest, 1e-12) * 18, 900, 6000)) + name_px
    canvas = Canvas(0, layout.end, width=width, name_width=name_px, row_height=24 if len(layout.rows) <= 24 else 12)
    boxes = layout.boxes.with_columns(colour=pl.Series(layout.box_colours, dtype=pl.String))
    for row, name in enumerate(layout.rows):
        canvas.row(name)
        for box in boxes.filter(row=row).iter_rows(named=True):
            tip = f"{box['name']} · {name} · {box['start']:g} to {box['end']:g}"
            edges = box["top"], box["bottom"]
            canvas.box(box["start"], box["end"], box["colour"], tip, text=str(box["number"]), edges=edges)
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
