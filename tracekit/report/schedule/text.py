"""Terminal text of a schedule: its results, a small picture where it fits, figures and order of every rank."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from tracekit._util.text import percent
from tracekit.report.schedule.layout import (
    LOWER,
    RANK_COLUMNS,
    UPPER,
    WHOLE,
    ScheduleLayout,
    headline,
    layout_simulation,
    rank_rows,
)
from tracekit.report.table import Column, make_table
from tracekit.report.terminal.table import render_table
from tracekit.schedules.weight_reload import WeightReload

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tracekit.schedules import Entry, Simulation

MAX_RANKS = 32
"""Ranks of the picture, the table and the orders; a longer table shows its first and last ranks."""
MAX_OPS_IN_ORDER = 200
"""A schedule with a rank of more ops is printed without its orders."""
_INK = "#16191C"


def schedule_text(simulation: Simulation | WeightReload, *, width: int, letters: bool = True) -> RenderableType:
    """Return everything about a schedule on *width* columns.

    Args:
        simulation: A simulated schedule or weight reload.
        width: Columns of the terminal.
        letters: Name the ops in the picture by letters, for terminals without colours.
    """
    layout = layout_simulation(simulation)
    lines: list[RenderableType] = [Text(headline(simulation), style="bold"), *_summary(simulation)]
    if picture := gantt(layout, width=width, letters=letters):
        lines += ["", picture] if letters and layout.ranks else ["", picture, _legend(layout, letters=letters)]
    if isinstance(simulation, WeightReload):
        return Group(*lines)
    ranks = _rank_table(simulation, width)
    return Group(*lines, "", *([ranks] if ranks is not None else []), *_order_lines(simulation))


def list_text(entries: list[Entry], *, width: int = 80) -> RenderableType | None:
    """Return a table of all schedules; a wide terminal also shows the sizes each takes and its source."""
    columns = (
        Column("name", "code"),
        Column("what it is", value="summary"),
        Column("sizes", "word", 1, value=lambda entry: entry.constraint.removeprefix(f"{entry.name} needs ") or "any"),
        Column("source", "word", 1),
    )
    return render_table(make_table(columns, entries, notes=("--json has all sizes and sources",)), width)


def gantt(layout: ScheduleLayout, *, width: int, letters: bool = True) -> Text | None:
    """Draw one line per row on *width* columns, the shortest op at least one column wide; None if it does not fit.

    >>> from tracekit.schedules import generate, simulate
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
    if columns < 1 or len(layout.rows) > MAX_RANKS:
        return None
    scale = columns / shortest
    picture = Text(no_wrap=True)
    for row, name in enumerate(names):
        picture.append(f"{name:>{margin - 1}} ", style="bold")
        column = 0
        boxes = layout.boxes.filter(row=row).sort("cell", "part").select("op", "number", "part", "start", "end")
        for op, number, part, start, end in boxes.iter_rows():
            left, right = round(start * scale), round(end * scale)
            # A line of text has no halves: a pair's forward takes the left half of its time, its backward the right.
            middle = (left + right) // 2
            left, right = {WHOLE: (left, right), UPPER: (left, middle), LOWER: (middle, right)}[part]
            picture.append("." * (left - column), style="dim")
            text = _fit_label(op * letters, str(number), right - left)
            picture.append(text, style=f"{_INK} on {layout.legend[op].colour}")
            column = right
        picture.append("." * (round(layout.end * scale) - column), style="dim")
        picture.append("" if row == len(names) - 1 else "\n")
    return picture


def _legend(layout: ScheduleLayout, *, letters: bool) -> Text:
    """Return the names of the colours or letters; an overlapped pair shows its forward, then its backward."""
    text = Text("   ")
    for letter, op in layout.legend.items():
        text.append(letter if letters else "  ", style=f"{_INK} on {op.colour}").append(f" {op.name}   ", style="dim")
    return text


def _fit_label(letter: str, number: str, columns: int) -> str:
    """Return letter and number, or less if they do not fit, filled up to *columns*; without a letter the number."""
    if not letter:
        return number.center(columns) if len(number) <= columns else " " * columns
    for text in (f"{letter}{number}", letter):
        if len(text) < columns or (len(text) == columns and text == letter):
            return text + "-" * (columns - len(text) - 1) + " " * (columns > len(text))
    return letter[:columns]


def _summary(simulation: Simulation | WeightReload) -> list[Text]:
    scalars = asdict(simulation.times) if isinstance(simulation, WeightReload) else simulation.times.scalars()
    times = ", ".join(f"{name}={value:g}" for name, value in scalars.items() if isinstance(value, (int, float)))
    lines = [Text(f"times     {times}"), Text(f"makespan  {simulation.makespan:g}")]
    if isinstance(simulation, WeightReload):
        return lines
    of_time, of_work = (percent(share, digits=2) for share in (simulation.bubble_fraction, simulation.bubble_over_work))
    outside = f"outside   {of_time} of ranks × makespan in no cell · {of_work} of the work · "
    rate = f"zero-bubble rate {simulation.bubble_rate_zb:.4f} (of the longest rank's span)"
    return [*lines, Text(outside + rate)]


def _rank_table(simulation: Simulation, width: int) -> RenderableType | None:
    """Return the table of every rank's figures; of very many ranks, the first and the last."""
    rows = [tuple(f"{figure:g}" for figure in row) for row in rank_rows(simulation)]
    if len(rows) > MAX_RANKS:
        quarter = MAX_RANKS // 4
        rows = [*rows[:quarter], ("…", *[""] * (len(RANK_COLUMNS) - 1)), *rows[-quarter:]]
    return render_table(make_table([Column(name, "figure") for name in RANK_COLUMNS], rows), width)


def _order_lines(simulation: Simulation) -> list[Text]:
    schedule = simulation.schedule
    if schedule.pp > MAX_RANKS or max(map(len, schedule.ranks)) > MAX_OPS_IN_ORDER:
        return [Text(f"\norders: {len(simulation.start)} ops in all; --json or -o FILE.txt has them", style="dim")]
    orders = [Text(f"{rank}: {' '.join(ops)}") for rank, ops in enumerate(schedule.orders())]
    return [Text("\norder", style="bold"), *orders]
