"""The critical path in the terminal: its longest segments, and what it is made of."""

from __future__ import annotations

from rich.console import Group, RenderableType

from tracekit._util.text import bare_ms, percent, terminal
from tracekit.report.terminal.table import fitted, note
from tracekit.report.view import View


def critical(view: View, width: int) -> RenderableType | None:
    """List the longest segments of the slowest step's path, and sum up the whole."""
    path = view.critical
    if path is None:
        return None
    heads = ("from ms", "ms", "of step", "rank", "kind", "label", "came last", "what")
    rows = [
        (bare_ms(row.from_ns), bare_ms(row.ns), percent(row.share), str(row.rank), row.kind, row.label or "",
         "" if row.peer is None else f"rank {row.peer}", terminal(row.name()))
        for row in path.rows
    ]  # fmt: skip
    made = fitted(heads, rows, width, left=("kind", "label", "what"), spare=("came last", "of step"), names="what")
    return Group(made, *(note(line) for line in path.notes))
