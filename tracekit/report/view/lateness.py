"""Lateness of ranks in words and as a map: who is late, in which steps, and why."""

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import polars as pl

from tracekit._util.text import counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.stragglers import MIN_LATE_SHARE, Stragglers
from tracekit.documents.analysis import Evidence, Straggler
from tracekit.report.table import Column, Table, make_table

UNKNOWN_CAUSE = "the cause is not known"
MAX_MAP_RANKS = 32
"""Ranks of the map, the latest."""
MAX_MAP_STEPS = 60
"""Steps of the map, the first."""

MAX_IMBALANCE_ROWS = 10
MAX_SLOWDOWN_ROWS = 12
MIN_OVERHEAD_TO_REPORT = 0.01
"""Share of a step by which recording must have lengthened it to be reported."""


def _tokens(evidence: Evidence) -> str:
    if evidence.tokens is None or evidence.tokens_of_others is None or evidence.tokens == evidence.tokens_of_others:
        return f"it has {evidence.ratio:.2f} times the work of the others" if evidence.ratio else "it has more work"
    return f"it has more work ({evidence.tokens:,} tokens in a step, the others {evidence.tokens_of_others:,})"


def _slow_gpu(evidence: Evidence) -> str:
    slower = f"its GPU runs the same kernels {evidence.ratio or 1:.2f} times slower"
    if evidence.multiprocessors is None:
        return slower
    own, others = evidence.multiprocessors, evidence.multiprocessors_of_others
    return f"{slower} (on {own} multiprocessors, the others on {others})"


def _chain(evidence: Evidence) -> str:
    if evidence.role is not None:
        return f"its {evidence.role} process ends later than on the other ranks"
    chain = evidence.chain or []
    return f"it waits for rank {chain[-1]} itself" if len(chain) > 1 else "it waits for another rank itself"


_WORDS: Mapping[str, Callable[[Evidence], str]] = {
    "slow_gpu": _slow_gpu,
    "more_work": _tokens,
    "host_late": lambda evidence: f"its host launches late (its GPU is empty for {ms(evidence.idle_ns or 0)})",
    "slow_link": lambda evidence: f"its transfers take {evidence.ratio or 1:.2f} times as long as others of their size",
    "waited_itself": _chain,
    "unknown": lambda evidence: f"{UNKNOWN_CAUSE} ({evidence.reason})",
}


def why_late(row: Straggler) -> str:
    """Return the causes of a rank's lateness in words, the largest first; empty if it is not late.

    >>> from tracekit.documents.analysis import WaitCause
    >>> cause = WaitCause("slow_gpu", 9, Evidence(ratio=1.96))
    >>> why_late(Straggler(2, "dp_comm", 9, 1, kind="chronic", steps=[4], late_ns=3, why=[cause]))
    'its GPU runs the same kernels 1.96 times slower'
    """
    if not row.steps:
        return ""
    named = [part for part in row.why if part.cause != "unknown"] or row.why
    return ", and ".join(_WORDS[part.cause](part.evidence) for part in named)


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
    """Return why the ranks of a pipeline wait for *rank*, to be added to its name; empty if that is not known.

    >>> from tracekit.documents.analysis import WaitCause
    >>> cause = WaitCause("waited_itself", 6, Evidence(chain=[1, 3]))
    >>> root = Straggler(3, "pp_comm", 9, 1, why=[WaitCause("more_work", 6, Evidence(ratio=2.03))])
    >>> why_pipeline_waits(Stragglers((Straggler(1, "pp_comm", 9, 1, why=[cause]), root)), 1)
    ', which waits for rank 3 itself: it has 2.03 times the work of the others'
    """
    cause = stragglers.pipeline_cause(rank)
    if cause is None:
        return ""
    if cause.cause != "waited_itself":
        return f": {_WORDS[cause.cause](cause.evidence)}"
    root = (cause.evidence.chain or [rank])[-1]
    root_cause = stragglers.pipeline_cause(root) if root != rank else None
    if root_cause is None or root_cause.cause == "waited_itself":
        return ""
    return f", which waits for rank {root} itself: {_WORDS[root_cause.cause](root_cause.evidence)}"


