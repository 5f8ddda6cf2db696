"""Differences between ranks and steps: time of a step, idle time and its causes, who is late and why, unequal work."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import polars as pl

from tracekit._util.text import counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.combine.stragglers import MIN_LATE_SHARE, Stragglers
from tracekit.documents.analysis import Evidence, Figures, Phase, RankFigures, Straggler
from tracekit.documents.coding import rows as table_rows
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import at_least, ms_range
from tracekit.schema import IDLE_CAUSES, PHASES

NOISE_SHARE = 0.01
"""Share by which the times of ranks or pipelines may differ and still count as equal."""
MAX_RANKS_LISTED_IN_FULL = 16
"""Up to this number of ranks, a table lists all of them …"""
WORST_RANKS_LISTED = 5
"""… and of more ranks, this many, in the order of their numbers."""
MAX_STRAGGLERS = 10
MAX_CANDIDATES_NAMED = 3
"""Ranks that are named if clocks leave open which of them arrived last."""
MAX_STEPS_IN_TABLE = 100
MAX_STEP_RATIO = 2
"""Ratio of the lateness in two steps above which each is given, instead of their mean."""
MAX_HOST_ROWS = 5
MIN_HOST_ROW_SHARE = 0.005
"""Share of the launch-bound idle time from which an activity of the host has a row."""
MIN_LAUNCH_BOUND_SHARE = 0.01
"""Share of the span from which launch-bound idle time has a table."""
MAX_ACTIVITY_LENGTH = 60
"""Characters shown of an activity's name."""
UNKNOWN_CAUSE = "the cause is not known"
MAX_MAP_RANKS = 32
"""Ranks of the map, the latest."""
MAX_MAP_STEPS = 60
"""Steps of the map, the first."""
MAX_IMBALANCE_ROWS = 10
MAX_SLOWDOWN_ROWS = 12


class Pace:
    """The step time of a run, and a comparison of its ranks."""

    def __init__(self, analysis: Analysis) -> None:
        step = analysis.step
        self.ns = step.time_ns or 0
        self.steps = max(len(step.per_step), 1)
        self.ranks = len(step.by_rank)
        self.slowest = slowest_rank(step.by_rank)
        """The rank that is slower than every other by more than noise; None if there is none."""
        self._times = step.by_rank
        self.spread = step.spread
        """Difference between the slowest and the fastest rank, as a share of the slowest rank's
        time."""

    def compared(self) -> str:
        """Return a comparison of the ranks in a few words; empty if there is one rank.

        >>> from tracekit import analyze
        >>> Pace(analyze("sample_traces/1f1b")).compared()
        '4 ranks, their own steps 120–123 ms'
        """
        if self.ranks < 2:
            return ""
        if self.spread <= NOISE_SHARE:
            return f"{counted(self.ranks, 'rank')} alike, within {percent(max(self.spread, 0.001))}"
        ranks = f"{counted(self.ranks, 'rank')}, their own steps {ms_range(self._times.values())}"
        return ranks if self.slowest is None else f"{ranks}, rank {self.slowest} the slowest"


def beyond_noise(longest: float, second: float) -> bool:
    """Return whether the longest of some times exceeds the second longest by more than noise.

    >>> beyond_noise(100, 98), beyond_noise(100, 99.5)
    (True, False)
    """
    return longest - second > NOISE_SHARE * longest


def slowest_rank(times: Mapping[int, float]) -> int | None:
    """Return the rank that takes longer than every other by more than noise; None if there is none.

    >>> slowest_rank({0: 100, 1: 90}), slowest_rank({0: 100, 1: 99.5}), slowest_rank({0: 100})
    (0, None, None)
    """
    if len(times) < 2:
        return None
    longest = max(times, key=lambda rank: times[rank])
    second_ns = max(ns for rank, ns in times.items() if rank != longest)
    return longest if beyond_noise(times[longest], second_ns) else None


