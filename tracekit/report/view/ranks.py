"""Differences between ranks and steps: the time of a step, idle time and its causes, stragglers, step times."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import at_least, counted, ms, percent
from tracekit.analysis import Analysis, RankResult
from tracekit.documents.analysis import Straggler
from tracekit.report.table import Column, Table, make_table
from tracekit.report.view.lateness import when_late, why_late
from tracekit.schema import IDLE_CAUSES, PHASES

NOISE_SHARE = 0.01
"""Share by which the times of ranks or pipelines may differ and still count as equal."""


MAX_RANKS_LISTED = 16
"""Up to this number of ranks, a table lists all of them …"""
WORST_RANKS_LISTED = 5
"""… and of more ranks, this many, in the order of their numbers."""
MAX_STRAGGLERS = 10
MAX_CANDIDATES_NAMED = 3
"""Ranks that are named if clocks leave open which of them arrived last."""
MAX_STEPS = 100
MAX_HOST_ROWS = 5
MIN_HOST_ROW_SHARE = 0.005
"""Share of the launch-bound idle time from which an activity of the host has a row."""
MIN_LAUNCH_BOUND_SHARE = 0.01
"""Share of the span from which launch-bound idle time has a table."""
MAX_ACTIVITY_LENGTH = 60
"""Characters shown of an activity's name."""


class Pace(msgspec.Struct, frozen=True):
    """The time of a step on the rank that takes longest, as a mean over steps, and a comparison of the ranks."""

    ns: float
    steps: int
    ranks: int
    slowest: int | None
    """The rank that is slower than every other by more than noise, in most steps; None if there is none."""
    spread: float
    """Difference between the slowest and the fastest rank, as a share of the slowest rank's time."""
    between_ns: float = 0.0
    """Time from the end of a step to the start of the next, as a mean over ranks and steps."""

    def compared(self) -> str:
        """Return a comparison of the ranks in a few words; empty if there is one rank.

        >>> Pace(5.0, 1, 4, 2, 0.08).compared(), Pace(5.0, 1, 4, None, 0.004).compared()
        ('rank 2, the slowest of 4', '4 ranks alike, within 0.4 %')
        >>> Pace(5.0, 1, 4, None, 0.08).compared(), Pace(5.0, 1, 1, None, 0.0).compared()
        ('the longest of 4 ranks, the shortest 8.0 % less', '')
        """
        if self.ranks < 2:
            return ""
        if self.slowest is not None:
            return f"rank {self.slowest}, the slowest of {self.ranks}"
        if self.spread <= NOISE_SHARE:
            return f"{counted(self.ranks, 'rank')} alike, within {percent(max(self.spread, 0.001))}"
        return f"the longest of {counted(self.ranks, 'rank')}, the shortest {percent(self.spread)} less"


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


def pace(analysis: Analysis) -> Pace:
    """Return the pace of the steps that every rank has; a trace without step marks counts as one step."""
    spans = {rank.rank: {step.step: step.budget.span_ns for step in rank.per_step} for rank in analysis.rank_results}
    step_times = [ns for ns, _ in analysis.step_times.values()]
    steps: list[int | None] = list(analysis.step_times)
    if not steps:
        with_events = [rank for rank in analysis.rank_results if rank.whole.budget.span_ns]
        spans = {rank.rank: {None: rank.whole.budget.span_ns} for rank in with_events}
        step_times, steps = [max((span_of[None] for span_of in spans.values()), default=0)], [None]
    means = {rank: sum(span_of[step] for step in steps) / len(steps) for rank, span_of in spans.items()}
    longest_mean, slowest = max(means.values(), default=0.0), slowest_rank(means)
    # One odd step does not make a rank slow: it must be the slowest of more than half the steps.
    by_step = [slowest_rank({rank: span_of[step] for rank, span_of in spans.items()}) for step in steps]
    return Pace(
        ns=sum(step_times) / len(step_times),
        steps=len(steps),
        ranks=len(spans),
        slowest=slowest if 2 * by_step.count(slowest) > len(steps) else None,
        spread=1 - min(means.values()) / longest_mean if longest_mean else 0.0,
        between_ns=_time_between_steps(analysis),
    )


def _time_between_steps(analysis: Analysis) -> float:
    """Return the mean time between two steps; 0 if there is one step, or if steps overlap."""
    ranks = [rank for rank in analysis.rank_results if len(rank.per_step) > 1]
    outside_ns = sum(rank.whole.budget.span_ns - sum(step.budget.span_ns for step in rank.per_step) for rank in ranks)
    return max(0.0, outside_ns / sum(len(rank.per_step) - 1 for rank in ranks)) if ranks else 0.0


class Steps(msgspec.Struct, frozen=True):
    """The times of several steps."""

    rows: tuple[dict[str, Any], ...]
    """Number (``step``), ``least_ns``, ``median_ns`` and ``most_ns`` over ranks, a rank on which it took longest
    (``longest``; ``slowest`` if it exceeds every other by more than noise), whether the step is ``partial``, and the
    ``share`` of its median of the time of the longest step."""
    more: int
    """Steps that are not shown."""
    one_rank: bool


_ALWAYS_SHOWN_IDLE_CAUSES = ("launch_bound", "dependency")


def worst_ranks(ranks: Sequence[RankResult], amounts: Sequence[float]) -> tuple[list[RankResult], str]:
    """Return the ranks with the largest amounts in the order of their numbers, and a note if some are left out."""
    count = len(ranks) if len(ranks) <= MAX_RANKS_LISTED else WORST_RANKS_LISTED
    largest = sorted(range(len(ranks)), key=lambda i: -amounts[i])[:count]
    note = "" if len(largest) == len(ranks) else f"the {len(largest)} worst of {counted(len(ranks), 'rank')}"
    return sorted((ranks[i] for i in largest), key=lambda rank: rank.rank), note


