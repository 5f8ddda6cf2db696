"""How fast products and communication ran, and how evenly experts are loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from tracekit._util.shapes import parse_list
from tracekit._util.text import ms, percent, terminal
from tracekit.analysis import Analysis
from tracekit.analysis.rates import RunRates, below_peak_ns

UNEVEN = 1.05
"""Share of the mean from which what a rank receives is worth a table: equal shares say nothing."""
MOST_ROWS = 8
"""Kinds of products and of operations shown, those that take longest."""


class ProductRow(msgspec.Struct, frozen=True):
    """How fast the matrix products of one label, or of one kind (label, module, shape), ran on all ranks."""

    name: str
    shape: str
    tflop_s: float | None
    share_of_peak: float | None
    """Time at the GPU's peak over their own time."""
    ns: int


class BandwidthRow(msgspec.Struct, frozen=True):
    """How fast operations of one kind and size moved their bytes, waiting apart."""

    name: str
    size: str
    count: int
    gb_s: float | None
    bus_gb_s: float | None
    transfer_ns: int
    wait_ns: int
    share_of_link: float | None = None
    """Bus bandwidth over the link's peak, where one is given."""


class ExpertRow(msgspec.Struct, frozen=True):
    """What one rank's experts were sent in the forward's dispatches."""

    rank: int
    received_bytes: int
    over_mean: float
    """Of the mean of its group."""
    largest: int
    """Exchanges in which it received most."""
    exchanges: int
    wait_ns: int
    work_ns: int | None = None
    """Its experts' own compute; None where dispatches and combines were not matched."""
    work_over_mean: float | None = None


class RatesView(msgspec.Struct, frozen=True):
    """How fast products and communication ran, where the trace says enough."""

    labels: tuple[ProductRow, ...]
    kinds: tuple[ProductRow, ...]
    """Those that take longest."""
    notes: tuple[str, ...]
    communication: tuple[BandwidthRow, ...]
    experts: tuple[ExpertRow, ...]
    """Empty where all ranks receive alike."""
    expert_notes: tuple[str, ...]
    """What imbalance costs, and where it is worst."""
    below_peak: str | None
    """What better kernels could give at most, in words; it is part of the ideal too."""

    @property
    def linked(self) -> bool:
        """Whether any link's peak is known."""
        return any(row.share_of_link is not None for row in self.communication)


def rates_view(analysis: Analysis) -> RatesView | None:
    """Return the rates that are worth a table; None where the trace holds neither shapes nor sizes."""
    rates = analysis.rates
    if rates is None:
        return None
    counted = bool(rates.total.flop)
    found = RatesView(
        labels=_labels(rates) if counted else (),
        kinds=_kinds(rates) if counted else (),
        notes=_notes(rates) if counted else (),
        communication=_communication(rates),
        experts=_experts(rates),
        expert_notes=_expert_notes(analysis, rates),
        below_peak=_below_peak(analysis, rates) if counted else None,
    )
    return found if found.labels or found.communication or found.experts else None


def _labels(rates: RunRates) -> tuple[ProductRow, ...]:
    return tuple(_product(row["label"], "", row) for row in rates.by("label").iter_rows(named=True))


def _kinds(rates: RunRates) -> tuple[ProductRow, ...]:
    longest = rates.products.filter(rates.products["flop"].is_not_null()).head(MOST_ROWS)
    return tuple(
        _product(f"{row['label']} {row['module'] or ''}".rstrip(), shape_words(row["shapes"]), row)
        for row in longest.iter_rows(named=True)
    )


def _product(name: str, shape: str, row: dict[str, Any]) -> ProductRow:
    return ProductRow(name, shape, row["tflop_s"], row["share_of_peak"], row["ns"])


def _notes(rates: RunRates) -> tuple[str, ...]:
    total, lines = rates.total, []
    if total.utilisation is not None:
        lines.append(f"model FLOP utilisation {percent(total.utilisation)} of the GPUs' peak over the span")
    if not total.counted:
        lines.append(f"{ms(total.uncounted_ns)} of products have no known FLOP: totals are left out")
    return tuple(lines)


def _below_peak(analysis: Analysis, rates: RunRates) -> str | None:
    shorter, steps = below_peak_ns(rates.products), sum(len(one.per_step) for one in analysis.rank_results)
    if shorter is None or not steps:
        return None
    said = f"products would take {ms(shorter / steps)} less per rank and step at the GPUs' peak"
    return f"kernels below peak: {said}; they are as slow in the ideal, so this is not part of the gap"


def _communication(rates: RunRates) -> tuple[BandwidthRow, ...]:
    longest = rates.communication.sort("transfer_ns", descending=True).head(MOST_ROWS)
    return tuple(
        BandwidthRow(
            _operation(row), row["size"], row["count"], row["algorithm_gb_s"], row["bus_gb_s"], row["transfer_ns"],
            row["wait_ns"], row["share_of_link"],
        )
        for row in longest.iter_rows(named=True)
    )  # fmt: skip


def _experts(rates: RunRates) -> tuple[ExpertRow, ...]:
    if rates.experts.is_empty() or (rates.experts["over_mean"].max() or 0.0) < UNEVEN:  # type: ignore[operator]
        return ()
    columns = ("rank", "received", "over_mean", "largest", "exchanges", "wait_ns", "expert_ns", "work_over_mean")
    work = rates.expert_layers.group_by("rank", "group").agg(pl.sum("expert_ns"))
    work = work.with_columns(work_over_mean=pl.col("expert_ns") / pl.mean("expert_ns").over("group"))
    table = rates.experts.head(MOST_ROWS).join(work, on=["rank", "group"], how="left", maintain_order="left")
    return tuple(ExpertRow(*row) for row in table.select(columns).iter_rows())


def _expert_notes(analysis: Analysis, rates: RunRates) -> tuple[str, ...]:
    """Return where experts are least even, and what that costs at most, a step."""
    cost, steps = rates.expert_cost, max((len(one.per_step) for one in analysis.rank_results), default=0)
    if cost is None or not steps or rates.expert_layers.is_empty():
        return ()
    worst = rates.expert_layers.sort("expert_over_mean", descending=True).row(0, named=True)
    share = worst["received_over_mean"]
    sent = "" if share is None else f" receives {percent(share)} of the mean and"
    saved = cost.transfer_ns
    shorter = "" if saved is None else f"; even dispatches would be {ms(saved / steps)} shorter at most"
    waited = f"others wait {ms(cost.wait_ns / steps)} in combines for longer expert work (all ranks)"
    return (
        f"exchange {worst['exchange']}: rank {worst['rank']}{sent} computes {percent(worst['expert_over_mean'])} of it",
        f"a step, forward alone, at most: {waited}, the step feels {ms(cost.step_ns / steps)}{shorter}",
    )


def _operation(row: dict[str, Any]) -> str:
    """Return what an operation is called, with its group where the trace names it, so that no two rows look alike."""
    group = f" ({terminal(row['group'])})" if row["group"] else ""
    where = f", {row['where']}" if row["where"] else ""
    what = "" if row["what"] == row["label"] else f" {row['what']}"
    return f"{row['label']}{what} × {row['ranks']}{group}{where}"


def shape_words(shapes: str) -> str:
    """Return the sizes of the operands as people write them.

    >>> shape_words("[[1024,2048],[2048,6144],[]]")
    '1024×2048 · 2048×6144'
    """
    dims = [dim for dim in parse_list(shapes) if isinstance(dim, list) and len(dim) > 1]
    return " · ".join("×".join(map(str, dim)) for dim in dims[:2])
