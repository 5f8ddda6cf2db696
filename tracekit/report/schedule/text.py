"""A schedule in the terminal: what came out, a small picture where it fits, the figures and orders of every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tracekit._util.text import percent
from tracekit.report.palette import CELL_COLOURS, LABEL_COLOURS
from tracekit.report.schedule.plot import NAMES, headline
from tracekit.schedules.weight_reload import LANES, WeightReload
from tracekit.schema import PHASES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tracekit.schedules import Entry, Simulation

_MOST_RANKS = 32
_WIDE_LIST = 140
"""Columns from which a list shows sizes and sources in columns of their own."""
_LONGEST_ORDER = 200
_INK = "#16191C"


def schedule_text(done: Simulation | WeightReload, *, width: int, letters: bool = True) -> RenderableType:
    """Tell everything about *done* on *width* columns; without colours, *letters* name the kinds in the picture."""
    if isinstance(done, WeightReload):
        return Group(*_reload_lines(done, width))
    shown: list[RenderableType] = [Text(headline(done), style="bold"), *_summary(done)]
    if picture := gantt(done, width=width, letters=letters):
        shown += ["", picture] if letters else ["", picture, _key()]
    shown += ["", _ranks(done), *_order_lines(done)]
    return Group(*shown)


def list_text(entries: list[Entry], *, width: int = 80) -> RenderableType:
    """Return all schedules as a table, a row each; a wide one also says what sizes each takes and where it is from."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_lines=False, show_edge=False)
    wide = width >= _WIDE_LIST
    for column in ("name", "what it is", *(("sizes", "source") if wide else ())):
        table.add_column(column, no_wrap=column == "name")
    for entry in entries:
        needs = entry.constraint.removeprefix(f"{entry.name} needs ")
        table.add_row(entry.name, entry.summary, *((needs or "any", Text(entry.source, style="dim")) if wide else ()))
    if wide:
        return table
    return Group(table, Text("sizes and sources: in a terminal of 140 columns, or with --json", style="dim"))


def gantt(done: Simulation, *, width: int, letters: bool = True) -> Text | None:
    """One line a rank, one or more columns the shortest op; None where it does not fit.

    >>> from tracekit.schedules import generate, simulate
    >>> print(gantt(simulate(generate("1f1b", pp=2, microbatches=2)), width=40).plain)
     0 F0 F1 ......B0--- ...B1---
     1 ...F0 B0--- F1 B1--- ......
    """
    plan = done.schedule
    shortest = float((done.end - done.start).min())
    margin = len(str(plan.pp - 1)) + 2
    columns = int((width - margin) * shortest / done.makespan) if shortest > 0 else 0
    columns = min(columns, len(str(plan.microbatches - 1)) + 1 + letters)
    if columns < 1 or plan.pp > _MOST_RANKS:
        return None
    scale = columns / shortest
    at = np.rint(np.stack([done.start, done.end]) * scale).astype(int).T.tolist()
    total = round(done.makespan * scale)
    text = Text(no_wrap=True)
    cell = 0
    for rank, ops in enumerate(plan.ranks):
        text.append(f"{rank:>{margin - 1}} ", style="bold")
        now = 0
        for op in ops:
            start, end = at[cell]
            cell += 1
            text.append("." * (start - now), style="dim")
            if op.kind == "FB":
                middle = (start + end) // 2
                text.append(_fit("F" * letters, op.microbatch, middle - start), style=f"{_INK} on {CELL_COLOURS['F']}")
                text.append(
                    _fit("B" * letters, op.b_microbatch or 0, end - middle), style=f"{_INK} on {CELL_COLOURS['B']}"
                )
            else:
                text.append(
                    _fit(op.kind * letters, op.microbatch, end - start), style=f"{_INK} on {CELL_COLOURS[op.kind]}"
                )
            now = end
        text.append("." * (total - now), style="dim")
        text.append("" if rank == plan.pp - 1 else "\n")
    return text


