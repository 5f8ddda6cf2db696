"""Alternatives of loops: what repeats tells what to do instead (``metrics.loops``)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit._util.text import join_with_and
from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations
from tracekit.metrics.event_work import FUSED_ATTENTION, PATTERNS
from tracekit.metrics.rank_work import RankWork

TENSORS_PER_LAUNCH = 128
"""Tensors that one launch over a list of tensors takes."""
MIN_LAUNCHES_PER_REPETITION = 0.9
"""GPU events for each repetition from which a loop is one of GPU work: others ask the CPU, or do nothing."""
WHOLE_SHARE = 0.5
"""Bytes of an operator over those of all repetitions, from which it works on the whole in each of them."""
COMMUNICATES = "c10d|record_param_comms|torch.distributed"
"""Operators of communication: what repeats around them are micro-batches, buckets or messages, known as such."""
TAKES_LIST = "::_fused_|::_foreach_"
"""Operators that take a list of tensors: an optimizer that calls them again and again has many groups of parameters."""
TAKES_RESULTS = r"aten::(item|is_nonzero|_local_scalar_dense|equal|to|_to_copy|copy_)\b"
"""Operators that take a tensor or a value to the host because the program asks for it; others copy to check theirs."""
NORMALISES = r"norm\b|attention"
"""Operators of a layer, which takes what the layer before made."""
ROUTES = r"aten::(eq|nonzero|where|index_add_?|index_put_?|scatter_add_?|masked_select)\b"
"""Operators that choose what a repetition works on, or add it to what others made: experts, not layers."""
MULTIPLYING_KINDS = ("product", "convolution", FUSED_ATTENTION)
MAX_NAMED_LOOPS = 2
"""Bodies of loops that a finding names, those with most work first."""


class _LoopAlternative(Alternative, frozen=True, kw_only=True):
    """An alternative of loops of one kind."""

    code = "loop"
    title = "loops"
    # What a loop is does not rest on its saving, and that of a host's loop is predicted too small more often than not.
    min_saved_share = 0.02

    def selects(self, rank: RankWork) -> pl.Expr:
        """Return which rows of the described loops it is about."""
        raise NotImplementedError

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        """Return events of loops with the new durations of their ``group`` and their ``host_share``."""
        raise NotImplementedError

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.loops.is_empty():
            return
        loops = rank.once(describe_loops)
        chosen = loops.filter(self.selects(rank))
        if chosen.is_empty():
            return
        # A body may run in several loops of a step: heads of each layer, results of each module.
        times = pl.col("repetitions").sum().over("part", "body")
        chosen = chosen.with_columns(times=times)
        named = chosen.select("loop", "repetitions", what=_named("body", "times"))
        events = rank.events.drop_nulls("loop").join(
            named, on="loop", how="inner", maintain_order="left"
        )
        longest = events.group_by("what").agg(pl.len()).sort(-pl.col("len").cast(pl.Int64), "what")
        what = "; ".join(longest["what"].head(MAX_NAMED_LOOPS).to_list())
        priced = self.price(events.drop("what"), rank)
        remedies = new_durations(priced, self.change, what=what)
        # What the host does before a loop, and before its backward, stays.
        launch_ns = pl.col("launch_ns")
        is_first = (launch_ns == launch_ns.min().over("loop", "is_backward")) & (
            pl.col("repetitions") > 1
        )
        host_share = priced.select(
            host_share=pl.when(is_first).then(1.0).otherwise("host_share").fill_null(1.0)
        )
        yield remedies.with_columns(host_share["host_share"], waits=pl.lit(value=False)).cast(
            REMEDIES
        )


def _named(body: str, repetitions: str) -> pl.Expr:
    """Return a loop in words: how often it runs, and which operators."""
    words = (
        pl.col(body)
        .str.replace_all("aten::", "")
        .str.split(" ")
        .list.eval(pl.element().unique(maintain_order=True))
    )
    named = words.map_elements(lambda names: join_with_and(list(names)), return_dtype=pl.String)
    return pl.format("{} times {}", pl.col(repetitions), named)


def describe_loops(rank: RankWork) -> pl.DataFrame:
    """Return the loops that launch GPU work, with where they stand and what else they hold.

    ``is_clipping``: behind the backward of a step and before its optimizer's first update.
    ``copies_to_host``: each repetition copies something to the host. ``multiplies``: a kernel of it does, whatever its
    operator is called. ``has_own_operators``: what some of its operators do is not known; layers of a model look so.
    """
    in_loops = rank.events.drop_nulls("loop").filter(~pl.col("is_backward"))
    to_host = pl.col("name").str.contains("(?i)DtoH|DeviceToHost")
    norms = pl.col("op").str.contains(PATTERNS["gradient_norm"]).fill_null(value=False)
    launch_ns = pl.col("launch_ns")
    work = in_loops.group_by("loop").agg(
        launches=pl.len(),
        part=pl.col("part").first(),
        first_ns=launch_ns.min(),
        last_ns=launch_ns.max(),
        copies=to_host.sum(),
        from_host=pl.col("name").str.contains("(?i)HtoD|HostToDevice").sum(),
        has_norm=norms.any(),
        multiplies=pl.col("kind").is_in(MULTIPLYING_KINDS).fill_null(value=False).any(),
        optimizer_share=(pl.col("label") == "optimizer").mean(),
    )
    backward = rank.events.drop_nulls("node").group_by("part").agg(backward_ns=launch_ns.max())
    updates = rank.events.filter(
        pl.col("op").str.contains(PATTERNS["fused_optimizer"] + "|_foreach_").fill_null(value=False)
        | ((pl.col("label") == "optimizer") & pl.col("loop").is_null())
    )
    last_update = updates.group_by("part").agg(update_ns=launch_ns.max())
    described = (
        rank.loops.join(work, on="loop", how="inner", maintain_order="left")
        .join(backward, on="part", how="left", maintain_order="left")
        .join(last_update, on="part", how="left", maintain_order="left")
    )
    repetitions = pl.col("repetitions")
    is_of_gpu = pl.col("launches") >= MIN_LAUNCHES_PER_REPETITION * repetitions
    is_behind = pl.col("first_ns") > pl.col("backward_ns")
    communicates = pl.col("body").str.contains(COMMUNICATES)
    return described.filter(is_of_gpu & ~communicates).with_columns(
        has_own_operators=pl.col("body")
        .str.split(" ")
        .list.eval(~pl.element().str.starts_with("aten::"))
        .list.any(),
        is_clipping=(is_behind & (pl.col("last_ns") < pl.col("update_ns"))).fill_null(value=False),
        copies_from_host=pl.col("from_host") >= MIN_LAUNCHES_PER_REPETITION * repetitions,
        copies_to_host=(pl.col("copies") >= MIN_LAUNCHES_PER_REPETITION * repetitions)
        & pl.col("body").str.contains(TAKES_RESULTS),
    )


_IS_OF_TENSORS = (
    ~pl.col("has_products")
    & ~pl.col("multiplies")
    & ~pl.col("has_own_operators")
    & ~pl.col("has_cell")
    & ~pl.col("copies_to_host")
    # Gradients' norms one by one, and updates parameter by parameter, are known as such.
    & ~pl.col("has_norm")
    & (
        (pl.col("optimizer_share") < 1)
        | pl.col("is_clipping")
        | pl.col("body").str.contains(TAKES_LIST)
    )
)
"""Loops over tensors, one after the other, that one call takes all of."""


_HAS_INDEX = pl.col("counts") | pl.col("joined")
"""Loops over an index: it counts, or what each repetition makes is joined behind it."""
_IS_OF_LAYERS = (
    pl.col("body").str.contains(NORMALISES)
    & ~pl.col("body").str.contains(ROUTES)
    & ~(pl.col("counts") & pl.col("joined"))
)
"""Loops over layers of a model: each needs what the one before made, though a cache of each layer counts."""


class ClipLoop(_LoopAlternative, frozen=True, kw_only=True):
    """Gradients are clipped one by one by hand."""

    change = "clip in one call"
    rests_on = "gradients are clipped in a few calls over all of them"
    case = "clipping"
    training_only = True
    says = "gradients are clipped one by one between backward and optimizer: {what} a step"
    advises = "clip all at once: `torch.nn.utils.clip_grad_norm_(parameters, …, foreach=True)`"
    caveat = "The loop is known by where it stands: a loop over gradients that does something else looks alike."

    def selects(self, rank: RankWork) -> pl.Expr:
        follows_norms = pl.col("has_norm").any().over("part")
        return _IS_OF_TENSORS & pl.col("is_clipping") & ~follows_norms

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        return _few_launches(events, rank)


class TensorLoop(_LoopAlternative, frozen=True, kw_only=True):
    """Tensors are worked on one by one, where one call takes a list of them."""

    change = "one call for all tensors"
    rests_on = "loops over tensors are a few calls over all of them"
    case = "tensors"
    says = "tensors are worked on one by one: {what}"
    advises = (
        "take all in one call (`torch._foreach_…`, `torch.optim.swa_utils` for averages, one flat tensor), or "
        "compile the loop with `torch.compile`"
    )

    def selects(self, rank: RankWork) -> pl.Expr:
        # One operator again and again in a forward is a sum of parts, or a chain.
        is_chain = pl.col("first_sequence").is_not_null() & ~pl.col("body").str.contains(" ")
        return _IS_OF_TENSORS & ~pl.col("is_clipping") & ~is_chain & ~_HAS_INDEX

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        return _few_launches(events, rank)


class RareResults(_LoopAlternative, frozen=True, kw_only=True):
    """Every repetition of a loop takes a result to the host."""

    change = "results rarely"
    rests_on = "loops that take results to the host run every so many steps"
    case = "results"
    says = "a loop takes results to the host one by one: {what}"
    advises = "collect them on the GPU and copy them once, or do so every N steps"

    def selects(self, rank: RankWork) -> pl.Expr:
        return ~pl.col("has_products") & ~pl.col("has_cell") & pl.col("copies_to_host")

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        gone = {name: pl.lit(0.0) for name in ("low_ns", "likely_ns", "high_ns", "host_share")}
        return events.with_columns(group="row", **gone)


class GroupedProducts(_LoopAlternative, frozen=True, kw_only=True):
    """Products of one expert, head or table after the other, counted by an index."""

    change = "grouped products"
    rests_on = "products of a loop that counts run grouped or batched, with the work around them done once for all"
    case = "products"
    says = "products run one index after the other: {what}"
    advises = (
        "batch them (`torch.bmm`, `einsum`), or sort tokens by expert and use a grouped product "
        "(`torch._grouped_mm`, MegaBlocks); where each needs the one before, use a recurrent module (`torch.nn.RNN`) "
        "or compile the loop"
    )
    caveat = "A grouped product needs one type and a GPU that has it; a batched one pads groups to one size."

    def selects(self, rank: RankWork) -> pl.Expr:
        return pl.col("has_products") & _HAS_INDEX & ~pl.col("has_cell") & ~_IS_OF_LAYERS

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        once_ns = pl.col("ns") / pl.col("repetitions")
        is_product = pl.col("kind") == "product"
        # What has one size in all repetitions though the products' sizes differ is done for all in each: a mask,
        # a gradient of all weights. Where these do not differ, only what has a row for each repetition is.
        is_alike = pl.len().over("loop", "op", "node", "shapes") >= 0.9 * pl.col("repetitions")
        product_shapes = pl.col("shapes").filter(is_product & ~pl.col("is_backward"))
        has_rows = pl.col("dims").list.first() == pl.col("repetitions")
        is_whole = is_alike & ((product_shapes.n_unique().over("loop") > 2) | has_rows)
        stays = is_product.fill_null(value=False) | ~is_whole.fill_null(value=False)
        return events.with_columns(
            group="row",
            low_ns=pl.when(is_product).then("ns").otherwise(once_ns),
            likely_ns=pl.when(stays).then("ns").otherwise(once_ns),
            high_ns=pl.when(stays).then("ns").otherwise(2 * once_ns),
            host_share=_launched_once(),
        )


class BatchedIndex(_LoopAlternative, frozen=True, kw_only=True):
    """Work without products is done for one index after the other: a sample, a token, a time step."""

    change = "batch the loop"
    rests_on = "loops over an index are done for all of it at once"
    case = "index"
    says = "work is done one index after the other: {what}"
    advises = (
        "do it for all at once, with the index as a dimension (one call on the whole tensor, `torch.vmap`); where "
        "each needs the one before, use a scan (`torch.cumsum`, `torch.cumprod`) or compile the loop"
    )
    caveat = "Whether a repetition needs what the one before made is not recorded."

    def selects(self, rank: RankWork) -> pl.Expr:
        # Small copies one by one are known as such.
        return _IS_OF_TENSORS & _HAS_INDEX & ~pl.col("is_clipping") & ~pl.col("copies_from_host")

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        return _once(events, rank)


class RecurrentModule(_LoopAlternative, frozen=True, kw_only=True):
    """A recurrent network goes through its cell step by step."""

    change = "recurrent module"
    rests_on = "a loop over a recurrent cell is one call of the recurrent module"
    case = "cells"
    says = "a recurrent cell runs step by step: {what}"
    advises = "use the module over whole sequences (`torch.nn.LSTM`, `torch.nn.GRU`), which cuDNN runs in one call"
    caveat = "A cell that is changed between its steps (attention, its own output as input) needs the loop."

    def selects(self, rank: RankWork) -> pl.Expr:
        return pl.col("has_cell")

    def price(self, events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
        product_ns = pl.when(pl.col("kind") == "product").then("ns").otherwise(0)
        return events.with_columns(
            group="row",
            low_ns=0.5 * product_ns,
            likely_ns=product_ns,
            high_ns=pl.col("ns"),
            host_share=_launched_once(),
        )


def _launched_once() -> pl.Expr:
    """Return what remains of the host's time before each launch if one of all repetitions remains."""
    number = pl.int_range(pl.len()).over("loop", "op", "node")
    return (number % pl.col("repetitions") == 0).cast(pl.Float64)


