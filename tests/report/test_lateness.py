"""Lateness and unequal work in the reports, on a small recording with a slow GPU and unequal tokens."""

from __future__ import annotations

import io
import re
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from tests.kept import analysis_of
from tracekit.report.html.page import render_html
from tracekit.report.markdown import render_markdown
from tracekit.report.sections.stragglers import lateness_map
from tracekit.report.terminal.analysis import render

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def slow_uneven():
    return analysis_of(DATA / "slow-uneven")


def test_the_map_has_a_row_for_each_rank_and_a_cell_for_each_step(slow_uneven):
    lateness = lateness_map(slow_uneven)
    assert lateness.steps == [4, 5, 6]
    assert [row[0] for row in lateness.rows] == [0, 1, 2, 3]
    latest = max(lateness.rows, key=lambda row: max(row[1]))
    assert latest[0] == 3
    assert lateness.most_ns == max(latest[1])


def test_the_page_draws_the_map_and_says_why(slow_uneven):
    page = render_html(slow_uneven)
    (section,) = re.findall(r'<section id="stragglers">.*?</section>', page, re.DOTALL)
    (drawn,) = re.findall(r'<table class="heat large">.*?</table>', section, re.DOTALL)
    assert drawn.count("<td") == 4 * 3
    assert drawn.count("--heat:1.00") == 1
    assert "in every step" in section
    assert "its GPU runs the same kernels" in section
    assert "Unequal work of the ranks" in page


def test_the_map_sums_to_the_stragglers_and_counts_every_candidate():
    """A wait that two ranks may have caused stands in the rows of both."""
    analysis = analysis_of("sample_traces/megatron-moe")
    expected: dict[int, int] = {}
    for row in analysis.stragglers:
        for rank in row.candidates if row.uncertain else [row.rank]:
            expected[rank] = expected.get(rank, 0) + row.caused_ns
    assert any(row.uncertain for row in analysis.stragglers)
    assert {rank: sum(waits_ns) for rank, waits_ns in lateness_map(analysis).rows} == expected
    page = render_html(analysis)
    assert "which of several ranks came last, each of them is counted" in page


def test_an_equal_run_has_no_map():
    assert lateness_map(analysis_of("sample_traces/reload")) is None


def test_terminal_and_markdown_name_the_cause(slow_uneven):
    console = Console(file=io.StringIO(), width=200)
    render(slow_uneven, console)
    for text in (console.file.getvalue(), render_markdown(slow_uneven)):
        flat = " ".join(text.split())
        assert "in every step" in flat
        assert "tokens in a step, the others" in flat
        assert "Unequal work of the ranks" in flat


def test_unequal_work_and_what_equal_work_saves_are_told_apart(slow_uneven):
    """The replay hides a part of the work under communication: what it saves is what the table of changes says."""
    balance = next(row for row in slow_uneven.changed_steps if row.change == "balance")
    work_ns = (
        slow_uneven.waiting.imbalance.group_by("step")
        .agg(pl.col("cost_ns").max())["cost_ns"]
        .mean()
    )
    assert 0 < balance.saves_ns < work_ns
