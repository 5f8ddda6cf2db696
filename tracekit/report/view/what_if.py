"""Predictions for changes: the step times, and the lanes of the changed step beside the measured one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tracekit._util.text import bare_ms, ms, percent, signed
from tracekit.analysis import Analysis
from tracekit.critical_path.changes import Lane
from tracekit.documents.analysis import ChangedStep
from tracekit.report.table import Column, Table, make_table
from tracekit.report.view.memory import gb_range

MAX_RANKS_DRAWN = 8
"""Ranks whose lanes are drawn."""
MAX_PARTS_NAMED = 3
"""Parts of the new critical path that are named."""
_COLUMNS = (
    Column("change", "name"),
    Column("predicted", "ms", terminal_heading="predicted ms"),
    Column("between ms", "figure", 1),
    Column("saves ms", "figure"),
    Column("of the step", "share", 2),
    Column("then the longest", "word", 3),
)


class ChangesView(msgspec.Struct, frozen=True):
    """Predicted step times with changes."""

    table: Table
    analysis: Analysis

    def drawn(self) -> Iterator[tuple[str, dict[int, Lane], dict[int, Lane]]]:
        """Yield each change that can be drawn, with the lanes of ranks as measured and as predicted."""
        graph = self.analysis.graph
        for row in self.analysis.changed_steps:
            if graph is not None and row.saves_ns is not None:
                measured, predicted = (graph.lanes(c, max_ranks=MAX_RANKS_DRAWN) for c in ((), row.changes))
                yield row.change, measured, predicted


def changes_view(analysis: Analysis) -> ChangesView | None:
    """Return the predicted step times with changes that were asked for, or that would save most; None without any."""
    rows = analysis.changed_steps
    notes = [f"{row.change}: not answered, because {row.why_not}" for row in rows if row.why_not]
    if len(notes) < len(rows):
        step = ms(rows[0].measured_ns)
        notes.insert(0, f"time per step, {step} as measured; saves: an upper bound of what the change can give")
    for row in rows:
        if row.peak_bytes is not None:
            needs = f"{row.change}: the fullest rank needs {gb_range(*row.peak_bytes)} GB"
            notes.append(f"{needs}, which does not fit" if row.fits is False else needs)
    if analysis.graph is not None:  # asked for, not only listed
        notes += dict.fromkeys(text for row in rows for text in row.rests_on)
    table = make_table(_COLUMNS, (_cells(row) for row in rows), notes=notes)
    return None if table is None else ChangesView(table, analysis)


def _cells(row: ChangedStep) -> tuple[str | int | float | None, ...]:
    """Return the cells of one change."""
    between = "" if row.predicted_range_ns is None else " – ".join(bare_ms(ns, 1) for ns in row.predicted_range_ns)
    saves = "" if row.saves_ns is None else signed(row.saves_ns / 1e6)
    share = None if row.saves_ns is None else row.saves_ns / max(row.measured_ns, 1)
    parts = [
        f"{part.label or 'host'} on rank {part.rank} {percent(part.ns, row.predicted_ns, digits=0)}"
        for part in row.critical_path[:MAX_PARTS_NAMED]
    ]
    return row.change, row.predicted_ns, between, saves, share, ", ".join(parts)
