"""How fast products and communication ran, in the terminal."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, ms, percent, terminal
from tracekit.report.terminal.table import table
from tracekit.report.view import View

WIDE = 90
"""Columns from which bus bandwidths fit."""
UNEVEN = 1.05
"""Share of the mean from which what a rank receives is worth a table: equal shares say nothing."""
MOST_ROWS = 8
"""Kinds of products and of operations shown, those that take longest."""


def products(view: View, width: int) -> RenderableType | None:
    """Return the rates of matrix products, by label and the slowest kinds; None where no shapes were recorded."""
    rates = view.analysis.rates
    if rates is None or not rates.total.flop:
        return None
    rows = table("products", "shape", "TFLOP/s", "of peak", "ms", left=("products",))
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
    wide = width >= WIDE
    heads = ["operation", "size", "count", "GB/s", *(["bus GB/s"] if wide else []), "transfer ms", "wait ms"]
    rows = table(*heads, left=("operation",))
    for row in rates.communication.sort("transfer_ns", descending=True).head(MOST_ROWS).iter_rows(named=True):
        rows.add_row(
            _operation(row),
            row["size"],
            f"{row['count']:,}",
            _number(row["algorithm_gb_s"]),
            *([_number(row["bus_gb_s"])] if wide else []),
            bare_ms(row["transfer_ns"]),
            bare_ms(row["wait_ns"]),
        )
    return rows


def experts(view: View, width: int) -> RenderableType | None:
    """Return what each rank's experts were sent; None where dispatches do not say how much came in."""
    rates = view.analysis.rates
    if rates is None or rates.experts.is_empty() or (rates.experts["over_mean"].max() or 0.0) < UNEVEN:  # type: ignore[operator]
        return None
    rows = table("rank", "received MB", "of mean", "largest in", "waited ms")
    for row in rates.experts.head(MOST_ROWS).iter_rows(named=True):
        rows.add_row(
            str(row["rank"]),
            f"{row['received'] / 1e6:,.1f}",
            percent(row["over_mean"]),
            f"{row['largest']} of {row['exchanges']}",
            bare_ms(row["wait_ns"]),
        )
    return rows


def _operation(row: dict[str, Any]) -> str:
    """Return what an operation is called, with its group where the trace names it, so that no two rows look alike."""
    group = f" ({terminal(row['group'])})" if row["group"] else ""
    return f"{row['label']} {row['what']} × {row['ranks']}{group}"


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
