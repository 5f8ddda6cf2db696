"""Results in a notebook: the words of the terminal with its colours, and more of them folded below."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import RenderableType

from tracekit._util.notebook import html, html_table
from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget, Figures
from tracekit.documents.findings import Finding
from tracekit.metrics.overlap import ratio
from tracekit.metrics.step_time import summarize_steps
from tracekit.report.blocks import Sentence, TextBlock
from tracekit.report.findings import findings_of
from tracekit.report.sections import all_sections, section_words, sections_of
from tracekit.report.table import Table
from tracekit.report.terminal.first_screen import block_lines, first_screen, saving
from tracekit.report.terminal.screen import Screen
from tracekit.report.text import at_least, capitalize
from tracekit.report.view import view_of

NOTEBOOK_WIDTH = 100
"""Characters of a line."""
_PREFORMATTED = '<pre style="line-height:1.3;white-space:pre-wrap">{code}</pre>'


def analysis_html(analysis: Analysis) -> str:
    """Return the first screen of a run; all findings and a table of the ranks are folded below it."""
    view = view_of(analysis)
    parts = [screen_html(*first_screen(view, NOTEBOOK_WIDTH, options=()))]
    findings = findings_of(analysis)
    if findings:
        parts.append(_folded("All findings", findings_html(findings)))
    parts.append(_folded("Ranks", _rank_table(analysis)))
    words = section_words(view)
    for section in sections_of(all_sections(view), "terminal"):
        if blocks := section.text_blocks(view):
            parts.append(_folded(section.heading(words), "".join(map(block_html, blocks))))
    return "".join(parts)


def block_html(block: TextBlock) -> str:
    """Return a block of a section.

    >>> block_html(Sentence("it waits"))
    '<p>It waits.</p>'
    """
    if isinstance(block, Table):
        rows = []
        for row in block.rows:
            rows.append(
                [column.shown(value) for column, value in zip(block.columns, row, strict=True)]
            )
        heads = [column.name for column in block.columns]
        return html_table(block.caption, heads, rows, notes=block.remarks())
    if isinstance(block, Sentence):
        return f"<p>{html(capitalize(block.text))}.</p>"
    return screen_html(*block_lines(block, NOTEBOOK_WIDTH))


def findings_html(findings: Sequence[Finding]) -> str:
    """Return a table of findings: what each saves, what costs the time, and what to do.

    >>> findings_html(())
    '<p><b>No findings</b></p>'
    """
    if not findings:
        return html_table("No findings", (), ())
    rows = [
        (number, " ".join(saving(finding).split()), finding.text, finding.advice)
        for number, finding in enumerate(findings, start=1)
    ]
    heads = ("", "saves per step", "what costs time", "what to do")
    return html_table(counted(len(findings), "finding"), heads, rows)


def screen_html(*lines: RenderableType) -> str:
    """Return what a terminal would show, as preformatted HTML with its colours.

    >>> "a &lt; b" in screen_html("a < b")
    True
    """
    screen = Screen(width=NOTEBOOK_WIDTH, file=io.StringIO(), record=True, color_system="truecolor")
    for line in lines:
        screen.print(line)
    return screen.export_html(inline_styles=True, code_format=_PREFORMATTED)


def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{html(summary)}</summary>{inside}</details>"


def _rank_table(analysis: Analysis) -> str:
    """Return the step time and its parts, of the run and of each rank."""
    step = analysis.step
    rows = [_rank_row("run", step.stated_ns, step.stated_budget, analysis.total)]
    for result in analysis.rank_results:
        budget = summarize_steps({result.rank: result.timed_steps}).budget_ns
        time_ns = step.time_ns_by_rank.get(result.rank)
        rows.append(_rank_row(str(result.rank), time_ns, budget, result.whole))
    bubble = ["bubble"] if analysis.total.pipeline else []
    title = repr(analysis)[1:-1].partition(": ")[2]
    return html_table(title, ("rank", "step ms", "compute", "exposed", "idle", *bubble), rows)


def _rank_row(name: str, time_ns: int | None, budget: Budget, figures: Figures) -> list[str]:
    """Return the step time, the shares of its parts, and the bubble of *figures*."""
    shares = [
        ratio(budget.compute_ns, budget.span_ns),
        ratio(sum(budget.exposed_ns.values()), budget.span_ns),
        ratio(budget.idle_ns, budget.span_ns) if figures.idle_known else None,
    ]
    bubble = []
    if figures.pipeline:
        bubble.append(at_least(percent(figures.bubble_fraction), figures.lower_bound))
    time = "–" if time_ns is None else f"{time_ns / 1e6:,.3f}"
    return [name, time, *map(percent, shares), *bubble]
