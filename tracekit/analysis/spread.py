"""Many ranks at a glance: how each figure is spread over them, which ranks differ, and where they stand in the mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis.measured import RankResult
from tracekit.analysis.result import Analysis
from tracekit.schema import COMMUNICATION_LABELS

MANY_RANKS = 32
"""Ranks above which their spread says more than their list."""
FIGURES = {
    "compute": "compute, share of span",
    "communication": "exposed communication, share of span",
    "bubble": "bubble, share of span",
    "idle": "idle, share of span",
    "span_ns": "span",
}
BINS = 20
APART = 4.0
"""Robust standard deviations from the median of its stage at which a rank differs …"""
APART_AT_LEAST = 0.01
"""… and by at least this much: of the span for shares, of the median for the span."""
LEAST_RANGE = 0.02
"""Shares that differ by less than this are drawn in nearly the same shade."""
ROW = 32
"""Ranks in a row where nothing is known about the mesh."""


class Figure(msgspec.Struct, frozen=True):
    """One figure over ranks."""

    name: str
    title: str
    least: float
    low: float  # 5 % of ranks are below
    median: float
    high: float  # 95 % are below
    most: float
    least_rank: int
    most_rank: int
    counts: tuple[int, ...]
    """Ranks in each of equally wide bins from the least to the most."""

    def shade(self, value: float) -> float:
        """Return where a value lies between the least (0) and the most (1), for colouring shares."""
        return (value - self.least) / max(self.most - self.least, LEAST_RANGE)


class Different(msgspec.Struct, frozen=True):
    """A rank whose figure lies far from that of the ranks it should be like."""

    rank: int
    figure: str
    value: float
    median: float
    like: str
    """Whom it was compared with: ``stage 3`` or ``all ranks``."""
    deviations: float


class Mesh(msgspec.Struct, frozen=True):
    """Where ranks stand: one row per stage and one column per pipeline, or rows of consecutive ranks."""

    rows: tuple[str, ...]
    cells: tuple[tuple[int | None, ...], ...]
    column: str
    """What a column is: ``replica``, or ``rank`` where no pipeline is known."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return max((len(row) for row in self.cells), default=0)


class Spread(msgspec.Struct, frozen=True, eq=False):
    """How a run's figures are spread over its ranks."""

    table: pl.DataFrame
    """One row per rank: rank, stage, replica, and the figures."""
    figures: tuple[Figure, ...]
    different: tuple[Different, ...]
    mesh: Mesh

    @property
    def heat(self) -> Figure | None:
        """The figure a heat map shows: the bubble, or idle time where there is no pipeline."""
        return next((figure for figure in self.figures if figure.name in ("bubble", "idle")), None)


def spread(analysis: Analysis) -> Spread:
    """Return how the figures of *analysis* are spread over its ranks.

    >>> from tracekit.run.analyze import analyze
    >>> result = spread(analyze("sample_traces/1f1b"))
    >>> result.mesh.rows, result.mesh.cells, result.mesh.column
    (('stage 0', 'stage 1', 'stage 2', 'stage 3'), ((0,), (1,), (2,), (3,)), 'replica')
    >>> [figure.name for figure in result.figures]
    ['compute', 'communication', 'bubble', 'span_ns']
    """
    mesh = _mesh(analysis)
    place = {rank: (row, col) for row, ranks in enumerate(mesh.cells) for col, rank in enumerate(ranks)}
    sure = not all(result.whole.lower_bound for result in analysis.ranks)
    rows = [(result.rank, *place[result.rank], *_figures(result, sure=sure)) for result in analysis.ranks]
    columns = {"rank": pl.Int64, "stage": pl.Int64, "replica": pl.Int64, **dict.fromkeys(FIGURES, pl.Float64)}
    table = pl.DataFrame(rows, schema=columns, orient="row")
    figures = tuple(made for name in FIGURES if (made := _figure(table, name)) is not None)
    return Spread(table, figures, _different(table, staged=mesh.column == "replica"), mesh)


