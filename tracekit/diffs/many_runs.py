"""Several runs in one table: what each takes, and what costs most in it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from tracekit._util.files import atomic_write
from tracekit.results import Analysis
from tracekit.run.analyze import analyze
from tracekit.run.query import read_runs
from tracekit.schema import RUN_TABLE

RunToCompare = str | os.PathLike[str] | Analysis
COMPARED_COLUMNS = tuple(name for name in RUN_TABLE if name != "recorded")
"""Columns that every comparison has; labels that are exposed come behind them."""


def compare(runs: Iterable[RunToCompare]) -> pl.DataFrame:
    """Return one row per run: its step, where the time went, and its first finding.

    Args:
        runs: Paths of traces, folders or stores, each one run, or analyses.

    Returns:
        The columns of ``schema.RUN_TABLE`` without ``recorded``, where ``run`` is its path, and
        ``exposed_ns.LABEL`` for each label that is exposed in any run.

    >>> table = compare(["sample_traces/reload", "sample_traces/reload-overlap"])
    >>> table.select("run", "ranks").rows()
    [('sample_traces/reload', 4), ('sample_traces/reload-overlap', 4)]
    """
    rows = []
    for run in runs:
        analysis = run if isinstance(run, Analysis) else analyze(run)
        rows.append(_row_of_run(analysis))
    labels = sorted({name for row in rows for name in row if name.startswith("exposed_ns.")})
    columns = {name: dtype for name, dtype in RUN_TABLE.items() if name in COMPARED_COLUMNS}
    of_labels = dict.fromkeys(labels, pl.Int64())
    return pl.DataFrame(rows, schema={**columns, **of_labels})


def add_to_runs(path: Path, analysis: Analysis, *, name: str, time_s: float) -> None:
    """Add a recording to a table of runs (``schema.RUN_TABLE``), which is made if it is not there.

    A recording of the same name and time is replaced.

    Args:
        path: The table, a Parquet file.
        analysis: Its analysis.
        name: Its name.
        time_s: When it was recorded, in seconds since 1970.
    """
    recorded = datetime.fromtimestamp(round(time_s, 3), UTC)
    row = {**_row_of_run(analysis), "recorded": recorded, "run": name}
    before = read_runs(path) if path.exists() else RUN_TABLE.to_frame()
    added = pl.DataFrame([{column: row.get(column) for column in RUN_TABLE}], schema=RUN_TABLE)
    table = pl.concat([before, added]).unique(["recorded", "run"], keep="last", maintain_order=True)
    with atomic_write(path) as temporary:
        table.sort("recorded", maintain_order=True).write_parquet(temporary)


def _row_of_run(analysis: Analysis) -> dict[str, object]:
    """Return the row of a run; a label that is not exposed has no key."""
    step = analysis.step
    budget = step.budget_ns
    row: dict[str, object] = {
        "run": os.path.commonpath(analysis.paths) if analysis.paths else None,
        "ranks": len(analysis.ranks),
        "steps": len(step.per_step),
        "time_ns": step.time_ns,
        "free_ns": step.free_ns,
        "compute_ns": budget.compute_ns,
        "exposed_ns": sum(budget.exposed_ns.values()),
        "idle_ns": budget.idle_ns if analysis.total.idle_known else None,
        "bubble_fraction": analysis.total.bubble_fraction,
    }
    row |= {f"exposed_ns.{label}": ns for label, ns in budget.exposed_ns.items() if ns}
    for finding in analysis.findings[:1]:
        row |= {"code": finding.code, "finding": finding.text, "saves_ns": finding.saves_ns}
    return row
