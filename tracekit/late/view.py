"""Sentences and tables about lateness over a whole run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from tracekit._util.text import (
    counted,
    format_ranges,
    join_with_and,
    listing,
    ms,
    percent,
    ranks_named,
    size,
)
from tracekit.documents.late import (
    Hang,
    LateDocument,
    LateRanks,
    OperationPlace,
    PipelineOrder,
    RankState,
    SlowLink,
)
from tracekit.late.result import WholeRun
from tracekit.report.table import Column, Table, make_table

RECORDER_WORDS = {
    "flight_recorder": "flight recorder",
    "nccl_inspector": "NCCL Inspector",
    "profiler": "profiler",
}
BASIS_WORDS = {
    "durations": "durations on the GPU, which need no clocks",
    "calls": "the times of the hosts' calls, on aligned clocks",
    "changes of calls": "changes in the times of the hosts' calls; clocks are not known, so constant lateness is not",
}
CAUSE_WORDS = {
    "host": "its host calls late",
    "gpu": "its host calls in time, its GPU is not ready",
    "waited_itself": "it waits for others in another group before",
}
MAX_STEPS_LISTED = 8
MAX_LATE_ROWS = 12


def headline(run: LateDocument) -> str:
    """Return the answer in one sentence: a hang, who is late, what became slow, or that nothing stands out."""
    match _headline_fact(run):
        case Hang() as hang:
            return hang_sentence(hang)
        case LateRanks() as late_ranks:
            return late_sentence(late_ranks, run)
        case SlowLink() as link:
            return link_sentence(link)
        case PipelineOrder() as pipeline:
            return pipeline_sentence(pipeline)
    if not run.compared:
        return "No collective was recorded on several ranks: who joins late cannot be told."
    return (
        f"No rank stands out: {counted(run.compared, 'collective')} compared over {_extent(run)}."
    )


def _headline_fact(run: LateDocument) -> Hang | LateRanks | SlowLink | PipelineOrder | None:
    """Return what the headline is about; None if nothing stands out."""
    if run.hang is not None and run.hang.certain:
        return run.hang
    culprits = [fact for fact in run.late if fact.cause != "waited_itself"]
    if culprits:
        return culprits[0]
    if run.slow_links:
        return run.slow_links[0]
    return run.pipelines[0] if run.pipelines and not run.compared else None


def late_sentence(fact: LateRanks, run: LateDocument) -> str:
    """Return who is late, how often, by how much, since when, and at what cost."""
    who = _who(fact)
    verb = "joins" if len(fact.ranks) == 1 else "join"
    unit = "step" if run.steps.count else "collective"
    often = {
        "constant": f"in nearly every {unit}",
        "periodic": f"in every {_ordinal(fact.period or 0)} {unit}",
        "drifting": f"in nearly every {unit}, by {ms(fact.growth_ns)} more from one to the next",
        "occasional": f"in {unit}{'' if len(fact.steps) == 1 else 's'} {_steps(fact.steps)}",
    }[fact.kind]
    amount = f"{ms(fact.late_ns)} late"
    if fact.uncertain:
        amount += " (within what the clocks may be off)"
    cost = f"{ms(fact.cost_ns)} lost, {percent(fact.share)} of {_extent(run)}"
    when = "" if fact.kind == "occasional" else f" {_since(fact, run)}"
    cause = f"; {_cause_words(fact)}" if fact.cause is not None else ""
    shown = f" The trace shows {_profiled(fact)}." if _has_more_than_profiled(fact) else ""
    return f"{who} {verb} {amount} {often}{when}, at {place_words(fact.at)}: {cost}{cause}.{shown}"


def _has_more_than_profiled(fact: LateRanks) -> bool:
    """Return whether some, but not all, of the late steps are in a profiler's trace."""
    return bool(fact.profiled_steps) and len(fact.profiled_steps) < len(fact.steps)


def _profiled(fact: LateRanks) -> str:
    unit = "step" if len(fact.profiled_steps) == 1 else "steps"
    return f"{unit} {_steps(fact.profiled_steps)}"


