"""What more or fewer micro-batches and chunks would do: predicted with its range, and ideal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracekit.analysis import Analysis
from tracekit.compare import WhatIf
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.plot.frame import canvas, nothing, title
from tracekit.report.schedule.plot import INK, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREDICTED_COLOUR, IDEAL_COLOUR = LABEL_COLOURS["pp_comm"], LABEL_COLOURS["wgrad"]


def curve(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the time per micro-batch of the run's own schedule over the number of micro-batches.

    Where 1F1B could be cut into other numbers of chunks, these stand beside it, at this run's micro-batches.
    """
    found = analysis.schedule
    lines = () if found is None else found.what_if
    counts = [line for line in lines if line.change == "microbatches"]
    chunks = [line for line in lines if line.change == "chunks"]
    if found is None or not counts:
        figure, axes = canvas(ax, width=7, height=2)
        nothing(axes, "Nothing was predicted: analyze with what_if, and see the notices for what is missing.")
        return figure
    figure, axes = canvas(ax, width=7, height=3.6)
    _line(axes, counts, [line.microbatches or 1 for line in counts], "predicted", "ideal")
    if len(chunks) > 1:
        for line in chunks:
            _mark(axes, line)
    axes.set_ylim(bottom=0, top=1.08 * axes.get_ylim()[1])  # room for a mark's name at the top
    axes.set_xlabel("micro-batches of a step", fontsize=8.5, color=INK)
    axes.set_ylabel("ms per micro-batch", fontsize=8.5, color=INK)
    plain_axes(axes)
    axes.legend(fontsize=8, frameon=False)
    title(
        axes, "More micro-batches, other chunks", f"{found.name} on {found.pp} ranks; measured at {found.microbatches}"
    )
    return figure


def _line(axes: Axes, lines: Sequence[WhatIf], at: Sequence[int], predicted: str, ideal: str) -> None:
    """Draw predicted with its range as a band, and ideal dashed, both per micro-batch."""
    each = [(line.predicted_ns or 0) / n / 1e6 for line, n in zip(lines, at, strict=True)]
    low, high = (
        [(line.predicted_range_ns or (0, 0))[k] / n / 1e6 for line, n in zip(lines, at, strict=True)] for k in (0, 1)
    )
    axes.fill_between(at, low, high, color=PREDICTED_COLOUR, alpha=0.18, linewidth=0)
    axes.plot(at, each, color=PREDICTED_COLOUR, marker="o", markersize=4, label=predicted)
    free = [(line.ideal_ns or 0) / n / 1e6 for line, n in zip(lines, at, strict=True)]
    axes.plot(at, free, color=IDEAL_COLOUR, linestyle="--", label=ideal)


def _mark(axes: Axes, line: WhatIf) -> None:
    from matplotlib.patheffects import withStroke

    count = line.microbatches or 1
    height = (line.predicted_ns or 0) / count / 1e6
    axes.plot([count], [height], color=INK, marker="_", markersize=12, linestyle="none")
    said = f"{line.virtual} chunk{'s' * (line.virtual != 1)}"
    note = axes.annotate(
        said, (count, height), (8, 2), textcoords="offset points", fontsize=7.5, color=INK, va="bottom"
    )
    note.set_path_effects([withStroke(linewidth=3, foreground="white")])  # a line may run behind it
