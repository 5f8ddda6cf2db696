"""The pipeline as it ran, its ideal, or one above the other on a shared time axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report.plot.frame import QUIET, canvas, legend, nothing, title
from tracekit.report.schedule.plot import (
    INK,
    MOST_NUMBERS,
    cell_handles,
    cell_parts,
    chunks,
    draw_cells,
    draw_idle,
    plain_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracekit.compare.comparison import StepComparison

Show = Literal["both", "measured", "ideal"]
MARGIN = 1.6
"""Inches beside the time axis."""


def schedule(analysis: Analysis, *, show: Show = "both", ax: Axes | None = None) -> Figure:
    """Draw the measured pipeline above its ideal, or one of them, with the micro-batch in every cell it fits.

    >>> from tracekit import analyze
    >>> figure = schedule(analyze("sample_traces/1f1b"), show="ideal")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['rank 0', 'rank 1', 'rank 2', 'rank 3']
    """
    if show not in ("both", "measured", "ideal"):
        raise OptionError(f"there is no {show} schedule", hint="use both, measured or ideal")
    found = analysis.schedule
    if found is None:
        figure, axes = canvas(ax, width=7, height=2)
        nothing(axes, "No pipeline schedule was found in these traces.")
        return figure
    held = found.head
    wanted: list[str] = ["measured", "ideal"] if show == "both" else [show]
    tables = {name: _cells(held, ideal=name == "ideal") for name in wanted}
    ranks = sorted(held.cells["rank"].unique().to_list())
    ends = {"measured": held.measured_ns / 1e6, "ideal": held.ideal_ns / 1e6}
    end = max(ends[name] for name in wanted)
    width, inches = _size(tables, end)
    rows = len(wanted) * len(ranks) + (len(wanted) - 1)
    figure, axes = canvas(ax, width=width, height=float(np.clip(0.34 * rows + 1.6, 2.6, 14)))
    if ax is not None:
        inches = (axes.get_window_extent().width / figure.dpi) / end
        inches = inches if sum(map(len, tables.values())) <= MOST_NUMBERS else 0
    for number, name in enumerate(wanted):
        first = number * (len(ranks) + 1)
        row = {rank: first + at for at, rank in enumerate(ranks)}
        _draw(axes, tables[name], held, row, inches)
        draw_idle(axes, range(first, first + len(ranks)), ends[name])
        if len(wanted) > 1:
            axes.text(0, first - 0.12, name, ha="left", va="bottom", fontsize=8.5, color=QUIET)
    _time_axis(axes, end, ranks, len(wanted))
    title(axes, _headline(analysis), _facts(held, show))
    ran = held.cells["op"].cast(pl.String).unique().to_list()
    legend(axes, cell_handles(held.match.schedule, ran), given=ax is not None)
    return figure


def _cells(held: StepComparison, *, ideal: bool) -> pl.DataFrame:
    """Cells with start and end in milliseconds from the first."""
    prefix = "ideal_" if ideal else ""
    start, end = pl.col(f"{prefix}start_ns"), pl.col(f"{prefix}end_ns")
    return held.cells.with_columns(start=(start - start.min()) / 1e6, end=(end - start.min()) / 1e6)


def _size(tables: dict[str, pl.DataFrame], end: float) -> tuple[float, float]:
    """Width of the figure, and inches a millisecond; 0 where there are too many cells to number."""
    cells = pl.concat(tables.values())
    if len(cells) > MOST_NUMBERS or not end:
        return 16, 0
    typical = float((cells["end"] - cells["start"]).quantile(0.1) or end)
    width = float(np.clip(end / max(typical, 1e-9) * 0.16 + MARGIN, 8, 18))
    return width, (width - MARGIN) / end


def _draw(axes: Axes, cells: pl.DataFrame, held: StepComparison, row: Mapping[int, int], inches: float) -> None:
    shapes = cell_parts(cells)
    shapes = replace(shapes, rank=np.array([row[rank] for rank in shapes.rank.tolist()], np.int64))
    draw_cells(axes, shapes, held.match.schedule, inches=inches)


def _time_axis(axes: Axes, end: float, ranks: list[int], sections: int) -> None:
    rows = sections * (len(ranks) + 1) - 1
    axes.set_xlim(0, end)
    axes.set_ylim(rows, -0.55 if sections > 1 else 0)
    step = max(1, -(-len(ranks) // 16))
    places = [(s * (len(ranks) + 1) + at + 0.5, rank) for s in range(sections) for at, rank in enumerate(ranks)]
    shown = [place for at, place in enumerate(places) if at % len(ranks) % step == 0]
    axes.set_yticks([y for y, _ in shown], [f"rank {rank}" for _, rank in shown])
    axes.set_xlabel("time (ms) from the step's first cell", fontsize=8.5, color=INK)
    plain_axes(axes)


def _headline(analysis: Analysis) -> str:
    found = analysis.schedule
    assert found is not None, "drawn only where there is a schedule"
    chunked = found.virtual > 1 and chunks(found.head.match.schedule).any()
    several = f" × {found.virtual} chunks" if chunked else ""
    ranks = counted(found.pp, "rank")
    near = "" if found.exact else ", nearly"
    return f"{found.name}{near} · {ranks} × {found.microbatches} micro-batches{several}"


def _facts(held: StepComparison, show: str) -> str:
    measured = f"measured {ms(held.measured_ns)}, {percent(held.measured_bubble)} outside cells"
    ideal = f"ideal {ms(held.ideal_ns)}, {percent(held.ideal_bubble)} outside cells"
    return {"both": f"{measured} · {ideal}", "measured": measured, "ideal": ideal}[show]
