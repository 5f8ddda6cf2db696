"""Operators by label and by the sizes, types and strides of what they were given, per step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.product_kernels import DTYPE_NAMES

OPERATOR_TIMES = pl.Schema(
    {
        "label": pl.String(),
        "op": pl.String(),
        "inputs": pl.String(),
        "largest": pl.String(),
        "calls": pl.Float64(),
        "kernels": pl.Float64(),
        "ns": pl.Float64(),
    }
)
"""Operators per step: their calls, GPU events, and the sum (not the union) of the durations of these.
``inputs`` and ``largest`` (the sizes of the largest tensor) are null where inputs were not recorded, and
of those that are summed because they take little time; ``op`` is null of work whose operator was not recorded."""
MAX_OPERATORS_WITH_INPUTS = 64
"""Operators of a rank that are listed by their inputs, the longest; the others are summed by operator."""
MAX_INPUT_LETTERS = 300
"""Letters kept of the words for an operator's inputs."""
_KEYS = ("label", "op", "inputs", "largest")
_FURTHER_TYPES = {
    "bool": "bool",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "short": "int16",
    "unsigned char": "uint8",
}
"""Short names of types that no product has."""


def operator_table(sites: pl.DataFrame, *, steps: int) -> pl.DataFrame:
    """Return the ``OPERATOR_TIMES`` of one rank from its ``metrics.sites.SITES``, the means over its steps.

    >>> from tracekit.metrics.sites import SITES
    >>> from tracekit.schema import conform
    >>> site = {"label": "forward", "op": "aten::mul", "shapes": "[[4,8]]", "calls": 2, "launches": 2, "ns": 18}
    >>> operator_table(conform(pl.DataFrame([site]), SITES), steps=2).rows()
    [('forward', 'aten::mul', '4×8', '4 × 8', 1.0, 1.0, 9.0)]
    """
    keys = ("label", "op", "shapes", "dtypes", "strides")
    work = (
        sites.group_by(keys, maintain_order=True)
        .agg(pl.sum("calls", "launches", "ns"))
        .sort("ns", descending=True, maintain_order=True)
    )
    longest = work.head(MAX_OPERATORS_WITH_INPUTS)
    words = []
    for shapes, dtypes, strides in longest.select("shapes", "dtypes", "strides").iter_rows():
        words.append((input_words(shapes, dtypes, strides), largest_tensor(shapes)))
    named = pl.DataFrame(
        words, schema=dict.fromkeys(("inputs", "largest"), pl.String), orient="row"
    )
    table = pl.concat(
        [pl.concat([longest, named], how="horizontal"), work[MAX_OPERATORS_WITH_INPUTS:]],
        how="diagonal",
    )
    per_step = table.select(
        *_KEYS, *(pl.col(name) / steps for name in ("calls", "launches", "ns"))
    ).rename({"launches": "kernels"})
    return _summed([per_step.cast(OPERATOR_TIMES)], ranks=1)


