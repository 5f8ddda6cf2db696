"""Communication and copies: how much compute hides, and what runs beside each label."""

from __future__ import annotations

from rich.console import RenderableType

from tracekit._util.text import bare_ms, percent
from tracekit.report.terminal.table import fitted, label_name, table
from tracekit.report.view import View
from tracekit.report.view.budget import LabelRow

WIDE = 110
"""Columns from which two causes fit."""


def exposure(view: View, width: int) -> RenderableType | None:
    """List communication and copies, the most exposed first."""
    rows = view.exposure
    if not rows:
        return None
    heads = ("label", "ms per rank", "hidden", "exposed ms", "of span", "blocking ms", "wait ms", "because")
    cells = [
        (label_name(row.label), bare_ms(row.ns), percent(row.hidden), bare_ms(row.exposed_ns),
         percent(row.exposed_share), bare_ms(row.blocking_ns), bare_ms(row.wait_ns), _causes(row, width))
        for row in rows
    ]  # fmt: skip
    some = {"blocking ms": any(row.blocking_ns is not None for row in rows),
            "wait ms": any(row.wait_ns is not None for row in rows)}  # fmt: skip
    shown = [at for at, name in enumerate(heads) if some.get(name, True)]
    return fitted(
        [heads[at] for at in shown],
        [[row[at] for at in shown] for row in cells],
        width,
        left=("label", "because"),
        spare=("blocking ms", "of span", "wait ms"),
    )


def _causes(row: LabelRow, width: int) -> str:
    causes = row.causes(most=2 if width >= WIDE else 1)
    return ", ".join(f"{percent(share, digits=0)} {cause}" for cause, share in causes)


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
