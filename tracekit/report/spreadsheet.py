"""The analysis as a spreadsheet: a sheet for each table, through polars and XlsxWriter (extra ``xlsx``).

Every text stays text: a kernel whose name begins with an equals sign is no formula, and an address no link.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report.tables import figures

MOST_ROWS = (1 << 20) - 1
"""Rows of a sheet below its head, as many as the format holds."""
LONGEST_TEXT = (1 << 15) - 1
"""Characters of a cell."""
EXACT = 1 << 53
"""A cell's number is a 64-bit float: whole numbers beyond this lose their last digits, so they become text."""


def check_spreadsheet(path: str | PathLike[str]) -> None:
    """Refuse a spreadsheet where what writes it is not installed."""
    if importlib.util.find_spec("xlsxwriter") is None:
        raise OptionError(f"{path}: spreadsheets need XlsxWriter", hint="pip install 'tracekit-ml[xlsx]'")


def sheets(analysis: Analysis) -> dict[str, pl.DataFrame]:
    """Return the tables by the name of their sheet, the most asked for first.

    >>> from tracekit.run.analyze import analyze
    >>> list(sheets(analyze("sample_traces/reload", schedule="none")))[:3]
    ['figures', 'steps', 'budget']
    """
    rates, by = analysis.rates, analysis.by
    warnings = [{"code": note.code, "message": note.message} for note in analysis.notices]
    tables = {
        "figures": figures(analysis),
        **({f"by {by.kind}": by.rows} if by is not None else {}),
        **analysis.tables,
        **({"products": rates.products, "communication": rates.communication} if rates is not None else {}),
        **({"experts": rates.experts} if rates is not None else {}),
        "warnings": pl.DataFrame(warnings, schema={"code": pl.String, "message": pl.String}),
    }
    return {name[:31]: table for name, table in tables.items() if table.width}


def write_spreadsheet(analysis: Analysis, path: Path) -> None:
    """Write every table of *analysis* to *path*."""
    workbook: Any = importlib.import_module("xlsxwriter").Workbook
    buffer = io.BytesIO()  # its own errors tell a full disk in words of their own: let Python write
    options: dict[str, Any] = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with workbook(buffer, {**options, "in_memory": True}) as book:
        for name, table in sheets(analysis).items():
            plain(table).write_excel(book, worksheet=name, freeze_panes=(1, 0), table_style="Table Style Light 1")
    path.write_bytes(buffer.getvalue())


def plain(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table as cells hold it: text no longer than a cell, lists as text, numbers beyond 53 bits as text.

    >>> plain(pl.DataFrame({"ranks": [[0, 1]], "at": [1 << 60]})).rows()
    [('0, 1', '1152921504606846976')]
    """
    return table.head(MOST_ROWS).select(_cell(table, name, dtype) for name, dtype in table.schema.items())


def _cell(table: pl.DataFrame, name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if isinstance(dtype, pl.List):
        return column.cast(pl.List(pl.String)).list.join(", ").str.slice(0, LONGEST_TEXT)
    if dtype.is_integer():
        largest = table[name].abs().max()
        return column.cast(pl.String) if isinstance(largest, int) and largest > EXACT else column
    if dtype.is_float():
        return pl.when(column.is_finite()).then(column).alias(name)
    if dtype == pl.Boolean:
        return column
    return column.cast(pl.String).str.slice(0, LONGEST_TEXT)
