"""The first screen: a line that says what ran and how long a step takes, a picture, and what to do first.

About twelve lines at 80 columns: the step as one bar, the schedule of a pipeline or the phases of an RL loop in a line,
up to three findings with what each would save, and one line about how sure that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from tracekit._util.text import counted, percent, terminal
from tracekit.findings import Finding
from tracekit.metrics.budget import Budget
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.text import short_ms, size, wrap_text
from tracekit.report.view import View
from tracekit.report.view.answer import unusual_steps
from tracekit.schema import GAP_CAUSES

MAX_FINDINGS = 3
"""Findings that the first screen shows."""
BAR_LENGTH = 32
"""Characters of the bar at 80 columns; a narrower terminal has a shorter one."""
MIN_BAR_LENGTH = 16
"""Characters from which a bar stands beside its words; else it has a line of its own."""
MAX_EXPOSED_LABELS = 2
"""Exposed labels that are named beside the bar; the others are summed."""
MIN_SHARE_NAMED = 0.005
"""Share of the step from which a part of it is named."""
FINDING_INDENT = 22
"""Columns before a finding's text: its number, saving and share."""
MAX_CLOCK_ERROR_SHARE = 0.01
"""Error of the clocks, as a share of the step, up to which they agree."""
UNICODE_BLOCKS = {"compute": "█", "exposed": "▒", "idle": "░", "unrecorded": "┄"}
ASCII_BLOCKS = {"compute": "#", "exposed": "=", "idle": ".", "unrecorded": "?"}


def first_screen(view: View, width: int, *, unicode: bool = True, page_written: bool = False) -> list[Text]:
    """Return the lines of the first screen, at most *width* columns wide."""
    lines = [headline(view, width), *bar_lines(view, width, unicode=unicode), *_situation(view, width)]
    findings = _first_findings(view)
    if not view.role_advice and not findings:
        lines.append(Text("  nothing to gain that this recording shows", style="bold"))
    if view.not_wrong and not view.role_advice:
        lines += _wrapped(view.not_wrong, width, first="  ", rest="  ", style="dim")
    for text in view.role_advice[:MAX_FINDINGS]:
        lines += _wrapped(text, width, first="  • ", rest="    ")
    if not view.role_advice:
        for number, finding in findings:
            lines += finding_lines(finding, number, width)
    lines += closing_line(view, width, page_written=page_written)
    return lines


def _first_findings(view: View) -> list[tuple[int, Finding]]:
    """Return the findings of the first screen with their numbers: the first of all, and the first about memory."""
    numbered = list(enumerate(view.findings, start=1))
    about_memory = [pair for pair in numbered[MAX_FINDINGS:] if pair[1].cost_bytes]
    return [*numbered[:MAX_FINDINGS], *about_memory[:1]]


def brief_screen(view: View, width: int, *, unicode: bool = True) -> list[Text]:
    """Return five lines: what ran, where the step goes, the first finding and its advice, and how sure it is."""
    bar = bar_lines(view, width, unicode=unicode)[:1]
    if view.role_advice:
        what, advice = view.role_advice[0], ""
    elif view.findings:
        first = view.findings[0]
        what, advice = f"{saving(first)}  {first.text}", first.advice
    else:
        what, advice = "nothing to gain that this recording shows", ""
    texts = [Text(cut_text(what, width)), Text(cut_text(advice, width), style="dim")]
    return [headline(view, width), *bar, *texts, Text(cut_text(f"sure: {'; '.join(certainty(view))}", width))]


