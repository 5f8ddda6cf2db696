"""Where the step went: bars, labels, what hides what."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit.analysis import Analysis, Measured, RankResult
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

MOST_RANKS = 64
"""Ranks that all have a bar of their own …"""
FEW_RANKS = 16
"""… and how many of more ranks have one."""
NOT_RECORDED = "not recorded"
"""The part of a budget in which lost work may have run."""
LOUD = 0.01
"""Share of the span above which work whose label is unknown stands out."""
WORTH_A_COLUMN = 0.005
"""Share of some label's time from which compute that hides it has a column: less is shown as nothing."""
MOST_BESIDE = 6
"""Compute labels named beside one label."""


class Part(msgspec.Struct, frozen=True):
    """One part of a budget."""

    name: str
    kind: str
    """``compute``, ``communication``, ``copy``, ``idle`` or ``unrecorded``."""
    ns: float
    share: float
    """Of the span."""
    colour: str


class Bar(msgspec.Struct, frozen=True):
    """One rank's span in parts that sum to it, or the mean of all ranks."""

    name: str
    rank: int | None
    span_ns: float
    parts: tuple[Part, ...]
    idle_known: bool
    bubble: float | None
    """Share of the span; None where it is not known or there is no pipeline."""
    lower_bound: bool

    def share(self, kind: str) -> float:
        """Return the share of the span of one kind of part."""
        return sum(part.share for part in self.parts if part.kind == kind)


class BudgetView(msgspec.Struct, frozen=True):
    """Where the step went on every rank shown, and on average."""

    bars: tuple[Bar, ...]
    mean: Bar
    hidden_ranks: int
    """Ranks that have no bar of their own."""
    legend: tuple[tuple[str, str], ...]
    """Names and colours of the parts."""


class LabelRow(msgspec.Struct, frozen=True):
    """One label over all ranks; times per rank."""

    label: str
    kind: str
    """``compute``, ``communication`` or ``copy``."""
    colour: str
    ns: float
    share: float
    """Of the span."""
    count: int
    """Events on all ranks."""
    hidden: float | None
    """Share of its own time that compute hides; None of compute itself."""
    exposed_ns: float
    exposed_share: float
    """Of the span."""
    wait_ns: float | None
    loud: bool = False
    """Work of no known label that is more than a hundredth of the span."""
    because_ns: Mapping[str, float] = {}
    """Exposed time by cause (``schema.EXPOSURE_CAUSES``), where causes are known."""
    blocking_ns: float | None = None
    """Exposed time whose removal shortens the step, where it is known."""

    def causes(self, *, most: int = 2, least: float = 0.05) -> list[tuple[str, float]]:
        """Return the largest causes of exposure and their shares of the exposed time."""
        whole = sum(self.because_ns.values())
        largest = sorted(self.because_ns.items(), key=lambda item: -item[1])[:most]
        return [(cause, ns / whole) for cause, ns in largest if ns >= least * whole]


class MatrixRow(msgspec.Struct, frozen=True):
    """What hides one label: shares of the label's own time, in the order of the matrix's columns."""

    label: str
    ns: float
    cells: tuple[float, ...]
    exposed: float


class Matrix(msgspec.Struct, frozen=True):
    """What hides what."""

    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


class Beside(msgspec.Struct, frozen=True):
    """What ran beside one label in one pass: compute label and module, and their share of the label's time."""

    label: str
    pass_: str | None
    ns: float
    parts: tuple[tuple[str, float], ...]


def kind_of(label: str) -> str:
    """Return the set a label belongs to.

    >>> kind_of("pp_comm"), kind_of("offload"), kind_of("other")
    ('communication', 'copy', 'compute')
    """
    return "communication" if label in COMMUNICATION_LABELS else "copy" if label in COPY_LABELS else "compute"


def budget_view(analysis: Analysis) -> BudgetView:
    """Return a bar for every rank of a small run; of a large one for a few, from the least compute to the most."""
    shown = _shown(analysis)
    total = analysis.total
    exposed = [(f"exposed {label}", LABEL_COLOURS[label]) for label, ns in total.budget.exposed_ns.items() if ns]
    ran = [("compute", COMPUTE_COLOUR)] if total.budget.compute_ns else []
    idle = [("idle", IDLE_COLOUR)] if total.idle_known else []
    lost = [(NOT_RECORDED, UNRECORDED_COLOUR)] if total.budget.unrecorded_ns else []
    return BudgetView(
        bars=tuple(bar_of(f"rank {one.rank}", one.whole, rank=one.rank) for one in shown),
        mean=bar_of("mean", total, of=len(analysis.rank_results)),
        hidden_ranks=len(analysis.rank_results) - len(shown),
        legend=(*ran, *exposed, *idle, *lost),
    )


