"""Alternatives of what should be a product: values multiplied or subtracted pair by pair, and summed behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import new_durations
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import Inputs, count_elements
from tracekit.metrics.speeds import MIN_KERNEL_NS

MIN_PAIRS = 1 << 24
"""Elements of a result of all pairs from which it costs time."""
MIN_GROWTH = 16
"""Elements of all pairs over those of either input, from which a product makes them smaller."""
PAIRS_OF_PRODUCTS = {"aten::mul": r"^aten::(mul|sum|copy_|fill_)$"}
PAIRS_OF_DISTANCES = {"aten::sub": r"^aten::(sub|pow|square|mul|sum|neg|copy_|fill_)$"}
"""Operators that make all pairs, and those that a product may stand for: Σ a·b, and Σ (a - b)² = a² - 2·a·b + b²."""
PRODUCTS_PER_PAIRING = 3.0
"""Products that stand for one: its own and those of both gradients."""


class ProductOfPairs(Alternative, frozen=True, kw_only=True):
    """All pairs of rows are made by broadcasting, and summed along a dimension: a product of matrices."""

    change = "product of pairs"
    rests_on = "sums over all pairs are products of matrices"
    code = "pairs"
    title = "pairs by broadcasting"
    says = (
        "all pairs of rows are made by broadcasting ({what}) and summed behind: {work}, nearly all of "
        "it for memory"
    )
    advises = "use a product of matrices (`a @ b.T`, `einsum`); squared distances are `a² - 2·a·b + b²` (`torch.cdist`)"
    caveat = "Distances that are small beside the values lose digits by it."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        peak = rank.speeds.peaks.get("fp32")
        if peak is None:
            return
        pairings = {**PAIRS_OF_PRODUCTS, **PAIRS_OF_DISTANCES}
        sites = rank.sites.filter(pl.col("op").is_in(list(pairings)) & pl.col("node").is_null())
        for site in sites.iter_rows(named=True):
            pairs = _all_pairs(site)
            if pairs is None:
                continue
            sizes = [*pairs]
            elements = count_elements(sizes)
            is_of_pairs = (pl.col("elements") == elements) | (pl.col("site") == site["site"])
            events = rank.events.filter(is_of_pairs & pl.col("kind").is_not_null())
            of_forward = events.filter(~pl.col("is_backward"))["op"]
            is_summed = (of_forward == "aten::sum").any()
            if not is_summed or not of_forward.str.contains(pairings[site["op"]]).all():
                continue
            # The backward of a broadcast sums as well, and its operators are as large.
            of_backward = events.filter("is_backward")
            products = PRODUCTS_PER_PAIRING if len(of_backward) else 1.0
            flop = 2 * elements * products
            share = rank.speeds.share("product", "fp32")
            floor_ns = MIN_KERNEL_NS * products
            parts = events["part"].n_unique()
            calls = max(site["calls"] / max(parts, 1), 1.0)
            what = " × ".join(f"{size:,}" for size in sizes)
            yield new_durations(
                events.with_columns(
                    group="part",
                    low_ns=pl.lit(calls * max(flop / peak / share.high, floor_ns)),
                    likely_ns=pl.lit(calls * max(flop / peak / share.likely, floor_ns)),
                    high_ns=pl.lit(calls * max(2 * flop / peak / share.low, floor_ns)),
                ),
                self.change,
                what=what,
            )


def _all_pairs(site: dict[str, Any]) -> list[int] | None:
    """Return the sizes of the result of a site that broadcasts both of its inputs; None if it does not."""
    inputs = Inputs.of(site)
    first, second = inputs.size(0), inputs.size(1)
    rank = max(len(first), len(second))
    padded = [[1] * (rank - len(size)) + size for size in (first, second)]
    if not first or not second or rank < 3:
        return None
    result = [max(pair) for pair in zip(*padded, strict=True)]
    elements = count_elements(result)
    largest = max(count_elements(first), count_elements(second))
    return result if elements >= max(MIN_PAIRS, MIN_GROWTH * largest) else None
