"""Floating-point operations of an operator call, from its recorded input shapes.

A product of two matrices costs two operations per multiply-add, counted in full: a causal mask
does not make attention cheaper here. The backward of attention has five matrix products, its
forward two.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracekit._util.shapes import is_shape, parse_list

PRODUCT_TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("products.toml").read_text(encoding="utf-8")
)
"""Types of inputs, and operators by the formula of their FLOP."""
OUTPUT_FIRST = frozenset(PRODUCT_TABLES["output_first"])
"""Products whose first input is the matrix that they write."""
TWO_IN_A_BYTE = frozenset(PRODUCT_TABLES["two_in_a_byte"])
"""Products whose matrices hold two numbers in a byte."""

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


def shares_experts(concrete: str) -> bool:
    """Return whether other ranks hold experts of TensorRT-LLM's layer, so that shapes leave open how many tokens come.

    Of its concrete inputs the first six whole numbers in a row are size and rank of the tensor, the
    expert and the cluster parallelism.

    >>> shares_experts('[null,null,15,null,1,0,8,3,1,0,false]'), shares_experts('[null,1,0,1,0,1,0]')
    (True, False)
    """
    values = parse_list(concrete)
    for start in range(len(values) - 5):
        sizes = values[start : start + 6]
        if all(type(value) is int for value in sizes):
            return bool(sizes[2] > 1)
    return False


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
CONVOLUTIONS: list[str] = PRODUCT_TABLES["convolutions"]
CONVOLUTION_INPUTS: dict[str, dict[str, int]] = PRODUCT_TABLES["convolution_inputs"]
CONVOLUTION_BACKWARD = "aten::convolution_backward"


def _formulas() -> dict[str, Formula | None]:
    """Return the formula of each operator in the tables."""
    formulas: dict[str, Formula | None] = {}
    for op, inputs in PRODUCT_TABLES["products"].items():
        formulas[op] = product_flop(*inputs)
    for op, inputs in PRODUCT_TABLES["transposed_products"].items():
        formulas[op] = product_flop(*inputs, transposed=True)
    formulas |= dict.fromkeys(PRODUCT_TABLES["grouped"], grouped_product_flop)
    formulas |= dict.fromkeys(PRODUCT_TABLES["packed_weights"], _packed_weights)
    for heads, pairs in PRODUCT_TABLES["attention"].items():
        for forward_op, backward_op in pairs:
            formulas[forward_op] = attention_flop(0, heads=int(heads))
            formulas[backward_op] = attention_flop(1, heads=int(heads), backward=True)
    formulas |= dict.fromkeys(CONVOLUTIONS)
    formulas |= dict.fromkeys(PRODUCT_TABLES["fused_experts"])
    formulas[CONVOLUTION_BACKWARD] = convolution_backward_flop
    return formulas


FORMULAS = _formulas()
"""Formula of each operator; None for the forward of a convolution, which needs its output size as
well, and for fused experts, which are known by their shapes."""
