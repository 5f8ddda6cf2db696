"""Findings about kernels that take longer than the GPU's peak rate asks for."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.findings.context import Context
from tracekit.findings.finding import Finding

MAX_KERNELS = 10
"""Groups of kernels that are looked at, those with most time above what the peak would take."""
GOOD_SHARE_OF_PEAK = 0.7
"""Share of the peak rate that well-shaped products reach; less is time to gain."""


def kernel_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding about the products with most time to gain, where shapes and the GPU's peak are known."""
    rates = context.analysis.rates
    if rates is None or rates.products.is_empty():
        return
    rank_steps = max(1, sum(len(rank.per_step) for rank in context.analysis.rank_results))
    achievable_ns = pl.col("at_peak_ns") / GOOD_SHARE_OF_PEAK
    slow = (
        rates.products.drop_nulls("at_peak_ns")
        .with_columns(gain_ns=(pl.col("ns") - achievable_ns) / rank_steps)
        .filter(pl.col("gain_ns") > 0)
        .top_k(MAX_KERNELS, by="gain_ns")
    )
    if slow.is_empty():
        return
    longest = slow.sort("gain_ns", descending=True).row(0, named=True)
    cost_ns = float(slow["gain_ns"].sum())
    yield Finding(
        code="slow_kernel",
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        evidence={
            "op": longest["op"],
            "module": longest["module"],
            "share_of_peak": longest["share_of_peak"],
            "op_ns": round(longest["ns"] / rank_steps),
            "op_gain_ns": round(longest["gain_ns"]),
            "groups": len(slow),
        },
        saves_ns=None,
        certain="possible",
    )
