"""Schedules drawn with matplotlib: one row per rank, time to the right, one box per op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.report.figures import FAINT_INK, INK, draw_boxes, draw_legend, draw_title, strip_axes
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR
from tracekit.report.schedule.facts import schedule_headline, simulation_facts
from tracekit.report.schedule.layout import OP_NAMES, UPPER, WHOLE, ScheduleLayout, layout_simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from tracekit.schedules import Simulation

MAX_LABELLED_BOXES = 2_500
"""A layout of more boxes is drawn without labels, edges and vector outlines."""
DIGIT_INCHES = 0.07
LABEL_MARGIN_INCHES = 0.03
ROW_MARGIN = 0.04
"""Space above and below the boxes of a row, as a share of the row's height."""


def draw_schedule(simulation: Simulation, *, title: str | None = None) -> Figure:
    """Draw a simulated schedule on a figure of its own.

    >>> from tracekit.schedules import generate, simulate
    >>> draw_schedule(simulate(generate("1f1b", pp=2, microbatches=2))).axes[0].get_xlabel()
    'time (units of the given times)'
    """
    from matplotlib.figure import Figure

    layout = layout_simulation(simulation)
    durations = (layout.boxes["end"] - layout.boxes["start"]).to_numpy()
    labelled = len(durations) <= MAX_LABELLED_BOXES
    units = simulation.makespan / max(float(durations.min()), 1e-12)  # in durations of the shortest op
    width = float(np.clip(units * 0.19 + 1.2, 7, 18 if labelled else 16))
    inches_per_unit = (width - 1.2) / simulation.makespan
    labelled = labelled and float(durations.max()) * inches_per_unit >= DIGIT_INCHES + LABEL_MARGIN_INCHES
    height = float(np.clip(0.36 * len(layout.ranks) + 1.5, 2.4, 10))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    draw_grid(axes, layout, inches_per_unit=inches_per_unit if labelled else 0)
    draw_title(axes, title or schedule_headline(simulation.schedule), simulation_facts(simulation))
    draw_legend(axes, cell_handles(layout))
    return figure


def draw_grid(axes: Axes, layout: ScheduleLayout, *, inches_per_unit: float) -> None:
    """Draw a simulated schedule onto *axes* and name its rows; see ``draw_cells`` for *inches_per_unit*."""
    draw_cells(axes, layout, inches_per_unit=inches_per_unit)
    rows = len(layout.ranks)
    axes.set_xlim(0, layout.end)
    axes.set_ylim(rows, 0)
    step = max(1, -(-rows // 16))
    axes.set_yticks(np.arange(0, rows, step) + 0.5, [f"rank {rank}" for rank in layout.ranks[::step]])
    strip_axes(axes, x_label="time (units of the given times)")


def draw_cells(axes: Axes, layout: ScheduleLayout, *, inches_per_unit: float, first_row: int = 0) -> None:
    """Draw idle time and boxes of a layout, one row per rank from *first_row* down.

    Args:
        axes: Axes to draw on.
        layout: The schedule.
        inches_per_unit: Inches that a unit of time takes. A label is written where it fits; with 0, none is.
        first_row: Y coordinate of the first row's top.
    """
    boxes = layout.boxes
    row = boxes["row"].to_numpy() + first_row
    rows = np.arange(len(layout.ranks)) + first_row
    draw_boxes(
        axes,
        start=0, end=layout.end, top=rows + ROW_MARGIN, bottom=rows + 1 - ROW_MARGIN,
        facecolors=IDLE_COLOUR, zorder=0,
    )  # fmt: skip
    start, end = boxes["start"].to_numpy(), boxes["end"].to_numpy()
    height = 1 - 2 * ROW_MARGIN
    top, bottom = (row + ROW_MARGIN + height * boxes[edge].to_numpy() for edge in ("top", "bottom"))
    labelled = inches_per_unit > 0
    edges: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.7} if labelled else {}
    style = {"facecolors": layout.box_colours, "zorder": 1, "rasterized": not labelled, **edges}
    draw_boxes(axes, start=start, end=end, top=top, bottom=bottom, **style)
    if not labelled:
        return
    # A dark frame holds the two halves of an overlapped pair together.
    pairs = boxes["part"].to_numpy() == UPPER
    frame = {"facecolors": "none", "edgecolors": INK, "linewidths": 0.8, "zorder": 2}
    pair_top = row[pairs] + ROW_MARGIN
    draw_boxes(axes, start=start[pairs], end=end[pairs], top=pair_top, bottom=pair_top + height, **frame)
    text_style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": INK, "zorder": 3}
    for i, (label, part) in enumerate(boxes.select("label", "part").iter_rows()):
        if label and (end[i] - start[i]) * inches_per_unit >= len(label) * DIGIT_INCHES + LABEL_MARGIN_INCHES:
            middle = (start[i] + end[i]) / 2, (top[i] + bottom[i]) / 2
            axes.text(*middle, label, fontsize=8 if part == WHOLE else 7, **text_style)


def cell_handles(layout: ScheduleLayout) -> list[Patch]:
    """Return the legend entries of a layout."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=CELL_COLOURS[op], label=f"{OP_NAMES[op]} ({op})") for op in layout.ops]
    if layout.has_pairs:
        handles.append(Patch(facecolor="none", edgecolor=INK, label="overlapped pair (FB), F above B"))
    if layout.shade_count > 1:
        handles.append(Patch(facecolor="white", edgecolor=FAINT_INK, label="lighter: later chunk"))
    return [*handles, Patch(facecolor=IDLE_COLOUR, label="outside cells")]
