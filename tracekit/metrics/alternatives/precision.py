"""Alternatives of types and sizes: TF32 or 16 bits for products of float32, float32 for float64, casts, padding.

A product's new time is its FLOP at the rate that the GPU reaches for that type, or its bytes at the
memory's bandwidth, whichever is longer. A product that is slow for its sizes stays so: its share of
the peak, compared with that of other products of its type, carries over. Inside factorisations and solves
PyTorch multiplies in full precision whatever is allowed: their products keep their type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import polars as pl

from tracekit._util.arrays import Floats
from tracekit._util.shapes import is_shape, parse_list
from tracekit._util.text import short_ms
from tracekit.metrics.alternatives.attention import attention_rows, upcast_rows
from tracekit.metrics.alternatives.entry import Alternative, Sentences, WorkFound
from tracekit.metrics.alternatives.images import SLOWER_IN_16_BITS, slower_remedies
from tracekit.metrics.alternatives.remedy import (
    REMEDIES,
    new_durations,
    without_events,
    without_rows,
)
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import FUSED_ATTENTION, PATTERNS
from tracekit.metrics.kernel_limits import product_bytes
from tracekit.metrics.padding import NARROW
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import MIN_KERNEL_NS, SLOWEST_RELATIVE

TF32 = "tf32"
FLOAT64_SHARE = Share(0.4, 0.5, 0.7)
"""Time of a kernel that is limited by memory in float32 over that in float64."""
MAX_PADDED_SHARE = 0.8
"""Time of a padded product over the present one, above which odd sizes are not what makes it slow."""
FIXED = "fixed_weights"
TRAINED = "trained_weights"
WIDE_TYPES = ("float", "Float")
NARROW_TYPES = ("c10::BFloat16", "c10::Half", "BFloat16", "Half")
MIN_NEEDLESS_SHARE = 0.5
"""Share of the casts of weights of one size that nothing needs, from which they are: two micro-batches have as
many, and a step whose backward was not recorded has fewer."""
NARROWED_SHARE = Share(0.5, 0.55, 0.75)
"""Time of a kernel that is limited by memory in 16 bits over that in 32."""
CAST_BACK = "ToCopyBackward0 > "
_WIDE, _NARROW = '"[fF]loat"', '"(c10::)?(BFloat16|Half)"'
_COLUMNS_OF_CASTS = (
    "row",
    "part",
    "label",
    "node",
    "is_backward",
    "kind",
    "op",
    "shapes",
    "dtypes",
)
"""Columns of a rank's events that are read: a frame of all is slow to filter."""
_WRITTEN = pl.Schema({"row": pl.Int32, "part": pl.Int64, "size": pl.String})


class TensorCores(Alternative, frozen=True, kw_only=True):
    """Products of float32 run without tensor cores."""

    change = TF32
    rests_on = "products of float32 run on tensor cores in TF32"
    code = "precision"
    case = "tf32"
    rests_on_rates = True
    title = "precision"
    says = "matrix products in float32 run without tensor cores: {work}"
    advises = "let them use TF32, slightly less precise ({switch})"
    topic = "tf32"
    further = NARROW
    caveat = "Ten bits of mantissa: losses, solvers and long sums may need more."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if TF32 in rank.speeds.peaks:
            calls = rank.once(_wide_calls)
            multiplies = pl.col("kind").is_in(["product", "convolution"])
            products = calls.filter(multiplies & (pl.col("used") == "fp32"))
            yield without_rows(retyped(rank, products, TF32), rank.once(upcast_rows))

    def advice(self, work: WorkFound) -> str:
        advice = super().advice(work)
        if work.further_ns is None:
            return advice
        narrow = f"{work.further} instead ({work.switch('narrow')})"
        advice += f"; {narrow} would save {short_ms(work.further_ns)}"
        if work.further_ns > work.work_ns:
            advice += ", because other kernels get faster, too"
        return advice


class _SixteenBits(Alternative, frozen=True, kw_only=True):
    """Products and attention run in float32, and 16 bits would do."""

    code = "precision"
    case = "narrow"
    rests_on_rates = True
    title = "precision"
    says = "matrix products and attention run in float32: {work}"
    topic = "narrow"
    caveat = "Sums, norms and losses stay in float32."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        narrowest = next((dtype for dtype in NARROW if dtype in rank.speeds.peaks), None)
        if narrowest != self.change:
            return
        calls = rank.once(_wide_calls)
        wide = calls.filter(pl.col("used").is_in(["fp32", TF32]))
        upcast = rank.once(upcast_rows)
        yield without_rows(retyped(rank, wide, narrowest), upcast)
        if wide.select((pl.col("kind") == "convolution").any()).item():
            # Autocast gives norms what convolutions make: in 16 bits cuDNN has none with channels first.
            is_first = pl.col("name").str.contains(PATTERNS["channels_first_norm"])
            norms = rank.events.filter(pl.col("has_fp32") & is_first.fill_null(value=False))
            yield without_rows(slower_remedies(norms, SLOWER_IN_16_BITS, narrowest), upcast)