class StepSpread(msgspec.Struct, frozen=True):
    """The time of one step over ranks."""

    step: int | None
    least_ns: int
    median_ns: float
    most_ns: int
    longest: int
    """A rank on which it took longest."""
    slowest: int | None
    """The same if it exceeds every other by more than noise."""
    partial: bool
    share: float
    """Share of its median of the time of the longest step."""


class Steps(msgspec.Struct, frozen=True):
    """The times of several steps."""

    rows: Sequence[StepSpread]
    more: int
    """Steps that are not shown."""
    one_rank: bool


_ALWAYS_SHOWN_IDLE_CAUSES = ("launch_bound", "dependency")


def worst_ranks(
    ranks: Sequence[RankFigures], amounts: Sequence[float]
) -> tuple[list[RankFigures], str]:
    """Return the ranks with the largest amounts in the order of their numbers, and a note if some are left out."""
    count = len(ranks) if len(ranks) <= MAX_RANKS_LISTED_IN_FULL else WORST_RANKS_LISTED
    largest = sorted(range(len(ranks)), key=lambda i: -amounts[i])[:count]
    note = ""
    if len(largest) < len(ranks):
        note = f"the {len(largest)} worst of {counted(len(ranks), 'rank')}"
    return sorted((ranks[i] for i in largest), key=lambda rank: rank.rank), note


def idle_table(analysis: Analysis) -> Table | None:
    """Return the causes of each rank's idle time, its pipeline wait and its bubble by phase.

    None if none idles.
    """
    is_pipelined = analysis.total.pipeline
    # Without recorded messages between stages the bubble of a phase is not known.
    has_messages = bool(analysis.total.label_ns.get("pp_comm"))
    ranks = [rank for rank in analysis.rank_results if rank.whole.budget.span_ns]
    if not any(_may_idle(rank.whole) for rank in ranks):
        return None
    causes = []
    for cause in IDLE_CAUSES:
        is_present = any((rank.idle_causes or {}).get(cause) for rank in ranks)
        if is_present or cause in _ALWAYS_SHOWN_IDLE_CAUSES:
            causes.append(cause)
    columns = [Column("rank", "rank"), Column("idle", "ms")]
    columns += [Column(IDLE_CAUSES[cause], "share", note="shares of idle") for cause in causes]
    if is_pipelined:
        columns.append(Column("pipeline wait", "ms"))
        columns.append(Column("bubble", "figure", note="of the span"))
        columns += [Column(phase, "ms", 1, "bubble in that phase") for phase in PHASES]
    amounts = []  # by which ranks are chosen
    for rank in ranks:
        amount = rank.whole.bubble_fraction if is_pipelined else rank.whole.budget.idle_ns
        amounts.append(amount or 0.0)
    shown, note = worst_ranks(ranks, amounts)
    rows = []
    for rank in shown:
        row = _idle_row(rank, causes)
        if is_pipelined:
            row += _bubble_row(rank, has_messages=has_messages)
        rows.append(tuple(row))
    return make_table(columns, rows, notes=[note] if note else ())


def _may_idle(whole: Figures) -> bool:
    """Return whether a rank idles or waits, or may do so unseen."""
    return bool(whole.budget.idle_ns or whole.bubble.wait_ns or not whole.idle_known)


def _idle_row(rank: RankFigures, causes: Sequence[str]) -> list[object]:
    """Return a rank's idle time and the share of each cause in it."""
    idle_ns = rank.whole.budget.idle_ns if rank.whole.idle_known else None
    row: list[object] = [rank.rank, idle_ns]
    for cause in causes:
        row.append((rank.idle_causes or {}).get(cause, 0) / idle_ns if idle_ns else None)
    return row