def late_rank(row: Straggler, steps: int, *, at_most: bool = False) -> str:
    """Return the answer about one rank; *at_most* if waits are upper bounds.

    >>> from tracekit.documents.analysis import WaitCause
    >>> cause = WaitCause("slow_gpu", 9, Evidence(ratio=1.96))
    >>> row = Straggler(2, "dp_comm", 9, 1, kind="chronic", steps=[4, 5], late_ns=54_000_000, why=[cause])
    >>> late_rank(row, 2)
    'rank 2 is late in every step (54.0 ms per step): its GPU runs the same kernels 1.96 times slower'
    """
    when = when_late(row, steps)
    cost = f"{ms(row.late_ns)} per step" if len(row.steps) > 1 else ms(row.late_ns)
    if row.worst_ns is not None:
        cost += f", {ms(row.worst_ns)} in step {row.worst_step}"
    cost = f"at most {cost}" if at_most else cost
    return f"rank {row.rank} is late {when + ' ' if when else ''}({cost}): {why_late(row)}"


def late_rows(analysis: Analysis, label: str | None = None) -> list[Straggler]:
    """Return the ranks that are late in any step; messages of a pipeline do not count.

    A rank that clocks leave open counts if a cause is known, which then decides.
    """
    rows = [row for row in analysis.stragglers.rows if row.steps and row.label != "pp_comm"]
    certain = [row for row in rows if not row.uncertain or any(part.cause != "unknown" for part in row.why)]
    return [row for row in certain if label is None or row.label == label]


class LatenessMap(msgspec.Struct, frozen=True):
    """Waiting of the other ranks for each rank, by step, summed over ranks and labels."""

    steps: tuple[int | None, ...]
    rows: tuple[tuple[int, tuple[int, ...]], ...]
    """Rank, and the nanoseconds that others waited for it in each step."""
    notes: tuple[str, ...]
    largest_ns: int


def lateness_map(analysis: Analysis) -> LatenessMap | None:
    """Return the map of the ranks that others wait for most; None if no rank is late in any step.

    Where clocks leave open which rank arrived last, each candidate counts, as in the list of stragglers.
    """
    table = analysis.stragglers.lateness
    if table.is_empty() or not late_rows(analysis) or not (table["share"] >= MIN_LATE_SHARE).any():
        return None
    candidates = {(row.rank, row.label): row.candidates for row in analysis.stragglers.rows if row.uncertain}
    waits = analysis.tables["operations"].filter((pl.col("wait_ns") > 0) & (pl.col("last_rank") != pl.col("rank")))
    waits = waits.group_by("last_rank", pl.col("label").cast(pl.String), "step").agg(pl.col("wait_ns").sum())
    cells: Counter[tuple[int, int | None]] = Counter()
    for last_rank, label, step, ns in waits.iter_rows():
        for rank in candidates.get((last_rank, label), [last_rank]):
            cells[rank, step] += ns
    all_ranks, all_steps = table["rank"].unique().to_list(), table["step"].unique().sort().to_list()
    steps = all_steps[:MAX_MAP_STEPS]
    total_ns = {rank: sum(cells[rank, step] for step in steps) for rank in all_ranks}
    ranks = sorted(sorted(all_ranks, key=lambda rank: -total_ns[rank])[:MAX_MAP_RANKS])
    rows = tuple((rank, tuple(cells[rank, step] for step in steps)) for rank in ranks)
    notes = []
    if candidates:
        notes.append("where clocks leave open which of several ranks came last, each of them is counted")
    if len(ranks) < len(all_ranks) or len(steps) < len(all_steps):
        shown = f"{len(ranks)} of {len(all_ranks)} ranks, the latest, and {len(steps)} of {len(all_steps)} steps"
        notes.append(f"shown are {shown}")
    return LatenessMap(tuple(steps), rows, tuple(notes), max(max(row[1]) for row in rows))


def imbalance_line(analysis: Analysis) -> str:
    """Return how unequal the work is, and what equal work saves if that is known; empty below 2 % of the steps."""
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
    saves_ns = next((row.saves_ns for row in analysis.changed_steps if row.change == "balance"), None)
    saves = f"; equal work saves up to {ms(saves_ns)} of a step" if saves_ns else ""
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
    """Return the stages, kinds of cells and ranks that slow the pipeline down; None if nothing does by 3 %."""
    slowdown = analysis.slowdown
    if slowdown is None or not slowdown.groups:
        return None
    slowing = [part for part in slowdown.groups if part.alone > 1 and part.explains > 0]
    shown = [part for by in ("stage", "op", "rank") for part in slowing if part.by == by]
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


def recording_overhead(analysis: Analysis) -> str:
    """Return how much longer recording made the steps; empty if it was not measured, or below 1 %."""
    shares = [source.recording_overhead for source in analysis.sources if source.recording_overhead is not None]
    if max(shares, default=0.0) < MIN_OVERHEAD_TO_REPORT:
        return ""
    return f"recording made these steps {percent(max(shares), digits=0)} longer"
