"""Simulated schedules and weight reloads as terminal text, and as files whose extension decides the format.

The text has the results, a small picture where it fits, and the figures and order of every rank.
The page has the grid as inline SVG with a tooltip per cell, its figures and its orders; no scripts.
"""

import json
import math
from dataclasses import asdict
from os import PathLike
from pathlib import Path

import numpy as np
import polars as pl
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import percent
from tracekit._version import __version__
from tracekit.documents.coding import encode
from tracekit.errors import OptionError
from tracekit.pipeline.schedules import BlockTimes, Entry, Simulation
from tracekit.pipeline.schedules.order_files import write_orders
from tracekit.pipeline.schedules.schedule import Schedule
from tracekit.pipeline.schedules.two_buffers import WeightReload
from tracekit.report.blocks import Box, Row
from tracekit.report.html.templates import asset, draw_rows, render_template
from tracekit.report.palette import IDLE_COLOUR
from tracekit.report.perfetto.events import TrackNumbers, event_lines
from tracekit.report.schedule import layout as layouts
from tracekit.report.schedule.layout import (
    ScheduleLayout,
    headline,
    layout_simulation,
    rank_rows,
    simulation_facts,
)
from tracekit.report.table import Column, make_table
from tracekit.report.terminal.table import render_table
from tracekit.report.write import check_extension, write_file

MEGATRON_INTERLEAVED = ("interleaved", "interleaved-overlap")
"""Schedules that Megatron runs over several chunks per rank."""
MAX_RANKS_IN_PICTURE = 32
"""Ranks of the picture, the table and the orders; a longer table shows its first and last ranks."""
MAX_OPS_IN_ORDER = 200
"""A schedule with a rank of more ops is printed without its orders."""
_SCHEDULE_INK = "#16191C"
SCHEDULE_EXTENSIONS = (".svg", ".png", ".pdf", ".html", ".trace.json", ".json", ".txt")
_PICTURES = (".svg", ".png", ".pdf")


def schedule_text(
    simulation: Simulation | WeightReload, *, width: int, letters: bool = True
) -> RenderableType:
    """Return everything about a schedule on *width* columns.

    Args:
        simulation: A simulated schedule or weight reload.
        width: Columns of the terminal.
        letters: Name the ops in the picture by letters, for terminals without colours.
    """
    layout = layout_simulation(simulation)
    lines: list[RenderableType] = [Text(headline(simulation), style="bold"), *_summary(simulation)]
    if picture := gantt(layout, width=width, letters=letters):
        lines += (
            ["", picture]
            if letters and layout.ranks
            else ["", picture, _legend(layout, letters=letters)]
        )
    if isinstance(simulation, WeightReload):
        return Group(*lines)
    ranks = _rank_table(simulation, width)
    return Group(*lines, "", *([ranks] if ranks is not None else []), *_order_lines(simulation))


def list_text(entries: list[Entry], *, width: int = 80) -> RenderableType | None:
    """Return a table of all schedules.

    A wide terminal also shows the sizes each takes and its source.
    """
    columns = (
        Column("name", "code"),
        Column("what it is", value="summary"),
        Column(
            "sizes",
            "word",
            1,
            value=lambda entry: entry.constraint.removeprefix(f"{entry.name} needs ") or "any",
        ),
        Column("source", "word", 1),
    )
    return render_table(
        make_table(columns, entries, notes=("--json has all sizes and sources",)), width
    )


def gantt(layout: ScheduleLayout, *, width: int, letters: bool = True) -> Text | None:
    """Draw one line per row on *width* columns, the shortest op at least one column wide.

    None if it does not fit.

    >>> from tracekit.pipeline.schedules import generate, simulate
    >>> print(gantt(layout_simulation(simulate(generate("1f1b", pp=2, microbatches=2))), width=40).plain)
     0 F0 F1 ......B0--- ...B1---
     1 ...F0 B0--- F1 B1--- ......
    """
    shortest = float((layout.cells["end"] - layout.cells["start"]).to_numpy().min())
    names = [name.removeprefix("rank ") for name in layout.rows]
    margin = max(map(len, names)) + 2
    columns = int((width - margin) * shortest / layout.end) if shortest > 0 else 0
    # The shortest op is no wider than the largest number with a letter before and a space after it.
    columns = min(columns, len(str(layout.boxes["number"].max())) + 1 + letters)
    if columns < 1 or len(layout.rows) > MAX_RANKS_IN_PICTURE:
        return None
    scale = columns / shortest
    picture = Text(no_wrap=True)
    for row, name in enumerate(names):
        picture.append(f"{name:>{margin - 1}} ", style="bold")
        column = 0
        boxes = (
            layout.boxes.filter(row=row)
            .sort("cell", "part")
            .select("op", "number", "part", "start", "end")
        )
        for op, number, part, start, end in boxes.iter_rows():
            left = round(start * scale)
            right = round(end * scale)
            # A line of text has no halves: a pair's forward takes the left half of its time, its
            # backward the right.
            middle = (left + right) // 2
            if part != layouts.WHOLE:
                left, right = (left, middle) if part == layouts.UPPER else (middle, right)
            picture.append("." * (left - column), style="dim")
            text = _fit_label(op * letters, str(number), right - left)
            picture.append(text, style=f"{_SCHEDULE_INK} on {layout.legend[op].colour}")
            column = right
        picture.append("." * (round(layout.end * scale) - column), style="dim")
        picture.append("" if row == len(names) - 1 else "\n")
    return picture


