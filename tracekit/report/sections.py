"""The sections of a report of an analysis: each is declared once, for the terminal, Markdown, the page and notebooks.

A section's ``build`` returns blocks, which each medium draws with one function per kind of block: a
new section is one such function and its entry here. What is more than blocks is drawn by a medium
under the section's id: ``terminal.analysis``, ``markdown`` and ``html/assets/sections`` have such
drawings. What a page shows inside another section has that section's id as its ``part_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from tracekit._util.text import counted
from tracekit.report.blocks import Block, PageDrawing, TextBlock
from tracekit.report.view import View

Medium = Literal["terminal", "markdown", "page"]
ALL: tuple[Medium, ...] = ("terminal", "markdown", "page")
TEXT_MEDIA: tuple[Medium, ...] = ("terminal", "markdown")


def nothing(_view: View) -> Sequence[Block | None]:
    """Return no blocks: each medium draws such a section in its own way."""
    return ()


def nothing_said(_view: View) -> Sequence[str | None]:
    """Return no sentences for the first screen."""
    return ()


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One section; names in braces are filled by ``section_words``."""

    id: str
    title: str
    """Its heading in text."""
    scope: str = ""
    """What its figures are over, which the terminal adds in brackets."""
    name: str = ""
    """Its name in the page's navigation; empty if it is no section of the page."""
    about: str = ""
    """What it says, beside that name."""
    part_of: str = ""
    """Section of the page that shows it too."""
    media: tuple[Medium, ...] = ALL
    """Where it is shown."""
    tab: str = ""
    """Tab of the page's navigation that it stands under."""
    build: Callable[[View], Sequence[Block | None]] = nothing
    """Its blocks, which all media draw; those that have more than that draw it under its id."""
    on_first_screen: Callable[[View], Sequence[str | None]] = nothing_said
    """What it says of the run on the first screen, a sentence each."""
    when_asked: bool = False
    """Whether the terminal shows it only when it is asked for by name."""

    def blocks(self, view: View) -> list[Block]:
        """Return its blocks, without those that have nothing to say."""
        return [block for block in self.build(view) if block is not None]

    def text_blocks(self, view: View) -> list[TextBlock]:
        """Return its blocks without those that only a page draws."""
        return [block for block in self.blocks(view) if not isinstance(block, PageDrawing)]

    def heading(self, words: Mapping[str, str]) -> str:
        """Return the heading of the terminal."""
        scope = f" ({self.scope})" if self.scope else ""
        return f"{self.title}{scope}".format_map(words)


