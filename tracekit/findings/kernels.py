"""Findings about operators that take longer than the GPU's peak rate and its memory's bandwidth ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import msgspec
import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit._util.text import percent, short_ms
from tracekit._util.values import first_that_holds
from tracekit.findings.context import Context
from tracekit.findings.host import run_more_at_once
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import in_module
from tracekit.findings.remedies import operators_with_remedy
from tracekit.metrics.event_work import PATTERNS
from tracekit.metrics.flop import (
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    fused_experts,
    most_convolution_output,
)
from tracekit.metrics.kernel_limits import experts_bytes, memory_gb_s, product_bytes
from tracekit.metrics.peaks import peak_tflop_s

MAX_KERNELS = 10
"""Operators with equal sizes that are looked at, those with most time to gain."""
GOOD_SHARE_OF_LIMIT = 0.7
"""Share of the peak rate or bandwidth that well-shaped work reaches; the time above is to gain."""
MIN_KERNEL_NS = 5_000
"""Time that a kernel may take whatever its work: it is started, and its last block ends."""
ALIGNED_SIZE = 8
"""Elements that a product's sizes must be a multiple of, for its rows to begin where the GPU reads
fastest."""
MIN_TILES_SHARE = 0.5
"""Tiles of a product's result over multiprocessors, below which most of these have nothing to
do."""
TILE_SIZE = 128
"""Rows and columns of the result that one multiprocessor computes at a time."""
MAX_SKINNY_SIZE = 64
"""Smallest of a product's three sizes up to which it moves more than it computes."""
MAX_SHORT_SEQUENCE = 512
"""Length of sequences up to which attention is short of work for each block."""

LIMIT_WORDS = {"peak": "GPU's peak rate", "bandwidth": "memory bandwidth"}
"""What limits an operator, in words."""
ATTENTION_OF_VENDORS = {"amd": ("CK", "AITER"), "nvidia": ("FlashAttention 3", "cuDNN")}
"""Libraries with kernels of attention."""


class _SlowOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one operator with equal sizes, and the time that they need at least.

    Means per rank and step.
    """

    op: str
    module: str | None
    shapes: str
    kind: str
    ns: float
    limit_ns: float
    gain_ns: float
    is_compute: bool
    """Whether the peak rate is the limit; else the bandwidth."""
    dtype: str | None = None
    """Type in which it multiplies, whose peak rate is meant."""


class SlowKernel(FindingKind, frozen=True, kw_only=True):
    """Operators take longer than their work needs, where shapes and the GPU's peak are known."""

    code = "slow_kernel"
    title = "slow kernels"
    section = "rates"
    is_about_operator = True
    stated_times = ("cost_ns", "op_gain_ns")
    names_vendor = True

    op: str
    module: str | None
    shapes: str
    limit: str
    peak_dtype: str | None
    share_of_limit: float
    op_ns: int
    op_gain_ns: int
    operators: str
    model_flop_utilisation: float | None

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        rank_steps = max(1, sum(len(rank.per_step) for rank in context.analysis.ranks))
        operators = [*_products(context, rank_steps), *_memory_bound(context, rank_steps)]
        # Another finding says more about what it would change.
        explained = operators_with_remedy(context, context.found)
        operators = [operator for operator in operators if operator.op not in explained]
        slow = sorted(operators, key=lambda operator: -operator.gain_ns)[:MAX_KERNELS]
        if not slow:
            return
        first = slow[0]
        cost_ns = sum(operator.gain_ns for operator in slow)
        reason = reason_of(
            first.op, first.kind, first.shapes, multiprocessors=fewest_multiprocessors(context)
        )
        rates = context.analysis.rate_tables
        kind = KINDS_OF_REASON.get(reason, SlowKernel)
        yield kind(
            variant=reason,
            cost_ns=round(cost_ns),
            share=context.share(cost_ns),
            op=first.op,
            module=first.module,
            shapes=first.shapes,
            limit="peak" if first.is_compute else "bandwidth",
            peak_dtype=first.dtype if first.is_compute else None,
            share_of_limit=round(first.limit_ns / first.ns, 4),
            op_ns=round(first.ns),
            op_gain_ns=round(first.gain_ns),
            operators=", ".join(dict.fromkeys(operator.op for operator in slow)),
            model_flop_utilisation=None if rates is None else rates.total.utilisation,
            certain="possible",
        )

    def text(self) -> str:
        return self._slowest(self._of_limit)

    def advice(self) -> str:
        return "let `torch.compile` fuse it, and keep its inputs contiguous"

    @property
    def _of_limit(self) -> str:
        """Share of the limit that the slowest operator reaches; of a peak rate, the type that it is the rate of."""
        limit = LIMIT_WORDS.get(self.limit, "GPU's limit")
        dtype = "" if self.peak_dtype is None else f" in {self.peak_dtype}"
        return f"{percent(self.share_of_limit, digits=0)} of the {limit}{dtype}"

    @property
    def _gain(self) -> str:
        return (
            f"kernels are {short_ms(self.cost_ns)} slower than the GPU allows, "
            f"{short_ms(self.op_gain_ns)} of it in"
        )

    def _slowest(self, reached: str) -> str:
        operator = f"{self.op}{in_module(self.module)}"
        cost = short_ms(self.cost_ns)
        if short_ms(self.op_gain_ns) == cost:
            return f"{operator} is {cost} slower than the GPU allows: it reaches {reached}"
        return f"{self._gain} {operator}, which reaches {reached}"


