"""Changes that give GPU events new durations: types, kernels and calls (``metrics.remedies``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Floats

FUSE = "fuse"
FUSE_LOSS = "fuse loss"
REMEDY_CHANGES = {
    "tf32": "products of float32 run on tensor cores in TF32",
    "bf16": "products and attention of float32 run in bf16",
    "fp16": "products and attention of float32 run in fp16",
    "fp32": "what is in float64 runs in float32",
    "fused attention": "attention is one kernel, forward and backward",
    FUSE: "chains of kernels that only move memory are one kernel each",
    "fuse norm": "the kernels of each norm are one",
    "fuse activation": "the kernels of each activation are one",
    "fuse rotation": "the kernels of each rotation of positions are one",
    "fuse elementwise": "neighbouring elementwise kernels are one",
    FUSE_LOSS: "the loss reads its logits in 16 bits, and few times",
}
"""Changes by their text, and what each rests on."""


class ChangedFactors(NamedTuple):
    """New over measured duration of each event of a graph, and of the host's time before its launch."""

    low: Floats
    likely: Floats
    high: Floats
    host: Floats


def all_remedies(events: pl.DataFrame) -> pl.DataFrame:
    """Return the remedies of a graph's events: ``event``, ``ns`` and the fields of a remedy."""
    if "remedies" not in events.columns:
        return pl.DataFrame(schema={"event": pl.Int64(), "change": pl.String()})
    numbered = events.select(
        "remedies",
        event=pl.int_range(pl.len(), dtype=pl.Int64),
        ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    return numbered.drop_nulls("remedies").explode("remedies").unnest("remedies")


def select_remedies(events: pl.DataFrame, change: str) -> pl.DataFrame:
    """Return the remedies that a change makes; ``fuse`` is all fusions but that of the loss."""
    remedies = all_remedies(events)
    if change != FUSE:
        return remedies.filter(pl.col("change") == change)
    is_fusion = pl.col("change").str.starts_with(f"{FUSE} ")
    return remedies.filter(is_fusion & (pl.col("change") != FUSE_LOSS))


def change_factors(events: pl.DataFrame, remedies: pl.DataFrame) -> ChangedFactors:
    """Return the factors of all events of a graph; those without a remedy keep their times."""
    factors = ChangedFactors(*np.ones((4, events.height)))
    event = remedies["event"].to_numpy()
    measured_ns = remedies["ns"].clip(lower_bound=1).to_numpy()
    for name, factor in (("low_ns", factors.low), ("likely_ns", factors.likely), ("high_ns", factors.high)):
        np.multiply.at(factor, event, remedies[name].to_numpy() / measured_ns)
    np.multiply.at(factors.host, event, remedies["host_share"].to_numpy())
    return factors
