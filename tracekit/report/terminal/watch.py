"""The line that ``watch`` prints for each recording."""

from __future__ import annotations

from tracekit._util.text import counted, ms, percent, terminal
from tracekit.diffs import Run, Side, from_analysis
from tracekit.errors import InputError
from tracekit.gates import gate
from tracekit.report.view.lateness import late_rank, late_rows
from tracekit.report.view.ranks import pace
from tracekit.run.watch import Recording


def run_of(recording: Recording) -> Run | None:
    """Return the recording as a run for the gate; None if it could not be analysed."""
    if recording.analysis is None:
        return None
    return from_analysis(recording.analysis.to_document(), name=recording.name)


def line(recording: Recording, *, first: Run | None = None) -> str:
    """Return the step time and budget of a recording, and whether it is slower than the *first* one."""
    name = terminal(recording.name)
    if recording.analysis is None:
        return f"{name}: {recording.error}"
    total = recording.analysis.total
    budget = total.budget
    step_pace = pace(recording.analysis)
    parts = [
        f"step {ms(step_pace.ns)} ({counted(step_pace.steps, 'step')})",
        f"compute {percent(budget.compute_ns, budget.span_ns)}",
        f"exposed {percent(sum(budget.exposed_ns.values()), budget.span_ns)}",
    ]
    if total.idle_known:
        parts.append(f"idle {percent(budget.idle_ns, budget.span_ns)}")
    return f"{name}: {', '.join(parts)}{_regression_mark(recording, first)}{_newly_late(recording, first)}"


def _newly_late(recording: Recording, first: Run | None) -> str:
    """Return the rank that is late in this recording and was not in *first*, with the cause; else nothing."""
    if recording.analysis is None or first is None or first.name == recording.name:
        return ""
    rows = [row for row in late_rows(recording.analysis) if f"late_ms.rank@{row.rank}" not in first.samples]
    return f"  << {late_rank(rows[0], len(recording.analysis.step_times))}" if rows else ""


def _regression_mark(recording: Recording, first: Run | None) -> str:
    """Return a mark with the worst metric if the gate finds the recording slower than *first*; else nothing."""
    run = run_of(recording)
    if first is None or run is None or run.name == first.name:
        return ""
    try:
        result = gate(Side((run,), {}), Side((first,), {}))
    except InputError as error:  # recorded by another profiler than the first
        return f"  (not compared: {error.message})"
    if result.verdict != "regressed":
        return ""
    worst = next(check for check in result.to_dict()["checks"] if check["verdict"] == "regressed")
    return f"  << slower than {terminal(first.name)}: {worst['metric']}"
