"""The critical path in the terminal: its longest segments, and what it is made of."""

from __future__ import annotations

from rich.console import Group, RenderableType

from tracekit._util.text import bare_ms, percent
from tracekit.report.terminal.table import note, table
from tracekit.report.view import View

_WIDEST = 44


def critical(view: View, width: int) -> RenderableType | None:
    """List the longest segments of the slowest step's path, and sum up the whole."""
    path = view.critical
    if path is None:
        return None
    made = table("from ms", "ms", "of step", "rank", "kind", "label", "what", left=("kind", "label", "what"))
    for row in path.rows:
        peer = f", rank {row.peer} came last" if row.peer is not None else ""
        what = row.name(most=max(12, min(_WIDEST, width - 56))) + peer
        times = (bare_ms(row.from_ns), bare_ms(row.ns), percent(row.share))
        made.add_row(*times, str(row.rank), row.kind, row.label or "", what)
    return Group(made, *(note(line) for line in path.notes))
