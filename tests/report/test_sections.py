"""Sections are declared once: every medium draws those that it is said to show, and no others."""

from __future__ import annotations

import io
import re
from dataclasses import fields

from tests.kept import analysis_of
from tracekit.analysis.result import Rooms
from tracekit.report import markdown
from tracekit.report.blocks import Sentence
from tracekit.report.html import page as page_module
from tracekit.report.section import (
    Section,
    page_tabs,
    sections_of,
    sections_to_show,
    with_parts,
)
from tracekit.report.table import Column, Table
from tracekit.report.terminal import analysis as terminal
from tracekit.report.terminal.screen import Screen
from tracekit.results import AnalysisResult
from tracekit.rooms import all_sections

SECTIONS = all_sections()
IDS = [section.id for section in SECTIONS]


def test_every_section_is_declared_once():
    assert len(set(IDS)) == len(IDS)


def test_what_is_part_of_a_section_is_part_of_one_that_is_declared():
    on_page = {section.id for section in sections_of(SECTIONS, "page")}
    for section in SECTIONS:
        assert section.part_of in on_page or not section.part_of
        if "page" in section.media:
            assert section.name or section.part_of
        assert bool(section.tab) == bool(section.name)


def test_a_part_is_shown_with_what_it_is_a_part_of():
    assert [section.id for section in with_parts(SECTIONS, "stragglers")] == [
        "stragglers",
        "imbalance",
        "slowdown",
    ]
    names = sections_to_show(SECTIONS)
    assert "rates" in names
    assert "products" not in names


def test_tabs_stand_in_the_order_of_the_sections():
    assert page_tabs(SECTIONS, ["overlap", "stragglers", "steps"]) == [
        ("Budget", ["overlap", "steps"]),
        ("Critical path", ["stragglers"]),
    ]


def build_example(analysis):
    table = Table((Column("rank", "rank"), Column("waited", "ms")), ((0, 1_500_000),))
    return [Sentence(f"a run of {len(analysis.ranks)} ranks"), table, None]


def test_a_new_section_is_one_function_and_shows_up_in_every_medium(samples):
    example = Section(
        id="example", title="Example", name="Example", tab="Budget", build=build_example
    )

    class WithExample(AnalysisResult):
        rooms = Rooms(sections=(*SECTIONS, example))

    reload = analysis_of(samples / "reload")
    analysis = WithExample(**{field.name: getattr(reload, field.name) for field in fields(reload)})
    out = io.StringIO()
    terminal.render(analysis, Screen(file=out, width=100), full=True)
    page = page_module.render_html(analysis)
    texts = (out.getvalue(), markdown.render_markdown(analysis), page, analysis._repr_html_())
    for text in texts:
        assert "Example" in text
        assert "run of 4 ranks" in text
        assert "1.5" in text
    assert re.search(r'href="#budget" data-sections="[a-z -]* example"', page)
