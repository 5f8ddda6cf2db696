"""Results as Markdown: an analysis with the tables that a reviewer asks for next, a diff, and a verdict of the gate.

All text is escaped.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from tracekit._util.text import counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.coding import known
from tracekit.documents.diff import DiffDocument
from tracekit.documents.gate import CheckResult, GateDocument
from tracekit.report.blocks import FindingItem, Headline, Sentence, StepBar, TextBlock, Warnings
from tracekit.report.ci import finding_words, words
from tracekit.report.findings import finding_line
from tracekit.report.first_screen import first_screen, further_findings
from tracekit.report.gap_words import relevant_notices
from tracekit.report.notices import notice_sentence
from tracekit.report.sections import CORE_SECTIONS, all_sections, find_section, sections_of
from tracekit.report.table import Column, Table, Value, make_table
from tracekit.report.terminal.first_screen import BAR_LENGTH, draw_bar
from tracekit.report.text import (
    capitalize,
    keep_units_together,
    markdown,
    markdown_code,
    signed_ms,
)
from tracekit.report.view import View, view_of
from tracekit.report.view.budget import NOT_RECORDED
from tracekit.report.view.pipeline import waterfall

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
_NOT_EXPOSED = ("compute", "idle", NOT_RECORDED)
"""Parts of a budget that are not exposed labels."""
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
    visible = table.rows[:MAX_VISIBLE_ROWS] if fold else table.rows
    parts = [_lines(table, visible)] if table.rows else []
    rest = table.rows[len(visible) :]
    if rest:
        parts.append(folded(counted(len(rest), "more row"), _lines(table, rest)))
    parts.extend(markdown(f"{capitalize(remark)}.") for remark in table.remarks())
    return "\n\n".join(parts)


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
    return markdown_code(text) if column.kind == "code" else markdown(text)


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
    view = view_of(analysis, show)
    return _paragraphs(
        [
            *map(draw_block, first_screen(view)),
            _further_findings(view),
            *_sections(view),
            _source(view),
        ]
    )


def _paragraphs(parts: Iterable[str | None]) -> str:
    """Return the parts that are not empty, with a blank line between two."""
    return "\n\n".join(part for part in parts if part) + "\n"


def draw_block(block: TextBlock) -> str:
    """Return a block."""
    match block:
        case Headline():
            return f"## tracekit: {markdown(block.text)}"
        case StepBar():
            return f"`{draw_bar(block, BAR_LENGTH).plain}` {markdown(' · '.join(block.words))}"
        case Sentence():
            return _sentence(block)
        case FindingItem():
            return _finding(block)
        case Warnings():
            return _first_warning(block)
        case Table():
            return render_table(block)


def _sentence(sentence: Sentence) -> str:
    text = _with_code(capitalize(sentence.text))
    if sentence.style == "heading":
        return f"**{text}**"
    return f"{text}." if sentence.style == "plain" else f"<sub>{text}</sub>"


def _finding(item: FindingItem) -> str:
    """Return a finding; its number is text: a list would count anew."""
    line = capitalize(finding_line(item.finding, item.remarks))
    return f"**{item.number}.** {_with_code(line)}"


def _first_warning(block: Warnings) -> str:
    count = counted(len(block.warnings), "warning")
    first = "" if len(block.warnings) == 1 else ", first"
    return f"<sub>{count}{first}: {markdown(block.warnings[0].message)}</sub>"


def _with_code(text: str) -> str:
    """Return escaped text in which the words between backticks stay code."""
    return re.sub(r"\\`([^`]*)\\`", r"`\1`", markdown(text))


def _further_findings(view: View) -> str:
    """Return the findings that the first screen does not show, folded; empty if there are none."""
    further = further_findings(view)
    if not further:
        return ""
    inside = "\n\n".join(_finding(item) for item in further)
    return folded(counted(len(further), "more finding"), inside)


def _budget(view: View) -> str:
    bars = [view.budget.mean, *view.budget.bars]
    shares_of_bars = []  # by the name of the part
    part_names: dict[str, None] = {}
    for bar in bars:
        shares = {part.name: part.share for part in bar.parts}
        shares_of_bars.append(shares)
        part_names |= dict.fromkeys(shares)
    ordered_names = sorted(
        part_names, key=lambda name: (name in _NOT_EXPOSED[1:], name != "compute")
    )
    columns = [Column(""), Column("span", "ms")]
    for name in ordered_names:
        columns.append(Column(name if name in _NOT_EXPOSED else f"exposed {name}", "share"))
    if view.pipelined:
        columns.append(Column("bubble", "figure"))
    rows = []
    for bar, shares in zip(bars, shares_of_bars, strict=True):
        row = [bar.name, bar.span_ns, *[shares.get(name) for name in ordered_names]]
        if view.pipelined:
            row.append(bar.bubble)
        rows.append(tuple(row))
    if len(view.budget.bars) == 1:
        del rows[0]  # the mean of one rank is that rank
    steps = "steps" if view.steps else "step"
    ranks = "each" if len(view.analysis.rank_results) > 1 else "the"
    table = render_table(Table(tuple(columns), tuple(rows)))
    return f"### Where the {steps} went\n\nShares of {ranks} rank's span.\n\n{table}"


def _gap(view: View) -> str:
    schedule = view.schedule
    if schedule is None:
        return ""
    head = schedule.head
    outside = {"ideal": percent(head.ideal_bubble), "measured": percent(head.measured_bubble)}
    rungs = schedule.gap or waterfall(("ideal", head.ideal_ns), ("measured", head.measured_ns), ())
    rows = []
    for rung in rungs:
        if rung.kind == "total":
            rows.append((rung.name, ms(rung.ns), "", outside[rung.name]))
        else:
            rows.append((rung.name, signed_ms(rung.ns), percent(rung.share), ""))
    columns = (
        Column(""),
        Column("time", "figure"),
        Column("share of the gap", "figure"),
        Column("outside cells", "figure"),
    )
    table = render_table(Table(columns, tuple(rows)), fold=False)
    hint = f"\n\n{_with_code(view.what_if_hint.text)}" if view.what_if_hint else ""
    meaning = f"Times are of the schedule span: {markdown(schedule.span_meaning)}."
    return f"### From the ideal to the run ({markdown(schedule.comparison.name)})\n\n{table}\n\n{meaning}{hint}"


def _reload(view: View) -> str:
    if view.reload is None:
        return ""
    return _section("Weight reload", view.reload.facts)


def _by(view: View) -> str:
    if view.by is None:
        return ""
    notes = [view.by_meaning] if view.by.rows else []
    return _section(view.by_title, replace(view.by, notes=(*notes, *view.by.notes)))


def _section(title: str, table: Table | None) -> str:
    return "" if table is None else f"### {markdown(title)}\n\n{render_table(table)}"


def _kernels(view: View) -> str:
    table = view.kernel_table
    over = ", mean over ranks" if len(view.analysis.rank_results) > 1 else ""
    return (
        folded(f"The {len(view.kernels)} longest kernels{over}", render_table(table, fold=False))
        if table
        else ""
    )


def _operators(view: View) -> str:
    table = view.operators
    title = find_section(CORE_SECTIONS, "operators").title
    return folded(title, render_table(table, fold=False)) if table else ""


def _warnings(view: View) -> str:
    if not view.warnings:
        return ""
    notices = relevant_notices(view.analysis)
    return folded(
        counted(len(notices), "warning"),
        bullets(f"{notice.code}: {notice_sentence(notice)}" for notice in notices),
    )


def _source(view: View) -> str:
    paths = listing(markdown(path) for path in view.paths)
    devices = ", ".join(markdown(device) for device in view.devices) or "no device named"
    ranks = counted(len(view.analysis.rank_results), "rank")
    return f"<sub>{ranks} · {markdown(view.reader)} · {devices} · {paths}</sub>"


DRAWINGS: Mapping[str, Callable[[View], str]] = {
    "budget": _budget,
    "beside": lambda view: _section(
        find_section(CORE_SECTIONS, "beside").title,
        None if view.matrix is None else view.matrix.table,
    ),
    "schedule": _gap,
    "by": _by,
    "reload": _reload,
    "kernels": _kernels,
    "operators": _operators,
    "warnings": _warnings,
}
"""Sections that are more than their table, by id."""


def _sections(view: View) -> Iterator[str]:
    """Yield the sections, each drawn by a function of its own or block by block; empty if there is nothing to say."""
    for section in sections_of(all_sections(view), "markdown"):
        if section.id in DRAWINGS:
            yield DRAWINGS[section.id](view)
        elif blocks := section.text_blocks(view):
            drawn = "\n\n".join(map(draw_block, blocks))
            yield f"### {markdown(section.title)}\n\n{drawn}"


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
        parts.append(folded(finding_words.undecided_note(len(undecided)), "\n".join(undecided)))
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
        visible.append(_section("Waivers", make_table(columns, result.waivers)))
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
