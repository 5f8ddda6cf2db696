"""The step by layer, module, annotation or shape, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit._util.text import UNKNOWN, bare_ms, percent
from tracekit.report.terminal.table import fitted, note
from tracekit.report.view import View
from tracekit.report.view.by import ByRow, ByView


def by_rows(view: View, width: int) -> RenderableType | None:
    """Return the rows that were asked for; None where none were."""
    by = view.by
    if by is None:
        return None
    notes = [note(line) for line in by.notes]
    if not by.rows:
        return Group(*notes)
    kinds = {row.evidence for row in by.rows if row.evidence}
    if len(kinds) == 1:  # a word that every row would repeat
        notes.insert(0, note(f"evidence: {kinds.pop()}"))
    labels = by.labels if by.kind == "layer" else ()
    made = _table(by, width, evidence=bool(kinds), labels=labels)
    if not set(labels) <= {str(column.header) for column in made.columns}:
        made = _table(by, width, evidence=bool(kinds), labels=())  # half of a split would be read as all of it
    return Group(made, *notes)


def _table(by: ByView, width: int, *, evidence: bool, labels: tuple[str, ...]) -> Table:
    heads = _heads(by, evidence=evidence, labels=labels)
    rows = [[Text(cell, style="" if row.place else "dim") for cell in _cells(row, heads)] for row in by.rows]
    return fitted(heads, rows, width, left=(by.kind, "evidence"), spare=("evidence", *labels, "of peak"), names=by.kind)


def _heads(by: ByView, *, evidence: bool, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return what each kind of row is asked."""
    rates = ("TFLOP/s", "of peak") if by.rated else ()
    if by.kind == "shape":
        return by.kind, "ms", "of busy", "calls", *rates, *(("below peak",) if by.rated else ())
    if by.kind == "layer":
        return by.kind, "ms", "of busy", *labels, "exposed comm", *rates, *(("evidence",) if evidence else ())
    return by.kind, "ms", "of busy", "with inside", "exposed comm", *rates


def _cells(row: ByRow, heads: tuple[str, ...]) -> list[str]:
    known = {
        "ms": bare_ms(row.ns),
        "of busy": percent(row.share),
        "with inside": bare_ms(row.inclusive_ns),
        "calls": UNKNOWN if row.calls is None else f"{row.calls:,.0f}",
        "exposed comm": bare_ms(row.communication_ns),
        "TFLOP/s": UNKNOWN if row.tflop_s is None else f"{row.tflop_s:,.1f}",
        "of peak": percent(row.share_of_peak),
        "below peak": bare_ms(row.below_peak_ns),
        "evidence": row.evidence,
    }
    return [row.name, *(known[head] if head in known else bare_ms(row.label(head)) for head in heads[1:])]
