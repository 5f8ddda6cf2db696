"""The schedule section of the terminal report."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from tests.pipeline.against_ideal.conftest import compare_with_options, pipelines
from tracekit.report.blocks import PipelineChart
from tracekit.report.sections.schedule import gap_table, headline, spans_table
from tracekit.report.terminal.blocks import draw_blocks


@pytest.fixture(scope="module")
def comparison():
    return compare_with_options(list(pipelines("1f1b")), what_if=True)[0]


def drawn(comparison, width):
    """The schedule, and the gap to its ideal, as a terminal of this width shows them."""
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    blocks = [headline(comparison), gap_table(comparison), spans_table(comparison)]
    console.print(draw_blocks([*blocks, PipelineChart(comparison)], width))
    console.file.close()
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_it_fits_and_says_all_of_it(comparison, width):
    text = drawn(comparison, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "1f1b, same order · 4 ranks · 8 micro-batches" in text
    assert "measured" in text
    assert "27.3 %" in text  # outside cells in the ideal: 3/11
    assert "outside cells" in text
    assert "bubble" not in text.lower()
    assert "unexplained" in text


def test_the_waterfall_adds_up(comparison):
    gap = comparison.gap_ns
    figures = re.findall(r"([+−])(\d[\d,]*\.\d+) ms", drawn(comparison, 120))
    shown = sum((-1 if sign == "−" else 1) * float(ms.replace(",", "")) for sign, ms in figures)
    assert shown == pytest.approx(sum(gap.values()) / 1e6, abs=0.01 * len(figures))


def test_the_gantt_draws_every_rank_twice_and_begins_with_its_first_forward(comparison):
    rows = [line for line in drawn(comparison, 160).splitlines() if "F0" in line and "B7" in line]
    assert len(rows) == 8
    ideal = [len(row) - len(row.lstrip()) for row in rows]
    assert len(set(ideal)) == 1  # ranks are aligned; idle is drawn as dots
    assert rows[4].split()[1].startswith("F0")
    assert rows[7].split()[1].startswith("·")
