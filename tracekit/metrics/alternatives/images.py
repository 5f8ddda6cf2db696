"""Alternatives of layouts of images."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import (
    REMEDIES,
    SLOWER_OPERATORS,
    new_durations,
    without_events,
)
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import PATTERNS
from tracekit.metrics.rank_work import RankWork

IMAGE_DIMENSIONS = 4
CONVERSION_FACTORS = Share(0.25, 0.4, 0.6)
"""Time of cuDNN's conversions around convolutions of channels first over that of the copies that change the layout
of all of an image, as recorded for one model in both layouts."""
MIN_IMAGE_ELEMENTS = 1 << 14
"""Elements of a batch of images, at least; counters and statistics have fewer."""
MIXED_STRIDES_KERNEL = r"at::native::elementwise_kernel<"
"""Elementwise kernels of inputs whose strides differ; those of one layout are vectorized."""
BATCH_NORM_PASSES = {False: 3, True: 5}
"""Times that a batch norm reads or writes its input, forward and backward."""
TYPES_BY_WIDTH = {4: "fp32", 2: "bf16"}
"""Types of images by the bytes of an element."""


class SlowerOperators(msgspec.Struct, frozen=True):
    """Time of operators with a change over that without it."""

    operators: tuple[str, ...]
    low: float
    likely: float
    high: float


class _LayoutsFile(msgspec.Struct, frozen=True):
    slower: tuple[SlowerOperators, ...]
    slower_in_16_bits: tuple[SlowerOperators, ...]


_LAYOUTS = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("layouts.toml").read_text(encoding="utf-8")),
    _LayoutsFile,
)
SLOWER_WITH_CHANNELS_LAST = _LAYOUTS.slower
SLOWER_IN_16_BITS = _LAYOUTS.slower_in_16_bits
"""Of images whose channels are first."""


def slower_remedies(
    events: pl.DataFrame, slower: tuple[SlowerOperators, ...], change: str
) -> pl.DataFrame:
    """Return the remedies of events that take longer with a change: it pays for these."""
    frames = [REMEDIES.to_frame()]
    for factors in slower:
        of_operators = events.filter(pl.col("op").is_in(factors.operators)).with_columns(
            group="row",
            low_ns=pl.col("ns") * factors.low,
            likely_ns=pl.col("ns") * factors.likely,
            high_ns=pl.col("ns") * factors.high,
        )
        remedies = new_durations(of_operators, change, what=SLOWER_OPERATORS, may_be_longer=True)
        frames.append(remedies)
    return pl.concat(frames)


class ChannelsLast(Alternative, frozen=True, kw_only=True):
    """Images have channels first: convolutions convert them, and batch norms have slower kernels."""

    change = "channels last"
    rests_on = "images have their channels last, from the first layer to the last"
    code = "layout"
    rests_on_rates = True
    title = "layout of images"
    says = "images have their channels first: conversions around convolutions and batch norms take {work_ns}"
    advises = "put channels last: {switch}"
    topic = "layout"
    caveat = (
        "It reaches all of a model: group norms and interpolation are slower with channels last."
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
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
        yield without_events(conversions, self.change, what="conversions")
        # A change of the layout reaches all of a model.
        of_images = rank.events.filter(pl.col("dims").list.len() > 3)
        yield slower_remedies(of_images, SLOWER_WITH_CHANNELS_LAST, self.change)
        bandwidth = rank.speeds.bandwidth
        if norms.is_empty() or bandwidth is None:
            return
        passes = (
            pl.when("is_backward").then(BATCH_NORM_PASSES[True]).otherwise(BATCH_NORM_PASSES[False])
        )
        full_ns = pl.col("elements") * pl.col("width") * passes / bandwidth
        for width, dtype in TYPES_BY_WIDTH.items():
            share = rank.speeds.share("batch_norm", dtype)
            priced = norms.filter(pl.col("width") == width).with_columns(
                group="call",
                low_ns=full_ns / share.high,
                likely_ns=full_ns / share.likely,
                high_ns=full_ns / share.low,
            )
            yield new_durations(priced, self.change, what="norms")


class ChannelsFirst(Alternative, frozen=True, kw_only=True):
    """Images have channels last, and group norms want channels first: each is copied there and back."""

    change = "channels first"
    rests_on = "images have their channels first, and convolutions convert them for themselves"
    code = "layout"
    case = "group_norm"
    rests_on_rates = True
    title = "layout of images"
    says = (
        "group norm is slow with channels last: it needs channels first, and copies there and back take part in "
        "{work}"
    )
    advises = "leave channels first and measure both, or use a group norm that is written for channels last"
    caveat = "Convolutions alone are faster with channels last: what is left of both is measured in no other model."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        events = rank.events.filter(pl.col("dims").list.len() == IMAGE_DIMENSIONS)
        is_layout_copy = (pl.col("op") == "aten::copy_") & pl.col("chain").str.contains(
            "aten::contiguous > aten::clone"
        )
        in_norm = pl.col("chain").str.contains("group_norm") | (
            pl.col("node") == "NativeGroupNormBackward0"
        ).fill_null(value=False)
        in_convolution = pl.col("chain").str.contains("conv(olution|[123]d)|ConvolutionBackward")
        copies = events.filter(is_layout_copy & (in_norm | in_convolution))
        if copies.filter(in_norm).is_empty():
            return
        factors = CONVERSION_FACTORS
        yield new_durations(
            copies.with_columns(
                group="row",
                low_ns=factors.low * pl.col("ns"),
                likely_ns=factors.likely * pl.col("ns"),
                high_ns=factors.high * pl.col("ns"),
            ),
            self.change,
            what="copies",
        )
        # Between these copies tensors of both layouts meet.
        is_mixed = pl.col("name").str.contains(MIXED_STRIDES_KERNEL) & pl.col("bytes").is_not_null()
        mixed = events.filter(is_mixed & (pl.col("kind") == "elementwise") & ~is_layout_copy)
        durations = rank.speeds.memory_ns(mixed["bytes"].to_numpy().astype(np.float64))
        if durations is not None and len(mixed):
            names = ("low_ns", "likely_ns", "high_ns")
            columns = [
                pl.Series(name, values) for name, values in zip(names, durations, strict=True)
            ]
            yield new_durations(
                mixed.with_columns(*columns, group="row"), self.change, what="mixed strides"
            )


class BiasBeforeNorm(Alternative, frozen=True, kw_only=True):
    """Convolutions add a bias that the batch norm behind them takes away."""

    change = "no bias before norms"
    rests_on = "convolutions in front of batch norms add no bias"
    code = "needless_bias"
    case = ""
    title = "biases"
    says = "convolutions add a bias that the batch norm behind them subtracts again, which takes {work}"
    advises = "make these convolutions with `bias=False`: the norm has a bias of its own"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        is_bias = (pl.col("op") == "aten::add_") & pl.col("chain").str.contains(
            "aten::_convolution"
        )
        columns = ("row", "part", "stream", "start_ns", "op", "elements", "chain", "node")
        ordered = rank.events.select(columns).sort("stream", "start_ns")
        # What follows on tensors of that size, counters and scalars apart.
        large = ordered.filter(pl.col("elements") >= MIN_IMAGE_ELEMENTS).with_columns(
            next_op=pl.col("op").shift(-1).over("stream"),
            next_elements=pl.col("elements").shift(-1).over("stream"),
        )
        biases = large.filter(
            is_bias.fill_null(value=False)
            & pl.col("next_op").str.contains("batch_norm")
            & (pl.col("elements") == pl.col("next_elements"))
        )
        if biases.is_empty():
            return
        sizes = biases["elements"].unique()
        of_gradients = rank.events.filter(
            (pl.col("op") == "aten::sum")
            & (pl.col("node") == "ConvolutionBackward0")
            & pl.col("elements").is_in(sizes.implode())
        )
        added = rank.events.filter(pl.col("row").is_in(biases["row"].implode()))
        yield without_events(added, self.change, what="biases")
        yield without_events(of_gradients, self.change, what="their gradients")
