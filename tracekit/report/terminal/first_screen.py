"""The first screen: a line that says what ran and how long a step takes, a picture, and what to do first.

About twelve lines at 80 columns: the step as one bar, the schedule of a pipeline or the phases of
an RL loop in a line, up to three findings with what each would save, and one line about how sure
that is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import polars as pl
from rich.text import Text

from tracekit._util.text import counted, percent, short_ms, size, terminal
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget
from tracekit.documents.findings import Finding
from tracekit.documents.roles import Iteration
from tracekit.metrics.process_phases import TRAIN, WEIGHT_SYNC
from tracekit.report.findings import (
    finding_title,
    first_findings,
    is_at_most,
    is_of_one_iteration,
    remarks_on,
)
from tracekit.report.notices import telling_notices
from tracekit.report.palette import (
    COMPUTE_COLOUR,
    IDLE_COLOUR,
    LABEL_COLOURS,
    UNRECORDED_COLOUR,
)
from tracekit.report.terminal.table import stacked_bar
from tracekit.report.text import wrap_text
from tracekit.report.view import View
from tracekit.report.view.answer import origin_of_free_step, times_of_kinds, unusual_steps
from tracekit.report.view.top import MAX_SPREAD_OF_ALIKE_STEPS
from tracekit.report.words import WORDS
from tracekit.roles.view import phase_times
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, GAP_CAUSES

BAR_LENGTH = 32
"""Characters of the bar at 80 columns; a narrower terminal has a shorter one."""
MIN_LENGTH_OF_BAR_BESIDE_WORDS = 16
"""Characters from which a bar stands beside its words; else it has a line of its own."""
MAX_LABELS_BESIDE_BAR = 3
"""Exposed labels that are named beside the bar; the others are summed."""
NAMES_BESIDE_BAR = {"memory": "copies"}
"""Names of labels beside the bar, where the label alone reads like something else."""
REST = "the rest"
"""What is not named of the exposed labels, or of the parts of the model."""
MIN_SHARE_NAMED = 0.005
"""Share of the step from which a part of it is named."""
MIN_COMPUTE_SHARE_TO_SPLIT = 0.8
"""Share of the step from which compute is split into the parts of the model."""
MIN_MODULE_SHARE = 0.02
"""Share of compute from which a part of the model is named."""
MAX_MODULES = 4
"""Parts of the model that are named, those with most time."""
MODEL_OF_GPU = r"(?:RTX |GTX )?[A-Z]*[0-9]+[A-Za-z]*"
"""Model in the name of a GPU, the shortest that says what it is."""
MAX_RATIO_OF_ITERATIONS = 1.25
"""Longest over shortest iteration of an RL loop from which both are stated instead of the mean."""
MAX_TITLES = 3
"""Further findings up to which they are named by their titles."""
CUT_MARK = "…"
"""Stands where a text is cut."""
INDENT = "    "
"""Spaces before the further lines of a finding."""
MAX_END_DIFFERENCE_SHARE = 0.01
"""Difference between the ends of one operation on several ranks (median), as a share of the step,
up to which times that compare ranks have three digits."""
UNICODE_BLOCKS = {
    "compute": "█",
    "exposed": "▒",
    "phase": "▓",
    "weight_update": "▞",
    "idle": "░",
    "unrecorded": "┄",
}
ASCII_BLOCKS = {
    "compute": "#",
    "exposed": "=",
    "phase": "%",
    "weight_update": "+",
    "idle": ".",
    "unrecorded": "?",
}


def first_screen(
    view: View,
    width: int,
    *,
    unicode: bool = True,
    page_written: bool = False,
    in_notebook: bool = False,
) -> list[Text]:
    """Return the lines of the first screen, at most *width* columns wide.

    In a notebook, where more is folded below it, no options of the command line are suggested.
    """
    lines = [
        headline(view, width),
        *bar_lines(view, width, unicode=unicode),
        *_situation(view, width),
    ]
    findings = first_findings(view.findings)
    if findings:
        heading = _findings_heading(findings, view.analysis)
        lines += _wrapped(heading, width, style="bold")
        advised: dict[str, int] = {}
        for number, finding in findings:
            same_as = advised.setdefault(finding.advice, number)
            lines += finding_lines(
                finding,
                number,
                width,
                same_as=None if same_as == number else same_as,
                budget=view.analysis.step.shown_budget,
            )
    else:
        lines.append(Text("nothing to gain that this recording shows", style="bold"))
    lines += certainty_lines(view, width)
    lines += warning_lines(view, width)
    if not in_notebook:
        lines += hint_lines(view, width, page_written=page_written, shown=findings)
    return lines


def _findings_heading(findings: Sequence[tuple[int, Finding]], analysis: Analysis) -> str:
    """Return what the columns before the findings hold."""
    per = "per step" if analysis.step.is_marked else "of the recording"
    if analysis.role_results.iterations:
        per = "per iteration"
    bounds = " (≤: at most)" if any(is_at_most(finding) for _, finding in findings) else ""
    if len(findings) == 1:
        return f"What to do (→), and what it saves {per}{bounds}:"
    return f"What to do (→), best first; saved {per} by each alone{bounds}:"


def _time_of_iterations(iterations: Sequence[Iteration]) -> str:
    """Return how long the iterations of an RL loop take: the mean, or from and to where they differ much.

    >>> one, other = (Iteration(0, 0, ms * 1_000_000, {}, (), None) for ms in (1150, 3130))
    >>> _time_of_iterations([one, other]), _time_of_iterations([one, one])
    ('1.15 s to 3.13 s', '1.15 s')
    """
    times_ns = [iteration.end_ns - iteration.start_ns for iteration in iterations]
    if max(times_ns) > MAX_RATIO_OF_ITERATIONS * min(times_ns):
        return f"{short_ms(min(times_ns))} to {short_ms(max(times_ns))}"
    return short_ms(sum(times_ns) / len(times_ns))


def brief_screen(view: View, width: int, *, unicode: bool = True) -> list[Text]:
    """Return five lines: what ran, where the step goes, the first finding and its advice, and how sure it is."""
    bar = bar_lines(view, width, unicode=unicode)[:1]
    if view.findings:
        first = view.findings[0]
        what = f"{' '.join(saving(first).split())}: {first.text}"
        advice = f"→ {first.advice}"
    else:
        what = "nothing to gain that this recording shows"
        advice = ""
    texts = [Text(cut_text(what, width)), Text(cut_text(advice, width), style="dim")]
    sure = certainty(view)
    if warnings := telling_notices(view.warnings):
        sure.append(f"{counted(len(warnings), 'warning')} (--full)")
    return [
        headline(view, width),
        *bar,
        *texts,
        Text(cut_text(f"how sure: {'; '.join(sure)}", width)),
    ]


def headline(view: View, width: int) -> Text:
    """Return what ran on what, and the step time."""
    step = view.analysis.step
    unit = "a step" if step.is_marked else "in all (no step marks)"
    time_ns: float | None = step.shown_ns
    steps = counted(len(step.per_step), "step") if step.is_marked and step.per_step else ""
    iterations = view.analysis.role_results.iterations
    time = f"{short_ms(time_ns)} {unit}" if time_ns is not None else "step time unknown"
    if iterations:
        steps = counted(len(iterations), "iteration")
        time = f"{_time_of_iterations(iterations)} an iteration"
    if step.profiler_ns and not iterations:
        time = f"{time} without the profiler"
    if view.analysis.step_kinds:
        time = times_of_kinds(view.analysis.step_kinds, step)
    device = (
        view.devices[0].replace("NVIDIA ", "").replace("multiprocessors", "SMs")
        if view.devices
        else ""
    )
    facts = {
        "name": terminal(view.run_name),
        "ranks": view.ranks,
        "steps": steps,
        "device": terminal(device),
        "time": time,
    }
    # The step time is never cut off: what matters least, or is known to who reads it, goes first. A name
    # that is too long beside the least goes alone.
    short_device = terminal(device.partition(" (")[0])
    model = re.search(MODEL_OF_GPU, short_device)
    shortest_device = short_device if model is None else model[0]
    without_steps = {"device": short_device, "steps": ""}
    without_name = {"device": short_device, "name": ""}
    shorter: tuple[dict[str, str], ...] = (
        {},
        {"device": short_device},
        without_steps,
        without_name,
        without_steps | without_name,
        without_steps | without_name | {"device": shortest_device},
        without_steps | without_name | {"device": ""},
    )
    for instead in shorter:
        line = " · ".join(fact for fact in (facts | instead).values() if fact)
        if len(line) <= width:
            return Text(line, style="bold")
    return Text(
        f"{facts['time']} · {cut_text(facts['ranks'], width - len(facts['time']) - 3)}",
        style="bold",
    )


def bar_lines(view: View, width: int, *, unicode: bool = True) -> list[Text]:
    """Return the step as a bar with its parts beside it; steps that stand out in a second line.

    The bar is the step that the first line states: the one without the profiler where that is known.
    A run whose ranks have several processes has its iterations drawn, by phase.
    """
    step = view.analysis.step
    budget = step.shown_budget
    parts = budget_parts(budget, idle_known=view.analysis.total.idle_known)
    span_ns = budget.span_ns
    phases = phase_times(view.analysis)
    if phases:
        parts = _phase_parts(phases)
        span_ns = round(sum(phases.values()))
    words = parts_in_words(parts, span_ns)
    blocks = UNICODE_BLOCKS if unicode else ASCII_BLOCKS
    beside = width - len(words) - 2
    if beside >= MIN_LENGTH_OF_BAR_BESIDE_WORDS:
        bar = _bar(parts, span_ns, min(BAR_LENGTH, beside), blocks)
        lines = [bar.append("  ").append(words)]
    else:
        lines = [_bar(parts, span_ns, min(2 * BAR_LENGTH, width), blocks)]
        lines += [Text(line) for line in textwrap.wrap(words.replace("  ", " · "), width)]
    if not phases and (origin := origin_of_free_step(step)):
        lines += _wrapped(origin, width)
    if (step.unusual or step.in_turn_ns) and not view.analysis.step_kinds:
        clock = "as recorded, " if step.profiler_ns else ""
        lines += _wrapped(f"{clock}{unusual_steps(step)}", width)
    return lines


Part = tuple[str, str, int, str]
"""Name, kind of block, nanoseconds and colour of a part of the step."""


def budget_parts(budget: Budget, *, idle_known: bool = True) -> list[Part]:
    """Return the parts of a step that are worth naming, exposed labels longest first.

    >>> [part[0] for part in budget_parts(Budget(compute_ns=60, exposed_ns={"dp_comm": 30, "pp_comm": 4}, idle=6))]
    ['compute', 'dp_comm exposed', 'pp_comm exposed', 'idle']
    """
    exposed = sorted(((ns, label) for label, ns in budget.exposed_ns.items() if ns), reverse=True)
    parts: list[Part] = [("compute", "compute", budget.compute_ns, COMPUTE_COLOUR)]
    for ns, label in exposed[:MAX_LABELS_BESIDE_BAR]:
        name = NAMES_BESIDE_BAR.get(label, label)
        parts.append((f"{name} exposed", "exposed", ns, LABEL_COLOURS[label]))
    rest_ns = sum(ns for ns, _ in exposed[MAX_LABELS_BESIDE_BAR:])
    if rest_ns:
        parts.append((f"{REST} exposed", "exposed", rest_ns, LABEL_COLOURS["comm"]))
    if budget.unrecorded_ns:
        parts.append(("not recorded", "unrecorded", budget.unrecorded_ns, UNRECORDED_COLOUR))
    parts.append(
        ("idle" if idle_known else "idle or not recorded", "idle", budget.idle_ns, IDLE_COLOUR)
    )
    return [part for part in parts if part[2] >= MIN_SHARE_NAMED * budget.recorded_ns]


def _phase_parts(phases: Mapping[str, float]) -> list[Part]:
    """Return the phases of an iteration as parts of a bar: training is drawn as compute, idle as idle."""
    kinds = {TRAIN: "compute", WEIGHT_SYNC: "weight_update", "idle": "idle"}
    colours = {TRAIN: COMPUTE_COLOUR, "idle": IDLE_COLOUR}
    parts: list[Part] = []
    for phase, ns in phases.items():
        colour = colours.get(phase, LABEL_COLOURS["broadcast"])
        parts.append((WORDS.phases[phase], kinds.get(phase, "phase"), round(ns), colour))
    return [part for part in parts if part[2]]


def parts_in_words(parts: Sequence[Part], span_ns: int) -> str:
    """Return the parts with their shares; labels that are exposed share that word.

    >>> parts_in_words(budget_parts(Budget(compute_ns=60, exposed_ns={"dp_comm": 30, "pp_comm": 4}, idle=6)), 100)
    'compute 60 %  exposed: dp_comm 30 %, pp_comm 4 %  idle 6 %'
    >>> parts_in_words(budget_parts(Budget(compute_ns=60, exposed_ns={"dp_comm": 34}, idle=6)), 100)
    'compute 60 %  dp_comm exposed 34 %  idle 6 %'

    What is not recorded is left out of the shares.

    >>> parts = budget_parts(Budget(compute_ns=9_000_000, exposed_ns={}, idle=1_000_000, unrecorded_ns=40_000_000))
    >>> parts_in_words(parts, 50_000_000)
    'compute 90 %  idle 10 %  not recorded +40.0 ms'
    """
    span_ns -= sum(ns for _, kind, ns, _ in parts if kind == "unrecorded")
    exposed = [part for part in parts if part[1] == "exposed"]
    texts: list[str] = []
    for part in parts:
        name, kind, ns, _ = part
        if kind == "unrecorded":
            continue
        share = percent(ns, span_ns, digits=0)
        if part in exposed and len(exposed) > 1:
            if part is exposed[0]:
                labels = []
                for name, _, ns, *_ in exposed:
                    label = name.removesuffix(" exposed")
                    labels.append(f"{label} {percent(ns, span_ns, digits=0)}")
                texts.append(f"exposed: {', '.join(labels)}")
            continue
        texts.append(f"{name} {share}")
    for name, kind, ns, _ in parts:
        if kind == "unrecorded":
            texts.append(f"{name} +{short_ms(ns)}")
    return "  ".join(texts)


def _bar(parts: Sequence[Part], span_ns: int, length: int, blocks: dict[str, str]) -> Text:
    """Draw the parts of the step, and nothing for what is too short to be named."""
    shares = [(ns / max(span_ns, 1), blocks[kind], colour) for _, kind, ns, colour in parts]
    bar = stacked_bar(shares, length)
    return bar.append(" " * (length - len(bar)))


def _situation(view: View, width: int) -> Iterator[Text]:
    """Yield a line about the schedule of a pipeline, or the phases of an RL loop."""
    for sentence in view.situation:
        yield from _wrapped(sentence, width)
    if by_module := compute_by_module(view):
        yield from _wrapped(by_module, width)
    if view.memory_line is not None:
        yield from _wrapped(view.memory_line, width)
    schedule = view.analysis.schedule
    if schedule is None:
        return
    head = schedule.head
    digits = significant_digits(view)
    measured = short_ms(head.measured_ns, digits)
    ideal = short_ms(head.ideal_ns, digits)
    clock = " as recorded" if view.analysis.step.profiler_ns else ""
    facts = (
        f"{schedule.possible_names} pipeline: {measured} from start to end{clock}; without any delay it "
        f"would take {ideal}"
    )
    gap_ns = {}
    for gap_cause, ns in (schedule.gap_ns or {}).items():
        if ns > 0 and gap_cause in GAP_CAUSES:
            gap_ns[gap_cause] = ns
    cause_is_first = any(finding.code == "schedule_gap" for finding in view.findings[:1])
    if gap_ns and not cause_is_first:
        cause = max(gap_ns, key=lambda name: gap_ns[name])
        facts += f"; most is lost to {GAP_CAUSES[cause]} ({short_ms(gap_ns[cause], digits)})"
    yield from _wrapped(facts, width)


def significant_digits(view: View) -> int:
    """Return with how many digits times that compare ranks are shown: two where clocks are not known well."""
    return 3 if _operations_end_together(view) else 2


def compute_by_module(view: View) -> str:
    """Return which parts of the model a run computes that mostly computes.

    Empty for others, and if it is unknown.
    """
    budget = view.analysis.step.shown_budget
    if (
        view.analysis.role_results.roles
        or budget.compute_ns < MIN_COMPUTE_SHARE_TO_SPLIT * budget.span_ns
    ):
        return ""
    kernels = view.analysis.tables["kernels"].filter(
        ~pl.col("label").is_in([*COMMUNICATION_LABELS, *COPY_LABELS])
    )
    by_module = (
        kernels.group_by("module")
        .agg(pl.col("ns").sum())
        .sort("ns", "module", descending=[True, False])
    )
    total_ns = float(by_module["ns"].sum())
    named = (
        by_module.drop_nulls("module")
        .head(MAX_MODULES)
        .filter(pl.col("ns") >= MIN_MODULE_SHARE * total_ns)
    )
    shares = [
        f"{terminal(name)} {percent(ns, total_ns, digits=0)}" for name, ns in named.iter_rows()
    ]
    if len(shares) < 2:
        return ""
    rest_ns = total_ns - float(named["ns"].sum())
    if rest_ns >= MIN_MODULE_SHARE * total_ns:
        shares.append(f"{REST} {percent(rest_ns, total_ns, digits=0)}")
    compute = short_ms(budget.compute_ns).removesuffix(" ms")
    return f"the GPU computes for {compute} of {short_ms(budget.span_ns)}: {', '.join(shares)}"


def finding_lines(
    finding: Finding,
    number: int,
    width: int,
    *,
    budget: Budget,
    same_as: int | None = None,
) -> list[Text]:
    """Return a finding: its number, saving, share and text, and below it the advice.

    Args:
        finding: The finding.
        number: Its number.
        width: Columns of the terminal.
        budget: Parts of the step that it is of.
        same_as: Number of an earlier finding with the same advice, which is then not repeated.

    """
    remarks = remarks_on(finding, number, budget)
    sentence = finding.text
    if remarks:
        sentence += f" ({remarks})"
    text = _wrapped(sentence, width, first=f"{number:>2} {saving(finding)}  ", rest=INDENT)
    advice = finding.advice if same_as is None else f"as for {same_as}"
    return [*text, *_wrapped(advice, width, first=f"{INDENT}→ ", rest=f"{INDENT}  ", style="dim")]


def saving(finding: Finding) -> str:
    """Return what a finding saves and its share of the step; of what one iteration has that it is once.

    What it costs where no saving is predicted.

    >>> saving(Finding(code="host_sync", cost_ns=4_000_000, share=0.2, saves_ns=3_000_000, evidence={"step_ns": 1}))
    '  3.00 ms  15 %'
    >>> saving(Finding(code="host_sync", cost_ns=4_000_000, share=0.2))
    '≤ 4.00 ms  20 %'
    >>> saving(Finding(code="leak", cost_ns=0, cost_bytes=8_388_608, share=0.0))
    '   8.4 MB      '
    >>> saving(Finding(code="hang", cost_ns=3_000_000_000, share=54.0))
    '   3.00 s  once'
    """
    if finding.cost_bytes and not finding.cost_ns:
        return f"{size(finding.cost_bytes):>9} {'':>5}"
    bound = "≤" if is_at_most(finding) else ""
    share = percent(finding.effect_share, digits=0)
    if finding.code == "hang":  # what ranks waited until the recording ended, of no step
        bound = ""
    if is_of_one_iteration(finding) or finding.code == "hang":
        share = "once"
    return f"{bound:<2}{short_ms(finding.effect_ns):>7} {share:>5}"


def certainty_lines(view: View, width: int) -> list[Text]:
    """Return how sure the figures are, and what is not wrong."""
    sure = f"how sure: {'; '.join(certainty(view))}"
    if view.not_wrong and not view.role_findings:
        sure += f"; fine: {view.not_wrong}"
    return _wrapped(sure, width, first="  ", rest="    ", style="dim")


def warning_lines(view: View, width: int) -> list[Text]:
    """Return the first warning in a line, or two where its first clause is longer, and how many more there are."""
    warnings = telling_notices(view.warnings)
    if not warnings:
        return []
    count = len(warnings)
    heading = "  warning: " if count == 1 else f"  {count} warnings (--full), first: "
    beside = width - len(heading)
    message = first_clauses(warnings[0].message, beside)
    if message.endswith(CUT_MARK):
        message = first_clauses(warnings[0].message, beside + width - 2 * len(INDENT))
    return _wrapped(message, width, first=heading, rest=INDENT, style="dim")


def hint_lines(
    view: View, width: int, *, page_written: bool, shown: Sequence[tuple[int, Finding]]
) -> list[Text]:
    """Return where there is more.

    Args:
        view: The run.
        width: Columns of the terminal.
        page_written: Whether a page was written, which is then not suggested.
        shown: Findings above, with their numbers.

    """
    smaller = [each for each in enumerate(view.findings, start=1) if each not in shown]
    titles = dict.fromkeys(finding_title(finding) for _, finding in smaller)
    of_what = f": {', '.join(titles)}" if len(smaller) <= MAX_TITLES else ""
    full = f"--full ({counted(len(smaller), 'more finding')}{of_what})" if smaller else "--full"
    explain = ["--explain 1"] if view.findings else []
    more = [full, *explain, *([] if page_written else ["-o report.html"])]
    return _wrapped(f"more: {', '.join(more)}", width, first="  ", rest="    ", style="dim")


def _operations_end_together(view: View) -> bool:
    """Return whether operations of several ranks end at times so alike that three digits mean something."""
    analysis = view.analysis
    error_ns = analysis.clocks.residual_ns
    if len(analysis.rank_results) < 2:
        return True
    return error_ns is not None and error_ns <= MAX_END_DIFFERENCE_SHARE * (
        analysis.step.time_ns or 0
    )


def certainty(view: View) -> list[str]:
    """Return what the figures rest on: how alike the steps are, how well clocks agree, and warnings."""
    analysis = view.analysis
    usual = [each.time_ns for each in analysis.step.usual]
    iterations = analysis.role_results.iterations
    facts = []
    if iterations:
        facts.append(f"shares and savings are of {counted(len(iterations), 'iteration')} together")
    elif len(usual) > 1:
        spread = (max(usual) - min(usual)) / max(analysis.step.time_ns or 0, 1)
        # The range of the step without the profiler stands above: these are other steps.
        steps = counted(len(usual), "recorded step" if analysis.step.profiler_ns else "step")
        if spread <= MAX_SPREAD_OF_ALIKE_STEPS:
            least = percent(max(spread, 0.01), digits=0)
            facts.append(f"{steps} within {least} of each other")
        else:
            facts.append(f"{steps} differ by up to {percent(spread, digits=0)}")
    elif analysis.step.is_marked:
        facts.append("one step")
    if view.clocks is not None:
        facts.append(view.clocks.text)
    for notice in analysis.notices:
        if notice.code == "replay-sampled":
            replayed = notice.values["replayed"]
            count = notice.values["count"]
            facts.append(f"savings from a replay of {replayed} ranks, chosen of {count:,}")
    if not view.devices:
        facts.append("GPU not named: pass `--gpu`")
    return facts or ["no step marks"]


def first_clauses(text: str, width: int) -> str:
    """Return the clauses of a sentence that fit into *width* columns; cut where its first one does not.

    >>> first_clauses("7 events ran between steps: not counted; their launch is not in the file", 40)
    '7 events ran between steps: not counted'
    >>> first_clauses("rank 0: seven events ran between steps", 20)
    'rank 0: seven event…'
    >>> first_clauses("7 events have no launch; by name alone (rank 1 too, with other numbers)", 60)
    '7 events have no launch'
    """
    if len(text) <= width:
        return text
    ends = []
    for match in re.finditer(r"[:;,] ", text[: width + 1]):
        before = text[: match.start()]
        if before.count("(") == before.count(")"):
            ends.append(match.start())
    last = max(ends, default=0)
    return text[:last] if 3 * last >= width else cut_text(text, width)


def cut_text(text: str, width: int) -> str:
    """Return text that fits into *width* columns, with … where it was cut.

    >>> cut_text("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}{CUT_MARK}"


def _wrapped(
    text: str, width: int, *, first: str = "", rest: str = "", style: str = ""
) -> list[Text]:
    """Return text as lines of at most *width* columns."""
    wrapped = []
    for line in wrap_text(text, width, first=first, rest=rest).split("\n"):
        wrapped.append(Text(line, style=style))
    return wrapped