def _key() -> Text:
    """Name the colours; an overlapped pair shows its forward, then its backward."""
    text = Text("   ")
    for kind, name in NAMES.items():
        text.append("  ", style=f"on {CELL_COLOURS[kind]}").append(f" {name}   ", style="dim")
    return text


def _fit(kind: str, number: int, columns: int) -> str:
    """Write kind and number if there is room, else less, filled up to *columns*."""
    if not kind:  # the colour tells
        return f"{number}"[:columns].center(columns) if len(str(number)) <= columns else " " * columns
    for text in (f"{kind}{number}", kind):
        if len(text) < columns or (len(text) == columns and text == kind):
            return text + "-" * (columns - len(text) - 1) + " " * (columns > len(text))
    return kind[:columns]


def _summary(done: Simulation) -> list[Text]:
    times = ", ".join(
        f"{key}={value:g}" for key, value in done.times.scalars().items() if isinstance(value, (int, float))
    )
    return [
        Text(f"times     {times}"),
        Text(f"makespan  {done.makespan:g}"),
        Text(
            f"outside   {percent(done.bubble_fraction, digits=2)} of ranks × makespan in no cell · "
            f"{percent(done.bubble_over_work, digits=2)} of the work · zero-bubble rate {done.bubble_rate_zb:.4f} "
            "(of the longest rank's span)"
        ),
    ]


def _ranks(done: Simulation) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rank", "work", "outside cells", *PHASES, "peak chunks"):
        table.add_column(column, justify="right")
    rows = list(zip(done.idle_by_phase.iter_rows(), done.busy, done.bubble, done.peak_activations, strict=True))
    if len(rows) > _MOST_RANKS:
        half = _MOST_RANKS // 4
        rows = [*rows[:half], *rows[-half:]]
    for i, (idle, work, bubble, peak) in enumerate(rows):
        if i and idle[0] != rows[i - 1][0][0] + 1:
            table.add_row("…")
        table.add_row(*(f"{value:g}" for value in (idle[0], work, bubble, *idle[1:], peak)))
    return table


def _order_lines(done: Simulation) -> list[Text]:
    plan = done.schedule
    if plan.pp > _MOST_RANKS or max(map(len, plan.ranks)) > _LONGEST_ORDER:
        return [Text(f"\norders: {len(done.start)} ops in all; --json or -o FILE.txt has them", style="dim")]
    return [Text("\norder", style="bold"), *(Text(f"{r}: {' '.join(o)}") for r, o in enumerate(plan.orders()))]


def _reload_lines(done: WeightReload, width: int) -> list[RenderableType]:
    t = done.times
    lines: list[RenderableType] = [
        Text(f"weight-reload · {done.ranks} devices × {done.rounds} rounds", style="bold"),
        Text(f"times     H2D={t.H2D:g}, BROADCAST={t.BROADCAST:g}, RELOAD={t.RELOAD:g}"),
        Text(f"makespan  {done.makespan:g}"),
    ]
    scale = int((width - 24) / done.makespan * min(t.H2D, t.BROADCAST, t.RELOAD)) / min(t.H2D, t.BROADCAST, t.RELOAD)
    if scale <= 0 or done.ranks > 8:
        return lines
    colours = {"H2D": "onload", "BROADCAST": "broadcast", "RELOAD": "reload"}
    total = round(done.makespan * scale)
    lines.append(Text("\nbuckets: H copy from host, S broadcast (source), D (destination), R reload", style="dim"))
    for rank in range(done.ranks):
        for lane in LANES:
            text = Text(f"{f'device {rank}' if lane == LANES[0] else '':<9} {lane:<13}", no_wrap=True)
            now = 0
            for cell in done.cells.filter(rank=rank, lane=lane).iter_rows(named=True):
                start, end = round(cell["start"] * scale), round(cell["end"] * scale)
                text.append("." * (start - now), style="dim")
                letter = cell["role"][0].upper() if cell["role"] else cell["op"][0]
                style = f"{_INK} on {LABEL_COLOURS[colours[cell['op']]]}"
                text.append(_fit(letter, cell["bucket"], end - start), style=style)
                now = end
            text.append("." * (total - now), style="dim")
            lines.append(text)
    return lines
