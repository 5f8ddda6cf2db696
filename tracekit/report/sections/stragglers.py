"""Ranks that others wait for: who, in which steps, why, and a map of the waiting by rank and step."""

from collections import Counter
from collections.abc import Callable, Mapping

import polars as pl

from tracekit._util.text import counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.combine.stragglers import MIN_LATE_SHARE
from tracekit.documents.analysis import Evidence, Straggler
from tracekit.report.blocks import StepMap
from tracekit.report.section import Section
from tracekit.report.table import Column, PlacedValue, Table, make_table

MAX_STRAGGLERS = 10
MAX_CANDIDATES_NAMED = 3
"""Ranks that are named if clocks leave open which of them arrived last."""
MAX_STEP_RATIO = 2
"""Ratio of the lateness in two steps above which each is given, instead of their mean."""
UNKNOWN_CAUSE = "the cause is not known"
MAX_MAP_RANKS = 32
"""Ranks of the map, the latest."""
MAX_MAP_STEPS = 60
"""Steps of the map, the first."""
MAX_IMBALANCE_ROWS = 10
MAX_SLOWDOWN_ROWS = 12


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
    for row in analysis.stragglers:
        is_certain = not row.uncertain or any(part.cause != "unknown" for part in row.why)
        is_of_label = label is None or row.label == label
        if row.steps and row.label != "pp_comm" and is_certain and is_of_label:
            rows.append(row)
    return rows


def stragglers(analysis: Analysis) -> tuple[Straggler, ...]:
    """Return the ranks that start operations last, those that cause the most waiting first."""
    return tuple(row for row in analysis.stragglers if row.caused_ns)[:MAX_STRAGGLERS]


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


def _straggler_place(row: Straggler) -> str | PlacedValue:
    """Return the name of a straggler, which leads to its rank where clocks leave only that one."""
    name = name_straggler(row)
    return name if row.uncertain else PlacedValue(name, row.rank)


def straggler_table(analysis: Analysis) -> Table | None:
    """Return the ranks that start operations last, and the waiting they cause.

    None if nobody waits.
    """
    steps = max(len(analysis.step.per_step), 1)
    columns = (
        Column("rank", "figure", value=_straggler_place),
        Column("label", "label"),
        Column("others waited", "ms", value="caused_ns"),
        Column("operations", "count"),
        Column("late", "word", 1, value=lambda row: when_late(row, steps)),
        Column("why", "word", 2, value=why_late),
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


def lateness_map(analysis: Analysis) -> StepMap | None:
    """Return how long the others waited for each rank in each step, summed over ranks and labels.

    None if no rank is late in any step. Shown are the ranks that others wait for most. Where clocks
    leave open which rank arrived last, each candidate counts, as in the list of stragglers.
    """
    table = analysis.waiting.lateness
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
    if any(row.uncertain for row in analysis.stragglers):
        notes.append(
            "where clocks leave open which of several ranks came last, each of them is counted"
        )
    if len(ranks) < len(all_ranks) or len(steps) < len(all_steps):
        shown = f"{len(ranks)} of {len(all_ranks)} ranks, the latest, and {len(steps)} of {len(all_steps)} steps"
        notes.append(f"shown are {shown}")
    most_ns = max(max(waits_of_rank[rank]) for rank in ranks)
    meaning = (
        "time in ms that others wait for each rank (row) in each step (column), "
        "summed over ranks and over all labels"
    )
    note = "; ".join([meaning, *notes])
    return StepMap(steps, rows, least_ns=0, most_ns=most_ns, what="waited for", note=note)


def _waits_by_rank_and_step(analysis: Analysis) -> Counter[tuple[int, int | None]]:
    """Return how long others waited for each rank in each step, in ns.

    Where clocks leave open which rank came last, each candidate counts.
    """
    candidates = {
        (row.rank, row.label): row.candidates for row in analysis.stragglers if row.uncertain
    }
    cells: Counter[tuple[int, int | None]] = Counter()
    for last_rank, label, step, ns in analysis.waiting.waits.iter_rows():
        for rank in candidates.get((last_rank, label), [last_rank]):
            cells[rank, step] += ns
    return cells


def imbalance_line(analysis: Analysis) -> str:
    """Return how unequal the work is, and what equal work saves if that is known.

    Empty below 2 % of the steps.
    """
    share = analysis.waiting.imbalance_share
    if share is None or share < MIN_LATE_SHARE:
        return ""
    table = analysis.waiting.imbalance
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
    rows = analysis.waiting.imbalance.sort("cost_ns", descending=True).head(MAX_IMBALANCE_ROWS)
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


STRAGGLER_SECTIONS = (
    Section(
        id="stragglers",
        tab="Critical path",
        title="Whom the others wait for",
        name="Waits",
        about="whom the others wait for",
        build=lambda analysis: [straggler_table(analysis), lateness_map(analysis)],
    ),
    Section(
        id="imbalance",
        title="Unequal work of the ranks",
        part_of="stragglers",
        build=lambda analysis: [imbalance_table(analysis)],
    ),
    Section(
        id="slowdown",
        title="What slows the pipeline down",
        part_of="stragglers",
        build=lambda analysis: [slowdown_table(analysis)],
    ),
)
