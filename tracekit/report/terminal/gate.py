"""The gate's answer in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit._util.text import shorten_distinct, terminal
from tracekit.report.ci import words
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.table import note

STYLES = {"pass": "green", "improved": "cyan", "regressed": "bold red", "inconclusive": "yellow", "error": "bold red"}
PASSING_SHOWN = 8
BESIDE = 28
"""Columns that stand before a kernel's name."""


def render(result: Mapping[str, Any], *, width: int = 80) -> RenderableType:
    """Return what to print: the sentence, the table, what moved, the waivers."""
    parts: list[RenderableType] = [Text(terminal(words.headline(result)), style=STYLES[result["verdict"]])]
    if result["verdict"] == "regressed":
        parts += [Text(f"  {terminal(line)}") for line in words.story(result)]
    if result["checks"]:
        parts.append(_table(result["checks"]))
        parts += [note(words.TYPICAL)] if words.typical(result) else []
    parts += _moved(result.get("moved") or {}, width) if result["verdict"] == "regressed" else []
    parts += [Text(terminal(_waiver(w)), style="dim") for w in result["waivers"]]
    return Group(*parts)


def show(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the answer."""
    console = console or Screen()
    console.print(render(result, width=console.width))


def _table(checks: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in (("", "left"), ("metric", "left"), ("before", "right"), ("after", "right"), ("change", "right")):
        table.add_column(name, justify=side, no_wrap=name != "metric")  # type: ignore[arg-type]
    explained = any(_why(check) for check in checks)
    if explained:
        table.add_column("why", justify="left", overflow="fold")
    ordered = sorted(checks, key=lambda c: words.ORDER.index(c["verdict"]))
    passing = [c for c in ordered if c["verdict"] == "pass" and not c["requirement"]]
    hidden = passing[PASSING_SHOWN:]
    shown = [c for c in ordered if c not in hidden]
    for check, why in zip(shown, words.said_once([_why(c) for c in shown]), strict=True):
        unit, style = check["unit"], STYLES[check["verdict"]]
        table.add_row(
            Text(words.MARKS[check["verdict"]], style=style),
            terminal(check["requirement"] or check["metric"]),
            words.value(check["before"], unit),
            words.value(check["after"], unit),
            words.change(check),
            *([Text(terminal(why), style="dim" if check["verdict"] == "pass" else style)] if explained else []),
        )
    if hidden:
        table.add_row("", f"and {len(hidden)} more that pass")
    return table


def _why(check: Mapping[str, Any]) -> str:
    reason: str = check["reason"]
    if check["waiver"]:
        return f"waived until {check['waiver']['until']}: {check['waiver']['reason']}"
    return reason


def _moved(moved: Mapping[str, Any], width: int) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for table in ("kernels", "cells"):
        if moved.get(table):
            lines.append(Text(f"{table} that moved most", style="bold"))
            rows = moved[table][:5]
            names = shorten_distinct((terminal(words.named(row)) for row in rows), most=max(12, width - BESIDE))
            lines += [
                Text(f"  {words.milliseconds(row):>24}  {name}", no_wrap=True, overflow="ellipsis")
                for row, name in zip(rows, names, strict=True)
            ]
    return lines


def _waiver(waiver: Mapping[str, str]) -> str:
    return f"waiver ({waiver['status']}) {waiver['metric']} until {waiver['until']}: {waiver['reason']}"
