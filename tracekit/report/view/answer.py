"""The answer in up to six lines: time, what blocks it, exposed communication, schedule, waiting, and what to do next.

Each sentence collects its facts first and then writes them. A line that would say nothing is left
out.
"""

from collections.abc import Sequence

import msgspec
import polars as pl

from tracekit._util.text import counted, join_with_and, ms, percent, ranks_named, short_ms
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget, StepKind, StepTime, Straggler
from tracekit.metrics.step_time import FreeStep, StepSummary
from tracekit.report.gap_words import gap_basis, gap_words, is_wait_bound, of_the_gap
from tracekit.report.notices import notice_sentence
from tracekit.report.text import at_least, capitalize, ms_range
from tracekit.report.view import ranks as rank_tables
from tracekit.report.view import stragglers
from tracekit.report.view.budget import LabelRow, kind_of
from tracekit.report.view.pipeline import ScheduleView
from tracekit.report.words import WORDS
from tracekit.schema import LABEL_WORDS

MIN_SHARE_TO_REPORT = 0.01
"""Share of the span from which exposed, waiting or unlabelled time is reported."""
MAX_UNUSUAL_NAMED = 3
"""Steps that stand out and are named with their time."""
MAX_EXPOSED_LABELS = 2
"""Exposed labels that are named."""
NEARLY_AS_LATE_SHARE = 0.1
"""Ranks whose caused waiting is at most this share below the first rank's count as equally late
…"""
MAX_LATE_RANKS = 2
"""… and are named if there are at most this many of them."""
_NO_SCHEDULE_CODES = (
    "order-unknown",
    "schedule-other",
    "step-cut",
    "ranks-unknown",
    "pipeline-size-unknown",
)
"""Notices that say why the schedule of a pipeline is not named."""


class AnswerLine(msgspec.Struct, frozen=True):
    """One line of the answer."""

    topic: str
    text: str
    target: str
    """Section of the page with the details."""


def times_of_kinds(kinds: Sequence[StepKind], step: StepSummary) -> str:
    """Return how long each kind of step of an inference server takes, in few words.

    A single step takes what the first screen's shares are of; of steps that do not follow each other
    only the GPU's work is known.

    >>> decode = StepKind(kind="decode", steps=40, time_ns=9_800_000, interval_ns=12_100_000, requests=32)
    >>> prefill = StepKind(kind="prefill", steps=1, time_ns=493_000_000, tokens=15360)
    >>> times_of_kinds([prefill, decode], StepSummary(None))
    'prefill 493 ms of GPU work (15,360 tokens), decode 12.1 ms (32 sequences)'
    >>> times_of_kinds([prefill], StepSummary(590_000_000, per_step=(StepTime(0, 590_000_000),)))
    'prefill 590 ms (15,360 tokens)'
    """
    single_ns = None
    if step.single and step.shown_ns is not None:
        single_ns = step.shown_ns - step.shown_budget.unrecorded_ns
    texts = []
    for kind in kinds:
        known_ns = single_ns if kind.interval_ns is None else kind.interval_ns
        time = f"{short_ms(kind.time_ns)} of GPU work" if known_ns is None else short_ms(known_ns)
        batch = ""
        if kind.kind == "decode" and kind.requests:
            batch = f" ({counted(kind.requests, 'sequence')})"
        elif kind.tokens:
            batch = f" ({counted(kind.tokens, 'token')})"
        texts.append(f"{kind.kind} {time}{batch}")
    return ", ".join(texts)


def kind_sentence(kind: StepKind) -> str:
    """Return what is known about one kind of step: GPU work, tail, busy share, tokens per second, growth.

    >>> decode = StepKind(kind="decode", steps=40, time_ns=9_800_000, interval_ns=12_100_000, gpu_busy=0.81)
    >>> kind_sentence(decode)
    'decode, 40 steps: 9.8 ms of GPU work; a step ends every 12.1 ms (GPU busy 81 %)'
    """
    work = f"{short_ms(kind.time_ns)} of GPU work"
    if kind.time_tail_ns is not None:
        work += f" (95 % of the steps within {short_ms(kind.time_tail_ns)})"
    facts = [work]
    if kind.interval_ns is not None:
        tail = ""
        if kind.interval_tail_ns is not None:
            tail = f", 95 % within {short_ms(kind.interval_tail_ns)}"
        busy = percent(kind.gpu_busy, digits=0)
        facts.append(f"a step ends every {short_ms(kind.interval_ns)}{tail} (GPU busy {busy})")
    if kind.gap_ns:
        facts.append(f"{short_ms(kind.gap_ns)} without GPU work before it")
    if kind.tokens_per_s is not None:
        facts.append(f"{kind.tokens_per_s:,.0f} tokens a second")
    if kind.ns_per_token is not None and kind.ns_per_token > 0:
        facts.append(f"1,000 further tokens add {short_ms(1_000 * kind.ns_per_token)}")
    return f"{kind.kind}, {counted(kind.steps, 'step')}: {'; '.join(facts)}"