CORE_SECTIONS: tuple[Section, ...] = (
    Section(
        id="timeline", tab="Timeline", title="Timeline", name="Timeline", about="every event of every rank",
        media=("page",),
    ),
    Section(
        id="budget", tab="Budget", title="Where the {steps}{of_role} went", scope="shares of the {span}{of_ranks}",
        name="Budget", about="where the {step_or_steps} went",
    ),
    Section(
        id="ranks", tab="Budget", title="Over the ranks", scope="shares of each rank's span",
        name="Ranks", about="how figures are spread over them", media=("terminal", "page"),
    ),
    Section(id="compute", title="Compute", scope="{over}", part_of="overlap", media=("terminal",)),
    Section(
        id="overlap", tab="Budget", title="Communication and copies: what compute hides", scope="{over}",
        name="Overlap", about="what ran, and what compute hides", media=("terminal", "page"),
    ),
    Section(
        id="beside", title="What hides what", scope="{over}", part_of="overlap", media=TEXT_MEDIA,
        build=lambda view: [view.beside],
    ),
    Section(
        id="hiding", title="What hiding communication costs the compute beside it", scope="{over}",
        part_of="overlap", media=("terminal",), build=lambda view: [view.hiding],
    ),
    Section(
        id="idle", tab="Budget", title="{idle}", name="{idle_name}", about="{idle_about}", media=("terminal", "page"),
        build=lambda view: [view.idle],
    ),
    Section(
        id="host", tab="Budget", title="What the host did instead of launching", scope="launch-bound idle, {over}",
        name="Host", about="what it did instead of launching", media=("terminal", "page"),
        build=lambda view: [view.instead],
    ),
    Section(
        id="schedule", tab="Schedule", title="Against its ideal schedule", name="Schedule",
        about="measured above its ideal",
    ),
    Section(
        id="gap", tab="Schedule", title="From the ideal to the run", name="Gap", about="to the ideal, by cause",
        media=("page",),
    ),
    Section(
        id="phases", tab="Schedule", title="Micro-batches overlap: what compute hides, by phase", name="Phases",
        about="micro-batches overlap: what compute hides, by phase", media=("terminal", "page"),
        build=lambda view: [view.phases],
    ),
    Section(
        id="critical-path", tab="Critical path", title="Critical path: what the step had to wait for, in order of time",
        name="Critical path", about="what the step had to wait for", media=("terminal", "page"), when_asked=True,
    ),
    Section(
        id="changes", tab="Critical path", title="What a change would give", name="What if",
        about="what a change would give",
        build=lambda view: [view.changes],
    ),
    Section(id="by", tab="Kernels", title="{by}", name="{by_name}", about="{by_about}", build=lambda view: [view.by]),
    Section(
        id="rates", tab="Kernels", title="Rates", name="Rates", about="how fast {rates_of} ran", media=("page",)
    ),
    Section(
        id="products", title="How fast products ran", scope="{over}; over their own time",
        part_of="rates", media=("terminal",), build=lambda view: [view.products],
    ),
    Section(
        id="communication", title="How fast communication ran", scope="bytes over transfer, waiting apart",
        part_of="rates", media=("terminal",), build=lambda view: [view.communication],
    ),
    Section(
        id="experts", title="Experts: what each rank receives in the forward's dispatches",
        part_of="rates", media=TEXT_MEDIA, build=lambda view: [view.experts],
    ),
    Section(
        id="stragglers", tab="Critical path", title="Whom the others wait for", name="Waits",
        about="whom the others wait for",
        build=lambda view: [view.waited_for],
    ),
    Section(
        id="imbalance", title="Unequal work of the ranks", part_of="stragglers", media=TEXT_MEDIA,
        build=lambda view: [view.imbalance],
    ),
    Section(
        id="slowdown", title="What slows the pipeline down", part_of="stragglers", media=TEXT_MEDIA,
        build=lambda view: [view.slowdown],
    ),
    Section(id="steps", tab="Budget", title="Steps", name="Steps", media=("terminal", "page")),
    Section(id="copies", tab="Kernels", title="Copies", name="Copies", build=lambda view: [view.copies]),
    Section(id="reload", tab="Schedule", title="Weight reload", name="Weight reload"),
    Section(
        id="kernels", tab="Kernels", title="The longest kernels", name="Kernels", about="the longest",
        build=lambda view: [view.kernel_table], when_asked=True,
    ),
    Section(
        id="operators", tab="Kernels", title="Operators and what they were given", name="Operators",
        about="by the sizes, types and strides of their inputs",
        build=lambda view: [view.operators], when_asked=True,
    ),
    Section(id="warnings", tab="Notes", title="Warnings", name="Warnings ({warnings})"),
    Section(id="findings", tab="Findings", title="What to do next", name="Findings", media=("terminal", "page")),
    Section(
        id="definitions", tab="Notes", title="How each number is defined", name="Definitions",
        about="how each number is defined", media=("terminal", "page"), when_asked=True,
    ),
)  # fmt: skip
"""The core's sections, in the order of the text reports; ``tracekit.rooms`` adds those of the side rooms."""


NEED_OPTIONS = ("by", "changes")
"""Sections that the terminal shows with the options that fill them."""


def insert_sections(
    sections: Sequence[Section], added: Sequence[Section], *, after: str
) -> tuple[Section, ...]:
    """Return *sections* with those that are *added* behind the one of the id *after*.

    >>> extra = Section(id="extra", title="Extra")
    >>> [section.id for section in insert_sections(CORE_SECTIONS, [extra], after="timeline")][:2]
    ['timeline', 'extra']
    """
    ids = [section.id for section in sections]
    end = ids.index(after) + 1
    return (*sections[:end], *added, *sections[end:])


def all_sections(view: View) -> tuple[Section, ...]:
    """Return the sections of an analysis' reports, in order: those of the rooms that were handed to it, too."""
    return view.analysis.rooms.sections or CORE_SECTIONS


