"""How fast products and communication ran, in the terminal."""

from __future__ import annotations

from rich.console import RenderableType

from tracekit.report.terminal.grid import render_grid
from tracekit.report.view import View, grids


def products(view: View, width: int) -> RenderableType | None:
    """Return the rates of matrix products, by label and the longest kinds; None where no shapes were recorded."""
    return render_grid(grids.products(view), width, total="bold")


def communication(view: View, width: int) -> RenderableType | None:
    """Return bandwidths of matched operations, waiting apart; None where no sizes were recorded."""
    return render_grid(grids.communication(view), width)


def experts(view: View, width: int) -> RenderableType | None:
    """Return what each rank's experts were sent; None where dispatches do not say how much came in."""
    return render_grid(grids.experts(view), width)
