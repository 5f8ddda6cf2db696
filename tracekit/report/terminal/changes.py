"""The results of ``diff`` and ``gate`` in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit._util.text import shorten_distinct, terminal
from tracekit.report.ci import words
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.table import Note

Data = Mapping[str, Any]
STYLES = {"pass": "green", "improved": "cyan", "regressed": "bold red", "inconclusive": "yellow", "error": "bold red"}
MAX_DIFF_ROWS = 8
MAX_PASSING_CHECKS = 8
MAX_MOVED_ROWS = 5
MIN_WIDTH_FOR_EXPOSED = 100
"""Columns of the terminal from which the labels of a diff show exposed time and overlap."""
MIN_NAME_LENGTH = 12
MAX_NAME_LENGTH = 80
WIDTH_OF_TIMES = 50
"""Columns that the times beside a name take in a diff …"""
WIDTH_OF_CHANGE = 28
"""… and that the change before a name takes in a gate."""


def show_diff(result: Data, console: Console | None = None) -> None:
    """Print a diff, the largest change first."""
    console = console or Screen()
    console.print(render_diff(result, width=console.width))


def render_diff(result: Data, *, width: int = 100) -> RenderableType:
    """Return a diff to print; numbers are never cut, names and the last columns are on a narrow terminal."""
    parts: list[RenderableType] = [Text(terminal(words.compared_runs(result)), style="dim")]
    if result["obstacles"]:
        parts.append(Text(terminal(f"not comparable: {'; '.join(result['obstacles'])}"), style="yellow"))
    parts.append(Text(words.step_sentence(result), style="bold"))
    parts += [Text(f"  {terminal(line)}") for line in words.story(result)]
    metrics = [row for row in result["metrics"] if row["verdict"] != "pass"] or result["metrics"][:3]
    if metrics:
        parts += [Text(""), _metrics(metrics[:MAX_DIFF_ROWS])]
        parts += [Note(words.TYPICAL_STEP_NOTE)] if words.has_typical_steps(result) else []
    if result["labels"]:
        parts += [Text(""), _labels(words.visible_changes(result["labels"])[:MAX_DIFF_ROWS], width)]
    for key, name in words.ROW_NAMES.items():
        if result[key]:
            parts += [Text(""), *_times(key, name, words.visible_changes(result[key]), width)]
    parts += [Note(words.MEANS_NOTE)] if len(result["ranks"]) > 1 else []
    parts += [Text(terminal(note), style="dim") for note in result["notes"]]
    for role, changes in result.get("roles", {}).items():
        parts += [Text(""), Text(f"Role {terminal(role)}", style="bold"), render_diff(changes, width=width)]
    return Group(*parts)


def _table(*headings: str) -> Table:
    """Return an empty table whose first column holds names and whose others hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="ellipsis")
    return table


def _metrics(rows: Sequence[Data]) -> Table:
    table = _table("metric", "before", "after", "change", "")
    for row in rows:
        style = STYLES[row["verdict"]]
        change = Text(words.change(row), style=style)
        table.add_row(row["metric"], *words.levels(row), change, Text(row["verdict"], style=style))
    return table


def _labels(rows: Sequence[Data], width: int) -> Table:
    extra = ("exposed", "overlap") if width >= MIN_WIDTH_FOR_EXPOSED else ()
    table = _table("label", "before", "after", "change per step", *extra)
    for row in rows:
        table.add_row(
            row["label"], *words.times(row), _coloured_change(row), *words.exposed_and_overlap(row)[: len(extra)]
        )
    return table


def _times(title: str, name: Callable[[Data], str], rows: Sequence[Data], width: int) -> list[RenderableType]:
    """Return the table of what moved most, and how many more there are."""
    table = _table(title, "before", "after", "change per step")
    name_length = max(MIN_NAME_LENGTH, min(MAX_NAME_LENGTH, width - WIDTH_OF_TIMES))
    table.columns[0].no_wrap, table.columns[0].max_width = True, name_length
    shown = rows[:MAX_DIFF_ROWS]
    names = shorten_distinct((terminal(name(row)) for row in shown), most=name_length)
    for row, row_name in zip(shown, names, strict=True):
        table.add_row(row_name, *words.times(row), _coloured_change(row))
    if len(rows) <= MAX_DIFF_ROWS:
        return [table]
    return [table, Text(f"… and {len(rows) - MAX_DIFF_ROWS} more (-o diff.html shows them)", style="dim")]


def _coloured_change(row: Data) -> Text:
    return Text(words.milliseconds(row), style="red" if row["change_ms"] > 0 else "green")


def show_gate(result: Data, console: Console | None = None) -> None:
    """Print a verdict."""
    console = console or Screen()
    console.print(render_gate(result, width=console.width))


def render_gate(result: Data, *, width: int = 80) -> RenderableType:
    """Return a verdict to print: the sentence, the checks, what moved, the waivers."""
    parts: list[RenderableType] = [Text(terminal(words.headline(result)), style=STYLES[result["verdict"]])]
    regressed = result["verdict"] == "regressed"
    if regressed:
        parts += [Text(f"  {terminal(line)}") for line in words.story(result)]
    if result["checks"]:
        parts.append(_checks(result["checks"]))
        parts += [Note(words.TYPICAL_STEP_NOTE)] if words.has_typical_steps(result) else []
    if regressed:
        parts += _moved(result.get("moved") or {}, width)
    for waiver in result["waivers"]:
        text = f"waiver ({waiver['status']}) {waiver['metric']} until {waiver['until']}: {waiver['reason']}"
        parts.append(Text(terminal(text), style="dim"))
    return Group(*parts)


def _checks(checks: Sequence[Data]) -> Table:
    """Return the checks, the worst verdict first; of those that pass without a requirement, only the first few."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "metric"):
        table.add_column(heading, no_wrap=heading != "metric")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    has_reasons = any(words.reason(check) for check in checks)
    if has_reasons:
        table.add_column("why", overflow="fold")
    ordered = sorted(checks, key=lambda check: words.VERDICT_ORDER.index(check["verdict"]))
    hidden = [check for check in ordered if check["verdict"] == "pass" and not check["requirement"]][
        MAX_PASSING_CHECKS:
    ]
    shown = [check for check in ordered if check not in hidden]
    reasons = words.without_repeats([words.reason(check) for check in shown])
    for check, reason in zip(shown, reasons, strict=True):
        style = STYLES[check["verdict"]]
        cells: list[RenderableType] = [
            Text(words.VERDICT_MARKS[check["verdict"]], style=style),
            terminal(check["requirement"] or check["metric"]),
            *words.levels(check),
            words.change(check),
        ]
        if has_reasons:
            cells.append(Text(terminal(reason), style="dim" if check["verdict"] == "pass" else style))
        table.add_row(*cells)
    if hidden:
        table.add_row("", f"and {len(hidden)} more that pass")
    return table


def _moved(moved: Data, width: int) -> list[RenderableType]:
    """List the kernels and cells that moved most."""
    lines: list[RenderableType] = []
    for key in ("kernels", "cells"):
        rows = (moved.get(key) or [])[:MAX_MOVED_ROWS]
        if rows:
            lines.append(Text(f"{key} that moved most", style="bold"))
        name_length = max(MIN_NAME_LENGTH, width - WIDTH_OF_CHANGE)
        names = shorten_distinct((terminal(words.row_name(row)) for row in rows), most=name_length)
        lines += [
            Text(f"  {words.milliseconds(row):>24}  {name}", no_wrap=True, overflow="ellipsis")
            for row, name in zip(rows, names, strict=True)
        ]
    return lines
