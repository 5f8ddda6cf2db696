"""Results as Markdown: an analysis with the tables that a reviewer asks for next, a diff, and a verdict of the gate.

All text is escaped.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import singledispatch

from msgspec.structs import replace

from tracekit._util.text import counted, listing
from tracekit.analysis import Analysis
from tracekit.documents.coding import known
from tracekit.documents.diff import DiffDocument
from tracekit.documents.gate import CheckResult, GateDocument
from tracekit.report.blocks import (
    FactList,
    FindingItem,
    Folded,
    Headline,
    Listing,
    Notices,
    Sentence,
    StepBar,
    TextBlock,
    Warnings,
)
from tracekit.report.ci import finding_words, words
from tracekit.report.findings import finding_line, further_findings
from tracekit.report.first_screen import first_screen
from tracekit.report.run_facts import device_names, source_paths
from tracekit.report.section import section_words, sections_of, text_blocks
from tracekit.report.sections import all_sections
from tracekit.report.table import Column, Table, Value, make_table
from tracekit.report.terminal.first_screen import BAR_LENGTH, step_bar
from tracekit.report.text import (
    capitalize,
    keep_units_together,
    markdown,
    markdown_code,
)

VERDICT_ICONS = {
    "pass": "✅",
    "improved": "🚀",
    "regressed": "❌",
    "inconclusive": "⚠️",
    "error": "⛔",
}
MAX_VISIBLE_ROWS = 16
"""Rows of a table that are visible; the rest is folded."""
MAX_NAME_LENGTH = 160
"""Characters of a kernel's name."""
MAX_DIFF_ROWS = 15
"""Rows of a table of a diff."""
MAX_GATE_ROWS = 8
"""Metrics and findings of a verdict that are visible; the rest is folded."""
MAX_COMMENT_LENGTH = 60_000
"""Characters of a verdict, which becomes a comment: GitHub takes 65,536, with a link and a mark of
its own beside it."""
MAX_HEADLINE_LENGTH = 600
"""Characters of the sentence of a verdict, which may quote an error."""
MAX_STORY_LINES = 5
"""Sentences of a verdict that explain the change."""


def render_table(table: Table, *, fold: bool = True) -> str:
    r"""Return a table as Markdown with its notes; if *fold*, rows after the first are folded.

    >>> print(render_table(Table((Column("a"), Column("b", "count")), (("x|y", 1),), ("from the trace",))))
    | a | b |
    | --- | ---: |
    | x\|y | 1 |
    <BLANKLINE>
    From the trace.
    """
    table = with_parts_of_bars(table)
    visible = table.rows[:MAX_VISIBLE_ROWS] if fold else table.rows
    parts = [_lines(table, visible)] if table.rows else []
    rest = table.rows[len(visible) :]
    if rest:
        parts.append(folded(counted(len(rest), "more row"), _lines(table, rest)))
    parts.extend(markdown(f"{capitalize(remark)}.") for remark in table.remarks())
    return "\n\n".join(parts)


def with_parts_of_bars(table: Table) -> Table:
    """Return a table whose bars are columns of their parts, in the place of those that sum them up.

    Commands, which are there to be copied by a click, are left out.
    """
    bars = [i for i, column in enumerate(table.columns) if column.kind == "bar"]
    if not any(column.kind in ("bar", "command", "histogram") for column in table.columns):
        return table
    has_sums = any(column.beside_bar for column in table.columns)
    columns: list[Column] = []
    values: list[list[Value]] = []  # by column
    for i, column in enumerate(table.columns):
        if i in bars and has_sums:
            names = dict.fromkeys(name for row in table.rows for name in row[i].shares)
            ends = ("idle", "not recorded")
            for name in sorted(names, key=lambda name: name in ends):
                columns.append(Column(name, "share"))
                values.append([row[i].shares.get(name) for row in table.rows])
        elif column.kind not in ("bar", "command", "histogram") and not column.beside_bar:
            columns.append(column)
            values.append([row[i] for row in table.rows])
    rows = tuple(zip(*values, strict=True))
    return replace(table, columns=tuple(columns), rows=rows)


def _lines(table: Table, rows: Iterable[Sequence[Value]]) -> str:
    heads = []
    rules = []
    for column in table.columns:
        heads.append(column.name)
        rules.append("---" if column.words else "---:")
    lines = [_line(heads), _line(rules)]
    for row in rows:
        cells = [_cell(column, value) for column, value in zip(table.columns, row, strict=True)]
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(cells)} |"


