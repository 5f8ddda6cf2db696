"""Draw what has lanes: the phases inside Kimi K2's blocks over the grid, and the weight reload of checkpoint-engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.schedule.plot import FAINT, INK, MOST_NUMBERS, draw_grid, facts, headline, legend
from tracekit.schedules.blocks import LANES, PHASES, Block, BlockTimes, block, block_times
from tracekit.schedules.simulator import simulate
from tracekit.schedules.weight_reload import LANES as BUFFERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracekit.schedules import Schedule, WeightReload

_PHASE_TEXT = {
    "warm-up": "warm-up: F, with offload",
    "steady": "steady: F and B overlapped, W beside PP",
    "cool-down": "cool-down: B, with onload",
}
_DEVICE = len(BUFFERS) + 0.5  # rows a device takes, with a gap
_BUFFER_ROW = {name: row for row, name in enumerate(BUFFERS)}
RELOAD_LABELS = {"H2D": "onload", "BROADCAST": "broadcast", "RELOAD": "reload"}


def draw_phases(schedule: Schedule, times: BlockTimes | None = None, *, layers: int = 1) -> Figure:
    """Draw the three phases lane by lane, and below them the grid of the whole schedule.

    >>> from tracekit.schedules import generate
    >>> figure = draw_phases(generate("interleaved-overlap", pp=4, microbatches=8, virtual=2))
    >>> [axes.get_title(loc="left") for axes in figure.axes][1]
    'steady: F and B overlapped, W beside PP'
    """
    from matplotlib.figure import Figure

    blocks = {phase: block(kind, times, layers=layers) for phase, kind in PHASES.items()}  # type: ignore[arg-type]
    done = simulate(schedule, block_times(times, layers=layers))
    width = 14
    figure = Figure(figsize=(width, 3.9 + 0.36 * schedule.pp), layout="constrained")
    rows = figure.add_gridspec(2, 1, height_ratios=[1.5, 0.36 * schedule.pp + 0.9], hspace=0.12)
    durations = [blocks[phase].duration for phase in PHASES]
    top = rows[0].subgridspec(1, 3, width_ratios=durations, wspace=0.03)
    for column, phase in enumerate(PHASES):
        axes = figure.add_subplot(top[column])
        _draw_block(axes, blocks[phase], named=column == 0)
        axes.set_title(_PHASE_TEXT[phase], loc="left", fontsize=9, color=INK)
    grid = figure.add_subplot(rows[1])
    few = len(done.start) <= MOST_NUMBERS
    draw_grid(grid, done, inches=(width - 1.2) / done.makespan if few else 0, kimi=True)
    grid.set_title(facts(done), loc="left", fontsize=8.5, color="#4A545E")
    grid.set_xlabel("time (units of the times inside a block)", fontsize=8.5, color=INK)
    legend(figure, done)
    figure.suptitle(f"{headline(done)} · what overlaps in each phase", x=0.01, ha="left", fontsize=11, color=INK)
    return figure


def _draw_block(axes: Axes, one: Block, *, named: bool) -> None:
    for row in range(len(LANES)):
        axes.barh(row, one.duration, height=0.86, color=IDLE_COLOUR, zorder=0)
    for lane, task, label, start, end in one.cells.iter_rows():
        row = LANES.index(lane)
        axes.barh(row, end - start, left=start, height=0.86, color=LABEL_COLOURS[label], edgecolor="white", lw=0.8)
        text = task.replace("(", "\n(") if end - start < 1.8 else task
        axes.text((start + end) / 2, row, text, ha="center", va="center", fontsize=6.8, color=_ink(label))
    axes.set_xlim(0, one.duration)
    axes.set_ylim(len(LANES) - 0.5, -0.5)
    axes.set_yticks(range(len(LANES)), LANES if named else [""] * len(LANES))
    _plain(axes)


def draw_reload(done: WeightReload) -> Figure:
    """Draw a weight reload: for every device its H2D buffer and two IPC buffers, sources told from destinations.

    >>> from tracekit.schedules import weight_reload
    >>> draw_reload(weight_reload(4, 2)).axes[0].get_title(loc="left")
    'weight-reload · 4 devices × 2 rounds'
    """
    from matplotlib.figure import Figure

    small = done.ranks <= 16 and len(done.cells) <= 1200
    shortest = min(done.times.BROADCAST, done.times.RELOAD)
    width = float(np.clip(done.makespan / shortest * 0.5 + 2.2, 7, 18))
    figure = Figure(figsize=(width, float(np.clip(0.72 * done.ranks + 1.3, 2.5, 12))), layout="constrained")
    axes = figure.add_subplot()
    rows = done.cells.with_columns(row=pl.col("rank") * _DEVICE + pl.col("lane").replace_strict(_BUFFER_ROW))
    empty = [rank * _DEVICE + lane for rank in range(done.ranks) for lane in range(len(BUFFERS))]
    _bars(axes, empty, [0.0] * len(empty), [done.makespan] * len(empty), facecolors=IDLE_COLOUR, zorder=0)
    for (op, role), look in _reload_looks(small).items():
        same = rows.filter((pl.col("op") == op) & pl.col("role").eq_missing(pl.lit(role)))
        _bars(axes, *(same[column].to_list() for column in ("row", "start", "end")), **look)
        ink = INK if role == "destination" else _ink(RELOAD_LABELS[op])
        for row, bucket, a, b in same.select("row", "bucket", "start", "end").iter_rows() if small else ():
            axes.text(
                (a + b) / 2, row, f"{bucket}", ha="center", va="center_baseline", fontsize=7.5, color=ink, zorder=2
            )
    _reload_axes(axes, done, empty, small)
    _reload_legend(figure)
    return figure


def _reload_looks(small: bool) -> dict[tuple[str, str | None], dict[str, Any]]:
    """How each kind of bar is drawn: a source is solid, a destination lighter and hatched."""
    edge = {"edgecolors": "white", "linewidths": 0.8 if small else 0, "zorder": 1}
    solid = {op: {"facecolors": LABEL_COLOURS[label], **edge} for op, label in RELOAD_LABELS.items()}
    light = {**edge, "facecolors": _lighter(LABEL_COLOURS["broadcast"]), "hatch": "////" if small else None}
    return {
        ("H2D", None): solid["H2D"],
        ("BROADCAST", "source"): solid["BROADCAST"],
        ("BROADCAST", "destination"): light,
        ("RELOAD", None): solid["RELOAD"],
    }


def _bars(axes: Axes, row: list[float], start: list[float], end: list[float], **look: Any) -> None:
    from matplotlib.collections import PolyCollection

    corners = [
        [(a, y - 0.45), (a, y + 0.45), (b, y + 0.45), (b, y - 0.45)] for y, a, b in zip(row, start, end, strict=True)
    ]
    axes.add_collection(PolyCollection(corners, **look))


def _reload_axes(axes: Axes, done: WeightReload, rows: list[float], small: bool) -> None:
    axes.set_xlim(0, done.makespan)
    axes.set_ylim(max(rows) + 0.6, -0.6)
    if small:
        names = [f"device {i // 3}   {BUFFERS[0]}" if i % 3 == 0 else BUFFERS[i % 3] for i in range(len(rows))]
        axes.set_yticks(rows, names)
    else:
        step = 3 * max(1, done.ranks // 16)
        axes.set_yticks(rows[1::step], [f"device {i // 3}" for i in range(0, len(rows), step)])
    _plain(axes)
    axes.set_xlabel("time (units of the given times)", fontsize=8.5, color=INK)
    title = f"weight-reload · {done.ranks} devices × {done.rounds} rounds"
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=20)
    numbers = "numbers are buckets; " if small else ""
    text = f"makespan {done.makespan:g} · {numbers}device g mod {done.ranks} is the source of bucket g"
    axes.text(0, 1.01, text, transform=axes.transAxes, va="bottom", fontsize=8.5, color="#4A545E")


def _reload_legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    pink = LABEL_COLOURS["broadcast"]
    handles = [
        Patch(facecolor=LABEL_COLOURS["onload"], label="copy from host (H2D)"),
        Patch(facecolor=pink, label="broadcast: source"),
        Patch(facecolor=_lighter(pink), hatch="////", edgecolor="white", label="broadcast: destination"),
        Patch(facecolor=LABEL_COLOURS["reload"], label="reload into the engine"),
        Patch(facecolor=IDLE_COLOUR, label="buffer idle"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False, handlelength=1.4)


def _plain(axes: Axes) -> None:
    axes.tick_params(length=0, labelsize=8, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def _ink(label: str) -> str:
    """White on dark colours, dark on light ones."""
    red, green, blue = (int(LABEL_COLOURS[label][i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 118 else INK


def _lighter(colour: str) -> str:
    return "#" + "".join(f"{(int(colour[i : i + 2], 16) + 255) // 2:02x}" for i in (1, 3, 5))
