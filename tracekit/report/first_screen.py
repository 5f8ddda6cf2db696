"""The first screen, with which every report begins: what ran and how long a step takes, a picture, what to do first.

It holds blocks, which each medium draws: the step as one bar, the schedule of a pipeline or the
phases of an RL loop in a sentence, up to three findings with what each would save, and how sure that
is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tracekit._util.text import counted, join_with_and, percent, short_ms, terminal
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget
from tracekit.documents.findings import Finding
from tracekit.documents.roles import Iteration
from tracekit.findings.families import kind_of
from tracekit.metrics.process_phases import TRAIN, WEIGHT_SYNC
from tracekit.pipeline.reconstruct.stalls import OTHER_COMMUNICATION
from tracekit.report.blocks import (
    FindingItem,
    Headline,
    Line,
    Sentence,
    StepBar,
    Warnings,
)
from tracekit.report.clock_words import badge_of
from tracekit.report.findings import (
    BOUND_WORDS,
    bound_sign,
    finding_in_a_log,
    finding_items,
    first_findings,
    main_findings,
    role_findings,
    what_is_fine,
)
from tracekit.report.gap_words import warnings_of
from tracekit.report.notices import telling_notices
from tracekit.report.palette import (
    COMPUTE_COLOUR,
    IDLE_COLOUR,
    LABEL_COLOURS,
    UNRECORDED_COLOUR,
)
from tracekit.report.run_facts import describe_ranks, device_names, run_name
from tracekit.report.sections import all_sections
from tracekit.report.sections.operators import REST, compute_parts
from tracekit.report.step_words import (
    kind_sentence,
    origin_of_free_step,
    times_of_kinds,
    unusual_steps,
    wide_range,
)
from tracekit.report.table import BarPart, PartKind
from tracekit.report.words import WORDS
from tracekit.schema import COPY_LABELS, GAP_CAUSES

NOTHING_TO_GAIN = "nothing to gain that this recording shows"
MAKER_OF_GPU = r"^NVIDIA |^Intel(\(R\))? (Data Center )?"
"""What is left out of a GPU's name where room is short."""
MAX_LABELS_BESIDE_BAR = 3
"""Exposed labels that are named beside the bar; the others are summed."""
NAMES_BESIDE_BAR = {"memory": "copies"}
"""Names of labels beside the bar, where the label alone reads like something else."""
MIN_SHARE_OF_CAUSE_NAMED = 0.1
"""Share of the exposed time of a cause from which a label of it is named."""
MIN_SHARE_NAMED = 0.005
"""Share of the step from which a part of it is named."""
MIN_COMPUTE_SHARE_TO_SPLIT = 0.8
"""Share of the step from which compute is split into its parts."""
MAX_RATIO_OF_ITERATIONS = 1.25
"""Longest over shortest iteration of an RL loop from which both are stated instead of the mean."""
MAX_SPREAD_OF_ALIKE_STEPS = 0.1
"""Difference between the longest and the shortest step, as a share of the step, up to which they
are alike."""
MAX_END_DIFFERENCE_SHARE = 0.01
"""Difference between the ends of one operation on several ranks (median), as a share of the step,
up to which times that compare ranks have three digits."""


def first_screen(analysis: Analysis) -> list[Line]:
    """Return the blocks of the first screen."""
    return [
        headline(analysis),
        bar(analysis),
        *_about_step(analysis),
        *_situation(analysis),
        *_findings(analysis),
        certainty_sentence(analysis),
        *_warnings(analysis),
    ]


def brief_screen(analysis: Analysis) -> list[Line]:
    """Return the beginning of the first screen, up to the first finding."""
    blocks = first_screen(analysis)
    for number, block in enumerate(blocks, start=1):
        if isinstance(block, FindingItem) or block == Sentence(NOTHING_TO_GAIN, "heading"):
            return blocks[:number]
    return blocks


