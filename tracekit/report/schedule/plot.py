"""Draw a simulated schedule: one row per rank, time to the right, one cell an op."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.text import percent
from tracekit.report.legend import rows_of
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from tracekit.schedules import Schedule, Simulation

NAMES = {"F": "forward", "B": "backward", "I": "backward for input", "W": "backward for weights"}
INK = "#22272B"
FAINT = "#8A949E"
MOST_NUMBERS = 2_500  # more cells than this are drawn without numbers, edges or vector outlines
_DIGIT, _MARGIN = 0.07, 0.03  # inches a digit takes, and the space around a number


@dataclass(frozen=True)
class Parts:
    """Rectangles to draw: an FB is two of them, its forward above its backward."""

    rank: npt.NDArray[np.int64]
    kind: list[str]
    stage: npt.NDArray[np.int64]
    microbatch: npt.NDArray[np.int64]
    start: npt.NDArray[Any]
    end: npt.NDArray[Any]
    low: npt.NDArray[np.float64]  # within the row, 0 to 1
    high: npt.NDArray[np.float64]


def parts(done: Simulation) -> Parts:
    """Split a simulation's cells into rectangles.

    >>> from tracekit.schedules import generate, simulate
    >>> one = parts(simulate(generate("interleaved-overlap", pp=1, microbatches=2, virtual=1)))
    >>> list(zip(one.kind, one.microbatch.tolist(), one.low.tolist(), one.high.tolist()))
    [('F', 0, 0.0, 1.0), ('F', 1, 0.5, 1.0), ('B', 1, 0.0, 1.0), ('B', 0, 0.0, 0.5)]
    """
    return cell_parts(done.cells)


def cell_parts(cells: pl.DataFrame) -> Parts:
    """Split a table of cells (rank, op, stage, …, start, end) into rectangles; an unknown stage counts as the first."""
    op = cells["op"].cast(pl.String).to_numpy()
    pair = op == "FB"
    kinds = np.where(pair, "F", op)
    ones = np.ones(len(op))

    def both(name: str, second: str) -> npt.NDArray[Any]:
        return np.concatenate([cells[name].to_numpy(), cells[second].to_numpy()[pair]])

    return Parts(
        rank=both("rank", "rank"),
        kind=[*kinds.tolist(), *["B"] * int(pair.sum())],
        stage=np.nan_to_num(both("stage", "b_stage")).astype(np.int64),
        microbatch=np.nan_to_num(both("microbatch", "b_microbatch"), nan=-1).astype(np.int64),
        start=both("start", "start"),
        end=both("end", "end"),
        low=np.concatenate([np.where(pair, 0.5, 0.0), 0.0 * ones[pair]]),
        high=np.concatenate([ones, 0.5 * ones[pair]]),
    )


def chunks(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Which of its rank's chunks each stage is, counted in the order of the stages; 0 where micro-batches tell.

    >>> from tracekit.schedules import generate
    >>> chunks(generate("interleaved", pp=2, microbatches=2)).tolist()
    [0, 0, 1, 1]
    >>> chunks(generate("dualpipe", pp=2, microbatches=4)).tolist()
    [0, 0]
    """
    placement = schedule.stage_ranks
    if (placement != placement[:, :1]).any():
        return np.zeros(len(placement), np.int64)  # two directions: a micro-batch's number says which
    seen: dict[int, int] = {}
    found = []
    for rank in placement[:, 0].tolist():
        found.append(seen.get(rank, 0))
        seen[rank] = found[-1] + 1
    return np.array(found, np.int64)


