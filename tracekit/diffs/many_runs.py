"""Several runs in one table: what each takes, and what costs most in it."""

from __future__ import annotations

import os
from collections.abc import Iterable

import polars as pl

from tracekit.results import Analysis
from tracekit.run.analyze import analyze

RunToCompare = str | os.PathLike[str] | Analysis


def compare(runs: Iterable[RunToCompare]) -> pl.DataFrame:
    """Return one row per run: its step, where the time went, and its first finding.

    Args:
        runs: Paths of traces, folders or stores, each one run, or analyses.

    Returns:
        ``run`` (its path), ``ranks``, ``time_ns`` and ``free_ns`` (the step as recorded and without
        the profiler), ``compute_ns``, ``exposed_ns`` and ``idle_ns`` (parts of the recorded step,
        means over ranks), ``exposed_ns.LABEL`` for each label that is exposed in any run,
        ``bubble_fraction`` (null without a pipeline), ``finding`` (the text of the first) and
        ``saves_ns``.

    >>> table = compare(["sample_traces/reload", "sample_traces/reload-overlap"])
    >>> table.select("run", "ranks").rows()
    [('sample_traces/reload', 4), ('sample_traces/reload-overlap', 4)]
    """
    rows = []
    for run in runs:
        analysis = run if isinstance(run, Analysis) else analyze(run)
        rows.append(_row_of_run(analysis))
    labels = sorted({name for row in rows for name in row if name.startswith("exposed_ns.")})
    schema = {
        "run": pl.String,
        "ranks": pl.Int64,
        **dict.fromkeys(("time_ns", "free_ns", "compute_ns", "exposed_ns"), pl.Int64),
        **dict.fromkeys(labels, pl.Int64),
        "idle_ns": pl.Int64,
        "bubble_fraction": pl.Float64,
        "finding": pl.String,
        "saves_ns": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema)


def _row_of_run(analysis: Analysis) -> dict[str, object]:
    """Return the row of a run; a label that is not exposed has no key."""
    step = analysis.step
    budget = step.budget_ns
    row: dict[str, object] = {
        "run": os.path.commonpath(analysis.paths) if analysis.paths else None,
        "ranks": len(analysis.ranks),
        "time_ns": step.time_ns,
        "free_ns": step.free_ns,
        "compute_ns": budget.compute_ns,
        "exposed_ns": sum(budget.exposed_ns.values()),
        "idle_ns": budget.idle_ns if analysis.total.idle_known else None,
        "bubble_fraction": analysis.total.bubble_fraction,
    }
    row |= {f"exposed_ns.{label}": ns for label, ns in budget.exposed_ns.items() if ns}
    for finding in analysis.findings[:1]:
        row |= {"finding": finding.text, "saves_ns": finding.saves_ns}
    return row