def _who(fact: LateRanks) -> str:
    ranks = ranks_named(fact.ranks)
    text = ranks[:1].upper() + ranks[1:]
    if fact.hosts and len(fact.hosts) == 1:
        return f"{text} ({fact.hosts[0]})"
    return text


def _cause_words(fact: LateRanks) -> str:
    words = CAUSE_WORDS[fact.cause or "host"]
    if len(fact.ranks) == 1:
        return words
    return (
        words.replace("its host calls", "their hosts call")
        .replace("its GPU is", "their GPUs are")
        .replace("it waits", "they wait")
    )


def _since(fact: LateRanks, run: LateDocument) -> str:
    unit = "step" if run.steps.count else "collective"
    since = (
        "from the beginning of the record"
        if fact.from_beginning
        else f"since {unit} {fact.since_step}"
    )
    if fact.from_beginning and run.steps.count:
        since = f"from {unit} {fact.since_step} on"
    if not fact.from_beginning and fact.since_ns is not None and _is_date(fact.since_ns):
        since += f" ({clock_time(fact.since_ns)})"
    if fact.until_step is not None:
        since += f" until {unit} {fact.until_step}"
    return since


def _steps(steps: Iterable[int]) -> str:
    return format_ranges(steps, most=MAX_STEPS_LISTED)


def _ordinal(number: int) -> str:
    """Return a number as an ordinal word or figure.

    >>> _ordinal(2), _ordinal(3), _ordinal(11), _ordinal(22)
    ('second', 'third', '11th', '22nd')
    """
    words = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}
    if number in words:
        return words[number]
    teens = number % 100 in (11, 12, 13)
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def place_words(operation: OperationPlace) -> str:
    """Return an operation in words: its position in the step, kind and size."""
    name = operation.op
    if operation.bytes is not None:
        name += f" of {size(operation.bytes)}"
    position = operation.place
    if position is None:
        article = "an" if operation.op[:1] in "aeiou" else "a"
        return f"{article} {name}"
    number = "first" if position == 0 else _ordinal(position + 1)
    return f"the step's {number} collective ({name})"


def hang_sentence(hang: Hang) -> str:
    """Return who did not join what, or what members disagree on, and who waits."""
    bytes_words = "" if hang.bytes is None else f" of {size(hang.bytes)}"
    number = (
        ""
        if hang.sequence is None
        else f" (number {hang.sequence} of {group_words(hang.group, hang.description)})"
    )
    what = f"{hang.op}{bytes_words}{number}"
    waiting = f"{ranks_named(hang.waiting)} {'waits' if len(hang.waiting) == 1 else 'wait'}"
    for_how_long = "" if hang.waited_ns is None else f" for at least {ms(hang.waited_ns)}"
    if hang.kind == "mismatch":
        calls = [f"rank {state.rank} called {call_words(state)}" for state in hang.different]
        return f"{listing(calls)} where {ranks_named(hang.waiting)} called {what}."
    if hang.kind == "missing":
        named = ranks_named(hang.no_record)
        verb = "has" if len(hang.no_record) == 1 else "have"
        did = f"may not have joined {what} ({verb} no dump)"
        unknown = ""
        if hang.missing:
            unknown = f"; {named} unknown (no dump)" if hang.no_record else ""
            named = ranks_named([state.rank for state in hang.missing])
            did = f"{'did not join' if hang.certain else 'had not joined'} {what}"
        return f"{named[:1].upper()}{named[1:]} {did}{unknown}; {waiting}{for_how_long}."
    members = counted(len(hang.waiting), "member")
    who_joined = f"all {members}" if hang.members_known else f"the {members} in the dumps"
    return f"{what} did not complete, though {who_joined} joined{for_how_long}."


def call_words(state: RankState) -> str:
    """Return what a rank called, in words."""
    if state.op is None:
        return "nothing in this group"
    bytes_words = "" if state.bytes is None else f" of {size(state.bytes)}"
    number = "" if state.sequence is None else f", number {state.sequence}"
    return f"{state.op}{bytes_words}{number}"


