"""Pictures of memory: over time above the pipeline's cells, and the flame graph of its peak by stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from tracekit._util.text import percent, size
from tracekit.analysis import Analysis
from tracekit.memory.combine import contents_by_rank
from tracekit.memory.measures import RankContents
from tracekit.memory.view import NO_STACK
from tracekit.report import figures
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS, MEMORY_COLOURS
from tracekit.report.schedule.layout import ScheduleLayout, layout_pipeline
from tracekit.report.schedule.plot import MAX_LABELLED_BOXES, cell_handles, draw_grid
from tracekit.report.words import WORDS

_LINE_LABELS = ("pp_comm", "forward", "wgrad", "backward", "optimizer", "tp_comm")
RANK_COLOURS = tuple(LABEL_COLOURS[name] for name in _LINE_LABELS)
"""Colours of the ranks' lines, in turn."""
MAX_RANKS_WITH_CURVES = 16
"""Ranks whose memory is drawn, the fullest."""
MIN_CURVE_ROWS = 4
"""Height of the memory above the cells, in rows of cells."""
MAX_FLAME_DEPTH = 40
"""Frames of a stack that are drawn, the outermost first."""
MIN_FLAME_SHARE = 0.003
"""Share of the peak from which a frame is drawn."""
MIN_FRAME_SHARE_TO_NAME = 0.03
"""Share of the peak from which a frame shows its name."""
MIN_SHARE_OF_COLOUR = 0.9
"""Share of a frame's bytes for one purpose, from which it has the colour of that."""
SKIPPED_FRAMES = ("_call_impl", "_wrapped_call_impl", "_bootstrap", "_main", "spawn_main", "_wrap")
"""Functions that stand in every stack and tell nothing."""


