"""A waterfall as a table of bars: from one total to another, each row what it adds."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit._util.text import html, ms, signed_ms
from tracekit.report.view.pipeline import Rung

SMALL = 0.02
"""Share of the difference below which a change joins the small ones."""


def rungs(first: tuple[str, float], last: tuple[str, float], changes: Sequence[tuple[str, float]]) -> list[Rung]:
    """Return bars from *first* to *last*, in nanoseconds; small changes are one bar, and all of them sum.

    >>> [(rung.name, rung.ns) for rung in rungs(("a", 10), ("b", 13), [("x", 4), ("y", -1), ("z", 0)])]
    [('a', 10), ('x', 4), ('y', -1), ('b', 13)]
    """
    whole = abs(last[1] - first[1]) or 1.0
    large = [(name, ns) for name, ns in changes if abs(ns) >= SMALL * whole]
    rest = last[1] - first[1] - sum(ns for _, ns in large)
    if round(rest):
        large.append(("smaller changes", rest))
    made, at = [Rung(first[0], round(first[1]), 0, round(first[1]), "total", None)], first[1]
    for name, ns in large:
        low, high = sorted((at, at + ns))
        made.append(Rung(name, round(ns), round(low), round(high), "more" if ns > 0 else "less", ns / whole))
        at += ns
    return [*made, Rung(last[0], round(last[1]), 0, round(last[1]), "total", None)]


def waterfall_table(made: Sequence[Rung], caption: str) -> str:
    """Return the table; everything in it is escaped."""
    top = max((rung.high_ns for rung in made), default=1) or 1
    rows = []
    for rung in made:
        figure = ms(rung.ns, 2) if rung.kind == "total" else signed_ms(rung.ns, 2)
        left, width = 100 * rung.low_ns / top, max(100 * (rung.high_ns - rung.low_ns) / top, 0.15)
        bar = f'<span class="step {rung.kind}" style="margin-left:{left:.3f}%;width:{width:.3f}%"></span>'
        rows.append(
            f'<tr class="{rung.kind}"><th scope="row">{html(rung.name)}</th><td>{html(figure)}</td>'
            f'<td class="wide">{bar}</td></tr>'
        )
    head = '<th scope="col">part</th><th scope="col">time</th><th scope="col" class="wide"></th>'
    return (
        f'<table class="waterfall"><caption>{html(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
