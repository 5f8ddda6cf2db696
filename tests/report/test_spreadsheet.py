"""The spreadsheet: a sheet for each table, text that stays text, numbers as they are."""

from __future__ import annotations

import importlib.util
import re
import zipfile

import polars as pl
import pytest

from tracekit.errors import OptionError
from tracekit.report.spreadsheet import EXACT, LONGEST_TEXT, plain, sheets
from tracekit.report.write import check_output, write
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.slow


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
        "at": [EXACT + 1],
        "ns": [EXACT],
        "name": ["=1+1"],
        "long": ["x" * (LONGEST_TEXT + 5)],
        "share": [float("nan")],
    }
    assert plain(pl.DataFrame(rows)).row(0) == (str(EXACT + 1), EXACT, "=1+1", "x" * LONGEST_TEXT, None)


def test_what_is_missing_is_one_line(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "xlsxwriter" else found(name, *a))
    with pytest.raises(OptionError, match="spreadsheets need XlsxWriter") as error:
        check_output(tmp_path / "run.xlsx")
    assert "[xlsx]" in error.value.hint