def first_sentences(analysis: Analysis) -> list[str]:
    """Return the first screen as lines of plain text, for logs and programs.

    >>> from tracekit import analyze
    >>> first_sentences(analyze("sample_traces/reload", schedule="none"))[0]
    'reload · 4 ranks · 1 step · H200 (32 of 132 SMs) · 105 ms a step'
    """
    return [_plain_text(block) for block in first_screen(analysis)]


def _plain_text(block: Line) -> str:
    """Return a block as one line."""
    match block:
        case Headline():
            return block.text
        case StepBar():
            return ", ".join(block.words)
        case Sentence():
            return block.text
        case FindingItem():
            return f"{block.number}. {finding_in_a_log(block.finding)}"
        case Warnings():
            first = block.warnings[0].message
            return f"{counted(len(block.warnings), 'warning')}: {first}"


def _findings(analysis: Analysis) -> Iterator[Line]:
    """Yield what to do first, with its heading."""
    findings = first_findings(main_findings(analysis))
    if not findings:
        yield Sentence(NOTHING_TO_GAIN, "heading")
        return
    yield Sentence(_findings_heading(findings, analysis), "heading")
    numbers = {number for number, _ in findings}
    yield from (item for item in finding_items(analysis) if item.number in numbers)


def _findings_heading(findings: Sequence[tuple[int, Finding]], analysis: Analysis) -> str:
    """Return what the columns before the findings hold."""
    per = "per step" if analysis.step.marked else "of the recording"
    if analysis.role_results.iterations:
        per = "per iteration"
    signs = {bound_sign(finding) for _, finding in findings}
    meanings = [f"{sign}: {words}" for sign, words in BOUND_WORDS.items() if sign in signs]
    bounds = f" ({', '.join(meanings)})" if meanings else ""
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


def headline(analysis: Analysis) -> Headline:
    """Return what ran on what, and the step time."""
    step = analysis.step
    unit = "a step" if step.marked else "in all (no step marks)"
    time_ns: float | None = step.stated_ns
    steps = counted(len(step.per_step), "step") if step.marked and step.per_step else ""
    iterations = analysis.role_results.iterations
    time = f"{short_ms(time_ns)} {unit}" if time_ns is not None else "step time unknown"
    if iterations:
        steps = counted(len(iterations), "iteration")
        time = f"{_time_of_iterations(iterations)} an iteration"
    if step.profiler_ns and not iterations:
        time = f"{time} without the profiler"
    if analysis.step_kinds:
        time = times_of_kinds(analysis.step_kinds, step)
    device = ""
    devices = device_names(analysis.sources)
    if devices:
        device = re.sub(MAKER_OF_GPU, "", devices[0]).replace("multiprocessors", "SMs")
    return Headline(
        terminal(run_name(analysis)), describe_ranks(analysis), steps, terminal(device), time
    )


def bar(analysis: Analysis) -> StepBar:
    """Return the step and its parts.

    The bar is the step that the first line states: the one without the profiler where that is known.
    A run whose ranks have several processes has its iterations drawn, by phase.
    """
    phases = _phase_times(analysis)
    if phases:
        return StepBar(_phase_parts(phases), round(sum(phases.values())))
    budget = analysis.step.stated_budget
    parts = budget_parts(budget, idle_known=analysis.total.idle_known)
    return StepBar(parts, budget.span_ns)


def _phase_times(analysis: Analysis) -> dict[str, float]:
    """Return the time of each phase in an iteration, in ns, the mean of all.

    Empty without iterations.
    """
    iterations = analysis.role_results.iterations
    if not iterations:
        return {}
    return {
        phase: sum(iteration.phase_ns.get(phase, 0) for iteration in iterations) / len(iterations)
        for phase in WORDS.phases
    }


def _about_step(analysis: Analysis) -> Iterator[Sentence]:
    """Yield where the time of the step is from, and which steps stand out."""
    step = analysis.step
    origin = origin_of_free_step(step)
    if origin and not _phase_times(analysis):
        yield Sentence(origin)
    if (step.unusual or step.in_turn_ns) and not analysis.step_kinds:
        clock = "as recorded, " if step.profiler_ns else ""
        yield Sentence(f"{clock}{unusual_steps(step)}")


