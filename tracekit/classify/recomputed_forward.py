"""Forward work that a backward runs again, found by operators that only a forward calls and by shapes of products.

A compiled backward is one node with many products. Each forward product has the gradient of an input and of a weight in
it; what is there beyond these, in the shape of a forward product, was computed again. It comes first, in the order of
the forward, and the gradients of the inputs follow in reverse order. Where they do not, as in a graph of several
checkpointed blocks, the products in doubt are left open.

Where as many tokens as a layer is wide make both gradients of a product alike, their order tells, if it is the same for
all products of the graph whose gradients differ.
"""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import EVALUATE_NODE, Launches, Ranges, nearest_marked_ancestor
from tracekit.classify.names import NODES, OPERATORS
from tracekit.classify.product_shapes import Dims
from tracekit.classify.row_order import mask_of_rows

Shape = tuple[int, int, int]
"""Rows, inner size and columns of a product."""


class GraphProducts(NamedTuple):
    """Products of compiled graphs, as masks over the ranges."""

    recomputed: Bools
    doubtful: Bools  # may be gradients or recomputed
    input_gradient: Bools  # gradients whose shapes do not tell, but their order does
    weight_gradient: Bools


def mark_recomputed(ranges: Ranges, launches: Launches, autograd: Autograd) -> tuple[Autograd, GraphProducts]:
    """Mark the forward work that nodes compute again.

    Returns:
        The autograd evidence with that work as ``recompute``, and the products of compiled graphs.
    """
    graph_products = GraphProducts(*np.zeros((4, len(ranges)), np.bool_))
    graphs = autograd.rows[autograd.row_names.matches(NODES["compiled"])]
    forward_ops = np.flatnonzero(ranges.name.matches(OPERATORS["never_in_backward"]) & ranges.is_op)
    forward_ops = forward_ops[autograd.node_of[forward_ops] >= 0]
    if not len(graphs) and not (autograd.rerun[forward_ops] < 0).any():
        return autograd, graph_products
    is_node = mask_of_rows(len(ranges), autograd.rows)
    in_graph = mask_of_rows(len(ranges) + 1, graphs)[autograd.node_of]
    is_forward_op = mask_of_rows(len(ranges), forward_ops)
    recomputed = is_forward_op & (autograd.rerun < 0)
    if in_graph.any():
        graph_products = _products_of_graphs(ranges, autograd, in_graph)
        products = graph_products.recomputed
        recomputed |= products
        recomputed |= _work_before_recomputed(ranges, autograd, in_graph & ~is_node, products | is_forward_op)
    if not recomputed.any():
        return autograd, graph_products
    # Everything inside a recomputed op is recomputed, but for what a node inside it runs.
    ancestor = nearest_marked_ancestor(ranges.op_of, (recomputed & ranges.is_op) | is_node)
    inside = (ancestor >= 0) & np.append(recomputed, False)[ancestor]
    rerun = np.where((autograd.rerun < 0) & inside, ancestor, autograd.rerun)
    op = launches.op
    is_recompute = (op >= 0) & np.append(inside, False)[op] & (autograd.node_row >= 0)
    site = CategoryColumn.choose(len(op), [("recompute", is_recompute)]).fill(autograd.site)
    return replace(autograd, rerun=rerun, site=site), graph_products


def _products_of_graphs(ranges: Ranges, autograd: Autograd, in_graph: Bools) -> GraphProducts:
    """Return the products of compiled graphs."""
    masks = np.zeros((4, len(ranges)), np.bool_)
    calls = np.flatnonzero(ranges.is_op & ranges.name.matches(OPERATORS["graph_product"]))
    size = Dims.of(ranges, calls)
    shapes: list[Shape] = list(zip(*(column.tolist() for column in size), strict=True))

    maker = autograd.differentiable[calls]
    is_forward = (maker >= 0) & (autograd.node_of[calls] < 0) & size.known
    forward_shapes: dict[int, list[Shape]] = {}  # by sequence number
    for i in np.flatnonzero(is_forward).tolist():
        forward_shapes.setdefault(int(ranges.sequence[maker[i]]), []).append(shapes[i])

    # Graphs of one model are alike: every distinct combination of shapes is looked at once.
    backward = np.flatnonzero(in_graph[calls] & size.known)
    node = autograd.node_of[calls[backward]]
    results: dict[tuple[tuple[Shape, ...], tuple[Shape, ...]], Bools] = {}
    for graph in np.split(np.arange(len(backward)), np.flatnonzero(np.diff(node)) + 1):
        forward = forward_shapes.get(int(autograd.node_sequence[node[graph[0]]]), []) if len(graph) else []
        key = (tuple(forward), tuple(shapes[i] for i in backward[graph].tolist()))
        if key not in results:
            recomputed, doubtful = recomputed_products(*key)
            results[key] = np.stack([recomputed, doubtful, *gradients_by_order(*key, left_out=recomputed | doubtful)])
        masks[:, calls[backward[graph]]] = results[key]
    return GraphProducts(*masks)