def _cell(column: Column, value: Value) -> str:
    text = column.shown(value)
    if column.kind == "verdict":
        text = f"{VERDICT_ICONS[text]} {text}"
    if column.kind == "code" and text:
        return markdown_code(_clip(text, MAX_NAME_LENGTH))
    return markdown(text)


def bullets(lines: Iterable[object]) -> str:
    """Return a list; empty if there are no lines."""
    return "\n".join(f"- {markdown(line)}" for line in lines)


def folded(summary: str, inside: str) -> str:
    """Return a part that is shown only on a click."""
    return f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>"


def render_markdown(analysis: Analysis, show: Collection[str] = ()) -> str:
    """Return the whole report as text; *show* are the sections that options asked for.

    >>> from tracekit import analyze
    >>> print(render_markdown(analyze("sample_traces/reload", schedule="none")).splitlines()[0])
    ## tracekit: reload · 4 ranks · 1 step · H200 (32 of 132 SMs) · 105 ms a step
    """
    return _paragraphs(
        [
            *map(draw_block, first_screen(analysis)),
            _further_findings(analysis),
            *_sections(analysis, show),
            _source(analysis),
        ]
    )


def _paragraphs(parts: Iterable[str | None]) -> str:
    """Return the parts that are not empty, with a blank line between two."""
    return "\n\n".join(part for part in parts if part) + "\n"


@singledispatch
def draw_block(block: TextBlock, *, fold: bool = True) -> str:
    """Return a block; empty if it is a drawing. Rows of a long table are folded if *fold*."""
    return ""


@draw_block.register
def _(block: Headline, *, fold: bool = True) -> str:
    return f"## tracekit: {markdown(block.text)}"


@draw_block.register
def _(block: StepBar, *, fold: bool = True) -> str:
    return f"`{step_bar(block, BAR_LENGTH).plain}` {markdown(' · '.join(block.words))}"


@draw_block.register
def _(block: Sentence, *, fold: bool = True) -> str:
    if block.style == "fact":
        return markdown(block.text)
    text = _with_code(capitalize(block.text))
    if block.style == "heading":
        return f"**{text}**"
    return f"{text}." if block.style == "plain" else f"<sub>{text}</sub>"


@draw_block.register
def _(block: FindingItem, *, fold: bool = True) -> str:
    # Its number is text: a list would count anew.
    line = capitalize(finding_line(block.finding, block.remarks))
    return f"**{block.number}.** {_with_code(line)}"


@draw_block.register
def _(block: Warnings, *, fold: bool = True) -> str:
    count = counted(len(block.warnings), "warning")
    first = "" if len(block.warnings) == 1 else ", first"
    return f"<sub>{count}{first}: {markdown(block.warnings[0].message)}</sub>"


@draw_block.register
def _(block: Table, *, fold: bool = True) -> str:
    return render_table(block, fold=fold)


@draw_block.register
def _(block: FactList, *, fold: bool = True) -> str:
    return render_table(Table((Column(""), Column("")), tuple(block.rows)), fold=fold)


@draw_block.register
def _(block: Notices, *, fold: bool = True) -> str:
    return bullets(f"{line.code}: {line.message}" for line in block.lines)


@draw_block.register
def _(block: Listing, *, fold: bool = True) -> str:
    return bullets(block.lines)


@draw_block.register
def _(block: Folded, *, fold: bool = True) -> str:
    inside = "\n\n".join(filter(None, map(draw_block, text_blocks(block.blocks))))
    return folded(markdown(capitalize(block.title)), inside) if inside else ""


def _with_code(text: str) -> str:
    """Return escaped text in which the words between backticks stay code."""
    return re.sub(r"\\`([^`]*)\\`", r"`\1`", markdown(text))


def _further_findings(analysis: Analysis) -> str:
    """Return the findings that the first screen does not show, folded; empty if there are none."""
    further = further_findings(analysis)
    if not further:
        return ""
    inside = "\n\n".join(draw_block(item) for item in further)
    return folded(counted(len(further), "more finding"), inside)


def _source(analysis: Analysis) -> str:
    paths = listing(markdown(path) for path in source_paths(analysis))
    named = device_names(analysis.sources)
    devices = ", ".join(markdown(device) for device in named) or "no device named"
    readers = "+".join(sorted({source.reader for source in analysis.sources}))
    ranks = counted(len(analysis.ranks), "rank")
    return f"<sub>{ranks} · {markdown(readers)} · {devices} · {paths}</sub>"


