"""Results in a notebook: the words of the terminal with its colours, and more of them folded below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import singledispatch

from rich.console import RenderableType

from tracekit._util.notebook import html, html_table
from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget, Figures
from tracekit.documents.findings import Finding
from tracekit.metrics.overlap import ratio
from tracekit.metrics.step_time import summarize_steps
from tracekit.report.blocks import FactList, Folded, Listing, Notices, Sentence, TextBlock
from tracekit.report.findings import findings_of
from tracekit.report.section import section_words, sections_of, text_blocks
from tracekit.report.sections import all_sections
from tracekit.report.table import Table
from tracekit.report.terminal.blocks import draw_block
from tracekit.report.terminal.first_screen import first_screen, saving
from tracekit.report.terminal.screen import Screen
from tracekit.report.text import at_least, capitalize

NOTEBOOK_WIDTH = 100
"""Characters of a line."""
DRAWN = ("bar", "histogram", "command")
"""Kinds of columns that a table of a notebook leaves out."""
_PREFORMATTED = '<pre style="line-height:1.3;white-space:pre-wrap">{code}</pre>'


def analysis_html(analysis: Analysis) -> str:
    """Return the first screen of a run; all findings and a table of the ranks are folded below it."""
    parts = [screen_html(*first_screen(analysis, NOTEBOOK_WIDTH, options=()))]
    findings = findings_of(analysis)
    if findings:
        parts.append(_folded("All findings", findings_html(findings)))
    parts.append(_folded("Ranks", _rank_table(analysis)))
    words = section_words(analysis)
    for section in sections_of(all_sections(analysis), "terminal"):
        is_above = section.id == "findings"
        if not is_above and (blocks := section.text_blocks(analysis)):
            parts.append(_folded(section.heading(words), "".join(map(block_html, blocks))))
    return "".join(parts)


@singledispatch
def block_html(block: TextBlock) -> str:
    """Return a block of a section: tables and sentences as HTML, drawings as a terminal has them.

    >>> block_html(Sentence("it waits"))
    '<p>It waits.</p>'
    """
    drawn = draw_block(block, NOTEBOOK_WIDTH)
    return "" if drawn is None else screen_html(drawn)


@block_html.register
def _(block: Table) -> str:
    columns = [(i, column) for i, column in enumerate(block.columns) if column.kind not in DRAWN]
    rows = [[column.shown(row[i]) for i, column in columns] for row in block.rows]
    heads = [column.name for _, column in columns]
    return html_table(block.caption, heads, rows, notes=block.remarks())


@block_html.register
def _(block: FactList) -> str:
    return html_table("", [""] * 2, block.rows)


@block_html.register
def _(block: Notices) -> str:
    return html_table("", (), (), notes=[line.message for line in block.lines])


@block_html.register
def _(block: Listing) -> str:
    return html_table("", (), (), notes=block.lines)


@block_html.register
def _(block: Folded) -> str:
    return _folded(block.title, "".join(map(block_html, text_blocks(block.blocks))))


@block_html.register
def _(block: Sentence) -> str:
    if block.style == "fact":
        return f"<p>{html(block.text)}</p>"
    return f"<p>{html(capitalize(block.text))}.</p>"


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
    for result in analysis.ranks:
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
