"""Alternatives of attention: one kernel instead of many, a faster one, and one that leaves out what a mask does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import ClassVar, NamedTuple

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.alternatives.entry import Alternative, Sentences, SitePrice
from tracekit.metrics.alternatives.remedy import new_durations, without_events
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import FUSED_ATTENTION, MEMORY_KINDS, PATTERNS
from tracekit.metrics.flop import flop
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import Inputs, count_elements
from tracekit.metrics.speeds import MIN_KERNEL_NS

MASKED_ATTENTION = r"^aten::_(cudnn|efficient)_attention_(forward|backward)$"
"""Operators that take a mask or bias, which keeps them from skipping the scores above the diagonal."""
FUSED_ATTENTION_FORWARD = r"^aten::_(flash|cudnn|efficient)_attention_forward$"
MIN_GROWN_LENGTHS = 3
"""Lengths of sequences, each a token longer than the one before, from which tokens are generated."""
MIN_MASKED_LENGTH = 512
"""Length of sequences from which skipping half of the scores is worth it."""
MAX_TIME_SHARE = 0.8
"""Time of a causal kernel over the present one, above which the mask is not what makes it slow."""
MIN_QUERIES = 32
"""Rows of the scores from which a fused kernel is faster; single queries of a decoder are another matter."""
MAX_HEAD_SIZE = 256
"""Largest head that fused kernels take."""
DROPOUT_FACTOR = 0.5
"""Rate of fused attention with dropout over that without: it draws a number for every score."""
EFFICIENT_FACTORS = Share(0.35, 0.45, 0.75)
"""Time of FlashAttention over that of the memory-efficient kernel on the same inputs."""
BACKWARD_PRODUCTS = 5
"""Products of a fused backward; its forward has two."""
FORWARD_PRODUCTS = 2


class Scores(NamedTuple):
    """Sizes of a tensor of scores."""

    heads: int
    """Batch × heads."""
    queries: int
    keys: int

    @property
    def elements(self) -> int:
        """Number of scores."""
        return self.heads * self.queries * self.keys


class FusedAttention(Alternative, frozen=True, kw_only=True):
    """Attention is written as products and a softmax, or runs in a slower kernel than its inputs need.

    Written-out attention is known by its shapes: a softmax over scores of batch × heads, tokens and
    tokens, and batched products whose result or input has the size of these scores, with heads much
    smaller than the sequence. Every kernel that reads or writes a tensor of that size belongs to it,
    forward and backward; one fused kernel does their FLOP without writing the scores.
    """

    change = "fused attention"
    rests_on = "attention is one kernel, forward and backward"
    code = "attention"
    rests_on_rates = True
    title = "attention"
    says = (
        "attention runs in separate kernels: {kernels_per_step} kernels and copies {per_step} read or write a "
        "matrix of tokens × tokens ({work})"
    )
    advises = "use one fused kernel ({switch}), with `is_causal` instead of a causal mask"
    topic = "attention"
    case_is_what = True
    cases: ClassVar[Mapping[str, Sentences]] = {
        "efficient": Sentences(
            "attention takes {work_ns} in the memory-efficient kernel, although FlashAttention takes its inputs",
            "allow it: `torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`, or leave the choice to "
            "PyTorch",
        )
    }
    caveat = "A fused kernel returns no attention weights."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        yield from rank.once(_attention_remedies)


def _attention_remedies(rank: RankWork) -> list[pl.DataFrame]:
    """Return the remedies of written-out attention, and of kernels that are not the fastest."""
    written_out = rank.once(find_written_out)
    fused = [frame for found in written_out for frame in fuse_attention(rank, *found)]
    return [*fused, *_faster_kernel(rank)]


def attention_rows(rank: RankWork) -> set[int]:
    """Return the rows of events that one kernel of attention would replace."""
    return {row for frame in rank.once(_attention_remedies) for row in frame["row"].to_list()}


def upcast_rows(rank: RankWork) -> set[int]:
    """Return the rows of attention that PyTorch writes out in a wider type than the model's."""
    of_scores = (members for _, members in rank.once(find_written_out) if is_upcast(rank, members))
    return {row for members in of_scores for row in members["row"].to_list()}


