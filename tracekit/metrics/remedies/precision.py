"""Remedies of wide types: TF32 or 16 bits for products of float32, float32 for float64.

A product's new time is its FLOP at the rate that the GPU reaches for that type, or its bytes at the
memory's bandwidth, whichever is longer. A product that is slow for its sizes stays so: its share of
the peak, compared with that of other products of its type, carries over. Inside factorisations and solves
PyTorch multiplies in full precision whatever is allowed: their products keep their type.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations, without_events
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import FUSED_ATTENTION, PATTERNS
from tracekit.metrics.kernel_limits import product_bytes
from tracekit.metrics.padding import NARROW
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.remedies.layouts import SLOWER_IN_16_BITS, slower_remedies
from tracekit.metrics.speeds import MIN_KERNEL_NS, SLOWEST_RELATIVE

TF32 = "tf32"
FLOAT64_SHARE = Share(0.4, 0.5, 0.7)
"""Time of a kernel that is limited by memory in float32 over that in float64."""


def precision_remedies(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies ``tf32``, ``bf16`` or ``fp16``, and ``fp32``."""
    speeds = rank.speeds
    calls = _with_used_type(rank).filter(~pl.col("keeps_precision"))
    if TF32 in speeds.peaks:
        products = calls.filter(
            pl.col("kind").is_in(["product", "convolution"]) & (pl.col("used") == "fp32")
        )
        yield _retyped(rank, products, TF32)
    narrow = next((dtype for dtype in NARROW if dtype in speeds.peaks), None)
    if narrow is not None:
        wide = calls.filter(pl.col("used").is_in(["fp32", TF32]))
        yield _retyped(rank, wide, narrow)
        if wide.select((pl.col("kind") == "convolution").any()).item():
            # Autocast gives norms what convolutions make: in 16 bits cuDNN has none with channels first.
            is_first = pl.col("name").str.contains(PATTERNS["channels_first_norm"])
            norms = rank.events.filter(pl.col("has_fp32") & is_first.fill_null(value=False))
            yield slower_remedies(norms, SLOWER_IN_16_BITS, narrow)
    yield from _from_float64(rank)


def _with_used_type(rank: RankWork) -> pl.DataFrame:
    """Return the calls with the type that their kernels compute in as ``used``; null if that is not certain.

    Products of float32 may run on tensor cores: their kernel's name tells it, or a rate above the
    peak without tensor cores.
    """
    speeds = rank.speeds
    fp32_peak = speeds.peaks.get("fp32")
    above_peak = pl.lit(False)
    if fp32_peak is not None:
        above_peak = pl.col("flop") > fp32_peak * pl.col("ns")
    uses_tensor_cores = pl.col("name").str.contains(PATTERNS["tensor_core_kernel"])
    is_simt = pl.col("name").str.contains(PATTERNS["simt_kernel"]) & ~uses_tensor_cores
    is_fp32 = pl.col("dtype") == "fp32"
    used = (
        pl.when(pl.col("dtype") == TF32)
        .then(pl.lit(TF32))
        .when(is_fp32 & above_peak.fill_null(False))
        .then(pl.lit(TF32))
        .when(is_fp32 & (pl.col("kind") == "convolution") & ~uses_tensor_cores)
        .then(pl.lit("fp32"))
        .when(is_fp32 & ((pl.col("kind") == FUSED_ATTENTION) | is_simt))
        .then(pl.lit("fp32"))
    )
    return rank.calls.with_columns(used=used)


def _retyped(rank: RankWork, calls: pl.DataFrame, dtype: str) -> pl.DataFrame:
    """Return the remedies of calls that compute in *dtype* instead."""
    speeds = rank.speeds
    countable = calls.drop_nulls("flop").filter(pl.col("used").is_in(list(speeds.peaks)))
    if countable.is_empty():
        return REMEDIES.to_frame()
    moved = [
        product_bytes(op, shapes, dtype, flop, 1) or 0.0
        for op, shapes, flop in countable.select("op", "shapes", "flop").iter_rows()
    ]
    flop = countable["flop"].to_numpy().astype(np.float64)
    ns = countable["ns"].to_numpy().astype(np.float64)
    old_peak = (
        countable["used"].replace_strict(dict(speeds.peaks), return_dtype=pl.Float64).to_numpy()
    )
    own_share = flop / old_peak / np.maximum(ns, 1)
    is_convolution = (countable["kind"] == "convolution").to_numpy()
    is_attention = (countable["kind"] == FUSED_ATTENTION).to_numpy()
    usual_share = _usual_share_of(countable, own_share)
    relative = np.clip(own_share / usual_share, SLOWEST_RELATIVE, 1.0)
    no_memory_ns = np.zeros(len(ns))
    memory_ns = speeds.memory_ns(np.array(moved)) or (no_memory_ns, no_memory_ns, no_memory_ns)
    peak = speeds.peaks[dtype]
    share = speeds.product_share(dtype)
    attention = speeds.attention_share
    new_ns = []
    of_convolutions = speeds.convolution_share
    for of_products, of_attention, of_convolution, of_memory in (
        (share.high, attention.high, of_convolutions.high, memory_ns[0]),
        (share.likely, attention.likely, of_convolutions.likely, memory_ns[1]),
        (share.low, attention.low, of_convolutions.low, memory_ns[2]),
    ):
        reached = np.where(is_convolution, of_convolution, of_products * relative)
        # FLOP of attention are counted in full, the shares by half, as for a causal mask.
        compute_ns = np.where(is_attention, flop / 2 / peak / of_attention, flop / peak / reached)
        new_ns.append(np.maximum(np.maximum(compute_ns, of_memory), MIN_KERNEL_NS))
    priced = countable.select(
        "call",
        low_ns=pl.Series(new_ns[0]),
        likely_ns=pl.Series(new_ns[1]),
        high_ns=pl.Series(new_ns[2]),
    )
    events = rank.events.select("row", "ns", "call").join(priced, on="call", how="inner")
    return new_durations(events.with_columns(group="call"), dtype)


def _usual_share_of(calls: pl.DataFrame, own_share: np.ndarray) -> np.ndarray:
    """Return for each call the share of the peak that all calls of its type reach together, at least 0.3."""
    at_peak = pl.Series("at_peak", own_share) * calls["ns"]
    sums = calls.select("used", "ns", at_peak=at_peak).with_columns(
        usual=pl.col("at_peak").sum().over("used") / pl.col("ns").sum().over("used")
    )
    return sums["usual"].clip(lower_bound=0.3).to_numpy()


def _from_float64(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of kernels that read float64, in float32; casts between the two go."""
    wide = rank.events.filter(pl.col("has_fp64") & pl.col("kind").is_not_null())
    is_float = [pl.col("dtypes").str.contains(f"(?i)\\b{name}\\b") for name in ("float", "double")]
    is_cast = ((pl.col("op") == "aten::copy_") & is_float[0] & is_float[1]).fill_null(value=False)
    yield without_events(wide.filter(is_cast), "fp32")
    narrowed = wide.filter(~is_cast).with_columns(
        group="row",
        low_ns=pl.col("ns") * FLOAT64_SHARE.low,
        likely_ns=pl.col("ns") * FLOAT64_SHARE.likely,
        high_ns=pl.col("ns") * FLOAT64_SHARE.high,
    )
    yield new_durations(narrowed, "fp32")
