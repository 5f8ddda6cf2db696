"""The step in rows by layer, module, annotation or shape."""

from collections.abc import Callable

from msgspec import UNSET, UnsetType

from tracekit._util.text import counted, listing, terminal
from tracekit.analysis import Analysis
from tracekit.analysis.measure.by import By
from tracekit.documents.analysis import ByRow
from tracekit.documents.coding import rows as table_rows
from tracekit.report.section import Section
from tracekit.report.table import Column, Table, make_table
from tracekit.report.words import shape_words
from tracekit.schema import COMPUTE_LABELS

MAX_PLACE_ROWS = 40
"""Rows of places in the model that are shown; the JSON has all."""


def by_table(analysis: Analysis) -> Table | None:
    """Return the rows of ``--by``.

    Only notes if no event could be assigned to a row, None if none was asked for.
    """
    by = analysis.places
    if by is None:
        return None
    if not by.placed:
        return Table((), (), tuple(by.notes))
    rows = table_rows(by.rows, ByRow)
    places = [row for row in rows if by.is_place(row.name)]
    remainders = [row for row in rows if not by.is_place(row.name)]
    notes = ["times: means over the ranks that have the row"] if len(analysis.ranks) > 1 else []
    notes += by.notes
    if len(places) > MAX_PLACE_ROWS:
        notes.append(f"{counted(len(places) - MAX_PLACE_ROWS, 'row')} more in the JSON")
    notes.append("the rows add up to all time in which GPUs were busy")
    return _places_table(by, places[:MAX_PLACE_ROWS], remainders, notes)


def _places_table(
    by: By, places: list[ByRow], remainders: list[ByRow], notes: list[str]
) -> Table | None:
    """Return the table: rows of places, then of the time that belongs to none."""
    rows = [*places, *remainders]

    def name(row: ByRow) -> str:
        return _place_name(row, by.kind) if by.is_place(row.name) else row.name

    columns = [
        Column(by.kind, "name", value=name),
        Column("time", "ms", value=_mean_per_rank_and_step(by, "ns")),
        Column("of busy", "share", expendable=2 if by.kind == "shape" else 0, value="share"),
        *_columns_of_kind(by),
    ]
    if any(row.tflop_s is not None for row in rows):
        columns += _rate_columns(by)
    evidence = {row.evidence for row in rows if row.evidence}
    if len(evidence) > 1:
        columns.append(Column("evidence", expendable=6, value=lambda row: row.evidence or ""))
    elif evidence:
        notes = [f"evidence: {evidence.pop()}", *notes]
    return make_table(columns, rows, notes=notes, totals=range(len(places), len(rows)))


def _columns_of_kind(by: By) -> list[Column]:
    """Return the columns that depend on what the rows are, in their order."""
    inside = Column("with inside", "ms", value=_mean_per_rank_and_step(by, "inclusive_ns"))
    exposed = Column("exposed comm", "ms", value=_mean_per_rank_and_step(by, "communication_ns"))
    calls = Column("calls", "count", expendable=3, value=_mean_per_rank_and_step(by, "calls"))
    columns_of_kind = {
        "layer": [*_label_columns(by), exposed],
        "module": [inside, exposed],
        "annotation": [inside, exposed],
        "shape": [calls],
    }
    return columns_of_kind[by.kind]


def _label_columns(by: By) -> list[Column]:
    """Return a column for each label of compute that any row has, also one that is not shown."""
    columns = []
    for label in COMPUTE_LABELS:
        key = f"{label}_ns"
        if key in by.rows.columns and by.rows[key].sum():
            mean_ns = _mean_per_rank_and_step(by, key, missing=0.0)
            columns.append(Column(label, "ms", expendable=5, value=mean_ns))
    return columns


def _rate_columns(by: By) -> list[Column]:
    """Return the columns about the speed of products."""
    columns = [
        Column("TFLOP/s", "rate", value="tflop_s"),
        Column("of peak", "share", expendable=1, value="share_of_peak"),
    ]
    if by.kind == "shape":
        mean_ns = _mean_per_rank_and_step(by, "below_peak_ns")
        columns.append(Column("below peak", "ms", value=mean_ns))
    return columns


def _mean_per_rank_and_step(
    by: By, key: str, *, missing: float | None = None
) -> Callable[[ByRow], float | None]:
    """Return the function that gives a row's sum *key* as its mean over steps and the ranks that have the row.

    It gives *missing* for a row without that sum.
    """

    def mean(row: ByRow) -> float | None:
        total: float | UnsetType | None = getattr(row, key)
        if total is None or total is UNSET:
            return missing
        return total / max(len(row.ranks) * by.steps, 1)

    return mean


def _place_name(row: ByRow, kind: str) -> str:
    if kind == "shape":
        # Neither shapes nor types contain a space.
        op, shapes, dtype = str(row.name).rsplit(" ", 2)
        return terminal(f"{op} {shape_words(shapes)} {dtype}")
    if row.stage is not None:
        return f"stage {row.stage}, {terminal(row.name)}"
    ranks = f"ranks {listing(map(str, row.ranks))}: " if row.apart and row.stage is None else ""
    return f"{ranks}{terminal(row.name)}"


BY_SECTION = Section(
    id="by",
    tab="Kernels",
    title="{by}",
    scope="{by_meaning}",
    name="{by_name}",
    about="{by}",
    asked_for=lambda analysis: analysis.places is not None,
    build=lambda analysis: [by_table(analysis)],
)