def _figures(result: RankResult, *, sure: bool) -> tuple[float | None, ...]:
    """Return a rank's figures; where others' bubbles are *sure*, a lower bound is not compared with them."""
    span = result.whole.budget.span_ns
    talk = sum(ns for label, ns in result.whole.budget.exposed_ns.items() if label in COMMUNICATION_LABELS)
    if not span:
        return None, None, None, None, 0.0
    bubble = None if sure and result.whole.lower_bound else result.whole.bubble_fraction
    idle = None if result.whole.pipeline or not result.whole.idle_known else result.whole.budget.idle_ns / span
    return result.whole.budget.compute_ns / span, talk / span, bubble, idle, float(span)


def _mesh(analysis: Analysis) -> Mesh:
    ranks = [result.rank for result in analysis.ranks]
    here = set(ranks)
    pipelines = (
        sorted({comparison.pipeline.ranks for comparison in analysis.schedule.all})
        if analysis.schedule is not None
        else []
    )
    placed = {rank for pipeline in pipelines for rank in pipeline}
    if not pipelines or not here <= placed or len({len(pipeline) for pipeline in pipelines}) > 1:
        lines = [tuple(ranks[at : at + ROW]) for at in range(0, len(ranks), ROW)]
        return Mesh(tuple(f"ranks {line[0]}–{line[-1]}" for line in lines), tuple(lines), "rank")
    stages = range(len(pipelines[0]))
    cells = tuple(tuple(p[at] if p[at] in here else None for p in pipelines) for at in stages)
    return Mesh(tuple(f"stage {at}" for at in stages), cells, "replica")


def _figure(table: pl.DataFrame, name: str) -> Figure | None:
    known = table.filter(pl.col(name).is_not_null()).select("rank", name)
    if known.is_empty():
        return None
    values = known[name].to_numpy()
    least, low, median, high, most = np.quantile(values, [0, 0.05, 0.5, 0.95, 1], method="nearest")
    counts, _ = np.histogram(values, bins=BINS, range=(least, most) if most > least else (least - 0.5, least + 0.5))
    at = known["rank"].to_list()
    worst, best = at[int(values.argmin())], at[int(values.argmax())]
    bins = tuple(int(count) for count in counts)
    return Figure(name, FIGURES[name], float(least), float(low), float(median), float(high), float(most), worst, best,
                  bins)  # fmt: skip


def _different(table: pl.DataFrame, *, staged: bool) -> tuple[Different, ...]:
    """Return ranks far from the ranks they should be like: those of their stage, which do the same work."""
    different: dict[int, Different] = {}
    parts = table.partition_by("stage", maintain_order=True) if staged else [table]
    if any(len(part) < 4 for part in parts):  # too few to say what is usual
        parts, staged = [table], False
    for part in parts:
        like = f"stage {part['stage'][0]}" if staged else "all ranks"
        for name in FIGURES:
            known = part.filter(pl.col(name).is_not_null())
            for at, median, far in _far(known[name].to_numpy(), relative=name == "span_ns"):
                rank = int(known["rank"][at])
                candidate = Different(rank, name, float(known[name][at]), median, like, far)
                if rank not in different or far > different[rank].deviations:
                    different[rank] = candidate
    return tuple(sorted(different.values(), key=lambda candidate: (-candidate.deviations, candidate.rank)))


def _far(values: npt.NDArray[np.float64], *, relative: bool) -> Sequence[tuple[int, float, float]]:
    if len(values) < 4:
        return []
    median = float(np.median(values))
    least = APART_AT_LEAST * (abs(median) if relative else 1.0)
    usual = max(1.4826 * float(np.median(np.abs(values - median))), least / APART)
    far = np.abs(values - median) / usual
    return [(int(at), median, float(far[at])) for at in np.flatnonzero(far > APART)]


def by_rank(figures: Spread) -> Mapping[int, Mapping[str, float | None]]:
    """Return the figures of each rank by its number."""
    return {row["rank"]: row for row in figures.table.iter_rows(named=True)}
