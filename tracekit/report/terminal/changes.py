"""The results of ``diff`` and ``gate`` in a terminal."""

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tracekit._util.text import counted, terminal
from tracekit.documents.coding import known
from tracekit.documents.diff import DiffDocument
from tracekit.documents.gate import GateDocument
from tracekit.report.ci import finding_words, words
from tracekit.report.palette import UNSURE
from tracekit.report.table import Table
from tracekit.report.terminal.table import VERDICT_STYLES, Note, render_table
from tracekit.report.text import wrap_text

MAX_ROWS_PER_DIFF_TABLE = 8
MAX_PASSING_CHECKS = 8
MAX_MOVED_ROWS = 5
MIN_WIDTH_WITH_REASONS = 110
"""Columns of a terminal in which a check's reason fits beside its figures."""


def show_diff(result: DiffDocument, console: Console) -> None:
    """Print a diff, the largest change first."""
    console.print(render_diff(result, width=console.width))


def render_diff(result: DiffDocument, *, width: int = 100) -> RenderableType:
    """Return a diff to print.

    Numbers are never cut, names and the last columns are on a narrow terminal.
    """
    parts: list[RenderableType] = [Text(terminal(words.compared_runs(result)), style="dim")]
    parts.append(Text(words.step_sentence(result), style="bold"))
    parts += [Text(lead)] if (lead := words.story_lead(result)) else []
    parts += [Text(f"  {terminal(line)}") for line in words.story(result)]
    parts += _changed_findings(result, width)
    if result.obstacles:
        parts.append(Text(terminal(f"not comparable: {'; '.join(result.obstacles)}"), style=UNSURE))
    metrics = [row for row in result.metrics if row.verdict != "pass"] or result.metrics[:3]
    parts += _table(words.metric_table(metrics[:MAX_ROWS_PER_DIFF_TABLE]), width)
    parts += [Note(words.TYPICAL_STEP_NOTE)] if metrics and words.has_typical_steps(result) else []
    parts += _table(words.label_table(result), width)
    for key in words.MOVED:
        parts += _table(words.moved_table(key, result), width)
    parts += [Note(note)] if (note := words.means_note(result)) else []
    parts += [Text(terminal(note), style="dim") for note in result.notes]
    for role, changes in known(result.roles, {}).items():
        parts += [
            Text(""),
            Text(f"Role {terminal(role)}", style="bold"),
            render_diff(changes, width=width),
        ]
    return Group(*parts)


def _changed_findings(result: words.Compared, width: int) -> list[RenderableType]:
    """Return the findings that changed, and predicted against measured savings; nothing if there are none."""
    parts: list[RenderableType] = []
    for line in finding_words.changed_findings(result)[:MAX_MOVED_ROWS]:
        parts.append(Text(wrap_text(line.sentence, width, first="  ", rest="    ")))
    if sentence := finding_words.savings_sentence(result):
        parts.append(Text(wrap_text(sentence, width, first="  ", rest="    "), style="bold"))
    return parts


def _table(
    table: Table | None, width: int, *, most: int = MAX_ROWS_PER_DIFF_TABLE
) -> list[RenderableType]:
    """Return an empty line and the first rows of a table; nothing if there is none."""
    if table is None:
        return []
    more = len(table.rows) - most
    notes = [f"… and {more} more (-o diff.html shows them)"] if more > 0 else []
    rendered = render_table(table, width, max_rows=most, notes=notes)
    return [] if rendered is None else [Text(""), rendered]


def show_gate(result: GateDocument, console: Console) -> None:
    """Print a verdict."""
    console.print(render_gate(result, width=console.width))


def render_gate(result: GateDocument, *, width: int = 80) -> RenderableType:
    """Return a verdict to print: the runs, the sentence, the checks, what moved, the waivers."""
    parts: list[RenderableType] = [Text(terminal(words.compared_runs(result)), style="dim")]
    parts.append(Text(terminal(words.headline(result)), style=VERDICT_STYLES[result.verdict]))
    regressed = result.verdict == "regressed"
    if regressed:
        parts += [Text(f"  {terminal(line)}") for line in words.story(result)]
    parts += _changed_findings(result, width)
    passing = [
        check for check in result.checks if check.verdict == "pass" and not check.requirement
    ]
    hidden = passing[MAX_PASSING_CHECKS:]
    shown = [check for check in result.checks if check not in hidden]
    checks = render_table(
        words.check_table(shown, reasons_below=width < MIN_WIDTH_WITH_REASONS), width
    )
    if checks is not None:
        parts.append(checks)
        parts += [Note(f"and {counted(len(hidden), 'more metric')} that pass")] if hidden else []
        parts += [Note(words.TYPICAL_STEP_NOTE)] if words.has_typical_steps(result) else []
    moved = known(result.moved, None)
    if regressed and moved is not None:
        for key in ("kernels", "cells"):
            parts += _table(words.moved_table(key, moved), width, most=MAX_MOVED_ROWS)
    for waiver in result.waivers:
        text = f"waiver ({waiver.status}) {waiver.metric} until {waiver.until}: {waiver.reason}"
        parts.append(Text(terminal(text), style="dim"))
    return Group(*parts)