def headline(view: View, width: int) -> Text:
    """Return what ran on what, and the step time."""
    step = view.analysis.step
    unit = "a step" if step.is_marked else "in all (no step marks)"
    device = view.devices[0].replace("NVIDIA ", "").replace("multiprocessors", "SMs") if view.devices else ""
    facts = {
        "name": terminal(view.run_name),
        "ranks": view.ranks,
        "steps": counted(len(step.per_step), "step") if step.is_marked and step.per_step else "",
        "device": terminal(device),
        "time": f"{short_ms(step.time_ns)} {unit}" if step.time_ns is not None else "step time unknown",
    }
    # The step time is never cut off: what matters least goes first.
    for name in ("", "device", "steps", "name"):
        facts.pop(name, None)
        line = " · ".join(fact for fact in facts.values() if fact)
        if len(line) <= width:
            return Text(line, style="bold")
    return Text(f"{facts['time']} · {cut_text(facts['ranks'], width - len(facts['time']) - 3)}", style="bold")


def bar_lines(view: View, width: int, *, unicode: bool = True) -> list[Text]:
    """Return the step as a bar with its parts beside it; steps that stand out in a second line."""
    budget = view.analysis.step.budget
    parts = budget_parts(budget, idle_known=view.analysis.total.idle_known)
    words = "  ".join(f"{name} {percent(ns, budget.span_ns, digits=0)}" for name, _, ns, _ in parts)
    blocks = UNICODE_BLOCKS if unicode else ASCII_BLOCKS
    beside = width - len(words) - 2
    if beside >= MIN_BAR_LENGTH:
        bar = _bar(parts, budget.span_ns, min(BAR_LENGTH, beside), blocks)
        lines = [bar.append("  ").append(words)]
    else:
        lines = [_bar(parts, budget.span_ns, min(BAR_LENGTH, width), blocks), *_wrapped(words, width)]
    if view.analysis.step.unusual:
        lines += _wrapped(unusual_steps(view.analysis.step), width)
    return lines


Part = tuple[str, str, int, str]
"""Name, kind of block, nanoseconds and colour of a part of the step."""


def budget_parts(budget: Budget, *, idle_known: bool = True) -> list[Part]:
    """Return the parts of a step that are worth naming, exposed labels longest first.

    >>> [part[0] for part in budget_parts(Budget(100, 60, {"dp_comm": 30, "pp_comm": 4}, 6))]
    ['compute', 'dp_comm exposed', 'pp_comm exposed', 'idle']
    """
    exposed = sorted(((ns, label) for label, ns in budget.exposed_ns.items() if ns), reverse=True)
    parts: list[Part] = [("compute", "compute", budget.compute_ns, COMPUTE_COLOUR)]
    for ns, label in exposed[:MAX_EXPOSED_LABELS]:
        parts.append((f"{label} exposed", "exposed", ns, LABEL_COLOURS[label]))
    rest_ns = sum(ns for ns, _ in exposed[MAX_EXPOSED_LABELS:])
    if rest_ns:
        parts.append(("other exposed", "exposed", rest_ns, LABEL_COLOURS["comm"]))
    if budget.unrecorded_ns:
        parts.append(("not recorded", "unrecorded", budget.unrecorded_ns, UNRECORDED_COLOUR))
    parts.append(("idle" if idle_known else "idle or not recorded", "idle", budget.idle_ns, IDLE_COLOUR))
    return [part for part in parts if part[2] >= MIN_SHARE_NAMED * budget.span_ns]


def _bar(parts: Sequence[Part], span_ns: int, length: int, blocks: dict[str, str]) -> Text:
    """Return the parts as blocks, each as long as its share."""
    text = Text()
    drawn, reached_ns = 0, 0
    for _, kind, ns, colour in parts:
        reached_ns += ns
        until = round(length * reached_ns / max(span_ns, 1))
        text.append(blocks[kind] * (until - drawn), style=colour)
        drawn = until
    return text.append(" " * (length - drawn))


def _situation(view: View, width: int) -> Iterator[Text]:
    """Yield a line about the schedule of a pipeline, or the phases of an RL loop."""
    for sentence in view.situation:
        yield from _wrapped(sentence, width)
    if view.memory_line is not None:
        yield from _wrapped(view.memory_line, width)
    schedule = view.analysis.schedule
    if schedule is None:
        return
    head = schedule.head
    facts = f"{schedule.name}: schedule span {short_ms(head.measured_ns)}, its ideal {short_ms(head.ideal_ns)}"
    gap_ns = {cause: ns for cause, ns in (schedule.gap_ns or {}).items() if ns > 0 and cause in GAP_CAUSES}
    if gap_ns:
        cause = max(gap_ns, key=lambda name: gap_ns[name])
        facts += f"; most of the difference: {GAP_CAUSES[cause]} ({short_ms(gap_ns[cause])})"
    yield from _wrapped(facts, width)