def time_sentence(analysis: Analysis, step_pace: rank_tables.Pace) -> str:
    """Return the step time and its parts; of an inference server the time of each kind of step."""
    step = analysis.step
    if analysis.step_kinds:
        return f"{capitalize(times_of_kinds(analysis.step_kinds, step))}: {join_with_and(_budget_parts(analysis))}."
    remarks = [
        step_pace.compared(),
        _other_pipeline(analysis, step_pace.slowest),
        unusual_steps(step),
    ]
    remark = "; ".join(filter(None, remarks))
    subject = "A step takes" if step.is_marked else "The trace spans"
    if (main := analysis.role_results.main_role) is not None:
        subject = f"Of role {main}, {subject[0].lower()}{subject[1:]}"
    shown = free_step_words(step) or ms(step.time_ns)
    time = f"{shown} ({remark})" if remark else shown
    total = analysis.total
    span_ns = analysis.total.budget.span_ns
    other_ns = total.label_ns.get("other", 0)
    unlabelled = ""
    if other_ns > MIN_SHARE_TO_REPORT * span_ns:
        unlabelled = (
            f"; {percent(other_ns, span_ns)} of the span is work that no rule knows (other), "
            "counted as compute"
        )
    return f"{subject} {time}: {join_with_and(_budget_parts(analysis))}{unlabelled}."


def free_step_words(step: StepSummary) -> str:
    """Return the step without the profiler, and as recorded; empty where they are alike, or it is not known.

    >>> from tracekit.metrics.step_time import FreeStep
    >>> free = FreeStep(15_000_000, (14_400_000, 16_100_000), "modelled")
    >>> free_step_words(StepSummary(23_200_000, free=free))
    '15.0 ms without the profiler (estimated: 14.4–16.1), 23.2 ms as recorded'
    >>> free_step_words(StepSummary(15_300_000, free=free))
    ''
    """
    free = step.free
    if free is None or not step.profiler_ns:
        return ""
    origin = "timed" if free.source == "timed" else f"estimated: {_range_words(free)}"
    return f"{short_ms(free.time_ns)} without the profiler ({origin}), {short_ms(step.time_ns or 0)} as recorded"


def origin_of_free_step(step: StepSummary) -> str:
    """Return where the step without the profiler comes from, and the recorded one; empty where they are alike.

    >>> from tracekit.metrics.step_time import FreeStep
    >>> free = FreeStep(15_000_000, (14_400_000, 16_100_000), "modelled")
    >>> origin_of_free_step(StepSummary(23_200_000, free=free))
    '15.0 ms is an estimate (14.4–16.1); with the profiler a step took 23.2 ms'
    """
    free = step.free
    if free is None or not step.profiler_ns:
        return ""
    time = short_ms(free.time_ns)
    origin = f"{time} is an estimate ({_range_words(free)})"
    if free.source == "timed":
        origin = f"{time} was timed before the profiler started"
    subject = "a step" if step.is_marked else "all of it"
    return f"{origin}; with the profiler {subject} took {short_ms(step.time_ns or 0)}"


def _range_words(free: FreeStep) -> str:
    """Return the range of the step without the profiler, in the unit of the step itself."""
    least, most = (short_ms(ns).removesuffix(" ms") for ns in free.range_ns)
    return f"{least}–{most}"