def hang_details(hang: Hang) -> list[str]:
    """Return what the ranks that did not join did last, and how sure it is."""
    lines = []
    for state in hang.missing:
        when = ""
        if state.enqueued_ns is not None and _is_date(state.enqueued_ns):
            when = f" at {clock_time(state.enqueued_ns)}"
        state_words = (
            f", which {'has' if state.state == 'completed' else 'had not'} completed"
            if state.state
            else ""
        )
        lines.append(f"rank {state.rank} last called {call_words(state)}{when}{state_words}")
        if state.stack:
            lines.append(f"from {listing(state.stack, most=4)}")
    if hang.no_record:
        verb = "has" if len(hang.no_record) == 1 else "have"
        lines.append(f"{ranks_named(hang.no_record)} {verb} no dump: the process may have ended")
    if not hang.certain:
        lines.append(
            "the dumps may have been written while it ran: nothing in them shows a long wait or a timeout"
        )
    return lines


def link_sentence(link: SlowLink) -> str:
    """Return which transfers are slow, compared with what, and since when."""
    what = f"{link.op} of {size(link.bytes)} in {link.group}"
    times = f"{ms(link.slow_ns)} instead of {ms(link.usual_ns)}"
    if link.kind == "slower_than_others":
        return f"{what} takes {times}, the median of other groups: {ms(link.cost_ns)} lost."
    since = "" if link.since_step is None else f" since step {link.since_step}"
    date = (
        f" ({clock_time(link.since_ns)})"
        if link.since_ns is not None and _is_date(link.since_ns)
        else ""
    )
    return f"{what} takes {times}{since}{date}: {ms(link.cost_ns)} lost."


def pipeline_sentence(pipeline: PipelineOrder) -> str:
    """Return the schedule that the messages show."""
    names = join_with_and(pipeline.schedules).replace(" and ", " or ")
    alike = " (their messages are alike)" if len(pipeline.schedules) > 1 else ""
    steps = counted(pipeline.steps, "step")
    ranks = ranks_named(pipeline.ranks)
    return f"Messages of {ranks} follow {names}{alike}: {counted(pipeline.microbatches, 'micro-batch')}, {steps}."


def group_words(group: str, description: str | None) -> str:
    """Return a group in words."""
    return f"group {group}" if not description else f"group {group}, {description}"


def record_lines(run: WholeRun) -> list[str]:
    """Return what was recorded, in words."""
    lines = []
    for record in run.document.records:
        extent = ""
        if record.first_ns is not None and record.last_ns is not None:
            extent = f", {duration_words(record.last_ns - record.first_ns)}"
        operations = counted(record.operations, "operation")
        lines.append(
            f"{RECORDER_WORDS[record.recorder]}: {counted(len(record.ranks), 'rank')}, {operations}{extent}"
        )
    if run.steps.count:
        origin = {
            "start": "counted from the start of the run",
            "first recorded": "counted from the first that is still recorded",
            "profiler": "numbered as the profiler numbers them",
        }[run.steps.numbered_from]
        warm_up = ", after warm-up" if run.steps.has_warm_up else ""
        step_time = "" if run.lateness.step_ns is None else f" of {ms(run.lateness.step_ns)}"
        lines.append(f"{counted(run.steps.count, 'step')}{step_time}, {origin}{warm_up}")
    if run.document.basis is not None:
        lines.append(f"lateness from {BASIS_WORDS[run.document.basis]}")
    return lines


def record_and_clock_lines(run: WholeRun) -> list[str]:
    """Return what was recorded, and how far clocks are apart if anything rests on them."""
    clocks = _clock_words(run.document)
    return record_lines(run) if clocks is None else [*record_lines(run), clocks]


def rank_table(run: LateDocument) -> Table | None:
    """Return how each rank joined, those that caused most waiting first."""
    columns = (
        Column("rank", "rank"),
        Column("last", "count", note="operations that it joined last"),
        Column("of", "count", value="operations", expendable=2),
        Column("median late", "ms", value="median_ns", note="after the others' median"),
        Column("p90", "ms", value="p90_ns", expendable=1),
        Column("p99", "ms", value="p99_ns", expendable=1),
        Column("max", "ms", value="max_ns"),
        Column("waited", "ms", value="waited_ns", expendable=1),
        Column(
            "made wait",
            "ms",
            value="caused_wait_ns",
            note="waiting of all others in operations it joined last",
        ),
    )
    rows = sorted(run.distributions, key=lambda entry: -entry.caused_wait_ns)
    more = len(rows) - MAX_LATE_ROWS
    notes = (f"and {counted(more, 'rank')} more",) if more > 0 else ()
    return make_table(columns, rows[:MAX_LATE_ROWS], notes=notes)