def colour(kind: str, chunk: int, of: int, *, shade: bool = True) -> str:
    """Colour of a cell; later chunks are lighter.

    >>> colour("F", 0, 2), colour("F", 1, 2)
    ('#E69F00', '#f1ca73')
    """
    base = CELL_COLOURS[kind]
    if not shade or chunk == 0:
        return base
    white = 0.45 * chunk / max(of - 1, 1)
    channels = (int(base[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * white):02x}" for c in channels)


def shaded(schedule: Schedule) -> bool:
    """Return whether chunks are told apart by shade; not where a light B would look like an I."""
    kinds = {op.kind for rank in schedule.ranks for op in rank}
    return not ("I" in kinds and kinds & {"B", "FB"})


def draw_schedule(done: Simulation, *, title: str | None = None) -> Figure:
    """Draw *done* on a figure of its own.

    >>> from tracekit.schedules import generate, simulate
    >>> draw_schedule(simulate(generate("1f1b", pp=2, microbatches=2))).axes[0].get_xlabel()
    'time (units of the given times)'
    """
    from matplotlib.figure import Figure

    shapes = parts(done)
    numbers = len(shapes.kind) <= MOST_NUMBERS
    shortest = float(np.min(shapes.end - shapes.start))
    width = float(np.clip(done.makespan / max(shortest, 1e-12) * 0.19 + 1.2, 7, 18 if numbers else 16))
    inches = (width - 1.2) / done.makespan
    longest = float(np.max(shapes.end - shapes.start))
    numbers = numbers and longest * inches >= _DIGIT + _MARGIN
    ranks = done.schedule.pp
    height = float(np.clip(0.36 * ranks + 1.5, 2.4, 10))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    draw_grid(axes, done, inches=inches if numbers else 0, shapes=shapes)
    axes.set_title(title or headline(done), loc="left", fontsize=11, color=INK, pad=20)
    _subtitle(axes, done)
    legend(figure, done)
    return figure


def headline(done: Simulation) -> str:
    """Name a schedule and its sizes.

    >>> from tracekit.schedules import generate, simulate
    >>> headline(simulate(generate("interleaved", pp=2, microbatches=4)))
    'interleaved · 2 ranks × 4 micro-batches × 2 chunks'
    """
    plan = done.schedule
    text = f"{plan.name} · {plan.pp} ranks × {plan.microbatches} micro-batches"
    return text + (f" × {plan.virtual} chunks" if plan.virtual > 1 and chunks(plan).any() else "")


def facts(done: Simulation) -> str:
    """Say in one line what came out."""
    peaks = done.peak_activations
    peak = f"{peaks[0]}" if len(set(peaks)) == 1 else f"{min(peaks)}–{max(peaks)}"
    outside = f"{percent(done.bubble_fraction)} of ranks × makespan outside cells"
    return f"makespan {done.makespan:g} · {outside} · peak {peak} chunks per rank"


def _subtitle(axes: Axes, done: Simulation) -> None:
    axes.text(0, 1.01, facts(done), transform=axes.transAxes, va="bottom", fontsize=8.5, color="#4A545E")


def draw_grid(axes: Axes, done: Simulation, *, inches: float, shapes: Parts | None = None, kimi: bool = False) -> None:
    """Draw the cells onto *axes*.

    A number is written where it fits when a unit of time takes so many *inches*; with 0, none is. *kimi* writes 1-based
    micro-batches with the chunk's letter.
    """
    plan = done.schedule
    draw_idle(axes, range(plan.pp), done.makespan)
    draw_cells(axes, shapes or parts(done), plan, inches=inches, kimi=kimi)
    _axes(axes, done)


def draw_idle(axes: Axes, rows: Iterable[int], end: float) -> None:
    """Lay the colour of idle time under rows, from 0 to *end*."""
    from matplotlib.collections import PolyCollection

    under = [[(0, r + 0.04), (0, r + 0.96), (end, r + 0.96), (end, r + 0.04)] for r in rows]
    axes.add_collection(PolyCollection(under, facecolors=IDLE_COLOUR, edgecolors="none", zorder=0))


def draw_cells(axes: Axes, shapes: Parts, plan: Schedule, *, inches: float, kimi: bool = False) -> None:
    """Draw cells on their rows: the one way a cell looks, measured or ideal. See ``draw_grid`` for the options."""
    from matplotlib.collections import PolyCollection

    numbers = inches > 0
    of_stage, shade = chunks(plan), shaded(plan)
    count = int(of_stage.max()) + 1
    top = 0.92
    low = shapes.rank + 0.5 - top / 2 + top * (1 - shapes.high)
    high = shapes.rank + 0.5 - top / 2 + top * (1 - shapes.low)
    corners = np.stack([[shapes.start, low], [shapes.start, high], [shapes.end, high], [shapes.end, low]])
    looks = {(k, c): colour(k, c, count, shade=shade) for k in CELL_COLOURS for c in range(count)}
    stage_chunk = of_stage[shapes.stage].tolist()
    fills = [looks[key] for key in zip(shapes.kind, stage_chunk, strict=True)]
    edge: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.7} if numbers else {"edgecolors": "none"}
    cells = PolyCollection(list(corners.transpose(2, 0, 1)), facecolors=fills, zorder=1, **edge)
    cells.set_rasterized(not numbers)
    axes.add_collection(cells)
    if numbers:
        _outline_pairs(axes, shapes)
        _numbers(axes, shapes, stage_chunk, inches, "kimi" if kimi else "shade" if shade else "prime")


