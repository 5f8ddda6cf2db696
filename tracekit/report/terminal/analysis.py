"""The report in the terminal: the answer in five lines, then the tables it rests on.

A section is a function of the view and the width that returns what to print, or None where it would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tracekit._util.text import counted, terminal, wrap_text
from tracekit.analysis import Analysis
from tracekit.report.terminal.budget import budget, compute
from tracekit.report.terminal.by import by_rows
from tracekit.report.terminal.critical import critical
from tracekit.report.terminal.fleet import many_ranks
from tracekit.report.terminal.memory import memory
from tracekit.report.terminal.overlap import exposure, hiders
from tracekit.report.terminal.rates import communication, experts, products
from tracekit.report.terminal.schedule import render_schedule, unnamed
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.sections import bubbles, copies, reload, spread, stragglers, warnings
from tracekit.report.terminal.table import command_line
from tracekit.report.terminal.why import hiding, instead
from tracekit.report.view import View, view_of

TOPICS = 10
"""Columns the topic of an answer takes."""


def render(
    analysis: Analysis, console: Console | None = None, *, brief: bool = False, definitions: bool = False
) -> None:
    """Print the whole report; *brief* prints the answer alone, *definitions* adds how each number is defined."""
    out, view = console or Screen(), view_of(analysis)
    out.print(header(view))
    out.print(answer(view, out.width))
    for title, build in SECTIONS if not brief else ():
        body = build(view, out.width)
        if body is not None:
            out.print()
            out.print(Text(title if isinstance(title, str) else title(view), style="bold"))
            out.print(body, crop=False)  # a command to copy may be longer than a line
    if definitions:
        out.print()
        out.print(Text("How each number is defined", style="bold"))
        out.print(_definitions(view, out.width))


def header(view: View) -> Text:
    """Return one line that says what was analyzed."""
    line = Text.assemble(("tracekit ", "bold"), f"{view.ranks} · {view.steps_named}")
    return line.append("".join(f" · {terminal(device)}" for device in view.devices[:1]))


def answer(view: View, width: int) -> Text:
    """Return the five lines: a topic and what is said about it, wrapped under itself."""
    room, text = max(50, min(width, 132)), Text()
    for at, line in enumerate(view.answer):
        said = wrap_text(line.text, room, first=f"{line.topic:<{TOPICS}}", rest=" " * TOPICS)
        text.append("\n" if at else "").append(said[:TOPICS], style="bold").append(said[TOPICS:])
    return text


def _next(view: View, width: int) -> RenderableType | None:
    """List everything to do, with commands to copy."""
    said = [(one.text, one.command) for one in view.advice]
    if view.has_gpu:
        said.append(("A page to share:", f"tracekit analyze {view.asked or 'PATH…'} -o report.html"))
    lines: list[RenderableType] = []
    for n, (text, command) in enumerate(said, 1):
        lines.append(Text(wrap_text(text, max(40, width), first=f"  {n}. ", rest="     ")))
        if command:
            lines.append(command_line(command))
    return Group(*lines)


def _definitions(view: View, width: int) -> Text:
    lines = [wrap_text(f"{name} = {meaning}", width, first="  ", rest="    ") for name, meaning in view.definitions]
    return Text("\n".join(lines), style="dim")


def _over(view: View) -> str:
    """Return what a table is over: every rank, and every step where there are several."""
    count = len(view.steps.rows) + view.steps.more if view.steps else 1
    ranks = "all ranks" if len(view.analysis.rank_results) > 1 else "1 rank"
    return f"{ranks}, {counted(count, 'step')}" if count > 1 else ranks


def _budget_title(view: View) -> str:
    steps = "steps" if view.steps else "step"
    of = "each rank's span, worst first" if len(view.analysis.rank_results) > 1 else "the rank's span"
    return f"Where the {steps} went (shares of {of})"


def _bubble_title(view: View) -> str:
    return "Bubble: idle and exposed pipeline waiting" if view.pipelined else "Idle: why the GPU ran nothing"


def _by_title(view: View) -> str:
    return view.by.title if view.by is not None else ""


Section = Callable[[View, int], RenderableType | None]
SECTIONS: tuple[tuple[str | Callable[[View], str], Section], ...] = (
    (_budget_title, budget),
    ("Over the ranks (shares of each rank's span)", many_ranks),
    (lambda view: f"Compute ({_over(view)})", compute),
    (
        lambda view: f"Communication and copies: what compute hides ({_over(view)})",
        exposure,
    ),
    (lambda view: f"What hides what ({_over(view)})", hiders),
    (lambda view: f"What hiding communication costs the compute beside it ({_over(view)})", hiding),
    (_bubble_title, bubbles),
    (lambda view: f"What the host did instead of launching (launch-bound idle, {_over(view)})", instead),
    ("Against its ideal schedule", render_schedule),
    ("Micro-batches overlap: what compute hides, by phase", unnamed),
    ("Critical path: what the step had to wait for, in order of time", critical),
    (_by_title, by_rows),
    (lambda view: f"How fast products ran ({_over(view)}; over their own time)", products),
    ("How fast communication ran (bytes over transfer, waiting apart)", communication),
    ("Experts: what each rank receives in the forward's dispatches", experts),
    ("Memory: the most each rank held (GB, fullest first)", memory),
    ("Whom the others wait for", stragglers),
    ("Steps", spread),
    ("Copies", copies),
    ("Weight reload", reload),
    ("Warnings", warnings),
    ("What to do next", _next),
)
