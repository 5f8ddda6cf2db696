"""What reports say about the contents of memory."""

from __future__ import annotations

import pytest

from tests.kept import analysis_of
from tracekit.memory.view import contents_table, lines_table, memory_line
from tracekit.report.html.page import render_html
from tracekit.report.markdown import render_markdown

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def leaking(snapshots):
    return analysis_of(snapshots / "leak")


def cells(table, row):
    return {
        column.name: value for column, value in zip(table.columns, table.rows[row], strict=True)
    }


def test_the_parts_of_the_peak_add_up_to_it(leaking):
    table = contents_table(leaking)
    row = cells(table, 0)
    parts = [
        row[name] for name in ("weights", "gradients", "optimizer state", "activations", "rest")
    ]
    assert sum(map(float, parts)) == pytest.approx(float(row["peak"]), rel=0.01)
    assert (row["in"], row["in flight"]) == ("0B1", "2")


def test_source_lines_are_those_of_the_users_code(leaking):
    lines = lines_table(leaking)
    assert any(str(row[0]).startswith("model.py:") for row in lines.rows)
    assert lines.notes == ("rank 0, at its peak",)


def test_all_reports_show_it(leaking):
    page = render_html(leaking)
    text = render_markdown(leaking)
    for report in (page, text):
        assert "hat fills" in report
        assert "model.py:" in report


def test_a_run_without_single_allocations_says_nothing(samples):
    analysis = analysis_of(samples / "reload")
    assert contents_table(analysis) is None
    assert lines_table(analysis) is None
    assert memory_line(analysis) is None