def finding_lines(finding: Finding, number: int, width: int) -> list[Text]:
    """Return a finding: its number, saving, share and text, and below it the advice."""
    head = f"{number:>3}  {saving(finding)}  "
    indent = " " * min(FINDING_INDENT, max(width // 3, 4))
    text = _wrapped(finding.text, width, first=f"{head:<{len(indent)}}", rest=indent)
    advice = _wrapped(finding.advice, width, first=indent, rest=indent, style="dim")
    return [*text, *advice]


def saving(finding: Finding) -> str:
    """Return what a finding saves and its share of the step; what it costs where no saving is predicted.

    >>> saving(Finding(code="host_sync", cost_ns=4_000_000, share=0.2, saves_ns=3_000_000, evidence={"step_ns": 1}))
    '−3.00 ms   15 %'
    >>> saving(Finding(code="leak", cost_ns=0, cost_bytes=8_388_608, share=0.0))
    '  8.4 MB       '
    """
    if finding.cost_bytes and not finding.cost_ns:
        return f"{size(finding.cost_bytes):>8} {'':>6}"
    ns = finding.cost_ns if finding.saves_ns is None else finding.saves_ns
    sign = " " if finding.saves_ns is None else "−"
    share = finding.share * ns / finding.cost_ns if finding.cost_ns else 0.0
    time = f"{sign}{short_ms(ns)}"
    return f"{time:>8} {percent(share, digits=0):>6}"


def closing_line(view: View, width: int, *, page_written: bool) -> list[Text]:
    """Return how sure the figures are, and where there is more."""
    more = ["--full", "--explain 1", *([] if page_written else ["-o report.html"])]
    sure, rest = f"  sure: {'; '.join(certainty(view))}", f"more: {', '.join(more)}"
    if len(sure) + len(rest) + 3 <= width:
        return [Text(f"{sure}{rest:>{width - len(sure)}}", style="dim")]
    return [
        *_wrapped(sure.strip(), width, first="  ", rest="    ", style="dim"),
        *_wrapped(rest, width, first="  ", rest="    ", style="dim"),
    ]


def certainty(view: View) -> list[str]:
    """Return what the figures rest on: how alike the steps are, how well clocks agree, and warnings."""
    analysis = view.analysis
    usual = [each.time_ns for each in analysis.step.usual]
    facts = []
    if len(usual) > 1:
        spread = (max(usual) - min(usual)) / max(analysis.step.time_ns or 0, 1)
        facts.append(f"{counted(len(usual), 'step')} within {percent(spread, digits=0)}")
    elif analysis.step.is_marked:
        facts.append("one step")
    if len(analysis.rank_results) > 1:
        error_ns = analysis.clocks.residual_ns
        if error_ns is None:
            facts.append("clocks not compared")
        elif error_ns <= MAX_CLOCK_ERROR_SHARE * (analysis.step.time_ns or 0):
            facts.append("clocks agree")
        else:
            facts.append(f"clocks known to {short_ms(error_ns)}")
    if view.warnings:
        facts.append(counted(len(view.warnings), "warning"))
    return facts or ["no step marks"]


def cut_text(text: str, width: int) -> str:
    """Return text that fits into *width* columns, with … where it was cut.

    >>> cut_text("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def _wrapped(text: str, width: int, *, first: str = "", rest: str = "", style: str = "") -> list[Text]:
    """Return text as lines of at most *width* columns."""
    return [Text(line, style=style) for line in wrap_text(text, width, first=first, rest=rest).split("\n")]
