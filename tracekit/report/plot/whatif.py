"""Plot of predicted and ideal time per micro-batch over the number of micro-batches and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.compare import WhatIf
from tracekit.report import figures
from tracekit.report.palette import LABEL_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREDICTED_COLOUR, IDEAL_COLOUR = LABEL_COLOURS["pp_comm"], LABEL_COLOURS["wgrad"]


def curve(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the time per micro-batch of the run's own schedule over the number of micro-batches.

    Predictions for other numbers of chunks are marked at this run's number of micro-batches.
    """
    comparison = analysis.schedule
    predictions = () if comparison is None else comparison.what_if
    by_microbatches = [prediction for prediction in predictions if prediction.change == "microbatches"]
    by_chunks = [prediction for prediction in predictions if prediction.change == "chunks"]
    if comparison is None or not by_microbatches:
        text = "Nothing was predicted: analyze with what_if, and see the notices for what is missing."
        return figures.message_figure(ax, text)
    figure, axes = figures.figure_and_axes(ax, width=7, height=3.6)
    _draw_curves(axes, by_microbatches)
    for prediction in by_chunks if len(by_chunks) > 1 else ():
        _mark_chunks(axes, prediction)
    axes.set_ylim(bottom=0, top=1.08 * axes.get_ylim()[1])  # space for the name of the topmost mark
    axes.set_ylabel("ms per micro-batch", fontsize=8.5, color=figures.INK)
    figures.strip_axes(axes, x_label="micro-batches of a step")
    axes.legend(fontsize=8, frameon=False)
    facts = f"{comparison.name} on {comparison.pp} ranks; measured at {comparison.microbatches}"
    figures.draw_title(axes, "More micro-batches, other chunks", facts)
    return figure


def _draw_curves(axes: Axes, predictions: Sequence[WhatIf]) -> None:
    """Draw the predicted time with its range as a band, and the ideal time dashed, both in ms per micro-batch."""
    counts = [prediction.microbatches or 1 for prediction in predictions]
    predicted = [_ms_per_microbatch(prediction, prediction.predicted_ns) for prediction in predictions]
    ideal = [_ms_per_microbatch(prediction, prediction.ideal_ns) for prediction in predictions]
    low, high = (
        [_ms_per_microbatch(prediction, (prediction.predicted_range_ns or (0, 0))[i]) for prediction in predictions]
        for i in (0, 1)
    )
    axes.fill_between(counts, low, high, color=PREDICTED_COLOUR, alpha=0.18, linewidth=0)
    axes.plot(counts, predicted, color=PREDICTED_COLOUR, marker="o", markersize=4, label="predicted")
    axes.plot(counts, ideal, color=IDEAL_COLOUR, linestyle="--", label="ideal")


def _mark_chunks(axes: Axes, prediction: WhatIf) -> None:
    """Mark the time predicted for another number of chunks."""
    from matplotlib.patheffects import withStroke

    point = (prediction.microbatches or 1, _ms_per_microbatch(prediction, prediction.predicted_ns))
    axes.plot(*point, color=figures.INK, marker="_", markersize=12, linestyle="none")
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "color": figures.INK, "va": "bottom"}
    text = axes.annotate(counted(prediction.virtual or 1, "chunk"), point, (8, 2), **style)
    text.set_path_effects([withStroke(linewidth=3, foreground="white")])  # readable over a curve behind it


def _ms_per_microbatch(prediction: WhatIf, ns: int | None) -> float:
    return (ns or 0) / (prediction.microbatches or 1) / 1e6