class SlowProduct(SlowKernel, frozen=True, kw_only=True):
    """A matrix product, of which its sizes do not show why."""

    case = "product"

    def advice(self) -> str:
        if self.run.is_inference:
            return (
                'try another kernel (`torch.compile(mode="max-autotune")`, a tuned library) or '
                f"{run_more_at_once(self.run)}"
            )
        return 'try another kernel (`torch.compile(mode="max-autotune")`) or a larger batch'


class MisalignedProduct(SlowKernel, frozen=True, kw_only=True):
    """A product whose rows do not begin where the GPU reads fastest."""

    case = "misaligned"

    def text(self) -> str:
        return f"{SlowKernel.text(self)}, because its sizes are no multiples of 8"

    def advice(self) -> str:
        return "pad sizes to multiples of 64 (vocabulary, hidden size, head count)"


class SkinnyProduct(SlowKernel, frozen=True, kw_only=True):
    """A product with one small size."""

    case = "skinny"

    def text(self) -> str:
        return (
            f"{SlowKernel.text(self)}, because one size of the product is small (it moves more than "
            "it computes)"
        )

    def advice(self) -> str:
        return (
            "fuse it with what is before or behind it, batch several into one, or let "
            "`torch.compile` do so"
        )


class FewTiles(SlowKernel, frozen=True, kw_only=True):
    """A product with too few tiles to keep the GPU busy."""

    case = "few_tiles"

    def text(self) -> str:
        return (
            f"{SlowKernel.text(self)}, because its result has fewer tiles than the GPU has "
            "multiprocessors"
        )

    def advice(self) -> str:
        if self.run.is_inference:
            return (
                f"{run_more_at_once(self.run)}, use a kernel that splits the inner size (split-K), or join "
                "products into one (a fused QKV projection)"
            )
        return (
            "use a larger batch, or join products into one (a fused QKV projection, grouped "
            "products)"
        )


class SlowAttention(SlowKernel, frozen=True, kw_only=True):
    """Attention."""

    case = "attention"

    def advice(self) -> str:
        libraries = ATTENTION_OF_VENDORS.get(self.run.vendor or "", ())
        others = [library for library in libraries if library.lower() not in self.op.lower()]
        named = f" ({', '.join(others)})" if others else ""
        return f"use another attention kernel{named}"


class ShortSequence(SlowKernel, frozen=True, kw_only=True):
    """Attention over sequences that give each block too little work."""

    case = "short_sequence"

    def text(self) -> str:
        return f"{SlowKernel.text(self)}, because its sequences are short"

    def advice(self) -> str:
        if self.run.is_inference:
            return (
                "use an attention kernel that splits the keys (FlashDecoding, paged attention), or "
                f"{run_more_at_once(self.run)}"
            )
        return "pack several sequences into one (variable-length attention), or use a larger batch"


