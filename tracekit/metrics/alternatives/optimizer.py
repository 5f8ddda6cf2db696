"""Alternatives of optimizers and of the clipping of gradients that go tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import polars as pl

from tracekit.metrics.alternatives.entry import Alternative, Sentences
from tracekit.metrics.alternatives.remedy import new_durations
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import PATTERNS
from tracekit.metrics.rank_work import RankWork

MIN_OPTIMIZER_KERNELS = 64
"""Kernels of a step's optimizer from which it goes parameter by parameter."""
ZEROING = "zero_?$|fill_?$"
"""Operators that zero gradients."""
KERNELS_PER_FUSED_LAUNCH = 128
"""Kernels of a loop over parameters that one launch of a fused optimizer replaces."""
FUSED_PASSES = 7
"""Times that a fused Adam reads or writes the parameters: it reads parameters, gradients and two states,
and writes all but the gradients."""
MOMENTUM_PASSES = 5
PLAIN_PASSES = 3
MAX_CALLS_PER_PARAMETER = 8
"""Calls of one operation for each parameter, at most; operations that are rarer than that are no part of the loop."""
FOREACH_FACTORS = Share(0.3, 0.4, 0.6)
"""Time of a fused optimizer over that of one with a kernel per operation for all parameters."""


class FusedOptimizer(Alternative, frozen=True, kw_only=True):
    """The optimizer goes parameter by parameter, or operation by operation."""

    change = "fused optimizer"
    rests_on = "the optimizer updates all parameters in a few kernels"
    code = "optimizer"
    rests_on_rates = True
    title = "optimizer"
    label_of_kernels = "optimizer"
    training_only = True
    says = "the optimizer goes parameter by parameter: {kernels} ({work})"
    advises = "let it update all parameters at once (`fused=True`, or `foreach=True` where there is no fused one)"
    case_is_what = True
    cases: ClassVar[Mapping[str, Sentences]] = {
        "foreach": Sentences(
            "the optimizer reads and writes all parameters for each of its operations ({work})",
            "use its fused kernel (`fused=True`)",
        )
    }
    caveat = "Not all optimizers have a fused kernel."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        is_fused = pl.col("op").str.contains(PATTERNS["fused_optimizer"]).fill_null(False)
        updates_parameters = (pl.col("label") == "optimizer") & ~pl.col("row").is_in(
            rank.once(find_clipping)["row"].implode()
        )
        events = rank.events.filter(updates_parameters).filter(~is_fused)
        is_foreach = pl.col("op").str.contains("_foreach_").fill_null(False)
        foreach = events.filter(is_foreach)
        if foreach.height and not rank.events.select(is_fused.any()).item():
            priced = foreach.with_columns(
                group="row",
                low_ns=pl.col("ns") * FOREACH_FACTORS.low,
                likely_ns=pl.col("ns") * FOREACH_FACTORS.likely,
                high_ns=pl.col("ns") * FOREACH_FACTORS.high,
            )
            # The call of a fused kernel takes the host about as long as all of these: only the GPU is done sooner.
            yield new_durations(priced, self.change, what="foreach")
        # Products are those of an optimizer that no fused kernel replaces, and none zeroes gradients.
        loop = events.filter(
            ~is_foreach
            & pl.col("kind").is_in(["elementwise", "reduction"]).fill_null(False)
            & ~pl.col("op").str.contains(ZEROING).fill_null(False)
        )
        loop = loop.filter(pl.len().over("part") >= MIN_OPTIMIZER_KERNELS)
        if loop.is_empty() or rank.speeds.bandwidth is None:
            return
        parameters = _moved_by_update(loop)
        loop = loop.join(parameters, on="part", how="inner")
        yield from _in_few_kernels(rank, loop, self.change, what="loop", work="optimizer")


def _moved_by_update(loop: pl.DataFrame) -> pl.DataFrame:
    """Return what one fused update moves in each ``part`` as ``moved``; null if sizes are not known.

    Parts in which nothing is added to a parameter are left out. Every operation of the *loop* runs
    once or several times for each parameter: of each size, there are as many parameters as calls of
    the rarest operation, stray ones apart.
    """
    sizes = ["part", "elements", "width"]
    calls = loop.group_by(*sizes, "op").agg(calls=pl.len())
    is_of_loop = pl.col("calls") * MAX_CALLS_PER_PARAMETER >= pl.col("calls").max().over(sizes)
    counts = calls.filter(is_of_loop).group_by(sizes).agg(parameters=pl.col("calls").min())
    op = pl.col("op")
    updates = op.str.contains("addcdiv|aten::(add|sub)_$").any().over("part")
    passes = (
        pl.when(op.str.contains("addcdiv|sqrt").any())
        .then(FUSED_PASSES)
        .when(op.str.contains("aten::mul_|lerp_").any())
        .then(MOMENTUM_PASSES)
        .otherwise(PLAIN_PASSES)
    )
    passes_of_part = loop.filter(updates).group_by("part").agg(passes=passes)
    joined = counts.join(passes_of_part, on="part", how="inner")
    is_known = pl.col("elements").is_not_null() & pl.col("width").is_not_null()
    moved = (pl.col("parameters") * pl.col("elements") * pl.col("width") * pl.col("passes")).sum()
    return joined.group_by("part").agg(moved=pl.when(is_known.all()).then(moved))


