"""Schedules and weight reloads drawn with matplotlib, and the phases inside Kimi K2's blocks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tracekit.pipeline.schedules import Schedule, Simulation, simulate
from tracekit.pipeline.schedules.blocks import (
    BLOCK_LANES,
    KIND_OF_PHASE,
    Block,
    BlockTimes,
    block,
    block_times,
)
from tracekit.pipeline.schedules.two_buffers import WeightReload
from tracekit.report import figures
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.schedule.layout import (
    UPPER,
    WHOLE,
    ScheduleLayout,
    headline,
    layout_simulation,
    simulation_facts,
)

MAX_LABELLED_BOXES = 2_500
"""A layout of more boxes is drawn without labels, edges and vector outlines."""
DIGIT_INCHES = 0.07
LABEL_MARGIN_INCHES = 0.03
ROW_MARGIN = 0.04
"""Space above and below the boxes of a row, as a share of the row's height."""


def draw_schedule(simulation: Simulation | WeightReload) -> Figure:
    """Draw a simulated schedule or weight reload on a figure of its own.

    >>> from tracekit.pipeline.schedules import generate, simulate
    >>> draw_schedule(simulate(generate("1f1b", pp=2, microbatches=2))).axes[0].get_xlabel()
    'time (units of the given times)'
    """
    layout = layout_simulation(simulation)
    durations = (layout.boxes["end"] - layout.boxes["start"]).to_numpy()
    labelled = len(durations) <= MAX_LABELLED_BOXES
    # In durations of the shortest op.
    units = simulation.makespan / max(float(durations.min()), 1e-12)
    width = float(np.clip(units * 0.19 + 1.2, 7, 18 if labelled else 16))
    inches_per_unit = (width - 1.2) / simulation.makespan
    labelled = (
        labelled and float(durations.max()) * inches_per_unit >= DIGIT_INCHES + LABEL_MARGIN_INCHES
    )
    height = float(np.clip(0.36 * len(layout.rows) + 1.5, 2.4, 10))
    figure, axes = figures.figure_and_axes(None, width=width, height=height)
    draw_grid(axes, {"": layout}, inches_per_unit=inches_per_unit if labelled else 0)
    figures.draw_title(axes, headline(simulation), simulation_facts(simulation))
    figures.draw_legend(axes, cell_handles(layout))
    return figure


