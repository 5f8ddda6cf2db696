"""Rates of matrix products: FLOP from recorded shapes over the union of their kernels' time, against the GPU's peak."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, group_rows
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import to_int64
from tracekit._util.shapes import is_shape, parse_list
from tracekit.classify.row_order import mask_of_rows
from tracekit.classify.rules import family_of, kernel_pattern
from tracekit.intervals import union
from tracekit.metrics.peaks import peak_tflop_s

PRODUCTS = pl.Schema(
    {
        "label": pl.String(),
        "module": pl.String(),
        "op": pl.String(),
        "kernel": pl.String(),  # family of the kernel, of products whose operator has no formula
        "shapes": pl.String(),
        "dtype": pl.String(),  # "bf16", "fp32", …; null where neither the trace nor the kernel's name gives it
        "calls": pl.Int64(),
        "flop": pl.Int64(),  # of all calls; null where it cannot be derived from the shapes
        "ns": pl.Int64(),  # union of the kernels' time
        "at_peak_ns": pl.Float64(),  # time of the same work at the GPU's peak; null where flop or peak is unknown
    }
)
"""One rank's matrix products, attentions and convolutions, by label, module, operator, kernel,
shapes and type."""

_TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("products.toml").read_text(encoding="utf-8")
)
"""Types of inputs, and operators by the formula of their FLOP."""
DTYPE_NAMES: Mapping[str, str] = _TABLES["dtypes"]
"""Short names of the types in which products compute, by their names in a recording."""
DTYPES_NARROW_TO_WIDE = ("fp4", "fp8", "int8", "bf16", "fp16", "fp32", "fp64")

OUTPUT_FIRST = frozenset(_TABLES["output_first"])
"""Products whose first input is the matrix that they write."""
TWO_IN_A_BYTE = frozenset(_TABLES["two_in_a_byte"])
"""Products whose matrices hold two numbers in a byte."""

MAX_UNCOUNTED_SHARE = 0.01
"""Share of product time without known FLOP above which utilisation is withheld: it would be too
low."""
NOT_MODEL_LABELS = ("recompute", "optimizer")
"""Labels of products outside the model's forward and backward: repeated ones, and those of an
optimizer."""
MAX_FLOP = 1 << 62
"""More work than any call or run does: shapes that imply it are damaged."""


class ProductTotals(msgspec.Struct, frozen=True):
    """Totals of one rank's products over a window.

    >>> ProductTotals(4_000_000, 4_000_000, product_ns=2_000, uncounted_ns=0, at_peak_ns=1_000.0, span_ns=4_000).tflop_s
    2.0
    """

    flop: int
    """FLOP of all products with known shapes."""
    model_flop: int
    """FLOP without ``NOT_MODEL_LABELS``."""
    product_ns: int
    """Union of all product kernels' time."""
    uncounted_ns: int
    """Sum of the times of product groups without known FLOP."""
    at_peak_ns: float | None
    """Time the model's FLOP would take at the GPU's peak; None where a peak or a type is
    unknown."""
    span_ns: int

    @property
    def tflop_s(self) -> float | None:
        """FLOP over the products' own time; None without shapes."""
        return (
            self.flop / self.product_ns / 1e3
            if self.flop and self.product_ns and self.counted
            else None
        )

    @property
    def counted(self) -> bool:
        """Whether nearly all product time has known FLOP."""
        return self.uncounted_ns <= MAX_UNCOUNTED_SHARE * max(self.product_ns, 1)

    @property
    def utilisation(self) -> float | None:
        """Model FLOP utilisation: time the model's FLOP would take at peak, over the span."""
        if self.at_peak_ns is None or not self.counted or not self.span_ns or not self.model_flop:
            return None
        return self.at_peak_ns / self.span_ns


