"""Alternatives of chains of kernels that each read what the last one wrote: one kernel for the whole chain.

A chain is a sequence of neighbours on a stream that only move memory (elementwise work, reductions,
norms, softmax, loss), whose tensors have the same number of elements or a divisor of it (a mean of
rows, a half of a rotation). A fused kernel reads the inputs that no kernel of the chain wrote, and
writes what the last one does. Kernels that a compiler made are fused already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Floats, Ints
from tracekit.metrics.alternatives.attention import attention_rows
from tracekit.metrics.alternatives.entry import Alternative, Sentences, WorkFound
from tracekit.metrics.alternatives.remedy import new_durations, without_rows
from tracekit.metrics.event_work import MEMORY_KINDS, read_inputs
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import MIN_KERNEL_NS

MIN_CHAIN_OPERATORS = 3
"""Calls of elementwise operators and reductions, copies apart, from which neighbours are a chain worth
fusing."""
COPIES = "copy|clone|contiguous|fill|zero"
MIN_CHAIN_ELEMENTS = 1 << 12
"""Elements of a chain's tensor; smaller ones are scalars and rows of figures."""
MORE_BYTES = (1.0, 1.4, 2.5)
"""Bytes that a fused kernel moves over those that are certain: least, likely and most. Which values a
backward reads or needs later is not recorded."""
LOSS_PASSES = (2.0, 3.0, 5.0)
"""Times that a fused loss reads or writes its logits."""
MIN_LOSS_COLUMNS = 1 << 10
"""Classes from which a loss is one over a vocabulary."""
LOSS_BYTES = 2
"""Bytes of a logit outside of the loss."""
_LINK_COLUMNS = ("row", "ns", "call", "kind", "op", "elements", "shapes", "dtypes")
"""Columns of a chain's events that are read."""

FUSED_BY_HAND = {
    "norm": "`torch.nn.RMSNorm` or `LayerNorm`",
    "activation": "`torch.nn.functional.gelu` or `silu`",
}
"""Fused kernels of PyTorch, by the kind of chain that they stand for."""
ACTIVATION_OPERATORS = "^aten::(tanh|sigmoid|erf|gelu|silu)"


class Fused(Alternative, frozen=True, kw_only=True):
    """Kernels in a row only move memory, each reading what the last one wrote."""

    change = "fuse"
    rests_on = "chains of kernels that only move memory are one kernel each"
    parts: ClassVar[Mapping[str, str]] = {
        "fuse norm": "the kernels of each norm are one",
        "fuse activation": "the kernels of each activation are one",
        "fuse rotation": "the kernels of each rotation of positions are one",
        "fuse elementwise": "neighbouring elementwise kernels are one",
    }
    code = "unfused"
    rests_on_rates = True
    title = "kernels that only move memory"
    says = "{kernels} only move memory, each reading what the last one wrote ({what}; {work})"
    advises = "fuse them: {switch}"
    topic = "fuse"
    case_is_what = True
    min_kernels = 16
    """A mask or a position is made once."""
    caveat = "Which values a backward reads or needs later is not recorded."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.speeds.bandwidth is not None:
            events = rank.once(_events_outside_attention)
            yield from _fuse_chains(rank, events, rank.once(_loss_events)["row"].to_list())

    def advice(self, work: WorkFound) -> str:
        found = (work.what or "").split(", ")
        by_hand = [kernel for kind, kernel in FUSED_BY_HAND.items() if kind in found]
        kernels = f", or use one kernel for each ({', '.join(by_hand)})" if by_hand else ""
        return super().advice(work) + kernels


