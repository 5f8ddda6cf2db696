"""The tables that terminal, page and Markdown share."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from tracekit._util.text import at_least, percent
from tracekit.report.table import Column, Table, make_table, rows_of
from tracekit.report.view.model import View
from tracekit.report.view.ranks import BubbleRow
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

    def share(cause: str) -> Callable[[BubbleRow], float | None]:
        return lambda row: row.causes[cause]

    def bubble_in(phase: str) -> Callable[[BubbleRow], int | None]:
        return lambda row: row.phase_ns.get(phase)

    columns = [Column("rank", "rank"), Column("idle", "ms", value="idle_ns")]
    columns += [Column(IDLE_CAUSES[cause], "share", note="shares of idle", value=share(cause)) for cause in causes]
    if view.pipelined:
        columns += [
            Column("pipeline wait", "ms", value="wait_ns"),
            Column("bubble", "figure", note="of the span", value=_bubble),
            *(Column(phase, "ms", 1, "bubble in that phase", value=bubble_in(phase)) for phase in PHASES),
        ]
    return make_table(columns, rows_of(columns, rows))


def _bubble(row: BubbleRow) -> str:
    return at_least(percent(row.bubble), row.lower_bound)


def reload_lanes(view: View) -> Table | None:
    """Return the lanes of a weight update by rank."""
    if view.reload is None:
        return None
    columns = (
        Column("rank", "rank", value=itemgetter("rank")),
        Column("lane", value=lambda lane: "H2D" if lane["lane"] == "h2d" else lane["lane"]),
        Column("buckets", "count", value=itemgetter("count")),
        Column("time", "ms", value=itemgetter("ns")),
        Column("GB/s", "rate", value=itemgetter("bandwidth_gb_s")),
    )
    return make_table(columns, rows_of(columns, view.reload.lanes))