class ClippedTogether(Alternative, frozen=True, kw_only=True):
    """Gradients are clipped parameter by parameter."""

    change = "clip together"
    rests_on = "gradients are clipped in a few kernels"
    code = "optimizer"
    case = "clipping"
    rests_on_rates = True
    title = "optimizer"
    label_of_kernels = "optimizer"
    training_only = True
    says = "gradients are clipped parameter by parameter: {kernels} ({work})"
    advises = "clip all at once: `clip_grad_norm_` with `foreach=True`, on gradients that are all on the GPU"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        clipping = rank.once(find_clipping)
        if clipping.is_empty() or rank.speeds.bandwidth is None:
            return
        moved = (pl.col("elements") * pl.col("width") * pl.col("passes")).sum().over("part")
        is_known = pl.col("elements").is_not_null() & pl.col("width").is_not_null()
        priced = clipping.with_columns(moved=pl.when(is_known.all().over("part")).then(moved))
        yield from _in_few_kernels(rank, priced, self.change, what="clipping")


def find_clipping(rank: RankWork) -> pl.DataFrame:
    """Return the kernels that clip gradients one by one, with ``passes`` over each.

    Behind the backward of their step come the norms, one for each gradient; behind these, and before
    the optimizer's first update, their scales.
    """
    is_norm = pl.col("op").str.contains(PATTERNS["gradient_norm"])
    is_outside_nodes = pl.col("node").is_null()
    if rank.events.select((is_norm & is_outside_nodes).sum()).item() < MIN_OPTIMIZER_KERNELS:
        return rank.events.head(0).with_columns(passes=pl.lit(1))
    outside_nodes = rank.events.filter(is_outside_nodes)
    launch_ns = pl.col("launch_ns")
    backward = rank.events.drop_nulls("node").group_by("part").agg(backward_ns=launch_ns.max())
    behind = outside_nodes.join(backward, on="part", how="inner")
    behind = behind.filter(launch_ns > pl.col("backward_ns"))
    norms = behind.filter(is_norm)
    norms = norms.filter(pl.len().over("part") >= MIN_OPTIMIZER_KERNELS)
    last_norms = norms.group_by("part").agg(norms_ns=launch_ns.max())
    later = behind.join(last_norms, on="part", how="inner").filter(launch_ns > pl.col("norms_ns"))
    update_ns = launch_ns.filter(pl.col("op").str.contains(PATTERNS["optimizer_update"])).min()
    is_before_updates = (launch_ns < update_ns.over("part")).fill_null(value=True)
    scales = later.filter(pl.col("op").str.contains(PATTERNS["gradient_scale"]) & is_before_updates)
    columns = rank.events.columns
    return pl.concat(
        [
            norms.select(*columns, passes=pl.lit(1)),
            scales.select(*columns, passes=pl.lit(2)),
        ]
    )


def _in_few_kernels(
    rank: RankWork, loop: pl.DataFrame, change: str, *, what: str, work: str = "memory"
) -> Iterator[pl.DataFrame]:
    """Yield the remedies of a loop over tensors that a few kernels replace, which move ``moved`` bytes a step."""
    priced = loop.sort("row")
    durations = rank.speeds.memory_ns(priced["moved"].to_numpy().astype(np.float64), work)
    if priced.is_empty() or durations is None:
        return
    # Without sizes only the launches are known to go.
    present_ns = pl.col("ns").sum().over("part")
    new_ns = [
        pl.coalesce(pl.Series(values).fill_nan(None), present_ns).alias(name)
        for name, values in zip(("low_ns", "likely_ns", "high_ns"), durations, strict=True)
    ]
    priced = priced.with_columns(new_ns).with_columns(group="part")
    remedies = new_durations(priced, change, what=what)
    keeps_launch = pl.int_range(pl.len()) % KERNELS_PER_FUSED_LAUNCH == 0
    yield remedies.with_columns(host_share=keeps_launch.cast(pl.Float64))
