"""Alternatives of programs that only run a model forward: what training needs and inference does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.alternatives.entry import Alternative, SitePrice
from tracekit.metrics.alternatives.remedy import new_durations, without_events
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import Inputs
from tracekit.metrics.speeds import MIN_KERNEL_NS

TRAINING_INPUT = {
    "aten::native_batch_norm": 5,
    "aten::cudnn_batch_norm": 5,
    "aten::miopen_batch_norm": 5,
}
"""Batch norms, and their input that says whether they take statistics of the batch."""
DROPOUT_INPUT = {
    "aten::_cudnn_attention_forward": 9,
    "aten::_flash_attention_forward": 7,
    "aten::_efficient_attention_forward": 8,
}
"""Attention in one kernel, and its input that is the probability to drop a score."""
ATTENTION_WITHOUT_DROPOUT = Share(0.4, 0.5, 0.9)
"""Time of attention without dropout over that with it, as recorded for cuDNN's."""
DROPOUT = r"^aten::(native_dropout|_fused_dropout|bernoulli_|dropout)$"
INTEGER_TYPES = ("signed char", "unsigned char", "char", "int8_t", "uint8_t")
MIN_DEQUANTISED = 4
"""Weights that are made in a step, from which it is a habit."""
PACKED = (1, 2, 4, 8)
"""Values of a weight that an element may hold."""
MAX_KERNELS_OF_WEIGHT = 12
"""Kernels in front of a product among which those are that make its weight."""
_CAST = re.compile(r'\["(c10::)?(BFloat16|Half)","[fF]loat"')
EVALUATED_NORM_SHARE = Share(0.25, 0.35, 0.75)
"""Share of the memory's bandwidth that a batch norm with learned statistics reaches, as recorded with channels last."""
BIAS_SHARE = Share(0.25, 0.32, 0.5)
"""Share of the memory's bandwidth that adding a bias to an image reaches, as recorded behind convolutions."""
TOPK_PASSES = Share(6.0, 12.0, 24.0)
"""Times that looking for the largest values reads a row, small kernels between the passes among them."""
MIN_VOCABULARY = 4096
"""Columns of a product from which it is a head over a vocabulary."""
MIN_TOKENS = 64
MAX_READ_SHARE = 0.25
"""Logits that are read over those that are computed, up to which the others are for nothing."""
MAX_ADAPTER_RANK = 256
"""Inner size of two products in a row up to which they are an adapter."""
MIN_ADAPTER_RATIO = 4
"""Sizes around an adapter over its inner size, at least."""
MIN_ADAPTERS = 4
"""Adapters of a step, at least."""
MIN_ADAPTER_KERNELS = 3
"""Kernels of an adapter: two products and the sum."""


class TrainingMode(Alternative, frozen=True, kw_only=True):
    """A model that only runs forward is in training mode: batch norms measure the batch, dropout draws."""

    change = "evaluation mode"
    rests_on = "batch norms take the statistics that they learned, and nothing is dropped"
    code = "training_mode"
    case = ""
    title = "training mode"
    says = (
        "the model runs forward alone, but in training mode: {what} take {work}, and results differ "
        "from run to run or with the batch"
    )
    advises = "call `model.eval()` before it runs"
    caveat = "Monte Carlo dropout, and batch norms that adapt to the data, want this."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        norms = [site["site"] for site in _sites_of(rank, TRAINING_INPUT) if _trains(site)]
        in_norm = rank.events.filter(pl.col("site").is_in(norms))
        calls = in_norm.filter(pl.col("elements").is_not_null())
        bandwidth = rank.speeds.bandwidth
        if not calls.is_empty() and bandwidth is not None:
            full_ns = pl.col("elements") * pl.col("narrow_width").fill_null(2) * 2 / bandwidth
            share = EVALUATED_NORM_SHARE
            priced = calls.with_columns(
                low_ns=full_ns / share.high,
                likely_ns=full_ns / share.likely,
                high_ns=full_ns / share.low,
                group="call",
            )
            yield new_durations(priced, self.change, what="batch norms", keeps_first=True)
            # Each norm counts its batches.
            counts = rank.events.filter(
                (pl.col("op") == "aten::add_") & pl.col("dtypes").str.starts_with('["long int"')
            )
            yield without_events(counts, self.change, what="batch norms")
        in_attention = rank.events.filter(pl.col("site").is_in(_attention_with_dropout(rank)))
        factors = ATTENTION_WITHOUT_DROPOUT
        priced = in_attention.with_columns(
            group="row",
            low_ns=factors.low * pl.col("ns"),
            likely_ns=factors.likely * pl.col("ns"),
            high_ns=factors.high * pl.col("ns"),
        )
        yield new_durations(priced, self.change, what="dropouts")
        dropped = rank.events.filter(pl.col("op").str.contains(DROPOUT).fill_null(value=False))
        yield without_events(dropped, self.change, what="dropouts")


