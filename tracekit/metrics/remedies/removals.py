"""Remedies of work that could go: small copies one by one, optimizers parameter by parameter.

Layout conversions around convolutions belong here too: what they cost over the same work in a better
shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import polars as pl

from tracekit.intervals import Intervals
from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations, without_events
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import PATTERNS
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.remedies.layouts import SLOWER_WITH_CHANNELS_LAST, slower_remedies

MAX_SMALL_COPY_BYTES = 1 << 16
"""Bytes up to which a copy from the host takes its calls, not its bytes."""
MIN_SMALL_COPIES = 16
"""Small copies of a step from which one copy of all is worth it."""
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
BATCH_NORM_PASSES = {False: 3, True: 5}
"""Times that a batch norm reads or writes its input, forward and backward."""
BATCH_NORM_SHARE = Share(0.3, 0.45, 0.65)
"""Share of the memory's bandwidth that batch norms reach where channels are last."""
CHANNELS_LAST = "channels last"


MIN_HOST_SHARE = 1e-3
"""Share of the host's time before a launch that is left without its stalls, at least."""


def removal_remedies(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of work that could go or be done in a better shape."""
    yield _one_copy(rank)
    clipping = _find_clipping(rank)
    yield from _clip_together(rank, clipping)
    yield from _fused_optimizer(rank, without=clipping["row"].to_list())
    yield from _channels_last(rank)


def stall_remedies(
    rank: RankWork, stalls: Intervals | None, change: str, *, what: str | None = None
) -> Iterator[pl.DataFrame]:
    """Yield the remedies of launches before which the host stood still, which it would not with *change*."""
    if stalls is None or not stalls.total_ns:
        return
    launched = rank.events.drop_nulls("launch_ns").sort("launch_ns")
    launch_ns = launched["launch_ns"].to_numpy()
    since_ns = np.concatenate([launch_ns[:1], launch_ns[:-1]])
    stalled_ns = stalls.covered_ns(since_ns, launch_ns)
    host_share = 1 - stalled_ns / np.maximum(launch_ns - since_ns, 1)
    remedies = launched.select(
        "row",
        change=pl.lit(change),
        what=pl.lit(what, pl.String()),
        low_ns="ns",
        likely_ns="ns",
        high_ns="ns",
        host_share=pl.Series(host_share).clip(MIN_HOST_SHARE, 1.0),
        waits=pl.lit(True),
    )
    yield remedies.filter(pl.Series(stalled_ns) > 0).cast(REMEDIES)


def _one_copy(rank: RankWork) -> pl.DataFrame:
    """Return the remedies of small copies from the host: the first of each step remains, for all.

    It is of pinned memory: the host waits for none of them.
    """
    small = rank.events.filter(pl.col("copied_bytes") <= MAX_SMALL_COPY_BYTES)
    from_host = pl.col("name").str.contains("(?i)HtoD|HostToDevice")
    copies = small.filter(from_host).sort("start_ns")
    many = copies.filter(pl.len().over("part") >= MIN_SMALL_COPIES)
    if many.is_empty():
        return REMEDIES.to_frame()
    is_first = pl.int_range(pl.len()).over("part") == 0
    remains = new_durations(
        many.filter(is_first).with_columns(group="row", low_ns="ns", likely_ns="ns", high_ns="ns"),
        "one copy",
    )
    disappear = without_events(many.filter(~is_first), "one copy")
    return pl.concat([remains, disappear]).with_columns(waits=pl.lit(value=False))


def _fused_optimizer(rank: RankWork, *, without: Collection[int] = ()) -> Iterator[pl.DataFrame]:
    """Yield the remedies of optimizers that are loops over parameters or over operations.

    *without* are rows of kernels that clip gradients.
    """
    is_fused = pl.col("op").str.contains(PATTERNS["fused_optimizer"]).fill_null(False)
    updates_parameters = (pl.col("label") == "optimizer") & ~pl.col("row").is_in(list(without))
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
        yield new_durations(priced, "fused optimizer", what="foreach")
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
    yield from _in_few_kernels(
        rank, loop.join(parameters, on="part", how="inner"), "fused optimizer", what="loop"
    )


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


def _find_clipping(rank: RankWork) -> pl.DataFrame:
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


def _clip_together(rank: RankWork, clipping: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of gradients that are clipped one by one."""
    if clipping.is_empty() or rank.speeds.bandwidth is None:
        return
    moved = (pl.col("elements") * pl.col("width") * pl.col("passes")).sum().over("part")
    is_known = (pl.col("elements").is_not_null() & pl.col("width").is_not_null()).all().over("part")
    priced = clipping.with_columns(moved=pl.when(is_known).then(moved))
    yield from _in_few_kernels(rank, priced, "clip together", what="clipping")


def _in_few_kernels(
    rank: RankWork, loop: pl.DataFrame, change: str, *, what: str
) -> Iterator[pl.DataFrame]:
    """Yield the remedies of a loop over tensors that a few kernels replace, which move ``moved`` bytes a step."""
    priced = loop.sort("row")
    durations = rank.speeds.memory_ns(priced["moved"].to_numpy().astype(np.float64))
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


def _channels_last(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of images whose channels are not last: what would be faster then, and what slower."""
    convolutions = rank.events.filter(pl.col("kind") == "convolution")
    if convolutions.is_empty():
        return
    # Signals of one dimension are images of one row, whose channels cannot be put last.
    is_image = pl.col("dims").list.get(-2, null_on_oob=True) > 1
    conversions = convolutions.filter(pl.col("name").str.contains(PATTERNS["layout_kernel"]))
    conversions = conversions.filter(is_image.fill_null(value=True))
    norms = rank.events.filter(pl.col("dims").list.len() > 3).filter(
        pl.col("op").str.contains(PATTERNS["batch_norm"])
        & pl.col("name").str.contains(PATTERNS["channels_first_norm"])
    )
    if conversions.is_empty() and norms.is_empty():
        return
    yield without_events(conversions, CHANNELS_LAST, what="conversions")
    # A change of the layout reaches all of a model.
    of_images = rank.events.filter(pl.col("dims").list.len() > 3)
    yield slower_remedies(of_images, SLOWER_WITH_CHANNELS_LAST, CHANNELS_LAST)
    bandwidth = rank.speeds.bandwidth
    if norms.is_empty() or bandwidth is None:
        return
    calls = norms.with_columns(group="call").drop_nulls(["elements", "width"])
    passes = (
        pl.when("is_backward").then(BATCH_NORM_PASSES[True]).otherwise(BATCH_NORM_PASSES[False])
    )
    full_ns = pl.col("elements") * pl.col("width") * passes / bandwidth
    priced = calls.with_columns(
        low_ns=full_ns / BATCH_NORM_SHARE.high,
        likely_ns=full_ns / BATCH_NORM_SHARE.likely,
        high_ns=full_ns / BATCH_NORM_SHARE.low,
    )
    yield new_durations(priced, CHANNELS_LAST, what="norms")
