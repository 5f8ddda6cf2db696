"""Floating-point operations of an operator call, from its recorded input shapes.

A product of two matrices costs two operations per multiply-add, counted in full: a causal mask does not make attention
cheaper here. The backward of attention has five matrix products, its forward two.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tracekit._util.shapes import is_shape, parse_list

Dims = list[list[int]]
Formula = Callable[[Dims], int | None]


def flop(op: str, shapes: str, *, outputs: dict[str, int] | None = None) -> int | None:
    """Return the floating-point operations of one call; None where the shapes do not determine them.

    Args:
        op: Name of the operator.
        shapes: Input shapes as a JSON list.
        outputs: Output sizes of convolutions (``convolution_outputs``): the shapes of a forward do not contain them.

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
        output = (outputs or {}).get(convolution_key(dims[0], dims[1])) if len(dims) > 1 else None
        return None if output is None else 2 * output * prod(dims[1][1:])
    return formula(dims) if formula is not None else None


def convolution_key(inputs: list[int], weight: list[int]) -> str:
    """Return the key of a convolution's sizes, the same in forward and backward."""
    return f"{inputs}{weight}"


def convolution_outputs(shapes: list[str]) -> dict[str, int]:
    """Return the output elements of convolutions by ``convolution_key``, from the shapes of their backwards.

    Sizes that are ambiguous are left out.

    >>> convolution_outputs(["[[8,64,56,56],[8,3,112,112],[64,3,7,7],[]]"])
    {'[8, 3, 112, 112][64, 3, 7, 7]': 1605632}
    """
    sizes: dict[str, set[int]] = {}
    for text in shapes:
        dims = _parse_shapes(text)
        if dims is not None and len(dims) > 2 and dims[0]:
            sizes.setdefault(convolution_key(dims[1], dims[2]), set()).add(prod(dims[0]))
    return {key: next(iter(elements)) for key, elements in sizes.items() if len(elements) == 1}


def _parse_shapes(shapes: str) -> Dims | None:
    """Return the sizes of each input; empty for scalars and for anything that is not a size. None if there are none."""
    inputs = parse_list(shapes)
    return [dims if is_shape(dims) else [] for dims in inputs] if inputs else None


def _product(left: int, right: int, *, transposed: bool = False) -> Formula:
    """Return the formula of a product of the inputs at *left* and *right*."""

    def formula(dims: Dims) -> int | None:
        if len(dims) <= max(left, right) or not dims[left] or not dims[right]:
            return None
        a, b = dims[left], dims[right]
        if len(b) == 1:  # a vector
            return 2 * prod(a) if a[-1] == b[0] else None
        inner, columns = (b[-1], b[-2]) if transposed else (b[-2], b[-1])
        return 2 * prod(a) * columns if a[-1] == inner else None

    return formula


def _grouped(dims: Dims) -> int | None:
    """Return the operations of a grouped product: each row of tokens is multiplied by one expert's matrix."""
    if len(dims) < 2 or not dims[0] or not dims[1]:
        return None
    a, b = dims[0], dims[1]
    if a[-1] != b[-2]:
        return None
    rows = prod(a[1:]) if len(a) == 3 and len(b) == 2 else prod(a)  # experts cut the columns, not the rows
    return 2 * rows * b[-1]


def _attention(first: int, *, heads: int, backward: bool = False) -> Formula:
    """Return the formula of attention whose query is input *first*, with its heads in dimension *heads*."""

    def formula(dims: Dims) -> int | None:
        if len(dims) < first + 3 or any(len(size) != 4 for size in dims[first : first + 3]):
            return None  # packed sequences of different lengths: their sizes are values, not shapes
        query, key, value = dims[first : first + 3]
        length = 3 - heads  # dimensions 1 and 2 are heads and sequence, in either order
        pairs = query[0] * query[heads] * query[length] * key[length]
        return 2 * pairs * (3 * query[3] + 2 * value[3] if backward else query[3] + value[3])

    return formula


def _convolution_backward(dims: Dims) -> int | None:
    """Return the operations of one of the two gradients: each costs as much as the forward."""
    if len(dims) < 3 or not dims[0] or len(dims[2]) < 3:
        return None
    return 2 * prod(dims[0]) * prod(dims[2][1:])


CONVOLUTIONS = (
    "aten::convolution",
    "aten::_convolution",
    "aten::cudnn_convolution",
    "aten::miopen_convolution",
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "aten::slow_conv3d_forward",
    "aten::_slow_conv2d_forward",
)
CONVOLUTION_BACKWARD = "aten::convolution_backward"

_ATTENTIONS = (
    ("aten::_flash_attention_*", "forward", "backward", 2),
    ("aten::_efficient_attention_*", "forward", "backward", 2),
    ("aten::_cudnn_attention_*", "forward", "backward", 1),
    ("aten::_scaled_dot_product_flash_attention*", "", "_backward", 1),
    ("aten::_scaled_dot_product_efficient_attention*", "", "_backward", 1),
    ("aten::_scaled_dot_product_cudnn_attention*", "", "_backward", 1),
    ("flash_attn::_flash_attn_*", "forward", "backward", 2),
    ("flash_attn_3::*", "fwd", "bwd", 2),
    ("aiter::mha_*", "fwd", "bwd", 2),
)
"""Operators of attention: the name, what stands for the star in forward and backward, and the dimension of heads. The
backward has the gradient of the output before query, key and value."""

FORMULAS: dict[str, Formula | None] = {
    "aten::mm": _product(0, 1),
    "aten::addmm": _product(1, 2),
    "aten::_addmm_activation": _product(1, 2),
    "aten::mv": _product(0, 1),
    "aten::addmv": _product(1, 2),
    "aten::bmm": _product(0, 1),
    "aten::baddbmm": _product(1, 2),
    "aten::addbmm": _product(1, 2),
    "aten::linear": _product(0, 1, transposed=True),
    "aten::_scaled_mm": _product(0, 1),
    "aten::_scaled_mm_v2": _product(0, 1),
    "aten::_int_mm": _product(0, 1),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm_v2": _grouped,
    **{
        name.replace("*", way): _attention(int(way == backward), heads=heads, backward=way == backward)
        for name, forward, backward, heads in _ATTENTIONS
        for way in (forward, backward)
    },
    **dict.fromkeys(CONVOLUTIONS),
    CONVOLUTION_BACKWARD: _convolution_backward,
}
"""Formula of each operator; None for the forward of a convolution, which needs its output size as well."""