def _legend(layout: ScheduleLayout, *, letters: bool) -> Text:
    """Return the names of the colours or letters.

    An overlapped pair shows its forward, then its backward.
    """
    text = Text("   ")
    for letter, op in layout.legend.items():
        text.append(letter if letters else "  ", style=f"{_SCHEDULE_INK} on {op.colour}").append(
            f" {op.name}   ", style="dim"
        )
    return text


def _fit_label(letter: str, number: str, columns: int) -> str:
    """Return letter and number, or less if they do not fit, filled up to *columns*.

    Without a letter the number.
    """
    if not letter:
        return number.center(columns) if len(number) <= columns else " " * columns
    for text in (f"{letter}{number}", letter):
        if len(text) < columns or (len(text) == columns and text == letter):
            return text + "-" * (columns - len(text) - 1) + " " * (columns > len(text))
    return letter[:columns]


def _summary(simulation: Simulation | WeightReload) -> list[Text]:
    scalars = (
        asdict(simulation.times)
        if isinstance(simulation, WeightReload)
        else simulation.times.scalars()
    )
    named_times = [
        f"{name}={value:g}" for name, value in scalars.items() if isinstance(value, (int, float))
    ]
    times = ", ".join(named_times)
    lines = [Text(f"times     {times}"), Text(f"makespan  {simulation.makespan:g}")]
    if isinstance(simulation, WeightReload):
        return lines
    of_time = percent(simulation.bubble_fraction, digits=2)
    of_work = percent(simulation.bubble_over_work, digits=2)
    outside = f"outside   {of_time} of ranks × makespan in no cell · {of_work} of the work · "
    rate = f"zero-bubble rate {simulation.bubble_rate_zb:.4f} (of the longest rank's span)"
    note = megatron_note(simulation.schedule)
    return [*lines, Text(outside + rate), *([Text(note, style="dim")] if note else [])]


def megatron_note(schedule: Schedule) -> str:
    """Return what Megatron needs to be told to run a schedule; empty if it runs it as it is, or never.

    Its interleaved schedule takes groups of pp micro-batches, and refuses others unless their size is given.

    >>> from tracekit.pipeline.schedules import generate
    >>> megatron_note(generate("interleaved", pp=4, microbatches=6, virtual=2))
    'Megatron refuses 6 micro-batches on 4 stages: add --microbatch-group-size-per-virtual-pipeline-stage 6'
    >>> megatron_note(generate("interleaved", pp=4, microbatches=8, virtual=2))
    ''
    """
    divides = schedule.microbatches % schedule.pp == 0
    if schedule.name not in MEGATRON_INTERLEAVED or schedule.group is None or divides:
        return ""
    return (
        f"Megatron refuses {schedule.microbatches} micro-batches on {schedule.pp} stages: add "
        f"--microbatch-group-size-per-virtual-pipeline-stage {schedule.group}"
    )


def _rank_table(simulation: Simulation, width: int) -> RenderableType | None:
    """Return the table of every rank's figures; of very many ranks, the first and the last."""
    rows = []
    for row in rank_rows(simulation):
        rows.append(tuple(f"{figure:g}" for figure in row))
    if len(rows) > MAX_RANKS_IN_PICTURE:
        quarter = MAX_RANKS_IN_PICTURE // 4
        rows = [*rows[:quarter], ("…", *[""] * (len(layouts.RANK_COLUMNS) - 1)), *rows[-quarter:]]
    return render_table(
        make_table([Column(name, "figure") for name in layouts.RANK_COLUMNS], rows), width
    )


def _order_lines(simulation: Simulation) -> list[Text]:
    schedule = simulation.schedule
    if schedule.pp > MAX_RANKS_IN_PICTURE or max(map(len, schedule.ranks)) > MAX_OPS_IN_ORDER:
        return [
            Text(
                f"\norders: {len(simulation.start)} ops in all; --json or -o FILE.txt has them",
                style="dim",
            )
        ]
    orders = [Text(f"{rank}: {' '.join(ops)}") for rank, ops in enumerate(schedule.orders())]
    return [Text("\norder", style="bold"), *orders]


