"""The time budget: a bar for each rank, and their mean."""

from collections.abc import Sequence

import msgspec

from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget, Figures, RankFigures
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.report.blocks import Block
from tracekit.report.findings import main_findings
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.section import Section
from tracekit.report.sections.stragglers import stragglers
from tracekit.report.table import Bar, BarPart, Column, PartKind, PlacedValue, Table, make_table
from tracekit.report.text import at_least
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

MAX_RANKS_WITH_BARS = 64
"""Up to this number of ranks, every rank has a bar …"""
BARS_OF_LARGE_RUNS = 16
"""… and of more ranks, the ones that differ most from the mean."""
BARS_IN_A_TERMINAL = 5
"""Ranks of these that a terminal shows."""
NOT_RECORDED = "not recorded"
"""Name of the part of a budget in which lost events may have run."""
PART_KINDS: dict[str, PartKind] = {
    "compute": "compute",
    "communication": "exposed",
    "copy": "exposed_copy",
}
"""Kind of the part that is exposed time of a label of each set."""


class RankBudget(msgspec.Struct, frozen=True):
    """The span of a rank in parts that sum to it, or the mean of all ranks, or a step without the profiler."""

    rank: int | None
    """Number of the rank; None for the others."""
    whole: Figures | None
    """Measurements of the rank, or their sum over *of* ranks; None for the step."""
    bar: Bar

    @property
    def name(self) -> str:
        """Name of its row."""
        if self.whole is None:
            return "without profiler"
        return "mean" if self.rank is None else str(self.rank)

    @property
    def idle(self) -> str:
        """The share of idle time in words."""
        is_known = any(part.kind == "idle" for part in self.bar.parts)
        return percent(self.share("idle")) if is_known else "unknown"

    @property
    def bubble(self) -> str:
        """The share of the bubble in words; a lower bound where a wait is unknown."""
        if self.whole is None:
            return ""
        return at_least(percent(self.whole.bubble_fraction), self.whole.lower_bound)

    def share(self, *kinds: PartKind) -> float:
        """Return the share of the span of some kinds of parts."""
        ns = sum(part.ns for part in self.bar.parts if part.kind in kinds)
        return ns / max(self.bar.whole_ns, 1)


def rank_budget(whole: Figures, *, rank: int | None = None, of: int = 1) -> RankBudget:
    """Return the budget of a rank, or the mean over *of* ranks whose sum *whole* is."""
    of_rank = "" if rank is None else f" rank:{rank}"
    parts = []
    for part in budget_parts(whole.budget, idle_known=whole.idle_known):
        search = f"{part.search}{of_rank}" if part.search else ""
        parts.append(msgspec.structs.replace(part, ns=part.ns / of, search=search))
    return RankBudget(rank, whole, Bar(parts, whole.budget.span_ns / of))


def budget_parts(budget: Budget, *, idle_known: bool) -> list[BarPart]:
    """Return the parts that a bar of this budget is drawn of.

    >>> [part.name for part in budget_parts(Budget(compute_ns=6, exposed_ns={"dp_comm": 3}, idle=1), idle_known=True)]
    ['compute', 'exposed dp_comm', 'idle']
    """
    compute_search = f"label:={','.join(COMPUTE_SET)}"
    parts = [BarPart("compute", "compute", budget.compute_ns, COMPUTE_COLOUR, compute_search)]
    for label, ns in budget.exposed_ns.items():
        if ns:
            kind = PART_KINDS[kind_of(label)]
            parts.append(
                BarPart(f"exposed {label}", kind, ns, LABEL_COLOURS[label], f"label:={label}")
            )
    if idle_known:
        parts.append(BarPart("idle", "idle", budget.idle_ns, IDLE_COLOUR))
    if budget.unrecorded_ns:
        parts.append(BarPart(NOT_RECORDED, "unrecorded", budget.unrecorded_ns, UNRECORDED_COLOUR))
    return parts


def kind_of(label: str) -> str:
    """Return the set a label belongs to.

    >>> kind_of("pp_comm"), kind_of("offload"), kind_of("other")
    ('communication', 'copy', 'compute')
    """
    return (
        "communication"
        if label in COMMUNICATION_LABELS
        else "copy"
        if label in COPY_LABELS
        else "compute"
    )


def recorded_ranks(analysis: Analysis) -> int:
    """Return the number of ranks with GPU events, at least 1: means are over these."""
    return max(1, sum(result.whole.budget.span_ns > 0 for result in analysis.ranks))


def mean_budget(analysis: Analysis) -> RankBudget:
    """Return the mean budget of all ranks."""
    return rank_budget(analysis.total, of=recorded_ranks(analysis))


def budgets_of_ranks(analysis: Analysis) -> list[RankBudget]:
    """Return the budgets of the ranks that have a bar, by number: all, or of many those that differ most."""
    ranks = analysis.ranks
    if len(ranks) > MAX_RANKS_WITH_BARS:
        chosen = most_different(analysis)[:BARS_OF_LARGE_RUNS]
        ranks = tuple(sorted(chosen, key=lambda rank: rank.rank))
    return [rank_budget(rank.whole, rank=rank.rank) for rank in ranks]