class SlowConvolution(SlowKernel, frozen=True, kw_only=True):
    """A convolution, whose output's size may be less than what is counted."""

    case = "convolution"

    def text(self) -> str:
        return self._slowest(f"at most {self._of_limit}")

    def advice(self) -> str:
        return "use `channels_last`, a 16-bit type and `torch.backends.cudnn.benchmark = True`"


class DepthwiseConvolution(SlowConvolution, frozen=True, kw_only=True):
    """A convolution of each channel by itself."""

    case = "depthwise"

    def text(self) -> str:
        return (
            f"{SlowConvolution.text(self)}, because each channel is convolved by itself (it moves more "
            "than it computes)"
        )

    def advice(self) -> str:
        return (
            "use `channels_last` and a 16-bit type, or let `torch.compile` fuse it with what is "
            "behind it"
        )


class MisalignedChannels(SlowConvolution, frozen=True, kw_only=True):
    """A convolution whose channels do not begin where the GPU reads fastest."""

    case = "channels"

    def text(self) -> str:
        return (
            f"{SlowConvolution.text(self)}, because its numbers of channels are no multiples of 8"
        )

    def advice(self) -> str:
        return (
            "pad the channels to multiples of 8 (an image's 3 to 4 or 8), use `channels_last` "
            "and a 16-bit type"
        )


class SlowExperts(SlowKernel, frozen=True, kw_only=True):
    """The products of experts in one kernel."""

    case = "experts"

    def advice(self) -> str:
        return "tune its kernel for these sizes, or spread tokens evenly over experts"


class FewTokens(SlowKernel, frozen=True, kw_only=True):
    """Experts that get few tokens each."""

    case = "few_tokens"

    def text(self) -> str:
        return (
            f"{SlowKernel.text(self)}, because its experts get few tokens each (it moves more than "
            "it computes)"
        )

    def advice(self) -> str:
        if self.run.is_inference:
            return f"{run_more_at_once(self.run)}, or put fewer experts on a GPU"
        return "send more tokens through each call (a larger batch), or put fewer experts on a GPU"


class SlowOptimizer(SlowKernel, frozen=True, kw_only=True):
    """The optimizer."""

    case = "optimizer"
    training_only = True

    def text(self) -> str:
        return (
            f"the optimizer's kernels are {short_ms(self.cost_ns)} slower than the GPU allows: {self.op} "
            f"reaches {self._of_limit}"
        )

    def advice(self) -> str:
        return "use the fused optimizer (`fused=True`)"


class SlowCopy(SlowKernel, frozen=True, kw_only=True):
    """Copies on the device."""

    case = "copy"

    def text(self) -> str:
        return f"{self._gain} copies on the device: they reach {self._of_limit}"

    def advice(self) -> str:
        return "avoid them (`contiguous`, `cat`, `clone`)"


KINDS_OF_REASON: dict[str, type[SlowKernel]] = {
    kind.case: kind
    for kind in (
        SlowProduct,
        MisalignedProduct,
        SkinnyProduct,
        FewTiles,
        SlowAttention,
        ShortSequence,
        SlowConvolution,
        DepthwiseConvolution,
        MisalignedChannels,
        SlowExperts,
        FewTokens,
        SlowOptimizer,
        SlowCopy,
    )
}
"""Class by why the slowest operator is slow (``reason_of``); other operators have the words of ``SlowKernel``."""


def _products(context: Context, rank_steps: int) -> Iterator[_SlowOperator]:
    """Yield matrix products, attentions, convolutions and fused experts that are slower than their limit."""
    rates = context.analysis.rate_tables
    if rates is None:
        return
    bandwidth = memory_gb_s(common_device(context), multiprocessors=fewest_multiprocessors(context))
    counted = rates.products.drop_nulls(["at_peak_ns", "op", "shapes"])
    for row in [*counted.iter_rows(named=True), *_bounded_convolutions(context)]:
        memory_ns = 0.0 if bandwidth is None else _memory_ns(row, bandwidth)
        is_compute = row["at_peak_ns"] >= memory_ns
        limit_ns = max(row["at_peak_ns"], memory_ns)
        kind = kind_of_product(row["op"], row["shapes"])
        yield from find_slower_than(limit_ns, row, kind, rank_steps, is_compute=is_compute)


