"""The tables that terminal, page and Markdown share."""

from __future__ import annotations

from tracekit._util.text import at_least, percent
from tracekit.report.table import Column, Table, Value, make_table
from tracekit.report.view.model import View
from tracekit.schema import IDLE_CAUSES, PHASES

_ALWAYS_SHOWN_IDLE_CAUSES = ("launch_bound", "dependency")


def copies(view: View, *, by_rank: bool = False) -> Table | None:
    """Return the copies by label, summed over all ranks; *by_rank* puts the rows of each rank above them."""
    if view.copies is None:
        return None
    return view.copies.by_rank if by_rank and len(view.analysis.rank_results) > 1 else view.copies.total


def experts(view: View) -> Table | None:
    """Return what the experts of each rank receive and compute."""
    return None if view.rates is None else view.rates.experts


def communication(view: View) -> Table | None:
    """Return the bandwidth of matched operations."""
    return None if view.rates is None else view.rates.communication


def products(view: View) -> Table | None:
    """Return the rates of matrix products, by label, then of the kinds that take longest."""
    return None if view.rates is None else view.rates.products


def hiding(view: View) -> Table | None:
    """Return how much slower compute ran beside communication."""
    return view.hiding


def by(view: View) -> Table | None:
    """Return the step by layer, module, annotation or shape."""
    return None if view.by is None else view.by.table


def idle(view: View) -> Table | None:
    """Return the causes of each rank's idle time, its pipeline wait and its bubble by phase."""
    rows = view.bubbles
    causes = [
        cause
        for cause in IDLE_CAUSES
        if cause in _ALWAYS_SHOWN_IDLE_CAUSES or any(row.causes.get(cause) for row in rows)
    ]
    columns = [Column("rank", "rank"), Column("idle", "ms")]
    columns += [Column(IDLE_CAUSES[cause], "share", note="shares of idle") for cause in causes]
    cells: list[list[Value]] = [[row.rank, row.idle_ns, *(row.causes[cause] for cause in causes)] for row in rows]
    if view.pipelined:
        columns += [Column("pipeline wait", "ms"), Column("bubble", "figure", note="of the span")]
        columns += [Column(phase, "ms", 1, "bubble in that phase") for phase in PHASES]
        for row, row_cells in zip(rows, cells, strict=True):
            row_cells += [row.wait_ns, at_least(percent(row.bubble), row.lower_bound)]
            row_cells += [row.phase_ns.get(phase) for phase in PHASES]
    return make_table(columns, cells)


def reload_lanes(view: View) -> Table | None:
    """Return the lanes of a weight update by rank."""
    if view.reload is None:
        return None
    columns = (
        Column("rank", "rank"),
        Column("lane"),
        Column("buckets", "count"),
        Column("time", "ms"),
        Column("GB/s", "rate"),
    )
    rows = [
        (
            lane["rank"],
            "H2D" if lane["lane"] == "h2d" else lane["lane"],
            lane["count"],
            lane["ns"],
            lane["bandwidth_gb_s"],
        )
        for lane in view.reload.lanes
    ]
    return make_table(columns, rows)
