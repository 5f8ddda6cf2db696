"""Plots over time: the lanes of one rank, and an excerpt of several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report import figures
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.schedule.layout import PART_EDGES, WHOLE
from tracekit.report.schedule.plot import ROW_MARGIN
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lanes = Mapping[str, Mapping[str, int]]
"""Labels of each lane and the part of it they are drawn in."""
MAX_RANKS = 16
"""Ranks of an excerpt where none are named."""
EXCERPT_SHARE = 0.15
"""Share of the step that an excerpt shows where no window is given."""
RANK_GAP_ROWS = 0.6
"""Space between the lanes of two ranks, in rows."""
MAX_VECTOR_BOXES = 2_000
"""More boxes of one label are drawn as pixels, so that the file stays small."""
LANES: Lanes = {
    "Computation": {label: 0 for label in LABELS if label not in (*COMMUNICATION_LABELS, *COPY_LABELS)},
    "Communication": {label: 1 if label.startswith("ep_") else 2 for label in COMMUNICATION_LABELS},
    "Offload": {label: 2 if label == "onload" else 1 for label in COPY_LABELS},
}
"""Labels of each lane and the part of it they are drawn in (0: the whole, 1 and 2: a half), so that labels that run at
once do not cover each other."""

RELOAD_LANES: Lanes = {
    "H2D": {"onload": 0, "offload": 0, "memory": 0},
    "Broadcast": dict.fromkeys(COMMUNICATION_LABELS, 0),
    "Reload": {"reload": 0},
    "Computation": LANES["Computation"],
}


def lanes(analysis: Analysis, *, rank: int | None = None, step: int | None = None, ax: Axes | None = None) -> Figure:
    """Draw one rank's computation, communication and copies in one step, with the pipeline's phases above.

    The rank is the first where none is given; the step that of the schedule, else the first.
    """
    timeline_table = analysis.tables["timeline"]
    lanes = lanes_for(labels_of(timeline_table))
    figure, axes = figures.figure_and_axes(ax, width=12, height=1.4 + 0.6 * len(lanes))
    rank = (analysis.rank_results[0] if rank is None else analysis.rank(rank)).rank
    step, begin_ns, end_ns = _step_window(analysis, rank, step)
    events = _events_between(timeline_table.filter(rank=rank), begin_ns, end_ns, origin_ns=begin_ns)
    axes.set_xlim(0, (end_ns - begin_ns) / 1e6)
    axes.set_ylim(len(lanes), -0.35)
    _draw_lanes(axes, events, lanes, first_row=0)
    axes.set_yticks(np.arange(len(lanes)) + 0.5, list(lanes))
    _draw_phases(axes, analysis, rank, step)
    _finish_axes(axes, events, below_axes=ax is not None)
    figures.draw_title(axes, f"Rank {rank}{'' if step is None else f', step {step}'}: what ran when")
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
    timeline_table = analysis.tables["timeline"]
    if ranks is None:
        ranks = [measured.rank for measured in analysis.rank_results][:MAX_RANKS]
    ranks = [analysis.rank(rank).rank for rank in ranks]  # which raises for a rank that was not analysed
    if not ranks:
        raise OptionError("there are no ranks to draw", hint="name at least one, or leave ranks out")
    lanes = lanes_for(labels_of(timeline_table))
    height = float(np.clip(0.24 * len(lanes) * len(ranks) + 1.5, 2.6, 14))
    figure, axes = figures.figure_and_axes(ax, width=12, height=height)
    windows = [_step_window(analysis, rank, None) for rank in ranks]
    origin_ns = min(begin_ns for _, begin_ns, _ in windows)
    begin_ns, end_ns = _excerpt(origin_ns, max(end_ns for _, _, end_ns in windows), start_ms, end_ms)
    axes.set_xlim((begin_ns - origin_ns) / 1e6, (end_ns - origin_ns) / 1e6)
    rows_per_rank = len(lanes) + RANK_GAP_ROWS
    axes.set_ylim(len(ranks) * rows_per_rank - RANK_GAP_ROWS, 0)
    events_by_rank = [
        _events_between(timeline_table.filter(rank=rank), begin_ns, end_ns, origin_ns=origin_ns) for rank in ranks
    ]
    first_rows = [i * rows_per_rank for i in range(len(ranks))]
    for first_row, events in zip(first_rows, events_by_rank, strict=True):
        _draw_lanes(axes, events, lanes, first_row=first_row)
    axes.set_yticks([first_row + len(lanes) / 2 for first_row in first_rows], [f"rank {rank}" for rank in ranks])
    _finish_axes(axes, pl.concat(events_by_rank), below_axes=ax is not None)
    figures.draw_title(axes, "What ran when, rank by rank", f"from above: {', '.join(lanes)}")
    return figure


def _step_window(analysis: Analysis, rank: int, step: int | None) -> tuple[int | None, int, int]:
    """Return number, start and end of a step on a rank; for None, of the schedule's step, else of the first."""
    steps = analysis.tables["steps"].filter(rank=rank)
    wanted = step
    if wanted is None and analysis.schedule is not None:
        wanted = analysis.schedule.head.pipeline.step
    window = steps.filter(step=wanted) if wanted is not None else steps
    if window.is_empty():
        if step is not None:
            raise OptionError(f"rank {rank} has no step {step}", hint="see the table steps")
        window = steps
    number, start_ns, end_ns = window.select("step", "start_ns", "end_ns").row(0)
    return number, start_ns, end_ns


