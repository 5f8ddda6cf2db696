"""Plots of a run's pipeline: as it ran, its ideal, or both on a shared time axis; and what-if predictions as curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.compare import WhatIf
from tracekit.errors import OptionError
from tracekit.report import figures
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.schedule.layout import ScheduleLayout, headline, layout_pipeline
from tracekit.report.schedule.plot import MAX_LABELLED_BOXES, cell_handles, draw_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracekit.compare.comparison import StepComparison


Show = Literal["both", "measured", "ideal"]
MARGIN_INCHES = 1.6
"""Width of the figure beside the time axis."""


def schedule(analysis: Analysis, *, show: Show = "both", ax: Axes | None = None) -> Figure:
    """Draw the measured pipeline above its ideal, or one of them, with the micro-batch in every cell it fits.

    >>> from tracekit import analyze
    >>> figure = schedule(analyze("sample_traces/1f1b"), show="ideal")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['rank 0', 'rank 1', 'rank 2', 'rank 3']
    """
    if show not in ("both", "measured", "ideal"):
        raise OptionError(f"there is no {show} schedule", hint="use both, measured or ideal")
    if analysis.schedule is None:
        return figures.message_figure(ax, "No pipeline schedule was found in these traces.")
    compared = analysis.schedule.head
    layouts = {name: layout.in_ms() for name, layout in layout_pipeline(compared).items() if show in ("both", name)}
    *_, last = layouts.values()
    end = max(layout.end for layout in layouts.values())
    rows = len(layouts) * (len(last.rows) + 1) - 1  # one empty row between the sections
    width = _figure_width(list(layouts.values()), end)
    figure, axes = figures.figure_and_axes(ax, width=width, height=float(np.clip(0.34 * rows + 1.6, 2.6, 14)))
    inches = width - MARGIN_INCHES if ax is None else axes.get_window_extent().width / figure.dpi
    labelled = sum(len(layout.cells) for layout in layouts.values()) <= MAX_LABELLED_BOXES and end
    inches_per_unit = inches / end if labelled else 0
    draw_grid(axes, layouts, inches_per_unit=inches_per_unit, x_label="time (ms) from the step's first cell")
    name = analysis.schedule.name if analysis.schedule.exact else f"{analysis.schedule.name}, nearly"
    figures.draw_title(axes, headline(compared.match.schedule, name=name), _facts(compared, show))
    figures.draw_legend(axes, cell_handles(last), below_axes=ax is not None)
    return figure


def _figure_width(layouts: list[ScheduleLayout], end: float) -> float:
    """Return the width in inches at which the shorter cells show their micro-batch, within limits."""
    durations = pl.concat([layout.cells["end"] - layout.cells["start"] for layout in layouts])
    if len(durations) > MAX_LABELLED_BOXES or not end:
        return 16
    short = float(durations.quantile(0.1) or end)
    return float(np.clip(end / max(short, 1e-9) * 0.16 + MARGIN_INCHES, 8, 18))


def _facts(compared: StepComparison, show: Show) -> str:
    measured = f"measured {ms(compared.measured_ns)}, {percent(compared.measured_bubble)} outside cells"
    ideal = f"ideal {ms(compared.ideal_ns)}, {percent(compared.ideal_bubble)} outside cells"
    return {"both": f"{measured} · {ideal}", "measured": measured, "ideal": ideal}[show]


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