def _sites_of(rank: RankWork, operators: dict[str, int]) -> Iterator[dict[str, Any]]:
    return rank.sites.filter(pl.col("op").is_in(list(operators))).iter_rows(named=True)


def _attention_with_dropout(rank: RankWork) -> list[int]:
    """Return the sites of attention that drops scores."""
    sites = []
    for site in _sites_of(rank, DROPOUT_INPUT):
        probability = Inputs.of(site).value(DROPOUT_INPUT[site["op"]])
        if isinstance(probability, float | int) and probability > 0:
            sites.append(site["site"])
    return sites


def _trains(site: dict[str, Any]) -> bool:
    return Inputs.of(site).value(TRAINING_INPUT[site["op"]]) is True


class DequantisedWeights(Alternative, frozen=True, kw_only=True):
    """Weights of 8 bits or fewer are converted to a wider type in front of each product."""

    change = "dequantised once"
    rests_on = (
        "weights of 8 bits or fewer are converted once, or by the kernel that multiplies by them"
    )
    code = "dequantised"
    case = ""
    title = "dequantised weights"
    says = (
        "weights of 8 bits or fewer are converted and scaled in front of every product, {kernels_per_step} kernels a "
        "step: {work}, more memory than the product reads"
    )
    advises = (
        "use a product that takes them as they are (torchao's weight-only kernels with `torch.compile`, Marlin, "
        "`torch._weight_int8pack_mm`), or keep the converted weights where memory allows"
    )
    caveat = "Kept weights take twice the memory, those of 4 bits four times."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        yield from (
            without_events(made, self.change)
            for made, is_of_integers in rank.once(_made_weights)
            if is_of_integers
        )


def _made_weights(rank: RankWork) -> list[tuple[pl.DataFrame, bool]]:
    """Return the events that make the matrices that products multiply by, and whether of integers.

    Each product of a habit has them in front of it: as large as its matrix in the end, and smaller than
    that as long as several values are packed in one. Sizes that activations have as well prove nothing.
    """
    events = rank.events.sort("part", "stream", "start_ns")
    if events.select(pl.col("node").is_not_null().any()).item():
        return []
    is_product = pl.col("op").is_in(["aten::mm", "aten::addmm"]) & (pl.col("kind") == "product")
    products = events.with_row_index("place").filter(is_product).drop_nulls("shapes")
    matrices: dict[int, int] = {}
    activations: set[int] = set()
    for place, shapes in products.select("place", "shapes").iter_rows():
        inner = _inner(shapes)
        if inner is not None:
            rows, between, columns = inner
            matrices[place] = between * columns
            activations |= {rows * between, rows * columns}
    elements = events["elements"].fill_null(0).to_list()
    moves = events["kind"].is_in(["elementwise", "norm"]).fill_null(value=False).to_list()
    types = events["dtypes"].fill_null("").to_list()
    ops = events["op"].fill_null("").to_list()
    found: dict[bool, list[int]] = {True: [], False: []}
    calls = {True: 0, False: 0}
    for place, size in matrices.items():
        if size in activations:
            continue
        made = [
            before
            for before in range(max(place - MAX_KERNELS_OF_WEIGHT, 0), place)
            if moves[before] and any(elements[before] * packed == size for packed in PACKED)
        ]
        # Casts of float32 alone are autocast's.
        is_cast = all(ops[row] == "aten::copy_" and _CAST.match(types[row]) for row in made)
        if not made or elements[made[-1]] != size or is_cast:
            continue
        is_of_integers = any(kind in types[row] for row in made for kind in INTEGER_TYPES)
        found[is_of_integers] += made
        calls[is_of_integers] += 1
    steps = max(events["part"].n_unique(), 1)
    return [
        (events[sorted(set(rows))], is_of_integers)
        for is_of_integers, rows in found.items()
        if calls[is_of_integers] >= MIN_DEQUANTISED * steps
    ]


class UnmergedAdapters(Alternative, frozen=True, kw_only=True):
    """Adapters of low rank are computed beside the products of their weights."""

    change = "merged adapters"
    rests_on = "adapters are added to the weights before the model runs"
    code = "adapters"
    case = ""
    title = "adapters"
    says = (
        "adapters of low rank run beside the weights that they change, {kernels_per_step} kernels a step: "
        "{work}"
    )
    advises = "merge them into the weights before inference (`merge_and_unload()` of PEFT)"
    caveat = "A server that changes adapters from request to request keeps them apart."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        members = _adapter_rows(rank.events)
        steps = max(rank.events["part"].n_unique(), 1)
        if len(members) >= MIN_ADAPTERS * MIN_ADAPTER_KERNELS * steps:
            adapters = rank.events.filter(pl.col("row").is_in(members.implode()))
            yield without_events(adapters, self.change)


