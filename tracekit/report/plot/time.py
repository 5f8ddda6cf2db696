"""What ran when: the lanes of one rank, and an excerpt of several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.plot.frame import QUIET, boxes, canvas, legend, nothing, title
from tracekit.report.schedule.plot import FAINT, INK, plain_axes
from tracekit.report.view.lanes import labels_of, lanes_for
from tracekit.schema import LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Lane = Mapping[str, Mapping[str, int]]

MOST_RANKS = 16
EXCERPT = 0.15
"""Share of the step an excerpt shows where no window is given."""
_HALVES = {0: (0.0, 1.0), 1: (0.0, 0.5), 2: (0.5, 1.0)}
"""Where in its row each half lies, counted from above."""


def lanes(analysis: Analysis, *, rank: int | None = None, step: int | None = None, ax: Axes | None = None) -> Figure:
    """Draw one rank's computation, communication and copies in one step, with the pipeline's phases above.

    The rank is the first where none is given; the step that of the schedule, else the first.
    """
    table = analysis.tables["timeline"]
    figure, axes = canvas(ax, width=12, height=1.4 + 0.6 * len(_lanes(analysis)))
    if table.is_empty():
        nothing(axes, "There are no GPU events in these traces.")
        return figure
    chosen = _rank(analysis, rank)
    number, begin, end = _step(analysis, chosen, step)
    rows = _within(table.filter(rank=chosen), begin, end)
    named = _lanes(analysis)
    for row in range(len(named)):
        axes.barh(row + 0.5, (end - begin) / 1e6, height=0.92, color=IDLE_COLOUR, zorder=0)
    _fill(axes, rows, named, 0.0)
    axes.set_xlim(0, (end - begin) / 1e6)
    axes.set_ylim(len(named), -0.35)
    axes.set_yticks(np.arange(len(named)) + 0.5, list(named))
    _phases(axes, analysis, chosen, number)
    _finish(axes, rows, given=ax is not None)
    of_step = "" if number is None else f", step {number}"
    title(axes, f"Rank {chosen}{of_step}: what ran when", "")
    return figure


def timeline(
    analysis: Analysis,
    *,
    ranks: Iterable[int] | None = None,
    start_ms: float | None = None,
    end_ms: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw an excerpt of several ranks, each with its lanes, between two times after the step's first event.

    Without a window it shows the middle of the step. Ranks are drawn on the clocks of their files.
    """
    table = analysis.tables["timeline"]
    chosen = [one.rank for one in analysis.ranks][:MOST_RANKS] if ranks is None else list(ranks)
    chosen = [_rank(analysis, rank) for rank in chosen]
    named = _lanes(analysis)
    figure, axes = canvas(ax, width=12, height=float(np.clip(0.24 * len(named) * len(chosen) + 1.5, 2.6, 14)))
    if table.is_empty() or not chosen:
        nothing(axes, "There are no GPU events in these traces.")
        return figure
    windows = [_step(analysis, rank, None) for rank in chosen]
    origin, last = min(begin for _, begin, _ in windows), max(end for _, _, end in windows)
    begin, end = _window(origin, last, start_ms, end_ms)
    tall = len(named) + 0.6
    shown = []
    for at, rank in enumerate(chosen):
        rows = _within(table.filter(rank=rank), begin, end)
        for row in range(len(named)):
            axes.barh(at * tall + row + 0.5, (end - begin) / 1e6, left=(begin - origin) / 1e6, height=0.92,
                      color=IDLE_COLOUR, zorder=0)  # fmt: skip
        _fill(axes, rows, named, at * tall, shift_ms=(begin - origin) / 1e6)
        shown.append(rows)
    axes.set_xlim((begin - origin) / 1e6, (end - origin) / 1e6)
    axes.set_ylim(len(chosen) * tall - 0.6, 0)
    axes.set_yticks([at * tall + len(named) / 2 for at in range(len(chosen))], [f"rank {rank}" for rank in chosen])
    _finish(axes, pl.concat(shown), given=ax is not None)
    title(axes, "What ran when, rank by rank", f"from above: {', '.join(named)}")
    return figure