def _numbers(axes: Axes, shapes: Parts, stage_chunk: Sequence[int], inches: float, style: str) -> None:
    """Write micro-batches where they fit."""
    for i, chunk in enumerate(stage_chunk):
        number = int(shapes.microbatch[i])
        text = f"{number}" + "′" * (chunk if style == "prime" else 0)
        if style == "kimi":
            text = f"{number + 1}{chr(ord('a') + chunk % 26)}"
        if number >= 0 and (shapes.end[i] - shapes.start[i]) * inches >= len(text) * _DIGIT + _MARGIN:
            _write(axes, shapes, i, text)


def _outline_pairs(axes: Axes, shapes: Parts) -> None:
    """Hold the two halves of an overlapped pair together with a dark frame."""
    from matplotlib.collections import PolyCollection

    half = shapes.low == 0.5
    frames = [
        [(a, r + 0.04), (a, r + 0.96), (b, r + 0.96), (b, r + 0.04)]
        for r, a, b in zip(shapes.rank[half], shapes.start[half], shapes.end[half], strict=True)
    ]
    axes.add_collection(PolyCollection(frames, facecolors="none", edgecolors=INK, linewidths=0.8, zorder=2))


def _write(axes: Axes, shapes: Parts, i: int, text: str) -> None:
    x = (shapes.start[i] + shapes.end[i]) / 2
    y = shapes.rank[i] + 0.5 + 0.92 * (0.5 - (shapes.low[i] + shapes.high[i]) / 2)
    size = 8 if shapes.high[i] - shapes.low[i] == 1 else 7
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=size, color=INK, zorder=3)


def _axes(axes: Axes, done: Simulation) -> None:
    ranks = done.schedule.pp
    axes.set_xlim(0, done.makespan)
    axes.set_ylim(ranks, 0)
    step = max(1, -(-ranks // 16))
    axes.set_yticks(np.arange(0, ranks, step) + 0.5, [f"rank {r}" for r in range(0, ranks, step)])
    axes.set_xlabel("time (units of the given times)", fontsize=8.5, color=INK)
    plain_axes(axes)


def plain_axes(axes: Axes) -> None:
    """Leave of the axes only what is read: names at the left, time below."""
    axes.tick_params(length=0, labelsize=8.5, colors=INK)
    axes.tick_params(axis="x", length=3, color=FAINT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def legend(figure: Figure, done: Simulation) -> None:
    """Say below the grid what the colours mean."""
    handles = cell_handles(done.schedule)
    look = {"frameon": False, "handlelength": 1.2, "handleheight": 1, "labelcolor": INK}
    fitted = rows_of(handles, float(figure.get_size_inches()[0]))
    figure.legend(loc="outside lower center", fontsize=8, **fitted, **look)


def cell_handles(plan: Schedule, ran: Collection[str] | None = None) -> list[Patch]:
    """Return what a legend of a schedule's cells shows; *ran* are the ops drawn, where not all of the schedule's."""
    from matplotlib.patches import Patch

    ops = {op.kind for rank in plan.ranks for op in rank} if ran is None else set(ran)
    used = {kind for op in ops for kind in op}
    handles = [Patch(facecolor=CELL_COLOURS[kind], label=f"{NAMES[kind]} ({kind})") for kind in NAMES if kind in used]
    if "FB" in ops:
        handles.append(Patch(facecolor="none", edgecolor=INK, label="overlapped pair (FB), F above B"))
    if shaded(plan) and chunks(plan).any():
        handles.append(Patch(facecolor="white", edgecolor=FAINT, label="lighter: later chunk"))
    return [*handles, Patch(facecolor=IDLE_COLOUR, label="outside cells")]