def _adapter_rows(events: pl.DataFrame) -> pl.Series:
    """Return the rows of adapters: a product to few columns, one back from these, perhaps a scale, and the sum."""
    is_member = pl.col("op").str.contains("^aten::(mm|addmm|mul_?|add_?)$")
    links = events.select("row", "part", "stream", "start_ns", "op", "shapes").filter(is_member)
    links = links.sort("part", "stream", "start_ns")
    inner = {text: _inner(text) for text in links["shapes"].unique().drop_nulls()}
    sizes = {text: matrices for text, matrices in inner.items() if matrices is not None}
    columns, width = (
        links["shapes"].replace_strict(
            {text: matrices[i] for text, matrices in sizes.items()},
            default=None,
            return_dtype=pl.Int64,
        )
        for i in (1, 2)
    )
    is_product = pl.col("op").is_in(["aten::mm", "aten::addmm"])
    is_narrow = (width <= MAX_ADAPTER_RANK) & (columns >= MIN_ADAPTER_RATIO * width)
    links = links.with_columns(columns=columns, width=width, is_product=is_product)
    links = links.with_columns(
        narrows=(pl.Series(is_narrow) & pl.col("is_product")).fill_null(value=False)
    )
    widens = (
        pl.col("narrows").shift(1, fill_value=False)
        & pl.col("is_product")
        & (pl.col("columns") == pl.col("width").shift(1))
        & (pl.col("width") >= MIN_ADAPTER_RATIO * pl.col("columns"))
    ).fill_null(value=False)
    links = links.with_columns(widens=widens)
    scales = pl.col("widens").shift(1, fill_value=False) & pl.col("op").str.contains("mul")
    links = links.with_columns(scales=scales)
    adds = (pl.col("widens") | pl.col("scales")).shift(1, fill_value=False) & pl.col(
        "op"
    ).str.contains("::add_?$")
    links = links.with_columns(adds=adds)
    is_adapter = (
        pl.col("widens")
        | pl.col("widens").shift(-1, fill_value=False)
        | pl.col("scales")
        | pl.col("adds")
    )
    return links.filter(is_adapter)["row"]


def _inner(shapes: str) -> tuple[int, int, int] | None:
    """Return rows, inner size and columns of a product of two matrices; None if it is none.

    >>> _inner("[[4096,2048],[2048,16]]")
    (4096, 2048, 16)
    """
    matrices = [size for size in parse_list(shapes) if size and is_shape(size) and len(size) == 2]
    if len(matrices) < 2:
        return None
    return matrices[-2][0], matrices[-2][1], matrices[-1][1]


