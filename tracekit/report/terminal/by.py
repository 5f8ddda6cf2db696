"""The step by layer, module, annotation or shape, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from tracekit.report.terminal.grid import render_grid
from tracekit.report.terminal.table import note
from tracekit.report.view import View, grids


def by_rows(view: View, width: int) -> RenderableType | None:
    """Return the rows that were asked for; None where none were."""
    if view.by is None:
        return None
    made = render_grid(grids.by(view), width, total="dim")
    return made if made is not None else Group(*(note(line) for line in view.by.notes))