def _sections(analysis: Analysis, show: Collection[str]) -> Iterator[str]:
    """Yield the sections that have something to say."""
    words = section_words(analysis)
    for section in sections_of(all_sections(analysis), "markdown"):
        if "markdown" in section.when_asked and not {section.id, section.part_of} & set(show):
            continue
        is_folded = "markdown" in section.folded
        drawn = [draw_block(block, fold=not is_folded) for block in section.text_blocks(analysis)]
        inside = "\n\n".join(filter(None, drawn))
        if not inside:
            continue
        title = markdown(section.title.format_map(words))
        if is_folded:
            yield folded(title, inside)
            continue
        scope = capitalize(section.scope.format_map(words))
        yield "\n\n".join(filter(None, (f"### {title}", scope and markdown(f"{scope}."), inside)))


def render_diff(result: DiffDocument) -> str:
    """Return the changes by metric, label, module, rank, kernel and cell, the largest first."""
    parts = [f"# tracekit diff\n\n**{markdown(words.step_sentence(result))}**"]
    parts += [
        words.story_lead(result),
        bullets(words.story(result)),
        _changed_findings(result),
        markdown(words.compared_runs(result)),
    ]
    if result.obstacles:
        parts.append(f"> **Not comparable:** {markdown('; '.join(result.obstacles))}")
    parts.append(_diff_section("Metrics", words.metric_table(result.metrics[:MAX_DIFF_ROWS])))
    if result.metrics and words.has_typical_steps(result):
        parts.append(words.TYPICAL_STEP_NOTE)
    parts.append(_diff_section("Labels", words.label_table(result)))
    for key in words.MOVED:
        parts.append(_diff_section(key.capitalize(), words.moved_table(key, result)))
    means_note = words.means_note(result)
    if means_note:
        parts.append(f"{capitalize(means_note)}.")
    parts.append(bullets(result.notes))
    return _paragraphs(parts)


def _diff_section(title: str, table: Table | None) -> str:
    """Return a table with its title, without the rows after the first; empty if there is none."""
    if table is None:
        return ""
    left_out = len(table.rows) - MAX_DIFF_ROWS
    more = f"\n\n… and {left_out} more" if left_out > 0 else ""
    return f"## {title}\n\n{render_table(replace(table, rows=table.rows[:MAX_DIFF_ROWS]))}{more}"


def _changed_findings(result: words.Compared) -> str:
    """Return the findings that changed and what became of predicted savings; empty if there are none."""
    lines = [_finding_line(line) for line in finding_words.changed_findings(result)]
    undecided = [_finding_line(line) for line in finding_words.undecided_findings(result)]
    parts = []
    if lines:
        parts.append("**Findings that changed**\n\n" + "\n".join(lines[:MAX_GATE_ROWS]))
    if len(lines) > MAX_GATE_ROWS:
        more = lines[MAX_GATE_ROWS:]
        parts.append(folded(counted(len(more), "more finding"), "\n".join(more)))
    if sentence := finding_words.savings_sentence(result):
        parts.append(f"**{markdown(sentence)}**")
    if undecided:
        parts.append(folded(finding_words.undecided_note(result), "\n".join(undecided)))
    return "\n\n".join(parts)


def _finding_line(line: finding_words.FindingLine) -> str:
    """Return one finding as an item of a list."""
    mark = finding_words.KIND_MARKS[line.kind]
    return f"- {mark} **{line.kind}**, {markdown(line.cost)}: {_with_code(line.explanation)}"


def render_gate(result: GateDocument, *, max_length: int = MAX_COMMENT_LENGTH) -> str:
    """Return a verdict: the sentence, what changed, before and after, and folded what else was checked.

    Parts that do not fit into *max_length* are left out from the end.
    """
    visible = [_gate_headline(result), _gate_step(result)]
    if result.verdict in ("regressed", "improved"):
        visible.append(bullets(words.story(result)[:MAX_STORY_LINES]))
    visible.append(_changed_findings(result))
    visible.append(_gate_metrics(result))
    if result.waivers:
        columns = [Column(name) for name in ("metric", "status", "until", "reason")]
        if (waivers := make_table(columns, result.waivers)) is not None:
            visible.append(f"### Waivers\n\n{render_table(waivers)}")
    runs = words.compared_runs(result)
    footer = f"<sub>{markdown(_clip(runs, MAX_HEADLINE_LENGTH))}</sub>" if runs else ""
    parts = [*visible, *_gate_details(result), footer]
    return _join_within([part for part in parts if part], max_length)