def find_written_out(rank: RankWork) -> list[tuple[Scores, pl.DataFrame]]:
    """Return the scores of written-out attention, and the events that read or write them.

    Events have ``head_size`` where they are products.
    """
    events = rank.events
    softmax = events.filter(pl.col("kind") == "softmax").drop_nulls("dims")
    distinct = {scores_of(dims) for dims in softmax["dims"].unique().to_list()}
    found = []
    for scores in sorted(size for size in distinct if size is not None):
        sizes = {scores.queries, scores.keys}
        has_size = (pl.col("elements") == scores.elements) & (pl.col("dims").list.len() > 2)
        has_sides = pl.col("dims").list.get(-1, null_on_oob=True).is_in(sizes) & pl.col(
            "dims"
        ).list.get(-2, null_on_oob=True).is_in(sizes)
        passes_scores = pl.col("kind").is_in(MEMORY_KINDS) & has_size & has_sides
        products = events.filter(pl.col("kind") == "product").drop_nulls("shapes")
        head_sizes = {
            shapes: head_size_of(shapes, scores) for shapes in products["shapes"].unique().to_list()
        }
        head_size = pl.col("shapes").replace_strict(head_sizes, default=None, return_dtype=pl.Int64)
        of_product = pl.when(pl.col("kind") == "product").then(head_size)
        members = events.with_columns(head_size=of_product).filter(
            passes_scores | pl.col("head_size").is_not_null()
        )
        if members["head_size"].drop_nulls().len() >= FORWARD_PRODUCTS:
            found.append((scores, members))
    return found


def scores_of(dims: list[int]) -> Scores | None:
    """Return the sizes of scores that a softmax is taken of; None if they are no attention's."""
    if len(dims) < 3 or min(dims[-2:]) < MIN_QUERIES:
        return None
    return Scores(prod(dims[:-2]), dims[-2], dims[-1])


def head_size_of(shapes: str, scores: Scores) -> int | None:
    """Return the size of a head, if a product has the scores as its result or as an input; else None.

    >>> head_size_of("[[8,128,64],[8,64,128]]", Scores(8, 128, 128))
    64
    >>> head_size_of("[[8,64],[64,8]]", Scores(8, 128, 128)) is None
    True
    >>> head_size_of("[[8,512,64],[8,64,128]]", Scores(32, 128, 128))  # four heads of queries share one of keys
    64
    """
    matrices = [shape for shape in parse_list(shapes) if is_shape(shape) and len(shape) > 2]
    if len(matrices) < 2:
        return None
    left = matrices[-2]
    right = matrices[-1]
    batch = prod(left[:-2])
    rows, inner = left[-2:]
    columns = right[-1]
    if right[-2] != inner or prod(right[:-2]) != batch:
        return None
    for first, second, third in (
        (rows, columns, inner),
        (rows, inner, columns),
        (inner, columns, rows),
    ):
        is_scores = batch * first * second == scores.elements and _are_sides(first, second, scores)
        if is_scores and third <= MAX_HEAD_SIZE and third < max(scores.queries, scores.keys):
            return int(third)
    return None


def _are_sides(first: int, second: int, scores: Scores) -> bool:
    """Return whether one size is that of the keys, and the other of the queries of one or several heads."""
    return any(
        keys == scores.keys and queries % scores.queries == 0
        for keys, queries in ((first, second), (second, first))
    )