def unusual_steps(step: StepSummary) -> str:
    """Return the number of steps that the time is the median of, and those that stand out.

    >>> from tracekit.documents.analysis import StepTime
    >>> times = [StepTime(4, 15_900_000), StepTime(5, 175_000_000), StepTime(6, 17_700_000)]
    >>> unusual_steps(StepSummary(17_700_000, tuple(times), (times[1],)))
    '2 steps take 16–18 ms, step 5 takes 175 ms'
    >>> times = [StepTime(0, 4_500_000_000), StepTime(1, 15_900_000), StepTime(2, 17_700_000)]
    >>> unusual_steps(StepSummary(17_700_000, tuple(times), (times[0],)))
    '2 steps take 16–18 ms, step 0 takes 4.50 s (the first)'
    """
    if len(step.per_step) < 2:
        return ""
    if step.in_turn_ns:
        return steps_in_turn(step.in_turn_ns)
    if not step.unusual:
        return f"median of {counted(len(step.per_step), 'step')}"
    usual_times = ms_range(each.time_ns for each in step.usual)
    parts = [f"{counted(len(step.usual), 'step')} take {usual_times}"]
    for each in step.unusual[:MAX_UNUSUAL_NAMED]:
        first = " (the first)" if is_longer_first(each, step) else ""
        parts.append(f"step {each.step} takes {short_ms(each.time_ns)}{first}")
    more = len(step.unusual) - MAX_UNUSUAL_NAMED
    if more > 0:
        parts.append(f"{more} more stand out")
    return ", ".join(parts)


def steps_in_turn(times_ns: Sequence[int]) -> str:
    """Return how steps alternate.

    >>> steps_in_turn([33_000_000, 114_000_000])
    'steps take 33.0 ms and 114 ms in turn'
    >>> steps_in_turn([33_000_000, 33_500_000, 33_200_000, 114_000_000])
    'of every 4 steps one takes 114 ms, the others 33–34 ms'
    """
    if len(times_ns) == 2:
        return f"steps take {join_with_and(map(short_ms, times_ns))} in turn"
    longest = max(times_ns)
    others = list(times_ns)
    others.remove(longest)
    return f"of every {len(times_ns)} steps one takes {short_ms(longest)}, the others {ms_range(others)}"


def is_longer_first(each: StepTime, step: StepSummary) -> bool:
    """Return whether a step that stands out is the first one, which starts what the others use."""
    return each is step.per_step[0] and each.time_ns > (step.time_ns or 0)


def _budget_parts(analysis: Analysis) -> list[str]:
    """Return the parts of a step in words, without those that take no time."""
    budget = analysis.step.shown_budget
    whole_ns = budget.recorded_ns
    texts = []
    if budget.compute_ns:
        texts.append(f"{percent(budget.compute_ns, whole_ns)} compute")
    exposed_ns = sum(budget.exposed_ns.values())
    if exposed_ns:
        exposed_kinds = {kind_of(label) for label, ns in budget.exposed_ns.items() if ns}
        names = []
        if "communication" in exposed_kinds:
            names.append("communication")
        if "copy" in exposed_kinds:
            names.append("copies")
        texts.append(f"{percent(exposed_ns, whole_ns)} exposed {' or '.join(names)}")
    if analysis.total.idle_known:
        texts.append(f"{percent(budget.idle_ns, whole_ns)} idle")
    else:
        texts.append("idle not known")
    if budget.unrecorded_ns:
        texts.append(f"{short_ms(budget.unrecorded_ns)} more that is not recorded")
    return texts


def exposed_sentence(analysis: Analysis, labels: Sequence[LabelRow], steps: int) -> str:
    """Return the labels that are exposed longest, and the bubble of a pipeline."""
    total = analysis.total
    exposed = [row for row in labels if row.exposed_share > MIN_SHARE_TO_REPORT]
    longest = sorted(exposed, key=lambda row: -row.exposed_ns)[:MAX_EXPOSED_LABELS]
    sentences = []
    if longest:
        costs = "; ".join(_exposed_label(row, steps, analysis.step.budget) for row in longest)
        sentences.append(f"{costs[:1].upper()}{costs[1:]}.")
    if total.pipeline and total.bubble_fraction is not None:
        bubble = at_least(percent(total.bubble_fraction), total.lower_bound)
        sentences.append(f"Bubble (idle and exposed pipeline waiting): {bubble} of the span.")
    return " ".join(sentences)


def _exposed_label(row: LabelRow, steps: int, budget: Budget) -> str:
    """Return the exposed time of one label, and its main cause if it is known.

    Args:
        row: Time and causes of the label, over all steps.
        steps: How many steps there are.
        budget: Parts of the step as recorded: findings state the same.
    """
    name = f"{LABEL_WORDS.get(row.label, row.label)} ({row.label})"
    exposed_ns = budget.exposed_ns.get(row.label)
    of_time = percent(row.exposed_share)
    if exposed_ns is not None:
        of_time = percent(exposed_ns, budget.recorded_ns)
    per_step = " per step" if steps > 1 else ""
    cost = f"{name} {ms(exposed_ns or row.exposed_ns / steps)}{per_step} ({of_time})"
    main_cause = row.causes(most=1)
    if not main_cause:
        return cost
    cause, cause_share = main_cause[0]
    return f"{cost}, {percent(cause_share, digits=0)} of that {WORDS.exposure_causes[cause]}"