def budget_parts(budget: Budget, *, idle_known: bool = True) -> list[BarPart]:
    """Return the parts of a step that are worth naming, exposed labels longest first.

    >>> [part.name for part in budget_parts(Budget(compute_ns=60, exposed_ns={"dp_comm": 30, "pp_comm": 4}, idle=6))]
    ['compute', 'dp_comm exposed', 'pp_comm exposed', 'idle']
    """
    exposed = sorted(((ns, label) for label, ns in budget.exposed_ns.items() if ns), reverse=True)
    parts = [BarPart("compute", "compute", budget.compute_ns, COMPUTE_COLOUR)]
    for ns, label in exposed[:MAX_LABELS_BESIDE_BAR]:
        name = NAMES_BESIDE_BAR.get(label, label)
        kind: PartKind = "exposed_copy" if label in COPY_LABELS else "exposed"
        parts.append(BarPart(f"{name} exposed", kind, ns, LABEL_COLOURS[label]))
    rest_ns = sum(ns for ns, _ in exposed[MAX_LABELS_BESIDE_BAR:])
    if rest_ns:
        parts.append(BarPart(f"{REST} exposed", "exposed", rest_ns, LABEL_COLOURS["comm"]))
    if budget.unrecorded_ns:
        parts.append(BarPart("not recorded", "unrecorded", budget.unrecorded_ns, UNRECORDED_COLOUR))
    idle = "idle" if idle_known else "idle or not recorded"
    parts.append(BarPart(idle, "idle", budget.idle_ns, IDLE_COLOUR))
    return [part for part in parts if part.ns >= MIN_SHARE_NAMED * budget.recorded_ns]


def _phase_parts(phases: Mapping[str, float]) -> list[BarPart]:
    """Return the phases of an iteration as parts of a bar: training is drawn as compute, idle as idle."""
    kinds: dict[str, PartKind] = {TRAIN: "compute", WEIGHT_SYNC: "weight_update", "idle": "idle"}
    colours = {TRAIN: COMPUTE_COLOUR, "idle": IDLE_COLOUR}
    parts = []
    for phase, ns in phases.items():
        colour = colours.get(phase, LABEL_COLOURS["broadcast"])
        parts.append(BarPart(WORDS.phases[phase], kinds.get(phase, "phase"), round(ns), colour))
    return [part for part in parts if part.ns]


def _situation(analysis: Analysis) -> Iterator[Sentence]:
    """Yield what is particular about a run: steps of a server, an RL loop, memory, the schedule of a pipeline."""
    for kind in analysis.step_kinds:
        yield Sentence(kind_sentence(kind, with_profiler=bool(analysis.step.profiler_ns)))
    if parts := what_computes(analysis):
        yield Sentence(parts)
    for section in all_sections(analysis):
        yield from (Sentence(text) for text in section.on_first_screen(analysis) if text)
    schedule = analysis.comparison
    if schedule is None:
        return
    head = schedule.head
    digits = significant_digits(analysis)
    measured = short_ms(head.measured_ns, digits)
    ideal = short_ms(head.ideal_ns, digits)
    clock = " as recorded" if analysis.step.profiler_ns else ""
    profiler_ns = (schedule.gap_ns or {}).get("profiler", 0)
    if profiler_ns > 0:
        clock += f", {short_ms(profiler_ns, digits)} of it for the profiler"
    facts = (
        f"{schedule.possible_names} pipeline: {measured} from start to end{clock}; without any "
        f"delay it would take {ideal}"
    )
    gap_ns = {}
    for gap_cause, ns in (schedule.gap_ns or {}).items():
        if ns > 0 and gap_cause in GAP_CAUSES and gap_cause != "profiler":
            gap_ns[gap_cause] = ns
    cause_is_first = any(
        kind_of(finding).section == "gap" for finding in main_findings(analysis)[:1]
    )
    if gap_ns and not cause_is_first:
        cause = max(gap_ns, key=lambda name: gap_ns[name])
        labels = labels_of_cause(cause, analysis.step.stated_budget)
        named = f", mostly {join_with_and(labels)}" if labels else ""
        lost = short_ms(gap_ns[cause], digits)
        facts += f"; most is lost to {GAP_CAUSES[cause]} ({lost}{named})"
    yield Sentence(facts)


