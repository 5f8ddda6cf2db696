"""The analysis as Markdown: the answer, and the tables a reviewer asks for next. Reads well in a pull request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit._util.text import counted, listing, markdown, markdown_code, ms, percent, signed_ms
from tracekit.analysis import Analysis
from tracekit.report.advice import advice
from tracekit.report.html.tables import page_tables
from tracekit.report.markdown.gate import table
from tracekit.report.summary import sentences
from tracekit.schema import GAP_CAUSES

MOST_ROWS = 16
"""Rows of a table that stay in sight; the rest is folded away."""
MOST_TEXT = 160
"""Letters of a kernel's name."""


def render_markdown(analysis: Analysis) -> str:
    """Return the whole report as text.

    >>> from tracekit import analyze
    >>> print(render_markdown(analyze("sample_traces/reload", schedule="none")).splitlines()[0])
    ## tracekit: reload, 4 ranks
    """
    found = page_tables(analysis)
    parts = [
        f"## {markdown(found['title'])}",
        "\n".join(f"- {markdown(sentence)}" for sentence in sentences(analysis)),
        _next(analysis),
        _budget(found),
        _overlap(found["matrix"]),
        _gap(analysis),
        _reload(found["reload"]),
        _stragglers(found["stragglers"]),
        _kernels(found["kernels"]),
        _warnings(analysis),
        _source(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _next(analysis: Analysis) -> str:
    """What to do, with the words to type kept as code."""
    lines = [re.sub(r"\\`([^`]*)\\`", r"`\1`", markdown(line)) for line in advice(analysis)]
    return "**What to do next**\n\n" + "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1)) if lines else ""


def _rows(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int]) -> str:
    """Return a table of which the first rows are in sight; cells are plain text already."""
    shown = _table(head, rows[:MOST_ROWS], right)
    if len(rows) <= MOST_ROWS:
        return shown
    return f"{shown}\n\n{_folded(counted(len(rows) - MOST_ROWS, 'more row'), _table(head, rows[MOST_ROWS:], right))}"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int]) -> str:
    frame = table(head, [], right=right)
    return "\n".join([frame, *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)])


@dataclass(frozen=True, slots=True)
class _Code:
    """A cell to be shown as code."""

    text: str


def _cell(value: object) -> str:
    return markdown_code(value.text) if isinstance(value, _Code) else markdown(value)


def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>"


_NO_LABEL = ("compute", "idle", "not recorded")
"""Parts of a budget that are not exposed labels."""


def _budget(found: Mapping[str, Any]) -> str:
    bars = [found["mean"], *found["bars"]]
    if not bars[0]["span_ns"]:
        return ""
    parts = list(dict.fromkeys(part["name"] for bar in bars for part in bar["parts"]))
    parts.sort(key=lambda name: (name in _NO_LABEL[1:], name != "compute"))
    head = ["", "span", *(name if name in _NO_LABEL else f"exposed {name}" for name in parts)]
    head += ["bubble"] if bars[0]["bubble"] is not None else []
    rows = []
    for bar in bars:
        share = {part["name"]: part["share"] for part in bar["parts"]}
        bubble = [bar["bubble"]] if bar["bubble"] is not None else []
        rows.append([bar["name"], ms(bar["span_ns"]), *(percent(share.get(name)) for name in parts), *bubble])
    if len(bars) == 2:
        rows = rows[1:]
    return "### Where the time went\n\nShares of each rank's span.\n\n" + _rows(head, rows, range(1, len(head)))


def _overlap(matrix: Mapping[str, Any] | None) -> str:
    if matrix is None:
        return ""
    head = ["", "time a rank", "hidden", *(f"by {column}" for column in matrix["columns"])]
    rows = [
        [row["label"], ms(row["ns"]), percent(1 - row["exposed"]), *(percent(share) for share in row["cells"])]
        for row in matrix["rows"]
    ]
    said = "Share of each row's own time, over all ranks, that compute covers; kernels that run at once count each."
    return f"### What hides what\n\n{said}\n\n" + _rows(head, rows, range(1, len(head)))


def _gap(analysis: Analysis) -> str:
    held = analysis.schedule
    if held is None:
        return ""
    rows: list[list[object]] = [["ideal", ms(held.head.ideal_ns), "", percent(held.head.ideal_bubble)]]
    whole = held.head.measured_ns - held.head.ideal_ns
    for cause, ns in sorted((held.gap_ns or {}).items(), key=lambda item: (item[0] == "unexplained", -item[1])):
        if ns:
            share = percent(ns / whole) if whole > 0 else "–"
            rows.append([GAP_CAUSES[cause].words, signed_ms(ns), share, ""])
    rows.append(["measured", ms(held.head.measured_ns), "", percent(held.head.measured_bubble)])
    head = ("", "time", "share of the gap", "outside cells")
    return f"### From the ideal to the run ({markdown(held.name)})\n\n" + _table(head, rows, (1, 2, 3))


def _reload(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return "### Weight update\n\n" + _table(("", ""), found["facts"], ())


def _stragglers(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [[f"rank {row['rank']}", row["label"], ms(row["caused_ns"]), row["operations"]] for row in rows]
    said = "Time other ranks waited because this one came last."
    return f"### Stragglers\n\n{said}\n\n" + _rows(("", "in", "waited for", "operations"), cells, (2, 3))


def _kernels(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        [_Code(_short(row["name"])), row["label"], row["module"] or "", f"{row['count']:,.1f}", ms(row["ns"], 2)]
        for row in rows
    ]
    inside = _table(("kernel", "label", "module", "a step", "time a step"), cells, (3, 4))
    return _folded(f"The {len(rows)} largest kernels, averaged over ranks", inside)


def _short(name: str) -> str:
    return name if len(name) <= MOST_TEXT else name[: MOST_TEXT - 1] + "…"


def _warnings(analysis: Analysis) -> str:
    if not analysis.notices:
        return ""
    lines = "\n".join(f"- {markdown(note.code)}: {markdown(note.message)}" for note in analysis.notices)
    return _folded(counted(len(analysis.notices), "warning"), lines)


def _source(found: Mapping[str, Any]) -> str:
    source = found["source"]
    paths = listing(markdown(path) for path in source["paths"])
    devices = ", ".join(markdown(device) for device in found["devices"]) or "no device named"
    ranks = counted(len(source["ranks"]), "rank")
    return f"<sub>{ranks} · {markdown(source['reader'])} · {devices} · {paths}</sub>"
