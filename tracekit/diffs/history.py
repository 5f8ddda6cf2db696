"""Runs as points of a history (``report.html.history``): the levels that the gate compares."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tracekit._util.values import without_none
from tracekit.diffs.runs import Run, centre_of_runs
from tracekit.documents.history import HistoryPoint
from tracekit.report.html.history import add_to_history, current_commit, write_report
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

METRICS = ("free_step_ms", "step_ms", "bubble_fraction", "utilisation")


def history_point(
    run: Run,
    *,
    time_s: float,
    report: str | None = None,
    verdict: str | None = None,
    commit: str | None = None,
) -> HistoryPoint:
    """Return the point of a run: the level that the gate compares of each metric that the page draws."""
    metrics = (
        *METRICS,
        *(f"exposed_ms.{label}" for label in (*COMMUNICATION_LABELS, *COPY_LABELS)),
    )
    values = without_none({name: centre_of_runs([run], name) for name in metrics})
    recorded = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
    return HistoryPoint(run.name, recorded, values, commit, verdict, report)


def add_runs_to_history(path: Path, runs: Sequence[Run], *, verdict: str) -> None:
    """Add the candidates of a gate, with the commit that a build server names, and write their reports."""
    now_s = time.time()
    commit = current_commit()
    points = []
    for run in runs:
        name = f"{run.name}-{commit[:12]}" if commit else f"{run.name}-{int(now_s)}"
        report = None if run.analysis is None else write_report(run.analysis, path, name)
        points.append(
            history_point(run, time_s=now_s, report=report, verdict=verdict, commit=commit)
        )
    add_to_history(path, points)