class FusedLoss(Alternative, frozen=True, kw_only=True):
    """The loss, or sampling, reads and writes logits over the whole vocabulary."""

    change = "fuse loss"
    rests_on = "the loss reads its logits in 16 bits, and few times"
    code = "unfused"
    case = "loss"
    rests_on_rates = True
    title = "kernels that only move memory"
    says = "the loss reads and writes its logits over the whole vocabulary in {kernels_per_step} kernels ({work})"
    advises = "fuse it: {switch}"
    topic = "loss"
    in_inference = Sentences(
        "the head reads and writes its logits over the whole vocabulary in {kernels_per_step} kernels ({work_ns})",
        "fuse sampling into one kernel, or compute logits only for the tokens that are sampled",
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.speeds.bandwidth is not None:
            yield from _fuse_loss(rank, rank.once(_loss_events))


def _events_outside_attention(rank: RankWork) -> pl.DataFrame:
    """Return the events that one kernel of attention would not replace."""
    return without_rows(rank.events, rank.once(attention_rows))


def _loss_events(rank: RankWork) -> pl.DataFrame:
    """Return the kernels of a loss over a large vocabulary, and others over tensors of its size."""
    events = rank.once(_events_outside_attention)
    softmax = events.filter(pl.col("kind") == "loss").filter(
        pl.col("op").str.contains("log_softmax|logsumexp")
        & (pl.col("dims").list.get(-1, null_on_oob=True) >= MIN_LOSS_COLUMNS)
    )
    sizes = softmax.select("elements", columns=pl.col("dims").list.get(-1, null_on_oob=True))
    if sizes.is_empty():
        return events.head(0)
    has_size = pl.col("elements").is_in(sizes["elements"].unique().to_list())
    has_columns = (
        pl.col("dims").list.get(-1, null_on_oob=True).is_in(sizes["columns"].unique().to_list())
    )
    moves_logits = pl.col("kind").is_in(["elementwise", "reduction"]) & has_size & has_columns
    is_loss = pl.col("kind") == "loss"
    return events.filter((is_loss & has_size) | moves_logits | is_loss)


def _fuse_loss(rank: RankWork, loss: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of a loss: its logits are read and written a few times in 16 bits, for each softmax."""
    if loss.is_empty():
        return
    is_forward = pl.col("op").str.contains("log_softmax$|logsumexp")
    calls = loss.filter(is_forward).group_by("part").agg(elements=pl.col("elements").sum())
    both = loss.join(calls.rename({"elements": "logits"}), on="part", how="inner")
    logits = both["logits"].to_numpy().astype(np.float64)
    priced = _with_new_durations(rank, both, logits * LOSS_BYTES, LOSS_PASSES)
    priced = priced.with_columns(group="part")
    yield new_durations(priced, FusedLoss.change, what="loss", keeps_first=True)


def _fuse_chains(
    rank: RankWork, events: pl.DataFrame, loss_rows: Collection[int]
) -> Iterator[pl.DataFrame]:
    """Yield the remedies of all other chains."""
    is_link = (
        pl.col("kind").is_in(MEMORY_KINDS).fill_null(False)
        & pl.col("elements").is_not_null()
        & ~pl.col("row").is_in(list(loss_rows))
        & (pl.col("label") != "optimizer")
        # A loop over an index or over a list of tensors is batched, and float64 narrowed, before anything is fused.
        & ~pl.col("loop").is_in(_loops_to_batch(rank).implode()).fill_null(value=False)
        & ~pl.col("has_fp64")
        # A gradient is added to the one before it, which no kernel of a chain wrote.
        & (pl.col("node") != "AccumulateGrad").fill_null(value=True)
        & pl.col("op").str.starts_with("aten::").fill_null(False)
    )
    # Few columns of all events, in their order on the stream; all columns of links alone.
    section = ("stream", "part", "is_backward")
    ordered = events.select(
        *section,
        "start_ns",
        "elements",
        index=pl.int_range(pl.len()),
        is_link=is_link,
    ).sort("stream", "start_ns")
    in_section_before = [pl.col(name).eq_missing(pl.col(name).shift()) for name in section]
    chain = number_chains(
        ordered["is_link"].to_numpy(),
        ordered["elements"].fill_null(0).to_numpy(),
        ordered.select(pl.all_horizontal(in_section_before)).to_series().to_numpy(),
    )
    # Most chains have too few events; what is read of all others takes longer than all before.
    is_long = np.bincount(chain)[chain] >= MIN_CHAIN_OPERATORS
    of_links = ordered.select("index", "is_link", group=pl.Series(chain)).filter(
        pl.col("is_link") & pl.Series(is_long)
    )
    if of_links.is_empty():
        return
    links = events.select(_LINK_COLUMNS)[of_links["index"]].with_columns(of_links["group"])
    largest = pl.col("elements").max().over("group")
    # A norm in one kernel is fused already, and a copy or cast may be what its types need: they are
    # links, and no reason to fuse.
    is_simple = pl.col("kind").is_in(["elementwise", "reduction"]) & ~pl.col("op").str.contains(
        COPIES
    )
    calls = pl.col("call").filter(is_simple).n_unique().over("group")
    # One operator again and again is a loop over tensors: nothing shows that each reads the last one's.
    distinct = pl.col("op").filter(is_simple).n_unique().over("group")
    links = links.with_columns(chain_elements=largest, calls=calls, distinct=distinct).filter(
        (pl.col("calls") >= MIN_CHAIN_OPERATORS)
        & (pl.col("distinct") > 1)
        & (pl.col("chain_elements") >= MIN_CHAIN_ELEMENTS)
    )
    if links.is_empty():
        return
    bytes_of_chain = _bytes_of_chains(links)
    links = links.with_columns(what=_kinds_of_chains()).join(
        bytes_of_chain, on="group", how="inner", maintain_order="left"
    )
    moved = links["chain_bytes"].to_numpy().astype(np.float64)
    priced = _with_new_durations(rank, links, moved, MORE_BYTES)
    for what in priced["what"].unique().sort().to_list():
        of_kind = priced.filter(pl.col("what") == what)
        yield new_durations(of_kind, f"{Fused.change} {what}", what=what, keeps_first=True)


def _loops_to_batch(rank: RankWork) -> pl.Series:
    """Return the loops whose repetitions do not need each other.

    An integer counts in them, their results are joined behind them, or they stand outside of the forward:
    averages, norms and updates of one tensor after the other.
    """
    is_outside = pl.col("first_sequence").is_null() & ~pl.col("has_products")
    return rank.loops.filter(pl.col("counts") | pl.col("joined") | is_outside)["loop"]


def _kinds_of_chains() -> pl.Expr:
    """Return the kind of each chain by the operators that only this kind has.

    A norm divides by the root of a mean, a rotation joins a half with the negative of the other. Roots of
    sums are distances, and exponentials may be anything.
    """

    def has(pattern: str) -> pl.Expr:
        return pl.col("op").str.contains(pattern).any().over("group")

    has_norm = (pl.col("kind") == "norm").any().over("group")
    return (
        pl.when(has_norm | (has("sqrt") & has("aten::(mean|var)")))
        .then(pl.lit("norm"))
        .when(has("aten::(cat|stack)") & has("aten::neg"))
        .then(pl.lit("rotation"))
        .when(has(ACTIVATION_OPERATORS))
        .then(pl.lit("activation"))
        .otherwise(pl.lit("elementwise"))
    )


def number_chains(is_link: Bools, elements: Ints, in_section_before: Bools) -> Ints:
    """Return the number of each event's chain; events that are no link separate chains.

    Neighbours are of one chain if one's elements are a multiple of the other's, and the event is in the
    section (stream, part and pass) of the one before.
    """
    before = np.concatenate([[0], elements[:-1]])
    larger = np.maximum(before, elements)
    smaller = np.maximum(np.minimum(before, elements), 1)
    continues = is_link & np.concatenate([[False], is_link[:-1]])
    continues &= in_section_before
    continues &= (larger % smaller == 0) & (np.minimum(before, elements) > 0)
    return np.cumsum(~continues).astype(np.int64)


def _bytes_of_chains(links: pl.DataFrame) -> pl.DataFrame:
    """Return the bytes that a fused kernel of each ``group`` moves at least, as ``chain_bytes``.

    Chains repeat from layer to layer: equal sequences of calls are read once.
    """
    calls = links.unique(["group", "call"], keep="first", maintain_order=True).with_columns(
        signature=pl.concat_str("op", "shapes", "dtypes", separator=" ", ignore_nulls=True)
    )
    chains = calls.group_by("group", maintain_order=True).agg(
        "op", "shapes", "dtypes", chain=pl.col("signature").str.join("\n")
    )
    bytes_by_chain: dict[str, int] = {}
    for row in chains.unique("chain").iter_rows(named=True):
        calls_of_chain = list(zip(row["op"], row["shapes"], row["dtypes"], strict=True))
        bytes_by_chain[row["chain"]] = chain_bytes(calls_of_chain)
    moved = pl.col("chain").replace_strict(bytes_by_chain, return_dtype=pl.Int64)
    return chains.select("group", chain_bytes=moved)


def chain_bytes(calls: Sequence[tuple[str, str, str | None]]) -> int:
    """Return the bytes that one kernel for all *calls* (operator, shapes, types) moves at least.

    An input that has the size and type of an earlier result is that result. The result of a call with
    several inputs from outside is needed later, as a residual is.

    >>> cast = ("aten::copy_", "[[8,4],[8,4]]", '["float","c10::BFloat16"]')
    >>> chain_bytes([cast, ("aten::mul", "[[8,4],[8,4]]", '["float","float"]')])  # 2 bytes read, 4 written
    192
    """
    results: set[tuple[int, int]] = set()
    moved = 0
    written = 0
    for op, shapes, dtypes in calls:
        tensors = read_inputs(shapes, dtypes)
        if not tensors:
            continue
        is_copy = op.endswith("copy_")
        # The first input of a copy is what it writes.
        inputs = tensors[1:] if is_copy and len(tensors) > 1 else tensors
        outside = [size for size in inputs if size not in results]
        moved += sum(elements * width for elements, width in outside)
        result = tensors[0] if is_copy else max(inputs)
        large = [size for size in outside if size[0] == result[0]]
        written = result[0] * result[1]
        if len(large) > 1:
            moved += written
            written = 0
        results.add(result)
    return moved + written


def _with_new_durations(
    rank: RankWork, events: pl.DataFrame, moved: Floats, factors: Sequence[float]
) -> pl.DataFrame:
    """Return the events with the durations of a fused kernel.

    *moved* are the bytes of each one's group, *factors* their least, likely and most multiple.
    """
    columns = []
    names = ("low_ns", "likely_ns", "high_ns")
    for index, name in enumerate(names):
        durations = rank.speeds.memory_ns(moved * factors[index])
        if durations is not None:
            columns.append(pl.Series(name, np.maximum(durations[index], MIN_KERNEL_NS)))
    return events.with_columns(columns)