def sections_to_show(sections: Sequence[Section]) -> tuple[str, ...]:
    """Return the names of the sections that ``--show`` prints in the terminal, sorted: each with its parts.

    >>> names = sections_to_show(CORE_SECTIONS)
    >>> "rates" in names, "products" in names
    (True, False)
    """
    names = {section.part_of or section.id for section in sections_of(sections, "terminal")}
    return tuple(sorted(names - set(NEED_OPTIONS)))


def with_parts(sections: Sequence[Section], name: str) -> tuple[Section, ...]:
    """Return the sections of the terminal that ``--show`` prints under this name.

    >>> [section.id for section in with_parts(CORE_SECTIONS, "stragglers")]
    ['stragglers', 'imbalance', 'slowdown']
    """
    return tuple(
        section
        for section in sections_of(sections, "terminal")
        if name in (section.id, section.part_of)
    )


def sections_of(sections: Sequence[Section], medium: Medium) -> tuple[Section, ...]:
    """Return the sections that a medium shows, in order."""
    return tuple(section for section in sections if medium in section.media)


def find_section(sections: Sequence[Section], section_id: str) -> Section:
    """Return a section by its id.

    >>> find_section(CORE_SECTIONS, "stragglers").title
    'Whom the others wait for'
    """
    return next(section for section in sections if section.id == section_id)


def section_words(view: View) -> dict[str, str]:
    """Return the words that stand in braces in headings.

    ``over`` is what the figures of a table are summed or averaged over: ranks and steps.
    """
    steps = len(view.steps.rows) + view.steps.more if view.steps else 1
    over = "all ranks" if len(view.analysis.rank_results) > 1 else "1 rank"
    main_role = view.analysis.role_results.main_role
    rates_of = ["products"] if view.products else []
    if view.communication or view.experts:
        rates_of.append("communication")
    idle_name, idle_about = "Idle", "why the GPU ran nothing"
    if view.pipelined:
        idle_name, idle_about = "Bubble", "idle and exposed pipeline waiting"
    return {
        "over": f"{over}, {counted(steps, 'step')}" if steps > 1 else over,
        "steps": f"{steps} steps" if steps > 1 else "step",
        "step_or_steps": "steps" if view.steps else "step",
        "of_role": "" if main_role is None else f" of role {main_role}",
        "of_ranks": "",
        "span": "recorded span" if view.analysis.step.profiler_ns else "span",
        "idle": f"{idle_name}: {idle_about}",
        "idle_name": idle_name,
        "idle_about": idle_about,
        "by": f"{view.by_title} ({view.by_meaning})" if view.by_title else "",
        "by_name": "" if view.analysis.by is None else f"By {view.analysis.by.kind}",
        "by_about": view.by_title,
        "rates_of": " and ".join(rates_of),
        "warnings": str(len(view.warnings)),
    }


TABS = (
    "Findings",
    "Timeline",
    "Schedule",
    "Roles",
    "Budget",
    "Memory",
    "Critical path",
    "Kernels",
    "Notes",
)
"""Tabs of the page's navigation, nine at most."""


def page_sections(sections: Sequence[Section]) -> list[Section]:
    """Return the sections of the page: tab by tab, in the order of the list."""
    return sorted(sections_of(sections, "page"), key=lambda section: TABS.index(section.tab))


def page_tabs(sections: Sequence[Section], drawn: Collection[str]) -> list[tuple[str, list[str]]]:
    """Return the name of each tab that has something to show, and its sections.

    Args:
        sections: All sections.
        drawn: Ids of those that have something to show.

    >>> page_tabs(CORE_SECTIONS, ["findings", "overlap", "stragglers"])
    [('Findings', ['findings']), ('Budget', ['overlap']), ('Critical path', ['stragglers'])]
    """
    ids_of_tab: dict[str, list[str]] = {}
    for section in page_sections(sections):
        if section.id in drawn:
            ids_of_tab.setdefault(section.tab, []).append(section.id)
    return list(ids_of_tab.items())


def page_headings(view: View) -> dict[str, tuple[str, str]]:
    """Return the name of each section of the page and what it says, by id."""
    words = section_words(view)
    return {
        section.id: (section.name.format_map(words), section.about.format_map(words))
        for section in sections_of(all_sections(view), "page")
    }
