"""All ranks' rates together: how fast products, messages and collectives ran, and how evenly experts are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from tracekit.metrics.bandwidth import bandwidth
from tracekit.metrics.expert_balance import EXPERT_WORK, ExpertCost, expert_cost, measure_expert_balance
from tracekit.metrics.rates import PRODUCTS, Rates

MOST_PRODUCTS = 40
"""Kinds of products in the JSON, the longest."""
MOST_LAYERS = 256
"""Rows of expert layers in the JSON, the most uneven first."""


class RunRates(msgspec.Struct, frozen=True, eq=False):
    """How fast it ran. Sums over ranks; ratios of sums."""

    total: Rates
    products: pl.DataFrame
    """By label, module, operator, shape and type, over all ranks, the longest first."""
    communication: pl.DataFrame
    experts: pl.DataFrame
    expert_layers: pl.DataFrame
    """Per exchange of the forward and rank, what it received and computed (``metrics.experts.LAYERS``)."""
    expert_cost: ExpertCost | None = None
    """What imbalance costs, at most; None where no dispatch and combine were matched."""

    def by(self, column: str) -> pl.DataFrame:
        """Return the products' rates by ``label``, ``module``, ``shapes``, ``op`` or ``dtype``."""
        return rated(_summed(self.products, [column]))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        total = self.total
        return {
            "flop": total.flop or None,
            "model_flop": total.model_flop or None,
            "product_ns": total.product_ns,
            "uncounted_ns": total.uncounted_ns,
            "tflop_s": total.tflop_s,
            "utilisation": total.utilisation,
            "below_peak_ns": below_peak_ns(self.products),
            "by_label": self.by("label").to_dicts(),
            "by_module": self.by("module").to_dicts(),
            "products": self.products.head(MOST_PRODUCTS).to_dicts(),
            "communication": self.communication.to_dicts(),
            "experts": self.experts.to_dicts(),
            "expert_layers": self.expert_layers.head(MOST_LAYERS).to_dicts(),
            "expert_cost": None if self.expert_cost is None else self.expert_cost.to_dict(),
        }


def run_rates(
    tables: Sequence[pl.DataFrame],
    rates: Sequence[Rates],
    experts: Sequence[pl.DataFrame],
    operations: pl.DataFrame,
    members: pl.DataFrame,
    *,
    node: int | None = None,
) -> RunRates:
    """Return the rates of all ranks together; *operations* and *members* are the run's matched communication.

    *node* is how many consecutive ranks share a machine.
    """
    keys = ["label", "module", "op", "shapes", "dtype"]
    products = rated(_summed(pl.concat([PRODUCTS.to_frame(), *tables]), keys))
    peaks = [rate.at_peak_ns for rate in rates]
    total = Rates(
        flop=sum(rate.flop for rate in rates),
        model_flop=sum(rate.model_flop for rate in rates),
        product_ns=sum(rate.product_ns for rate in rates),
        uncounted_ns=sum(rate.uncounted_ns for rate in rates),
        at_peak_ns=None if any(peak is None for peak in peaks) or not peaks else sum(peak or 0.0 for peak in peaks),
        span_ns=sum(rate.span_ns for rate in rates),
    )
    layers, cost = expert_cost(pl.concat([EXPERT_WORK.to_frame(), *experts]), operations, members)
    speeds = bandwidth(members, node=node)
    return RunRates(total, products, speeds, measure_expert_balance(operations, members), layers, cost)


def below_peak_ns(products: pl.DataFrame) -> int | None:
    """Return by how much products would be shorter at the GPU's peak, over all ranks; None without a peak."""
    if products.is_empty() or products["at_peak_ns"].null_count():
        return None
    return int((products["ns"] - products["at_peak_ns"]).sum())


def _summed(products: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the sums of rows alike in *keys*; a sum with an unknown part is unknown."""

    def whole(name: str) -> pl.Expr:
        return pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum()).alias(name)

    grouped = products.group_by(keys, maintain_order=True).agg(
        pl.col("calls", "ns").sum(), whole("flop"), whole("at_peak_ns")
    )
    return grouped.sort(["ns", *keys], descending=[True, *(False for _ in keys)], nulls_last=True)


def rated(products: pl.DataFrame) -> pl.DataFrame:
    """Return *products* with TFLOP/s over their own time and the share of the GPU's peak."""
    return products.with_columns(
        tflop_s=pl.when(pl.col("ns") > 0).then(pl.col("flop") / pl.col("ns") / 1e3),
        share_of_peak=pl.when(pl.col("ns") > 0).then(pl.col("at_peak_ns") / pl.col("ns")),
    )