def gradients_by_order(
    forward: tuple[Shape, ...], backward: tuple[Shape, ...], *, left_out: Bools
) -> tuple[Bools, Bools]:
    """Return which products of a *backward* are gradients of inputs, and of weights, where shapes alone do not tell.

    Both gradients of a forward product may have one shape. If no other product has it, they come in the order in which
    the gradients of all other products come.

    >>> forward = ((8, 8, 24), (8, 8, 8))  # as many tokens as the layer is wide
    >>> backward = ((8, 8, 8), (8, 24, 8), (8, 8, 8), (24, 8, 8))  # of the first product, that of the input comes first
    >>> [mask.tolist() for mask in gradients_by_order(forward, backward, left_out=np.zeros(4, bool))]
    [[True, False, False, False], [False, False, True, False]]
    """
    gradients = [shape for shape, leave in zip(backward, left_out.tolist(), strict=True) if not leave]
    of_inputs = [(rows, columns, inner) for rows, inner, columns in forward]
    orientations = (  # a graph computes all gradients of weights one way round
        [(columns, rows, inner) for rows, inner, columns in forward],
        [(inner, rows, columns) for rows, inner, columns in forward],
    )
    masks = np.zeros((2, len(backward)), np.bool_)
    fitting = [of_weights for of_weights in orientations if Counter(of_inputs + of_weights) == Counter(gradients)]
    if not fitting or fitting != fitting[:1] * len(fitting):
        return masks[0], masks[1]
    count = Counter(gradients)
    pairs = zip(of_inputs, fitting[0], strict=True)
    single = [pair for pair in pairs if count[pair[0]] == count[pair[1]] == 1]
    input_first = {backward.index(of_input) < backward.index(of_weight) for of_input, of_weight in single}
    if len(input_first) == 1:
        for of_input, of_weight in zip(of_inputs, fitting[0], strict=True):
            if of_input == of_weight and count[of_input] == 2:
                places = [i for i, shape in enumerate(backward) if shape == of_input and not left_out[i]]
                first, second = places if input_first == {True} else places[::-1]
                masks[0, first] = masks[1, second] = True
    return masks[0], masks[1]


def recomputed_products(forward: tuple[Shape, ...], backward: tuple[Shape, ...]) -> tuple[Bools, Bools]:
    """Return which products of a *backward* repeat one of its *forward*, and which may.

    >>> recomputed, doubtful = recomputed_products(((8, 2, 2),), ((8, 2, 2), (8, 2, 2), (2, 8, 2)))
    >>> recomputed.tolist(), doubtful.tolist()
    ([True, False, False], [False, False, False])
    """
    is_recomputed = np.zeros(len(backward), np.bool_)
    input_gradients = [(rows, columns, inner) for rows, inner, columns in reversed(forward)]
    weight_gradients = [(min(inner, columns), rows, max(inner, columns)) for rows, inner, columns in forward]
    shapes = [_undo_transpose(shape, set(input_gradients), set(weight_gradients)) for shape in backward]

    # What exceeds the expected gradients is recomputed, at most as often as the forward has the shape. The first
    # products of a shape are the recomputed ones.
    count = Counter(shapes)
    expected = Counter(input_gradients + weight_gradients)
    excess = {shape: min(count[shape] - expected[shape], runs) for shape, runs in Counter(forward).items()}
    remaining = {shape: number for shape, number in excess.items() if number > 0}
    for i, shape in enumerate(shapes):
        if remaining.get(shape, 0):
            remaining[shape] -= 1
            is_recomputed[i] = True

    # Accept that if the order agrees: recomputed products as in the forward, gradients of the inputs in reverse.
    recomputed = [shape for shape, again in zip(shapes, is_recomputed, strict=True) if again]
    others = [shape for shape, again in zip(shapes, is_recomputed, strict=True) if not again]
    ordered_gradients = [shape for shape in others if shape in set(input_gradients)]
    if not recomputed or (_is_subsequence(recomputed, forward) and ordered_gradients == input_gradients):
        return is_recomputed, np.zeros(len(backward), np.bool_)
    ambiguous = {shape for shape, number in excess.items() if 0 < number < count[shape]}
    doubtful = np.array([shape in ambiguous for shape in shapes], np.bool_)
    return is_recomputed & ~doubtful, doubtful


def _undo_transpose(shape: Shape, input_gradients: set[Shape], weight_gradients: set[Shape]) -> Shape:
    """Return a product's shape, with sorted outer sizes if it is a weight gradient, which may be transposed."""
    rows, inner, columns = shape
    turned = (min(rows, columns), inner, max(rows, columns))
    return turned if shape not in input_gradients and turned in weight_gradients else shape


def _is_subsequence(part: list[Shape], whole: tuple[Shape, ...]) -> bool:
    """Return whether *part* is *whole* with some elements left out."""
    rest = iter(whole)
    return all(shape in rest for shape in part)


def _work_before_recomputed(ranges: Ranges, autograd: Autograd, in_graph: Bools, recomputed: Bools) -> Bools:
    """Return the other ops of compiled graphs that run before the last recomputed op of the graph.

    A recomputed op counts only if no product of a gradient ran before it.
    """
    node_of = autograd.node_of
    gradients = np.flatnonzero(in_graph & ranges.is_op & ranges.name.matches(OPERATORS["graph_product"]) & ~recomputed)
    first_gradient = np.full(len(ranges) + 1, np.iinfo(np.int64).max)  # start of each graph's first gradient product
    np.minimum.at(first_gradient, node_of[gradients], ranges.start(gradients))
    repeats = np.flatnonzero(in_graph & recomputed)
    repeats = repeats[ranges.start(repeats) < first_gradient[node_of[repeats]]]
    last_repeat = np.full(len(ranges) + 1, -1, np.int64)
    np.maximum.at(last_repeat, node_of[repeats], ranges.start(repeats))
    is_compiled = ranges.name.matches(NODES["compiled"])
    is_graph_range = ranges.is_op & is_compiled & ~ranges.name.matches(f"^{EVALUATE_NODE}")
    in_graph_range = nearest_marked_ancestor(ranges.op_of, is_graph_range) >= 0
    return in_graph & in_graph_range & ranges.is_op & ~is_compiled & (ranges.start() < last_repeat[node_of])
