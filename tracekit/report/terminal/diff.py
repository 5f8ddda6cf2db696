"""A diff in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit._util.text import shorten_distinct, terminal
from tracekit.report.ci import words
from tracekit.report.markdown.diff import arrow, names, rank_name, sentence
from tracekit.report.terminal.gate import STYLES
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.table import note

Data = Mapping[str, Any]
MOST = 8


def show(result: Data, console: Console | None = None) -> None:
    """Print what changed, the largest change first."""
    console = console or Screen()
    console.print(render(result, width=console.width))


def render(result: Data, *, width: int = 100) -> RenderableType:
    """Return what to print; numbers are never cut, names and the last columns give way on a narrow terminal."""
    parts: list[RenderableType] = [Text(terminal(names(result)), style="dim")]
    if result["obstacles"]:
        parts.append(Text(terminal(f"not comparable: {'; '.join(result['obstacles'])}"), style="yellow"))
    parts.append(Text(sentence(result), style="bold"))
    parts += [Text(f"  {terminal(line)}") for line in words.story(result)]
    telling = [m for m in result["metrics"] if m["verdict"] != "pass"] or result["metrics"][:3]
    if telling:
        parts += [Text(""), _metrics(telling[:MOST])]
        parts += [note(words.TYPICAL)] if words.typical(result) else []
    if result["labels"]:
        parts += [Text(""), _labels(words.telling(result["labels"])[:MOST], width)]
    name: Callable[[Data], str] = words.named
    for key, by in (("modules", name), ("ranks", rank_name), ("kernels", name), ("cells", name)):
        if result[key]:
            parts += [Text(""), _times(key, by, words.telling(result[key]), width)]
    parts += [note(words.MEANS)] if len(result["ranks"]) > 1 else []
    parts += [Text(terminal(said), style="dim") for said in result["notes"]]
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="ellipsis")
    return table


def _metrics(rows: Sequence[Data]) -> Table:
    table = _table("metric", "before", "after", "change", "")
    for m in rows:
        style = STYLES[m["verdict"]]
        table.add_row(m["metric"], words.value(m["before"], m["unit"]), words.value(m["after"], m["unit"]),
                      Text(words.change(m), style=style), Text(m["verdict"], style=style))  # fmt: skip
    return table


def _labels(rows: Sequence[Data], width: int) -> Table:
    extra = ("exposed", "overlap") if width >= 100 else ()
    table = _table("label", "before", "after", "change per step", *extra)
    for r in rows:
        more = (
            arrow(r["exposed_ms_before"], r["exposed_ms_after"], "ms"),
            arrow(r["overlap_before"], r["overlap_after"], "ratio"),
        )
        table.add_row(
            r["label"], f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", _coloured(r), *more[: len(extra)]
        )
    return table


def _times(title: str, name: Callable[[Data], str], rows: Sequence[Data], width: int) -> RenderableType:
    table = _table(title, "before", "after", "change per step")
    table.columns[0].no_wrap = True
    table.columns[0].max_width = max(12, min(80, width - 50))
    names = shorten_distinct((terminal(name(r)) for r in rows[:MOST]), most=max(12, min(80, width - 50)))
    for r, named in zip(rows[:MOST], names, strict=False):
        table.add_row(named, f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", _coloured(r))
    if len(rows) <= MOST:
        return table
    return Group(table, Text(f"… and {len(rows) - MOST} more (-o diff.html shows them)", style="dim"))


def _coloured(row: Data) -> Text:
    return Text(words.milliseconds(row), style="red" if row["change_ms"] > 0 else "green")