def _shown(analysis: Analysis) -> list[RankResult]:
    ranks = list(analysis.rank_results)
    if len(ranks) <= MOST_RANKS:
        return ranks
    ordered = sorted(ranks, key=lambda one: one.whole.budget.compute_ns / max(1, one.whole.budget.span_ns))
    return [ordered[round(at * (len(ranks) - 1) / (FEW_RANKS - 1))] for at in range(FEW_RANKS)]


def bar_of(name: str, whole: Measured, *, rank: int | None = None, of: int = 1) -> Bar:
    """Return a budget as a bar; of a sum over ranks, times are the mean of so many."""
    span = max(1, whole.budget.span_ns)
    parts = [("compute", "compute", whole.budget.compute_ns, COMPUTE_COLOUR)]
    parts += [(label, kind_of(label), ns, LABEL_COLOURS[label]) for label, ns in whole.budget.exposed_ns.items() if ns]
    if whole.idle_known:
        parts.append(("idle", "idle", whole.budget.idle_ns, IDLE_COLOUR))
    if whole.budget.unrecorded_ns:
        parts.append((NOT_RECORDED, "unrecorded", whole.budget.unrecorded_ns, UNRECORDED_COLOUR))
    return Bar(
        name=name,
        rank=rank,
        span_ns=whole.budget.span_ns / max(1, of),
        parts=tuple(Part(part, kind, ns / max(1, of), ns / span, colour) for part, kind, ns, colour in parts),
        idle_known=whole.idle_known,
        bubble=whole.bubble_fraction,
        lower_bound=whole.lower_bound,
    )


def label_rows(analysis: Analysis) -> tuple[LabelRow, ...]:
    """Return what ran, label by label, in the order of the label list."""
    total, ranks = analysis.total, max(1, len(analysis.rank_results))
    span = max(1, total.budget.span_ns)
    rows = []
    for label in LABELS:
        ns = total.label_ns.get(label, 0)
        if not ns:
            continue
        exposed, wait = total.budget.exposed_ns.get(label, 0), total.wait_ns.get(label)
        rows.append(
            LabelRow(
                label=label,
                kind=kind_of(label),
                colour=LABEL_COLOURS[label],
                ns=ns / ranks,
                share=ns / span,
                count=total.label_count.get(label, 0),
                hidden=None if kind_of(label) == "compute" else total.overlap.get(label),
                exposed_ns=exposed / ranks,
                exposed_share=exposed / span,
                wait_ns=None if wait is None else wait / ranks,
                loud=label == "other" and ns > LOUD * span,
                blocking_ns=None if (blocks := total.blocking_ns.get(label)) is None else blocks / ranks,
                because_ns={cause: each / ranks for cause, each in total.because_ns.get(label, {}).items() if each},
            )
        )
    return tuple(rows)


def matrix_of(analysis: Analysis) -> Matrix | None:
    """Return what hides what, over all ranks; None where there is nothing to hide."""
    total = analysis.total
    rows = {label: by for label, by in total.hidden_by_ns.items() if total.label_ns.get(label)}
    if not rows:
        return None
    columns = tuple(
        column
        for column in LABELS
        if any(by.get(column, 0) >= WORTH_A_COLUMN * total.label_ns[label] for label, by in rows.items())
    )
    return Matrix(
        columns,
        tuple(
            MatrixRow(
                label,
                total.label_ns[label] / max(1, len(analysis.rank_results)),
                tuple(by.get(column, 0) / total.label_ns[label] for column in columns),
                1 - (total.overlap.get(label) or 0.0),
            )
            for label, by in rows.items()
        ),
    )


def beside(analysis: Analysis) -> tuple[Beside, ...]:
    """Return what ran beside each label and pass: the compute label and module, the largest first.

    >>> from tracekit import analyze
    >>> [(name, round(share, 3)) for name, share in beside(analyze("sample_traces/1f1b"))[0].parts]
    [('attention forward', 0.013)]
    """
    found = analysis.tables["hidden"].filter("detail", pl.col("step").is_null())
    keys = ["label", "pass"]
    times = found.unique(["rank", *keys]).group_by(keys).agg(pl.col("of_ns").sum())
    sums = (
        found.group_by(*keys, "by", "by_module", maintain_order=True)
        .agg(pl.col("ns").sum())
        .join(times, on=keys, nulls_equal=True, maintain_order="left")
        .filter(pl.col("ns") > 0, pl.col("ns") * 100 >= pl.col("of_ns"))
    )
    rows = []
    for part in sums.partition_by(keys, maintain_order=True):
        top = part.sort("ns", descending=True).head(MOST_BESIDE).rows(named=True)
        parts = tuple((" ".join(filter(None, (r["by_module"], r["by"]))), r["ns"] / r["of_ns"]) for r in top)
        rows.append(
            Beside(top[0]["label"], top[0]["pass"], top[0]["of_ns"] / max(1, len(analysis.rank_results)), parts)
        )
    return tuple(rows)
