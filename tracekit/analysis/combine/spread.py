"""Distribution of figures over many ranks: quantiles, outliers, and the ranks' places in the mesh."""

from collections.abc import Mapping
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis.result import Analysis
from tracekit.documents.analysis import RankFigures
from tracekit.schema import COMMUNICATION_LABELS

MANY_RANKS = 32
"""Ranks above which reports show distributions instead of a list of ranks."""
FIGURES = {
    "compute": "compute, share of span",
    "communication": "exposed communication, share of span",
    "bubble": "bubble, share of span",
    "idle": "idle, share of span",
    "span_ns": "span",
}
"""Figures by name, with their titles."""
HISTOGRAM_BINS = 20
MIN_OUTLIER_DEVIATIONS = 4.0
"""Robust standard deviations from the median of comparable ranks, from which a rank is an
outlier."""
MIN_OUTLIER_DIFFERENCE = 0.01
"""Smallest difference from the median of an outlier: in shares of the span; for the span itself,
over its median."""
MIN_RANKS_FOR_OUTLIERS = 4
"""Comparable ranks that are needed to tell which value is usual."""
STANDARD_DEVIATIONS_PER_MAD = 1.4826
"""Standard deviation over median absolute deviation of normally distributed values."""
MIN_SHADE_RANGE = 0.02
"""Smallest range of shares that is stretched over all shades: smaller differences get similar
shades."""
RANKS_PER_ROW = 32
"""Ranks in a row of the mesh if no pipeline is known."""


class Figure(msgspec.Struct, frozen=True):
    """The distribution of one figure over ranks."""

    name: str
    title: str
    least: float
    low: float
    """5th percentile."""
    median: float
    high: float
    """95th percentile."""
    most: float
    least_rank: int
    most_rank: int
    counts: tuple[int, ...]
    """Histogram: number of ranks in equally wide bins from the smallest to the largest value."""

    def shade(self, value: float) -> float:
        """Return the position of a value between the smallest (0) and the largest (1), for colours."""
        return (value - self.least) / max(self.most - self.least, MIN_SHADE_RANGE)

    def deviation(self, value: float) -> float:
        """Return how far a value is from the median, from -1 to 1: the farthest of all ranks is at one end.

        >>> figure = Figure("idle", "", 0.2, 0.2, 0.3, 0.4, 0.7, 0, 1, ())
        >>> round(figure.deviation(0.7), 3), round(figure.deviation(0.2), 3)
        (1.0, -0.25)
        """
        return (value - self.median) / max(
            self.most - self.median, self.median - self.least, MIN_SHADE_RANGE
        )


class Different(msgspec.Struct, frozen=True):
    """An outlier: a rank whose figure is far from the median of comparable ranks."""

    rank: int
    figure: str
    value: float
    median: float
    like: str
    """Ranks it was compared with: ``stage 3`` or ``all ranks``."""
    deviations: float
    """Difference from the median, in robust standard deviations."""


class Mesh(msgspec.Struct, frozen=True):
    """Arrangement of ranks: one row per stage and one column per pipeline, or rows of consecutive ranks."""

    rows: tuple[str, ...]
    cells: tuple[tuple[int | None, ...], ...]
    column: str
    """Meaning of a column: ``replica``, or ``rank`` if no pipeline is known."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return max((len(row) for row in self.cells), default=0)


class Spread(msgspec.Struct, frozen=True, eq=False):
    """Distribution of a run's figures over its ranks."""

    table: pl.DataFrame
    """One row per rank: ``rank``, ``stage``, ``replica`` and the figures."""
    figures: tuple[Figure, ...]
    different: tuple[Different, ...]
    mesh: Mesh

    @property
    def heat(self) -> Figure | None:
        """The figure of heat maps: the bubble, or idle time without a pipeline."""
        return next((figure for figure in self.figures if figure.name in ("bubble", "idle")), None)


def spread(analysis: Analysis) -> Spread:
    """Return the distribution of the figures of *analysis* over its ranks.

    >>> from tracekit.run.analyze import analyze
    >>> result = spread(analyze("sample_traces/1f1b"))
    >>> result.mesh.rows, result.mesh.cells, result.mesh.column
    (('stage 0', 'stage 1', 'stage 2', 'stage 3'), ((0,), (1,), (2,), (3,)), 'replica')
    >>> [figure.name for figure in result.figures]
    ['compute', 'communication', 'bubble', 'span_ns']
    """
    mesh = _mesh(analysis)
    position = {}
    for row, ranks in enumerate(mesh.cells):
        for column, rank in enumerate(ranks):
            position[rank] = (row, column)
    # A lower bound of the bubble is not comparable with exact bubbles; if all are bounds, they are
    # compared.
    exact_only = not all(result.whole.lower_bound for result in analysis.ranks)
    rows = []
    for result in analysis.ranks:
        rows.append((result.rank, *position[result.rank], *_figures(result, exact_only=exact_only)))
    columns = {
        "rank": pl.Int64,
        "stage": pl.Int64,
        "replica": pl.Int64,
        **dict.fromkeys(FIGURES, pl.Float64),
    }
    table = pl.DataFrame(rows, schema=columns, orient="row")
    figures = tuple(figure for name in FIGURES if (figure := _figure(table, name)) is not None)
    return Spread(table, figures, _outliers(table, by_stage=mesh.column == "replica"), mesh)


