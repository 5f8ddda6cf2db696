"""Changes that give GPU events new durations: types, kernels and calls (``metrics.remedies``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT
from tracekit._util.arrays import Floats
from tracekit.graph.constants import MAX_LAUNCH_MEDIANS
from tracekit.graph.event_graph import EventGraph
from tracekit.metrics.alternatives import ALTERNATIVES

FUSE = "fuse"
FUSE_LOSS = "fuse loss"
KNOWN_SHAPES = "known shapes"
REMEDY_CHANGES = {
    "tf32": "products of float32 run on tensor cores in TF32",
    "bf16": "products and attention of float32 run in bf16",
    "fp16": "products and attention of float32 run in fp16",
    "fp32": "what is in float64 runs in float32",
    "cast once": "weights are cast to 16 bits once for each update, or kept in 16 bits",
    "fused attention": "attention is one kernel, forward and backward",
    FUSE: "chains of kernels that only move memory are one kernel each",
    "fuse norm": "the kernels of each norm are one",
    "fuse activation": "the kernels of each activation are one",
    "fuse rotation": "the kernels of each rotation of positions are one",
    "fuse elementwise": "neighbouring elementwise kernels are one",
    "no recompute": "activations are kept and not computed again, which needs memory",
    "one copy": "small copies from the host are one copy of pinned memory",
    "fused optimizer": "the optimizer updates all parameters in a few kernels",
    "clip together": "gradients are clipped in a few kernels",
    "channels last": "images have their channels last, from the first layer to the last",
    "large messages": "messages are joined to 25 MB or more, and their latencies go",
    "reduce in backward": "gradients are reduced as soon as the backward has them",
    "gather once": "parameters stay after the forward, which needs memory",
    "free cpu": "nothing else runs on the cores of the host's threads",
    KNOWN_SHAPES: "operators take no longer on new shapes than on known ones",
    "pad sizes": "sizes of products are multiples of 64",
    FUSE_LOSS: "the loss reads its logits in 16 bits, and few times",
    **{alternative.change: alternative.rests_on for alternative in ALTERNATIVES},
}
"""Changes by their text, and what each rests on."""


class ChangedFactors(NamedTuple):
    """New over measured duration of each event of a graph, and of the host's time before its launch."""

    low: Floats
    likely: Floats
    high: Floats
    host: Floats


def select_remedies(graph: EventGraph, change: str) -> pl.DataFrame:
    """Return the remedies that a change makes; ``fuse`` is all fusions but that of the loss."""
    remedies = graph.remedies
    if change != FUSE:
        return remedies.filter(pl.col("change") == change)
    is_fusion = pl.col("change").str.starts_with(f"{FUSE} ")
    return remedies.filter(is_fusion & (pl.col("change") != FUSE_LOSS))


def change_factors(graph: EventGraph, remedies: pl.DataFrame) -> ChangedFactors:
    """Return the factors of all events of a graph; those without a remedy keep their times."""
    factors = ChangedFactors(*np.ones((4, len(graph.start))))
    event = remedies["event"].to_numpy()
    measured_ns = remedies["ns"].clip(lower_bound=1).to_numpy()
    durations = (
        ("low_ns", factors.low),
        ("likely_ns", factors.likely),
        ("high_ns", factors.high),
    )
    for name, factor in durations:
        np.multiply.at(factor, event, remedies[name].to_numpy() / measured_ns)
    np.multiply.at(factors.host, event, _host_factors(graph, remedies))
    return factors


def _host_factors(graph: EventGraph, remedies: pl.DataFrame) -> Floats:
    """Return what remains of the host's time before the launch of each remedy's event.

    The time since the launch before may hold other work than the launch that disappears: where it is
    many times what such launches usually take, that usual time goes.
    """
    event = remedies["event"].to_numpy()
    removed_share = 1 - remedies["host_share"].to_numpy()
    before = graph.events["launch_before"].to_numpy()[event]
    is_known = (before >= 0) & (graph.launch[event] != NO_LIMIT)
    since_ns = graph.launch[event] - graph.launch[before]
    host_ns = np.where(is_known, since_ns - graph.events["blocked_ns"].to_numpy()[event], 0)
    host_ns = np.maximum(host_ns, 0)
    removed = host_ns[(removed_share == 1) & is_known]
    usual_ns = float(np.median(removed)) if len(removed) else 0.0
    has_other_work = (removed_share == 1) & (host_ns > MAX_LAUNCH_MEDIANS * usual_ns)
    removed_ns = removed_share * np.where(has_other_work, usual_ns, host_ns)
    return 1 - np.where(host_ns > 0, removed_ns / np.maximum(host_ns, 1), 0.0)
