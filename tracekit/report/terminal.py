"""The answer in the terminal: where the step went, what was hidden, who waited, and what to do next."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit.analysis import Analysis
from tracekit.metrics.reload import Reload
from tracekit.report.terminal_budget import budget, compute, exposure, hiders, ms, percent
from tracekit.report.terminal_fleet import many_ranks
from tracekit.report.terminal_sections import bubbles, copies, reload, spread, stragglers, warnings

DEFINITIONS = (
    ("U(X)", "the union of X's intervals on one rank's GPU: never a sum of durations"),
    ("span", "start of the first to end of the last GPU event launched in the steps analyzed"),
    ("compute", "U(forward … optimizer, other); shares are of the span"),
    ("hidden", "|U(X) ∩ U(compute)| / |U(X)|"),
    ("exposed", "|U(X) − U(compute)|; two labels at once: charged to the first. compute + exposed + idle = span"),
    ("wait", "own duration − shortest duration among the ranks of the same operation"),
    ("bubble", "(idle + exposed wait of pp_comm) / span"),
)


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
    ranks = f"{count} of {world} ranks" if world and world != count else f"{count} rank{'s' * (count != 1)}"
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
    draw = importlib.import_module("tracekit.report.terminal_schedule").render_schedule
    drawn: RenderableType = draw(analysis, width)
    return drawn


def _next(analysis: Analysis, width: int) -> RenderableType | None:
    lines = [
        Text(textwrap.fill(f"{n}. {line}", max(40, width - 2), initial_indent="  ", subsequent_indent="     "))
        for n, line in enumerate(advice(analysis), 1)
    ]
    return Group(*lines)


def advice(analysis: Analysis) -> list[str]:
    """Say what to do next, the most time first; each line names the figure it rests on."""
    total = analysis.total
    span = total.budget.span_ns
    if not span:
        return ["record with CUDA activities on; `tracekit doctor` says how"]
    found: list[tuple[float, str]] = []
    worst = max(total.budget.exposed_ns.items(), key=lambda item: item[1], default=None)
    if analysis.reload is not None:
        found.append((1.0, _reload_advice(analysis.reload)))
    elif worst is not None and worst[1] > 0.05 * span:
        label, ns = worst
        wait = total.wait_ns.get(label)
        known = total.label_ns.get(label, 0)
        text = f"{label} is exposed for {percent(ns, span)} of the span: overlap it with compute"
        if wait is not None and known and wait > known / 2:
            text = (
                f"{label} is exposed for {percent(ns, span)} of the span, {percent(wait, known)} of its time waiting: "
            )
            text += "balance the ranks (see whom the others wait for) before speeding up the transfer"
        found.append((ns / span, text))
    bound = sum(one.idle_causes.get("launch_bound", 0) for one in analysis.ranks)
    if total.idle_known and bound > 0.02 * span:
        text = f"the GPU is idle {percent(bound, span)} of the span because the host launches late: CUDA graphs, "
        found.append((bound / span, text + "fewer small kernels, or less Python in the step"))
    other = total.label_ns.get("other", 0)
    if other > 0.01 * span:
        text = f"{percent(other, span)} of the span has no label: `--explain other` lists it, a rules file names it"
        found.append((other / span, text))
    if total.lower_bound:
        found.append((0.0, "add the other ranks' traces: waiting is only known from both sides"))
    lines = [text for _, text in sorted(found, reverse=True)]
    if analysis.schedule is not None:
        lines.append("`--what-if` ranks the schedules this run could use, with its own measured times")
    return [*lines, f"a page to share: tracekit analyze {_asked(analysis)} -o report.html"]


def _asked(analysis: Analysis) -> str:
    """Name the input again, short: one path, or the folder that holds them all."""
    paths = dict.fromkeys(analysis.paths)
    folders = {path.rpartition("/")[0] for path in paths}
    if len(paths) == 1:
        return next(iter(paths))
    return (folders.pop() or ".") if len(folders) == 1 else "PATH…"


def _reload_advice(found: Reload) -> str:
    hidden = found.hidden["reload_under_broadcast"].mean()
    share = hidden if isinstance(hidden, float) else None
    text = (
        f"only {percent(share)} of reload runs under a broadcast: with two buffers broadcast g+1 runs beside reload g"
    )
    if found.ideal_ns is None:
        return text
    return f"{text}; {ms(found.measured_ns)} ms could be {ms(found.ideal_ns)} ms"


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
    ("Bubble: idle and exposed pipeline waiting", bubbles),
    ("Against its ideal schedule", _schedule),
    ("Whom the others wait for", stragglers),
    ("Steps", spread),
    ("Copies", copies),
    ("Weight reload", reload),
    ("Warnings", warnings),
    ("What to do next", _next),
)