def schedule_sentence(analysis: Analysis, schedule: ScheduleView | None) -> str:
    """Return the schedule compared with its ideal, or why it is not named."""
    if schedule is None:
        reasons = [
            notice_sentence(note) for note in analysis.notices if note.code in _NO_SCHEDULE_CODES
        ]
        return f"Not named: {reasons[0]}." if reasons else ""
    measured_ns = schedule.head.measured_ns
    ideal_ns = schedule.head.ideal_ns
    comparison = schedule.comparison
    apart = "".join(
        f" {notice_sentence(note)}." for note in analysis.notices if note.code == "fb-run-apart"
    )
    name = comparison.possible_names if comparison.exact else f"{comparison.name}, nearly"
    spans = f"{name} ({schedule.sizes}): schedule span {ms(measured_ns)}, that of its ideal {ms(ideal_ns)}"
    if comparison.compared_with != comparison.name:
        spans = f"ran {comparison.name} exactly ({schedule.sizes}), schedule span {ms(measured_ns)}; compared with "
        spans += (
            f"{comparison.compared_with}, whose ideal takes {ms(ideal_ns)} at the run's own times"
        )
    if schedule.gap_note is not None:
        return f"{spans} ({schedule.gap_note}).{apart}"
    gap_ns = comparison.gap_ns or {}
    causes = {cause: ns for cause, ns in gap_ns.items() if ns > 0 and cause != "unexplained"}
    if measured_ns <= ideal_ns or not causes:
        return f"{spans}.{apart}"
    worst = max(causes, key=lambda cause: causes[cause])
    gap = of_the_gap(
        causes[worst], measured_ns - ideal_ns, "between them", gap_words(analysis, worst)
    )
    return f"{spans}; {gap}{gap_basis(analysis, worst)}.{apart}"


def reload_sentence(analysis: Analysis) -> str:
    """Return the time of a weight update and that of its ideal; empty if there is none."""
    reload = analysis.reload
    if reload is None:
        return ""
    buckets = counted(reload.buckets, "bucket")
    rounds = counted(reload.rounds, "round")
    ideal = f"; with two buffers, no waiting and the same times it would take {ms(reload.ideal_ns)}"
    ideal = "" if reload.ideal_ns is None else ideal
    return f"The weight update takes {ms(reload.measured_ns)} for {buckets} in {rounds}{ideal}."


def waits_sentence(
    analysis: Analysis, stragglers: Sequence[Straggler], *, clock_reasons: bool = True
) -> str:
    """Return the label with the longest waits, and the ranks that are waited for.

    Empty if waits are short.

    With *clock_reasons* it says how well clocks are known where they leave open which rank it is.
    """
    total = analysis.total
    waits_ns = {
        waiting_label: ns
        for waiting_label, ns in total.wait_ns.items()
        if ns and total.label_ns.get(waiting_label)
    }
    label = max(waits_ns, key=lambda name: waits_ns[name], default=None)
    if label is None or waits_ns[label] < MIN_SHARE_TO_REPORT * total.budget.span_ns:
        return ""
    waiting = f"{percent(waits_ns[label], total.label_ns[label])} of the time in {label} is waiting for another rank"
    is_bound = is_wait_bound(analysis, label)
    waiting = f"{_bound_words(at_most=is_bound, at_least=label in total.wait_open_ns)}{waiting}"
    late = [row for row in stragglers if row.label == label]
    ranks = _waited_for(analysis, label, late, is_bound=is_bound, clock_reasons=clock_reasons)
    return f"{waiting}; {ranks}." if ranks else f"{waiting}."


def _bound_words(*, at_most: bool, at_least: bool) -> str:
    """Return the words before a figure that may be lower, higher or both."""
    if at_most and at_least:
        return "about "
    if at_most:
        return "at most "
    return "at least " if at_least else ""


