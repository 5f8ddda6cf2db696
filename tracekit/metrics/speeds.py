"""Speeds that a GPU reaches: measured in the run, else by a user's table, the table of that GPU, or the usual shares.

A share has a low, a likely and a high value; what a remedy would take follows with the same three.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats
from tracekit.metrics.attainable import (
    ANY_TYPE,
    WORKS,
    GpuRates,
    Share,
    rates_of_gpu,
    usual_rates,
)
from tracekit.metrics.kernel_limits import memory_gb_s
from tracekit.metrics.padding import NARROW
from tracekit.metrics.peaks import find_gpu, peak_tflop_s

MIN_MEASURED_CALL_NS = 20_000
"""Time of a call from which its rate shows what the GPU reaches; shorter ones start and end."""
MIN_MEASURED_CALLS = 4
"""Calls from which a rate counts as measured."""
MIN_MEASURED_BYTES = 1 << 26
"""Bytes that a kernel moves from which its rate is the memory's, not a cache's."""
MIN_KERNEL_NS = 2_000
"""Time that any kernel takes."""

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
    measured: Mapping[tuple[str, str], Share] = {}
    """Shares of the peak that this run itself shows, by work and type."""
    tables: tuple[GpuRates, ...] = (usual_rates(),)
    """Tables of what is reached otherwise: of each work and type the first that has it counts."""

    def share(self, work: str, dtype: str = ANY_TYPE) -> Share:
        """Return the share of the peak, or of the memory's bandwidth, that work of a type reaches."""
        measured = self.measured.get((work, dtype))
        if measured is not None:
            return measured
        of_tables = (
            table.share(work, dtype, peak=self._peak(table, work, dtype)) for table in self.tables
        )
        return next(share for share in of_tables if share is not None)

    def _peak(self, table: GpuRates, work: str, dtype: str) -> float | None:
        """Return the peak that a table's rate is a share of, in its unit; None if unknown."""
        if "GB/s" in WORKS[work]:
            return self.bandwidth
        # Rates of all types are those of 16 bits.
        types = (dtype,) if (work, dtype) in table.rates and dtype != ANY_TYPE else NARROW
        peaks = [self.peaks[each] / 1e3 for each in types if each in self.peaks]
        return max(peaks, default=None)

    def memory_ns(
        self, moved_bytes: Floats, work: str = "memory"
    ) -> tuple[Floats, Floats, Floats] | None:
        """Return the least, likely and longest time of bytes; None if the bandwidth is unknown."""
        if self.bandwidth is None:
            return None
        share = self.share(work)
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
    measured: dict[tuple[str, str], Share] = {}
    for dtype, peak in peaks.items():
        products = long_calls.filter(
            (pl.col("kind") == "product") & (pl.col("dtype") == dtype) & pl.col("padding").is_null()
        )
        share = measured_share(products, peak)
        if share is not None:
            measured["product", dtype] = share
    of_memory = measured_bandwidth_share(work, bandwidth)
    if of_memory is not None:
        measured["memory", ANY_TYPE] = of_memory
    tables = (rates_of_gpu(device), usual_rates())
    return Speeds(peaks, bandwidth, measured, tables if rates is None else (rates, *tables))


def measured_share(calls: pl.DataFrame, peak: float) -> Share | None:
    """Return the share of the peak that calls reach together; None if they are few or their type is wrong."""
    if calls.height < MIN_MEASURED_CALLS:
        return None
    share = float(calls["flop"].sum()) / peak / float(calls["ns"].sum())
    if not 0 < share <= 1:
        return None
    spread = share * MEASURED_SPREAD
    return Share(share - spread, share, min(share + spread, 1.0))


def measured_bandwidth_share(work: pl.DataFrame, bandwidth: float | None) -> Share | None:
    """Return the share of the bandwidth that large elementwise kernels reach; None if they are few."""
    if bandwidth is None:
        return None
    is_large = pl.col("bytes") >= MIN_MEASURED_BYTES
    moves_memory = pl.col("kind").is_in(["elementwise", "norm"])
    large = work.select("kind", "bytes", "ns").filter(is_large & moves_memory)
    shares = (large["bytes"] / bandwidth / large["ns"].clip(lower_bound=1)).to_numpy()
    shares = shares[shares <= 1]
    if len(shares) < MIN_MEASURED_CALLS:
        return None
    low, likely, high = np.quantile(shares, [0.25, 0.5, 0.75])
    usual = usual_rates().share("memory")
    if usual is None:
        return None
    return Share(
        float(np.clip(low, 0.4, usual.likely)),
        float(np.clip(likely, usual.low, usual.high)),
        float(np.clip(high, usual.likely, 0.95)),
    )
