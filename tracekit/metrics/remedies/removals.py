"""Remedies of work that could go: recomputed forwards, small copies one by one, optimizers parameter by parameter.

Layout conversions around convolutions and products of odd sizes belong here too: what they cost over
the same work in a better shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

import numpy as np
import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.intervals import Intervals
from tracekit.metrics.remedies.rows import REMEDIES, RankWork, new_durations
from tracekit.metrics.remedies.speeds import MIN_KERNEL_NS, Share
from tracekit.metrics.remedies.work import PATTERNS

MAX_SMALL_COPY_BYTES = 1 << 16
"""Bytes up to which a copy from the host takes its calls, not its bytes."""
MIN_SMALL_COPIES = 16
"""Small copies of a step from which one copy of all is worth it."""
MIN_OPTIMIZER_KERNELS = 64
"""Kernels of a step's optimizer from which it goes parameter by parameter."""
KERNELS_PER_FUSED_LAUNCH = 128
"""Kernels of a loop over parameters that one launch of a fused optimizer replaces."""
FUSED_PASSES = 7
"""Times that a fused Adam reads or writes the parameters: it reads parameters, gradients and two states,
and writes all but the gradients."""
MOMENTUM_PASSES = 5
PLAIN_PASSES = 3
FOREACH_FACTORS = Share(0.3, 0.4, 0.6)
"""Time of a fused optimizer over that of one with a kernel per operation for all parameters."""
BATCH_NORM_PASSES = {False: 3, True: 5}
"""Times that a batch norm reads or writes its input, forward and backward."""
BATCH_NORM_SHARE = Share(0.3, 0.45, 0.65)
"""Share of the memory's bandwidth that batch norms reach where channels are last."""
ALIGNED_SIZE = 8
"""Elements that sizes must be a multiple of."""
PADDED_SIZE = 64
"""Elements that sizes are padded to a multiple of."""
MIN_HOST_SHARE = 1e-3
"""Share of the host's time before a launch that is left without its stalls, at least."""
MAX_PADDED_SHARE = 0.8
"""Time of a padded product over the present one, above which odd sizes are not what makes it slow."""


def removal_remedies(rank: RankWork, *, without: Collection[int]) -> Iterator[pl.DataFrame]:
    """Yield the remedies of work that could go or be done in a better shape.

    *without* are rows that belong to attention, whose products are not padded but fused.
    """
    yield _disappears(rank.events.filter(pl.col("label") == "recompute"), "no recompute")
    yield _one_copy(rank)
    yield from _fused_optimizer(rank)
    yield from _channels_last(rank)
    for padded in _padded(rank):
        yield padded.filter(~pl.col("row").is_in(list(without)))


def stall_remedies(rank: RankWork, stalls: Intervals | None) -> Iterator[pl.DataFrame]:
    """Yield the remedies of launches before which the host stood still."""
    if stalls is None or not stalls.total_ns:
        return
    launched = rank.events.drop_nulls("launch_ns").sort("launch_ns")
    launch_ns = launched["launch_ns"].to_numpy()
    since_ns = np.concatenate([launch_ns[:1], launch_ns[:-1]])
    stalled_ns = stalls.covered_ns(since_ns, launch_ns)
    host_share = 1 - stalled_ns / np.maximum(launch_ns - since_ns, 1)
    remedies = launched.select(
        "row",
        change=pl.lit("free cpu"),
        what=pl.lit(None, pl.String()),
        low_ns="ns",
        likely_ns="ns",
        high_ns="ns",
        host_share=pl.Series(host_share).clip(MIN_HOST_SHARE, 1.0),
        waits=pl.lit(True),
    )
    yield remedies.filter(pl.Series(stalled_ns) > 0).cast(REMEDIES)


def _disappears(events: pl.DataFrame, change: str, *, what: str | None = None) -> pl.DataFrame:
    """Return the remedies of events that are not needed."""
    return events.select(
        "row",
        change=pl.lit(change),
        what=pl.lit(what, pl.String()),
        low_ns=pl.lit(0),
        likely_ns=pl.lit(0),
        high_ns=pl.lit(0),
        host_share=pl.lit(0.0),
        waits=pl.lit(True),
    ).cast(REMEDIES)


def _one_copy(rank: RankWork) -> pl.DataFrame:
    """Return the remedies of small copies from the host, all but the first of each step."""
    is_small = pl.col("name").str.contains("(?i)HtoD|HostToDevice") & (
        pl.col("copied_bytes") <= MAX_SMALL_COPY_BYTES
    )
    copies = rank.events.filter(is_small).sort("start_ns")
    many = copies.filter(pl.len().over("part") >= MIN_SMALL_COPIES)
    others = many.filter(pl.int_range(pl.len()).over("part") > 0)
    return _disappears(others, "one copy").with_columns(waits=pl.lit(False))