def _join_within(parts: Sequence[str], max_length: int) -> str:
    """Return the parts as one text, without the last ones that do not fit.

    >>> print(_join_within(["first", "x" * 90, "last"], 80))
    first
    <BLANKLINE>
    <sub>left out: 2 parts</sub>
    <BLANKLINE>
    """
    text = "\n\n".join(parts) + "\n"
    if len(text) <= max_length:
        return text
    kept: list[str] = []
    for part in parts:
        note = f"<sub>left out: {counted(len(parts) - len(kept), 'part')}</sub>"
        if len("\n\n".join([*kept, part, note])) >= max_length:
            break
        kept.append(part)
    return "\n\n".join([*kept, note]) + "\n"


def _clip(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _gate_headline(result: GateDocument) -> str:
    headline = _clip(words.headline(result), MAX_HEADLINE_LENGTH)
    gate_name = known(result.name, "")
    name = f" ({markdown(_clip(gate_name, MAX_NAME_LENGTH))})" if gate_name else ""
    return f"## {VERDICT_ICONS[result.verdict]} tracekit gate{name}: {markdown(headline)}"


def _gate_step(result: GateDocument) -> str:
    """Return what became of the step time; empty if it cannot be compared with a baseline."""
    if result.obstacles:
        return ""
    for check in _without_repeated_reasons(result.checks, result):
        if check.metric == "step_ms" and check.change is not None:
            return f"**{markdown(words.step_sentence(replace(result, checks=[check])))}**"
    return ""


def _gate_metrics(result: GateDocument) -> str:
    """Return the metrics that changed, exceed their limit or were required; the rest is folded."""
    checks = sorted(result.checks, key=lambda check: words.GATE_VERDICT_ORDER.index(check.verdict))
    telling = [check for check in checks if _is_telling(check)]
    if result.obstacles:  # changes of runs that cannot be compared tell nothing
        telling = [check for check in telling if check.verdict != "inconclusive"]
    shown = telling[:MAX_GATE_ROWS]
    rest = [check for check in checks if check not in shown]
    parts = []
    explained = _without_repeated_reasons(shown, result)
    if (table := words.check_table(explained, reasons_below=True, likely_ranges=False)) is not None:
        rendered = render_table(table, fold=False)
        parts.append(keep_units_together(rendered))
    if (table := words.check_table(rest)) is not None:
        note = f"\n\n{words.TYPICAL_STEP_NOTE}" if words.has_typical_steps(result) else ""
        title = _rest_title(rest, is_all=not shown)
        parts.append(folded(title, render_table(table, fold=False) + note))
    return "\n\n".join(parts)


def _is_telling(check: CheckResult) -> bool:
    """Return whether a check is shown before anybody asks: what changed, or may have, or was required."""
    if check.verdict != "inconclusive":
        return check.verdict != "pass" or bool(check.requirement)
    if check.requirement or check.change is None or check.limit is None:
        return True
    return bool(abs(check.change) > abs(check.limit))


def _without_repeated_reasons(
    checks: Sequence[CheckResult], result: GateDocument
) -> list[CheckResult]:
    """Return checks without reasons that stand elsewhere: in the headline, or as the limit that is broken."""
    explained = []
    for check in checks:
        repeats = check.verdict == "regressed" or words.is_reason_in_headline(check, result)
        explained.append(replace(check, reason="") if repeats else check)
    return explained


def _rest_title(checks: Sequence[CheckResult], *, is_all: bool) -> str:
    """Return the title of the folded metrics."""
    count = counted(len(checks), "metric" if is_all else "more metric")
    if any(check.verdict != "pass" for check in checks):
        return count
    return f"{count} {'passes' if len(checks) == 1 else 'pass'}"


def _gate_details(result: GateDocument) -> list[str]:
    """Return the folded parts: kernels and cells that moved most, and what could not be compared."""
    moved = known(result.moved, None)
    if moved is None:
        return []
    parts = []
    for key in ("kernels", "cells"):
        if (table := words.moved_table(key, moved)) is not None:
            title = f"{key.capitalize()} that moved most"
            parts.append(folded(title, render_table(table, fold=False)))
    if moved.notes:
        parts.append(folded("What could not be compared", bullets(moved.notes)))
    return parts