def fuse_attention(rank: RankWork, scores: Scores, members: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of one size of written-out attention, forward and backward."""
    products = members.drop_nulls("head_size")
    head_size = int(products["head_size"].mode().min())  # type: ignore[arg-type]  # polars types it as any value
    peak = rank.speeds.peaks.get(_attention_type(rank, products) or "")
    if peak is None:
        return
    if bool(members["op"].str.contains("dropout|bernoulli").any()):
        peak *= DROPOUT_FACTOR
    is_causal = scores.queries == scores.keys and bool(members["is_masked"].any())
    full_share = rank.speeds.share("full_attention")
    share = rank.speeds.share("attention") if is_causal else full_share
    product_flop = 2 * scores.elements * head_size
    is_backward = pl.col("node").is_not_null() | (pl.col("pass") == "backward").fill_null(False)
    is_softmax = pl.col("kind") == "softmax"
    for backward, product_count in ((False, FORWARD_PRODUCTS), (True, BACKWARD_PRODUCTS)):
        of_pass = members.filter(is_backward == backward)
        calls = of_pass.filter(is_softmax).height
        if not calls:
            continue
        flop = calls * product_count * product_flop
        # Which keys a mask leaves out is not recorded: by half if it is by positions.
        likely_flop = flop / 2 if is_causal else flop
        priced = of_pass.with_columns(
            group=pl.lit(0),
            low_ns=pl.lit(likely_flop / peak / share.high),
            likely_ns=pl.lit(likely_flop / peak / share.likely),
            high_ns=pl.lit(flop / peak / full_share.low),
        )
        what = "math" if bool(of_pass["chain"].str.contains("attention_math").any()) else "written"
        remedies = new_durations(priced, FusedAttention.change, what=what)
        # One launch for each softmax.
        keeps_launch = of_pass.select(host_share=is_softmax.cast(pl.Float64))
        yield remedies.with_columns(keeps_launch["host_share"])


def _attention_type(rank: RankWork, products: pl.DataFrame) -> str | None:
    """Return the type that a fused kernel would compute in: that of the model's other products if it is narrower.

    PyTorch's own written-out attention computes in float32 whatever its inputs are.
    """
    own = products["dtype"].drop_nulls().mode().sort().to_list()
    others = rank.calls.filter(
        (pl.col("kind") == "product") & ~pl.col("call").is_in(products["call"].implode())
    ).drop_nulls("dtype")
    by_time = others.group_by("dtype").agg(pl.col("ns").sum()).sort("ns", "dtype")
    usual = by_time["dtype"].to_list()
    if usual and usual[-1] in ("bf16", "fp16"):
        return str(usual[-1])
    return str(own[0]) if own else None


def is_upcast(rank: RankWork, members: pl.DataFrame) -> bool:
    """Return whether written-out attention computes in a wider type than the model's other products."""
    products = members.drop_nulls("head_size")
    return _attention_type(rank, products) not in products["dtype"].unique().to_list()


def _faster_kernel(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies of the memory-efficient kernel where FlashAttention takes the same inputs."""
    calls = rank.calls.filter(
        (pl.col("kind") == FUSED_ATTENTION)
        & pl.col("op").str.contains(PATTERNS["memory_efficient"])
        & pl.col("dtype").is_in(["bf16", "fp16"])
    ).drop_nulls("shapes")
    # GPUs that compute in bf16 have FlashAttention.
    if calls.is_empty() or "bf16" not in rank.speeds.peaks:
        return
    takes = {
        shapes: flash_takes(op, shapes) for op, shapes in calls.select("op", "shapes").iter_rows()
    }
    calls = calls.filter(
        pl.col("shapes").replace_strict(takes, default=False, return_dtype=pl.Boolean)
    )
    priced = calls.select(
        "call",
        low_ns=pl.col("ns") * EFFICIENT_FACTORS.low,
        likely_ns=pl.col("ns") * EFFICIENT_FACTORS.likely,
        high_ns=pl.col("ns") * EFFICIENT_FACTORS.high,
    )
    events = rank.events.join(priced, on="call", how="inner").with_columns(group="call")
    yield new_durations(events, FusedAttention.change, what="efficient")


def flash_takes(op: str, shapes: str) -> bool:
    """Return whether FlashAttention takes these inputs: no bias, heads of at most 256.

    >>> flash_takes("aten::_efficient_attention_forward", "[[8,1024,16,64],[8,1024,16,64],[8,1024,16,64],[],[]]")
    True
    """
    inputs = parse_list(shapes)
    first = 1 if re.search("backward", op) else 0
    if len(inputs) < first + 4 or not is_shape(inputs[first]) or not inputs[first]:
        return False
    return not inputs[first + 3] and inputs[first][-1] <= MAX_HEAD_SIZE


class CausalKernel(Alternative, frozen=True, kw_only=True):
    """Attention of a sequence to itself takes a dense mask, and so computes all scores."""

    change = "causal attention"
    rests_on = "masks of attention are causal, and its kernel skips what they leave out"
    code = "attention"
    case = "mask"
    rests_on_rates = True
    title = "attention"
    says = "attention takes a dense mask, which keeps it from its causal kernel: {work}"
    advises = (
        "if the mask is causal, leave it out and pass `is_causal=True`; for another pattern use "
        "`torch.nn.attention.flex_attention`, which skips blocks that are masked"
    )
    caveat = "What a mask leaves out is not recorded: a mask that keeps most scores gains nothing."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        prices: dict[int, SitePrice] = {}
        types = dict(
            rank.calls.drop_nulls(["shapes", "dtype"]).select("shapes", "dtype").iter_rows()
        )
        masked = rank.sites.filter(pl.col("op").str.contains(MASKED_ATTENTION)).drop_nulls("shapes")
        for site in masked.iter_rows(named=True):
            call_flop = flop(site["op"], site["shapes"])
            peak = rank.speeds.peaks.get(types.get(site["shapes"], ""))
            inputs = Inputs.of(site)
            first = 1 if site["op"].endswith("backward") else 0
            if call_flop is None or peak is None or not _has_square_mask(inputs, first):
                continue
            # What remains is half of the scores, at the rate of causal attention.
            at_peak_ns = call_flop / 2 / peak * site["calls"]
            share = rank.speeds.share("attention")
            likely_ns = max(at_peak_ns / share.likely, MIN_KERNEL_NS * site["calls"])
            if likely_ns < MAX_TIME_SHARE * site["ns"]:
                prices[site["site"]] = SitePrice(
                    at_peak_ns / share.high, likely_ns, at_peak_ns / share.low
                )
        yield self.of_sites(rank, prices)


def _has_square_mask(inputs: Inputs, first: int) -> bool:
    """Return whether a mask over all pairs of a sequence's tokens is among the inputs; *first* is that of the query.

    One of each sequence or head is more than an order of tokens.
    """
    query = inputs.size(first)
    key = inputs.size(first + 1)
    if len(query) != 4 or len(key) != 4:
        return False
    # The sequence is the dimension before the heads' size, or that before the heads.
    lengths = {(query[axis], key[axis]) for axis in (1, 2)}
    for index in range(first + 3, len(inputs.sizes)):
        mask = inputs.size(index)
        is_shared = len(mask) >= 2 and count_elements(mask[:-2]) == 1
        is_square = is_shared and mask[-1] == mask[-2] >= MIN_MASKED_LENGTH
        if is_square and (mask[-2], mask[-1]) in lengths and mask[-1] != query[-1]:
            return True
    return False


class RepeatedHeads(Alternative, frozen=True, kw_only=True):
    """Heads of keys and values are copied for each head of the queries that shares them."""

    change = "shared heads"
    rests_on = "attention reads heads of keys and values that several heads of queries share, without copies"
    code = "attention"
    case = "repeated_heads"
    title = "attention"
    says = (
        "heads of keys and values are copied {what} times in front of attention, {kernels_per_step} kernels "
        "{per_step}: {work}"
    )
    advises = "pass them as they are, with `enable_gqa=True` (`scaled_dot_product_attention`)"
    caveat = "Not every kernel takes shared heads: measure whether attention itself stays as fast."
    min_saved_share = 0.03

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        keys = set()
        attention = rank.sites.filter(pl.col("op").str.contains(FUSED_ATTENTION_FORWARD))
        for site in attention.iter_rows(named=True):
            size = Inputs.of(site).size(1)
            if len(size) == 4:
                keys.add(tuple(sorted(size)))
        copied: dict[int, int] = {}
        summed: set[str] = set()
        for site in rank.sites.filter(pl.col("op") == "aten::copy_").iter_rows(named=True):
            inputs = Inputs.of(site)
            repeats = _repeats(inputs, keys)
            if repeats is not None:
                copied[site["site"]] = repeats
                summed.add(str(inputs.size(0)))
        if not copied:
            return
        for site in rank.sites.filter(
            (pl.col("op") == "aten::sum") & (pl.col("node") == "ExpandBackward0")
        ).iter_rows(named=True):
            if str(Inputs.of(site).size(0)) in summed:
                copied[site["site"]] = 0
        what = str(max(copied.values()))
        copies = rank.events.filter(pl.col("site").is_in(list(copied)))
        yield without_events(copies, self.change, what=what)


def _repeats(inputs: Inputs, keys: set[tuple[int, ...]]) -> int | None:
    """Return how often a copy repeats heads that attention then takes; None if it is none of these.

    A tensor that is expanded has steps of 0 along what is repeated.
    """
    size = inputs.size(1)
    strides = inputs.strides[1] if len(inputs.strides) > 1 else []
    if len(size) != 5 or len(strides) != 5:
        return None
    for axis in range(1, 4):
        if strides[axis] == 0 and size[axis] > 1:
            for heads in (axis - 1, axis + 1):
                others = [size[i] for i in range(5) if i not in (axis, heads)]
                if tuple(sorted([*others, size[axis] * size[heads]])) in keys:
                    return size[axis]
    return None


class PrefixAgain(Alternative, frozen=True, kw_only=True):
    """Tokens are generated without a cache: each goes through the model with all tokens before it."""

    change = "cached prefix"
    rests_on = "keys and values of earlier tokens are kept, and each new token alone goes through the model"
    code = "no_cache"
    title = "generation"
    says = "the model computes all earlier tokens again for each new one ({what} at a time): {work}"
    advises = "keep keys and values of earlier tokens (`use_cache=True`, a static cache), and give only the new token"
    caveat = "What the host needs for each token stays: a cache alone saves nothing while the host is the limit."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        bandwidth = rank.speeds.bandwidth
        if bandwidth is None or rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        lengths: dict[int, int] = {}
        attention = rank.sites.filter(pl.col("op").str.contains(FUSED_ATTENTION_FORWARD))
        for site in attention.iter_rows(named=True):
            inputs = Inputs.of(site)
            query, key = inputs.size(0), inputs.size(1)
            if len(query) == 4 and query == key:
                # Heads are before the tokens, or behind them.
                lengths[site["site"]] = max(query[1:3])
        numbers = sorted(set(lengths.values()))
        grown = [length for length in numbers if length - 1 in numbers or length + 1 in numbers]
        if len(grown) < MIN_GROWN_LENGTHS:
            return
        calls = rank.events.filter(pl.col("site").is_in(list(lengths))).sort("launch_ns")
        calls = calls.select(
            "part",
            "launch_ns",
            length=pl.col("site").replace_strict(lengths, return_dtype=pl.Int64),
        ).drop_nulls()
        # What lies between two calls of attention of a step belongs to the tokens of the first.
        events = rank.events.drop_nulls("launch_ns").sort("launch_ns")
        events = events.join_asof(calls, on="launch_ns", by="part").with_columns(
            pl.col("length").backward_fill().over("part")
        )
        events = events.filter(pl.col("length").is_in(grown))
        # The first of a step has no cache yet.
        is_first = pl.col("length") == pl.col("length").min().over("part")
        several = pl.col("length").n_unique().over("part") > 1
        again = events.filter(~(is_first & several))
        if again.is_empty():
            return
        weight_bytes = {
            shapes: _weight_bytes(shapes)
            for shapes in again.filter(pl.col("kind") == "product")["shapes"].unique().drop_nulls()
        }
        of_weights = pl.col("shapes").replace_strict(weight_bytes, default=0, return_dtype=pl.Int64)
        read_ns = pl.when(pl.col("kind") == "product").then(of_weights).otherwise(0) / bandwidth
        share = rank.speeds.share("memory")
        one_ns = pl.col("ns") / pl.col("length")
        priced = again.with_columns(
            group="row",
            low_ns=pl.max_horizontal(one_ns, read_ns / share.high, MIN_KERNEL_NS / 2),
            likely_ns=pl.max_horizontal(one_ns, read_ns / share.likely, MIN_KERNEL_NS),
            high_ns=pl.max_horizontal(one_ns, read_ns / share.low, 2 * MIN_KERNEL_NS),
        )
        yield new_durations(priced, self.change, what=f"{min(grown):,} to {max(grown):,}")


def _weight_bytes(shapes: str) -> int:
    """Return the bytes of the matrix that a product multiplies by, in 16 bits.

    >>> _weight_bytes("[[64],[128,32],[32,64],[],[]]")
    4096
    """
    matrices = [size for size in parse_list(shapes) if size and is_shape(size) and len(size) > 1]
    return 2 * count_elements(matrices[-1]) if len(matrices) > 1 else 0