def _bubble_row(rank: RankFigures, *, has_messages: bool) -> list[object]:
    """Return a rank's pipeline wait, its bubble, and the bubble of each phase."""
    whole = rank.whole
    bubble = at_least(percent(whole.bubble_fraction), whole.lower_bound)
    row: list[object] = [whole.bubble.wait_ns, bubble]
    row.extend(_bubble_in_phase(rank.phases, phase) if has_messages else None for phase in PHASES)
    return row


def _bubble_in_phase(phases: Sequence[Phase], name: str) -> int | None:
    """Return the bubble of a phase over all steps; None if it is not there, or idle time is unknown."""
    bubbles_ns = []
    for phase in phases:
        if phase.phase == name:
            if phase.idle_ns is None:
                return None
            bubbles_ns.append(phase.idle_ns + (phase.wait_ns or 0))
    return sum(bubbles_ns) if bubbles_ns else None


def host_activity_table(analysis: Analysis) -> Table | None:
    """Return what the host did in launch-bound idle time, over all ranks.

    None if there is little of it.
    """
    span_ns = analysis.total.budget.span_ns
    ranks = max(1, len(analysis.rank_results))
    ns_of: Counter[tuple[str, str | None, str | None]] = Counter()
    for rank in analysis.rank_results:
        for row in rank.idle_host:
            ns_of[row.instead, row.what, row.line] += row.ns
    launch_bound_ns = sum(ns_of.values())
    is_little = launch_bound_ns < MIN_LAUNCH_BOUND_SHARE * span_ns
    if not analysis.total.idle_known or is_little or not launch_bound_ns:
        return None
    # Activities without a name say nothing, except that Python itself ran.
    named = {key: ns for key, ns in ns_of.items() if key[1] or key[0] == "python"}
    longest = Counter(named).most_common(MAX_HOST_ROWS)
    rows = []
    for (kind, what, line), ns in longest:
        if ns >= MIN_HOST_ROW_SHARE * launch_bound_ns:
            activity = (what or "")[:MAX_ACTIVITY_LENGTH]
            share = ns / launch_bound_ns
            rows.append((ns / ranks, share, kind.replace("_", " "), activity, line or ""))
    columns = (
        Column("time per rank", "ms", terminal_heading="ms per rank"),
        Column("of it", "share"),
        Column("doing"),
        Column("what"),
        Column("line"),
    )
    inside_launch_ns = sum(rank.inside_launch_ns for rank in analysis.rank_results) / ranks
    note = (
        f"launch-bound idle is {percent(launch_bound_ns, span_ns)} of the span; "
        f"inside the launch call itself: {ms(inside_launch_ns)} per rank"
    )
    return make_table(columns, rows, notes=(note,))


def steps_view(analysis: Analysis) -> Steps | None:
    """Return the time of each step over ranks; None if there is one step."""
    table = analysis.tables["steps"]
    if table["step"].n_unique() < 2:
        return None
    spans = (
        table.filter(pl.col("time_ns").is_not_null())
        .group_by("step")
        .agg(
            least_ns=pl.col("time_ns").min(),
            median_ns=pl.col("time_ns").median(),
            most_ns=pl.col("time_ns").max(),
            longest=pl.col("rank").sort_by("time_ns").last(),
            second_ns=pl.col("time_ns").top_k(2).min(),
            partial=pl.col("partial").any(),
        )
    )
    exceeds_noise = pl.col("most_ns") - pl.col("second_ns") > NOISE_SHARE * pl.col("most_ns")
    rows = spans.sort("step").with_columns(
        slowest=pl.when(exceeds_noise).then("longest"),
        share=pl.col("median_ns") / pl.col("most_ns").max(),
    )
    return Steps(
        table_rows(rows.head(MAX_STEPS_IN_TABLE), StepSpread),
        max(0, len(rows) - MAX_STEPS_IN_TABLE),
        table["rank"].n_unique() == 1,
    )