def products(
    labelled: pl.DataFrame,
    *,
    device: str | None = None,
    multiprocessors: int | None = None,
    key: str | None = None,
    texts: CategoryColumns | None = None,
) -> tuple[pl.DataFrame, ProductTotals]:
    """Return one rank's products by group (``PRODUCTS``), and the rates of all of them together.

    Args:
        labelled: GPU events of one rank.
        device: Name of the GPU; None if unknown.
        multiprocessors: Multiprocessors that the process may use; None if all, or unknown.
        key: A further column of *labelled* to group by; the table then has it too.
        texts: Text columns of *labelled*, if they were converted already.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"id": 9, "kind": "kernel", "name": "gemm_bf16", "label": "forward", "op": "aten::mm", "op_id": 4,
    ...          "shapes": "[[1000,1000],[1000,1000]]", "start_ns": 0, "end_ns": 10_000}
    >>> table, rates = products(conform(pl.DataFrame([event]), LABELLED), device="NVIDIA H200")
    >>> table["flop"].to_list(), round(rates.tflop_s), rates.utilisation == 2e9 / 989.4e3 / 10_000
    ([2000000000], 200, True)

    """
    span_ns = 0
    if len(labelled):
        span_ns = int(labelled["end_ns"].to_numpy().max() - labelled["start_ns"].to_numpy().min())
    kernels = _ProductKernels.find(labelled, texts or CategoryColumns(labelled))
    if not len(kernels.rows):
        return PRODUCTS.to_frame(), ProductTotals(0, 0, 0, 0, None, span_ns)
    groups = _group_products(kernels, None if key is None else labelled[key])
    outputs = convolution_outputs(*convolutions_of(labelled))
    table = _add_flop_and_peak(groups, outputs, device, multiprocessors)
    is_counted = table["flop"].is_not_null()
    is_model = is_counted & ~table["label"].is_in(NOT_MODEL_LABELS)
    model_at_peak_ns = table["at_peak_ns"].filter(is_model)
    at_peak_ns = None
    if len(model_at_peak_ns) and not model_at_peak_ns.null_count():
        at_peak_ns = float(model_at_peak_ns.sum())
    rates = ProductTotals(
        flop=int(table["flop"].sum()),
        model_flop=int(table["flop"].filter(is_model).sum()),
        product_ns=union(kernels.start_ns, kernels.end_ns).total_ns,
        uncounted_ns=int(table["ns"].filter(~is_counted).sum()),
        at_peak_ns=at_peak_ns,
        span_ns=span_ns,
    )
    return table, rates


def describe_products(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return for every event whether it is a ``product``.

    For products ``op``, ``shapes`` and ``dtype``, else null.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"kind": "kernel", "name": "gemm_bf16", "op": "aten::mm", "shapes": "[[2,4],[4,8]]", "op_id": 1}
    >>> describe_products(conform(pl.DataFrame([event, {**event, "name": "add", "op": "aten::add"}]), LABELLED)).rows()
    [(True, 'aten::mm', '[[2,4],[4,8]]', 'bf16'), (False, None, None, None)]
    """
    kernels = _ProductKernels.find(labelled, CategoryColumns(labelled))
    columns = {"op": kernels.op, "shapes": kernels.shapes, "dtype": kernels.dtype}
    table = [pl.Series("product", mask_of_rows(len(labelled), kernels.rows))]
    for name, text in columns.items():
        table.append(text.spread(kernels.rows, len(labelled)).series(name, pl.String()))
    return pl.DataFrame(table)


def product_types(labelled: pl.DataFrame, texts: CategoryColumns) -> tuple[Bools, CategoryColumn]:
    """Return which events are products, and of these the type of their inputs; *texts* are their text columns."""
    kernels = _ProductKernels.find(labelled, texts)
    is_product = mask_of_rows(len(labelled), kernels.rows)
    return is_product, kernels.dtype.spread(kernels.rows, len(labelled))


class _ProductKernels(msgspec.Struct, frozen=True, eq=False):
    """Kernels that multiply matrices, as their operator or own name tells, and what else the operator launched."""

    rows: Ints
    """Rows of the labelled table."""
    main_rows: Ints
    """Rows of the longest kernel of each one's call, which stands for all of them."""
    label: CategoryColumn
    module: CategoryColumn
    op: CategoryColumn
    kernel: CategoryColumn
    shapes: CategoryColumn
    dtype: CategoryColumn
    """Type of the operator's recorded inputs, else from the kernel's name."""
    op_id: Ints
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def find(cls, labelled: pl.DataFrame, texts: CategoryColumns) -> _ProductKernels:
        """Return the product kernels of a labelled table; *texts* are its text columns.

        All kernels of a call get the label, module and type of its longest, so that helper kernels
        form no group.
        """
        has_formula = texts["op"].map(FORMULAS.__contains__)
        named = texts["name"].matches(kernel_pattern("product")) | texts["name"].matches(
            kernel_pattern("attention")
        )
        is_kernel = (labelled["kind"] == "kernel").to_numpy()
        # Other than kernels, only what certainly belongs to one product: one convolution's backward
        # is two.
        is_helper = has_formula & ~texts["op"].any_of(CONVOLUTION_BACKWARD)
        rows = np.flatnonzero(np.where(is_kernel, has_formula | named, is_helper))
        columns = ("name", "op", "label", "module", "shapes", "dtypes", "concrete")
        name, op, label, module, shapes, dtypes, concrete = (
            texts[column].take(rows) for column in columns
        )
        shapes = shapes.where(~(op.any_of(TRTLLM_EXPERTS) & concrete.map(_shares_experts)))
        start = labelled["start_ns"].to_numpy()[rows]
        end = labelled["end_ns"].to_numpy()[rows]
        op_id = to_int64(labelled["op_id"][rows])
        # A memset may take longer than a short kernel: it is never the longest kernel.
        main = _longest_kernel_of_call(op, op_id, np.where(is_kernel[rows], end - start, -1))
        dtype = _input_dtypes(dtypes, name).take(main)
        kernel = _families(name.take(main).where(~has_formula[rows]))
        return cls(
            rows,
            rows[main],
            label.take(main),
            module.take(main),
            op,
            kernel,
            shapes,
            dtype,
            op_id,
            start,
            end,
        )


