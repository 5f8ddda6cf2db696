"""Forward work that a backward runs again, found by operators that only a forward calls and by shapes of products.

A compiled backward is one node with many products. Each forward product has the gradient of an
input and of a weight in it; what is there beyond these, in the shape of a forward product, was
computed again. It comes first, in the order of the forward, and the gradients of the inputs follow
in reverse order. Where they do not, as in a graph of several checkpointed blocks, the products in
doubt are left open.

Where as many tokens as a layer is wide make both gradients of a product alike, their order tells,
if it is the same for all products of the graph whose gradients differ.
"""

from collections import Counter
from dataclasses import replace
from typing import Literal, NamedTuple

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


def mark_recomputed(
    ranges: Ranges, launches: Launches, autograd: Autograd
) -> tuple[Autograd, GraphProducts]:
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
        recomputed |= _work_before_recomputed(
            ranges, autograd, in_graph & ~is_node, products | is_forward_op
        )
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
    calls = np.flatnonzero(ranges.is_op & ranges.name.matches(OPERATORS["graph_product"]))
    size = Dims.of(ranges, calls)
    shapes: list[Shape] = list(
        zip(size.rows.tolist(), size.inner.tolist(), size.columns.tolist(), strict=True)
    )

    maker = autograd.differentiable[calls]
    is_forward = (maker >= 0) & (autograd.node_of[calls] < 0) & size.known
    forward_shapes: dict[int, list[Shape]] = {}  # by sequence number
    for i in np.flatnonzero(is_forward).tolist():
        sequence = int(ranges.sequence[maker[i]])
        forward_shapes.setdefault(sequence, []).append(shapes[i])

    masks = GraphProducts(*np.zeros((4, len(ranges)), np.bool_))
    backward = np.flatnonzero(in_graph[calls] & size.known)
    if not len(backward):
        return masks
    # Graphs of one model are alike: every distinct combination of shapes is looked at once.
    results: dict[tuple[tuple[Shape, ...], tuple[Shape, ...]], GraphProducts] = {}
    node = autograd.node_of[calls[backward]]
    begins_graph = np.flatnonzero(np.diff(node)) + 1
    for graph in np.split(backward, begins_graph):
        sequence = int(autograd.node_sequence[autograd.node_of[calls[graph[0]]]])
        graph_shapes = tuple(shapes[i] for i in graph.tolist())
        key = (tuple(forward_shapes.get(sequence, [])), graph_shapes)
        if key not in results:
            results[key] = _products_of_graph(*key)
        for mask, result in zip(masks, results[key], strict=True):
            mask[calls[graph]] = result
    return masks


def _products_of_graph(forward: tuple[Shape, ...], backward: tuple[Shape, ...]) -> GraphProducts:
    """Return what the products of a graph's *backward* are, given the products of its *forward*."""
    recomputed, doubtful = recomputed_products(forward, backward)
    of_inputs, of_weights = gradients_by_order(forward, backward, left_out=recomputed | doubtful)
    return GraphProducts(recomputed, doubtful, of_inputs, of_weights)


def gradients_by_order(
    forward: tuple[Shape, ...], backward: tuple[Shape, ...], *, left_out: Bools
) -> tuple[Bools, Bools]:
    """Return which products of a *backward* are gradients of inputs, and of weights, where shapes alone do not tell.

    Both gradients of a forward product may have one shape. If no other product has it, they come in
    the order in which the gradients of all other products come.

    >>> forward = ((8, 8, 24), (8, 8, 8))  # as many tokens as the layer is wide
    >>> backward = ((8, 8, 8), (8, 24, 8), (8, 8, 8), (24, 8, 8))  # of the first product, that of the input comes first
    >>> [mask.tolist() for mask in gradients_by_order(forward, backward, left_out=np.zeros(4, bool))]
    [[True, False, False, False], [False, False, True, False]]
    """
    is_of_input = np.zeros(len(backward), np.bool_)
    is_of_weight = np.zeros(len(backward), np.bool_)
    rows_of_shape: dict[Shape, list[int]] = {}
    for row in np.flatnonzero(~left_out).tolist():
        rows_of_shape.setdefault(backward[row], []).append(row)
    count = Counter({shape: len(rows) for shape, rows in rows_of_shape.items()})
    pairs = _expected_gradients(forward, count)
    order = _order_of_gradients(pairs, backward, count)
    if order is None:
        return is_of_input, is_of_weight
    for of_input, of_weight in pairs:
        if of_input == of_weight and count[of_input] == 2:
            first, second = rows_of_shape[of_input]
            if order == "weight first":
                is_of_weight[first] = True
                is_of_input[second] = True
            else:
                is_of_input[first] = True
                is_of_weight[second] = True
    return is_of_input, is_of_weight


def _expected_gradients(
    forward: tuple[Shape, ...], gradients: Counter[Shape]
) -> list[tuple[Shape, Shape]]:
    """Return the shapes of the two gradients (input, weight) of each forward product.

    Empty if *gradients* differ.

    A graph computes all gradients of weights one way round; empty, too, if both ways fit and
    differ.
    """
    of_inputs = [(rows, columns, inner) for rows, inner, columns in forward]
    of_weights = [(inner, rows, columns) for rows, inner, columns in forward]
    of_weights_turned = [(columns, rows, inner) for rows, inner, columns in forward]
    fits = Counter(of_inputs + of_weights) == gradients
    fits_turned = Counter(of_inputs + of_weights_turned) == gradients
    if fits and fits_turned and of_weights != of_weights_turned:
        return []
    if fits_turned:
        return list(zip(of_inputs, of_weights_turned, strict=True))
    if fits:
        return list(zip(of_inputs, of_weights, strict=True))
    return []