def _tokens(evidence: Evidence) -> str:
    if (
        evidence.tokens is None
        or evidence.tokens_of_others is None
        or evidence.tokens == evidence.tokens_of_others
    ):
        return (
            f"it has {evidence.ratio:.2f} times the work of the others"
            if evidence.ratio
            else "it has more work"
        )
    return f"it has more work ({evidence.tokens:,} tokens in a step, the others {evidence.tokens_of_others:,})"


def _slow_gpu(evidence: Evidence) -> str:
    slower = f"its GPU runs the same kernels {evidence.ratio or 1:.2f} times slower"
    if evidence.multiprocessors is None:
        return slower
    own = evidence.multiprocessors
    others = evidence.multiprocessors_of_others
    return f"{slower} (on {own} multiprocessors, the others on {others})"


def _chain(evidence: Evidence) -> str:
    if evidence.role is not None:
        iterations = evidence.iterations or []
        noun = "iteration" if len(iterations) == 1 else "iterations"
        when = f" in {noun} {listing(map(str, iterations))}" if iterations else ""
        return f"its {evidence.role} process ends later than the others'{when}"
    chain = evidence.chain or []
    return (
        f"it waits for rank {chain[-1]} itself"
        if len(chain) > 1
        else "it waits for another rank itself"
    )


def _host_late(evidence: Evidence) -> str:
    """Return how long a GPU had no work, or only copies, until its host launched.

    >>> _host_late(Evidence(idle_ns=30_000_000))
    'its host launches late (its GPU is empty for 30.0 ms)'
    >>> _host_late(Evidence(idle_ns=30_000_000, copy_ns=45_000_000))
    'its host launches late (its GPU is empty for 30.0 ms and only copies to or from the host for 45.0 ms)'
    """
    empty = f"its GPU is empty for {ms(evidence.idle_ns or 0)}"
    if evidence.copy_ns:
        empty += f" and only copies to or from the host for {ms(evidence.copy_ns)}"
    return f"its host launches late ({empty})"


_CAUSE_SENTENCES: Mapping[str, Callable[[Evidence], str]] = {
    "slow_gpu": _slow_gpu,
    "more_work": _tokens,
    "host_late": _host_late,
    "slow_link": lambda evidence: (
        f"its transfers take {evidence.ratio or 1:.2f} times as long as others of their size"
    ),
    "waited_itself": _chain,
    "unknown": lambda evidence: f"{UNKNOWN_CAUSE} ({evidence.reason})",
}


def why_late(row: Straggler) -> str:
    """Return the causes of a rank's lateness in words, the largest first; empty if it is not late.

    >>> from tracekit.documents.analysis import Phase, WaitCause
    >>> cause = WaitCause("slow_gpu", 9, Evidence(ratio=1.96))
    >>> why_late(Straggler(2, "dp_comm", 9, 1, kind="chronic", steps=[4], late_ns=3, why=[cause]))
    'its GPU runs the same kernels 1.96 times slower'
    """
    if not row.steps:
        return ""
    named = [part for part in row.why if part.cause != "unknown"] or row.why
    return ", and ".join(_CAUSE_SENTENCES[part.cause](part.evidence) for part in named)


def when_late(row: Straggler, steps: int) -> str:
    """Return in which of a run's *steps* a rank is late; empty if there is one step.

    >>> when_late(Straggler(2, "dp_comm", 9, 1, kind="one_off", steps=[6], late_ns=3), 5)
    'in step 6'
    """
    if row.kind is None:
        return ""
    if len(row.steps) == steps:
        return "in every step"
    if row.kind == "one_off":
        return f"in step{'s' * (len(row.steps) > 1)} {listing(map(str, row.steps))}"
    return f"in {len(row.steps)} of {counted(steps, 'step')}"


