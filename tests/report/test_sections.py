"""Sections are declared once: every medium draws those that it is said to show, and no others."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.kept import analysis_of
from tracekit.analysis.result import Rooms
from tracekit.report import html, markdown
from tracekit.report.blocks import Sentence
from tracekit.report.html import page as page_module
from tracekit.report.sections import Section, sections_of
from tracekit.report.table import Column, Table
from tracekit.report.terminal import analysis as terminal
from tracekit.report.terminal.screen import Screen
from tracekit.results import AnalysisResult
from tracekit.rooms import all_sections

SECTIONS = all_sections()
IDS = [section.id for section in SECTIONS]
TEMPLATES = Path(html.__file__).parent / "assets" / "sections"


def test_every_section_is_declared_once():
    assert len(set(IDS)) == len(IDS)


def test_what_is_part_of_a_section_is_part_of_one_that_the_page_shows():
    on_page = {section.id for section in sections_of(SECTIONS, "page")}
    for section in SECTIONS:
        assert section.part_of in on_page or not section.part_of
        assert ("page" in section.media) == bool(section.name)


@pytest.mark.parametrize("module", [terminal, markdown])
def test_a_text_report_draws_no_other_section_in_a_way_of_its_own(module):
    medium = module.__name__.split(".")[2]
    assert set(module.DRAWINGS) <= {section.id for section in sections_of(SECTIONS, medium)}


def test_the_short_reports_draw_sections_of_the_terminal():
    shown = {section.id for section in sections_of(SECTIONS, "terminal")}
    assert {*terminal.SHORT_DRAWINGS, *terminal.BRIEF_DRAWINGS} <= shown


def test_the_page_draws_no_other_section_in_a_way_of_its_own():
    on_page = {section.id for section in sections_of(SECTIONS, "page")}
    drawn = {path.name.removesuffix(".html.j2") for path in TEMPLATES.iterdir()}
    assert drawn - on_page == {"lateness"}  # a part of stragglers


def build_example(view):
    table = Table((Column("rank", "rank"), Column("waited", "ms")), ((0, 1_500_000),))
    return [Sentence(f"a run of {view.ranks}"), table, None]


def test_a_new_section_is_one_function_and_shows_up_in_every_medium(samples):
    example = Section(
        id="example", title="Example", name="Example", tab="Budget", build=build_example
    )

    class WithExample(AnalysisResult):
        rooms = Rooms(sections=(*SECTIONS, example))

    analysis = WithExample.of(analysis_of(samples / "reload"))
    out = io.StringIO()
    terminal.render(analysis, Screen(file=out, width=100), full=True)
    page = page_module.render_html(analysis)
    texts = (out.getvalue(), markdown.render_markdown(analysis), page, analysis._repr_html_())
    for text in texts:
        assert "Example" in text
        assert "run of 4 ranks" in text
        assert "1.5" in text
    assert re.search(r'href="#budget" data-sections="[a-z -]* example"', page)
