"""Roles of matrix products from the recorded shapes of their operands, and of the kernels in a convolution's backward.

A linear layer's forward multiplies rows × inner with inner × columns; its rows are the tokens. The
gradient of the input contracts the columns, the gradient of the weight contracts the rows.

A batched product (``bmm``) of two activations, as in attention, has two input gradients. One of an
activation and a weight, as in experts, has one gradient of each kind. What tells them apart is
where the gradient goes: a weight's is taken up by ``AccumulateGrad``.

A convolution's backward computes the gradient of the input first, then that of the weight. Around
each main kernel are helper kernels that change layouts; a helper prepares the main kernel after it,
or finishes the one before it.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_sorted, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit._util.shapes import MAX_ELEMENTS, is_shape, parse_list
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.names import KERNELS, NODES, OPERATORS
from tracekit.classify.row_order import nearest_rows, number_values, positions_in_groups

_NO_PARAMETER = 0
_UNKNOWN_SIZE = -1
_PAIR_FACTOR = np.int64(1 << 31)
"""Factor of the smaller size in the number of a pair."""


class Dims(NamedTuple):
    """Sizes of products: rows × inner × columns; 0 where unknown."""

    rows: Ints
    inner: Ints
    columns: Ints

    @classmethod
    def of(cls, ranges: Ranges, calls: Ints) -> Dims:
        """Read the recorded input shapes of *calls*; every distinct text is parsed once."""
        shapes = ranges.text("shapes", calls)
        is_linear = ranges.name.take(calls).any_of("aten::linear")
        parsed = np.array([*map(product_dims, shapes.values), (0, 0, 0, 0)], np.int64).reshape(
            -1, 4
        )
        rows, inner, columns, transposed_columns = shapes.look_up(parsed).T
        return cls(rows, inner, np.where(is_linear, transposed_columns, columns))

    @property
    def known(self) -> Bools:
        """Mask of products whose shapes were recorded."""
        return self.inner > 0


def _shapes(text: str) -> list[list[int]]:
    """Return the tensor shapes in a recorded list of inputs."""
    return [shape for shape in parse_list(text) if is_shape(shape)]


def product_dims(text: str) -> tuple[int, int, int, int]:
    """Return rows, inner, columns, and the columns if the second operand is stored transposed (``aten::linear``).

    >>> product_dims("[[1024,2048],[2048,6144]]"), product_dims("[[64],[8,16],[16,64],[]]")
    ((1024, 2048, 6144, 2048), (8, 16, 64, 16))
    """
    matrices = [shape for shape in _shapes(text) if len(shape) >= 2]
    if len(matrices) < 2:
        return 0, 0, 0, 0
    # The first operand of addmm is what is added: take the first two neighbours that can be
    # multiplied.
    multiplier = matrices[0]
    multiplicand = matrices[1]
    for first, second in pairwise(matrices):
        if first[-1] == second[-2]:
            multiplier = first
            multiplicand = second
            break
    inner = multiplier[-1]
    if inner not in (multiplicand[-2], multiplicand[-1]):
        return 0, 0, 0, 0
    is_batched = len(multiplicand) > 2
    rows = multiplier[-2] if is_batched else prod(multiplier[:-1])
    return rows, inner, multiplicand[-1], multiplicand[-2]


def roles_by_shape(
    ranges: Ranges, autograd: Autograd, calls: Ints, node: Ints, *, rerun: Bools
) -> CategoryColumn:
    """Return ``wgrad``, ``dgrad`` or ``optimizer`` for calls of products whose shapes tell.

    Contracting the forward's rows is wgrad, contracting its columns is dgrad. Where the forward
    product is not in the trace, the shapes of the weights and the numbers of tokens tell. Outside
    the engine, a product whose sizes are all sizes of weights and none a number of tokens is the
    optimizer's: Muon multiplies each gradient with itself.

    Args:
        ranges: Host ranges.
        autograd: Their nodes.
        calls: Rows of the product ops.
        node: Node that each call belongs to, -1 outside.
        rerun: Mask of calls that run forward work again.
    """
    size = Dims.of(ranges, calls)
    in_node = node >= 0
    made_node = autograd.differentiable[calls] >= 0
    is_forward = made_node & (autograd.node_of[calls] < 0) & size.known
    is_first_run = made_node & ~in_node & ~rerun & size.known
    is_outside_engine = ~in_node & ~made_node

    forward = _forward_dims(autograd, calls, size, node, is_forward)
    has_forward = forward.known & size.known
    contracts_rows = size.inner == forward.rows
    contracts_columns = size.inner == forward.columns

    lacks_forward = size.known & ~forward.known & autograd.active & ~rerun
    weights = _weight_shapes(ranges, size, is_forward)
    result_is_weight = lacks_forward & np.isin(_unordered_pair(size.rows, size.columns), weights)
    operand_is_weight = lacks_forward & np.isin(_unordered_pair(size.inner, size.columns), weights)
    token_counts = np.unique(size.rows[is_first_run])
    contracts_tokens = np.isin(size.inner, token_counts)
    keeps_tokens = np.isin(size.rows, token_counts)
    may_be_wgrad = result_is_weight & contracts_tokens
    may_be_dgrad = operand_is_weight & keeps_tokens & in_node

    weight_sides = np.setdiff1d(np.concatenate(np.divmod(weights, _PAIR_FACTOR)), token_counts)
    has_sizes_of_weights = np.isin(np.stack(size), weight_sides).all(axis=0)
    may_be_optimizer = is_outside_engine & ~rerun & size.known & bool(len(token_counts))
    cases = [  # the first that holds decides
        ("wgrad", has_forward & contracts_rows & ~contracts_columns),
        ("dgrad", has_forward & contracts_columns & ~contracts_rows),
        ("wgrad", may_be_wgrad & ~operand_is_weight),
        ("dgrad", may_be_dgrad & ~result_is_weight),
        ("wgrad", may_be_wgrad & ~keeps_tokens & (in_node | is_outside_engine)),
        ("dgrad", may_be_dgrad & ~contracts_tokens),
        ("optimizer", may_be_optimizer & has_sizes_of_weights),
    ]
    return CategoryColumn.choose(len(calls), cases)


def _forward_dims(
    autograd: Autograd, calls: Ints, size: Dims, node: Ints, is_forward: Bools
) -> Dims:
    """Return for every call inside a node the sizes of the one forward product that the node belongs to."""
    maker = autograd.differentiable[calls]
    forward = np.flatnonzero(is_forward)
    sequence = np.where(maker >= 0, autograd.ranges.sequence[maker], -1)
    numbers, first, count = np.unique(sequence[forward], return_index=True, return_counts=True)
    only_product = np.append(np.where(count == 1, forward[first], -1), -1)
    node_number = np.where(node >= 0, autograd.node_sequence[node], -2)
    forward_call = only_product[find_sorted(node_number, numbers)]
    return Dims(*(take_or_missing(column, forward_call, missing=0) for column in size))


def _unordered_pair(a: Ints, b: Ints) -> Ints:
    """Return one number for two sizes below 2**31, the same in either order."""
    return np.minimum(a, b) * _PAIR_FACTOR + np.maximum(a, b)


def _weight_shapes(ranges: Ranges, size: Dims, is_forward: Bools) -> Ints:
    """Return the shapes of weights: second operands of forward products, and accumulated gradients."""
    operands = _unordered_pair(size.inner, size.columns)[is_forward]
    texts = ranges.text("shapes", ranges.accumulating).values
    gradients = [shape[-2:] for text in texts if len(shape := _leading_shape(text)) >= 2]
    sides = np.array(gradients, np.int64).reshape(-1, 2)
    return np.unique(np.concatenate([operands, _unordered_pair(sides[:, 0], sides[:, 1])]))


def leading_size(text: str) -> int:
    """Return the number of elements of the first input, of a list of tensors of its first one.

    0 if it is no tensor.

    >>> leading_size("[[8,2],[8,2],[]]"), leading_size("[[[4],[8,2]],[]]"), leading_size("[]")
    (16, 4, 0)
    """
    shape = _leading_shape(text)
    return prod(shape) if shape else 0


def _leading_shape(text: str) -> list[int]:
    """Return the shape of the first input, of a list of tensors that of its first one.

    Empty if it is no tensor.
    """
    shape: Any = parse_list(text)
    while isinstance(shape, list) and shape and isinstance(shape[0], list):
        shape = shape[0]
    return shape if is_shape(shape) else []


def batched_roles(
    ranges: Ranges, autograd: Autograd, calls: Ints, node: Ints
) -> tuple[CategoryColumn, Bools]:
    """Return the roles of products in the backward of batched products, and the mask of these products.

    A node that no ``AccumulateGrad`` follows has no weight: its products are all dgrad. In a node
    that feeds a parameter, the product whose result is as large as the parameter is wgrad. Where
    sizes do not tell, it is the gradient of the second operand.
    """
    in_batched_node = autograd.names.take(node).matches(NODES["batched_product"])
    is_batched = ranges.name_matches(calls, OPERATORS["batched_product"]) & in_batched_node
    rows = np.flatnonzero(is_batched)
    if not len(rows):
        return CategoryColumn.constant(None, len(calls)), is_batched
    nodes = node[rows]
    parameter_size = _parameter_sizes(ranges, autograd)[nodes]
    result_size = number_values(ranges.text("shapes", calls[rows]), _batched_result_size)
    fits = (result_size == parameter_size) & (parameter_size > 0)
    position, count = positions_in_groups(nodes)
    # Products of the node that fit.
    fitting = np.bincount(nodes, weights=fits, minlength=len(ranges) + 1)[nodes]
    # Bmm's formula computes the gradient of the second operand first, baddbmm's computes it second.
    is_bmm = autograd.names.take(nodes).matches(r"^Bmm")
    of_second_operand = np.where(is_bmm, position == 0, position == 1)
    is_weight = np.where(fitting == 1, fits, of_second_operand & (count == 2))
    sizes_unknown = (parameter_size == _UNKNOWN_SIZE) | (result_size < 0)
    is_certain = (fitting == 1) | ((count == 2) & ((fitting == 2) | sizes_unknown))
    no_parameter = parameter_size == _NO_PARAMETER
    roles = CategoryColumn.choose(
        len(rows),
        [
            ("wgrad", is_certain & is_weight & ~no_parameter),
            ("dgrad", (is_certain & ~is_weight) | no_parameter),
        ],
    )
    return roles.spread(rows, len(calls)), is_batched


def _batched_result_size(text: str) -> int:
    """Return batch × rows × columns of a batched product from its operands.

    -1 where they cannot be multiplied.

    >>> [_batched_result_size(v) for v in ("[[32,512,64],[32,64,128]]", "[[4,8,2],[4,8,3],[4,3,2],[],[]]", "[[4]]")]
    [2097152, 64, -1]
    """
    operands = [shape for shape in _shapes(text) if len(shape) == 3][-2:]
    if len(operands) < 2 or operands[0][2] != operands[1][1]:
        return -1
    return min(operands[0][0] * operands[0][1] * operands[1][2], MAX_ELEMENTS)


def _parameter_sizes(ranges: Ranges, autograd: Autograd) -> Ints:
    """Return for every range that is a node the size of the parameter it feeds, in elements.

    It is ``_NO_PARAMETER`` where the node feeds none and ``_UNKNOWN_SIZE`` where the file does not
    tell. A gradient is accumulated as soon as it is computed, so an ``AccumulateGrad`` right after
    a node, with only reshaping nodes between, takes up that node's result.
    """
    rows = autograd.rows
    names = autograd.row_names
    # The next node that does not reshape, strictly after each node; -1 (the appended element) where
    # none.
    _, at_or_after = nearest_rows(~names.matches(NODES["reshape"]))
    following = np.append(at_or_after[1:], -1)[: len(rows)]
    accumulates = np.append(names.any_of("AccumulateGrad"), False)
    thread = np.append(ranges.thread[rows], -1)
    feeds = accumulates[following] & (thread[following] == ranges.thread[rows])
    gradient_size = np.append(_accumulated_sizes(ranges, rows), _UNKNOWN_SIZE)
    sizes = np.full(len(ranges), _NO_PARAMETER, np.int64)
    sizes[rows] = np.where(feeds, gradient_size[following], _NO_PARAMETER)
    return sizes


def _accumulated_sizes(ranges: Ranges, nodes: Ints) -> Ints:
    """Return the size of the gradient that each ``AccumulateGrad`` node adds up.

    ``_UNKNOWN_SIZE`` for other nodes.
    """
    inner = ranges.accumulating
    inner_size = number_values(
        ranges.text("shapes", inner), lambda text: leading_size(text) or _UNKNOWN_SIZE
    )
    sizes = np.full(len(ranges), _UNKNOWN_SIZE, np.int64)
    sizes[inner] = inner_size
    # Shapes are on the node's own range, nodes are rows of the evaluation around it.
    parent = ranges.op_of[inner]
    sizes[parent[parent >= 0]] = inner_size[parent >= 0]
    return sizes[nodes]


def convolution_roles(gpu: GpuEvents, ranges: Ranges, launches: Launches) -> CategoryColumn:
    """Return ``dgrad`` or ``wgrad`` for the kernels of every convolution's backward.

    Null elsewhere.
    """
    call = ranges.op_around(launches.op, OPERATORS["convolution_backward"])
    rows = np.flatnonzero((call >= 0) & gpu.is_kernel)
    rows = rows[np.lexsort((launches.start_ns[rows], call[rows]))]
    op_name = ranges.name.take(call[rows])  # older versions have one operator for each gradient
    kernel_name = gpu.names.take(rows)
    is_wgrad = op_name.matches(r"backward_weight") | kernel_name.matches(
        KERNELS["convolution_weight_gradient"]
    )
    is_dgrad = op_name.matches(r"backward_input") | kernel_name.matches(
        KERNELS["convolution_input_gradient"]
    )
    named_role = CategoryColumn.choose(len(rows), [("wgrad", is_wgrad), ("dgrad", is_dgrad)])
    is_main = named_role.present | ~kernel_name.matches(KERNELS["convolution_helper"])
    role = named_role.fill(_roles_by_order(call[rows], is_main, named_role))
    return _share_with_helpers(call[rows], role, is_main).spread(rows, len(gpu))


def _roles_by_order(call: Ints, is_main: Bools, named_role: CategoryColumn) -> CategoryColumn:
    """Return the role of main kernels by their order in the call.

    What comes before a kernel that is named as the weight's is dgrad, what comes after it is wgrad.
    Without such a name, of exactly two main kernels the first is dgrad and the second wgrad.
    """
    rows = np.flatnonzero(is_main)
    position, count = positions_in_groups(call[rows])
    is_wgrad = named_role.take(rows).any_of("wgrad")
    kernels = pl.DataFrame(
        {"call": call[rows], "position": position, "is_wgrad": is_wgrad, "is_pair": count == 2}
    )
    own_position = pl.col("position")
    first_wgrad = pl.when("is_wgrad").then("position").min().over("call")
    is_before = own_position < first_wgrad
    is_after = own_position > first_wgrad
    code = (
        pl.when(is_before)
        .then(0)
        .when(is_after)
        .then(1)
        .when("is_pair")
        .then("position")
        .otherwise(-1)
    )
    return CategoryColumn(("dgrad", "wgrad"), kernels.select(code).to_series().to_numpy()).spread(
        rows, len(call)
    )


def _share_with_helpers(call: Ints, role: CategoryColumn, is_main: Bools) -> CategoryColumn:
    """Give helpers the role of the next main kernel of their call, else of the one before."""
    main_code = pl.when("is_main").then("code")
    code = (
        main_code.backward_fill()
        .over("call")
        .fill_null(main_code.forward_fill().over("call"))
        .fill_null(-1)
    )
    kernels = pl.DataFrame({"call": call, "code": role.codes, "is_main": is_main & role.present})
    return CategoryColumn(role.values, kernels.select(code)["code"].to_numpy())
