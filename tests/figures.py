"""Figures of a rank or a step with other measured times, whose shares follow from them."""

from __future__ import annotations

import inspect

from msgspec.structs import replace

from tracekit.analysis.measured import make_figures


def with_figures(figures, **changes):
    """Return *figures* with some arguments of ``make_figures`` changed."""
    measured = {
        "exposed_wait_ns": figures.bubble.wait_ns,
        "least_wait_ns": figures.bubble.least_wait_ns,
    }
    for name in inspect.signature(make_figures).parameters:
        if name not in measured:
            measured[name] = getattr(figures, name)
    return replace(figures, **make_figures(**measured | changes))