def _shares_experts(concrete: str) -> bool:
    """Return whether other ranks hold experts of TensorRT-LLM's layer, so that shapes leave open how many tokens come.

    Of its concrete inputs the first six whole numbers in a row are size and rank of the tensor, the
    expert and the cluster parallelism.

    >>> _shares_experts('[null,null,15,null,1,0,8,3,1,0,false]'), _shares_experts('[null,1,0,1,0,1,0]')
    (True, False)
    """
    values = parse_list(concrete)
    for start in range(len(values) - 5):
        sizes = values[start : start + 6]
        if all(type(value) is int for value in sizes):
            return bool(sizes[2] > 1)
    return False


def _families(names: CategoryColumn) -> CategoryColumn:
    """Return the kernel family of each name; only names of some row are searched."""
    is_used = np.zeros(len(names.values), np.bool_)
    is_used[names.codes[names.present]] = True
    families = []
    for name, used in zip(names.values, is_used.tolist(), strict=True):
        families.append(family_of(name) if used else None)
    return names.replace(families)


def _longest_kernel_of_call(op: CategoryColumn, op_id: Ints, ns: Ints) -> Ints:
    """Return for each kernel the longest kernel of its operator call.

    The backward of a convolution computes two gradients in one call: each of its kernels stands for
    itself.
    """
    longest = np.arange(len(ns))
    rows = np.flatnonzero((op_id >= 0) & op.map(lambda name: name != CONVOLUTION_BACKWARD))
    # By call, then by time: the last kernel of each call is its longest; repeat it for every kernel
    # of the call.
    order = rows[np.lexsort((ns[rows], op_id[rows]))]
    last_of_call = np.flatnonzero(np.diff(op_id[order], append=-1))
    kernels_of_call = np.diff(last_of_call, prepend=-1)
    longest[order] = np.repeat(order[last_of_call], kernels_of_call)
    return longest