def _sixteen_bit_words(dtype: str) -> tuple[str, Sentences]:
    """Return the advice of a 16-bit type, and the words in inference."""
    in_training = f"compute in {dtype} ({{switch}}); weights and losses may stay in float32"
    says = "products and attention run in float32: {work}"
    return in_training, Sentences(says, f"load the weights in {dtype} and compute in it")


class Bf16(_SixteenBits, frozen=True, kw_only=True):
    """Products and attention of float32, which bf16 would do."""

    change = "bf16"
    rests_on = "products and attention of float32 run in bf16"
    advises, in_inference = _sixteen_bit_words("bf16")


class Fp16(_SixteenBits, frozen=True, kw_only=True):
    """Products and attention of float32 on a GPU that has no bf16."""

    change = "fp16"
    rests_on = "products and attention of float32 run in fp16"
    advises, in_inference = _sixteen_bit_words("fp16")
    caveat = "Training needs a scaled loss (`GradScaler`); sums, norms and losses stay in float32."


def _wide_calls(rank: RankWork) -> pl.DataFrame:
    """Return the calls whose precision may change, with the type that their kernels compute in as ``used``."""
    return _with_used_type(rank).filter(~pl.col("keeps_precision"))


def _with_used_type(rank: RankWork) -> pl.DataFrame:
    """Return the calls with the type that their kernels compute in as ``used``; null if that is not certain.

    Products of float32 may run on tensor cores: their kernel's name tells it, or a rate above the
    peak without tensor cores.
    """
    speeds = rank.speeds
    fp32_peak = speeds.peaks.get("fp32")
    above_peak = pl.lit(False)
    if fp32_peak is not None:
        above_peak = pl.col("flop") > fp32_peak * pl.col("ns")
    uses_tensor_cores = pl.col("name").str.contains(PATTERNS["tensor_core_kernel"])
    is_simt = pl.col("name").str.contains(PATTERNS["simt_kernel"]) & ~uses_tensor_cores
    is_fp32 = pl.col("dtype") == "fp32"
    used = (
        pl.when(pl.col("dtype") == TF32)
        .then(pl.lit(TF32))
        .when(is_fp32 & above_peak.fill_null(False))
        .then(pl.lit(TF32))
        .when(is_fp32 & (pl.col("kind") == "convolution") & ~uses_tensor_cores)
        .then(pl.lit("fp32"))
        .when(is_fp32 & ((pl.col("kind") == FUSED_ATTENTION) | is_simt))
        .then(pl.lit("fp32"))
    )
    return rank.calls.with_columns(used=used)


def retyped(rank: RankWork, calls: pl.DataFrame, dtype: str) -> pl.DataFrame:
    """Return the remedies of calls that compute in *dtype* instead."""
    speeds = rank.speeds
    countable = calls.drop_nulls("flop").filter(pl.col("used").is_in(list(speeds.peaks)))
    if countable.is_empty():
        return REMEDIES.to_frame()
    moved = [
        product_bytes(op, shapes, dtype, flop, 1) or 0.0
        for op, shapes, flop in countable.select("op", "shapes", "flop").iter_rows()
    ]
    flop = countable["flop"].to_numpy().astype(np.float64)
    ns = countable["ns"].to_numpy().astype(np.float64)
    old_peak = (
        countable["used"].replace_strict(dict(speeds.peaks), return_dtype=pl.Float64).to_numpy()
    )
    own_share = flop / old_peak / np.maximum(ns, 1)
    is_convolution = (countable["kind"] == "convolution").to_numpy()
    is_attention = (countable["kind"] == FUSED_ATTENTION).to_numpy()
    usual_share = _usual_share_of(countable, own_share)
    relative = np.clip(own_share / usual_share, SLOWEST_RELATIVE, 1.0)
    no_memory_ns = np.zeros(len(ns))
    memory_ns = speeds.memory_ns(np.array(moved)) or (no_memory_ns, no_memory_ns, no_memory_ns)
    peak = speeds.peaks[dtype]
    share = speeds.share("product", dtype)
    attention = speeds.share("attention")
    new_ns = []
    of_convolutions = speeds.share("convolution", dtype)
    for of_products, of_attention, of_convolution, of_memory in (
        (share.high, attention.high, of_convolutions.high, memory_ns[0]),
        (share.likely, attention.likely, of_convolutions.likely, memory_ns[1]),
        (share.low, attention.low, of_convolutions.low, memory_ns[2]),
    ):
        reached = np.where(is_convolution, of_convolution, of_products * relative)
        # FLOP of attention are counted in full, the shares by half, as for a causal mask.
        compute_ns = np.where(is_attention, flop / 2 / peak / of_attention, flop / peak / reached)
        new_ns.append(np.maximum(np.maximum(compute_ns, of_memory), MIN_KERNEL_NS))
    priced = countable.select(
        "call",
        low_ns=pl.Series(new_ns[0]),
        likely_ns=pl.Series(new_ns[1]),
        high_ns=pl.Series(new_ns[2]),
    )
    events = rank.events.select("row", "ns", "call").join(priced, on="call", how="inner")
    return new_durations(events.with_columns(group="call"), dtype)