def why_pipeline_waits(stragglers: Stragglers, rank: int) -> str:
    """Return why the ranks of a pipeline wait for *rank*, to be added to its name.

    Empty if that is not known.

    >>> from tracekit.documents.analysis import Phase, WaitCause
    >>> cause = WaitCause("waited_itself", 6, Evidence(chain=[1, 3]))
    >>> root = Straggler(3, "pp_comm", 9, 1, why=[WaitCause("more_work", 6, Evidence(ratio=2.03))])
    >>> why_pipeline_waits(Stragglers((Straggler(1, "pp_comm", 9, 1, why=[cause]), root)), 1)
    ', which waits for rank 3 itself: it has 2.03 times the work of the others'
    """
    cause = stragglers.pipeline_cause(rank)
    if cause is None:
        return ""
    if cause.cause != "waited_itself":
        return f": {_CAUSE_SENTENCES[cause.cause](cause.evidence)}"
    root = (cause.evidence.chain or [rank])[-1]
    root_cause = stragglers.pipeline_cause(root) if root != rank else None
    if root_cause is None or root_cause.cause == "waited_itself":
        return ""
    return f", which waits for rank {root} itself: {_CAUSE_SENTENCES[root_cause.cause](root_cause.evidence)}"


def _lateness_words(row: Straggler) -> str:
    """Return by how much a rank is late: per step, or in each step where two steps differ by much."""
    if len(row.steps) == 1:
        return ms(row.late_ns)
    if len(row.late_ns_by_step) == 2 and max(row.late_ns_by_step) > MAX_STEP_RATIO * min(
        row.late_ns_by_step
    ):
        by_step = zip(row.steps, row.late_ns_by_step, strict=True)
        return ", ".join(f"{ms(late_ns)} in step {step}" for step, late_ns in by_step)
    worst = "" if row.worst_ns is None else f", {ms(row.worst_ns)} in step {row.worst_step}"
    return f"{ms(row.late_ns)} per step{worst}"


def late_rank(row: Straggler, steps: int, *, at_most: bool = False) -> str:
    """Return the answer about one rank; *at_most* if waits are upper bounds.

    >>> from tracekit.documents.analysis import Phase, WaitCause
    >>> cause = WaitCause("slow_gpu", 9, Evidence(ratio=1.96))
    >>> row = Straggler(2, "dp_comm", 9, 1, kind="chronic", steps=[4, 5], late_ns=54_000_000, why=[cause])
    >>> late_rank(row, 2)
    'rank 2 is late in every step (54.0 ms per step): its GPU runs the same kernels 1.96 times slower'
    """
    when = when_late(row, steps)
    cost = _lateness_words(row)
    cost = f"at most {cost}" if at_most else cost
    return f"rank {row.rank} is late {when + ' ' if when else ''}({cost}): {why_late(row)}"


def late_rows(analysis: Analysis, label: str | None = None) -> list[Straggler]:
    """Return the ranks that are late in any step; messages of a pipeline do not count.

    A rank that clocks leave open counts if a cause is known, which then decides.
    """
    rows = []
    for row in analysis.stragglers.rows:
        is_certain = not row.uncertain or any(part.cause != "unknown" for part in row.why)
        is_of_label = label is None or row.label == label
        if row.steps and row.label != "pp_comm" and is_certain and is_of_label:
            rows.append(row)
    return rows


def stragglers(analysis: Analysis) -> tuple[Straggler, ...]:
    """Return the ranks that start operations last, those that cause the most waiting first."""
    return tuple(row for row in analysis.stragglers.rows if row.caused_ns)[:MAX_STRAGGLERS]


def name_straggler(row: Straggler) -> str:
    """Return the number of a rank, or of the ranks of which clocks leave open which it was.

    >>> name_straggler(Straggler(2, "dp_comm", 9, 1, candidates=[2]))
    '2'
    >>> name_straggler(Straggler(2, "dp_comm", 9, 1, uncertain=True, candidates=[1, 2]))
    '1 or 2'
    """
    if not row.uncertain:
        return str(row.rank)
    few = len(row.candidates) <= MAX_CANDIDATES_NAMED
    return " or ".join(map(str, row.candidates)) if few else f"one of {len(row.candidates)}"