def _excerpt(origin_ns: int, last_ns: int, start_ms: float | None, end_ms: float | None) -> tuple[int, int]:
    """Return start and end of the excerpt; by default ``EXCERPT_SHARE`` of the step, from its middle."""
    length = int((last_ns - origin_ns) * EXCERPT_SHARE)
    begin = origin_ns + (last_ns - origin_ns - length) // 2 if start_ms is None else origin_ns + int(start_ms * 1e6)
    end = begin + length if end_ms is None else origin_ns + int(end_ms * 1e6)
    if end <= begin:
        raise OptionError("the excerpt ends before it begins", hint="give start_ms < end_ms")
    return begin, end


def _events_between(events: pl.DataFrame, begin_ns: int, end_ns: int, *, origin_ns: int) -> pl.DataFrame:
    """Return the events between two times, clipped to them, with ``start`` and ``end`` in ms after the origin."""
    return events.filter((pl.col("end_ns") > begin_ns) & (pl.col("start_ns") < end_ns)).with_columns(
        start=(pl.col("start_ns").clip(begin_ns) - origin_ns) / 1e6,
        end=(pl.col("end_ns").clip(None, end_ns) - origin_ns) / 1e6,
    )


def _draw_lanes(axes: Axes, events: pl.DataFrame, lanes: Lanes, *, first_row: float) -> None:
    """Draw each label on its lane, over idle time as wide as the axes; *events* are in ms.

    A half of a lane whose other half is empty fills the whole lane.
    """
    left, right = axes.get_xlim()
    height = 1 - 2 * ROW_MARGIN
    present = set(labels_of(events))
    for lane, part_of_label in enumerate(lanes.values()):
        top = first_row + lane + ROW_MARGIN
        figures.draw_boxes(
            axes, start=[left], end=right, top=top, bottom=top + height, facecolors=IDLE_COLOUR, zorder=0
        )
        parts_used = {part for label, part in part_of_label.items() if label in present}
        for label, part in part_of_label.items():
            same = events.filter(label=label)
            upper, lower = PART_EDGES[part if len(parts_used) > 1 else WHOLE]
            figures.draw_boxes(
                axes,
                start=same["start"].to_numpy(), end=same["end"].to_numpy(),
                top=top + height * upper, bottom=top + height * lower,
                facecolors=LABEL_COLOURS[label], zorder=1, rasterized=len(same) > MAX_VECTOR_BOXES,
            )  # fmt: skip


def _draw_phases(axes: Axes, analysis: Analysis, rank: int, step: int | None) -> None:
    """Draw dashed lines between the pipeline's phases, and the names of those that are wide enough."""
    if not analysis.total.pipeline:
        return
    phases = analysis.tables["phases"].filter((pl.col("rank") == rank) & pl.col("step").eq_missing(step))
    total_ns = int(phases["span_ns"].sum())
    start = 0.0
    for name, span_ns in phases.select("phase", "span_ns").iter_rows():
        end = start + span_ns / 1e6
        if start:
            axes.axvline(start, color=figures.FAINT_INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
        if span_ns > 0.05 * total_ns:
            axes.text((start + end) / 2, -0.06, name, ha="center", va="bottom", fontsize=8.5, color=figures.QUIET_INK)
        start = end


def _finish_axes(axes: Axes, events: pl.DataFrame, *, below_axes: bool) -> None:
    """Name the time axis and draw the legend of the labels that occur."""
    from matplotlib.patches import Patch

    figures.strip_axes(axes, x_label="time (ms) from the step's first event")
    handles: list[Any] = [Patch(facecolor=LABEL_COLOURS[label], label=label) for label in labels_of(events)]
    figures.draw_legend(axes, [*handles, Patch(facecolor=IDLE_COLOUR, label="nothing")], below_axes=below_axes)


def labels_of(table: pl.DataFrame) -> list[str]:
    """Return the labels that occur in a table, in the order of the label list."""
    present = set(table["label"].unique().to_list())
    return [label for label in LABELS if label in present]


def lanes_for(present: Sequence[str]) -> Lanes:
    """Return the lanes on which something runs; a copy lane without copies to or from the host is called "Copies".

    >>> list(lanes_for(["forward", "pp_comm", "offload"])), list(lanes_for(["forward", "memory"]))
    (['Computation', 'Communication', 'Offload'], ['Computation', 'Copies'])
    """
    lanes = RELOAD_LANES if "reload" in present else LANES
    used = {name: halves for name, halves in lanes.items() if any(label in halves for label in present)}
    copies_to_host = "offload" in present or "onload" in present
    return {"Copies" if name == "Offload" and not copies_to_host else name: halves for name, halves in used.items()}
