"""The time budget: bars per rank, labels, the compute that hides communication, and the cost of hiding."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import polars as pl

from tracekit._util.text import ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget, Figures, RankFigures
from tracekit.documents.coding import to_plain_rows
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import at_least
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

MAX_RANKS_WITH_BARS = 64
"""Up to this number of ranks, every rank has a bar …"""
BARS_OF_LARGE_RUNS = 16
"""… and of more ranks, this many have one."""
NOT_RECORDED = "not recorded"
"""Name of the part of a budget in which lost events may have run."""
MIN_LOUD_SHARE = 0.01
"""Share of the span above which work without a known label is highlighted."""
MIN_COLUMN_SHARE = 0.005
"""Share of some label's time from which a compute label that hides it has a column; less would be
shown as 0 %."""
MAX_BESIDE = 4
"""Compute labels named beside one label."""
MIN_HIDING_ROW_SHARE = 0.005
"""Share of the whole cost of hiding from which a label has a row."""


class Part(msgspec.Struct, frozen=True):
    """One part of a budget."""

    name: str
    kind: str
    """``compute``, ``communication``, ``copy``, ``idle`` or ``unrecorded``."""
    ns: float
    share: float
    """Share of the span."""
    colour: str


class Bar:
    """A rank's span in parts that sum to it, or the mean of all ranks.

    Args:
        name: Name of the bar.
        whole: Measurements of a rank, or their sum over *of* ranks, whose mean is then shown.
        rank: Number of the rank, if it is one.
        of: Number of ranks in the sum.
    """

    def __init__(self, name: str, whole: Figures, *, rank: int | None = None, of: int = 1) -> None:
        self.name = name
        self.whole = whole
        self.rank = rank
        self.span_ns = whole.budget.span_ns / of
        self.parts = budget_parts(whole.budget, idle_known=whole.idle_known, of=of)

    @property
    def idle(self) -> str:
        """The share of idle time in words."""
        return percent(self.share("idle")) if self.whole.idle_known else "unknown"

    @property
    def bubble(self) -> str:
        """The share of the bubble in words; a lower bound where a wait is unknown."""
        return at_least(percent(self.whole.bubble_fraction), self.whole.lower_bound)

    def share(self, kind: str) -> float:
        """Return the share of the span of one kind of part."""
        return sum(part.share for part in self.parts if part.kind == kind)


def budget_parts(budget: Budget, *, idle_known: bool, of: int = 1) -> tuple[Part, ...]:
    """Return the parts that a bar of this budget is drawn of, the mean over *of* ranks.

    >>> [part.name for part in budget_parts(Budget(compute_ns=6, exposed_ns={"dp_comm": 3}, idle=1), idle_known=True)]
    ['compute', 'dp_comm', 'idle']
    """
    span_ns = max(1, budget.span_ns)
    parts = [("compute", "compute", budget.compute_ns, COMPUTE_COLOUR)]
    for label, ns in budget.exposed_ns.items():
        if ns:
            parts.append((label, kind_of(label), ns, LABEL_COLOURS[label]))
    if idle_known:
        parts.append(("idle", "idle", budget.idle_ns, IDLE_COLOUR))
    if budget.unrecorded_ns:
        parts.append((NOT_RECORDED, "unrecorded", budget.unrecorded_ns, UNRECORDED_COLOUR))
    return tuple(
        Part(part, kind, ns / of, ns / span_ns, colour) for part, kind, ns, colour in parts
    )


class BudgetView:
    """The budgets of the ranks shown, and their mean over all ranks."""

    def __init__(self, analysis: Analysis) -> None:
        ranks = _ranks_with_bars(analysis.rank_results)
        self.bars = [Bar(f"rank {rank.rank}", rank.whole, rank=rank.rank) for rank in ranks]
        self.mean = Bar("mean", analysis.total, of=recorded_ranks(analysis))
        self.hidden_ranks = len(analysis.rank_results) - len(ranks)
        """Ranks that have no bar of their own."""
        self.legend = []
        for part in self.mean.parts:
            if part.ns or part.kind == "idle":
                is_exposed = part.kind in ("communication", "copy")
                name = f"exposed {part.name}" if is_exposed else part.name
                self.legend.append((name, part.colour))
        """Names and colours of the parts."""
        self.of_step = budget_parts(
            analysis.step.stated_budget, idle_known=analysis.total.idle_known
        )
        """Parts of the step that is stated first."""
        self.as_recorded = bool(analysis.step.profiler_ns)
        """Whether the profiler made the ranks' spans longer than the step that is stated first."""


