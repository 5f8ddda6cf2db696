"""The report in the terminal: the answer, then the tables it rests on."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.text import Text

from tracekit._util.text import counted, ms, terminal, wrap_text
from tracekit.analysis import Analysis
from tracekit.report.terminal import sections
from tracekit.report.terminal.fleet import many_ranks
from tracekit.report.terminal.schedule import render_schedule, what_if
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.sections import shared
from tracekit.report.terminal.table import WORST_RANKS_SHOWN
from tracekit.report.view import View, view_of

TOPIC_WIDTH = 10
"""Columns that the topic of a line of the answer takes."""


def render(
    analysis: Analysis,
    console: Console | None = None,
    *,
    brief: bool = False,
    full: bool = True,
    page_written: bool = False,
    definitions: bool = False,
) -> None:
    """Print the report.

    Args:
        analysis: The result.
        console: Where to print; standard output if it is None.
        brief: Print only the answer, and predictions if they were asked for.
        full: Print every section; else the answer, the budget, the schedule and what was asked for.
        page_written: Whether a page was written, which is then not suggested.
        definitions: Print the definition of each number as well.
    """
    out, view = console or Screen(), view_of(analysis)
    out.print(header(view))
    out.print(answer(view, out.width))
    chosen = BRIEF_SECTIONS if brief else SECTIONS if full else SHORT_SECTIONS
    words = _title_words(view, short=not full)
    for title, section in chosen:
        body = section(view, out.width)
        if body is not None:
            out.print()
            out.print(Text(title.format_map(words), style="bold"))
            out.print(body, crop=False)  # a command to copy may be longer than a line
    if not brief:
        out.print(closing_lines(view, full=full, page_written=page_written))
    if definitions:
        out.print()
        out.print(Text("How each number is defined", style="bold"))
        lines = (f"{name} = {meaning}" for name, meaning in view.definitions)
        text = "\n".join(wrap_text(line, out.width, first="  ", rest="    ") for line in lines)
        out.print(Text(text, style="dim"))


def closing_lines(view: View, *, full: bool, page_written: bool) -> Text:
    """Return how to get the rest: all tables and warnings, and a page."""
    warnings = f" and {counted(len(view.warnings), 'warning')}" if view.warnings else ""
    more, changes = [], view.analysis.changed_steps
    if not full and view.analysis.graph is None and changes and (changes[0].saves_ns or 0) > 0:
        more.append(f"`{changes[0].change}` would save up to {ms(changes[0].saves_ns)} of a step")
    if view.what_if_hint is not None:
        more.append(view.what_if_hint.text)
    if not full:
        more.append(f"--full prints all tables{warnings}")
    if not page_written:
        more.append("-o report.html writes a page")
    return Text("; ".join(more), style="dim")


def header(view: View) -> Text:
    """Return one line that says what was analyzed."""
    device = "".join(f" · {terminal(device)}" for device in view.devices[:1])
    return Text.assemble(("tracekit ", "bold"), f"{view.ranks} · {view.steps_named}{device}")


def answer(view: View, width: int) -> Text:
    """Return the lines of the answer: the topic, and the text wrapped beside it."""
    wrap_width, text = max(50, min(width, 132)), Text()
    for i, line in enumerate(view.answer):
        wrapped = wrap_text(line.text, wrap_width, first=f"{line.topic:<{TOPIC_WIDTH}}", rest=" " * TOPIC_WIDTH)
        text.append("\n" if i else "").append(wrapped[:TOPIC_WIDTH], style="bold").append(wrapped[TOPIC_WIDTH:])
    return text


def _title_words(view: View, *, short: bool) -> dict[str, str]:
    """Return the words that stand in braces in the titles of sections.

    ``over`` is what the figures of a table are summed or averaged over: ranks and steps.
    """
    steps = len(view.steps.rows) + view.steps.more if view.steps else 1
    ranks, drawn = len(view.analysis.rank_results), len(sections.ranks_with_bars(view, short=short))
    over = "all ranks" if ranks > 1 else "1 rank"
    main_role = view.analysis.role_results.main_role
    return {
        "over": f"{over}, {counted(steps, 'step')}" if steps > 1 else over,
        "steps": f"{steps} steps" if steps > 1 else "step",
        "of_role": "" if main_role is None else f" of role {main_role}",
        "of_ranks": f"; {drawn} of {counted(ranks, 'rank')}" if drawn < ranks else "",
        "idle": "Bubble: idle and exposed pipeline waiting" if view.pipelined else "Idle: why the GPU ran nothing",
        "by": "" if view.by is None else view.by.title,
    }


Sections = tuple[tuple[str, sections.Section], ...]
BUDGET_TITLE = "Where the {steps}{of_role} went (shares of the span{of_ranks})"
REQUESTED_CHANGES = (
    "What a change would give",
    shared(lambda view: view.changes if view.analysis.graph is not None else None),
)
SECTIONS: Sections = (
    ("Roles, iterations and weight updates", sections.roles),
    (BUDGET_TITLE, sections.budget),
    ("Over the ranks (shares of each rank's span)", many_ranks),
    ("Compute ({over})", sections.compute),
    ("Communication and copies: what compute hides ({over})", sections.exposure),
    ("What hides what ({over})", shared(lambda view: view.beside)),
    ("What hiding communication costs the compute beside it ({over})", shared(lambda view: view.hiding)),
    ("{idle}", shared(lambda view: view.idle)),
    ("What the host did instead of launching (launch-bound idle, {over})", shared(lambda view: view.instead)),
    ("Against its ideal schedule", render_schedule),
    ("Micro-batches overlap: what compute hides, by phase", shared(lambda view: view.phases)),
    ("Critical path: what the step had to wait for, in order of time", sections.critical),
    ("What a change would give", shared(lambda view: view.changes)),
    ("{by}", sections.breakdown),
    ("How fast products ran ({over}; over their own time)", shared(lambda view: view.products, total_style="bold")),
    ("How fast communication ran (bytes over transfer, waiting apart)", shared(lambda view: view.communication)),
    ("Experts: what each rank receives in the forward's dispatches", shared(lambda view: view.experts)),
    ("Memory: the most each rank held (GB)", shared(lambda view: view.memory)),
    ("Whom the others wait for", shared(lambda view: view.waited_for, max_rows=WORST_RANKS_SHOWN)),
    ("Unequal work of the ranks", shared(lambda view: view.imbalance)),
    ("What slows the pipeline down", shared(lambda view: view.slowdown)),
    ("Steps", sections.step_times),
    ("Copies", shared(lambda view: view.copies)),
    ("Weight reload", sections.reload),
    ("Warnings", sections.warnings),
    ("What to do next", sections.next_steps),
)
"""Title and function of each section, in the order they are printed."""
BRIEF_SECTIONS: Sections = (REQUESTED_CHANGES, ("What other schedules would take", what_if))
SHORT_SECTIONS: Sections = (
    (BUDGET_TITLE, partial(sections.budget, short=True)),
    ("Against its ideal schedule", partial(render_schedule, short=True)),
    ("Roles, iterations and weight updates", sections.roles),
    ("Critical path: what the step had to wait for, in order of time", sections.critical),
    REQUESTED_CHANGES,
    ("{by}", sections.breakdown),
    ("Weight reload", sections.reload),
    ("What else to do", partial(sections.next_steps, first=2)),
)
"""Sections printed by default: the answer's own, and those that were asked for."""