def _rank(analysis: Analysis, rank: int | None) -> int:
    return analysis.ranks[0].rank if rank is None else analysis.rank(rank).rank


def _lanes(analysis: Analysis) -> Lane:
    return lanes_for(labels_of(analysis.tables["timeline"]))


def _step(analysis: Analysis, rank: int, step: int | None) -> tuple[int | None, int, int]:
    """Return the step to show: its number, start and end."""
    steps = analysis.tables["steps"].filter(rank=rank)
    wanted = step
    if wanted is None and analysis.schedule is not None:
        wanted = analysis.schedule.head.pipeline.step
    found = steps.filter(step=wanted) if wanted is not None else steps.head(1)
    if found.is_empty():
        if step is not None:
            raise OptionError(f"rank {rank} has no step {step}", hint="see the table steps")
        found = steps.head(1)
    return found["step"][0], found["start_ns"][0], found["end_ns"][0]


def _window(origin: int, last: int, start_ms: float | None, end_ms: float | None) -> tuple[int, int]:
    span = last - origin
    length = int(span * EXCERPT)
    begin = origin + (span - length) // 2 if start_ms is None else origin + int(start_ms * 1e6)
    end = begin + length if end_ms is None else origin + int(end_ms * 1e6)
    if end <= begin:
        raise OptionError("the excerpt ends before it begins", hint="give start_ms < end_ms")
    return begin, end


def _within(rows: pl.DataFrame, begin: int, end: int) -> pl.DataFrame:
    """Return what runs between two times, in milliseconds from the first."""
    return rows.filter((pl.col("end_ns") > begin) & (pl.col("start_ns") < end)).with_columns(
        start=(pl.col("start_ns").clip(begin) - begin) / 1e6, end=(pl.col("end_ns").clip(None, end) - begin) / 1e6
    )


def _fill(axes: Axes, rows: pl.DataFrame, named: Lane, top: float, *, shift_ms: float = 0.0) -> None:
    """Draw each label on its lane; a half that has its lane to itself takes it whole."""
    present = set(rows["label"].unique().to_list())
    for at, halves in enumerate(named.values()):
        used = {half for label, half in halves.items() if label in present}
        for label, half in halves.items():
            same = rows.filter(label=label)
            above, below = _HALVES[half if len(used) > 1 else 0]
            y = top + at + 0.04
            low = np.full(len(same), y + 0.92 * above)
            high = np.full(len(same), y + 0.92 * below)
            start, end = same["start"].to_numpy() + shift_ms, same["end"].to_numpy() + shift_ms
            boxes(axes, low, high, start, end, facecolors=LABEL_COLOURS[label], zorder=1, rasterized=len(same) > 2000)


def _phases(axes: Axes, analysis: Analysis, rank: int, step: int | None) -> None:
    if not analysis.total.pipeline:
        return
    table = analysis.tables["phases"].filter((pl.col("rank") == rank) & pl.col("step").eq_missing(step))
    spans: Sequence[tuple[str, int]] = table.select("phase", "span_ns").rows()
    whole = sum(span for _, span in spans)
    at = 0.0
    for name, span in spans:
        end = at + span / 1e6
        if at:
            axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
        if span > 0.05 * whole:
            axes.text((at + end) / 2, -0.06, name, ha="center", va="bottom", fontsize=8.5, color=QUIET)
        at = end


def _finish(axes: Axes, rows: pl.DataFrame, *, given: bool) -> None:
    from matplotlib.patches import Patch

    axes.set_xlabel("time (ms) from the step's first event", fontsize=8.5, color=INK)
    plain_axes(axes)
    present = set(rows["label"].unique().to_list())
    handles: list[Any] = [Patch(facecolor=LABEL_COLOURS[name], label=name) for name in LABELS if name in present]
    handles.append(Patch(facecolor=IDLE_COLOUR, label="nothing"))
    legend(axes, handles, given=given)
