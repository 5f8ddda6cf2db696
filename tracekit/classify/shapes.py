"""What recorded shapes say of a matrix product: which of the forward's sizes it contracts.

A linear layer's forward is rows × inner × columns, its rows the tokens. The input's gradient contracts the columns, the
weight's the rows.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools, find_sorted, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit._util.shapes import is_shape, parse_list
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd
from tracekit.classify.ranges import Ranges


class Dims(NamedTuple):
    """A product's sizes: rows × inner × columns; 0 where unknown."""

    rows: Ints
    inner: Ints
    columns: Ints

    @classmethod
    def of(cls, ranges: Ranges, calls: Ints) -> Dims:
        """Read the recorded input shapes; every distinct one is parsed once."""
        shapes = ranges.text("shapes", calls)
        linear = ranges.name.take(calls).any_of("aten::linear")
        parsed = np.array([*(_product(v) for v in shapes.values), (0, 0, 0, 0)], np.int64).reshape(-1, 4)
        rows, inner, columns, transposed = shapes.look_up(parsed).T
        return cls(rows, inner, np.where(linear, transposed, columns))

    @property
    def known(self) -> Bools:
        """Calls whose shapes were recorded."""
        return self.inner > 0


def _product(shapes: str) -> tuple[int, int, int, int]:
    """Rows, inner, columns, and columns if the second operand is stored transposed (aten::linear).

    >>> _product("[[1024,2048],[2048,6144]]"), _product("[[64],[8,16],[16,64],[]]")
    ((1024, 2048, 6144, 2048), (8, 16, 64, 16))
    """
    dims = [d for d in parse_list(shapes) if is_shape(d)]
    matrices = [d for d in dims if len(d) >= 2]
    if len(matrices) < 2:
        return 0, 0, 0, 0
    # addmm's first operand is what is added: the product is of the last two that fit.
    left, right = next(((a, b) for a, b in pairwise(matrices) if a[-1] == b[-2]), (matrices[0], matrices[1]))
    if left[-1] not in (right[-2], right[-1]):
        return 0, 0, 0, 0
    batch = len(right) > 2
    rows = left[-2] if batch else prod(left[:-1])
    return rows, left[-1], right[-1], right[-2]


def _forward_sizes(ranges: Ranges, autograd: Autograd, calls: Ints, size: Dims, node: Ints) -> Dims:
    """For every call inside a node, the sizes of the one forward product the node belongs to."""
    made = autograd.differentiable[calls]
    forward = np.flatnonzero((made >= 0) & (autograd.node_of[calls] < 0) & size.known)
    sequence = np.where(made >= 0, ranges.sequence[made], -1)
    numbers, first, count = np.unique(sequence[forward], return_index=True, return_counts=True)
    only = np.append(np.where(count == 1, forward[first], -1), -1)
    asked = np.where(node >= 0, autograd.node_sequence[node], -2)
    forward_call = only[find_sorted(asked, numbers)]
    return Dims(*(take_or_missing(values, forward_call, missing=0) for values in (size.rows, size.inner, size.columns)))


def roles_by_shape(ranges: Ranges, autograd: Autograd, calls: Ints, node: Ints, *, rerun: Bools) -> CategoryColumn:
    """Contracting the forward's rows is wgrad, its columns dgrad; with no forward at hand, the weights' shapes tell."""
    in_node, size = node >= 0, Dims.of(ranges, calls)
    original = _forward_sizes(ranges, autograd, calls, size, node)
    paired = original.known & size.known
    tokens, wide = size.inner == original.rows, size.inner == original.columns
    weights = _weight_shapes(ranges, autograd, calls, size)
    gives = size.known & np.isin(_pair(size.rows, size.columns), weights)
    takes = size.known & np.isin(_pair(size.inner, size.columns), weights)
    ahead = (autograd.differentiable[calls] >= 0) & ~in_node & ~rerun & size.known
    outside = ~in_node & (autograd.differentiable[calls] < 0)
    free = size.known & ~original.known & autograd.active & ~rerun
    counts = np.unique(size.rows[ahead])  # how many tokens products have for rows
    contracts, keeps = np.isin(size.inner, counts), np.isin(size.rows, counts)
    return CategoryColumn.choose(
        len(calls),
        [
            ("wgrad", paired & tokens & ~wide),
            ("dgrad", paired & wide & ~tokens),
            ("wgrad", free & gives & ~takes & contracts),
            ("dgrad", free & takes & ~gives & keeps & in_node),
            ("wgrad", free & gives & contracts & ~keeps & (in_node | outside)),
            ("dgrad", free & takes & keeps & ~contracts & in_node),
        ],
    )


def _pair(one: Ints, other: Ints) -> Ints:
    return np.minimum(one, other) * np.int64(1 << 31) + np.maximum(one, other)


def _weight_shapes(ranges: Ranges, autograd: Autograd, calls: Ints, size: Dims) -> Ints:
    forward = (autograd.differentiable[calls] >= 0) & (autograd.node_of[calls] < 0) & size.known
    seen = _pair(size.inner, size.columns)[forward]
    shapes = ranges.text("shapes", ranges.accumulating).values
    matrices = [d for d in (_first_shape(s) for s in shapes) if len(d) >= 2]
    sides = np.array([d[-2:] for d in matrices], np.int64).reshape(-1, 2)
    return np.unique(np.concatenate([seen, _pair(sides[:, 0], sides[:, 1])]))


def _first_shape(shapes: str) -> list[int]:
    first = next(iter(parse_list(shapes)), None)
    return list(first) if first is not None and is_shape(first) else []