def _ranks_with_bars(ranks: Sequence[RankFigures]) -> Sequence[RankFigures]:
    """Return all ranks; of a large run some, evenly spread from the least compute to the most."""
    if len(ranks) <= MAX_RANKS_WITH_BARS:
        return ranks
    by_compute = sorted(
        ranks, key=lambda rank: rank.whole.budget.compute_ns / max(1, rank.whole.budget.span_ns)
    )
    last = len(ranks) - 1
    return [
        by_compute[round(i * last / (BARS_OF_LARGE_RUNS - 1))] for i in range(BARS_OF_LARGE_RUNS)
    ]


class LabelRow:
    """One label over all ranks; times are means over *ranks* ranks whose sum is *total*."""

    def __init__(self, label: str, total: Figures, ranks: int) -> None:
        span_ns = max(1, total.budget.span_ns)
        ns = total.label_ns[label]
        exposed_ns = total.budget.exposed_ns.get(label, 0)
        wait_ns = total.wait_ns.get(label)
        self.label = label
        self.kind = kind_of(label)
        self.ns = ns / ranks
        self.share = ns / span_ns
        self.count = total.label_count.get(label, 0)
        """Events on all ranks."""
        self.hidden = None if self.kind == "compute" else total.overlap.get(label)
        """Share of its own time that compute hides; None for compute itself."""
        self.exposed_ns = exposed_ns / ranks
        self.exposed_share = exposed_ns / span_ns
        """Share of the span."""
        self.wait_ns = None if wait_ns is None else wait_ns / ranks
        self.loud = label == "other" and ns > MIN_LOUD_SHARE * span_ns
        """Whether this is work without a known label that takes more than ``MIN_LOUD_SHARE`` of the
        span."""
        self.because_ns = {}
        for cause, cause_ns in total.because_ns.get(label, {}).items():
            if cause_ns:
                self.because_ns[cause] = cause_ns / ranks
        """Exposed time by cause (``schema.EXPOSURE_CAUSES``), where causes are known."""
        self.blocking_ns = total.blocking_ns.get(label)
        """Exposed time on the critical path, over all ranks, where it is known."""

    def causes(self, *, most: int = 2, least: float = 0.05) -> list[tuple[str, float]]:
        """Return the *most* largest causes of exposure with their shares of the exposed time, if at least *least*."""
        exposed_ns = sum(self.because_ns.values())
        largest = sorted(self.because_ns.items(), key=lambda item: -item[1])[:most]
        return [(cause, ns / exposed_ns) for cause, ns in largest if ns >= least * exposed_ns]


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
    return max(1, sum(result.whole.budget.span_ns > 0 for result in analysis.rank_results))


def label_rows(analysis: Analysis) -> tuple[LabelRow, ...]:
    """Return the labels that ran, in the order of the label list."""
    total = analysis.total
    ranks = recorded_ranks(analysis)
    return tuple(LabelRow(label, total, ranks) for label in LABELS if total.label_ns.get(label))


class HidingRow(msgspec.Struct, frozen=True):
    """How much of one label's time compute hides."""

    label: str
    ns: float
    """Time per rank."""
    hidden: float
    """Share of that time beside compute."""
    by_label: Mapping[str, float]
    """Share of that time beside each label of compute; kernels that run at once count each."""


class HidingMatrix(msgspec.Struct, frozen=True):
    """Which compute hides how much of each label's time, over all ranks."""

    labels: tuple[str, ...]
    """Labels of compute that hide enough to have a column."""
    rows: tuple[HidingRow, ...]
    table: Table
    """The same as a table."""


