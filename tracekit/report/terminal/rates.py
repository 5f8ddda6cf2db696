"""How fast products and communication ran, in the terminal."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, ms, percent
from tracekit.report.terminal.table import table
from tracekit.report.view import View

MOST_ROWS = 8
"""Kinds of products and of operations shown, those that take longest."""


def products(view: View, width: int) -> RenderableType | None:
    """Return the rates of matrix products, by label and the slowest kinds; None where no shapes were recorded."""
    rates = view.analysis.rates
    if rates is None or not rates.total.flop:
        return None
    rows = table("", "shape", "TFLOP/s", "of peak", "ms")
    for row in rates.by("label").iter_rows(named=True):
        rows.add_row(row["label"], "", *_cells(row))
    for row in rates.products.filter(rates.products["flop"].is_not_null()).head(MOST_ROWS).iter_rows(named=True):
        rows.add_row(f"  {row['label']} {row['module'] or ''}".rstrip(), _shape(row["shapes"]), *_cells(row))
    total = rates.total
    lines = []
    if total.utilisation is not None:
        lines.append(f"  model FLOP utilisation {percent(total.utilisation)} of the GPUs' peak over the span")
    if not total.counted:
        lines.append(f"  {ms(total.uncounted_ns)} of products have no known FLOP: totals are left out")
    return Group(rows, *(Text(line) for line in lines))


def communication(view: View, width: int) -> RenderableType | None:
    """Return bandwidths of matched operations, waiting apart; None where no sizes were recorded."""
    rates = view.analysis.rates
    if rates is None or rates.communication.is_empty():
        return None
    rows = table("", "size", "count", "GB/s", "bus GB/s", "transfer ms", "wait ms")
    for row in rates.communication.sort("transfer_ns", descending=True).head(MOST_ROWS).iter_rows(named=True):
        rows.add_row(
            f"{row['label']} {row['what']} × {row['ranks']}",
            row["size"],
            f"{row['count']:,}",
            _number(row["algorithm_gb_s"]),
            _number(row["bus_gb_s"]),
            bare_ms(row["transfer_ns"]),
            bare_ms(row["wait_ns"]),
        )
    return rows


def experts(view: View, width: int) -> RenderableType | None:
    """Return what each rank's experts were sent; None where dispatches do not say how much came in."""
    rates = view.analysis.rates
    if rates is None or rates.experts.is_empty():
        return None
    rows = table("", "received MB", "of mean", "largest in", "waited ms")
    for row in rates.experts.head(MOST_ROWS).iter_rows(named=True):
        rows.add_row(
            f"rank {row['rank']}",
            f"{row['received'] / 1e6:,.1f}",
            percent(row["over_mean"]),
            f"{row['largest']} of {row['exchanges']}",
            bare_ms(row["wait_ns"]),
        )
    return rows


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    share = row["share_of_peak"]
    return _number(row["tflop_s"]), "–" if share is None else percent(share), bare_ms(row["ns"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _shape(shapes: str) -> str:
    """Return the sizes of the operands as people write them.

    >>> _shape("[[1024,2048],[2048,6144],[]]")
    '1024×2048 · 2048×6144'
    """
    dims = [dim for dim in json.loads(shapes) if isinstance(dim, list) and len(dim) > 1]
    return " · ".join("×".join(map(str, dim)) for dim in dims[:2])
