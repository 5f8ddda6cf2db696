"""Where the time went, what hides what, and what the gap is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit._util.text import at_least, ms, percent, signed, signed_ms
from tracekit.analysis import Analysis
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.plot.frame import canvas, ink_on, legend, nothing, title
from tracekit.report.schedule.plot import FAINT, INK, plain_axes
from tracekit.report.view import view_of
from tracekit.report.view.budget import BudgetView
from tracekit.report.view.pipeline import Rung

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MORE_COLOUR, LESS_COLOUR, TOTAL_COLOUR = LABEL_COLOURS["pp_comm"], LABEL_COLOURS["wgrad"], LABEL_COLOURS["memory"]


def budget(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw each rank's span as a bar: compute, what was exposed, idle; the shares are of the rank's own span."""
    found = view_of(analysis).budget
    bars = found.bars
    figure, axes = canvas(ax, width=9, height=float(np.clip(0.34 * len(bars) + 1.5, 2.2, 14)))
    widest = max((bar.span_ns for bar in bars), default=0) / 1e6
    if not widest:
        nothing(axes, "There are no GPU events in these traces.")
        return figure
    for row, bar in enumerate(bars):
        left = 0.0
        for part in bar.parts:
            width = part.ns / 1e6
            axes.barh(row, width, left=left, height=0.78, color=part.colour, edgecolor="white", linewidth=0.5)
            if width / widest > 0.055:
                _write(axes, left + width / 2, row, percent(part.share, digits=0), ink_on(part.colour))
            left += width
    axes.set_xlim(0, widest)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    step = max(1, -(-len(bars) // 32))
    axes.set_yticks(range(0, len(bars), step), [bar.name for bar in bars[::step]])
    axes.set_xlabel("time (ms) of the rank's span", fontsize=8.5, color=INK)
    plain_axes(axes)
    _budget_words(axes, analysis, found)
    legend(axes, _patches(found.legend), given=ax is not None)
    return figure


def _budget_words(axes: Axes, analysis: Analysis, found: BudgetView) -> None:
    whole = analysis.total.budget
    below = f"mean: compute {percent(whole.compute_ns / whole.span_ns)} of the span"
    if found.mean.bubble is not None:
        below += f" · bubble {at_least(percent(found.mean.bubble), found.mean.lower_bound)}"
    if found.hidden_ranks:
        below += f" · {len(found.bars)} of {len(analysis.ranks):,} ranks, from the least compute to the most"
    title(axes, "Where the time of each rank went", below)


def overlap(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw what hides what: of each communication and copy label, the share each compute label covers.

    Compute labels may run at once, so that a row can add up to more than the whole.
    """
    matrix = view_of(analysis).matrix
    if matrix is None:
        figure, axes = canvas(ax, width=6, height=2)
        nothing(axes, "There is no communication or copy to hide.")
        return figure
    columns, rows = [*matrix.columns, "exposed"], matrix.rows
    values = np.array([[*row.cells, row.exposed] for row in rows])
    figure, axes = canvas(
        ax, width=max(1.1 * len(columns) + 3.2, 6.4), height=float(np.clip(0.42 * len(rows) + 1.4, 2, 12))
    )
    for row, shares in enumerate(values):
        for column, share in enumerate(shares):
            base = MORE_COLOUR if columns[column] == "exposed" else LABEL_COLOURS[columns[column]]
            fill = _mixed(base, float(share))
            axes.add_patch(_square(column, row, fill))
            said = percent(float(share)) if share else "–"
            axes.text(column, row, said, ha="center", va="center", fontsize=8.5, color=ink_on(fill) if share else FAINT)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [f"{row.label}  ({ms(row.ns)} per rank)" for row in rows])
    axes.set_xticks(range(len(columns)), columns)
    plain_axes(axes)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_title("What hides what: share of the row's time", loc="left", fontsize=11, color=INK, pad=12)
    return figure


def gap(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the way from the ideal to the measured makespan, a bar for each cause; the parts sum to the gap."""
    found = view_of(analysis).schedule
    bars = found.gap if found is not None else None
    if found is None or not bars:
        figure, axes = canvas(ax, width=7, height=2)
        why = "No pipeline schedule was found in these traces." if found is None else "Ranks are missing."
        nothing(axes, f"There is no gap to split. {why}")
        return figure
    figure, axes = canvas(ax, width=9, height=0.36 * len(bars) + 1.4)
    draw_waterfall(axes, bars)
    ideal, measured = found.ideal.makespan_ns, found.measured.makespan_ns
    more = f", {signed(100 * (measured / ideal - 1), 0)} %" if ideal else ""
    title(axes, "From the ideal to the run", f"{found.name}: {ms(ideal)} ideal, {ms(measured)} measured{more}")
    return figure


def draw_waterfall(axes: Axes, bars: Sequence[Rung]) -> None:
    """Draw bars that lead from one total to another, each labelled with what it adds."""
    colours = {"total": TOTAL_COLOUR, "more": MORE_COLOUR, "less": LESS_COLOUR}
    widest = max(bar.high_ns for bar in bars) / 1e6
    for row, bar in enumerate(bars):
        low, high = bar.low_ns / 1e6, bar.high_ns / 1e6
        axes.barh(row, high - low, left=low, height=0.66, color=colours[bar.kind])
        said = ms(bar.ns) if bar.kind == "total" else signed_ms(bar.ns)
        axes.text(high + widest * 0.008, row, said, va="center", fontsize=8.5, color=INK)
    level = bars[0].high_ns / 1e6  # each bar is joined to the next at the level they share
    for row, bar in enumerate(bars[1:]):
        axes.plot([level, level], [row + 0.33, row + 1 - 0.33], color=FAINT, linewidth=0.8)
        level += bar.ns / 1e6 if bar.kind != "total" else 0
    axes.set_xlim(0, widest * 1.14)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.set_xlabel("time (ms)", fontsize=8.5, color=INK)
    plain_axes(axes)


def _patches(legend_rows: Sequence[tuple[str, str]]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=colour, label=name) for name, colour in legend_rows]


def _write(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=8, color=colour)


def _square(column: int, row: int, fill: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=fill, edgecolor="none")


def _mixed(colour: str, share: float) -> str:
    """A colour that is full at 100 % and nearly the page's at 0.

    >>> _mixed("#000000", 0.0), _mixed("#000000", 1.0)
    ('#e8ebee', '#000000')
    """
    part = min(max(share, 0.0), 1.0) ** 0.7
    pairs = ((int(IDLE_COLOUR[i : i + 2], 16), int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in pairs)