def hiding_matrix(analysis: Analysis) -> HidingMatrix | None:
    """Return which compute hides how much of each label's time; None if there is nothing to hide."""
    total = analysis.total
    ranks = recorded_ranks(analysis)
    hidden_by_label = {
        hidden_label: hidden_by
        for hidden_label, hidden_by in total.hidden_by_ns.items()
        if total.label_ns.get(hidden_label)
    }
    hiding = []
    for name in LABELS:
        if any(
            by.get(name, 0) >= MIN_COLUMN_SHARE * total.label_ns[label]
            for label, by in hidden_by_label.items()
        ):
            hiding.append(name)
    rows = []
    for label, by in hidden_by_label.items():
        ns = total.label_ns[label]
        shares = {name: by.get(name, 0) / ns for name in hiding}
        rows.append(HidingRow(label, ns / ranks, total.overlap.get(label) or 0.0, shares))
    columns = [
        Column("", value="label"),
        Column("time per rank", "ms", value="ns"),
        Column("hidden", "share"),
    ]
    for name in hiding:
        columns.append(Column(f"by {name}", "share", value=partial(_share_hidden_by, name)))
    over = ", over all ranks," if len(analysis.rank_results) > 1 else ""
    meaning = f"share of each row's own time{over} that compute covers; kernels that run at once count each"
    table = make_table(columns, rows, notes=(meaning,))
    return None if table is None else HidingMatrix(tuple(hiding), tuple(rows), table)


def _share_hidden_by(label: str, row: HidingRow) -> float:
    """Return the share of a row's time that is beside one label of compute."""
    return row.by_label[label]


def beside_table(analysis: Analysis) -> Table | None:
    """Return which compute (label and module) ran beside each label in each pass, the largest first.

    >>> from tracekit import analyze
    >>> beside_table(analyze("sample_traces/1f1b")).rows[0][3]
    'attention forward 1.3 %'
    """
    # One row per rank, label, pass and hiding compute. ``of_ns`` is the label's whole time on that
    # rank and repeats in each of its rows, so it is summed once per rank. Compute beside less than
    # 1 % of the label's time is left out.
    hidden = analysis.tables["hidden"].filter("detail", pl.col("step").is_null())
    keys = ["label", "pass"]
    label_times = hidden.unique(["rank", *keys]).group_by(keys).agg(pl.col("of_ns").sum())
    sums = (
        hidden.group_by(*keys, "by", "by_module", maintain_order=True)
        .agg(pl.col("ns").sum())
        .join(label_times, on=keys, nulls_equal=True, maintain_order="left")
        .filter(pl.col("ns") > 0, pl.col("ns") * 100 >= pl.col("of_ns"))
    )
    rows = []
    for part in sums.partition_by(keys, maintain_order=True):
        largest = part.sort("ns", descending=True).head(MAX_BESIDE).rows(named=True)
        parts = []
        for row in largest:
            words = (row["by_module"], row["by"], percent(row["ns"], row["of_ns"]))
            parts.append(" ".join(filter(None, words)))
        first = largest[0]
        rows.append(
            (
                first["label"],
                first["pass"],
                first["of_ns"] / max(1, len(analysis.rank_results)),
                ", ".join(parts),
            )
        )
    columns = (
        Column("label", "label"),
        Column("pass"),
        Column("time per rank", "ms", terminal_heading="ms per rank"),
        Column("beside it, share of the label's time"),
    )
    return make_table(
        columns,
        rows,
        caption="Shares of the label's own time in that pass; kernels that run at once count each",
    )


def hiding_table(analysis: Analysis) -> Table | None:
    """Return how much slower compute ran beside communication.

    None if no kernel ran both beside it and alone.
    """
    hiding = analysis.hiding
    if hiding is None or hiding.extra_ns is None:
        return None
    ranks = max(1, len(analysis.rank_results))
    columns = (
        Column("label", "label"),
        Column("kernels", "count"),
        Column("slower by", "share", value=lambda row: row["slowdown"] - 1),
        Column("extra per rank", "ms", value=lambda row: row["extra_ns"] / ranks),
    )
    min_extra_ns = MIN_HIDING_ROW_SHARE * hiding.extra_ns
    labels = [row for row in to_plain_rows(hiding.by_label) if abs(row["extra_ns"]) >= min_extra_ns]
    saved = ms(hiding.saved_ns / ranks)
    cost = ms(hiding.extra_ns / ranks)
    if hiding.net_ns is None:
        balance = f"per rank hiding saved {saved} and cost at least {cost}"
    else:
        # The cost of what could be compared stands for the rest as well.
        whole_cost = ms((hiding.saved_ns - hiding.net_ns) / ranks)
        net = ms(hiding.net_ns / ranks)
        balance = f"per rank hiding saved {saved} and cost {whole_cost}: a net gain of {net}"
    compared = (
        "compared with the same kernel and shape alone: "
        f"{percent(hiding.compared)} of the time beside communication"
    )
    return make_table(columns, labels, notes=(f"{balance}; {compared}",))
