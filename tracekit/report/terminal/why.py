"""What the host did instead of launching, and what hiding communication costs, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from tracekit._util.text import bare_ms, percent
from tracekit.report.terminal.grid import render_grid
from tracekit.report.terminal.table import note, table
from tracekit.report.view import View, grids


def instead(view: View, width: int) -> RenderableType | None:
    """List what the host did while the GPU waited for its next launch: the longest, over all ranks."""
    found = view.instead
    if found is None:
        return None
    last = ["line"] if found.lines else []
    made = table("ms per rank", "of it", "doing", "what", *last, left=("doing", "what", "line"))
    for row in found.rows:
        made.add_row(bare_ms(row.ns), percent(row.share), row.doing, row.what, *([row.line] if last else []))
    return Group(made, note(found.note))


def hiding(view: View, width: int) -> RenderableType | None:
    """Show how much slower compute ran beside communication, and what hiding gains after that."""
    return render_grid(grids.hiding(view), width)
