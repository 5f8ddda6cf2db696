"""A diff as one HTML page that needs nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracekit.report import gate_words as words
from tracekit.report.diff_markdown import arrow, names, rank_name
from tracekit.report.palette import LABEL_COLOURS

Data = Mapping[str, Any]
_STYLE = """
:root{color-scheme:light dark;--line:#8884;--worse:#c0392b;--better:#1e8449}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 2rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}td{font-variant-numeric:tabular-nums}
.bar{display:inline-block;height:.7em;border-radius:2px}.worse{color:var(--worse)}.better{color:var(--better)}
.worse .bar{background:var(--worse)}.better .bar{background:var(--better)}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.4em}
.note{opacity:.75}.bad{color:var(--worse);font-weight:600}
"""


def render(result: Data) -> str:
    """Return the page."""
    body = [f"<h1>tracekit diff</h1><p>{html.escape(names(result))}</p>"]
    if result["obstacles"]:
        body.append(f'<p class="bad">Not comparable: {html.escape("; ".join(result["obstacles"]))}</p>')
    body.append(_metrics(result["metrics"]))
    body.append(_labels(result["labels"]))
    name: Callable[[Data], str] = words.named
    for key, by in (("modules", name), ("ranks", rank_name), ("kernels", name), ("cells", name)):
        body.append(_times(key, by, result[key]))
    body += [f'<p class="note">{html.escape(note)}</p>' for note in result["notes"]]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>tracekit diff</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    top = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{html.escape(title)}</h2><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _metrics(rows: Sequence[Data]) -> str:
    cells = [
        (html.escape(m["metric"]), words.value(m["before"], m["unit"]), words.value(m["after"], m["unit"]),
         _tinted(words.change(m), m["verdict"]), html.escape(m["verdict"]), html.escape(m["reason"]))
        for m in rows
    ]  # fmt: skip
    return _table("Metrics", ("metric", "before", "after", "change", "verdict", "why"), cells)


def _tinted(text: str, verdict: str) -> str:
    tint = {"regressed": "worse", "improved": "better"}.get(verdict)
    return f'<span class="{tint}">{html.escape(text)}</span>' if tint else html.escape(text)


def _labels(rows: Sequence[Data]) -> str:
    most = max((abs(r["change_ms"]) for r in rows), default=0.0)
    cells = [
        (_dot(r["label"]),
         f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", _bar(r, most),
         arrow(r["exposed_ms_before"], r["exposed_ms_after"], "ms"),
         arrow(r["overlap_before"], r["overlap_after"], "ratio"))
        for r in rows
    ]  # fmt: skip
    return _table("Labels", ("label", "before", "after", "change a step", "exposed", "overlap"), cells)


def _dot(label: str) -> str:
    return f'<span class="dot" style="background:{LABEL_COLOURS.get(label, "#888")}"></span>{html.escape(label)}'


def _times(title: str, name: Callable[[Data], str], rows: Sequence[Data]) -> str:
    most = max((abs(r["change_ms"]) for r in rows), default=0.0)
    cells = [(html.escape(name(r)), f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", _bar(r, most)) for r in rows]
    return _table(title.capitalize(), (title, "before", "after", "change a step"), cells)


def _bar(row: Data, most: float) -> str:
    tint = "worse" if row["change_ms"] > 0 else "better"
    width = 6 * abs(row["change_ms"]) / most if most else 0
    return (
        f'<span class="{tint}">{words.milliseconds(row)} <span class="bar" style="width:{width:.2f}em"></span></span>'
    )
