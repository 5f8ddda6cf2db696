"""The spreadsheet: a sheet for each table, text that stays text, numbers as they are."""

from __future__ import annotations

import importlib.util
import re
import zipfile

import polars as pl
import pytest

from tracekit.errors import OptionError
from tracekit.report.write import (
    MAX_CELL_LENGTH,
    MAX_EXACT_INTEGER,
    as_cells,
    check_output,
    sheets,
    write,
)
from tracekit.run.analyze import analyze

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


@pytest.fixture(scope="module")
def analysis(samples):
    return analyze(samples / "reload", by="shape", schedule="none")


def test_a_sheet_per_table(analysis, tmp_path):
    write(analysis, tmp_path / "run.xlsx")
    with zipfile.ZipFile(tmp_path / "run.xlsx") as book:
        names = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
    assert names == list(sheets(analysis))
    assert {"figures", "by shape", "budget", "kernels", "communication", "warnings"} <= set(names)
    assert list(tmp_path.iterdir()) == [tmp_path / "run.xlsx"]


def test_cells_hold_what_tables_do():
    rows = {
        "at": [MAX_EXACT_INTEGER + 1],
        "ns": [MAX_EXACT_INTEGER],
        "name": ["=1+1"],
        "long": ["x" * (MAX_CELL_LENGTH + 5)],
        "share": [float("nan")],
    }
    assert as_cells(pl.DataFrame(rows)).row(0) == (
        str(MAX_EXACT_INTEGER + 1),
        MAX_EXACT_INTEGER,
        "=1+1",
        "x" * MAX_CELL_LENGTH,
        None,
    )


def test_what_is_missing_is_one_line(monkeypatch, tmp_path):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "xlsxwriter" else find_spec(name, *a),
    )
    with pytest.raises(OptionError, match="spreadsheets need XlsxWriter") as error:
        check_output(tmp_path / "run.xlsx")
    assert "[xlsx]" in error.value.hint