def straggler_table(analysis: Analysis) -> Table | None:
    """Return the ranks that start operations last, and the waiting they cause.

    None if nobody waits.
    """
    steps = max(len(analysis.step.per_step), 1)
    columns = (
        Column("rank", "figure", value=name_straggler),
        Column("label", "label"),
        Column("others waited", "ms", value="caused_ns"),
        Column("operations", "count"),
        Column("late", "word", 1, value=lambda row: when_late(row, steps)),
        Column("why", "name", 2, value=why_late),
    )
    note = "the rank that starts a matched operation last; others' wait in it, summed over ranks"
    clocks = clock_note(analysis)
    return make_table(
        columns, stragglers(analysis), notes=(f"{note}. {clocks}" if clocks else note,)
    )


def clock_note(analysis: Analysis) -> str:
    """Return a sentence about how well the clocks of the ranks agree.

    Empty if nothing was matched.
    """
    clocks = analysis.clocks
    if clocks.residual_ns is None:
        return ""
    corrected = len(clocks.table.filter(pl.col("offset_ns") != 0))
    sentence = (
        f"Matched ends lie {clocks.residual_ns / 1e3:,.1f} µs apart "
        f"(median; {(clocks.worst_ns or 0) / 1e3:,.1f} at most)"
    )
    if corrected:
        sentence += (
            f"; {counted(corrected, 'clock')} {'was' if corrected == 1 else 'were'} corrected"
        )
    uncertainty_ns = clocks.table["uncertainty_ns"].max()
    if isinstance(uncertainty_ns, int) and uncertainty_ns:
        sentence += f"; clocks may differ by up to {ms(uncertainty_ns)} more than that tells"
    return sentence


class StepMap(msgspec.Struct, frozen=True):
    """A time of each rank (rows) in each step (columns)."""

    steps: Sequence[int | None]
    rows: Sequence[tuple[int, Sequence[int | None]]]
    """A rank, and its times in ns by step; None where one is not known."""
    least_ns: int
    most_ns: int
    notes: Sequence[str]
    """Sentences about what is counted and what is left out."""


def lateness_map(analysis: Analysis) -> StepMap | None:
    """Return how long the others waited for each rank in each step, summed over ranks and labels.

    None if no rank is late in any step. Shown are the ranks that others wait for most. Where clocks
    leave open which rank arrived last, each candidate counts, as in the list of stragglers.
    """
    table = analysis.stragglers.lateness
    if table.is_empty() or not late_rows(analysis) or not (table["share"] >= MIN_LATE_SHARE).any():
        return None
    cells = _waits_by_rank_and_step(analysis)
    all_ranks = table["rank"].unique().to_list()
    all_steps = table["step"].unique().sort().to_list()
    steps = all_steps[:MAX_MAP_STEPS]
    waits_of_rank = {}
    for rank in all_ranks:
        waits_of_rank[rank] = [cells[rank, step] for step in steps]
    latest_first = sorted(all_ranks, key=lambda rank: -sum(waits_of_rank[rank]))
    ranks = sorted(latest_first[:MAX_MAP_RANKS])
    rows = [(rank, waits_of_rank[rank]) for rank in ranks]
    notes = []
    if any(row.uncertain for row in analysis.stragglers.rows):
        notes.append(
            "where clocks leave open which of several ranks came last, each of them is counted"
        )
    if len(ranks) < len(all_ranks) or len(steps) < len(all_steps):
        shown = f"{len(ranks)} of {len(all_ranks)} ranks, the latest, and {len(steps)} of {len(all_steps)} steps"
        notes.append(f"shown are {shown}")
    most_ns = max(max(waits_of_rank[rank]) for rank in ranks)
    return StepMap(steps, rows, least_ns=0, most_ns=most_ns, notes=notes)