def _order_of_gradients(
    pairs: list[tuple[Shape, Shape]], backward: tuple[Shape, ...], count: Counter[Shape]
) -> Literal["input first", "weight first"] | None:
    """Return the order in which both gradients of a product come.

    None if it differs, or no product shows it.
    """
    orders = set()
    for of_input, of_weight in pairs:
        if count[of_input] == count[of_weight] == 1:
            orders.add(backward.index(of_input) < backward.index(of_weight))
    if len(orders) != 1:
        return None
    return "input first" if orders == {True} else "weight first"


def recomputed_products(
    forward: tuple[Shape, ...], backward: tuple[Shape, ...]
) -> tuple[Bools, Bools]:
    """Return which products of a *backward* repeat one of its *forward*, and which may.

    >>> recomputed, doubtful = recomputed_products(((8, 2, 2),), ((8, 2, 2), (8, 2, 2), (2, 8, 2)))
    >>> recomputed.tolist(), doubtful.tolist()
    ([True, False, False], [False, False, False])
    """
    input_gradients = [(rows, columns, inner) for rows, inner, columns in reversed(forward)]
    weight_gradients = [
        (min(inner, columns), rows, max(inner, columns)) for rows, inner, columns in forward
    ]
    shapes = [
        _undo_transpose(shape, set(input_gradients), set(weight_gradients)) for shape in backward
    ]

    # What exceeds the expected gradients is recomputed, at most as often as the forward has the
    # shape.
    count = Counter(shapes)
    expected = Counter(input_gradients + weight_gradients)
    excess: dict[Shape, int] = {}
    for shape, runs in Counter(forward).items():
        excess[shape] = min(count[shape] - expected[shape], runs)
    is_recomputed = _mark_first(shapes, excess)

    # Accept that if the order agrees: recomputed products as in the forward, gradients of the
    # inputs in reverse.
    recomputed: list[Shape] = []
    ordered_gradients: list[Shape] = []
    for shape, runs_again in zip(shapes, is_recomputed.tolist(), strict=True):
        if runs_again:
            recomputed.append(shape)
        elif shape in input_gradients:
            ordered_gradients.append(shape)
    order_agrees = _is_subsequence(recomputed, forward) and ordered_gradients == input_gradients
    if not recomputed or order_agrees:
        return is_recomputed, np.zeros(len(backward), np.bool_)
    is_doubtful = [0 < excess.get(shape, 0) < count[shape] for shape in shapes]
    doubtful = np.array(is_doubtful, np.bool_)
    return is_recomputed & ~doubtful, doubtful


def _mark_first(shapes: list[Shape], excess: dict[Shape, int]) -> Bools:
    """Return a mask of the first *excess* products of each shape."""
    is_marked = np.zeros(len(shapes), np.bool_)
    remaining = dict(excess)
    for i, shape in enumerate(shapes):
        if remaining.get(shape, 0) > 0:
            remaining[shape] -= 1
            is_marked[i] = True
    return is_marked


def _undo_transpose(
    shape: Shape, input_gradients: set[Shape], weight_gradients: set[Shape]
) -> Shape:
    """Return a product's shape, with sorted outer sizes if it is a weight gradient, which may be transposed."""
    rows, inner, columns = shape
    turned = (min(rows, columns), inner, max(rows, columns))
    return turned if shape not in input_gradients and turned in weight_gradients else shape


def _is_subsequence(part: list[Shape], whole: tuple[Shape, ...]) -> bool:
    """Return whether *part* is *whole* with some elements left out."""
    rest = iter(whole)
    return all(shape in rest for shape in part)


def _work_before_recomputed(
    ranges: Ranges, autograd: Autograd, in_graph: Bools, recomputed: Bools
) -> Bools:
    """Return the other ops of compiled graphs that run before the last recomputed op of the graph.

    A recomputed op counts only if no product of a gradient ran before it.
    """
    node_of = autograd.node_of
    gradients = np.flatnonzero(
        in_graph & ranges.is_op & ranges.name.matches(OPERATORS["graph_product"]) & ~recomputed
    )
    # Start of each graph's first gradient product.
    first_gradient = np.full(len(ranges) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_gradient, node_of[gradients], ranges.start(gradients))
    repeats = np.flatnonzero(in_graph & recomputed)
    repeats = repeats[ranges.start(repeats) < first_gradient[node_of[repeats]]]
    last_repeat = np.full(len(ranges) + 1, -1, np.int64)
    np.maximum.at(last_repeat, node_of[repeats], ranges.start(repeats))
    is_compiled = ranges.name.matches(NODES["compiled"])
    is_graph_range = ranges.is_op & is_compiled & ~ranges.name.matches(f"^{EVALUATE_NODE}")
    in_graph_range = nearest_marked_ancestor(ranges.op_of, is_graph_range) >= 0
    return (
        in_graph
        & in_graph_range
        & ranges.is_op
        & ~is_compiled
        & (ranges.start() < last_repeat[node_of])
    )
