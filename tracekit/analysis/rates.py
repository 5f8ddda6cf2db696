"""Speed of a run: rates of matrix products, messages and collectives, and the balance of experts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tracekit.documents.analysis import ExpertCost
from tracekit.metrics.bandwidth import bandwidth
from tracekit.metrics.expert_balance import EXPERT_WORK, expert_cost, measure_expert_balance
from tracekit.metrics.rates import PRODUCTS, Rates
from tracekit.schema import conform

_PRODUCT_KEYS = ["label", "module", "op", "kernel", "shapes", "dtype"]


class RunRates(msgspec.Struct, frozen=True, eq=False):
    """Rates of a run: work and time are sums over ranks, rates are ratios of these sums."""

    total: Rates
    products: pl.DataFrame
    """Matrix products by label, module, operator, shapes and dtype, over all ranks, most time first."""
    communication: pl.DataFrame
    experts: pl.DataFrame
    expert_layers: pl.DataFrame
    """Tokens received and computed per forward exchange and rank (``metrics.experts.LAYERS``)."""
    expert_cost: ExpertCost | None = None
    """Upper bound of the cost of imbalance; None if no dispatch and combine were matched."""

    def by(self, column: str) -> pl.DataFrame:
        """Return the rates of products by ``label``, ``module``, ``shapes``, ``op`` or ``dtype``."""
        return rated(_sum_products(self.products, [column]))

    @property
    def uncounted(self) -> pl.DataFrame:
        """Products without known FLOP by label, module, operator and family of the kernel, most time first."""
        unknown = self.products.filter(pl.col("flop").is_null())
        keys = ["label", "module", "op", "kernel"]
        return unknown.group_by(keys).agg(pl.col("calls", "ns").sum()).sort(-pl.col("ns"), *keys)


def run_rates(
    products: Sequence[pl.DataFrame],
    rates: Sequence[Rates],
    experts: Sequence[pl.DataFrame],
    operations: pl.DataFrame,
    members: pl.DataFrame,
    *,
    ranks_per_node: int | None = None,
) -> RunRates:
    """Return the rates of all ranks together.

    Args:
        products: Each rank's matrix products (``metrics.rates.PRODUCTS``).
        rates: Each rank's sums over its products.
        experts: Each rank's work of experts (``metrics.experts.WORK``).
        operations: Communication of all ranks.
        members: Its operations matched across ranks.
        ranks_per_node: Number of consecutive ranks on one machine; None if not known.

    """
    at_peak_ns = [rank_rates.at_peak_ns for rank_rates in rates]
    total = Rates(
        flop=sum(rank_rates.flop for rank_rates in rates),
        model_flop=sum(rank_rates.model_flop for rank_rates in rates),
        product_ns=sum(rank_rates.product_ns for rank_rates in rates),
        uncounted_ns=sum(rank_rates.uncounted_ns for rank_rates in rates),
        at_peak_ns=sum(ns or 0.0 for ns in at_peak_ns) if at_peak_ns and None not in at_peak_ns else None,
        span_ns=sum(rank_rates.span_ns for rank_rates in rates),
    )
    layers, cost = expert_cost(pl.concat([EXPERT_WORK.to_frame(), *experts]), operations, members)
    return RunRates(
        total=total,
        products=rated(
            _sum_products(
                pl.concat([PRODUCTS.to_frame(), *(conform(table, PRODUCTS) for table in products)]), _PRODUCT_KEYS
            )
        ),
        communication=bandwidth(members, node=ranks_per_node),
        experts=measure_expert_balance(operations, members),
        expert_layers=layers,
        expert_cost=cost,
    )


def below_peak_ns(products: pl.DataFrame) -> int | None:
    """Return the time that products would save at the GPU's peak rate, over all ranks; None without a known peak."""
    if products.is_empty() or products["at_peak_ns"].null_count():
        return None
    return int((products["ns"] - products["at_peak_ns"]).sum())


def _sum_products(products: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the sums of products with equal *keys*, most time first.

    ``flop`` is a lower bound where ``uncounted_ns``, the time of products without known FLOP, is not 0; null if none is
    known. The time at peak is null if it is unknown for any product.
    """
    at_peak_ns, is_counted = pl.col("at_peak_ns"), pl.col("flop").is_not_null()
    grouped = products.group_by(keys, maintain_order=True).agg(
        pl.col("calls", "ns").sum(),
        flop=pl.when(is_counted.any()).then(pl.col("flop").sum()),
        at_peak_ns=pl.when(at_peak_ns.is_not_null().all()).then(at_peak_ns.sum()),
        uncounted_ns=pl.col("ns").filter(~is_counted).sum(),
    )
    return grouped.sort(["ns", *keys], descending=[True, *(False for _ in keys)], nulls_last=True)


def rated(products: pl.DataFrame) -> pl.DataFrame:
    """Return *products* with TFLOP/s over their own time and the share of the GPU's peak, where all are counted."""
    has_time = (pl.col("ns") > 0) & (pl.col("uncounted_ns") == 0)
    return products.with_columns(
        tflop_s=pl.when(has_time).then(pl.col("flop") / pl.col("ns") / 1e3),
        share_of_peak=pl.when(has_time).then(pl.col("at_peak_ns") / pl.col("ns")),
    )
