"""Batched products: two activations have two input gradients, an activation and a weight have one of each.

Attention multiplies activations with ``bmm``, experts multiply theirs with a weight. What tells them apart is where
the gradient goes: a weight's is taken up by ``AccumulateGrad``.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit._util.shapes import MAX_ELEMENTS, is_shape, parse_list
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd
from tracekit.classify.ranges import Ranges
from tracekit.classify.tallies import places

_CALLS = r"^aten::(bmm|baddbmm)$"
BATCHED = r"^(Bmm|Baddbmm)Backward"
"""Nodes of batched products."""
_PASSES_ON = (
    r"^(T|Transpose|Permute|View|UnsafeView|Expand|Reshape|ReshapeAlias|Squeeze|Unsqueeze|ToCopy|Alias|Clone)Backward"
)
"""Nodes that hand a gradient on in another shape or type."""
_NONE, _UNKNOWN = 0, -1


def batched_roles(ranges: Ranges, autograd: Autograd, calls: Ints, node: Ints) -> tuple[CategoryColumn, Bools]:
    """Roles of the products in batched products' backward, and which calls those are; null where nothing tells.

    A node that no ``AccumulateGrad`` follows has no weight. Of one that feeds a parameter, the product whose result is
    as large as the parameter is the weight's; where sizes do not tell, that of the second operand is.
    """
    inside = ranges.called(calls, _CALLS) & autograd.names.take(node).matches(BATCHED)
    rows = np.flatnonzero(inside)
    if not len(rows):
        return CategoryColumn.constant(None, len(calls)), inside
    fed = _parameter_sizes(ranges, autograd)[node[rows]]
    size, nodes = _result_sizes(ranges, calls[rows]), node[rows]
    fits = (size == fed) & (fed > 0)
    place, count = places(nodes)
    fitting = np.bincount(nodes, weights=fits, minlength=len(ranges) + 1)[nodes]
    second = np.where(autograd.names.take(nodes).matches(r"^Bmm"), place == 0, place == 1)  # as its formula runs them
    weight = np.where(fitting == 1, fits, second & (count == 2))
    certain = (fitting == 1) | ((count == 2) & ((fitting == 2) | (fed == _UNKNOWN) | (size < 0)))
    wgrad, dgrad = np.zeros(len(calls), np.bool_), np.zeros(len(calls), np.bool_)
    wgrad[rows] = certain & weight & (fed != _NONE)
    dgrad[rows] = (certain & ~weight) | (fed == _NONE)
    return CategoryColumn.choose(len(calls), [("wgrad", wgrad), ("dgrad", dgrad)]), inside


def _result_sizes(ranges: Ranges, calls: Ints) -> Ints:
    """How many numbers each call's result holds; -1 where unknown."""
    shapes = ranges.text("shapes", calls)
    return shapes.look_up(np.array([*(_result_size(v) for v in shapes.values), -1], np.int64))


def _result_size(shapes: str) -> int:
    """Batch × rows × columns of a batched product, from its operands; -1 where they do not fit each other.

    >>> [_result_size(v) for v in ("[[32,512,64],[32,64,128]]", "[[4,8,2],[4,8,3],[4,3,2],[],[]]", "[[4]]")]
    [2097152, 64, -1]
    """
    operands = [shape for shape in _shapes(shapes) if len(shape) == 3][-2:]
    if len(operands) < 2 or operands[0][2] != operands[1][1]:
        return -1
    return min(operands[0][0] * operands[0][1] * operands[1][2], MAX_ELEMENTS)


def _shapes(text: str) -> list[list[int]]:
    return [d for d in parse_list(text) if is_shape(d)]


def feeding(ranges: Ranges, autograd: Autograd) -> CategoryColumn:
    """``parameter`` for GPU events of nodes right after which a parameter's gradient is accumulated.

    Nodes that hand gradients on may be of different branches, so here none may stand between.
    """
    rows = autograd.rows
    accumulates = autograd.row_names.any_of("AccumulateGrad")
    direct = np.zeros(len(ranges) + 1, np.bool_)
    direct[rows[:-1]] = accumulates[1:] & (ranges.thread[rows[1:]] == ranges.thread[rows[:-1]])
    feeds = direct[autograd.node_row]
    return CategoryColumn.choose(len(feeds), [("parameter", feeds & (autograd.node_row >= 0))])


def _parameter_sizes(ranges: Ranges, autograd: Autograd) -> Ints:
    """Size of the parameter that each node feeds: 0 where it feeds none, -1 where the file does not say how large.

    A gradient is accumulated as soon as it is there, so what accumulates right after a node, with nothing between but
    nodes that hand gradients on, is what the node gave.
    """
    rows = autograd.rows
    names = autograd.row_names
    place = np.where(names.matches(_PASSES_ON), len(rows), np.arange(len(rows)))
    following = np.append(np.minimum.accumulate(place[::-1])[::-1][1:], len(rows))
    accumulates = np.append(names.any_of("AccumulateGrad"), False)
    thread = np.append(ranges.thread[rows], -1)
    fed = accumulates[following] & (thread[following] == ranges.thread[rows])
    sizes = np.append(_accumulated(ranges, rows), _UNKNOWN)
    out = np.full(len(ranges), _NONE, np.int64)
    out[rows] = np.where(fed, sizes[following], _NONE)
    return out


def _accumulated(ranges: Ranges, nodes: Ints) -> Ints:
    """Size of the first operand of each node, which for ``AccumulateGrad`` is the gradient; -1 where unknown."""
    inner = ranges.accumulating
    shapes = ranges.text("shapes", inner)
    first = [next(iter(_shapes(v)), None) for v in shapes.values]
    size = shapes.look_up(np.array([*(_UNKNOWN if s is None else prod(s) for s in first), _UNKNOWN], np.int64))
    of = np.full(len(ranges), _UNKNOWN, np.int64)
    of[inner] = size
    parent = ranges.op_of[inner]
    of[parent[parent >= 0]] = size[parent >= 0]
    return of[nodes]
