"""Sections are declared once: every medium draws those that it is said to show, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracekit.report import html, markdown
from tracekit.report.sections import SECTIONS, sections_of
from tracekit.report.terminal import analysis as terminal

IDS = [section.id for section in SECTIONS]
TEMPLATE = Path(html.__file__).parent / "assets" / "page.html.j2"


def test_every_section_is_declared_once():
    assert len(set(IDS)) == len(IDS)


def test_what_is_part_of_a_section_is_part_of_one_that_the_page_shows():
    on_page = {section.id for section in sections_of("page")}
    for section in SECTIONS:
        assert section.part_of in on_page or not section.part_of
        assert ("page" in section.media) == bool(section.name)


@pytest.mark.parametrize("module", [terminal, markdown])
def test_a_text_report_can_draw_each_of_its_sections_and_draws_no_other(module):
    medium = module.__name__.split(".")[2]
    shown = {section.id: section for section in sections_of(medium)}
    assert set(module.DRAWINGS) <= set(shown)
    for section_id, section in shown.items():
        assert section.table is not None or section_id in module.DRAWINGS


def test_the_short_reports_draw_sections_of_the_terminal():
    shown = {section.id for section in sections_of("terminal")}
    assert {*terminal.SHORT_DRAWINGS, *terminal.BRIEF_DRAWINGS} <= shown


def test_the_page_lays_out_the_sections_that_it_is_said_to_show():
    laid_out = re.findall(r'^  \("([a-z-]+)", ', TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(laid_out) == {section.id for section in sections_of("page")}