def _waits_by_rank_and_step(analysis: Analysis) -> Counter[tuple[int, int | None]]:
    """Return how long others waited for each rank in each step, in ns.

    Where clocks leave open which rank came last, each candidate counts.
    """
    candidates = {
        (row.rank, row.label): row.candidates for row in analysis.stragglers.rows if row.uncertain
    }
    cells: Counter[tuple[int, int | None]] = Counter()
    for last_rank, label, step, ns in analysis.stragglers.waits.iter_rows():
        for rank in candidates.get((last_rank, label), [last_rank]):
            cells[rank, step] += ns
    return cells


def imbalance_line(analysis: Analysis) -> str:
    """Return how unequal the work is, and what equal work saves if that is known.

    Empty below 2 % of the steps.
    """
    share = analysis.stragglers.imbalance_share
    if share is None or share < MIN_LATE_SHARE:
        return ""
    table = analysis.stragglers.imbalance
    worst = table.sort("share").tail(1).to_dicts()[0]
    tokens = ""
    if worst["tokens_mean"] and worst["tokens_max"] > worst["tokens_mean"]:
        tokens = f"; in step {worst['step']} rank {worst['most_work_rank']} has {worst['tokens_max']:,} tokens, "
        tokens += f"the mean is {worst['tokens_mean']:,.0f}"
    mean_ns = table.group_by("step").agg(pl.col("cost_ns").max())["cost_ns"].mean()
    assert isinstance(mean_ns, float)
    saves_ns = None
    for row in analysis.changed_steps:
        if row.change == "balance":
            saves_ns = row.saves_ns
            break
    saves = f"; equal work saves at most {ms(saves_ns)} of a step" if saves_ns else ""
    more = f"the rank with the most has {ms(mean_ns)} more than the mean in a step ({percent(share)} of it)"
    return f"Ranks have unequal work: {more}{saves}{tokens}."


def imbalance_table(analysis: Analysis) -> Table | None:
    """Return the steps in which work is most unequal; None where the answer does not mention it."""
    if not imbalance_line(analysis):
        return None
    rows = analysis.stragglers.imbalance.sort("cost_ns", descending=True).head(MAX_IMBALANCE_ROWS)
    columns = (
        Column("step", "figure"),
        Column("most work", "rank", value="most_work_rank"),
        Column("its tokens", "count", value="tokens_max"),
        Column("mean tokens", "count", value="tokens_mean"),
        Column("above mean", "ms", value="cost_ns"),
        Column("of the step", "share", value="share"),
    )
    note = "work of the rank with the most minus the mean, at the usual speed of the same kernels; longest first"
    return make_table(columns, rows.iter_rows(named=True), notes=(note,))


def slowdown_table(analysis: Analysis) -> Table | None:
    """Return the stages, kinds of cells and ranks that slow the pipeline down.

    None if nothing does by 3 %.
    """
    slowdown = analysis.slowdown
    if slowdown is None or not slowdown.groups:
        return None
    order = ("stage", "op", "rank")
    shown = [
        part
        for part in slowdown.groups
        if part.alone > 1 and part.explains > 0 and part.by in order
    ]
    shown.sort(key=lambda part: order.index(part.by))
    columns = (
        Column("of", value=lambda part: f"{part.by} {part.name}"),
        Column("alone", "figure", value=lambda part: f"× {part.alone:.3f}"),
        Column("explains", "share", value=lambda part: min(part.explains, 1.0)),
    )
    note = (
        f"a step takes {slowdown.ratio:.3f} times as long as with the mean duration of each kind of cell; alone: with "
        "only these cells as measured; explains: share of the slowdown that goes if they take the mean. Stages, ops "
        "and ranks divide the same cells in three ways, so that shares do not add up; who is waited for is listed apart"
    )
    return make_table(columns, shown[:MAX_SLOWDOWN_ROWS], notes=(note,))
