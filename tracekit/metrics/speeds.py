"""Speeds that a GPU reaches for products, attention and memory: measured in the run, else a usual share of the peak.

A share has a low, a likely and a high value; what a remedy would take follows with the same three.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats
from tracekit.metrics.attainable import ANY_TYPE, GpuRates, Share, usual_share
from tracekit.metrics.kernel_limits import memory_gb_s
from tracekit.metrics.peaks import find_gpu, peak_tflop_s

MIN_MEASURED_CALL_NS = 20_000
"""Time of a call from which its rate shows what the GPU reaches; shorter ones start and end."""
MIN_MEASURED_CALLS = 4
"""Calls from which a rate counts as measured."""
MIN_MEASURED_BYTES = 1 << 26
"""Bytes that a kernel moves from which its rate is the memory's, not a cache's."""
MIN_KERNEL_NS = 2_000
"""Time that any kernel takes."""


USUAL_PRODUCT_SHARE = usual_share("product")
"""Share of the peak rate that large products reach: H200, H100, A100 and MI300 traces have 0.5 to 0.8."""
USUAL_ATTENTION_SHARE = usual_share("attention")
"""Share of the peak rate that fused attention reaches, a causal one counted by half. Head sizes of 64
reach 0.28 to 0.38 on H200, those of 128 more."""
USUAL_CONVOLUTION_SHARE = usual_share("convolution")
"""Share of the peak rate that convolutions on tensor cores reach: those of few channels move more than
they compute."""
USUAL_BANDWIDTH_SHARE = usual_share("memory")
"""Share of the memory's bandwidth that a fused elementwise kernel reaches."""
MEASURED_SPREAD = 0.15
"""Half width of the range of a measured share, relative to it."""
SLOWEST_RELATIVE = 0.2
"""Least speed of a product relative to the others of its type, as far as its sizes are held to cause it."""


class Speeds(msgspec.Struct, frozen=True):
    """Speeds of one rank's GPU."""

    peaks: Mapping[str, float]
    """FLOP per ns by type."""
    bandwidth: float | None
    """Bytes per ns of the memory; None if unknown."""
    product_shares: Mapping[str, Share]
    """Measured shares of the peak by type; types without products of their own are missing."""
    bandwidth_share: Share
    attention_share: Share
    convolution_share: Share = USUAL_CONVOLUTION_SHARE
    usual_product_shares: Mapping[str, Share] = {}
    """Shares of a user's own table by type, for types that the run has no products of."""

    def product_share(self, dtype: str) -> Share:
        """Return the share of the peak that products of a type reach."""
        own = self.usual_product_shares.get(dtype, USUAL_PRODUCT_SHARE)
        return self.product_shares.get(dtype, own)

    def memory_ns(self, moved_bytes: Floats) -> tuple[Floats, Floats, Floats] | None:
        """Return the least, likely and longest time of bytes; None if the bandwidth is unknown."""
        if self.bandwidth is None:
            return None
        share = self.bandwidth_share
        full_ns = moved_bytes / self.bandwidth
        return full_ns / share.high, full_ns / share.likely, full_ns / share.low