def _group_products(kernels: _ProductKernels, key: pl.Series | None) -> pl.DataFrame:
    """Return calls and busy time by label, module, operator, kernel, shapes and type, and by *key* if there is one."""
    texts = {
        "label": kernels.label,
        "module": kernels.module,
        "op": kernels.op,
        "kernel": kernels.kernel,
        "shapes": kernels.shapes,
        "dtype": kernels.dtype,
    }
    keys = [] if key is None else [key[kernels.main_rows]]
    group, first = group_rows(
        *(text.codes for text in texts.values()), *(to_int64(column) for column in keys)
    )
    # One row for each operator call of each group.
    first_of_call = group_rows(group, kernels.op_id)[1]
    return pl.DataFrame(
        [
            *(text.take(first).series(name, pl.String()) for name, text in texts.items()),
            pl.Series("calls", np.bincount(group[first_of_call], minlength=len(first))),
            pl.Series("ns", union(kernels.start_ns, kernels.end_ns, group).totals_ns(len(first))),
            *(column[first] for column in keys),
        ]
    )


def _add_flop_and_peak(
    groups: pl.DataFrame,
    outputs: dict[str, int],
    device: str | None,
    multiprocessors: int | None,
) -> pl.DataFrame:
    """Return ``PRODUCTS``: the groups with FLOP and with the time they would take at peak, longest first.

    *outputs* are the sizes of convolutions' outputs (``convolution_outputs``).
    """

    def group_flop(op: str | None, shapes: str | None, dtype: str | None, calls: int) -> int | None:
        each = None if op is None or shapes is None else flop(op, shapes, outputs=outputs)
        # A byte holds two numbers along the inner size.
        packed = 2 if dtype == "fp4" and op not in TWO_IN_A_BYTE else 1
        return each * packed * calls if each is not None and each * calls < MAX_FLOP else None

    flops = [
        group_flop(*row) for row in groups.select("op", "shapes", "dtype", "calls").iter_rows()
    ]
    peaks: dict[str, float | None] = {}
    if device:
        for dtype in groups["dtype"].unique().drop_nulls().to_list():
            peaks[dtype] = peak_tflop_s(device, dtype, multiprocessors=multiprocessors)
    tflop_s = pl.col("dtype").replace_strict(peaks, default=None, return_dtype=pl.Float64)
    at_peak_ns = pl.col("flop") / (tflop_s * 1e3)
    # A group that would be faster than the peak has a wrong type (for example TF32 recorded as
    # FP32): no claim.
    is_plausible = at_peak_ns <= pl.col("ns")
    further_keys = [name for name in groups.columns if name not in PRODUCTS]
    return (
        groups.with_columns(flop=pl.Series(flops, dtype=pl.Int64))
        .with_columns(at_peak_ns=pl.when(is_plausible).then(at_peak_ns))
        .select(*PRODUCTS, *further_keys)
        .sort(
            -pl.col("ns"),
            "label",
            "module",
            "op",
            "kernel",
            "shapes",
            "dtype",
            *further_keys,
            maintain_order=True,
        )
    )


def _input_dtypes(recorded: CategoryColumn, name: CategoryColumn) -> CategoryColumn:
    """Return each kernel's input type, from the recorded types of its operator's inputs or else from its name."""
    from_record = recorded.replace([_recorded_dtype(text) for text in recorded.values])
    # A column may share its values with a longer one: search only the names that occur.
    occurrences = np.bincount(name.codes + 1, minlength=len(name.values) + 1)[1:]
    dtypes_in_names: list[str | None] = [None] * len(name.values)
    for code in np.flatnonzero(occurrences).tolist():
        dtypes_in_names[code] = _dtype_in_name(name.values[code])
    from_name = name.replace(dtypes_in_names)
    # Products of 32-bit inputs may run on tensor cores in TF32: only the kernel's name tells.
    is_tf32 = from_record.any_of("fp32") & from_name.any_of("tf32")
    return from_record.where(~is_tf32).fill(from_name)


def _recorded_dtype(text: str) -> str | None:
    """Return the narrowest of the recorded types: a bias or scale may be wider than the operands of the product."""
    recorded = [dtype for dtype in parse_list(text) if isinstance(dtype, str)]
    dtypes = [DTYPE_NAMES[dtype] for dtype in recorded if dtype in DTYPE_NAMES]
    return min(dtypes, key=DTYPES_NARROW_TO_WIDE.index, default=None)


def _dtype_in_name(name: str) -> str | None:
    return next(
        (dtype for dtype, pattern in _TABLES["kernel_names"].items() if re.search(pattern, name)),
        None,
    )


