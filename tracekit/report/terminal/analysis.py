"""The report in the terminal: the answer, then sections, each drawn block by block."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from tracekit.analysis import Analysis
from tracekit.report.section import Section, section_words, sections_of, with_parts
from tracekit.report.sections import all_sections
from tracekit.report.terminal.blocks import draw_blocks
from tracekit.report.terminal.first_screen import first_screen
from tracekit.report.terminal.screen import Screen


def render(
    analysis: Analysis,
    console: Console | None = None,
    *,
    brief: bool = False,
    full: bool = True,
    page_written: bool = False,
    show: Sequence[str] = (),
) -> None:
    """Print the report.

    Args:
        analysis: The result.
        console: Where to print; standard output if it is None.
        brief: Print the beginning of the first screen, and what was asked for.
        full: Print every section below the first screen; else the schedule and what was asked for.
        page_written: Whether a page was written, which is then not suggested.
        show: Ids of further sections to print, and of those that options asked for.
    """
    out = console or Screen()
    is_full = full and not brief
    options = [] if is_full else ["--full"]
    if not page_written:
        options.append("-o report.html")
    lines = first_screen(
        analysis,
        out.columns if isinstance(out, Screen) else out.width,
        unicode=out.encoding.lower().startswith("utf"),
        brief=brief,
        options=options,
    )
    out.print(Text("\n").join(lines), soft_wrap=True)
    printed = chosen_sections(analysis, out.width, brief=brief, full=is_full, show=show)
    for title, body in printed:
        out.print()
        out.print(Text(title, style="bold"))
        out.print(body, crop=False)  # a command to copy may be longer than a line


def chosen_sections(
    analysis: Analysis, width: int, *, brief: bool, full: bool, show: Sequence[str] = ()
) -> Iterator[tuple[str, RenderableType]]:
    """Yield the heading and content of each section that has something to say, and of those to *show*."""
    words = section_words(analysis)
    sections = all_sections(analysis)
    by_name = {name: with_parts(sections, name) for name in show}
    asked_ids = {section.id for parts in by_name.values() for section in parts}

    def drawn(section: Section) -> tuple[str, RenderableType | None]:
        blocks = section.text_blocks(analysis)
        return section.heading(words), draw_blocks(blocks, width, short=not full)

    for section in sections_of(sections, "terminal"):
        is_shown = full and "terminal" not in section.when_asked
        is_shown |= section.in_short and not brief
        is_shown |= section.asked_for is not None and section.asked_for(analysis)
        if is_shown and section.id not in asked_ids:
            title, body = drawn(section)
            if body is not None:
                yield title, body
    for name, parts in by_name.items():
        with_content = []
        for section in parts:
            title, body = drawn(section)
            if body is not None:
                with_content.append((title, body))
        if not with_content:
            (title,) = [section.heading(words) for section in sections if section.id == name]
            with_content = [(title, Text("  nothing of this run", style="dim"))]
        yield from with_content
