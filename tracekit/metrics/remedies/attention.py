"""Remedies of attention that is not one kernel, or not the fastest one.

Written-out attention is known by its shapes: a softmax over scores of batch × heads, tokens and
tokens, and batched products whose result or input has the size of these scores, with heads much
smaller than the sequence. Every kernel that reads or writes a tensor of that size belongs to it,
forward and backward; one fused kernel does their FLOP without writing the scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.alternatives.remedy import new_durations
from tracekit.metrics.attainable import Share
from tracekit.metrics.event_work import FUSED_ATTENTION, MEMORY_KINDS, PATTERNS
from tracekit.metrics.rank_work import RankWork

CHANGE = "fused attention"
MIN_QUERIES = 32
"""Rows of the scores from which a fused kernel is faster; single queries of a decoder are another matter."""
MAX_HEAD_SIZE = 256
"""Largest head that fused kernels take."""
FULL_ATTENTION_SHARE = Share(0.3, 0.45, 0.65)
"""Share of the peak rate that fused attention reaches without a mask."""
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


def attention_remedies(
    rank: RankWork, written_out: Sequence[tuple[Scores, pl.DataFrame]]
) -> Iterator[pl.DataFrame]:
    """Yield the remedies ``fused attention``; *written_out* is what ``find_written_out`` yields."""
    for scores, members in written_out:
        yield from _fuse(rank, scores, members)
    yield from _faster_kernel(rank)


def find_written_out(rank: RankWork) -> Iterator[tuple[Scores, pl.DataFrame]]:
    """Yield the scores of written-out attention, and the events that read or write them.

    Events have ``head_size`` where they are products.
    """
    events = rank.events
    softmax = events.filter(pl.col("kind") == "softmax").drop_nulls("dims")
    distinct = {_scores(dims) for dims in softmax["dims"].unique().to_list()}
    for scores in sorted(size for size in distinct if size is not None):
        sizes = {scores.queries, scores.keys}
        has_size = (pl.col("elements") == scores.elements) & (pl.col("dims").list.len() > 2)
        has_sides = pl.col("dims").list.get(-1, null_on_oob=True).is_in(sizes) & pl.col(
            "dims"
        ).list.get(-2, null_on_oob=True).is_in(sizes)
        passes_scores = pl.col("kind").is_in(MEMORY_KINDS) & has_size & has_sides
        products = events.filter(pl.col("kind") == "product").drop_nulls("shapes")
        head_sizes = {
            shapes: _head_size(shapes, scores) for shapes in products["shapes"].unique().to_list()
        }
        head_size = pl.col("shapes").replace_strict(head_sizes, default=None, return_dtype=pl.Int64)
        of_product = pl.when(pl.col("kind") == "product").then(head_size)
        members = events.with_columns(head_size=of_product).filter(
            passes_scores | pl.col("head_size").is_not_null()
        )
        if members["head_size"].drop_nulls().len() >= FORWARD_PRODUCTS:
            yield scores, members


def _scores(dims: list[int]) -> Scores | None:
    """Return the sizes of scores that a softmax is taken of; None if they are no attention's."""
    if len(dims) < 3 or min(dims[-2:]) < MIN_QUERIES:
        return None
    return Scores(prod(dims[:-2]), dims[-2], dims[-1])


def _head_size(shapes: str, scores: Scores) -> int | None:
    """Return the size of a head, if a product has the scores as its result or as an input; else None.

    >>> _head_size("[[8,128,64],[8,64,128]]", Scores(8, 128, 128)), _head_size("[[8,64],[64,8]]", Scores(8, 128, 128))
    (64, None)
    >>> _head_size("[[8,512,64],[8,64,128]]", Scores(32, 128, 128))  # four heads of queries share one of keys
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


def _fuse(rank: RankWork, scores: Scores, members: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of one size of written-out attention, forward and backward."""
    products = members.drop_nulls("head_size")
    head_size = int(products["head_size"].mode().min())  # type: ignore[arg-type]  # polars types it as any value
    peak = rank.speeds.peaks.get(_attention_type(rank, products) or "")
    if peak is None:
        return
    if bool(members["op"].str.contains("dropout|bernoulli").any()):
        peak *= DROPOUT_FACTOR
    is_causal = scores.queries == scores.keys and bool(members["is_masked"].any())
    share = rank.speeds.attention_share if is_causal else FULL_ATTENTION_SHARE
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
            high_ns=pl.lit(flop / peak / FULL_ATTENTION_SHARE.low),
        )
        what = "math" if bool(of_pass["chain"].str.contains("attention_math").any()) else "written"
        remedies = new_durations(priced, CHANGE, what=what)
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
        shapes: _flash_takes(op, shapes) for op, shapes in calls.select("op", "shapes").iter_rows()
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
    yield new_durations(events, CHANGE, what="efficient")


def _flash_takes(op: str, shapes: str) -> bool:
    """Return whether FlashAttention takes these inputs: no bias, heads of at most 256.

    >>> _flash_takes("aten::_efficient_attention_forward", "[[8,1024,16,64],[8,1024,16,64],[8,1024,16,64],[],[]]")
    True
    """
    inputs = parse_list(shapes)
    first = 1 if re.search("backward", op) else 0
    if len(inputs) < first + 4 or not is_shape(inputs[first]) or not inputs[first]:
        return False
    return not inputs[first + 3] and inputs[first][-1] <= MAX_HEAD_SIZE
