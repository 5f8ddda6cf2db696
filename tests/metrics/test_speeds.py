"""Speeds that a run shows: shares of the peak and of the bandwidth."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.alternatives.precision import retyped
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds, measured_bandwidth_share


def test_attention_in_sixteen_bits_does_half_of_its_flop_at_the_usual_rates():
    """21,000,000 FLOP, of which a causal kernel does half, at 1 per ns: 0.6, 0.35 and 0.22 of it are usual."""
    call = {
        "call": 0,
        "kind": "fused_attention",
        "op": "aten::attention",
        "shapes": "",
        "used": "fp32",
    }
    calls = pl.DataFrame([call | {"flop": 21_000_000, "ns": 10**9}])
    speeds = Speeds({"fp32": 0.1, "bf16": 1.0}, None)
    events = pl.DataFrame({"row": [0], "ns": [10**9], "call": [0]})
    remedies = retyped(RankWork(events, calls, speeds), calls, "bf16")
    assert remedies.select("low_ns", "likely_ns", "high_ns").row(0) == (
        17_500_000,
        30_000_000,
        47_727_273,
    )


def calls(count, *, flop, ns=100):
    return pl.DataFrame({"flop": [float(flop)] * count, "ns": [ns] * count})


@pytest.mark.parametrize(
    ("share", "count", "size", "kind", "measured"),
    [
        (0.7, 4, 1 << 26, "elementwise", (0.7, 0.7, 0.75)),
        (0.7, 4, 1 << 26, "norm", (0.7, 0.7, 0.75)),
        (0.7, 3, 1 << 26, "norm", None),
        (0.7, 4, (1 << 26) - 1, "norm", None),
        (0.7, 4, 1 << 26, "product", None),
        (1.1, 4, 1 << 26, "norm", None),  # from a cache
        (0.3, 4, 1 << 26, "norm", (0.4, 0.55, 0.75)),
        (0.98, 4, 1 << 26, "norm", (0.75, 0.9, 0.95)),
    ],
)
def test_four_kernels_of_64_mb_measure_the_memory(share, count, size, kind, measured):
    work = pl.DataFrame({"kind": [kind] * count, "bytes": size, "ns": round(size / share / 1000)})
    assert measured_bandwidth_share(work, 1000.0) == (
        None if measured is None else pytest.approx(measured, abs=1e-3)
    )


def test_a_memory_of_unknown_speed_is_not_measured():
    assert measured_bandwidth_share(pl.DataFrame(), None) is None
