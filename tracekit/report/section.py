"""A section of a report: one function from the result to blocks, declared once for every medium.

``build`` returns the blocks of ``report.blocks``, which terminal, Markdown, page and notebook draw
with one function per kind. The modules of ``report.sections`` declare those of the core, side rooms
their own; ``tracekit.rooms`` puts them in order. A section that is ``part_of`` another stands below it
on the page and is printed with it by ``--show``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.report.blocks import Block, TextBlock
from tracekit.report.gap_words import warnings_of
from tracekit.report.words import WORDS

Medium = Literal["terminal", "markdown", "page"]
ALL: tuple[Medium, ...] = ("terminal", "markdown", "page")
TERMINAL_AND_PAGE: tuple[Medium, ...] = ("terminal", "page")


def nothing_said(_analysis: Analysis) -> Sequence[str | None]:
    """Return no sentences for the first screen."""
    return ()


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One section; names in braces are filled by ``section_words``."""

    id: str
    title: str
    """Its heading in text, and on the page where it is a part of another section."""
    build: Callable[[Analysis], Sequence[Block | None]]
    """Its blocks, which all media draw."""
    scope: str = ""
    """What its figures are over, which the terminal adds in brackets."""
    name: str = ""
    """Its name on the page; empty where the page shows it as a part of another section."""
    about: str = ""
    """What it says, beside that name."""
    tab: str = ""
    """Tab of the page's navigation that it stands under."""
    part_of: str = ""
    """Section that it belongs to."""
    media: tuple[Medium, ...] = ALL
    """Where it is shown; a notebook shows what the terminal shows."""
    folded: tuple[Medium, ...] = ()
    """Where its blocks are shown on a click."""
    on_first_screen: Callable[[Analysis], Sequence[str | None]] = nothing_said
    """What it says of the run on the first screen, a sentence each."""
    in_short: bool = False
    """Whether the terminal shows it below the first screen without ``--full``."""
    asked_for: Callable[[Analysis], bool] | None = None
    """Whether its figures were asked for by an option; it is then in every report."""
    when_asked: tuple[Medium, ...] = ()
    """Where it is shown only when it, or what it is a part of, is asked for by name."""
    picture: int = 0
    """Rank among the pictures of which a page has the highest beside the findings; 0: none."""

    def blocks(self, analysis: Analysis) -> list[Block]:
        """Return its blocks, without those that have nothing to say."""
        return [block for block in self.build(analysis) if block is not None]

    def text_blocks(self, analysis: Analysis) -> list[TextBlock]:
        """Return its blocks without those that only a page draws."""
        return text_blocks(self.blocks(analysis))

    def heading(self, words: Mapping[str, str]) -> str:
        """Return the heading of the terminal."""
        scope = self.scope.format_map(words)
        return self.title.format_map(words) + (f" ({scope})" if scope else "")


def text_blocks(blocks: Sequence[Block]) -> list[TextBlock]:
    """Return the blocks that every medium draws."""
    return [block for block in blocks if isinstance(block, TextBlock)]


def insert_sections(
    sections: Sequence[Section], added: Sequence[Section], *, after: str
) -> tuple[Section, ...]:
    """Return *sections* with those that are *added* behind the one of the id *after*.

    >>> first, last, extra = (Section(id=name, title=name, build=list) for name in ("first", "last", "extra"))
    >>> [section.id for section in insert_sections([first, last], [extra], after="first")]
    ['first', 'extra', 'last']
    """
    ids = [section.id for section in sections]
    end = ids.index(after) + 1
    return (*sections[:end], *added, *sections[end:])


def sections_to_show(sections: Sequence[Section]) -> tuple[str, ...]:
    """Return the names of the sections that ``--show`` prints in the terminal, sorted: each with its parts."""
    names = {
        section.id if section.name else section.part_of or section.id
        for section in sections_of(sections, "terminal")
        if section.asked_for is None
    }
    return tuple(sorted(names))


def with_parts(sections: Sequence[Section], name: str) -> tuple[Section, ...]:
    """Return the sections of the terminal that ``--show`` prints under this name."""
    return tuple(
        section
        for section in sections_of(sections, "terminal")
        if name in (section.id, section.part_of)
    )


def sections_of(sections: Sequence[Section], medium: Medium) -> tuple[Section, ...]:
    """Return the sections that a medium shows, in order."""
    return tuple(section for section in sections if medium in section.media)


def section_words(analysis: Analysis) -> dict[str, str]:
    """Return the words that stand in braces in headings.

    ``over`` is what the figures of a table are summed or averaged over: ranks and steps.
    """
    steps = analysis.tables["steps"]["step"].n_unique()
    over = "all ranks" if len(analysis.ranks) > 1 else "1 rank"
    main_role = analysis.role_results.main_role
    idle_name, idle_about = "Idle", "why the GPU ran nothing"
    if analysis.total.pipeline:
        idle_name, idle_about = "Bubble", "idle and exposed pipeline waiting"
    by = None if analysis.places is None else analysis.places.kind
    return {
        "over": f"{over}, {counted(steps, 'step')}" if steps > 1 else over,
        "steps": f"{steps} steps" if steps > 1 else "step",
        "step_or_steps": "steps" if steps > 1 else "step",
        "of_role": "" if main_role is None else f" of role {main_role}",
        "span": "recorded span" if analysis.step.profiler_ns else "span",
        "idle_name": idle_name,
        "idle_about": idle_about,
        "warnings": str(len(analysis.once(warnings_of))),
        "by": "" if by is None else WORDS.by_titles[by],
        "by_meaning": "" if by is None else WORDS.by_meanings[by],
        "by_name": f"By {by}",
    }


def page_sections(sections: Sequence[Section]) -> list[Section]:
    """Return the sections of the page that have a place of their own: tab by tab, in the order of the list."""
    placed = [section for section in sections_of(sections, "page") if section.name]
    tabs = list(dict.fromkeys(section.tab for section in placed))
    return sorted(placed, key=lambda section: tabs.index(section.tab))


def page_parts(sections: Sequence[Section], name: str) -> list[Section]:
    """Return the sections that the page shows as parts of the one of this id."""
    return [
        section
        for section in sections_of(sections, "page")
        if section.part_of == name and not section.name
    ]


def page_tabs(sections: Sequence[Section], drawn: Collection[str]) -> list[tuple[str, list[str]]]:
    """Return the name of each tab that has something to show, and its sections.

    Args:
        sections: All sections.
        drawn: Ids of those that have something to show.
    """
    ids_of_tab: dict[str, list[str]] = {}
    for section in page_sections(sections):
        if section.id in drawn:
            ids_of_tab.setdefault(section.tab, []).append(section.id)
    return list(ids_of_tab.items())
