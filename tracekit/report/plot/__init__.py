"""Plots of an analysis with matplotlib: each function returns a Figure and draws on *ax* where one is given.

>>> from tracekit import analyze
>>> from tracekit.report import plot
>>> figure = plot.budget(analyze("sample_traces/reload", schedule="none"))
>>> figure.axes[0].get_title(loc="left")
'Where the time of each rank went'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report import figures
from tracekit.report.plot.bars import budget, gap, overlap
from tracekit.report.plot.schedule import curve, schedule
from tracekit.report.plot.time import lanes, timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PLOTS", "budget", "curve", "draw", "gap", "lanes", "overlap", "schedule", "timeline"]

PLOTS: dict[str, Callable[..., Figure]] = {
    "schedule": schedule,
    "measured": lambda analysis, **options: schedule(analysis, show="measured", **options),
    "ideal": lambda analysis, **options: schedule(analysis, show="ideal", **options),
    "budget": budget,
    "overlap": overlap,
    "gap": gap,
    "lanes": lanes,
    "timeline": timeline,
    "curve": curve,
}
"""Plots by the name that ``--plot`` takes."""


def draw(analysis: Analysis, name: str | None = None, **options: Any) -> Figure:
    """Draw the plot called *name*; by default the schedule where there is one, else the budget.

    *options* are those of the plot's own function.

    >>> from tracekit import analyze
    >>> draw(analyze("sample_traces/reload"), "pie")
    Traceback (most recent call last):
    tracekit.errors.OptionError: there is no plot pie (use schedule, measured, ...)
    """
    if name is None:
        name = "schedule" if analysis.schedule is not None else "budget"
    function = check_plot(name)
    if not analysis.total.budget.span_ns:
        return figures.message_figure(options.get("ax"), "The GPU events of these traces take no time.")
    return function(analysis, **options)


def check_plot(name: str) -> Callable[..., Figure]:
    """Return the function that draws *name*; raise OptionError for an unknown name."""
    if name not in PLOTS:
        raise OptionError(f"there is no plot {name}", hint=f"use {', '.join(PLOTS)}")
    return PLOTS[name]
