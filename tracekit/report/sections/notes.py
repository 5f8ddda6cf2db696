"""Warnings, and how each number is defined."""

from collections.abc import Sequence

from tracekit.analysis import Analysis
from tracekit.report.blocks import Block, FactList, Notices
from tracekit.report.gap_words import warnings_of
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.words import WORDS


def _warnings(analysis: Analysis) -> Sequence[Block | None]:
    lines = analysis.once(warnings_of)
    return [Notices(lines)] if lines else []


def _definitions(analysis: Analysis) -> Sequence[Block | None]:
    of_schedule = {} if analysis.comparison is None else WORDS.schedule_definitions
    return [FactList(tuple({**WORDS.definitions, **of_schedule}.items()))]


WARNINGS_SECTION = Section(
    id="warnings",
    tab="Notes",
    title="Warnings",
    name="Warnings ({warnings})",
    folded=("markdown",),
    build=_warnings,
)
DEFINITIONS_SECTION = Section(
    id="definitions",
    tab="Notes",
    title="How each number is defined",
    name="Definitions",
    about="how each number is defined",
    media=TERMINAL_AND_PAGE,
    folded=("page",),
    when_asked=("terminal",),
    build=_definitions,
)
