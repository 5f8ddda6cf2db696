"""Runs to compare: their samples in one long table, the facts that make them comparable, and what explains a change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import polars as pl

from tracekit.analysis import Analysis
from tracekit.diffs import stats
from tracekit.diffs.metrics import Metric, resolve
from tracekit.diffs.samples import SAMPLES, by_full_name, per_step_samples, split_name
from tracekit.documents.analysis import Kernel, ProductRate, RankFigures
from tracekit.documents.baseline import CellTime, ModuleTime
from tracekit.documents.diff import Facts, TimelineCell
from tracekit.documents.findings import Finding
from tracekit.schema import conform

Key = tuple[Any, ...]
"""Fields by which rows are told apart."""
TimedRow = Kernel | ModuleTime | CellTime


class Run(msgspec.Struct, frozen=True, dict=True, eq=False):
    """One run: its samples, its facts, and what explains a change.

    >>> from tracekit.diffs.samples import make_samples
    >>> Run("baseline", make_samples({"step_ms": (10.0, 10.2)})).steps
    2
    """

    name: str
    # ``SAMPLES`` of the whole run, and the lateness of ranks.
    samples: pl.DataFrame = msgspec.field(default_factory=SAMPLES.to_frame)
    facts: Facts = Facts()
    kernels: Sequence[Kernel] = ()
    modules: Sequence[ModuleTime] = ()
    products: Sequence[ProductRate] = ()
    cells: Sequence[CellTime] = ()  # median time of its pipeline cells
    timeline: Sequence[TimelineCell] = ()  # pipeline cells of one step
    # The figures of each rank; empty for a run read from a baseline file.
    ranks: tuple[RankFigures, ...] = ()
    analysis: Analysis | None = None  # where it is kept for the page of a diff
    # Where ranks have several processes: the role that these figures are of.
    main_role: str | None = None
    roles: Mapping[str, Run] = {}  # … and the other roles
    recorded_steps: int = 0  # steps of dumps and logs, where there is no trace
    # What costs time, and the savings predicted for it; None if that was not kept.
    findings: tuple[Finding, ...] | None = None

    def __post_init__(self) -> None:
        named = self.samples.with_columns(run=pl.lit(self.name))
        msgspec.structs.force_setattr(self, "samples", conform(named, SAMPLES))

    @property
    def steps(self) -> int:
        """Number of measured steps."""
        return len(self.values("step_ms"))

    @property
    def recorded_or_measured_steps(self) -> int:
        """Number of measured steps, or of those in dumps and logs where no trace was measured."""
        return self.steps or self.recorded_steps

    @property
    def metric_names(self) -> Collection[str]:
        """Full names of the metrics that it has samples of."""
        return self._values_by_name.keys()

    def values(self, name: str) -> tuple[float, ...]:
        """Return the samples of the metric of this full name, empty if this run does not have it."""
        if name in self._values_by_name:
            return self._values_by_name[name]
        metric, rank = split_name(name)
        if rank is None:
            return ()
        if metric == "late_ms.rank":  # a rank that is never late has no samples of its own
            return (0.0,) * len(self.values(metric))
        return self._values_of_ranks.get(name, ())

    @cached_property
    def _values_by_name(self) -> dict[str, tuple[float, ...]]:
        return by_full_name(self.samples)

    @cached_property
    def _values_of_ranks(self) -> dict[str, tuple[float, ...]]:
        """Samples of each rank alone, which are only made for those who ask."""
        return by_full_name(per_step_samples(self.ranks, by_rank=True))


def centre_of_runs(runs: Sequence[Run], name: str) -> float | None:
    """Return the centre of a metric over the runs that have it (``stats.centre``).

    None if none has.

    >>> from tracekit.diffs.samples import make_samples
    >>> low, high = (Run("", make_samples({"step_ms": steps})) for steps in ((10.0, 12.0), ()))
    >>> centre_of_runs([low, high], "step_ms")
    11.0
    """
    metric = resolve(name, names_in_runs=[name])
    values = samples_of_metric(runs, metric)
    return stats.centre(values, metric.family.level) if values else None


def samples_of_metric(runs: Iterable[Run], metric: Metric) -> list[tuple[float, ...]]:
    """Return the samples of each run that has *metric*."""
    return [values for run in runs if (values := run.values(metric.name))]


def mean_times(
    rows_of_runs: Sequence[Sequence[TimedRow]], keys: Sequence[str]
) -> dict[Key, tuple[float, float]]:
    """Return (milliseconds, count) by the fields *keys*, the mean over the runs that have such rows."""
    tables = [rows for rows in rows_of_runs if rows]
    means: dict[Key, tuple[float, float]] = {}
    for rows in tables:
        for row in rows:
            key = tuple(getattr(row, name) for name in keys)
            ms, count = means.get(key, (0.0, 0.0))
            row_count = row.count if isinstance(row, Kernel) else 1
            means[key] = (
                ms + row.ns / 1e6 / len(tables),
                count + (row_count or 1) / len(tables),
            )
    return means
