"""The line that ``watch`` prints for each recording."""

from tracekit._util.text import counted, ms, percent, terminal
from tracekit.analysis import Analysis
from tracekit.diffs.load_runs import Side
from tracekit.diffs.run_gate import GateResult, gate
from tracekit.diffs.run_samples import DAMAGE_NOTICES, from_analysis
from tracekit.diffs.runs import Run
from tracekit.errors import InputError, Notice
from tracekit.report.findings import finding_in_a_log, shown_findings
from tracekit.report.notices import notice_sentence
from tracekit.report.pace import Pace
from tracekit.report.sections.stragglers import late_rank, late_rows
from tracekit.report.step_words import free_step_words
from tracekit.run.watch import WatchedRecording


def run_of(recording: WatchedRecording) -> Run | None:
    """Return the recording as a run for the gate; None if it could not be analysed."""
    if recording.analysis is None:
        return None
    return from_analysis(recording.analysis.to_document(), name=recording.name)


def damage_of(recording: WatchedRecording) -> list[Notice]:
    """Return the notices of a recording of which a part is lost; the gate decides on none of these."""
    if recording.analysis is None:
        return []
    return [notice for notice in recording.analysis.notices if notice.code in DAMAGE_NOTICES]


def line(recording: WatchedRecording, *, first: Run | None = None) -> str:
    """Return the step time, budget and first finding of a recording, and whether it is slower than the *first* one."""
    name = terminal(recording.name)
    analysis = recording.analysis
    run = run_of(recording)
    if recording.read_again:
        name = f"{name} (read again, a file has changed)"
    if analysis is None or run is None:
        return f"{name}: {terminal(recording.error)}"
    if damage := damage_of(recording):
        return f"{name}: damaged, its figures are not used: {terminal(notice_sentence(damage[0]))}"
    total = analysis.total
    budget = analysis.step.budget_ns
    of_recorded = "of the recorded step " if analysis.step.profiler_ns else ""
    step_pace = Pace(analysis)
    parts = [
        f"step {free_step_words(analysis.step) or ms(step_pace.ns)} ({counted(step_pace.steps, 'step')})",
        f"{of_recorded}compute {percent(budget.compute_ns, budget.span_ns)}",
        f"exposed {percent(sum(budget.exposed_ns.values()), budget.span_ns)}",
    ]
    if total.idle_known:
        parts.append(f"idle {percent(budget.idle_ns, budget.span_ns)}")
    text = f"{name}: {', '.join(parts)}"
    findings = shown_findings(analysis.findings)
    if findings:
        text += f"; first: {finding_in_a_log(findings[0])}"
    if first is None or first.name == run.name:
        return text
    return f"{text}{regression_mark(run, first)}{_newly_late(analysis, first)}"


def _newly_late(analysis: Analysis, first: Run) -> str:
    """Return the rank that is late in this recording and was not in *first*, with the cause.

    Else nothing.
    """
    were_late = first.metric_names
    rows = [row for row in late_rows(analysis) if f"late_ms.rank@{row.rank}" not in were_late]
    return f"  << {late_rank(rows[0], max(len(analysis.step.per_step), 1))}" if rows else ""


def judge(run: Run, first: Run | None) -> GateResult | None:
    """Return what the gate says of a recording against the *first* one; None for the first itself.

    Raises:
        InputError: The recordings cannot be compared: another profiler wrote the first.
    """
    if first is None or first.name == run.name:
        return None
    return gate(Side((run,), {}), Side((first,), {}))


def verdict_of(run: Run, first: Run | None) -> str | None:
    """Return the gate's verdict against the *first* recording; None if there is none."""
    try:
        result = judge(run, first)
    except InputError:
        return None
    return None if result is None else result.verdict


def regression_mark(run: Run, first: Run) -> str:
    """Return a mark with the worst metric if the gate finds the recording slower than *first*.

    Else nothing.
    """
    try:
        result = judge(run, first)
    except InputError as error:
        return f"  (not compared: {terminal(error.message)})"
    if result is None:
        return ""
    if result.verdict != "regressed":
        return ""
    worst = next(check for check in result.to_dict()["checks"] if check["verdict"] == "regressed")
    return f"  << slower than {terminal(first.name)}, both as recorded: {worst['metric']}"