def measure_speeds(
    calls: pl.DataFrame,
    work: pl.DataFrame,
    *,
    device: str | None,
    multiprocessors: int | None,
    rates: GpuRates | None = None,
) -> Speeds:
    """Return the speeds of a GPU, from a rank's calls of products and its kernels.

    Args:
        calls: One row per call of an operator: ``kind``, ``dtype``, ``flop``, ``ns``, and ``padding``
            where its sizes make it slow.
        work: ``WORK`` with the duration ``ns``.
        device: Name of the GPU; None if unknown.
        multiprocessors: Multiprocessors that the process may use; None if all, or unknown.
        rates: A user's own table of what the GPU reaches.
    """
    gpu = None if device is None else find_gpu(device)
    peaks: dict[str, float] = {}
    if gpu is not None and device is not None:
        for dtype in gpu.tflop_s:
            peak = peak_tflop_s(device, dtype, multiprocessors=multiprocessors)
            if peak is not None:
                peaks[dtype] = peak * 1e3
    bandwidth = memory_gb_s(device, multiprocessors=multiprocessors)
    if rates is not None:
        peaks = {**{t: most * 1e3 for t, most in rates.most("product").items()}, **peaks}
        bandwidth = bandwidth or rates.most("memory").get(ANY_TYPE)
    long_calls = calls.filter(pl.col("ns") >= MIN_MEASURED_CALL_NS).drop_nulls(["flop", "dtype"])
    shares: dict[str, Share] = {}
    for dtype, peak in peaks.items():
        products = long_calls.filter(
            (pl.col("kind") == "product") & (pl.col("dtype") == dtype) & pl.col("padding").is_null()
        )
        share = measured_peak_share(products, peak)
        if share is not None:
            shares[dtype] = share
    speeds = Speeds(
        peaks,
        bandwidth,
        shares,
        measured_bandwidth_share(work, bandwidth),
        USUAL_ATTENTION_SHARE,
    )
    return speeds if rates is None else _with_own_rates(speeds, rates)


def _with_own_rates(speeds: Speeds, rates: GpuRates) -> Speeds:
    """Return speeds with the shares of a user's table, where the run did not measure them itself."""
    narrow_peak = max(
        (speeds.peaks[dtype] for dtype in ("bf16", "fp16") if dtype in speeds.peaks), default=0.0
    )
    attention = rates.share("attention", peak=narrow_peak / 1e3 or None)
    convolution = rates.share("convolution", peak=narrow_peak / 1e3 or None)
    memory = rates.share("memory", peak=speeds.bandwidth)
    of_products = {
        dtype: rates.share("product", dtype, peak=peak / 1e3)
        for dtype, peak in speeds.peaks.items()
    }
    is_measured = speeds.bandwidth_share != USUAL_BANDWIDTH_SHARE
    return msgspec.structs.replace(
        speeds,
        bandwidth_share=speeds.bandwidth_share if is_measured else memory or USUAL_BANDWIDTH_SHARE,
        attention_share=attention or USUAL_ATTENTION_SHARE,
        convolution_share=convolution or USUAL_CONVOLUTION_SHARE,
        usual_product_shares={
            dtype: share for dtype, share in of_products.items() if share is not None
        },
    )


def measured_peak_share(calls: pl.DataFrame, peak: float) -> Share | None:
    """Return the share of the peak that calls reach together; None if they are few or their type is wrong."""
    if calls.height < MIN_MEASURED_CALLS:
        return None
    share = float(calls["flop"].sum()) / peak / float(calls["ns"].sum())
    if not 0 < share <= 1:
        return None
    spread = share * MEASURED_SPREAD
    return Share(share - spread, share, min(share + spread, 1.0))


def measured_bandwidth_share(work: pl.DataFrame, bandwidth: float | None) -> Share:
    """Return the share of the bandwidth that large elementwise kernels reach."""
    if bandwidth is None:
        return USUAL_BANDWIDTH_SHARE
    is_large = pl.col("bytes") >= MIN_MEASURED_BYTES
    moves_memory = pl.col("kind").is_in(["elementwise", "norm"])
    large = work.select("kind", "bytes", "ns").filter(is_large & moves_memory)
    shares = (large["bytes"] / bandwidth / large["ns"].clip(lower_bound=1)).to_numpy()
    shares = shares[shares <= 1]
    if len(shares) < MIN_MEASURED_CALLS:
        return USUAL_BANDWIDTH_SHARE
    low, likely, high = np.quantile(shares, [0.25, 0.5, 0.75])
    usual = USUAL_BANDWIDTH_SHARE
    return Share(
        float(np.clip(low, 0.4, usual.likely)),
        float(np.clip(likely, usual.low, usual.high)),
        float(np.clip(high, usual.likely, 0.95)),
    )
