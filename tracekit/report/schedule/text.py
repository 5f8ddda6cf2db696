"""Terminal text of a schedule: its results, a small picture where it fits, figures and order of every rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from tracekit._util.text import percent
from tracekit.report.palette import CELL_COLOURS, LABEL_COLOURS
from tracekit.report.schedule.layout import (
    LOWER,
    OP_NAMES,
    RANK_COLUMNS,
    UPPER,
    WHOLE,
    layout_simulation,
    rank_rows,
    reload_headline,
    schedule_headline,
)
from tracekit.report.schedule.plot import RELOAD_LABELS
from tracekit.report.table import Column, make_table
from tracekit.report.terminal.table import render_table
from tracekit.schedules.weight_reload import LANES, WeightReload

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
    if isinstance(simulation, WeightReload):
        return Group(*_reload_lines(simulation, width))
    lines: list[RenderableType] = [Text(schedule_headline(simulation.schedule), style="bold"), *_summary(simulation)]
    if picture := gantt(simulation, width=width, letters=letters):
        lines += ["", picture] if letters else ["", picture, _legend()]
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


def gantt(simulation: Simulation, *, width: int, letters: bool = True) -> Text | None:
    """Draw one line per rank on *width* columns, the shortest op at least one column wide; None if it does not fit.

    >>> from tracekit.schedules import generate, simulate
    >>> print(gantt(simulate(generate("1f1b", pp=2, microbatches=2)), width=40).plain)
     0 F0 F1 ......B0--- ...B1---
     1 ...F0 B0--- F1 B1--- ......
    """
    layout = layout_simulation(simulation)
    shortest = float((layout.cells["end"] - layout.cells["start"]).to_numpy().min())
    margin = len(str(len(layout.ranks) - 1)) + 2
    columns = int((width - margin) * shortest / layout.end) if shortest > 0 else 0
    # The shortest op is no wider than its label with a space after it.
    columns = min(columns, len(str(simulation.schedule.microbatches - 1)) + 1 + letters)
    if columns < 1 or len(layout.ranks) > MAX_RANKS:
        return None
    scale = columns / shortest
    picture = Text(no_wrap=True)
    for row, rank in enumerate(layout.ranks):
        picture.append(f"{rank:>{margin - 1}} ", style="bold")
        spans = []
        for op, microbatch, part, start, end in (
            layout.boxes.filter(row=row)
            .sort("cell", "part")
            .select("op", "microbatch", "part", "start", "end")
            .iter_rows()
        ):
            left, right = round(start * scale), round(end * scale)
            # A line of text has no halves: a pair's forward takes the left half of its time, its backward the right.
            middle = (left + right) // 2
            left, right = {WHOLE: (left, right), UPPER: (left, middle), LOWER: (middle, right)}[part]
            text = _fit_label(op * letters, microbatch, right - left)
            spans.append((left, right, text, CELL_COLOURS[op]))
        _append_line(picture, spans, round(layout.end * scale))
        picture.append("" if row == len(layout.ranks) - 1 else "\n")
    return picture


def _append_line(line: Text, spans: Iterable[tuple[int, int, str, str]], end: int) -> None:
    """Append spans (left, right, text, colour) in order of time, with dots where nothing runs, up to column *end*."""
    column = 0
    for left, right, text, colour in spans:
        line.append("." * (left - column), style="dim")
        line.append(text, style=f"{_INK} on {colour}")
        column = right
    line.append("." * (end - column), style="dim")


def _legend() -> Text:
    """Return the names of the colours; an overlapped pair shows its forward, then its backward."""
    text = Text("   ")
    for op, name in OP_NAMES.items():
        text.append("  ", style=f"on {CELL_COLOURS[op]}").append(f" {name}   ", style="dim")
    return text


def _fit_label(letter: str, number: int, columns: int) -> str:
    """Return letter and number, or less if they do not fit, filled up to *columns*; without a letter the number."""
    if not letter:
        return f"{number}".center(columns) if len(str(number)) <= columns else " " * columns
    for text in (f"{letter}{number}", letter):
        if len(text) < columns or (len(text) == columns and text == letter):
            return text + "-" * (columns - len(text) - 1) + " " * (columns > len(text))
    return letter[:columns]


def _summary(simulation: Simulation) -> list[Text]:
    scalars = simulation.times.scalars().items()
    times = ", ".join(f"{name}={value:g}" for name, value in scalars if isinstance(value, (int, float)))
    of_time, of_work = (percent(share, digits=2) for share in (simulation.bubble_fraction, simulation.bubble_over_work))
    return [
        Text(f"times     {times}"),
        Text(f"makespan  {simulation.makespan:g}"),
        Text(
            f"outside   {of_time} of ranks × makespan in no cell · {of_work} of the work · "
            f"zero-bubble rate {simulation.bubble_rate_zb:.4f} (of the longest rank's span)"
        ),
    ]


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


def _reload_lines(reload: WeightReload, width: int) -> list[RenderableType]:
    times = reload.times
    lines: list[RenderableType] = [
        Text(reload_headline(reload), style="bold"),
        Text(f"times     H2D={times.H2D:g}, BROADCAST={times.BROADCAST:g}, RELOAD={times.RELOAD:g}"),
        Text(f"makespan  {reload.makespan:g}"),
    ]
    shortest = min(times.H2D, times.BROADCAST, times.RELOAD)
    scale = int((width - 24) / reload.makespan * shortest) / shortest
    if scale <= 0 or reload.ranks > 8:
        return lines
    lines.append(Text("\nbuckets: H copy from host, S broadcast (source), D (destination), R reload", style="dim"))
    for rank in range(reload.ranks):
        for lane in LANES:
            line = Text(f"{f'device {rank}' if lane == LANES[0] else '':<9} {lane:<13}", no_wrap=True)
            spans = []
            for cell in reload.cells.filter(rank=rank, lane=lane).iter_rows(named=True):
                left, right = round(cell["start"] * scale), round(cell["end"] * scale)
                letter = cell["role"][0].upper() if cell["role"] else cell["op"][0]
                text = _fit_label(letter, cell["bucket"], right - left)
                spans.append((left, right, text, LABEL_COLOURS[RELOAD_LABELS[cell["op"]]]))
            _append_line(line, spans, round(reload.makespan * scale))
            lines.append(line)
    return lines