def write_schedule(
    simulation: Simulation | WeightReload,
    path: str | PathLike[str],
    *,
    block_times: BlockTimes | None = None,
) -> None:
    """Write a simulated schedule or weight reload in the format of *path*'s extension (``SCHEDULE_EXTENSIONS``).

    Args:
        simulation: The schedule.
        path: File to write.
        block_times: Times inside a block, to draw the phases inside the blocks too; pictures only.

    >>> import tempfile, pathlib
    >>> from tracekit.pipeline.schedules import generate, simulate
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "1f1b.json"
    >>> write_schedule(simulate(generate("1f1b", pp=2, microbatches=2)), file)
    >>> json.loads(file.read_text())["makespan"]
    9
    """
    path = Path(path)
    extension = check_extension(path, SCHEDULE_EXTENSIONS)
    if extension == ".txt":
        if isinstance(simulation, WeightReload):
            raise OptionError("weight-reload has no order file", path=path, hint="use .json")
        write_orders(simulation.schedule, path)
        return
    if extension in _PICTURES:
        from tracekit.report.figures import render_figure
        from tracekit.report.schedule.plot import draw_phases, draw_schedule

        if block_times is not None and not isinstance(simulation, WeightReload):
            figure = draw_phases(simulation.schedule, block_times)
        else:
            figure = draw_schedule(simulation)
        write_file(path, render_figure(figure, extension))
    elif extension == ".json":
        write_file(path, encode(simulation.to_document(), indent=None))
    else:
        write_file(
            path, schedule_page(simulation) if extension == ".html" else schedule_trace(simulation)
        )


TRACE_DETAILS = ("stage", "microbatch", "b_stage", "b_microbatch", "bucket", "round", "role")
UNIT_NS = 1_000_000
"""Nanoseconds that one unit of the given times is shown as."""


def schedule_trace(simulation: Simulation | WeightReload) -> str:
    """Return the trace as JSON text: one track per rank, or per buffer of a weight reload.

    >>> from tracekit.pipeline.schedules import generate, simulate
    >>> trace = json.loads(schedule_trace(simulate(generate("1f1b", pp=1, microbatches=1))))
    >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('0F0', 0.0, 1000.0), ('0B0', 1000.0, 2000.0)]
    """
    name = simulation.name if isinstance(simulation, WeightReload) else simulation.schedule.name
    numbers = TrackNumbers()
    layout = layout_simulation(simulation)
    pid = numbers.add_process(headline(simulation))
    tracks = [(pid, row) for row in layout.rows]
    cells = layout.cells.with_columns(track="row")
    start_ns = (pl.col("start") * UNIT_NS).cast(pl.Float64).round().cast(pl.Int64)
    end_ns = (pl.col("end") * UNIT_NS).cast(pl.Float64).round().cast(pl.Int64)
    placed = numbers.place_events(
        cells.with_columns(kind="op", start_ns=start_ns, end_ns=end_ns), tracks
    )
    lines = [
        *numbers.take_lines(),
        *event_lines(placed, 0, details={column: column for column in TRACE_DETAILS}),
    ]
    about = {"tracekit": __version__, "schedule": name, "unit_us": UNIT_NS / 1000}
    header = json.dumps({"displayTimeUnit": "ms", "otherData": about}, ensure_ascii=False)
    return f'{header[:-1]}, "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


MAX_TOOLTIPS = 8_000
"""A layout of more boxes is drawn by matplotlib, without tooltips."""
MIN_NAME_PX = 64
LETTER_PX = 7
"""Width of the column with the names of the rows, and of a letter in it."""
MAX_OPS_IN_ORDERS = 20_000
"""Orders of more ops in all are left out of the page."""
_TIME_AXIS = "time (units of the given times)"


def schedule_page(simulation: Simulation | WeightReload) -> str:
    """Return the page of a simulated schedule or weight reload.

    >>> from tracekit.pipeline.schedules import generate, simulate
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
        rank_columns=layouts.RANK_COLUMNS,
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
    rows = [Row(name, []) for name in layout.rows]
    for box, colour in zip(layout.boxes.iter_rows(named=True), layout.box_colours, strict=True):
        start = box["start"]
        end = box["end"]
        edges = (box["top"], box["bottom"])
        tip = f"{box['name']} · {layout.rows[box['row']]} · {start:g} to {end:g}"
        rows[box["row"]].boxes.append(Box(start, end, colour, tip, str(box["number"]), *edges))
    ticks = {tick: f"{tick:g}" for tick in round_ticks(layout.end)}
    row_height = 24 if len(rows) <= 24 else 12
    size = Markup(f'width="{width:.0f}"')
    axis = {"start": 0, "end": layout.end, "ticks": ticks}
    return draw_rows(
        rows, title, **axis, width=width, name_width=name_px, row_height=row_height, attributes=size
    )


def round_ticks(end: float) -> list[float]:
    """Return about ten round times from 0 to *end*.

    >>> round_ticks(47)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    """
    power = 10.0 ** math.floor(math.log10(end / 10))
    step = next(power * factor for factor in (1, 2, 5, 10) if end / (power * factor) <= 12)
    return [i * step for i in range(int(end / step) + 1)]