def _usual_share_of(calls: pl.DataFrame, own_share: Floats) -> Floats:
    """Return for each call the share of the peak that all calls of its type reach together, at least 0.3."""
    at_peak = pl.Series("at_peak", own_share) * calls["ns"]
    sums = calls.select("used", "ns", at_peak=at_peak).with_columns(
        usual=pl.col("at_peak").sum().over("used") / pl.col("ns").sum().over("used")
    )
    return sums["usual"].clip(lower_bound=0.3).to_numpy()


class Float64(Alternative, frozen=True, kw_only=True):
    """Kernels compute in float64."""

    change = "fp32"
    rests_on = "what is in float64 runs in float32"
    code = "precision"
    case = "fp64"
    title = "precision"
    says = "kernels compute in float64, first {op}: {work}"
    advises = (
        "use float32: NumPy's arrays and `torch.from_numpy` are float64 unless a `dtype` is given"
    )
    caveat = "Some programs of science need float64."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        wide = rank.events.filter(pl.col("has_fp64") & pl.col("kind").is_not_null())
        is_float = [
            pl.col("dtypes").str.contains(f"(?i)\\b{name}\\b") for name in ("float", "double")
        ]
        is_cast = ((pl.col("op") == "aten::copy_") & is_float[0] & is_float[1]).fill_null(
            value=False
        )
        upcast = rank.once(upcast_rows)
        yield without_rows(without_events(wide.filter(is_cast), self.change), upcast)
        narrowed = wide.filter(~is_cast).with_columns(
            group="row",
            low_ns=pl.col("ns") * FLOAT64_SHARE.low,
            likely_ns=pl.col("ns") * FLOAT64_SHARE.likely,
            high_ns=pl.col("ns") * FLOAT64_SHARE.high,
        )
        yield without_rows(new_durations(narrowed, self.change), upcast)


