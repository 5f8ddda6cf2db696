"""The pipeline as text: what each rank ran, above its ideal, to one scale."""

from __future__ import annotations

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.compare import StepComparison
from tracekit.report.palette import CELL_COLOURS
from tracekit.report.terminal.table import note

_TURNED = {"F": "F", "B": "B", "I": "I", "W": "W", "FB": "X"}


def gantt(held: StepComparison, width: int) -> RenderableType:
    """Draw two blocks of one line per rank, to one scale: as it ran, and its ideal."""
    cells = held.cells
    origin = int(cells["start_ns"].min())  # type: ignore[arg-type]
    scale = max(held.measured_ns, int(cells["ideal_end_ns"].max()), 1)  # type: ignore[arg-type]
    room = max(40, min(width, 160) - 12)
    ranks = [b.rank for b in held.bubbles]
    shown = ranks if len(ranks) <= 8 else [*ranks[:4], *ranks[-4:]]
    lines = Text()
    for title, start, end, shift in (
        ("as it ran", "start_ns", "end_ns", origin),
        ("ideal", "ideal_start_ns", "ideal_end_ns", 0),
    ):
        lines.append(f"  {title}\n", style="dim")
        for rank in shown:
            part = cells.filter(pl.col("rank") == rank).select("op", "microbatch", start, end)
            lines.append(f"  {rank:>6}  ")
            lines.append_text(_row([(op, mb, a - shift, b - shift) for op, mb, a, b in part.iter_rows()], scale, room))
            lines.append("\n")
    lines.rstrip()
    return Group(lines, note(_key(set(cells["op"].cast(pl.String).unique()))))


def _key(ops: set[str]) -> str:
    """Return what the letters mean, of those that occur.

    >>> _key({"F", "FB"})
    'F forward, X forward and backward at once; the number is the micro-batch'
    """
    names = {"F": "F forward", "B": "B backward", "I": "I backward for input", "W": "W backward for weights"}
    names["FB"] = "X forward and backward at once"
    return f"{', '.join(name for op, name in names.items() if op in ops)}; the number is the micro-batch"


def _row(cells: list[tuple[str, int, int, int]], scale: int, room: int) -> Text:
    line, at = Text(), 0
    for op, microbatch, start, end in cells:
        left, right = max(at, round(start / scale * room)), round(end / scale * room)
        line.append("·" * (left - at), style="dim")
        wide = max(right - left, 0)
        if wide:
            text = f"{_TURNED[op]}{microbatch}"
            line.append((text if len(text) <= wide else _TURNED[op]).ljust(wide, "─")[:wide], style=_style(op))
        at = max(at, left + wide)
    line.append("·" * (room - at), style="dim")
    return line


def _style(op: str) -> str:
    return CELL_COLOURS["B" if op == "FB" else op]
