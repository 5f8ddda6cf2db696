"""A diff as one HTML page that needs nothing from the network, in the looks of the analysis' page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit._util.text import capitalize, html, keep_units_together
from tracekit.report.ci import words
from tracekit.report.html.timelines import two_timelines
from tracekit.report.html.waterfall import rungs, waterfall_table
from tracekit.report.markdown.diff import arrow, names, rank_name, sentence
from tracekit.report.palette import LABEL_COLOURS

Data = Mapping[str, Any]
_WORD, _WORDS = ' class="word"', ("verdict", "why")
"""Columns of words stand to the left, their heads too."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
.moved { position: relative; min-width: 9rem; } .moved + td { padding-left: .7rem; }
.moved i { position: absolute; top: 25%; height: 50%; border-radius: 2px; }
.moved::before { content: ""; position: absolute; left: 50%; top: 0; bottom: 0; border-left: 1px solid var(--line); }
.moved i.worse { left: 50%; background: #D55E00; } .moved i.better { right: 50%; background: #5B8DEF; }
.mark { white-space: nowrap; } .bad { color: light-dark(#B34700, #f09b66); font-weight: 600; }
svg { width: 100%; min-width: 56rem; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg .on { fill: #16202a; }
svg .name { font-weight: 600; } svg .idle { fill: var(--idle); } svg .tick { stroke: var(--line); opacity: .6; }
.kernel { min-width: 16rem; max-width: 34rem; white-space: normal; overflow-wrap: anywhere; }
.kernel span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden; }
@media (max-width: 640px) { .kernel { min-width: 42vw; max-width: 42vw; } .moved { min-width: 5rem; } }
"""


def render(result: Data) -> str:
    """Return the page."""
    body = [f"<header><h1>tracekit diff</h1><p class='source'>{html(names(result))}</p></header><main>"]
    said = [
        f"<p><b>{html(keep_units_together(sentence(result)))}</b></p>",
        *(f"<p>{html(keep_units_together(line))}.</p>" for line in words.story(result)),
    ]
    if result["obstacles"]:
        said.append(f'<p class="bad">Not comparable: {html("; ".join(result["obstacles"]))}</p>')
    body.append(f'<section class="answer">{"".join(said)}</section>')
    body += [_waterfall(result.get("waterfall")), _timelines(result.get("timelines"))]
    body.append(_metrics(result["metrics"]))
    if words.typical(result) and result["metrics"]:
        body.append(f'<p class="note">{html(capitalize(words.TYPICAL))}</p>')
    body.append(_labels(words.telling(result["labels"])))
    name: Callable[[Data], str] = words.named
    for key, by in (("modules", name), ("ranks", rank_name), ("kernels", name), ("cells", name)):
        body.append(_times(key, by, words.telling(result[key])))
    said_last = [words.MEANS] if len(result["ranks"]) > 1 else []
    body += [f'<p class="note">{html(capitalize(note))}</p>' for note in (*said_last, *result["notes"])]
    shared = (Path(__file__).parent / "assets" / "page.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>tracekit diff</title>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{shared}{_STYLE}</style></head><body>\n'
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _waterfall(found: Data | None) -> str:
    """What became of the slowest rank's step, part by part; the parts sum to the difference."""
    if not found:
        return ""
    changes = [(row["part"], 1e6 * row["change_ms"]) for row in found["changes"]]
    made = rungs(("before", 1e6 * found["before_ms"]), ("after", 1e6 * found["after_ms"]), changes)
    who = f"rank {found['rank']} (no other takes longer after)"
    table = waterfall_table(made, f"A step of {who}: mean over its steps; the parts sum to the difference")
    return f"<section><h2>From before to after</h2>{table}</section>"


def _timelines(found: Data | None) -> str:
    if not found:
        return ""
    return f"<section><h2>The pipeline, before and after</h2>{two_timelines(found)}</section>"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are markup already; the first names its row."""
    if not rows:
        return ""
    top = "".join(f'<th scope="col"{_WORD if h in _WORDS else ""}>{html(h)}</th>' for h in head)
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f"<section><h2>{html(title)}</h2>"
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div></section>'
    )


def _named(text: str, *, dot: str = "", code: bool = False) -> str:
    said = html(text)
    if not code:
        return f'<th scope="row">{dot}{said}</th>'
    return f'<th scope="row" class="kernel" title="{said}"><span dir="auto">{said}</span></th>'


def _cell(text: str, kind: str = "") -> str:
    look = f' class="{kind}"' if kind else ""
    return f"<td{look}>{html(text)}</td>"


def _metrics(rows: Sequence[Data]) -> str:
    cells = [
        (_named(m["metric"]), _cell(words.value(m["before"], m["unit"])), _cell(words.value(m["after"], m["unit"])),
         _cell(words.change(m)), _cell(f"{words.MARKS[m['verdict']]} {m['verdict']}", "word mark"),
         _cell(why, "word wrap"))
        for m, why in zip(rows, words.said_once([m["reason"] for m in rows]), strict=True)
    ]  # fmt: skip
    return _table("Metrics", ("metric", "before", "after", "change", "verdict", "why"), cells)


def _labels(rows: Sequence[Data]) -> str:
    most = max((abs(r["change_ms"]) for r in rows), default=0.0)
    cells = [
        (_named(r["label"], dot=f'<i class="key" style="background:{LABEL_COLOURS.get(r["label"], "#888")}"></i>'),
         *_levels(r, most),
         _cell(arrow(r["exposed_ms_before"], r["exposed_ms_after"], "ms")),
         _cell(arrow(r["overlap_before"], r["overlap_after"], "ratio")))
        for r in rows
    ]  # fmt: skip
    return _table("Labels", ("label", "before", "after", "change per step", "", "exposed", "overlap"), cells)


def _times(title: str, name: Callable[[Data], str], rows: Sequence[Data]) -> str:
    most = max((abs(r["change_ms"]) for r in rows), default=0.0)
    cells = [(_named(name(r), code=title == "kernels"), *_levels(r, most)) for r in rows]
    return _table(title.capitalize(), (title[:-1], "before", "after", "change per step", ""), cells)


def _levels(row: Data, most: float) -> tuple[str, ...]:
    """Before, after, the change, and the change as a bar: to the right where it takes longer."""
    tint = "worse" if row["change_ms"] > 0 else "better"
    width = 50 * abs(row["change_ms"]) / most if most else 0
    bar = f'<td class="moved" aria-hidden="true"><i class="{tint}" style="width:{width:.2f}%"></i></td>'
    levels = (f"{row['before_ms']:,.3f} ms", f"{row['after_ms']:,.3f} ms", words.milliseconds(row))
    return (*(_cell(level) for level in levels), bar)
