"""Bar plots: the budget of each rank, the overlap matrix, and the gap to the ideal by cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit._util.text import at_least, ms, percent, signed, signed_ms
from tracekit.analysis import Analysis
from tracekit.report import figures
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS, mix_colours
from tracekit.report.view import view_of
from tracekit.report.view.budget import BudgetView
from tracekit.report.view.pipeline import Rung

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MORE_COLOUR, LESS_COLOUR, TOTAL_COLOUR = LABEL_COLOURS["pp_comm"], LABEL_COLOURS["wgrad"], LABEL_COLOURS["memory"]
MIN_BAR_SHARE_FOR_TEXT = 0.055
"""Width, as a share of the axes, from which a part of a bar shows its percentage."""


def budget(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw each rank's span as a bar: compute, exposed time by label, idle; shares are of the rank's own span."""
    from matplotlib.patches import Patch

    view = view_of(analysis).budget
    bars = view.bars
    longest_ms = max(bar.span_ns for bar in bars) / 1e6
    figure, axes = figures.figure_and_axes(ax, width=9, height=float(np.clip(0.34 * len(bars) + 1.5, 2.2, 14)))
    text_style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 8}
    for row, bar in enumerate(bars):
        left = 0.0
        for part in bar.parts:
            width = part.ns / 1e6
            axes.barh(row, width, left=left, height=0.78, color=part.colour, edgecolor="white", linewidth=0.5)
            if width / longest_ms > MIN_BAR_SHARE_FOR_TEXT:
                text = percent(part.share, digits=0)
                axes.text(left + width / 2, row, text, color=figures.text_colour_on(part.colour), **text_style)
            left += width
    axes.set_xlim(0, longest_ms)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    step = max(1, -(-len(bars) // 32))
    axes.set_yticks(range(0, len(bars), step), [bar.name for bar in bars[::step]])
    figures.strip_axes(axes, x_label="time (ms) of the rank's span")
    figures.draw_title(axes, "Where the time of each rank went", _budget_facts(analysis, view))
    handles = [Patch(facecolor=colour, label=name) for name, colour in view.legend]
    figures.draw_legend(axes, handles, below_axes=ax is not None)
    return figure


def _budget_facts(analysis: Analysis, view: BudgetView) -> str:
    total = analysis.total.budget
    facts = [f"mean: compute {percent(total.compute_ns / total.span_ns)} of the span"]
    if view.mean.bubble is not None:
        facts.append(f"bubble {at_least(percent(view.mean.bubble), view.mean.bubble_is_lower_bound)}")
    if view.hidden_ranks:
        facts.append(f"{len(view.bars)} of {len(analysis.rank_results):,} ranks, from the least compute to the most")
    return " · ".join(facts)


def overlap(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the overlap matrix: of each communication and copy label, the share that each compute label covers.

    Compute labels may run at once, so a row can add up to more than 100 %.
    """
    from matplotlib.patches import Rectangle

    matrix = view_of(analysis).matrix
    if matrix is None:
        return figures.message_figure(ax, "There is no communication or copy to hide.")
    columns, rows = [*matrix.columns, "exposed"], matrix.rows
    figure, axes = figures.figure_and_axes(
        ax, width=max(1.1 * len(columns) + 3.2, 6.4), height=float(np.clip(0.42 * len(rows) + 1.4, 2, 12))
    )
    for y, row in enumerate(rows):
        for x, (column, share) in enumerate(zip(columns, [*row.cells, row.exposed], strict=True)):
            base = MORE_COLOUR if column == "exposed" else LABEL_COLOURS[column]
            # The exponent lifts small shares: 10 % must be seen beside 100 %.
            fill = mix_colours(IDLE_COLOUR, base, min(max(share, 0.0), 1.0) ** 0.7)
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=fill, edgecolor="none"))
            text, colour = (percent(share), figures.text_colour_on(fill)) if share else ("–", figures.FAINT_INK)
            axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=colour)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [f"{row.label}  ({ms(row.ns)} per rank)" for row in rows])
    axes.set_xticks(range(len(columns)), columns)
    figures.strip_axes(axes)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_title("What hides what: share of the row's time", loc="left", fontsize=11, color=figures.INK, pad=12)
    return figure


def gap(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw a waterfall from the ideal to the measured makespan, one bar per cause; the parts sum to the gap."""
    view = view_of(analysis).schedule
    if view is None or not view.gap:
        reason = "No pipeline schedule was found in these traces." if view is None else "Ranks are missing."
        return figures.message_figure(ax, f"There is no gap to split. {reason}")
    figure, axes = figures.figure_and_axes(ax, width=9, height=0.36 * len(view.gap) + 1.4)
    _draw_waterfall(axes, view.gap)
    ideal_ns, measured_ns = view.head.ideal_ns, view.head.measured_ns
    more = f", {signed(100 * (measured_ns / ideal_ns - 1), 0)} %" if ideal_ns else ""
    facts = f"{view.comparison.name}: {ms(ideal_ns)} ideal, {ms(measured_ns)} measured{more}"
    figures.draw_title(axes, "From the ideal to the run", facts)
    return figure


def _draw_waterfall(axes: Axes, bars: Sequence[Rung]) -> None:
    """Draw bars that lead from one total to another, each labelled with what it adds."""
    colours = {"total": TOTAL_COLOUR, "more": MORE_COLOUR, "less": LESS_COLOUR}
    widest_ms = max(bar.high_ns for bar in bars) / 1e6
    for row, bar in enumerate(bars):
        low, high = bar.low_ns / 1e6, bar.high_ns / 1e6
        axes.barh(row, high - low, left=low, height=0.66, color=colours[bar.kind])
        text = ms(bar.ns) if bar.kind == "total" else signed_ms(bar.ns)
        axes.text(high + widest_ms * 0.008, row, text, va="center", fontsize=8.5, color=figures.INK)
    level = bars[0].high_ns / 1e6  # a thin line joins each bar to the next at the level they share
    for row, bar in enumerate(bars[1:]):
        axes.plot([level, level], [row + 0.33, row + 1 - 0.33], color=figures.FAINT_INK, linewidth=0.8)
        level += bar.ns / 1e6 if bar.kind != "total" else 0
    axes.set_xlim(0, widest_ms * 1.14)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    figures.strip_axes(axes, x_label="time (ms)")
