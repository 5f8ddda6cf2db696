"""The step by layer, module, annotation or shape: mean times per step over the ranks that have the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracekit._util.text import counted, listing, terminal
from tracekit.analysis import Analysis
from tracekit.report.table import Column, Table, Value, make_table
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
    """Return the table: rows of places, then of the time that belongs to none.

    Which columns a table has depends on the kind of breakdown, so each is added with its cells, column by column.
    """
    rows = [*places, *remainders]
    names = [_place_name(row, by.kind) for row in places] + [str(row["name"]) for row in remainders]
    columns: list[tuple[Column, list[Value]]] = []

    def add_times(name: str, key: str, expendable: int = 0, kind: str = "ms") -> None:
        """Add a column of means per rank and step."""
        columns.append((Column(name, kind, expendable), [_mean(row, key, by.steps) for row in rows]))

    def add_values(name: str, key: str, kind: str, expendable: int = 0) -> None:
        """Add a column of values as they are."""
        columns.append((Column(name, kind, expendable), [row[key] for row in rows]))

    columns.append((Column(by.kind, "name"), names))
    add_times("time", "ns")
    add_values("of busy", "share", "share", expendable=2 if by.kind == "shape" else 0)
    if by.kind == "layer":
        for label in COMPUTE_LABELS:
            # The label has a column if any row has it, also one that is not shown.
            if f"{label}_ns" in by.rows.columns and by.rows[f"{label}_ns"].sum():
                cells = [_mean(row, f"{label}_ns", by.steps) or 0.0 for row in rows]
                columns.append((Column(label, "ms", 5), cells))
    if by.kind in ("module", "annotation"):
        add_times("with inside", "inclusive_ns")
    if by.kind == "shape":
        add_times("calls", "calls", expendable=3, kind="count")
    else:
        add_times("exposed comm", "communication_ns")
    if any(row["tflop_s"] is not None for row in rows):
        add_values("TFLOP/s", "tflop_s", "rate")
        add_values("of peak", "share_of_peak", "share", expendable=1)
        if by.kind == "shape":
            add_times("below peak", "below_peak_ns")
    evidence = {row["evidence"] for row in rows if row["evidence"]}
    if len(evidence) > 1:
        columns.append((Column("evidence", "word", 6), [row["evidence"] or "" for row in rows]))
    elif evidence:
        notes = [f"evidence: {evidence.pop()}", *notes]
    return make_table(
        [column for column, _ in columns],
        zip(*(cells for _, cells in columns), strict=True),
        notes=notes,
        totals=range(len(places), len(rows)),
    )


def _mean(row: dict[str, Any], key: str, steps: int) -> float | None:
    """Return a sum of the row as the mean per rank and step; None if it is not known."""
    total: float | None = row.get(key)
    return None if total is None else total / max(len(row["ranks"]) * steps, 1)


def _place_name(row: dict[str, Any], kind: str) -> str:
    if kind == "shape":
        op, shapes, dtype = str(row["name"]).rsplit(" ", 2)  # neither shapes nor types contain a space
        return terminal(f"{op} {shape_words(shapes)} {dtype}")
    if kind == "layer" and row["stage"] is not None:
        return f"stage {row['stage']}, {row['name']}"
    ranks = f"ranks {listing(map(str, row['ranks']))}: " if row["apart"] and row["stage"] is None else ""
    return f"{ranks}{terminal(row['name'])}"
