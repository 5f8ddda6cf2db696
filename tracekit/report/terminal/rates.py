"""How fast products and communication ran, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, percent
from tracekit.report.terminal.table import note, table
from tracekit.report.view import View
from tracekit.report.view.rates import ProductRow

WIDE = 90
"""Columns from which bus bandwidths fit."""


def products(view: View, width: int) -> RenderableType | None:
    """Return the rates of matrix products, by label and the slowest kinds; None where no shapes were recorded."""
    rates = view.rates
    if rates is None or not rates.labels:
        return None
    rows = table("products", "shape", "TFLOP/s", "of peak", "ms", left=("products",))
    for row in rates.labels:
        rows.add_row(row.name, "", *_cells(row))
    for row in rates.kinds:
        rows.add_row(f"  {row.name}", row.shape, *_cells(row))
    return Group(rows, *(Text(f"  {line}") for line in rates.notes))


def communication(view: View, width: int) -> RenderableType | None:
    """Return bandwidths of matched operations, waiting apart; None where no sizes were recorded."""
    rates = view.rates
    if rates is None or not rates.communication:
        return None
    wide = width >= WIDE
    linked = rates.linked
    more = [*(["bus GB/s"] if wide or linked else []), *(["of link"] if linked else [])]
    heads = ["operation", "size", "count", "GB/s", *more, "transfer ms", "wait ms"]
    rows = table(*heads, left=("operation",))
    for row in rates.communication:
        bus = [_number(row.bus_gb_s)] if wide or linked else []
        link = [percent(row.share_of_link)] if linked else []
        speeds = (_number(row.gb_s), *bus, *link, bare_ms(row.transfer_ns), bare_ms(row.wait_ns))
        rows.add_row(row.name, row.size, f"{row.count:,}", *speeds)
    return rows


def experts(view: View, width: int) -> RenderableType | None:
    """Return what each rank's experts were sent; None where dispatches do not say how much came in."""
    rates = view.rates
    if rates is None or not rates.experts:
        return None
    rows = table("rank", "received MB", "of mean", "largest in", "waited ms", "experts ms", " of mean")
    for row in rates.experts:
        received, largest = f"{row.received_bytes / 1e6:,.1f}", f"{row.largest} of {row.exchanges}"
        work = (bare_ms(row.work_ns), percent(row.work_over_mean))
        rows.add_row(str(row.rank), received, percent(row.over_mean), largest, bare_ms(row.wait_ns), *work)
    return Group(rows, *(note(text) for text in rates.expert_notes))


def _cells(row: ProductRow) -> tuple[str, str, str]:
    return _number(row.tflop_s), percent(row.share_of_peak), bare_ms(row.ns)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
