"""A schedule as one HTML file: the grid as inline SVG with a tooltip a cell, the figures, the orders. No scripts."""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit._util.text import html, percent
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR
from tracekit.report.schedule.plot import INK, NAMES, Parts, chunks, colour, facts, headline, parts, shaded
from tracekit.schedules.weight_reload import WeightReload
from tracekit.schema import PHASES

if TYPE_CHECKING:
    from tracekit.schedules import Simulation

_LEFT = 64
_MOST_TOOLTIPS = 8_000
_MOST_ORDERS = 20_000
_UNITS = "time (units of the given times)"

_STYLE = """
:root { color-scheme: light dark; --ink: #22272B; --soft: #4A545E; --line: #E8EBEE; --ground: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaed; --soft: #9eabb6; --line: #39434b; --ground: #14191d } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 2rem auto;
  max-width: 1500px; padding: 0 1rem }
h1 { font-size: 1.3rem; margin: 0 } p, caption { margin: .3rem 0 1rem; color: var(--soft) } caption { text-align: left }
.wide { overflow-x: auto } .paper { background: #fff } table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums }
th { font-weight: 600 } .key { display: inline-block; margin-right: 1.2em } .key i { display: inline-block;
  width: .9em; height: .9em; margin-right: .35em; vertical-align: -.1em } code { white-space: nowrap; font-size: 12px }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg g text { fill: #22272B } .idle { fill: var(--line);
  background: var(--line) }
@media print { :root { --ink: #000; --soft: #444; --line: #E8EBEE; --ground: #fff }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def schedule_page(done: Simulation | WeightReload) -> str:
    """Write the page.

    >>> from tracekit.schedules import generate, simulate
    >>> page = schedule_page(simulate(generate("1f1b", pp=2, microbatches=2)))
    >>> "<title>1F1 · rank 1 · 3 to 4</title>" in page or page.count("<rect")
    10
    """
    if isinstance(done, WeightReload):
        from tracekit.report.schedule.lanes import draw_reload

        title = f"weight-reload · {done.ranks} devices × {done.rounds} rounds"
        return _page(
            title, f"makespan {done.makespan:g}", f'<div class="wide paper">{_inline(draw_reload(done))}</div>'
        )
    body = f'<div class="wide">{_svg(done)}</div>{_key(done)}{_table(done)}{_orders(done)}'
    return _page(headline(done), facts(done), body)


def _page(title: str, line: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<title>{html(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html(title)}</h1>\n<p>{html(line)}</p>\n{body}\n</body>\n</html>\n"
    )


def _inline(figure: object) -> str:
    """Return a matplotlib figure as an SVG element."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg")  # type: ignore[attr-defined]
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)


def _svg(done: Simulation) -> str:
    shapes = parts(done)
    detailed = len(shapes.kind) <= _MOST_TOOLTIPS
    shortest = float(np.min(shapes.end - shapes.start))
    width = float(np.clip(done.makespan / max(shortest, 1e-12) * 18, 900, 6000)) if detailed else 1380.0
    ranks = done.schedule.pp
    row = 26 if ranks <= 24 else 14
    scale = _Scale(width / done.makespan, row)
    height = ranks * row + 24
    title = html(headline(done))
    out = [f'<svg width="{width + _LEFT + 20:.0f}" height="{height + 18}" role="img" aria-label="{title}">']
    for rank in range(ranks):
        y = rank * row
        out.append(f'<text x="0" y="{y + row * 0.66:.0f}">rank {rank}</text>')
        out.append(f'<rect x="{_LEFT}" y="{y + 1}" width="{width:.1f}" height="{row - 2}" class="idle"/>')
    fills = _fills(done, shapes)
    out += _cells(done, shapes, fills, scale) if detailed else _paths(shapes, fills, scale)
    for tick in ticks(done.makespan):
        x = _LEFT + tick * scale.x
        out.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{tick:g}</text>')
    axis = f'<text x="{_LEFT + width / 2:.1f}" y="{height + 12}" text-anchor="middle">{_UNITS}</text>'
    return "\n".join([*out, axis, "</svg>"])


class _Scale(NamedTuple):
    """Pixels a unit of time, and pixels a rank."""

    x: float
    row: int


def ticks(end: float) -> list[float]:
    """Return round times up to *end*, about ten of them."""
    power = 10.0 ** math.floor(math.log10(end / 10))
    step = next(power * k for k in (1, 2, 5, 10) if end / (power * k) <= 12)
    return [k * step for k in range(int(end / step) + 1)]


