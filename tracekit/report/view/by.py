"""The step by layer, module, annotation or shape, as reports show it: means per step of the ranks that have a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracekit._util.text import counted, listing, terminal
from tracekit.analysis import Analysis
from tracekit.report.view.rates import shape_words
from tracekit.schema import COMPUTE_LABELS

if TYPE_CHECKING:
    from tracekit.analysis.by import By

MOST_ROWS = 40
"""Rows shown; the JSON has all."""
TITLES = {
    "layer": "By layer (time in a step; every busy nanosecond in one row)",
    "module": "By module (time in a step: in the module itself, and with what it calls)",
    "annotation": "By annotation (time in a step: innermost range, and with what is inside it)",
    "shape": "By shape of products (time in a step; most lost to the GPU's peak first)",
}


class ByRow(msgspec.Struct, frozen=True):
    """One row: a place in the model, or what has none."""

    name: str
    evidence: str
    ns: float
    share: float | None
    """Of the time in which GPUs were busy."""
    labels: tuple[tuple[str, float], ...]
    """Compute by label."""
    communication_ns: float
    """Exposed communication."""
    inclusive_ns: float | None
    """With what is inside it; None where rows hold nothing."""
    calls: float | None
    tflop_s: float | None
    share_of_peak: float | None
    below_peak_ns: float | None
    place: bool
    """False of what is in no place."""

    def label(self, name: str) -> float:
        """Return the time of one compute label."""
        return dict(self.labels).get(name, 0.0)


class ByView(msgspec.Struct, frozen=True):
    """The step in rows."""

    kind: str
    title: str
    rows: tuple[ByRow, ...]
    labels: tuple[str, ...]
    """Compute labels that any row has."""
    notes: tuple[str, ...]
    rated: bool
    """Whether any row has a rate."""


def by_view(analysis: Analysis) -> ByView | None:
    """Return the rows that were asked for; None where none were."""
    by = analysis.by
    if by is None:
        return None
    rows = by.rows.to_dicts()
    places = [row for row in rows if by.is_place(row["name"])]
    shown = places[:MOST_ROWS] + [row for row in rows if not by.is_place(row["name"])]
    notes = ["times: means over the ranks that have the row"] if by.placed and len(analysis.rank_results) > 1 else []
    notes += by.notes
    if len(places) > MOST_ROWS:
        notes.append(f"{counted(len(places) - MOST_ROWS, 'row')} more in the JSON")
    if by.placed:
        notes.append("the rows add up to all time in which GPUs were busy")
    labels = tuple(name for name in COMPUTE_LABELS if any(row.get(f"{name}_ns") for row in rows))
    made = tuple(_row(row, by) for row in shown) if by.placed else ()
    return ByView(by.kind, TITLES[by.kind], made, labels, tuple(notes), any(row.tflop_s is not None for row in made))


def _row(row: dict[str, Any], by: By) -> ByRow:
    of = max(len(row["ranks"]) * by.steps, 1)
    place = by.is_place(row["name"])

    def mean(name: str) -> float | None:
        return None if row.get(name) is None else row[name] / of

    return ByRow(
        name=_name(row, by.kind) if place else str(row["name"]),
        evidence=row["evidence"] or "",
        ns=row["ns"] / of,
        share=row["share"],
        labels=tuple((name, row[f"{name}_ns"] / of) for name in COMPUTE_LABELS if row.get(f"{name}_ns")),
        communication_ns=row["communication_ns"] / of,
        inclusive_ns=mean("inclusive_ns"),
        calls=mean("calls"),
        tflop_s=row["tflop_s"],
        share_of_peak=row["share_of_peak"],
        below_peak_ns=mean("below_peak_ns"),
        place=place,
    )


def _name(row: dict[str, Any], kind: str) -> str:
    if kind == "shape":
        op, shapes, dtype = str(row["name"]).rsplit(" ", 2)  # neither shapes nor types hold a space
        return terminal(f"{op} {shape_words(shapes)} {dtype}")
    if kind == "layer" and row["stage"] is not None:
        return f"stage {row['stage']}, {row['name']}"
    where = f"ranks {listing(map(str, row['ranks']))}: " if row["apart"] and row["stage"] is None else ""
    return f"{where}{terminal(row['name'])}"