def _once(events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
    """Return events of loops over an index: each operator runs once for all, as long as its memory moves.

    What reads or writes all in each repetition, as the gradient of a selected part does, is done once.
    """
    alike = ("loop", "op", "node")
    part_bytes = pl.col("bytes").filter(~pl.col("is_backward")).median().over("loop")
    all_bytes = pl.col("repetitions") * pl.col("part_bytes")
    is_whole = (pl.col("bytes") >= WHOLE_SHARE * all_bytes).fill_null(value=False)
    events = events.with_columns(part_bytes=part_bytes)
    events = events.with_columns(moved=pl.when(is_whole).then(0).otherwise("bytes").fill_null(0))
    events = events.with_columns(
        group="row",
        alike=pl.len().over(alike),
        once_ns=pl.col("ns").sum().over(alike) / pl.col("repetitions"),
        moved=pl.col("moved").sum().over(alike),
    )
    durations = rank.speeds.memory_ns(events["moved"].to_numpy().astype(np.float64))
    names = ("low_ns", "likely_ns", "high_ns")
    columns = {}
    for name, values in zip(names, durations or [np.zeros(events.height)] * 3, strict=True):
        columns[name] = pl.max_horizontal("once_ns", pl.Series(values)) / pl.col("alike")
    return events.with_columns(**columns, host_share=_launched_once())


def _few_launches(events: pl.DataFrame, rank: RankWork) -> pl.DataFrame:
    """Return events of loops over tensors: one launch in 128 remains, and tensors move as fast as memory."""
    is_known = pl.col("bytes").is_not_null().all().over("loop")
    events = events.with_columns(
        group="loop", moved=pl.when(is_known).then(pl.col("bytes").sum().over("loop"))
    )
    present_ns = pl.col("ns").sum().over("loop")
    durations = rank.speeds.memory_ns(events["moved"].to_numpy().astype(np.float64))
    names = ("low_ns", "likely_ns", "high_ns")
    if durations is None:
        priced = events.with_columns(**dict.fromkeys(names, present_ns))
    else:
        columns = {
            name: pl.coalesce(pl.Series(values).fill_nan(None), present_ns)
            for name, values in zip(names, durations, strict=True)
        }
        priced = events.with_columns(**columns)
    keeps_launch = pl.int_range(pl.len()).over("loop") % TENSORS_PER_LAUNCH == 0
    return priced.with_columns(host_share=keeps_launch.cast(pl.Float64))
