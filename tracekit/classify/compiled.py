"""Forward work that a backward runs again: in a compiled graph by shapes, elsewhere by what only a forward calls.

A compiled backward is one node with many products. Each forward product has an input's and a weight's gradient in it;
what is there beyond these, in the shape of the forward's own, was computed again. It comes first, in the forward's
order, and the inputs' gradients follow in the reverse of it; where they do not, as in a graph of several checkpointed
blocks, nothing is said of the products in doubt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from tracekit._util.arrays import Bools
from tracekit.classify._nest import inherit
from tracekit.classify.autograd import Autograd
from tracekit.classify.ranges import NODE, Launches, Ranges
from tracekit.classify.shapes import Dims

COMPILED = r"^CompiledFunction\w*Backward|CompiledAutograd"
"""Nodes that run a compiled graph."""
_PRODUCTS = r"^aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm)$"
_ONLY_AHEAD = (
    r"^aten::(_?scaled_dot_product_(?!\w*backward)\w*|_(flash|efficient|cudnn)_attention_forward"
    r"|native_(layer|group)_norm|_fused_rms_norm)$"
)
"""Operators that no backward formula calls."""

Shape = tuple[int, int, int]


def with_recomputed(ranges: Ranges, launches: Launches, autograd: Autograd) -> tuple[Autograd, Bools]:
    """Mark what nodes compute again; also which ranges are products of a compiled graph that nothing tells apart."""
    doubtful = np.zeros(len(ranges), np.bool_)
    graphs = autograd.rows[autograd.row_names.matches(COMPILED)]
    spoken = np.flatnonzero(ranges.name.matches(_ONLY_AHEAD) & ranges.is_op)
    spoken = spoken[autograd.node_of[spoken] >= 0]
    if not len(graphs) and not (autograd.again[spoken] < 0).any():
        return autograd, doubtful
    is_node, compiled = np.zeros((2, len(ranges) + 1), np.bool_)
    is_node[autograd.rows] = True
    compiled[graphs] = True
    is_node, compiled = is_node[:-1], compiled[autograd.node_of]
    ahead = np.zeros(len(ranges), np.bool_)
    ahead[spoken] = True
    again = ahead & (autograd.again < 0)
    if compiled.any():
        products, doubtful = _products(ranges, autograd, compiled)
        again |= products
        again |= _leading_up(ranges, autograd, compiled & ~is_node, products | ahead)
    if not again.any():
        return autograd, doubtful
    rerun = inherit(ranges.op_of, (again & ranges.is_op) | is_node)
    inside = (rerun >= 0) & np.append(again, False)[rerun]
    row = np.where((autograd.again < 0) & inside, rerun, autograd.again)
    op = launches.op
    here = (op >= 0) & np.append(inside, False)[op] & (autograd.node_row >= 0)
    site = autograd.site.choose(len(op), [("recompute", here)]).fill(autograd.site)
    return replace(autograd, again=row, site=site), doubtful


def _products(ranges: Ranges, autograd: Autograd, compiled: Bools) -> tuple[Bools, Bools]:
    """Products of compiled nodes that are computed again, and those that may be."""
    again, doubtful = np.zeros((2, len(ranges)), np.bool_)
    calls = np.flatnonzero(ranges.is_op & ranges.name.matches(_PRODUCTS))
    size = Dims.of(ranges, calls)
    made = autograd.differentiable[calls]
    ahead = (made >= 0) & (autograd.node_of[calls] < 0) & size.known
    inside = np.flatnonzero(compiled[calls] & size.known)
    shapes = list(zip(size.rows.tolist(), size.inner.tolist(), size.columns.tolist(), strict=True))
    forward: dict[int, list[Shape]] = {}
    for place in np.flatnonzero(ahead).tolist():
        forward.setdefault(int(ranges.sequence[made[place]]), []).append(shapes[place])
    node = autograd.node_of[calls[inside]]
    known: dict[tuple[tuple[Shape, ...], tuple[Shape, ...]], tuple[Bools, Bools]] = {}
    for part in np.split(np.arange(len(inside)), np.flatnonzero(np.diff(node)) + 1):
        ran = forward.get(int(autograd.node_sequence[node[part[0]]]), []) if len(part) else []
        key = (tuple(ran), tuple(shapes[place] for place in inside[part].tolist()))
        if key not in known:
            known[key] = recomputed_products(*key)
        again[calls[inside[part]]], doubtful[calls[inside[part]]] = known[key]
    return again, doubtful


def recomputed_products(forward: tuple[Shape, ...], backward: tuple[Shape, ...]) -> tuple[Bools, Bools]:
    """Which products of a backward repeat one of its forward, and which may; products are rows × inner × columns.

    >>> again, doubtful = recomputed_products(((8, 2, 2),), ((8, 2, 2), (8, 2, 2), (2, 8, 2)))
    >>> again.tolist(), doubtful.tolist()
    ([True, False, False], [False, False, False])
    """
    again, doubtful = np.zeros((2, len(backward)), np.bool_)
    inputs = [(rows, columns, inner) for rows, inner, columns in reversed(forward)]
    weights = [(min(inner, columns), rows, max(inner, columns)) for rows, inner, columns in forward]
    kinds = [_kind(shape, set(inputs), set(weights)) for shape in backward]
    there, wanted, ran = Counter(kinds), Counter(inputs + weights), Counter(forward)
    more = {shape: min(there[shape] - wanted[shape], count) for shape, count in ran.items()}
    left = {shape: count for shape, count in more.items() if count > 0}
    for place, kind in enumerate(kinds):
        if left.get(kind, 0):
            left[kind] -= 1
            again[place] = True
    repeated, rest = _parts(kinds, again, True), [k for k in _parts(kinds, again, False) if k in set(inputs)]
    if not repeated or (_in_turn(repeated, forward) and rest == inputs):
        return again, doubtful
    unsure = {shape for shape, count in more.items() if 0 < count < there[shape]}
    doubtful = np.array([kind in unsure for kind in kinds], np.bool_)
    return again & ~doubtful, doubtful


def _kind(shape: Shape, inputs: set[Shape], weights: set[Shape]) -> Shape:
    """Return a product's shape; a weight's gradient may be computed transposed, and is then turned back."""
    turned = (min(shape[0], shape[2]), shape[1], max(shape[0], shape[2]))
    return turned if shape not in inputs and turned in weights else shape


def _parts(kinds: list[Shape], again: Bools, which: bool) -> list[Shape]:
    return [kind for kind, repeats in zip(kinds, again.tolist(), strict=True) if repeats is which]


def _in_turn(part: list[Shape], whole: tuple[Shape, ...]) -> bool:
    """Return whether *part* is *whole* with some left out."""
    rest = iter(whole)
    return all(shape in rest for shape in part)


def _leading_up(ranges: Ranges, autograd: Autograd, compiled: Bools, again: Bools) -> Bools:
    """Other work of a compiled graph up to its last repeated call, as long as no gradient's product came before."""
    product = compiled & ranges.is_op & ranges.name.matches(_PRODUCTS)
    first = np.full(len(ranges) + 1, np.iinfo(np.int64).max)
    gradients = np.flatnonzero(product & ~again)
    np.minimum.at(first, autograd.node_of[gradients], ranges.start(gradients))
    last = np.full(len(ranges) + 1, -1, np.int64)
    repeated = np.flatnonzero(compiled & again)
    repeated = repeated[ranges.start(repeated) < first[autograd.node_of[repeated]]]
    np.maximum.at(last, autograd.node_of[repeated], ranges.start(repeated))
    graph = inherit(ranges.op_of, ranges.is_op & ranges.name.matches(COMPILED) & ~ranges.name.matches(f"^{NODE}")) >= 0
    own = ranges.is_op & ~ranges.name.matches(COMPILED)
    return compiled & graph & own & (ranges.start() < last[autograd.node_of])