class CastOnce(Alternative, frozen=True, kw_only=True):
    """Autocast casts weights to 16 bits again although they have not changed.

    A cast is of a weight if a product of the forward multiplies by a matrix of its sizes. It is needed once for
    each update of the weight: its gradient is cast back, and is not added to one that is there already. All
    other casts are of values that were cast before: in a further micro-batch, of weights that are not trained,
    and in a program that trains nothing.
    """

    change = "cast once"
    rests_on = "weights are cast to 16 bits once for each update, or kept in 16 bits"
    code = "precision"
    case = FIXED
    title = "precision"
    says = (
        "autocast casts to 16 bits {kernels_per_step} times {per_step}, weights that do not change among them "
        "({work})"
    )
    advises = "keep these weights in 16 bits (`model.to(torch.bfloat16)`)"
    case_is_what = True
    cases: ClassVar[Mapping[str, Sentences]] = {
        TRAINED: Sentences(
            "autocast casts weights to 16 bits {kernels_per_step} times {per_step} more often than they change "
            "({work})",
            "use fewer and larger micro-batches, or keep the weights in 16 bits and a copy in float32 for the "
            "optimizer",
        )
    }

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        events = rank.events.select(_COLUMNS_OF_CASTS).drop_nulls(["op", "shapes"])
        copies = events.filter(pl.col("op") == "aten::copy_")
        if copies.is_empty():
            return
        in_forward = copies.filter((pl.col("label") == "forward") & ~pl.col("is_backward"))
        all_casts = _tensors(in_forward, to=NARROW_TYPES, of=WIDE_TYPES)
        if all_casts.is_empty():
            return
        casts = all_casts.filter(pl.col("size").is_in(_sizes_of_weights(events)))
        if casts.is_empty():
            return
        cast_back = _tensors(copies.filter("is_backward"), to=WIDE_TYPES, of=NARROW_TYPES)
        accumulates = (pl.col("node") == "AccumulateGrad") & pl.col("op").str.contains(
            "^aten::add_?$"
        )
        added_up = _tensors(events.filter(accumulates))
        counts = _count(casts, "casts")
        for tensors, name in ((cast_back, "cast_back"), (added_up, "added_up")):
            counts = counts.join(_count(tensors, name), on="size", how="left")
        counts = counts.fill_null(0)
        trains = rank.events.select(pl.col("is_backward").any()).item()
        if not trains:  # a model in 16 bits casts no activations either
            yield without_events(all_casts, self.change, what=FIXED)
            return
        if not counts["cast_back"].sum():  # gradients are cast elsewhere
            return
        updates = pl.col("cast_back") - pl.col("added_up")
        # Where gradients are kept and zeroed, all of them are added to one.
        counts = counts.with_columns(
            needed=pl.when(updates > 0).then(updates).otherwise("cast_back")
        )
        needless = pl.col("casts") - pl.col("needed") >= MIN_NEEDLESS_SHARE * pl.col("casts")
        parts = casts["part"].n_unique()
        casts_so_far = pl.col("row").rank("ordinal").over("part", "size")
        again = casts.join(counts.filter(needless), on="size", how="inner").filter(
            casts_so_far * parts > pl.col("needed")
        )
        is_trained = pl.col("cast_back") > 0
        yield without_events(again.filter(is_trained), self.change, what=TRAINED)
        yield without_events(again.filter(~is_trained), self.change, what=FIXED)