# ---- Floating-point operations of an operator call, from its recorded input shapes.
#
# A product of two matrices costs two operations per multiply-add, counted in full: a causal mask
# does not make attention cheaper here. The backward of attention has five matrix products, its
# forward two.


Dims = list[list[int]]
Formula = Callable[[Dims], int | None]


def flop(op: str, shapes: str, *, outputs: dict[str, int] | None = None) -> int | None:
    """Return the floating-point operations of one call.

    None where the shapes do not determine them.

    Args:
        op: Name of the operator.
        shapes: Input shapes as a JSON list.
        outputs: Output sizes of convolutions (``convolution_outputs``): the shapes of a forward do
            not contain them.

    >>> flop("aten::mm", "[[1024,2048],[2048,6144]]")
    25769803776
    >>> flop("aten::addmm", "[[64],[8,16],[16,64],[],[]]"), flop("aten::relu", "[[8,16]]")
    (16384, None)

    """
    formula = FORMULAS.get(op)
    dims = _parse_shapes(shapes)
    if dims is None:
        return None
    if op in CONVOLUTIONS:
        output = (outputs or {}).get(f"{dims[0]}{dims[1]}") if len(dims) > 1 else None
        return None if output is None else 2 * output * prod(dims[1][1:])
    if formula is not None:
        operations = formula(dims)
        return operations if operations is None or op not in TWO_IN_A_BYTE else 2 * operations
    experts = fused_experts(shapes)
    return None if experts is None else experts.flop


def convolution_outputs(
    backward_shapes: Iterable[str], forwards: Iterable[tuple[str, str, str]] = ()
) -> dict[str, int]:
    """Return the output elements of convolutions by the sizes of input and weight.

    Sizes that are ambiguous are left out.

    Args:
        backward_shapes: Input shapes of their backwards, which have the gradient of the output.
        forwards: Operator, input shapes and concrete inputs of their forwards.

    >>> convolution_outputs(["[[8,64,56,56],[8,3,112,112],[64,3,7,7],[]]"])
    {'[8, 3, 112, 112][64, 3, 7, 7]': 1605632}
    >>> call = ("aten::cudnn_convolution", "[[8,3,112,112],[64,3,7,7]]", "[null,null,[3,3],[2,2],[1,1],1]")
    >>> convolution_outputs([], [call])
    {'[8, 3, 112, 112][64, 3, 7, 7]': 1605632}
    """
    sizes: dict[str, set[int]] = {}
    for text in backward_shapes:
        dims = _parse_shapes(text)
        if dims is not None and len(dims) > 2 and dims[0]:
            sizes.setdefault(f"{dims[1]}{dims[2]}", set()).add(prod(dims[0]))
    for op, text, concrete in forwards:
        dims = _parse_shapes(text)
        output = None if dims is None else _convolution_output(op, dims, parse_list(concrete))
        if dims is not None and output is not None:
            sizes.setdefault(f"{dims[0]}{dims[1]}", set()).add(output)
    return {key: next(iter(elements)) for key, elements in sizes.items() if len(elements) == 1}