def kind_of_product(op: str, shapes: str) -> str:
    """Return the kind of an operator that multiplies.

    >>> kind_of_product("aten::mm", "[[8,8],[8,8]]"), kind_of_product("aten::convolution_backward", "[]")
    ('product', 'convolution')
    """
    kinds = [  # the first that holds decides
        ("attention" in op or "attn" in op, "attention"),
        (op in CONVOLUTIONS or op == CONVOLUTION_BACKWARD, "convolution"),
        (fused_experts(shapes) is not None, "experts"),
        (True, "product"),
    ]
    return first_that_holds(kinds)


def _memory_ns(row: dict[str, Any], bandwidth: float) -> float:
    """Return the time of the bytes that all calls of a product move; 0 if unknown."""
    experts = fused_experts(row["shapes"])
    if experts is None:
        moved = product_bytes(row["op"], row["shapes"], row["dtype"], row["flop"], row["calls"])
        return 0.0 if moved is None else moved / bandwidth
    least_and_most = experts_bytes(experts, row["dtype"])
    if least_and_most is None:
        return 0.0
    least_bytes, most_bytes = least_and_most
    least_ns = row["calls"] * least_bytes / bandwidth
    most_ns = row["calls"] * most_bytes / bandwidth
    # Faster than the memory: the weights are not what the shapes say. No claim about bytes.
    return most_ns if least_ns <= row["ns"] else 0.0


def _bounded_convolutions(context: Context) -> Iterator[dict[str, Any]]:
    """Yield convolutions whose output size is not recorded, with the most that they can compute.

    With a stride they compute less, and would be further from their limit.
    """
    rates = context.analysis.rate_tables
    device = common_device(context)
    if rates is None or device is None:
        return
    is_uncounted = pl.col("flop").is_null() & pl.col("op").is_in(CONVOLUTIONS)
    rows = rates.products.filter(is_uncounted).drop_nulls(["shapes", "dtype"])
    for row in rows.iter_rows(named=True):
        peak = peak_tflop_s(device, row["dtype"], multiprocessors=fewest_multiprocessors(context))
        outputs = most_convolution_output(row["shapes"])
        if peak is None or outputs is None:
            continue
        weight = parse_list(row["shapes"])[1]
        flop = 2 * outputs * prod(weight[1:]) * row["calls"]
        yield {**row, "flop": flop, "at_peak_ns": flop / (peak * 1e3)}


def _memory_bound(context: Context, rank_steps: int) -> Iterator[_SlowOperator]:
    """Yield operators that move memory and are slower than its bandwidth."""
    table = context.analysis.tables["memory_bound"].drop_nulls("limit_ns")
    sums = table.group_by("kind", "op", "module", "shapes").agg(
        pl.col("calls", "ns").sum(), pl.col("limit_ns").sum()
    )
    for row in sums.iter_rows(named=True):
        # What is advised for an optimizer is there already.
        if row["kind"] == "optimizer" and re.search(PATTERNS["fused_optimizer"], row["op"]):
            continue
        yield from find_slower_than(row["limit_ns"], row, row["kind"], rank_steps, is_compute=False)


def find_slower_than(
    limit_ns: float, row: dict[str, Any], kind: str, rank_steps: int, *, is_compute: bool
) -> Iterator[_SlowOperator]:
    """Yield the operator of a row if it takes longer than its limit lets good kernels take."""
    ns = row["ns"]
    achievable_ns = max(limit_ns / GOOD_SHARE_OF_LIMIT, row["calls"] * MIN_KERNEL_NS)
    if achievable_ns >= ns:
        return
    yield _SlowOperator(
        op=row["op"],
        module=row["module"],
        shapes=row["shapes"] or "",
        kind=kind,
        ns=ns / rank_steps,
        limit_ns=limit_ns / rank_steps,
        gain_ns=(ns - achievable_ns) / rank_steps,
        is_compute=is_compute,
        dtype=row.get("dtype"),
    )