def memory(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the ranks' memory over time above the pipeline's cells, on one time axis.

    Without a recognised schedule the memory stands alone.
    """
    if analysis.memory is None:
        return figures.message_figure(ax, "Memory was not recorded in these traces.")
    ranks = sorted(analysis.memory.ranks, key=lambda rank: -rank.peak_bytes)[:MAX_RANKS_WITH_CURVES]
    numbers = sorted(rank.rank for rank in ranks)
    table = analysis.tables["memory"].filter(pl.col("rank").is_in(numbers))
    top_bytes = max(rank.peak_bytes for rank in ranks)
    layout = None
    if analysis.comparison is not None:
        layout = layout_pipeline(analysis.comparison.head)["measured"].in_ms()
    # Rows of the figure: cells below 0, curves above it.
    cell_rows = 0 if layout is None else len(layout.rows)
    curve_rows = max(MIN_CURVE_ROWS, cell_rows)
    height = float(np.clip(0.34 * (cell_rows + curve_rows) + 1.6, 2.6, 14))
    figure, axes = figures.figure_and_axes(ax, width=12, height=height)
    handles: list[Patch | Line2D] = []
    tick_names: dict[float, str] = {}  # by their position
    if layout is None:
        origin_ns = int(table["at_ns"].to_numpy().min())
        end = (int(table["at_ns"].to_numpy().max()) - origin_ns) / 1e6
    else:
        origin_ns = layout.origin_ns
        end = layout.end
        _draw_cells_below(axes, layout)
        handles += cell_handles(layout)
        for position, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
            tick_names[position] = text.get_text()
    for i, number in enumerate(numbers):
        colour = RANK_COLOURS[i % len(RANK_COLOURS)]
        line = table.filter(pl.col("rank") == number)
        times = (line["at_ns"].to_numpy() - origin_ns) / 1e6
        levels = _curve_y(line["allocated"].to_numpy() / top_bytes, curve_rows)
        axes.step(times, levels, where="post", color=colour, linewidth=1.1)
        handles.append(Line2D([], [], color=colour, label=f"rank {number}"))
    for share in (0.0, 0.5, 1.0):
        y = _curve_y(share, curve_rows)
        axes.axhline(y, color=IDLE_COLOUR, linewidth=0.7, zorder=0)
        tick_names[y] = size(round(share * top_bytes))
    axes.set_yticks(list(tick_names), list(tick_names.values()))
    axes.set_xlim(0, end)
    axes.set_ylim(cell_rows, -curve_rows - 0.2)
    if layout is None:
        figures.strip_axes(axes, x_label="time (ms)")
    peak = f"peak {size(top_bytes)}; memory at the host's time, which runs ahead of the GPU's"
    figures.draw_title(axes, "Memory over the step", peak)
    figures.draw_legend(axes, handles, below_axes=ax is not None)
    return figure


def _draw_cells_below(axes: Axes, layout: ScheduleLayout) -> None:
    """Draw the pipeline's cells, with their micro-batches unless there are too many."""
    inches_per_ms = 0.0
    if len(layout.cells) <= MAX_LABELLED_BOXES:
        inches_per_ms = 10.4 / max(layout.end, 1e-9)
    draw_grid(
        axes,
        {"": layout},
        inches_per_unit=inches_per_ms,
        x_label="time (ms) from the step's first cell",
    )


def _curve_y(share: Any, curve_rows: int) -> Any:
    """Return where a share of the highest peak is drawn: the y axis points down, and curves stand above 0."""
    return -0.6 - share * (curve_rows - 1)


def flame(analysis: Analysis, *, rank: int | None = None, ax: Axes | None = None) -> Figure:
    """Draw the flame graph of a rank's peak by stack; by default the fullest rank's."""
    contents = contents_by_rank(analysis)
    candidates = [number for number in contents if rank in (None, number)]
    if not candidates:
        return figures.message_figure(
            ax, "Single allocations are not known: record a memory snapshot."
        )
    fullest = max(candidates, key=lambda number: contents[number].figures.peak.bytes)
    return draw_flame_graph(contents[fullest], rank=fullest, ax=ax)


@dataclass
class _Frame:
    """A frame of the flame graph with what it holds, itself or in the frames above it."""

    name: str
    bytes: int = 0
    by_category: dict[str, int] = field(default_factory=dict)
    above: dict[str, _Frame] = field(default_factory=dict)

    def add(self, names: Sequence[str], category: str, count: int) -> None:
        """Add bytes that the frames called *names*, one above the other, allocated."""
        frame = self
        frame.count(category, count)
        for name in names:
            frame = frame.above.setdefault(name, _Frame(name))
            frame.count(category, count)

    def count(self, category: str, count: int) -> None:
        """Count bytes."""
        self.bytes += count
        self.by_category[category] = self.by_category.get(category, 0) + count

    @property
    def colour(self) -> str:
        """Colour of what nearly all of it is for; neutral if it is for several things."""
        category = max(self.by_category, key=lambda name: self.by_category[name])
        is_pure = self.by_category[category] >= MIN_SHARE_OF_COLOUR * self.bytes
        return MEMORY_COLOURS[category] if is_pure else IDLE_COLOUR


def draw_flame_graph(contents: RankContents, *, rank: int | None, ax: Axes | None = None) -> Figure:
    """Draw what allocated the memory at the peak: each frame as wide as what it and the frames above it hold."""
    root = _flame_tree(contents)
    boxes = list(_flame_boxes(root))
    depth = max((row for row, *_ in boxes), default=0) + 1
    height = float(np.clip(0.24 * depth + 1.4, 2.6, 14))
    figure, axes = figures.figure_and_axes(ax, width=12, height=height)
    for row, start, end, frame in boxes:
        colour = frame.colour
        box = Rectangle(
            (start, row), end - start, 1, facecolor=colour, edgecolor="white", linewidth=0.5
        )
        axes.add_patch(box)
        share = (end - start) / max(1, root.bytes)
        if share >= MIN_FRAME_SHARE_TO_NAME:
            text = _fit(frame.name, share)
            ink = figures.text_colour_on(colour)
            axes.text(
                start + 0.003 * root.bytes,
                row + 0.5,
                text,
                va="center_baseline",
                fontsize=6.5,
                color=ink,
            )
    axes.set_xlim(0, max(1, root.bytes))
    axes.set_ylim(0, depth)
    ticks = np.linspace(0, root.bytes, 5)
    axes.set_xticks(ticks, [size(round(tick)) for tick in ticks])
    axes.set_yticks([])
    figures.strip_axes(axes, x_label="bytes at the peak")
    of_rank = "" if rank is None else f"rank {rank}, "
    parts = []
    handles = []
    for name, count in _largest(root):
        words = WORDS.memory_categories[name]
        parts.append(f"{words} {percent(count, root.bytes, digits=0)}")
        handles.append(Patch(facecolor=MEMORY_COLOURS[name], label=words))
    subtitle = f"{of_rank}{size(root.bytes)}: {', '.join(parts)}"
    figures.draw_title(axes, "What allocated the memory at the peak", subtitle)
    figures.draw_legend(axes, handles, below_axes=ax is not None)
    return figure


def _flame_tree(contents: RankContents) -> _Frame:
    """Return the tree of all stacks at the peak, the outermost frame at its root."""
    frames = dict(contents.stacks.select("stack", "frames").iter_rows())
    root = _Frame("all")
    for stack, category, count in contents.contents.select(
        "stack", "category", "bytes"
    ).iter_rows():
        names = [
            name
            for name in frames.get(stack) or []
            if name.rpartition(" ")[2] not in SKIPPED_FRAMES
        ]
        without_stack = f"{NO_STACK}: {WORDS.memory_categories[category]}"
        root.add(names[:MAX_FLAME_DEPTH] or [without_stack], category, count)
    return root


def _flame_boxes(root: _Frame) -> Iterator[tuple[int, int, int, _Frame]]:
    """Yield row, start, end and frame of each box, from the bottom up.

    Frames too small to see are left out.
    """
    pending = [(0, 0, root)]
    while pending:
        row, start, frame = pending.pop()
        yield row, start, start + frame.bytes, frame
        for child in sorted(frame.above.values(), key=lambda child: -child.bytes):
            if child.bytes >= MIN_FLAME_SHARE * root.bytes:
                pending.append((row + 1, start, child))
            start += child.bytes


def _largest(root: _Frame) -> list[tuple[str, int]]:
    """Return what memory is for, the largest first."""
    return sorted(root.by_category.items(), key=lambda item: -item[1])


def _fit(name: str, share: float) -> str:
    """Return the name of a frame, without its folder and cut to the width of its box."""
    short = name.rpartition("/")[2]
    letters = int(share * 190)
    return short if len(short) <= letters else f"{short[: max(0, letters - 1)]}…"