class WeightsMadeAgain(Alternative, frozen=True, kw_only=True):
    """Weights are made of others in every forward, although they do not change."""

    change = "weights made once"
    rests_on = "weights that follow from others are made once"
    code = "weights_made_again"
    case = ""
    title = "weights"
    says = "weights are made of others again in every forward ({what}): {work}"
    advises = (
        "make them once before inference (`torch.nn.utils.parametrize.remove_parametrizations`; merge, transpose or "
        "copy them when they are loaded: `weight.t()` alone is a view, which products take as it is)"
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        for made, is_of_integers in rank.once(_made_weights):
            if not is_of_integers:
                longest = made.group_by("op").agg(pl.col("ns").sum())
                names = longest.sort("ns", "op", descending=True)["op"].head(3)
                what = ", ".join(op.removeprefix("aten::").strip("_") for op in names)
                yield without_events(made, self.change, what=what)
        if not rank.events.select(pl.col("node").is_not_null().any()).item():
            makes_weights = (
                pl.col("chain").str.contains("aten::_weight_norm").fill_null(value=False)
            )
            normalised = rank.events.filter(makes_weights)
            yield without_events(normalised, self.change, what="weight_norm")


class UnfoldedNorms(Alternative, frozen=True, kw_only=True):
    """Batch norms run behind convolutions in inference, where they are a scale and a bias of the weights."""

    change = "folded norms"
    rests_on = "batch norms behind convolutions are part of these"
    code = "unfolded_norms"
    case = ""
    title = "batch norms"
    says = (
        "batch norms run behind convolutions, {kernels_per_step} kernels a step: {work} for what "
        "weights and bias of the convolution could do"
    )
    advises = (
        "fold them (`torch.nn.utils.fusion.fuse_conv_bn_eval`, or `torch.compile` with "
        "`torch._inductor.config.freezing`)"
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        norms = [
            site["site"]
            for site in _sites_of(rank, TRAINING_INPUT)
            if Inputs.of(site).value(TRAINING_INPUT[site["op"]]) is False
        ]
        if not norms or not rank.events.select((pl.col("kind") == "convolution").any()).item():
            return
        in_norm = pl.col("site").is_in(norms) | pl.col("chain").str.contains("aten::batch_norm")
        events = rank.events.filter(in_norm.fill_null(value=False))
        # What is left of each is the bias that its convolution adds, one pass over the image.
        large = pl.col("elements") == pl.col("elements").max().over("call")
        images = events.filter(
            pl.col("site").is_in(norms) & large & (pl.col("dims").list.len() > 2)
        )
        bandwidth = rank.speeds.bandwidth
        if bandwidth is None:
            return
        full_ns = pl.col("elements") * pl.col("narrow_width").fill_null(4) * 2 / bandwidth
        share = BIAS_SHARE
        priced = images.with_columns(
            low_ns=full_ns / share.high,
            likely_ns=full_ns / share.likely,
            high_ns=full_ns / share.low,
            group="call",
        )
        yield new_durations(priced, self.change, keeps_first=True)
        others = events.filter(~pl.col("row").is_in(images["row"].implode()))
        yield without_events(others, self.change)


class UnusedLogits(Alternative, frozen=True, kw_only=True):
    """The head computes logits of all tokens, of which few are read."""

    change = "used logits"
    rests_on = "the head computes logits only of tokens whose logits are read"
    code = "unused_logits"
    case = ""
    title = "logits"
    says = "the head computes logits of all tokens, and few of them are read ({what}): {work}"
    advises = "select the tokens before the head (`head(hidden[:, -1])`; `logits_to_keep=1` in Transformers)"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        products = rank.sites.filter(pl.col("op").is_in(["aten::mm", "aten::addmm"])).drop_nulls(
            "shapes"
        )
        sizes: dict[int, tuple[int, int, int]] = {}
        for site, shapes in products.select("site", "shapes").iter_rows():
            inner = _inner(shapes)
            if inner is not None:
                sizes[site] = inner
        heads = {
            site: size
            for site, size in sizes.items()
            if size[2] >= MIN_VOCABULARY and size[0] >= MIN_TOKENS
        }
        prices: dict[int, SitePrice] = {}
        for site, (rows, _, columns) in heads.items():
            read = rank.events.filter(
                (pl.col("dims").list.last() == columns) & ~pl.col("site").is_in(list(sizes))
            )
            elements = read["elements"].max()
            if not isinstance(elements, int) or elements > MAX_READ_SHARE * rows * columns:
                continue
            ns = float(rank.events.filter(pl.col("site") == site)["ns"].sum())
            used_rows = elements // columns
            left_ns = max(ns * used_rows / rows, float(MIN_KERNEL_NS * len(read)))
            what = f"{used_rows:,} of {rows:,}"
            prices[site] = SitePrice(left_ns, left_ns, 2 * left_ns, what=what)
        yield self.of_sites(rank, prices)


class FullSort(Alternative, frozen=True, kw_only=True):
    """A whole row is sorted, and only its first values are read."""

    change = "top values alone"
    rests_on = "only the largest values are looked for"
    code = "full_sort"
    case = ""
    title = "sorting"
    says = "whole rows of {what} values are sorted, of which a few are read: {work}"
    advises = "use `torch.topk`"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        last = pl.col("dims").list.last()
        sorts = rank.events.filter(
            (pl.col("op") == "aten::sort") & (last >= MIN_VOCABULARY) & pl.col("node").is_null()
        )
        if sorts.is_empty() or rank.speeds.bandwidth is None:
            return
        ended = sorts.group_by("part", columns=last).agg(sorted_ns=pl.col("launch_ns").max())
        readers = rank.events.filter(~pl.col("op").str.contains("sort").fill_null(value=False))
        later = readers.with_columns(columns=last).join(ended, on=["part", "columns"], how="inner")
        # What follows on rows of that length reads all that was sorted.
        if later.filter(pl.col("launch_ns") > pl.col("sorted_ns")).height:
            return
        full_ns = pl.col("elements") * pl.col("width").fill_null(4) / rank.speeds.bandwidth
        passes = TOPK_PASSES
        priced = sorts.drop_nulls("elements").with_columns(
            low_ns=passes.low * full_ns,
            likely_ns=passes.likely * full_ns,
            high_ns=passes.high * full_ns,
            group="call",
        )
        for columns in priced.select(columns=last)["columns"].unique().sort():
            of_length = priced.filter(last == columns)
            yield new_durations(of_length, self.change, what=f"{columns:,}", keeps_first=True)