def reason_of(op: str, kind: str, shapes: str, *, multiprocessors: int | None) -> str:
    """Return why an operator is slow, as far as its sizes show.

    The kind of operator if they do not.

    >>> reason_of("aten::mm", "product", "[[4097,4097],[4097,4097]]", multiprocessors=132)
    'misaligned'
    >>> reason_of("aten::add", "elementwise", "[[64,64],[64,64]]", multiprocessors=132)
    'elementwise'
    """
    dims = [shape for shape in parse_list(shapes) if _is_matrix(shape)]
    if kind == "attention" and dims:
        length = sorted(dims[0][1:3])[-1] if len(dims[0]) == 4 else 0
        return "short_sequence" if 0 < length <= MAX_SHORT_SEQUENCE else "attention"
    if kind == "convolution" and len(dims) > 1:
        # The backward's first input is the gradient of its output.
        return _reason_of_convolution(*dims[1:3] if op == CONVOLUTION_BACKWARD else dims[:2])
    experts = fused_experts(shapes)
    if kind == "experts" and experts is not None:
        return "few_tokens" if experts.tokens_per_expert <= MAX_SKINNY_SIZE else "experts"
    if kind != "product" or len(dims) < 2:
        return "product" if kind == "product" else kind
    rows, inner, columns = product_sizes(op, dims)
    tiles = -(-rows // TILE_SIZE) * -(-columns // TILE_SIZE) * prod(dims[0][:-2])
    sizes = (rows, inner, columns)
    # The number of rows, often that of tokens, decides where no row begins.
    is_misaligned = inner % ALIGNED_SIZE > 0 or columns % ALIGNED_SIZE > 0
    has_few_tiles = multiprocessors is not None and tiles < MIN_TILES_SHARE * multiprocessors
    cases = [  # the first that holds decides
        (is_misaligned, "misaligned"),
        (min(sizes) <= MAX_SKINNY_SIZE, "skinny"),
        (has_few_tiles, "few_tiles"),
        (True, "product"),
    ]
    return first_that_holds(cases)


def _is_matrix(shape: Any) -> bool:
    """Return whether an input is a tensor of two or more dimensions."""
    return is_shape(shape) and len(shape) > 1


def _reason_of_convolution(inputs: list[int], weight: list[int]) -> str:
    """Return why a convolution is slow, by its channels: the groups are its input's over its weight's."""
    is_misaligned = weight[0] % ALIGNED_SIZE > 0 or weight[1] % ALIGNED_SIZE > 0
    cases = [  # the first that holds decides
        (weight[1] == 1 < inputs[1], "depthwise"),
        (is_misaligned, "channels"),
        (True, "convolution"),
    ]
    return first_that_holds(cases)


def product_sizes(op: str, dims: Sequence[list[int]]) -> tuple[int, int, int]:
    """Return rows, inner size and columns of a product of the last two matrices among its inputs."""
    left_matrix = dims[-2]
    right_matrix = dims[-1]
    inner = left_matrix[-1]
    columns = right_matrix[0] if op == "aten::linear" else right_matrix[-1]
    rows = prod(left_matrix[:-1]) if len(right_matrix) == 2 else left_matrix[-2]
    return rows, inner, columns


def common_device(context: Context) -> str | None:
    """Return the name of the GPU, if all ranks have the same."""
    names = {source.devices[0] for source in context.analysis.sources if source.devices}
    return names.pop() if len(names) == 1 else None


def fewest_multiprocessors(context: Context) -> int | None:
    """Return the multiprocessors that each rank may use, the fewest of all ranks.

    None if unknown.
    """
    counts = [
        source.multiprocessors for source in context.analysis.sources if source.multiprocessors
    ]
    return min(counts, default=None)
