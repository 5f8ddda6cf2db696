"""The step by layer, module, annotation or shape: mean times per step over the ranks that have the row."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from tracekit._util.text import counted, listing, terminal
from tracekit.analysis import Analysis
from tracekit.report.table import Column, Table, make_table, rows_of
from tracekit.report.view.rates import shape_words
from tracekit.schema import COMPUTE_LABELS

if TYPE_CHECKING:
    from tracekit.analysis.by import By

MAX_PLACES = 40
"""Rows of places in the model that are shown; the JSON has all."""
TITLES = {
    "layer": "By layer (time in a step; every busy nanosecond in one row)",
    "module": "By module (time in a step: in the module itself, and with what it calls)",
    "annotation": "By annotation (time in a step: innermost range, and with what is inside it)",
    "shape": "By shape of products (time in a step; most lost to the GPU's peak first)",
}


class ByView(msgspec.Struct, frozen=True):
    """The step in rows."""

    kind: str
    """``layer``, ``module``, ``annotation`` or ``shape``."""
    title: str
    notes: tuple[str, ...]
    table: Table | None
    """None if no event could be assigned to a row; the notes say why. Its notes include those of the view."""


def by_view(analysis: Analysis) -> ByView | None:
    """Return the rows of ``--by``; None if they were not asked for."""
    by = analysis.by
    if by is None:
        return None
    rows = by.rows.to_dicts()
    places = [row for row in rows if by.is_place(row["name"])]
    remainders = [row for row in rows if not by.is_place(row["name"])]
    notes = ["times: means over the ranks that have the row"] if by.placed and len(analysis.rank_results) > 1 else []
    notes += by.notes
    if len(places) > MAX_PLACES:
        notes.append(f"{counted(len(places) - MAX_PLACES, 'row')} more in the JSON")
    if by.placed:
        notes.append("the rows add up to all time in which GPUs were busy")
    table = _table(by, places[:MAX_PLACES], remainders, notes) if by.placed else None
    return ByView(by.kind, TITLES[by.kind], tuple(notes), table)


def _table(by: By, places: list[dict[str, Any]], remainders: list[dict[str, Any]], notes: list[str]) -> Table | None:
    """Return the table: rows of places, then of the time that belongs to none; its columns depend on the kind."""
    rows = [*places, *remainders]

    def name(row: dict[str, Any]) -> str:
        return _place_name(row, by.kind) if by.is_place(row["name"]) else str(row["name"])

    def mean(key: str, missing: float | None = None) -> Callable[[dict[str, Any]], float | None]:
        """Return the function of a row that gives a sum of it as the mean per rank and step."""
        return lambda row: missing if row.get(key) is None else row[key] / max(len(row["ranks"]) * by.steps, 1)

    columns = [
        Column(by.kind, "name", value=name),
        Column("time", "ms", value=mean("ns")),
        Column("of busy", "share", 2 if by.kind == "shape" else 0, value=itemgetter("share")),
    ]
    if by.kind == "layer":
        # A label has a column if any row has it, also one that is not shown.
        present = [key for key in COMPUTE_LABELS if f"{key}_ns" in by.rows.columns and by.rows[f"{key}_ns"].sum()]
        columns += [Column(label, "ms", 5, value=mean(f"{label}_ns", missing=0.0)) for label in present]
    if by.kind in ("module", "annotation"):
        columns.append(Column("with inside", "ms", value=mean("inclusive_ns")))
    if by.kind == "shape":
        columns.append(Column("calls", "count", 3, value=mean("calls")))
    else:
        columns.append(Column("exposed comm", "ms", value=mean("communication_ns")))
    if any(row["tflop_s"] is not None for row in rows):
        columns.append(Column("TFLOP/s", "rate", value=itemgetter("tflop_s")))
        columns.append(Column("of peak", "share", 1, value=itemgetter("share_of_peak")))
        columns += [Column("below peak", "ms", value=mean("below_peak_ns"))] if by.kind == "shape" else []
    evidence = {row["evidence"] for row in rows if row["evidence"]}
    if len(evidence) > 1:
        columns.append(Column("evidence", expendable=6, value=lambda row: row["evidence"] or ""))
    elif evidence:
        notes = [f"evidence: {evidence.pop()}", *notes]
    return make_table(columns, rows_of(columns, rows), notes=notes, totals=range(len(places), len(rows)))


def _place_name(row: dict[str, Any], kind: str) -> str:
    if kind == "shape":
        op, shapes, dtype = str(row["name"]).rsplit(" ", 2)  # neither shapes nor types contain a space
        return terminal(f"{op} {shape_words(shapes)} {dtype}")
    if kind == "layer" and row["stage"] is not None:
        return f"stage {row['stage']}, {row['name']}"
    ranks = f"ranks {listing(map(str, row['ranks']))}: " if row["apart"] and row["stage"] is None else ""
    return f"{ranks}{terminal(row['name'])}"