def mean_operators(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the mean of the ranks' ``OPERATOR_TIMES``, most time first."""
    return _summed(tables, ranks=len(tables))


def _summed(tables: Sequence[pl.DataFrame], *, ranks: int) -> pl.DataFrame:
    """Return the sums of equal rows over *ranks*, most time first."""
    # In a fixed order, so that the sums of fractions do not depend on which worker finished first.
    grouped = pl.concat(tables).group_by(_KEYS, maintain_order=True)
    sums = grouped.agg(pl.sum("calls", "kernels", "ns") / ranks)
    return sums.sort("ns", *_KEYS, descending=[True, *[False] * len(_KEYS)], nulls_last=True)


def input_words(shapes: str | None, dtypes: str | None, strides: str | None) -> str | None:
    """Return the sizes and types of an operator's tensors, and how those lie in memory that are not contiguous.

    None if sizes were not recorded, or if it has no tensor.

    >>> input_words("[[8,4],[4,2],[]]", '["c10::BFloat16","float","Scalar"]', "[[4,1],[1,4],[]]")
    '8×4 bf16; 4×2 fp32, transposed'
    >>> input_words("[[[8,4],[2]],[]]", '["TensorList",""]', "[[[4,1],[1]],[]]")
    '2 tensors, the largest 8×4'
    >>> input_words("[[2,3,4,4]]", None, "[[48,1,12,3]]"), input_words("[[],[]]", None, None)
    ('2×3×4×4, channels last', None)
    """
    sizes = parse_list(shapes or "")
    types = parse_list(dtypes or "")
    steps = parse_list(strides or "")
    words = []
    for i, size in enumerate(sizes):
        dtype = types[i] if i < len(types) else ""
        stride = steps[i] if i < len(steps) else []
        words.append(_words_of_input(size, dtype, stride))
    text = "; ".join(word for word in words if word)
    if len(text) > MAX_INPUT_LETTERS:
        text = f"{text[: MAX_INPUT_LETTERS - 1]}…"
    return text or None


def _words_of_input(size: Any, dtype: Any, stride: Any) -> str:
    """Return one input in words; empty if it is no tensor and no list of tensors."""
    if _is_tensor_list(size):
        largest = max(size, key=prod)
        if len(size) > 1:
            return f"{len(size)} tensors, the largest {_compact(largest)}"
        size = largest
        stride = stride[0] if isinstance(stride, list) and stride else []
        dtype = ""
    if not size or not is_shape(size):
        return ""
    words = _compact(size)
    if isinstance(dtype, str) and dtype:
        bare_type = dtype.removeprefix("c10::")
        words += f" {DTYPE_NAMES.get(dtype) or _FURTHER_TYPES.get(dtype) or bare_type}"
    layout = _layout_words(size, stride)
    return f"{words}, {layout}" if layout else words


def largest_tensor(shapes: str | None) -> str | None:
    """Return the sizes of the largest of an operator's tensors; None if it has none.

    >>> largest_tensor("[[8],[],[[4000000,64],[64]]]"), largest_tensor(None)
    ('4,000,000 × 64', None)
    """
    tensors = []
    for size in parse_list(shapes or ""):
        if _is_tensor_list(size):
            tensors += size
        elif size and is_shape(size):
            tensors.append(size)
    return " × ".join(f"{n:,}" for n in max(tensors, key=prod)) if tensors else None


def _compact(size: Sequence[int]) -> str:
    """Return the sizes of a tensor as they stand in a table."""
    return "×".join(map(str, size))


def _is_tensor_list(size: Any) -> bool:
    """Return whether the recorded size of an input is that of a list of tensors."""
    return isinstance(size, list) and bool(size) and all(item and is_shape(item) for item in size)


def _layout_words(size: list[int], stride: Any) -> str:
    """Return how a tensor lies in memory; empty if it is contiguous, or if that is not known."""
    if not isinstance(stride, list) or len(stride) != len(size) or min(size) == 0:
        return ""
    axes = list(range(len(size)))
    orders = {
        "": axes,
        "channels last": [*axes[:1], *axes[2:], *axes[1:2]] if len(size) in (4, 5) else axes,
        "transposed": [*axes[:-2], *reversed(axes[-2:])],
    }
    for words, order in orders.items():
        if _is_dense(size, stride, order):
            return words
    return f"strides {', '.join(map(str, stride))}"


def _is_dense(size: list[int], stride: list[Any], order: list[int]) -> bool:
    """Return whether a tensor's elements follow each other with its axes in this *order*, the slowest first."""
    lengths = [size[axis] for axis in reversed(order)]
    expected = accumulate(lengths[:-1], mul, initial=1)
    # The stride of an axis of length one moves nowhere.
    return all(
        size[axis] == 1 or stride[axis] == step
        for axis, step in zip(reversed(order), expected, strict=True)
    )
