"""Lateness over a whole run in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.late import view
from tracekit.late.result import WholeRun
from tracekit.report.terminal.screen import MIN_WIDTH
from tracekit.report.terminal.table import Note, render_table, stack
from tracekit.report.text import capitalize, wrap_text

MAX_FACTS = 6
"""Late ranks and slow links that are told in a sentence each."""


def render(run: WholeRun, width: int) -> RenderableType:
    """Return the answer in one line, further facts, and tables."""
    parts: list[RenderableType | None] = [
        Text(wrap_text(capitalize(view.headline(run.document)), width), style="bold")
    ]
    parts += [Note(line) for line in _details(run)]
    facts = _facts(run)
    if facts:
        parts.append(Text(""))
        parts += [Text(wrap_text(fact, width, first="• ", rest="  ")) for fact in facts]
    for heading, table in (
        ("How each rank joins", view.rank_table(run.document)),
        ("Waiting by group", view.group_table(run.document)),
        ("Transfers", view.transfer_table(run.document)),
    ):
        rendered = render_table(table, width)
        if rendered is not None:
            parts += [Text(""), Text(heading, style="bold"), rendered]
    parts += [Text(""), Text("Recorded", style="bold")]
    parts += [Note(line) for line in view.record_and_clock_lines(run)]
    return stack(*parts) or Text("")


def _details(run: WholeRun) -> list[str]:
    """Return what stands below the first line."""
    if run.document.hang is not None and run.document.hang.certain:
        return view.hang_details(run.document.hang)
    return []


def _facts(run: WholeRun) -> list[str]:
    """Return what else is worth a sentence: the first line is not repeated."""
    sentences = []
    if run.document.hang is not None and not run.document.hang.certain:
        sentences.append(view.hang_sentence(run.document.hang))
        sentences += view.hang_details(run.document.hang)
    return sentences + view.fact_sentences(run.document, most=MAX_FACTS)


def render_text(run: WholeRun) -> str:
    """Return what the terminal shows, as plain text."""
    from tracekit.report.terminal.screen import Screen

    screen = Screen(width=max(MIN_WIDTH, 100), color_system=None)
    with screen.capture() as capture:
        screen.print(Group(render(run, screen.width)))
    return capture.get()