def _figures(result: RankFigures, *, exact_only: bool) -> tuple[float | None, ...]:
    """Return a rank's figures in the order of ``FIGURES``.

    With *exact_only* no bubble that is a lower bound.
    """
    figures = result.whole
    budget = result.whole.budget
    span = result.whole.budget.span_ns
    if not span:
        return None, None, None, None, 0.0
    communication = 0
    for label, ns in budget.exposed_ns.items():
        if label in COMMUNICATION_LABELS:
            communication += ns
    bubble = None if exact_only and figures.lower_bound else figures.bubble_fraction
    idle = None if figures.pipeline or not figures.idle_known else budget.idle_ns / span
    return budget.compute_ns / span, communication / span, bubble, idle, float(span)


def _mesh(analysis: Analysis) -> Mesh:
    """Arrange ranks by stage and pipeline if all are in pipelines of one length, else in rows of consecutive ranks."""
    ranks = [result.rank for result in analysis.ranks]
    compared = analysis.comparison.all if analysis.comparison is not None else ()
    pipelines = sorted({comparison.pipeline.ranks for comparison in compared})
    in_pipelines = set(chain.from_iterable(pipelines))
    if (
        not pipelines
        or not in_pipelines.issuperset(ranks)
        or len({len(pipeline) for pipeline in pipelines}) > 1
    ):
        rows = []
        for first in range(0, len(ranks), RANKS_PER_ROW):
            rows.append(tuple(ranks[first : first + RANKS_PER_ROW]))
        return Mesh(tuple(f"ranks {row[0]}–{row[-1]}" for row in rows), tuple(rows), "rank")
    present = set(ranks)
    stages = range(len(pipelines[0]))
    cells = []
    for stage in stages:
        row: list[int | None] = []
        for pipeline in pipelines:
            rank = pipeline[stage]
            row.append(rank if rank in present else None)
        cells.append(tuple(row))
    return Mesh(tuple(f"stage {stage}" for stage in stages), tuple(cells), "replica")


def _figure(table: pl.DataFrame, name: str) -> Figure | None:
    with_value = table.filter(pl.col(name).is_not_null()).select("rank", name)
    if with_value.is_empty():
        return None
    values = with_value[name].to_numpy()
    least, low, median, high, most = np.quantile(
        values, [0, 0.05, 0.5, 0.95, 1], method="nearest"
    ).tolist()
    value_range = (least, most) if most > least else (least - 0.5, least + 0.5)
    counts, _ = np.histogram(values, bins=HISTOGRAM_BINS, range=value_range)
    least_rank = with_value["rank"][int(values.argmin())]
    most_rank = with_value["rank"][int(values.argmax())]
    return Figure(
        name,
        FIGURES[name],
        least,
        low,
        median,
        high,
        most,
        least_rank,
        most_rank,
        tuple(counts.tolist()),
    )


def _outliers(table: pl.DataFrame, *, by_stage: bool) -> tuple[Different, ...]:
    """Return the outliers among ranks of the same stage, which do the same work.

    Each with its most unusual figure.
    """
    groups = table.partition_by("stage", maintain_order=True) if by_stage else [table]
    if any(len(group) < MIN_RANKS_FOR_OUTLIERS for group in groups):
        groups = [table]
        by_stage = False
    outliers: dict[int, Different] = {}
    for group in groups:
        like = f"stage {group['stage'][0]}" if by_stage else "all ranks"
        for name in FIGURES:
            with_value = group.filter(pl.col(name).is_not_null())
            median, deviations = _deviations(
                with_value[name].to_numpy(), relative=name == "span_ns"
            )
            for row in np.flatnonzero(deviations > MIN_OUTLIER_DEVIATIONS).tolist():
                rank = int(with_value["rank"][row])
                value = float(with_value[name][row])
                outlier = Different(rank, name, value, median, like, float(deviations[row]))
                if rank not in outliers or outlier.deviations > outliers[rank].deviations:
                    outliers[rank] = outlier
    return tuple(sorted(outliers.values(), key=lambda outlier: (-outlier.deviations, outlier.rank)))


def _deviations(
    values: npt.NDArray[np.float64], *, relative: bool
) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the median, and each value's distance from it in robust standard deviations.

    Zeros for few values.

    The standard deviation is at least so large that only differences above
    ``MIN_OUTLIER_DIFFERENCE`` are outliers.
    """
    if len(values) < MIN_RANKS_FOR_OUTLIERS:
        return 0.0, np.zeros(len(values))
    median = float(np.median(values))
    distances = np.abs(values - median)
    min_difference = MIN_OUTLIER_DIFFERENCE * (abs(median) if relative else 1.0)
    deviation = max(
        STANDARD_DEVIATIONS_PER_MAD * float(np.median(distances)),
        min_difference / MIN_OUTLIER_DEVIATIONS,
    )
    return median, distances / deviation


def by_rank(figures: Spread) -> Mapping[int, Mapping[str, float | None]]:
    """Return the figures of each rank, by its number."""
    return {row["rank"]: row for row in figures.table.iter_rows(named=True)}