def convolutions_of(
    table: pl.DataFrame,
) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return what ``convolution_outputs`` takes, from a table with ``op``, ``shapes`` and ``concrete``."""
    is_backward = pl.col("op") == CONVOLUTION_BACKWARD
    is_forward = pl.col("op").is_in(list(CONVOLUTION_INPUTS))
    columns = table.select(pl.col("op", "shapes", "concrete").cast(pl.String))
    backward = columns.filter(is_backward)["shapes"].drop_nulls().unique().to_list()
    return backward, columns.filter(is_forward).drop_nulls().unique().rows()


def _convolution_output(op: str, dims: Dims, concrete: list[Any]) -> int | None:
    """Return the output elements of a convolution's forward; None where its inputs do not tell them."""
    inputs = CONVOLUTION_INPUTS.get(op)
    if inputs is None or len(dims) < 2 or len(dims[0]) < 3 or len(dims[0]) != len(dims[1]):
        return None
    if len(concrete) <= max(inputs.values()):
        return None
    if "transposed" in inputs and concrete[inputs["transposed"]] is not False:
        return None
    count = len(dims[0]) - 2
    sides = []
    for name in ("stride", "padding", "dilation"):
        value = concrete[inputs[name]]
        if not isinstance(value, list) or len(value) not in (1, count):
            return None
        sides.append(value * count if len(value) == 1 else value)
    output = dims[0][0] * dims[1][0]
    for size, kernel, stride, padding, dilation in zip(
        dims[0][2:], dims[1][2:], *sides, strict=True
    ):
        if stride < 1:
            return None
        output *= max((size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1, 0)
    return output or None


def _parse_shapes(shapes: str) -> Dims | None:
    """Return the sizes of each input; empty for scalars and for anything that is not a size.

    None if there are none.
    """
    inputs = parse_list(shapes)
    if not inputs:
        return None
    sizes = []
    for dims in inputs:
        sizes.append(dims if is_shape(dims) else [])
    return sizes


def product_flop(left: int, right: int, *, transposed: bool = False) -> Formula:
    """Return the formula of a product of the inputs at *left* and *right*."""

    def formula(dims: Dims) -> int | None:
        if len(dims) <= max(left, right) or not dims[left] or not dims[right]:
            return None
        a = dims[left]
        b = dims[right]
        if len(b) == 1:  # a vector
            return 2 * prod(a) if a[-1] == b[0] else None
        inner, columns = (b[-1], b[-2]) if transposed else (b[-2], b[-1])
        return 2 * prod(a) * columns if a[-1] == inner else None

    return formula


def grouped_product_flop(dims: Dims) -> int | None:
    """Return the operations of a grouped product: each row of tokens is multiplied by one expert's matrix."""
    if len(dims) < 2 or not dims[0] or not dims[1]:
        return None
    a = dims[0]
    b = dims[1]
    if a[-1] != b[-2]:
        return None
    # Experts cut the columns, not the rows.
    rows = prod(a[1:]) if len(a) == 3 and len(b) == 2 else prod(a)
    return 2 * rows * b[-1]


def most_convolution_output(shapes: str) -> int | None:
    """Return the output elements that a convolution of these inputs has at most: stride 1, padded in full.

    The shapes of a forward do not tell its stride and padding. A transposed convolution has
    operators of its own.

    >>> most_convolution_output("[[8,3,30,30],[64,3,3,3]]")  # 32 × 32 for each of 8 images and 64 channels
    524288
    """
    dims = _parse_shapes(shapes)
    if dims is None or len(dims) < 2 or len(dims[0]) < 3 or len(dims[0]) != len(dims[1]):
        return None
    images = dims[0][0]
    channels = dims[1][0]
    sizes = zip(dims[0][2:], dims[1][2:], strict=True)
    return images * channels * prod(size + kernel - 1 for size, kernel in sizes)


class FusedExperts(msgspec.Struct, frozen=True):
    """Sizes of a layer's experts that run in one call."""

    tokens: int
    width: int
    experts: int
    experts_per_token: int
    weights_per_expert: int

    @property
    def flop(self) -> int:
        """Operations of one call: each token passes both matrices of its experts."""
        return 2 * self.tokens * self.experts_per_token * self.weights_per_expert

    @property
    def tokens_per_expert(self) -> float:
        """Mean over all experts."""
        return self.tokens * self.experts_per_token / self.experts


def fused_experts(shapes: str) -> FusedExperts | None:
    """Return the sizes of experts in one call, by the shapes alone: they fit no other operator.

    The inputs are tokens × width, for each expert a matrix from the width and one back to it, and a
    row for each token with its experts. A map of the experts that other ranks hold, longer than the
    list of those that are here, leaves open how many tokens come: None.

    >>> experts = fused_experts("[[4,8],[16,12,8],[16,8,6],[4,2]]")
    >>> experts.weights_per_expert, experts.flop, experts.tokens_per_expert
    (144, 2304, 0.5)
    """
    dims = _parse_shapes(shapes)
    if dims is None or len(dims[0]) != 2:
        return None
    of_experts = [size for size in dims if len(size) == 3]
    if len(of_experts) != 2:
        return None
    tokens, width = dims[0]
    into, back = of_experts
    per_token = [size[1] for size in dims[1:] if len(size) == 2 and size[0] == tokens]
    if any(len(size) == 1 and size[0] > into[0] and size[0] % into[0] == 0 for size in dims):
        return None
    is_gated = into[1] == 2 * back[2]
    fits = into[0] == back[0] and into[2] == width == back[1] and (is_gated or into[1] == back[2])
    if not fits or not per_token or not 0 < per_token[0] <= into[0]:
        return None
    return FusedExperts(
        tokens=tokens,
        width=width,
        experts=into[0],
        experts_per_token=per_token[0],
        weights_per_expert=prod(into[1:]) + prod(back[1:]),
    )


WEIGHTS_IN_A_NUMBER = (8, 4)
"""Weights of 4 and of 8 bits in a 32-bit number."""


def _packed_weights(dims: Dims) -> int | None:
    """Return the operations of a product with packed weights.

    The columns of its result are the last size of an input (the scales) with which the packed
    weights hold as many numbers as the matrix has.

    >>> _packed_weights([[16, 512], [], [32, 2048], [4, 1024]])  # 16 × 512 times 512 × 1024, in 4 bits
    16777216
    """
    if not dims or len(dims[0]) != 2:
        return None
    rows, inner = dims[0]
    others = [size for size in dims[1:] if len(size) == 2]
    fitting: set[int] = set()
    for weights in others:
        for count in WEIGHTS_IN_A_NUMBER:
            of_matrix = prod(weights) * count
            fitting.update(size[1] for size in others if size[1] * inner == of_matrix)
    return 2 * rows * inner * fitting.pop() if len(fitting) == 1 else None


def attention_flop(first: int, *, heads: int, backward: bool = False) -> Formula:
    """Return the formula of attention whose query is input *first*, with its heads in dimension *heads*."""

    def formula(dims: Dims) -> int | None:
        if len(dims) < first + 3 or any(len(size) != 4 for size in dims[first : first + 3]):
            return None  # packed sequences of different lengths: their sizes are values, not shapes
        query, key, value = dims[first : first + 3]
        length = 3 - heads  # dimensions 1 and 2 are heads and sequence, in either order
        pairs = query[0] * query[heads] * query[length] * key[length]
        return 2 * pairs * (3 * query[3] + 2 * value[3] if backward else query[3] + value[3])

    return formula


def convolution_backward_flop(dims: Dims) -> int | None:
    """Return the operations of one of the two gradients: each costs as much as the forward."""
    if len(dims) < 3 or not dims[0] or len(dims[2]) < 3:
        return None
    return 2 * prod(dims[0]) * prod(dims[2][1:])


TRTLLM_EXPERTS = "trtllm::fused_moe"
CONVOLUTIONS: list[str] = _TABLES["convolutions"]
CONVOLUTION_INPUTS: dict[str, dict[str, int]] = _TABLES["convolution_inputs"]
CONVOLUTION_BACKWARD = "aten::convolution_backward"


def _formulas() -> dict[str, Formula | None]:
    """Return the formula of each operator in the tables."""
    formulas: dict[str, Formula | None] = {}
    for op, inputs in _TABLES["products"].items():
        formulas[op] = product_flop(*inputs)
    for op, inputs in _TABLES["transposed_products"].items():
        formulas[op] = product_flop(*inputs, transposed=True)
    formulas |= dict.fromkeys(_TABLES["grouped"], grouped_product_flop)
    formulas |= dict.fromkeys(_TABLES["packed_weights"], _packed_weights)
    for heads, pairs in _TABLES["attention"].items():
        for forward_op, backward_op in pairs:
            formulas[forward_op] = attention_flop(0, heads=int(heads))
            formulas[backward_op] = attention_flop(1, heads=int(heads), backward=True)
    formulas |= dict.fromkeys(CONVOLUTIONS)
    formulas |= dict.fromkeys(_TABLES["fused_experts"])
    formulas[CONVOLUTION_BACKWARD] = convolution_backward_flop
    return formulas


FORMULAS = _formulas()
"""Formula of each operator; None for the forward of a convolution, which needs its output size as
well, and for fused experts, which are known by their shapes."""
