"""Pictures of an analysis by name, those of the side rooms with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.memory.plot import flame, memory
from tracekit.report import figures
from tracekit.report.plot import CORE_PLOTS

PLOTS: Mapping[str, Callable[..., Figure]] = {**CORE_PLOTS, "memory": memory, "flame": flame}
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
        name = "schedule" if analysis.comparison is not None else "budget"
    function = check_plot(name)
    if not analysis.total.budget.span_ns:
        return figures.message_figure(
            options.get("ax"), "The GPU events of these traces take no time."
        )
    return function(analysis, **options)


def check_plot(name: str) -> Callable[..., Figure]:
    """Return the function that draws *name*; raise OptionError for an unknown name."""
    if name not in PLOTS:
        raise OptionError(f"there is no plot {name}", hint=f"use {', '.join(PLOTS)}")
    return PLOTS[name]