def draw_grid(
    axes: Axes,
    layouts: Mapping[str, ScheduleLayout],
    *,
    inches_per_unit: float,
    x_label: str = "time (units of the given times)",
) -> None:
    """Draw schedules of the same ranks one below the other on one time axis, and name their rows.

    Args:
        axes: Axes to draw on.
        layouts: The schedules by name; the name is written above each if there are several.
        inches_per_unit: Inches that a unit of time takes; see ``draw_cells``.
        x_label: Name of the time axis.
    """
    rows = next(iter(layouts.values())).rows
    rows_per_section = len(rows) + 1  # one empty row between the sections
    step = max(1, -(-len(rows) // 16))  # about 16 rows of each section are named
    ticks: dict[float, str] = {}
    for section, (name, layout) in enumerate(layouts.items()):
        first_row = section * rows_per_section
        draw_cells(axes, layout, inches_per_unit=inches_per_unit, first_row=first_row)
        if len(layouts) > 1:
            axes.text(
                0,
                first_row - 0.12,
                name,
                ha="left",
                va="bottom",
                fontsize=8.5,
                color=figures.QUIET_INK,
            )
        ticks |= {first_row + row + 0.5: rows[row] for row in range(0, len(rows), step)}
    axes.set_xlim(0, max(layout.end for layout in layouts.values()))
    axes.set_ylim(len(layouts) * rows_per_section - 1, -0.55 if len(layouts) > 1 else 0)
    axes.set_yticks(list(ticks), list(ticks.values()))
    figures.strip_axes(axes, x_label=x_label)


def draw_cells(
    axes: Axes, layout: ScheduleLayout, *, inches_per_unit: float, first_row: int = 0
) -> None:
    """Draw idle time and boxes of a layout, one row per rank from *first_row* down.

    Args:
        axes: Axes to draw on.
        layout: The schedule.
        inches_per_unit: Inches that a unit of time takes. A label is written where it fits; with 0,
            none is.
        first_row: Y coordinate of the first row's top.
    """
    boxes = layout.boxes
    row = boxes["row"].to_numpy() + first_row
    rows = np.arange(len(layout.rows)) + first_row
    figures.draw_boxes(
        axes,
        start=0,
        end=layout.end,
        top=rows + ROW_MARGIN,
        bottom=rows + 1 - ROW_MARGIN,
        facecolors=IDLE_COLOUR,
        zorder=0,
    )
    start = boxes["start"].to_numpy()
    end = boxes["end"].to_numpy()
    height = 1 - 2 * ROW_MARGIN
    top = row + ROW_MARGIN + height * boxes["top"].to_numpy()
    bottom = row + ROW_MARGIN + height * boxes["bottom"].to_numpy()
    labelled = inches_per_unit > 0
    edges: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.7} if labelled else {}
    style = {"facecolors": layout.box_colours, "zorder": 1, "rasterized": not labelled, **edges}
    figures.draw_boxes(axes, start=start, end=end, top=top, bottom=bottom, **style)
    if not labelled:
        return
    # A dark frame holds the two halves of an overlapped pair together.
    pairs = boxes["part"].to_numpy() == UPPER
    frame = {"facecolors": "none", "edgecolors": figures.INK, "linewidths": 0.8, "zorder": 2}
    pair_top = row[pairs] + ROW_MARGIN
    figures.draw_boxes(
        axes, start=start[pairs], end=end[pairs], top=pair_top, bottom=pair_top + height, **frame
    )
    text_style: dict[str, Any] = {
        "ha": "center",
        "va": "center_baseline",
        "color": figures.INK,
        "zorder": 3,
    }
    for i, (label, part) in enumerate(boxes.select("label", "part").iter_rows()):
        if (
            label
            and (end[i] - start[i]) * inches_per_unit
            >= len(label) * DIGIT_INCHES + LABEL_MARGIN_INCHES
        ):
            middle = (start[i] + end[i]) / 2, (top[i] + bottom[i]) / 2
            axes.text(*middle, label, fontsize=8 if part == WHOLE else 7, **text_style)


def cell_handles(layout: ScheduleLayout) -> list[Patch]:
    """Return the legend entries of a layout."""
    handles = [
        Patch(facecolor=op.colour, label=f"{op.name} ({letter})")
        for letter, op in layout.legend.items()
    ]
    if "FB" in layout.cells["op"]:
        handles.append(
            Patch(facecolor="none", edgecolor=figures.INK, label="overlapped pair (FB), F above B")
        )
    if layout.shade_count > 1:
        handles.append(
            Patch(facecolor="white", edgecolor=figures.FAINT_INK, label="lighter: later chunk")
        )
    return [*handles, Patch(facecolor=IDLE_COLOUR, label="outside cells")]


_PHASE_TITLES = {
    "warm-up": "warm-up: F, with offload",
    "steady": "steady: F and B overlapped, W beside PP",
    "cool-down": "cool-down: B, with onload",
}
_PHASES_FIGURE_INCHES = 14


def draw_phases(schedule: Schedule, times: BlockTimes | None = None) -> Figure:
    """Draw the three phases of a block lane by lane, and below them the grid of the whole schedule.

    >>> from tracekit.pipeline.schedules import generate
    >>> figure = draw_phases(generate("interleaved-overlap", pp=4, microbatches=8, virtual=2))
    >>> [axes.get_title(loc="left") for axes in figure.axes][1]
    'steady: F and B overlapped, W beside PP'
    """
    blocks = {phase: block(kind, times) for phase, kind in KIND_OF_PHASE.items()}  # type: ignore[arg-type]
    simulation = simulate(schedule, block_times(times))
    figure = Figure(figsize=(_PHASES_FIGURE_INCHES, 3.9 + 0.36 * schedule.pp), layout="constrained")
    rows = figure.add_gridspec(2, 1, height_ratios=[1.5, 0.36 * schedule.pp + 0.9], hspace=0.12)
    columns = rows[0].subgridspec(
        1, 3, width_ratios=[blocks[phase].duration for phase in KIND_OF_PHASE], wspace=0.03
    )
    for column, phase in enumerate(KIND_OF_PHASE):
        axes = figure.add_subplot(columns[column])
        _draw_block(axes, blocks[phase], name_lanes=column == 0)
        axes.set_title(_PHASE_TITLES[phase], loc="left", fontsize=9, color=figures.INK)
    grid = figure.add_subplot(rows[1])
    layout = layout_simulation(simulation)
    labelled = len(layout.cells) <= MAX_LABELLED_BOXES
    inches_per_unit = (_PHASES_FIGURE_INCHES - 1.2) / layout.end if labelled else 0
    draw_grid(
        grid,
        {"": layout},
        inches_per_unit=inches_per_unit,
        x_label="time (units of the times inside a block)",
    )
    grid.set_title(simulation_facts(simulation), loc="left", fontsize=8.5, color=figures.QUIET_INK)
    figures.draw_legend(grid, cell_handles(layout))
    figure.suptitle(
        f"{headline(schedule)} · what overlaps in each phase",
        x=0.01,
        ha="left",
        fontsize=11,
        color=figures.INK,
    )
    return figure


def _draw_block(axes: Axes, tasks: Block, *, name_lanes: bool) -> None:
    """Draw the tasks inside one block, each on its lane."""
    for row in range(len(BLOCK_LANES)):
        axes.barh(row, tasks.duration, height=0.86, color=IDLE_COLOUR, zorder=0)
    for lane, task, label, start, end in tasks.cells.iter_rows():
        row = BLOCK_LANES.index(lane)
        colour = LABEL_COLOURS[label]
        axes.barh(
            row, end - start, left=start, height=0.86, color=colour, edgecolor="white", lw=0.8
        )
        text = task.replace("(", "\n(") if end - start < 1.8 else task
        axes.text(
            (start + end) / 2,
            row,
            text,
            ha="center",
            va="center",
            fontsize=6.8,
            color=figures.text_colour_on(colour),
        )
    axes.set_xlim(0, tasks.duration)
    axes.set_ylim(len(BLOCK_LANES) - 0.5, -0.5)
    axes.set_yticks(range(len(BLOCK_LANES)), BLOCK_LANES if name_lanes else [""] * len(BLOCK_LANES))
    figures.strip_axes(axes)
    axes.tick_params(length=0, labelsize=8)  # smaller names than a plot of ranks, no ticks