def group_table(run: LateDocument) -> Table | None:
    """Return the waiting of each group; None if there is only one."""
    if len(run.groups) < 2:
        return None
    columns = (
        Column("group", "name"),
        Column("is", value="description", expendable=1),
        Column("ranks", "count"),
        Column("collectives", "count", value="operations"),
        Column("waited", "ms", value="waited_ns"),
    )
    more = len(run.groups) - MAX_LATE_ROWS
    notes = (f"and {counted(more, 'group')} more",) if more > 0 else ()
    return make_table(columns, run.groups[:MAX_LATE_ROWS], notes=notes)


def transfer_table(run: LateDocument) -> Table | None:
    """Return the transfers that take most time."""
    columns = (
        Column("collective", value="op"),
        Column("size", value=lambda entry: size(entry.bytes)),
        Column("group", "name", expendable=1),
        Column("ranks", "count", expendable=1),
        Column("count", "count", value="operations"),
        Column(
            "transfer",
            "ms",
            value="median_ns",
            note="median of the duration on the rank that joined last",
        ),
        Column(
            "bus GB/s",
            "rate",
            value=lambda entry: (
                None if entry.bus_bytes_per_s is None else entry.bus_bytes_per_s / 1e9
            ),
        ),
    )
    return make_table(columns, run.transfers[:MAX_LATE_ROWS])


def fact_sentences(run: LateDocument, *, most: int | None = None) -> list[str]:
    """Return a sentence about each late rank, slow link and pipeline, but for what the headline says.

    Of each kind these are the first *most*, or all.
    """
    above = _headline_fact(run)
    sentences = [late_sentence(fact, run) for fact in run.late[:most] if fact is not above]
    sentences += [link_sentence(link) for link in run.slow_links[:most] if link is not above]
    sentences += [
        pipeline_sentence(pipeline) for pipeline in run.pipelines[:most] if pipeline is not above
    ]
    return sentences


def _clock_words(run: LateDocument) -> str | None:
    """Return how far clocks are apart and how sure that is; None if nothing rests on them."""
    offsets_ns = []
    uncertainties_ns = []
    for clock in run.clocks:
        if clock.uncertainty_ns is not None:
            offsets_ns.append(clock.offset_ns)
            uncertainties_ns.append(clock.uncertainty_ns)
    if len(offsets_ns) < 2:
        return None
    spread = max(offsets_ns) - min(offsets_ns)
    worst = max(uncertainties_ns)
    apart = f"{duration_words(spread)} apart"
    return f"clocks are {apart}, known to {duration_words(worst)}, from the operations themselves"


def _extent(run: LateDocument) -> str:
    if run.steps.count:
        return counted(run.steps.count, "step")
    return "the record"


def duration_words(ns: float) -> str:
    """Return a duration in the unit that suits it.

    >>> duration_words(1_500_000), duration_words(90e9), duration_words(7.2e12)
    ('1.5 ms', '1.5 min', '2.0 h')
    """
    units = ((3.6e12, "h"), (60e9, "min"), (10e9, "s"))
    for length, unit in units:
        if abs(ns) >= length:
            return f"{ns / (1e9 if unit == 's' else length):.1f} {unit}"
    return ms(ns)


def clock_time(ns: int) -> str:
    """Return a time as date and clock time, UTC.

    >>> clock_time(1_700_000_000_000_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_EARLIEST_DATE_NS = 1_400_000_000_000_000_000
_LATEST_DATE_NS = 4_000_000_000_000_000_000


def _is_date(ns: int) -> bool:
    """Return whether a time counts from the epoch, so that it tells a date."""
    return _EARLIEST_DATE_NS <= ns <= _LATEST_DATE_NS
