"""Communication and copies: how much compute hides, and what runs beside each label."""

from __future__ import annotations

from rich.console import RenderableType

from tracekit._util.text import bare_ms, percent
from tracekit.report.terminal.table import label_name, table
from tracekit.report.view import View

WIDE = 110
"""Columns from which two causes fit."""


def exposure(view: View, width: int) -> RenderableType | None:
    """List communication and copies, the most exposed first."""
    rows = view.exposure
    if not rows:
        return None
    waited = any(row.wait_ns is not None for row in rows)
    caused = any(row.because_ns for row in rows)
    blocks = width >= WIDE and any(row.blocking_ns is not None for row in rows)
    last = [*(["blocking ms"] if blocks else []), *(["wait ms"] if waited else []), *(["because"] if caused else [])]
    made = table("label", "ms per rank", "hidden", "exposed ms", "of span", *last, left=("label", "because"))
    for row in rows:
        figures = [bare_ms(row.ns), percent(row.hidden), bare_ms(row.exposed_ns), percent(row.exposed_share)]
        figures += [bare_ms(row.blocking_ns)] if blocks else []
        figures += [bare_ms(row.wait_ns)] if waited else []
        causes = row.causes(most=2 if width >= WIDE else 1)
        figures += [", ".join(f"{percent(share, digits=0)} {cause}" for cause, share in causes)] if caused else []
        made.add_row(label_name(row.label), *figures)
    return made


def hiders(view: View, width: int) -> RenderableType | None:
    """Show what hides each label, pass by pass: the compute label and module that run beside it."""
    if not view.beside:
        return None
    most, shares = 4 if width < 110 else 6, "beside it, share of the label's time"
    passes = any(row.pass_ for row in view.beside)
    made = table("label", *(["pass"] if passes else []), "ms per rank", shares, left=("label", "pass", shares))
    for row in view.beside:
        said = ", ".join(f"{name} {percent(share)}" for name, share in row.parts[:most])
        made.add_row(label_name(row.label), *([row.pass_ or ""] if passes else []), bare_ms(row.ns), said)
    return made