def labels_of_cause(cause: str, budget: Budget) -> list[str]:
    """Return the labels that most of a cause's exposed time has, the longest first; empty if its words name them.

    >>> exposed_ns = {"dp_comm": 30, "tp_comm": 20, "comm": 2, "pp_comm": 90}
    >>> labels_of_cause("exposed_comm", Budget(span_ns=200, compute_ns=50, exposed_ns=exposed_ns, idle=8))
    ['dp_comm', 'tp_comm']
    """
    if cause != "exposed_comm":
        return []
    exposed_ns = {label: budget.exposed_ns.get(label, 0) for label in OTHER_COMMUNICATION}
    min_ns = MIN_SHARE_OF_CAUSE_NAMED * sum(exposed_ns.values())
    named = [label for label, ns in exposed_ns.items() if ns and ns >= min_ns]
    return sorted(named, key=lambda label: -exposed_ns[label])


def significant_digits(analysis: Analysis) -> int:
    """Return with how many digits times that compare ranks are shown: two where clocks are not known well."""
    return 3 if _operations_end_together(analysis) else 2


def what_computes(analysis: Analysis) -> str:
    """Return which parts of the model, or which operators of which phase, a run computes that mostly computes.

    Empty for others, and if it is unknown.
    """
    budget = analysis.step.stated_budget
    if (
        analysis.role_results.roles
        or budget.compute_ns < MIN_COMPUTE_SHARE_TO_SPLIT * budget.span_ns
    ):
        return ""
    parts = compute_parts(analysis)
    if not parts:
        return ""
    compute = short_ms(budget.compute_ns).removesuffix(" ms")
    return f"the GPU computes for {compute} of {short_ms(budget.span_ns)}: {', '.join(parts)}"


def certainty_sentence(analysis: Analysis) -> Sentence:
    """Return how sure the figures are, and what is not wrong."""
    sure = f"how sure: {'; '.join(certainty(analysis))}"
    fine = what_is_fine(analysis)
    if fine and not role_findings(analysis):
        sure += f"; fine: {fine}"
    return Sentence(sure, "aside")


def _warnings(analysis: Analysis) -> list[Warnings]:
    """Return the warnings that change a figure, as one block; empty if there are none."""
    warnings = telling_notices(warnings_of(analysis))
    return [Warnings(warnings)] if warnings else []


def _operations_end_together(analysis: Analysis) -> bool:
    """Return whether operations of several ranks end at times so alike that three digits mean something."""
    error_ns = analysis.clocks.residual_ns
    if len(analysis.ranks) < 2:
        return True
    return error_ns is not None and error_ns <= MAX_END_DIFFERENCE_SHARE * (
        analysis.step.time_ns or 0
    )


def certainty(analysis: Analysis) -> list[str]:
    """Return what the figures rest on: how alike the steps are, how well clocks agree, and warnings."""
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
    elif analysis.step.marked:
        facts.append("one step")
    if not iterations and (free_range := wide_range(analysis.step)):
        facts.append(free_range)
    clocks = badge_of(analysis)
    if clocks is not None:
        facts.append(clocks.text)
    for notice in analysis.notices:
        if notice.code == "sampled" and notice.values["case"] == "ranks":
            replayed = notice.values["replayed"]
            count = notice.values["count"]
            facts.append(f"savings from a replay of {replayed} ranks, chosen of {count:,}")
    if not device_names(analysis.sources):
        facts.append("GPU not named: pass `--gpu`")
    return facts or ["no step marks"]