def idle_table(analysis: Analysis) -> Table | None:
    """Return the causes of each rank's idle time, its pipeline wait and its bubble by phase; None if there is none."""
    pipelined, has_phases = analysis.total.pipeline, bool(analysis.total.label_ns.get("pp_comm"))
    ranks = [rank for rank in analysis.rank_results if rank.whole.budget.span_ns]
    if not any(r.whole.budget.idle_ns or r.whole.bubble.wait_ns or not r.whole.idle_known for r in ranks):
        return None
    causes = [
        cause
        for cause in IDLE_CAUSES
        if cause in _ALWAYS_SHOWN_IDLE_CAUSES or any(rank.idle_causes.get(cause) for rank in ranks)
    ]
    columns = [Column("rank", "rank"), Column("idle", "ms")]
    columns += [Column(IDLE_CAUSES[cause], "share", note="shares of idle") for cause in causes]
    if pipelined:
        columns += [Column("pipeline wait", "ms"), Column("bubble", "figure", note="of the span")]
        columns += [Column(phase, "ms", 1, "bubble in that phase") for phase in PHASES]

    def row(rank: RankResult) -> tuple[object, ...]:
        whole, idle_ns = rank.whole, rank.whole.budget.idle_ns if rank.whole.idle_known else None
        shares = [rank.idle_causes.get(cause, 0) / idle_ns if idle_ns else None for cause in causes]
        if not pipelined:
            return rank.rank, idle_ns, *shares
        bubble = at_least(percent(whole.bubble_fraction), whole.lower_bound)
        phases = [_bubble_in_phase(rank.phases, phase) if has_phases else None for phase in PHASES]
        return rank.rank, idle_ns, *shares, whole.bubble.wait_ns, bubble, *phases

    amounts = [(rank.whole.bubble_fraction if pipelined else rank.whole.budget.idle_ns) or 0.0 for rank in ranks]
    shown, note = worst_ranks(ranks, amounts)
    return make_table(columns, map(row, shown), notes=[note] if note else ())


def _bubble_in_phase(phases: Sequence[Mapping[str, Any]], name: str) -> int | None:
    rows = [phase for phase in phases if phase["phase"] == name]
    if not rows or any(row["idle_ns"] is None for row in rows):
        return None
    return sum(int(row["idle_ns"]) + int(row["wait_ns"] or 0) for row in rows)


def host_activity_table(analysis: Analysis) -> Table | None:
    """Return what the host did in launch-bound idle time, over all ranks; None if there is little of it."""
    span_ns, ranks = analysis.total.budget.span_ns, max(1, len(analysis.rank_results))
    ns_of: Counter[tuple[str, str | None, str | None]] = Counter()
    for row in (row for rank in analysis.rank_results for row in rank.instead):
        ns_of[row["instead"], row["what"], row["line"]] += row["ns"]
    launch_bound_ns = sum(ns_of.values())
    if not analysis.total.idle_known or launch_bound_ns < MIN_LAUNCH_BOUND_SHARE * span_ns or not launch_bound_ns:
        return None
    # Activities without a name say nothing, except that Python itself ran.
    named = {key: ns for key, ns in ns_of.items() if key[1] or key[0] == "python"}
    longest = Counter(named).most_common(MAX_HOST_ROWS)
    rows = [
        (ns / ranks, ns / launch_bound_ns, kind.replace("_", " "), (what or "")[:MAX_ACTIVITY_LENGTH], line or "")
        for (kind, what, line), ns in longest
        if ns >= MIN_HOST_ROW_SHARE * launch_bound_ns
    ]
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
    """Return the ranks that start operations last, and the waiting they cause; None if nobody waits."""
    steps = len(analysis.step_times)
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
    return make_table(columns, stragglers(analysis), notes=(f"{note}. {clocks}" if clocks else note,))


def clock_note(analysis: Analysis) -> str:
    """Return a sentence about how well the clocks of the ranks agree; empty if nothing was matched."""
    clocks = analysis.clocks
    if clocks.residual_ns is None:
        return ""
    corrected = len(clocks.table.filter(pl.col("offset_ns") != 0))
    sentence = (
        f"Matched ends lie {clocks.residual_ns / 1e3:,.1f} µs apart "
        f"(median; {(clocks.worst_ns or 0) / 1e3:,.1f} at most)"
    )
    if corrected:
        sentence += f"; {counted(corrected, 'clock')} {'was' if corrected == 1 else 'were'} corrected"
    uncertainty_ns = clocks.table["uncertainty_ns"].max()
    if isinstance(uncertainty_ns, int) and uncertainty_ns:
        sentence += f"; clocks may differ by up to {ms(uncertainty_ns)} more than that tells"
    return sentence


def steps_view(analysis: Analysis) -> Steps | None:
    """Return the time of each step over ranks; None if there is one step."""
    table = analysis.tables["steps"]
    if table["step"].n_unique() < 2:
        return None
    spans = table.group_by("step").agg(
        least_ns=pl.col("span_ns").min(),
        median_ns=pl.col("span_ns").median(),
        most_ns=pl.col("span_ns").max(),
        longest=pl.col("rank").sort_by("span_ns").last(),
        second_ns=pl.col("span_ns").top_k(2).min(),
        partial=pl.col("partial").any(),
    )
    rows = spans.sort("step").head(MAX_STEPS).with_columns(share=pl.col("median_ns") / spans["most_ns"].max())
    named = tuple(
        {**row, "slowest": row["longest"] if beyond_noise(row["most_ns"], row["second_ns"]) else None}
        for row in rows.rows(named=True)
    )
    return Steps(named, max(0, len(spans) - MAX_STEPS), table["rank"].n_unique() == 1)