class NeedlessCasts(Alternative, frozen=True, kw_only=True):
    """Values of 16 bits are cast to 32 for a single operator, and its result back."""

    change = "no casts around"
    rests_on = "operators take values of 16 bits as they are, and compute inside in 32"
    code = "precision"
    case = "casts"
    title = "precision"
    says = (
        "values of 16 bits are cast to 32 for one operator and back ({what}), {kernels_per_step} kernels {per_step}: "
        "{work}"
    )
    advises = (
        "leave out `.float()` and the cast behind: PyTorch's kernels take 16 bits, compute in float32 inside and round "
        "once"
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        is_wide, is_narrow = (
            (pl.col("op") == "aten::copy_") & pl.col("dtypes").str.contains(f"^\\[{to},{of}")
            for to, of in ((_WIDE, _NARROW), (_NARROW, _WIDE))
        )
        # Autocast casts for itself where 16 bits do not do.
        is_asked = (
            pl.col("chain").str.contains("^aten::(to|float|_to_copy|type) ")
            | pl.col("chain").str.contains(CAST_BACK)
        ).fill_null(value=False)
        columns = (
            "row",
            "ns",
            "part",
            "stream",
            "start_ns",
            "op",
            "kind",
            "dtypes",
            "elements",
            "chain",
        )
        ordered = rank.events.select(columns).sort("part", "stream", "start_ns")
        before, behind = (
            ordered.select(
                casts=(cast & is_asked).shift(step, fill_value=False),
                elements=pl.col("elements").shift(step),
                part=pl.col("part").shift(step),
                stream=pl.col("stream").shift(step),
            )
            for cast, step in ((is_wide, 1), (is_narrow, -1))
        )
        same = [
            (ordered[name] == other[name]).fill_null(value=False)
            for name in ("elements", "part", "stream")
            for other in (before, behind)
        ]
        is_inner = ordered["kind"].is_in(["elementwise", "softmax", "norm"]).fill_null(value=False)
        is_inner &= (ordered["op"] != "aten::copy_").fill_null(value=False)
        for mask in (before["casts"], behind["casts"], *same):
            is_inner &= mask.fill_null(value=False)
        if not is_inner.any():
            return
        inner = ordered.filter(is_inner)
        casts = ordered.filter(
            is_inner.shift(1, fill_value=False) | is_inner.shift(-1, fill_value=False)
        )
        longest = inner.group_by("op").agg(pl.col("ns").sum()).sort("ns", "op", descending=True)
        what = ", ".join(op.removeprefix("aten::") for op in longest["op"].head(2))
        yield without_events(casts, self.change, what=what)
        share = NARROWED_SHARE
        priced = inner.with_columns(
            group="row",
            low_ns=share.low * pl.col("ns"),
            likely_ns=share.likely * pl.col("ns"),
            high_ns=share.high * pl.col("ns"),
        )
        yield new_durations(priced, self.change, what=what)


def _tensors(
    events: pl.DataFrame, *, to: tuple[str, ...] = (), of: tuple[str, ...] = ()
) -> pl.DataFrame:
    """Return row, part and size of what events write; with *to* and *of* only casts to such types of such types."""
    sizes = {}
    for shapes, dtypes in events.select("shapes", "dtypes").unique().iter_rows():
        tensors = parse_list(shapes)
        types = parse_list(dtypes or "")
        is_cast = len(types) > 1 and types[0] in to and types[1] in of
        if tensors and is_shape(tensors[0]) and (is_cast or not to):
            sizes[shapes, dtypes] = str(tensors[0])
    pairs = pl.DataFrame(
        [(shapes, dtypes, size) for (shapes, dtypes), size in sizes.items()],
        schema={"shapes": pl.String, "dtypes": pl.String, "size": pl.String},
        orient="row",
    )
    written = events.join(pairs, on=["shapes", "dtypes"], how="inner", nulls_equal=True)
    return written.select(_WRITTEN.names()).cast(_WRITTEN)


def _count(tensors: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return how many tensors there are of each size, as *name*."""
    return tensors.group_by("size").agg(pl.len().cast(pl.Int64).alias(name))


def _sizes_of_weights(events: pl.DataFrame) -> list[str]:
    """Return the sizes of weights: what products of the forward multiply by and add, and nothing that they multiply."""
    forward = events.filter(pl.col("kind").is_in(["product", "convolution"])).filter(
        (pl.col("label") == "forward") & ~pl.col("is_backward")
    )
    weights = set()
    inputs = set()
    for kind, shapes in forward.select("kind", "shapes").unique().iter_rows():
        tensors = [shape for shape in parse_list(shapes) if shape and is_shape(shape)]
        matrices = [shape for shape in tensors if len(shape) > 1]
        if len(matrices) < 2:
            continue
        if kind == "convolution":
            multiplied, weight = matrices[:2]
            columns = weight[:1]
            weights.add(str(weight))
        else:
            multiplied, weight = matrices[-2:]
            columns = weight[-1:]
            # A linear layer multiplies by its weight transposed.
            weights |= {str(weight), str(weight[::-1])}
        inputs.add(str(multiplied))
        if columns in tensors:
            weights.add(str(columns))  # a bias
    return sorted(weights - inputs)


class PaddedSizes(Alternative, frozen=True, kw_only=True):
    """Products in 16 bits have sizes that are no multiples of 8."""

    change = "pad sizes"
    rests_on = "sizes of products are multiples of 64"
    code = "slow_kernel"
    case = "padding"
    rests_on_rates = True
    title = "slow kernels"
    section = "rates"
    is_about_operator = True
    says = "products with sizes that are no multiples of 8 take {work_ns}, first {op}"
    advises = "pad these sizes to multiples of 64 (vocabulary, hidden size, heads)"
    caveat = "What is padded must be left out of losses and results."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        odd = rank.calls.drop_nulls(["padding", "flop"])
        for dtype in odd["dtype"].unique().sort().to_list():
            peak = rank.speeds.peaks.get(dtype)
            if peak is None:
                continue
            reached: Share = rank.speeds.share("product", dtype)
            at_peak_ns = pl.col("flop") * pl.col("padding") / peak
            priced = odd.filter(pl.col("dtype") == dtype).select(
                "call",
                low_ns=pl.max_horizontal(at_peak_ns / reached.high, MIN_KERNEL_NS),
                likely_ns=pl.max_horizontal(at_peak_ns / reached.likely, MIN_KERNEL_NS),
                high_ns=pl.max_horizontal(at_peak_ns / reached.low, MIN_KERNEL_NS),
                call_ns="ns",
            )
            slow = priced.filter(pl.col("likely_ns") < MAX_PADDED_SHARE * pl.col("call_ns"))
            events = rank.events.select("row", "ns", "call").join(slow, on="call", how="inner")
            remedies = new_durations(events.with_columns(group="call"), self.change)
            yield without_rows(remedies, rank.once(attention_rows))