def _fused_optimizer(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of optimizers that are loops over parameters or over operations."""
    events = rank.events.filter(
        (pl.col("label") == "optimizer") & ~pl.col("op").str.contains("_fused_").fill_null(False)
    )
    is_foreach = pl.col("op").str.contains("_foreach_").fill_null(False)
    has_fused = rank.events.filter(pl.col("op").str.contains("_fused_")).height > 0
    foreach = events.filter(is_foreach)
    if foreach.height and not has_fused:
        priced = foreach.with_columns(
            group="row",
            low_ns=pl.col("ns") * FOREACH_FACTORS.low,
            likely_ns=pl.col("ns") * FOREACH_FACTORS.likely,
            high_ns=pl.col("ns") * FOREACH_FACTORS.high,
        )
        yield new_durations(priced, "fused optimizer", what="foreach")
    # Products are those of an optimizer that no fused kernel replaces.
    loop = events.filter(
        ~is_foreach & pl.col("kind").is_in(["elementwise", "reduction"]).fill_null(False)
    )
    loop = loop.filter(pl.len().over("part") >= MIN_OPTIMIZER_KERNELS)
    if loop.is_empty() or rank.speeds.bandwidth is None:
        return
    updates = loop.filter(pl.col("op").str.contains("addcdiv"))
    passes = FUSED_PASSES
    if updates.is_empty():
        updates = loop.filter(pl.col("op").str.contains("aten::(add|sub)_$"))
        has_states = loop["op"].str.contains("aten::mul_|lerp_").any()
        passes = MOMENTUM_PASSES if has_states else PLAIN_PASSES
    parameters = updates.group_by("part").agg(
        moved=(pl.col("elements") * pl.col("width")).sum() * passes
    )
    priced = loop.join(parameters, on="part", how="inner").drop_nulls("moved")
    durations = rank.speeds.memory_ns(priced["moved"].to_numpy().astype(np.float64))
    if priced.is_empty() or durations is None:
        return
    columns = [
        pl.Series(name, ns)
        for name, ns in zip(("low_ns", "likely_ns", "high_ns"), durations, strict=True)
    ]
    priced = priced.with_columns(columns).with_columns(group="part").sort("row")
    remedies = new_durations(priced, "fused optimizer", what="loop")
    keeps_launch = pl.int_range(pl.len()) % KERNELS_PER_FUSED_LAUNCH == 0
    yield remedies.with_columns(host_share=keeps_launch.cast(pl.Float64))


def _channels_last(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of convolutions and batch norms whose channels are not last."""
    multiplies = pl.col("kind") == "convolution"
    converts = multiplies & pl.col("name").str.contains(PATTERNS["layout_kernel"])
    conversions = rank.events.filter(converts)
    norms = rank.events.filter(
        pl.col("op").str.contains(PATTERNS["batch_norm"])
        & pl.col("name").str.contains(PATTERNS["channels_first_norm"])
        & (pl.col("dims").list.len() > 3)
    )
    if rank.events.filter(multiplies).is_empty() or (conversions.is_empty() and norms.is_empty()):
        return
    yield _disappears(conversions, "channels last", what="conversions")
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
    yield new_durations(priced, "channels last", what="norms")


def _padded(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of products in 16 bits whose sizes are no multiples of 8."""
    calls = rank.calls.filter(
        (pl.col("kind") == "product") & pl.col("dtype").is_in(["bf16", "fp16"])
    ).drop_nulls(["flop", "shapes"])
    padding = {shapes: padded_share(shapes) for shapes in calls["shapes"].unique().to_list()}
    share = pl.col("shapes").replace_strict(padding, default=None, return_dtype=pl.Float64)
    odd = calls.with_columns(padding=share).drop_nulls("padding")
    if odd.is_empty():
        return
    aligned = calls.filter(~pl.col("call").is_in(odd["call"].implode()) & (pl.col("ns") > 20_000))
    for dtype in odd["dtype"].unique().sort().to_list():
        peak = rank.speeds.peaks.get(dtype)
        if peak is None:
            continue
        reached = rank.speeds.product_share(dtype)
        of_type = aligned.filter(pl.col("dtype") == dtype)
        if of_type.height:
            share_of_aligned = float(of_type["flop"].sum()) / peak / float(of_type["ns"].sum())
            likely = min(max(share_of_aligned, reached.low), 0.9)
            reached = Share(likely * 0.8, likely, min(likely * 1.2, 1.0))
        at_peak_ns = pl.col("flop") * pl.col("padding") / peak
        priced = odd.filter(pl.col("dtype") == dtype).select(
            "call",
            low_ns=pl.max_horizontal(at_peak_ns / reached.high, MIN_KERNEL_NS),
            likely_ns=pl.max_horizontal(at_peak_ns / reached.likely, MIN_KERNEL_NS),
            high_ns=pl.max_horizontal(at_peak_ns / reached.low, MIN_KERNEL_NS),
            call_ns="ns",
        )
        slow = priced.filter(pl.col("likely_ns") < MAX_PADDED_SHARE * pl.col("call_ns"))
        events = rank.events.join(slow, on="call", how="inner").with_columns(group="call")
        yield new_durations(events, "pad sizes")


def padded_share(shapes: str) -> float | None:
    """Return the work of a padded product over that of the present one; None if its sizes are multiples of 8.

    >>> padded_share("[[128,60],[60,128]]"), padded_share("[[128,64],[64,128]]")
    (1.0666666666666667, None)
    """
    matrices = [shape for shape in parse_list(shapes) if is_shape(shape) and len(shape) > 1]
    if len(matrices) < 2:
        return None
    # The number of rows, often that of tokens, decides where no row begins.
    inner = matrices[-2][-1]
    columns = matrices[-1][-1]
    sizes = (inner, columns)
    if not all(sizes) or all(size % ALIGNED_SIZE == 0 for size in sizes):
        return None
    return prod(map(_padding, sizes))


def _padding(size: int) -> float:
    """Return a size padded to a multiple of 64 over the size; 1 if it is a multiple of 8."""
    if size % ALIGNED_SIZE == 0:
        return 1.0
    return -(-size // PADDED_SIZE) * PADDED_SIZE / size
