"""The analysis as Markdown: the answer, and the tables a reviewer asks for next."""

import re
from collections.abc import Callable

from msgspec.structs import replace

from tracekit._util.text import at_least, counted, listing, markdown, ms, percent, signed_ms
from tracekit.analysis import Analysis
from tracekit.report.evidence import relevant_notices
from tracekit.report.markdown.table import bullets, folded, render_table, simple_table
from tracekit.report.names import short_kernel
from tracekit.report.table import Column, Table, make_table
from tracekit.report.view import View, view_of
from tracekit.report.view.budget import NOT_RECORDED

MAX_NAME_LENGTH = 160
"""Characters of a kernel's name."""
_NOT_EXPOSED = ("compute", "idle", NOT_RECORDED)
"""Parts of a budget that are not exposed labels."""


def render_markdown(analysis: Analysis) -> str:
    """Return the whole report as text.

    >>> from tracekit import analyze
    >>> print(render_markdown(analyze("sample_traces/reload", schedule="none")).splitlines()[0])
    ## tracekit: reload, 4 ranks
    """
    view = view_of(analysis)
    return "\n\n".join(filter(None, (section(view) for section in SECTIONS))) + "\n"


def _title(view: View) -> str:
    return f"## {markdown(view.title)}"


def _answer(view: View) -> str:
    return "\n".join(f"- **{line.topic}**: {_with_code(line.text)}" for line in view.answer if line.topic != "Next")


def _with_code(text: str) -> str:
    """Return escaped text in which the words between backticks stay code."""
    return re.sub(r"\\`([^`]*)\\`", r"`\1`", markdown(text))


def _next(view: View) -> str:
    lines = [f"{number}. {_with_code(advice.text)}" for number, advice in enumerate(view.advice, 1)]
    return "**What to do next**\n\n" + "\n".join(lines) if lines else ""


def _budget(view: View) -> str:
    bars = [view.budget.mean, *view.budget.bars]
    parts = list(dict.fromkeys(part.name for bar in bars for part in bar.parts))
    parts.sort(key=lambda name: (name in _NOT_EXPOSED[1:], name != "compute"))
    heads = ["", "span", *(name if name in _NOT_EXPOSED else f"exposed {name}" for name in parts)]
    rows = []
    for bar in bars if len(view.budget.bars) > 1 else view.budget.bars:
        share = {part.name: part.share for part in bar.parts}
        rows.append([bar.name, ms(bar.span_ns), *(percent(share.get(name)) for name in parts)])
        if view.pipelined:
            rows[-1].append(at_least(percent(bar.bubble), bar.bubble_is_lower_bound))
    heads += ["bubble"] if view.pipelined else []
    steps, ranks = "steps" if view.steps else "step", "each" if len(view.analysis.rank_results) > 1 else "the"
    table = simple_table(heads, rows, words=1, fold=True)
    return f"### Where the {steps} went\n\nShares of {ranks} rank's span.\n\n{table}"


def _gap(view: View) -> str:
    schedule = view.schedule
    if schedule is None:
        return ""
    head = schedule.head
    outside = {"ideal": percent(head.ideal_bubble), "measured": percent(head.measured_bubble)}
    if schedule.gap:
        rows = [
            (rung.name, ms(rung.ns), "", outside[rung.name])
            if rung.kind == "total"
            else (rung.name, signed_ms(rung.ns), percent(rung.share), "")
            for rung in schedule.gap
        ]
    else:
        makespans = {"ideal": head.ideal_ns, "measured": head.measured_ns}
        rows = [(name, ms(ns), "", outside[name]) for name, ns in makespans.items()]
    table = simple_table(("", "time", "share of the gap", "outside cells"), rows, words=1)
    hint = f"\n\n{_with_code(view.what_if_hint.text)}" if view.what_if_hint else ""
    return f"### From the ideal to the run ({markdown(schedule.comparison.name)})\n\n{table}{hint}"


def _reload(view: View) -> str:
    if view.reload is None:
        return ""
    return f"### Weight reload\n\n{simple_table(('', ''), view.reload.facts, words=2)}"


def _roles(view: View) -> str:
    return "\n\n".join(
        _section(title, replace(table, notes=(meaning, *table.notes))) for title, (meaning, table) in view.roles.items()
    )


def _by(view: View) -> str:
    if view.by is None:
        return ""
    title, _, meaning = view.by.title.partition(" (")
    table = view.by.table
    if table is None:
        return f"### {markdown(title)}\n\n{bullets(view.by.notes)}"
    return _section(title, replace(table, notes=(meaning.removesuffix(")"), *table.notes)))


def _section(title: str, table: Table | None) -> str:
    return "" if table is None else f"### {markdown(title)}\n\n{render_table(table)}"


def _kernels(view: View) -> str:
    columns = (
        Column("kernel", "code", value=lambda row: _shorten(short_kernel(row.name))),
        Column("label"),
        Column("module"),
        Column("per step", "figure", value=lambda row: f"{row.count:,.1f}".removesuffix(".0")),
        Column("time per step", "ms", digits=2, value="ns"),
    )
    table, over = make_table(columns, view.kernels), ", mean over ranks" if len(view.analysis.rank_results) > 1 else ""
    return folded(f"The {len(view.kernels)} longest kernels{over}", render_table(table, fold=False)) if table else ""


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def _warnings(view: View) -> str:
    if not view.warnings:
        return ""
    notices = relevant_notices(view.analysis)
    return folded(counted(len(notices), "warning"), bullets(f"{notice.code}: {notice.message}" for notice in notices))


def _source(view: View) -> str:
    paths = listing(markdown(path) for path in view.paths)
    devices = ", ".join(markdown(device) for device in view.devices) or "no device named"
    ranks = counted(len(view.analysis.rank_results), "rank")
    return f"<sub>{ranks} · {markdown(view.reader)} · {devices} · {paths}</sub>"


SECTIONS: tuple[Callable[[View], str], ...] = (
    _title,
    _answer,
    _next,
    _roles,
    _budget,
    lambda view: _section("What hides what", view.matrix),
    _gap,
    _by,
    lambda view: _section("What a change would give", view.changes),
    lambda view: _section("Experts", view.experts),
    lambda view: _section("Memory (GB)", view.memory),
    lambda view: _section("Copies", view.copies),
    _reload,
    lambda view: _section("Whom the others wait for", view.waited_for),
    lambda view: _section("Unequal work of the ranks", view.imbalance),
    lambda view: _section("What slows the pipeline down", view.slowdown),
    _kernels,
    _warnings,
    _source,
)
