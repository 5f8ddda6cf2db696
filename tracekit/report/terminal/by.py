"""The step by layer, module, annotation or shape, in the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import UNKNOWN, bare_ms, percent
from tracekit.report.terminal.table import note, table
from tracekit.report.view import View
from tracekit.report.view.by import ByRow, ByView

WIDE = 100
"""Columns from which time by label fits."""


def by_rows(view: View, width: int) -> RenderableType | None:
    """Return the rows that were asked for; None where none were."""
    by = view.by
    if by is None:
        return None
    notes = [note(line) for line in by.notes]
    if not by.rows:
        return Group(*notes)
    heads, cells = _columns(by, width)
    made = table(by.kind, *heads, left=(by.kind, "evidence"))
    for row in by.rows:
        made.add_row(Text(row.name, overflow="fold"), *cells(row), style="" if row.place else "dim")
    return Group(made, *notes)


def _columns(by: ByView, width: int) -> tuple[list[str], Callable[[ByRow], list[str]]]:
    """Return the columns' heads, and what fills them."""
    wide = width >= WIDE
    labels = by.labels if wide and by.kind == "layer" else ()
    inside = by.kind in ("module", "annotation")
    heads = ["ms", "of busy", *labels, *(["with inside"] if inside else []), *(["calls"] if by.kind == "shape" else [])]
    heads += ["exposed comm"] if by.kind != "shape" else []
    heads += ["TFLOP/s", "of peak"] if by.rated else []
    heads += ["below peak"] if by.kind == "shape" and by.rated else []
    heads += ["evidence"] if by.kind == "layer" else []

    def cells(row: ByRow) -> list[str]:
        shown = [bare_ms(row.ns), percent(row.share), *(bare_ms(row.label(name)) for name in labels)]
        shown += [bare_ms(row.inclusive_ns)] if inside else []
        shown += [UNKNOWN if row.calls is None else f"{row.calls:,.0f}"] if by.kind == "shape" else []
        shown += [bare_ms(row.communication_ns)] if by.kind != "shape" else []
        rate = UNKNOWN if row.tflop_s is None else f"{row.tflop_s:,.1f}"
        shown += [rate, percent(row.share_of_peak)] if by.rated else []
        shown += [bare_ms(row.below_peak_ns)] if by.kind == "shape" and by.rated else []
        return shown + ([row.evidence] if by.kind == "layer" else [])

    return heads, cells