def _waited_for(
    analysis: Analysis,
    label: str,
    late: Sequence[Straggler],
    *,
    is_bound: bool,
    clock_reasons: bool,
) -> str:
    """Return the ranks that are late in a label and why, or those that are waited for longest.

    Empty if none is.
    """
    explained = stragglers.late_rows(analysis, label)
    # Where clocks leave open which of several ranks is waited for longest, all of them may be late
    # for a known reason.
    open_ranks: set[int] = set()
    if late and late[0].uncertain:
        open_ranks.update(late[0].candidates)
    if explained and open_ranks <= {row.rank for row in explained}:
        steps = max(len(analysis.step.per_step), 1)
        sentences = [
            stragglers.late_rank(row, steps, at_most=is_bound) for row in explained[:MAX_LATE_RANKS]
        ]
        return "; ".join(sentences) + _late_together(explained[0], late)
    latest = []
    for row in late:
        is_nearly_as_late = row.caused_ns >= (1 - NEARLY_AS_LATE_SHARE) * late[0].caused_ns
        if is_nearly_as_late or row.rank in late[0].late_with:
            latest.append(row)
    if not latest:
        return ""
    if latest[0].uncertain:
        return f"the others wait longest for {_doubtful_ranks(analysis, latest[0], clock_reasons=clock_reasons)}"
    if len(latest) <= MAX_LATE_RANKS:
        names = join_with_and(_late_rank(analysis, row) for row in latest)
        if len(latest) == 1 and label == "pp_comm":
            names += stragglers.why_pipeline_waits(analysis.stragglers, latest[0].rank)
        return f"the others wait longest for {names}{_late_together(latest[0], latest)}"
    shortest = ms(latest[-1].caused_ns)
    longest = ms(latest[0].caused_ns)
    return f"{len(latest)} ranks are waited for alike ({shortest} to {longest} each, summed over the others)"


def _late_together(row: Straggler, rows: Sequence[Straggler]) -> str:
    """Return what one of the ranks that are late together saves by itself; empty if the rank is late alone.

    >>> rows = [Straggler(3, "dp_comm", 60, 1, alone_ns=9, late_with=[1]), Straggler(1, "dp_comm", 40, 1, alone_ns=0)]
    >>> _late_together(rows[0], rows)
    '; ranks 1, 3 are late together: one of them alone in time would save 9.0 % of that waiting at most'
    """
    if not row.late_with or row.uncertain:
        return ""
    ranks = sorted([row.rank, *row.late_with])
    waited_ns = 0
    alone_ns = []
    for other in rows:
        if other.rank in ranks and other.label == row.label:
            waited_ns += other.caused_ns
            if other.alone_ns is not None:
                alone_ns.append(other.alone_ns)
    are = f"; {ranks_named(ranks)} are late together"
    if len(alone_ns) < len(ranks):
        return f"{are}: the others wait until all of them have arrived"
    saves = percent(max(alone_ns), waited_ns)
    return f"{are}: one of them alone in time would save {saves} of that waiting at most"


def _doubtful_ranks(analysis: Analysis, row: Straggler, *, clock_reasons: bool) -> str:
    """Return the ranks of which one is waited for longest, and why it is not certain which."""
    if len(row.candidates) > MAX_LATE_RANKS:
        ranks = f"one of {ranks_named(row.candidates)}"
    else:
        ranks = " or ".join(f"rank {rank}" for rank in row.candidates)
    off_ns = analysis.clocks.table.filter(pl.col("rank").is_in(row.candidates))[
        "uncertainty_ns"
    ].max()
    reason = (
        f"their clocks are known to {ms(off_ns)} only"
        if isinstance(off_ns, int)
        else "nothing ties their clocks"
    )
    explained = []
    for rank in row.candidates:
        words = stragglers.why_pipeline_waits(analysis.stragglers, rank)
        if words and row.label == "pp_comm":
            explained.append(f"; rank {rank}{words}")
    cost = f"{_cost(row)}; {reason}" if clock_reasons else _cost(row)
    return f"{ranks} ({cost}){''.join(explained[:1])}"


def _late_rank(analysis: Analysis, row: Straggler) -> str:
    pipeline = _other_pipeline(analysis, row.rank)
    return (
        f"rank {row.rank} ({_cost(row)}; {pipeline})"
        if pipeline
        else f"rank {row.rank} ({_cost(row)})"
    )


def _cost(row: Straggler) -> str:
    return f"{ms(row.caused_ns)} summed over them, in {counted(row.operations, 'operation')}"


def _other_pipeline(analysis: Analysis, rank: int | None) -> str:
    """Return the pipeline of a rank and the option that shows it.

    Empty if that pipeline is shown already.

    A rank that the answer names but the schedule does not show must be found somewhere.
    """
    schedule = analysis.schedule
    if schedule is None or rank is None or rank in schedule.head.pipeline.ranks:
        return ""
    number = next((i for i, ranks in enumerate(schedule.pipelines) if rank in ranks), None)
    return "" if number is None else f"in pipeline {number}: `--pipeline {number}` shows it"
