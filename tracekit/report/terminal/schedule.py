"""A pipeline above its ideal in the terminal, one line of characters per rank."""

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import short_ms
from tracekit.pipeline.against_ideal import StepComparison
from tracekit.report.palette import CELL_COLOURS
from tracekit.report.schedule.layout import OP_NAMES, layout_pipeline
from tracekit.report.terminal.table import Note

MAX_RANKS_IN_CHART = 8
"""Ranks to draw; of more, the first and the last half of so many."""
MAX_RANKS_IN_SHORT_CHART = 4
MIN_STRETCH_OF_SHORT_IDEAL = 3
"""Measured / ideal schedule span from which the ideal has its own time axis: on the run's it would
lose its cells."""
PAIR_LETTER = "X"
"""Letter of an overlapped pair (FB)."""


def gantt(
    compared: StepComparison, width: int, *, max_ranks: int = MAX_RANKS_IN_CHART
) -> RenderableType:
    """Draw the measured and the ideal cells of one pipeline, one line per rank."""
    layouts = layout_pipeline(compared)
    columns = max(40, min(width, 160) - 12)
    ideal_end_ns = max(int(layouts["ideal"].cells["end"].to_numpy().max()), 1)
    measured_end_ns = max(compared.measured_ns, ideal_end_ns)
    stretch = measured_end_ns / ideal_end_ns
    ranks = [bubble.rank for bubble in compared.bubbles]
    if len(ranks) > max_ranks:
        ranks = [*ranks[: max_ranks // 2], *ranks[-max_ranks // 2 :]]
    chart = Text()
    ideal = "ideal" if compared.match.exact else f"ideal of {compared.match.schedule.name}"
    ideal += f": {short_ms(ideal_end_ns)}"
    if stretch >= MIN_STRETCH_OF_SHORT_IDEAL:
        ideal += f", drawn {stretch:.0f} times as wide"
        ideal_axis_ns = ideal_end_ns
    else:
        ideal_axis_ns = measured_end_ns
    scale = short_ms(measured_end_ns / columns)
    sides = (
        (
            f"as it ran: {short_ms(compared.measured_ns)}, {scale} a character",
            layouts["measured"],
            measured_end_ns,
        ),
        (ideal, layouts["ideal"], ideal_axis_ns),
    )
    for title, layout, end_ns in sides:
        chart.append(f"  {title}\n", style="dim")
        for rank in ranks:
            chart.append(f"  {rank:>6}  ")
            chart.append_text(_line(layout.cells.filter(rank=rank), end_ns, columns))
            chart.append("\n")
    chart.rstrip()
    ops: set[str] = set()
    for layout in layouts.values():
        ops.update(layout.cells["op"])
    return Group(chart, Note(_legend(ops)))


def _legend(ops: set[str]) -> str:
    """Return the meaning of the letters of *ops*.

    >>> _legend({"F", "FB"})
    'F forward, X both at once; number: micro-batch, where it fits; ─ still running, · nothing runs'
    """
    meanings = [f"{op} {name}" for op, name in OP_NAMES.items() if op in ops]
    if "FB" in ops:
        meanings.append(f"{PAIR_LETTER} both at once")
    return f"{', '.join(meanings)}; number: micro-batch, where it fits; ─ still running, · nothing runs"


def _line(cells: pl.DataFrame, end_ns: int, columns: int) -> Text:
    """Return one rank's cells as a line of *columns* characters, from 0 to *end_ns*."""
    line = Text()
    column = 0
    for op, microbatch, start, end in cells.select("op", "microbatch", "start", "end").iter_rows():
        left = max(column, round(start / end_ns * columns))
        right = round(end / end_ns * columns)
        line.append("·" * (left - column), style="dim")
        cell_width = max(right - left, 0)
        letter = PAIR_LETTER if op == "FB" else op
        label = f"{letter}{microbatch}"
        text = label if len(label) <= cell_width else letter
        line.append(
            text.ljust(cell_width, "─")[:cell_width], style=CELL_COLOURS["B" if op == "FB" else op]
        )
        column = left + cell_width
    line.append("·" * (columns - column), style="dim")
    return line
