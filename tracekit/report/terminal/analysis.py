"""The answer in the terminal: where the step went, what was hidden, who waited, and what to do next."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis
from tracekit.report.advice import DEFINITIONS, advice, asked
from tracekit.report.terminal.budget import budget, compute, exposure, hiders
from tracekit.report.terminal.fleet import many_ranks
from tracekit.report.terminal.rates import communication, experts, products
from tracekit.report.terminal.sections import bubbles, copies, reload, spread, stragglers, warnings


def render(analysis: Analysis, console: Console | None = None) -> None:
    """Print the whole report."""
    out = console or Console(highlight=False)
    out.print(header(analysis))
    for title, build in SECTIONS:
        body = build(analysis, out.width)
        if body is not None:
            out.print()
            out.print(Text(title, style="bold"))
            out.print(body)
    out.print()
    out.print(_definitions())


def header(analysis: Analysis) -> Text:
    """One line that says what was analyzed."""
    count, world = len(analysis.ranks), analysis.world_size
    ranks = f"{count} of {world} ranks" if world and world != count else counted(count, "rank")
    steps = sorted({step for one in analysis.ranks for step in one.steps})
    named = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}" if steps else "no step marks"
    devices = sorted({device for source in analysis.sources for device in source.devices})
    total = analysis.total
    line = Text.assemble(("tracekit ", "bold"), f"{ranks} · {named}")
    if devices:
        line.append(f" · {devices[0]}")
    if total.budget.span_ns:
        share = total.budget.compute_ns / total.budget.span_ns
        line.append(f" · compute runs {percent(share)} of the time")
        if total.bubble_fraction is not None:
            line.append(f", bubble {'at least ' if total.lower_bound else ''}{percent(total.bubble_fraction)}")
    return line


def _schedule(analysis: Analysis, width: int) -> RenderableType | None:
    """Draw the comparison with the ideal schedule, where there is one."""
    if analysis.schedule is None:
        return None
    draw = importlib.import_module("tracekit.report.terminal.schedule").render_schedule
    drawn: RenderableType = draw(analysis, width)
    return drawn


def _next(analysis: Analysis, width: int) -> RenderableType | None:
    said = advice(analysis)
    if analysis.total.budget.span_ns:
        said.append(f"a page to share: tracekit analyze {asked(analysis) or 'PATH…'} -o report.html")
    lines = [
        Text(textwrap.fill(f"{n}. {line}", max(40, width - 2), initial_indent="  ", subsequent_indent="     "))
        for n, line in enumerate(said, 1)
    ]
    return Group(*lines)


def _definitions() -> Padding:
    lines = Text(style="dim")
    for n, (name, meaning) in enumerate(DEFINITIONS):
        lines.append(("\n" if n else "") + f"{name} = {meaning}")
    return Padding(lines, (0, 0, 0, 2), expand=False)


Section = Callable[[Analysis, int], RenderableType | None]
SECTIONS: Iterable[tuple[str, Section]] = (
    ("Where the step went (shares of each rank's span, worst first)", budget),
    ("Over the ranks (shares of each rank's span)", many_ranks),
    ("Compute (all ranks)", compute),
    ("Communication and copies: what compute hides (all ranks, most exposed first)", exposure),
    ("What hides what (all ranks)", hiders),
    ("Why the GPU was idle or waited for its pipeline", bubbles),
    ("Against its ideal schedule", _schedule),
    ("How fast products ran (all ranks; over their own time)", products),
    ("How fast communication ran (bytes over transfer, waiting apart)", communication),
    ("Experts: what each rank receives in the forward's dispatches", experts),
    ("Whom the others wait for", stragglers),
    ("Steps", spread),
    ("Copies", copies),
    ("Weight reload", reload),
    ("Warnings", warnings),
    ("What to do next", _next),
)