def most_different(analysis: Analysis) -> list[RankFigures]:
    """Return the ranks, first those that the first finding names and the one that is waited for most.

    The others follow, those first that differ most from the mean.
    """
    mean = mean_budget(analysis)

    def difference(rank: RankFigures) -> float:
        own = rank_budget(rank.whole)
        kinds: list[PartKind] = ["compute", "exposed", "exposed_copy", "idle", "unrecorded"]
        shares = [abs(own.share(kind) - mean.share(kind)) for kind in kinds]
        bubble = (rank.whole.bubble_fraction or 0.0) - (analysis.total.bubble_fraction or 0.0)
        return max(*shares, abs(bubble))

    named = {straggler.rank for straggler in stragglers(analysis)[:1] if not straggler.uncertain}
    for finding in main_findings(analysis)[:1]:
        named.update(finding.ranks[:1])
    return sorted(analysis.ranks, key=lambda rank: (rank.rank not in named, -difference(rank)))


def budget_table(analysis: Analysis) -> Table | None:
    """Return the span of each rank as a bar with the shares of its parts, then the mean of all ranks of the run.

    None if no rank has GPU events.
    """
    if not any(analysis.total.label_ns.values()):
        return None
    ranks = analysis.ranks
    rows = budgets_of_ranks(analysis)
    numbers = [row.rank for row in rows]
    short: list[int] = []
    notes = []
    if len(ranks) > BARS_IN_A_TERMINAL:
        chosen = {rank.rank for rank in most_different(analysis)[:BARS_IN_A_TERMINAL]}
        short = [i for i, number in enumerate(numbers) if number in chosen]
    if len(rows) < len(ranks):
        least = min(ranks, key=_compute_share)
        most = max(ranks, key=_compute_share)
        lowest = f"{percent(_compute_share(least))} (rank {least.rank})"
        highest = f"{percent(_compute_share(most))} (rank {most.rank})"
        notes.append(
            f"of {counted(len(ranks), 'rank')} those that differ most from the mean are shown; "
            f"compute runs from {lowest} to {highest} of the span"
        )
    totals = []
    if len(ranks) > 1:
        totals = [len(rows)]
        short += totals if short else []
        rows.append(mean_budget(analysis))
    free_budget = analysis.step.free_budget_ns if analysis.step.profiler_ns else None
    if free_budget is not None:
        parts = budget_parts(free_budget, idle_known=analysis.total.idle_known)
        totals.append(len(rows))
        short += totals[-1:] if short else []
        rows.append(RankBudget(None, None, Bar(parts, free_budget.span_ns)))
    has_unrecorded = any(row.share("unrecorded") for row in rows)
    columns = [
        Column("rank", "figure", value=_name),
        Column("span", "ms", value=lambda row: row.bar.whole_ns),
        Column("budget", "bar", terminal_heading=" ", value="bar"),
        Column("compute", "share", beside_bar=True, value=lambda row: row.share("compute")),
        Column(
            "exposed",
            "share",
            beside_bar=True,
            value=lambda row: row.share("exposed", "exposed_copy"),
        ),
        Column("idle", "figure", beside_bar=True),
    ]
    if has_unrecorded:
        columns.append(
            Column(
                NOT_RECORDED, "share", beside_bar=True, value=lambda row: row.share("unrecorded")
            )
        )
    if analysis.total.pipeline:
        columns.append(Column("bubble", "figure"))
    recorded = "; as recorded, with the time that the profiler adds"
    if free_budget is not None:
        recorded += "; the last row is a step without it, which shares and savings elsewhere are of"
    return make_table(
        columns,
        rows,
        notes=notes,
        totals=totals,
        caption=f"Shares of {'each' if len(ranks) > 1 else 'the'} rank's span; compute, exposed"
        f"{', idle and time that was not recorded' if has_unrecorded else ' and idle'} sum to it"
        f"{recorded if analysis.step.profiler_ns else ''}",
        short=short,
        short_note=""
        if notes
        else f"of {counted(len(ranks), 'rank')} those that differ most from the mean",
    )


def _name(row: RankBudget) -> PlacedValue | str:
    return row.name if row.rank is None else PlacedValue(row.name, row.rank)


def _compute_share(rank: RankFigures) -> float:
    budget = rank.whole.budget
    return budget.compute_ns / budget.span_ns if budget.span_ns else 0.0


def _build(analysis: Analysis) -> Sequence[Block | None]:
    return [budget_table(analysis)]


BUDGET_SECTION = Section(
    id="budget",
    tab="Budget",
    title="Where the {steps}{of_role} went",
    scope="shares of the {span}",
    name="Budget",
    about="where the {step_or_steps} went",
    picture=1,
    build=_build,
)
