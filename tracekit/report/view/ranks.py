"""Differences between ranks and steps: the time of a step, unequal work, what slows the pipeline down."""

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.combine.stragglers import MIN_LATE_SHARE
from tracekit.documents.analysis import RankFigures
from tracekit.documents.coding import rows as table_rows
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import ms_range

NOISE_SHARE = 0.01
"""Share by which the times of ranks or pipelines may differ and still count as equal."""
MAX_RANKS_LISTED_IN_FULL = 16
"""Up to this number of ranks, a table lists all of them …"""
WORST_RANKS_LISTED = 5
"""… and of more ranks, this many, in the order of their numbers."""
MAX_STEPS_IN_TABLE = 100
MAX_IMBALANCE_ROWS = 10
MAX_SLOWDOWN_ROWS = 12


class Pace:
    """The step time of a run, and a comparison of its ranks."""

    def __init__(self, analysis: Analysis) -> None:
        step = analysis.step
        self.ns = step.time_ns or 0
        self.steps = max(len(step.per_step), 1)
        self.ranks = len(step.by_rank)
        self.slowest = slowest_rank(step.time_ns_by_rank)
        """The rank that is slower than every other by more than noise; None if there is none."""
        self._times = step.time_ns_by_rank
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
        # The run's step, a median over steps of all ranks, may lie outside of the ranks' own medians.
        own = "median steps" if self.steps > 1 else "own steps"
        ranks = f"{counted(self.ranks, 'rank')}, their {own} {ms_range(self._times.values())}"
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