def _fills(done: Simulation, shapes: Parts) -> list[str]:
    of_stage, shade = chunks(done.schedule), shaded(done.schedule)
    count = int(of_stage.max()) + 1
    pairs = zip(shapes.kind, of_stage[shapes.stage].tolist(), strict=True)
    return [colour(kind, chunk, count, shade=shade) for kind, chunk in pairs]


def _cells(done: Simulation, shapes: Parts, fills: list[str], scale: _Scale) -> list[str]:
    """One rectangle a cell, with its number and a tooltip."""
    names = [str(op) for rank in done.schedule.ranks for op in rank]
    pairs = np.flatnonzero(shapes.low == 0.5).tolist()
    names += [names[i] for i in pairs]
    out = []
    for i, (name, fill) in enumerate(zip(names, fills, strict=True)):
        start, end, rank = shapes.start[i], shapes.end[i], int(shapes.rank[i])
        top = rank * scale.row + 1 + (1 - shapes.high[i]) * (scale.row - 2)
        tall = (shapes.high[i] - shapes.low[i]) * (scale.row - 2)
        x, wide = _LEFT + start * scale.x, (end - start) * scale.x
        tip = f"<title>{name} · rank {rank} · {start:g} to {end:g}</title>"
        out.append(f'<g>{tip}<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{fill}"')
        out.append(f'stroke="{"white" if scale.row - 2 == tall else INK}" stroke-width=".7"/>')
        if wide >= 13:
            at = f'x="{x + wide / 2:.1f}" y="{top + tall / 2 + 4:.1f}"'
            size = "" if tall > 14 else f' style="font-size:{min(tall - 1, 9):.0f}px"'
            out.append(f'<text {at} text-anchor="middle"{size}>{shapes.microbatch[i]}</text>')
        out.append("</g>")
    return out


def _paths(shapes: Parts, fills: list[str], scale: _Scale) -> list[str]:
    """One path a colour: small and quick for tens of thousands of cells."""
    drawn: defaultdict[str, list[str]] = defaultdict(list)
    x = (_LEFT + shapes.start * scale.x).tolist()
    wide = ((shapes.end - shapes.start) * scale.x).tolist()
    top = (shapes.rank * scale.row + 1 + (1 - shapes.high) * (scale.row - 2)).tolist()
    tall = ((shapes.high - shapes.low) * (scale.row - 2)).tolist()
    for fill, a, b, c, d in zip(fills, x, top, wide, tall, strict=True):
        drawn[fill].append(f"M{a:.1f} {b:.0f}h{c:.1f}v{d:.0f}h-{c:.1f}z")
    return [f'<path fill="{fill}" d="{"".join(each)}"/>' for fill, each in drawn.items()]


def _key(done: Simulation) -> str:
    used = {kind for rank in done.schedule.ranks for op in rank for kind in op.kind}
    keys = [(CELL_COLOURS[kind], f"{NAMES[kind]} ({kind})") for kind in CELL_COLOURS if kind in used]
    shown = [(f'style="background:{colour}"', text) for colour, text in keys]
    if shaded(done.schedule) and chunks(done.schedule).any():
        shown.append((f'style="border:1px solid {IDLE_COLOUR}"', "lighter: later chunk"))
    shown.append(('class="idle"', "outside cells"))
    return "<div>" + " ".join(f'<span class="key"><i {look}></i>{text}</span>' for look, text in shown) + "</div>"


def _table(done: Simulation) -> str:
    heads = ("rank", "work", "outside cells", *PHASES, "peak chunks")
    rows = zip(done.idle_by_phase.iter_rows(), done.busy, done.bubble, done.peak_activations, strict=True)
    body = "".join(
        "<tr>" + "".join(f"<td>{value:g}</td>" for value in (idle[0], work, bubble, *idle[1:], peak)) + "</tr>"
        for idle, work, bubble, peak in rows
    )
    line = (
        f"outside cells: {percent(done.bubble_fraction, digits=2)} of ranks × makespan, "
        f"{percent(done.bubble_over_work, digits=2)} of the work · zero-bubble rate {done.bubble_rate_zb:.4f}"
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    caption = f"<caption>A rank's {_UNITS}; peak: activations held at once</caption>"
    return f'<div class="wide"><table>{caption}<tr>{head}</tr>{body}</table></div><p>{line}</p>'


def _orders(done: Simulation) -> str:
    if len(done.start) > _MOST_ORDERS:
        return "<p>The orders are left out of this page for their length; the JSON has them.</p>"
    lines = "<br>".join(" ".join(rank) for rank in done.schedule.orders())
    return f'<details><summary>Order of every rank</summary><div class="wide"><code>{lines}</code></div></details>'
