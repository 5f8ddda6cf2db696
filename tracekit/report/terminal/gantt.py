"""Terminal Gantt chart of a pipeline: each rank as it ran and, below, its ideal on the same scale."""

from __future__ import annotations

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.compare import StepComparison
from tracekit.report.palette import CELL_COLOURS
from tracekit.report.schedule.layout import OP_NAMES, layout_pipeline
from tracekit.report.terminal.table import Note

MAX_RANKS = 8
"""Ranks to draw; of more, the first and the last half of so many."""
PAIR_LETTER = "X"
"""Letter of an overlapped pair (FB)."""


def gantt(held: StepComparison, width: int) -> RenderableType:
    """Draw the measured and the ideal cells of one pipeline, one line per rank."""
    layouts = layout_pipeline(held)
    columns = max(40, min(width, 160) - 12)
    end_ns = max(held.measured_ns, int(layouts["ideal"].cells["end"].to_numpy().max()), 1)
    ranks = [bubble.rank for bubble in held.bubbles]
    if len(ranks) > MAX_RANKS:
        ranks = [*ranks[: MAX_RANKS // 2], *ranks[-MAX_RANKS // 2 :]]
    chart = Text()
    for title, layout in (("as it ran", layouts["measured"]), ("ideal", layouts["ideal"])):
        chart.append(f"  {title}\n", style="dim")
        for rank in ranks:
            chart.append(f"  {rank:>6}  ")
            chart.append_text(_line(layout.cells.filter(rank=rank), end_ns, columns))
            chart.append("\n")
    chart.rstrip()
    return Group(chart, Note(_legend(set(layouts["measured"].cells["op"]))))


def _legend(ops: set[str]) -> str:
    """Return the meaning of the letters of *ops*.

    >>> _legend({"F", "FB"})
    'F forward, X forward and backward at once; the number is the micro-batch'
    """
    names = {op: f"{op} {name}" for op, name in OP_NAMES.items()}
    names["FB"] = f"{PAIR_LETTER} forward and backward at once"
    return f"{', '.join(name for op, name in names.items() if op in ops)}; the number is the micro-batch"


def _line(cells: pl.DataFrame, end_ns: int, columns: int) -> Text:
    """Return one rank's cells as a line of *columns* characters, from 0 to *end_ns*."""
    line, column = Text(), 0
    for op, microbatch, start, end in cells.select("op", "microbatch", "start", "end").iter_rows():
        left, right = max(column, round(start / end_ns * columns)), round(end / end_ns * columns)
        line.append("·" * (left - column), style="dim")
        cell_width = max(right - left, 0)
        letter = PAIR_LETTER if op == "FB" else op
        label = f"{letter}{microbatch}"
        text = label if len(label) <= cell_width else letter
        line.append(text.ljust(cell_width, "─")[:cell_width], style=CELL_COLOURS["B" if op == "FB" else op])
        column = left + cell_width
    line.append("·" * (columns - column), style="dim")
    return line
