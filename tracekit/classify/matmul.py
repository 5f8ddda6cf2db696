"""Role of every matrix product: forward, dgrad (gradient of the input), wgrad (gradient of the weight) or optimizer.

A linear layer's forward is [M,K]×[K,N]. Its two backward products contract N (dgrad) or M, the
tokens (wgrad). Evidence is tried in this order: that a product's op made a node which ran; the
operands of batched products; recorded shapes; the order in which autograd's formulas multiply; what
uses the result; how operands were transposed; that it is in a linear op outside the engine; and,
outside the engine, that nodes left gradients of weights to be computed later. Then, for kernels:
the number of products without an operator in a node; the layout letters in names, in the backward;
the pass; and last layouts, and gradients left for later, of products outside the engine or without
an operator.

A layer with a kernel library of its own multiplies without operators. Its backward runs twice as
many products as its forward did, or as many if the gradients of the weights are left for later.
"""

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_sorted, take_or_missing
from tracekit._util.categories import MAX_SEARCHED_CHARS, CategoryColumn
from tracekit.classify.autograd import Autograd, node_table
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.names import KERNELS, NODES, OPERATORS, ROLES_OF_LAYOUTS
from tracekit.classify.product_shapes import batched_roles, convolution_roles, roles_by_shape
from tracekit.classify.recomputed_forward import GraphProducts
from tracekit.classify.row_order import FirstEvidence, mask_of_rows, positions_in_groups
from tracekit.classify.rules import kernel_pattern

MIN_DEFERRED_SHARE = 0.5
"""Share of the products in a row outside the engine that have the layout of weight gradients, if
these are deferred."""
MAX_LONE_PRODUCTS = 2
"""Products in the layout of input gradients, in a row before a forward product, that are taken for
forward work."""
_TURNS = ("first", "second")
_RATIOS = ("once", "twice", "odd")


def turns_and_halves(
    products: Bools, node: Ints, launch_ns: Ints
) -> tuple[CategoryColumn, CategoryColumn]:
    """Return the turn of each product in its node, and the half of its node's products that it is in.

    Turns alternate: first, second, first, second, and so on. The half is null where the number of
    products is odd.

    >>> same_node = np.zeros(4, np.int64)
    >>> [column.strings() for column in turns_and_halves(np.ones(4, np.bool_), same_node, np.arange(4))]
    [['first', 'second', 'first', 'second'], ['first', 'first', 'second', 'second']]
    """
    rows = np.flatnonzero(products & (node >= 0))
    rows = rows[np.argsort(launch_ns[rows], kind="stable")]
    position, count = positions_in_groups(node[rows])
    half = np.where(count % 2 == 0, 2 * position // np.maximum(count, 1), -1)
    turns = CategoryColumn(_TURNS, position % 2).spread(rows, len(products))
    halves = CategoryColumn(_TURNS, half).spread(rows, len(products))
    return turns, halves


def backward_forward_ratio(
    products: Bools, node: Ints, sequence: Ints, forward: Bools
) -> CategoryColumn:
    """Compare the number of a node's products with that of its forward: ``once`` as many, ``twice``, or ``odd``.

    Args:
        products: Mask of matrix products.
        node: Node of each event, -1 outside.
        sequence: Sequence number of each event, which a node shares with its forward.
        forward: Mask of forward events.

    Returns:
        The ratio for products inside nodes; null elsewhere, and where the forward is not in the
        trace.
    """
    rows = np.flatnonzero(products & (node >= 0))
    numbers, forward_counts = np.unique(
        sequence[products & forward & (sequence >= 0)], return_counts=True
    )
    own_count = np.bincount(node[rows])[node[rows]]
    forward_count = take_or_missing(forward_counts, find_sorted(sequence[rows], numbers))
    ratio = np.select(
        [forward_count < 0, own_count == forward_count, own_count == 2 * forward_count],
        [-1, 0, 1],
        2,
    )
    return CategoryColumn(_RATIOS, ratio).spread(rows, len(products))


def match_owed(owing: Bools, candidates: Bools, time: Ints) -> Bools:
    """Return the *candidates* that deliver what earlier *owing* rows left to do, in order of time.

    Every owing row adds one to a balance, every candidate takes one from it. A candidate counts if
    the balance does not fall below zero.
    """
    order = np.argsort(time, kind="stable")
    balance = np.cumsum(owing[order].astype(np.int64)) - np.cumsum(
        candidates[order].astype(np.int64)
    )
    return mask_of_rows(len(time), order, candidates[order] & (balance >= 0))


MATMUL_KERNELS = kernel_pattern("product")
_MAX_OP_DEPTH = 4
"""Depth to which product ops nest, with one to spare: einsum > bmm, linear > matmul > mm."""
_MAX_PRODUCTS_OF_LAYER = 4
"""Products up to which a node is one layer's; the order of a compiled graph's many products tells
nothing."""


class Matmuls(NamedTuple):
    """For every GPU event that is a matrix product: its role and the evidence for it."""

    is_gemm: Bools
    whole: Bools  # products without the kernels that only add up the parts of a product
    ratio: CategoryColumn  # number of a node's products compared with its forward's: "once", "twice", "odd"
    role: CategoryColumn  # "forward", "dgrad", "wgrad", "optimizer"
    after: (
        CategoryColumn  # of any event: role of the product that the op before its own op computed
    )
    evidence: CategoryColumn
    """One of "operands", "shapes", "order", "consumer", "transpose", "owed", "layout", "pass",
    "convolution"."""


def read_matmuls(
    gpu: GpuEvents,
    ranges: Ranges,
    launches: Launches,
    autograd: Autograd,
    graph_products: GraphProducts,
) -> Matmuls:
    """Find the role of every matrix product.

    Args:
        gpu: GPU events.
        ranges: Host ranges.
        launches: Launch of each GPU event.
        autograd: Nodes among the ranges.
        graph_products: Products of compiled graphs.
    """
    kernels = _find_product_kernels(gpu, ranges, launches)
    forward = autograd.site.any_of("forward")
    ratio = backward_forward_ratio(kernels.whole, autograd.node_row, autograd.sequence, forward)

    # Roles of the ops that launched products, in thread and time order; then of their kernels.
    calls = np.unique(kernels.call[kernels.is_gemm & (kernels.call >= 0)])
    outer_ops = outermost_product_ops(ranges, calls)
    call_roles = _call_roles(
        autograd,
        calls,
        outer_ops,
        graph_products=graph_products,
        nodes_without_op=autograd.node_row[kernels.without_op],
    )
    index = np.where(kernels.is_gemm, find_sorted(kernels.call, calls), -1)
    roles = FirstEvidence(call_roles.value.take(index), call_roles.evidence.take(index))
    _fill_kernel_roles(
        roles,
        kernels,
        gpu.names,
        launches,
        autograd,
        owing=kernels.without_op & ratio.any_of("once"),
    )

    convolution = convolution_roles(gpu, ranges, launches)
    by_convolution = CategoryColumn.choose(len(gpu), [("convolution", convolution.present)])
    return Matmuls(
        is_gemm=kernels.is_gemm,
        whole=kernels.whole,
        ratio=ratio,
        role=convolution.fill(roles.value),
        after=_roles_of_previous_op(ranges, outer_ops, call_roles.value, launches.op),
        evidence=by_convolution.fill(roles.evidence),
    )


class _LaunchedProducts(NamedTuple):
    """For every GPU event: whether it is a matrix product, and the op that launched it."""

    call: Ints
    """Row of the product op around the launch; -1 without one."""
    is_gemm: Bools
    whole: Bools
    """Products without the kernels that only add up the parts of a product."""

    @property
    def without_op(self) -> Bools:
        """Mask of products that were launched outside any product op."""
        return self.whole & (self.call < 0)


def _find_product_kernels(gpu: GpuEvents, ranges: Ranges, launches: Launches) -> _LaunchedProducts:
    """Find the matrix products: kernels that a product op launched, and those with the name of one."""
    call = ranges.op_around(launches.op, OPERATORS["product"])
    has_product_name = gpu.names.matches(MATMUL_KERNELS) & ~gpu.names.matches(
        KERNELS["fused_attention"]
    )
    is_gemm = gpu.is_kernel & ((call >= 0) | has_product_name)
    return _LaunchedProducts(call, is_gemm, whole=is_gemm & ~gpu.names.matches(r"(?i)split_?k"))


def _fill_kernel_roles(
    roles: FirstEvidence,
    kernels: _LaunchedProducts,
    names: CategoryColumn,
    launches: Launches,
    autograd: Autograd,
    *,
    owing: Bools,
) -> None:
    """Fill in the roles of kernels that their ops do not tell.

    Args:
        roles: Roles of the kernels, so far by their ops.
        kernels: Matrix products among the GPU events.
        names: Names of the GPU events.
        launches: Launch of each GPU event.
        autograd: Nodes among the ranges.
        owing: Products that leave the gradient of their weight to a later product.
    """
    is_gemm = kernels.is_gemm
    without_op = kernels.without_op
    in_backward = autograd.site.any_of("backward")
    roles.fill_mask(
        "order", "wgrad", _fused_weight_gradients(roles.value, without_op, autograd.node_row)
    )

    # In these nodes layouts do not tell the gradients apart.
    layouts_tell = ~autograd.node.matches(rf"(?i)conv|{NODES['batched_product']}")
    layout = roles_by_layout(names).where(is_gemm & layouts_tell)
    roles.fill("layout", layout.where(in_backward & ~layout.any_of("forward")))
    roles.fill_mask("pass", "forward", is_gemm & autograd.site.any_of("forward"))

    is_outside_engine = ~autograd.site.present & ~autograd.made_node & autograd.active
    is_outside_engine &= is_gemm & (launches.start_ns >= 0)
    is_deferred = deferred_weight_gradients(launches.ordered(is_gemm), is_outside_engine, layout)
    roles.fill("layout", layout.where(is_deferred))
    may_be_owed = is_outside_engine & without_op & ~roles.value.present
    roles.fill_mask("owed", "wgrad", match_owed(owing, may_be_owed, launches.start_ns))
    roles.fill_mask("pass", "forward", is_gemm & autograd.made_node)

    no_op_layout = _layouts_without_ops(layout.where(is_gemm & (launches.op < 0)))
    if in_backward.any() and not autograd.active:
        # The backward is known by its thread: elsewhere nothing is dgrad.
        no_op_layout = no_op_layout.where(~autograd.site.present & ~no_op_layout.any_of("dgrad"))
    is_lone = lone_input_gradients(
        launches.ordered(no_op_layout.present), no_op_layout, launches.replay
    )
    roles.fill("layout", no_op_layout.where(~is_lone))


def _fused_weight_gradients(role: CategoryColumn, without_op: Bools, node: Ints) -> Bools:
    """Return the products without an operator in nodes whose operators computed the gradient of the input alone.

    Extensions multiply and add to the weight's gradient in one call (``wgrad_gemm_accum``).
    """
    in_node = node >= 0
    node_count = int(node.max(initial=-1)) + 2

    def count_per_node(mask: Bools) -> Ints:
        return np.bincount(node[in_node & mask], minlength=node_count)

    has_dgrad = count_per_node(role.any_of("dgrad")) > 0
    has_wgrad = count_per_node(role.any_of("wgrad")) > 0
    has_one_without_op = count_per_node(without_op) == 1
    computes_wgrad_without_op: Bools = has_dgrad & ~has_wgrad & has_one_without_op
    return in_node & without_op & computes_wgrad_without_op[node]


def deferred_weight_gradients(products: Ints, outside: Bools, layout: CategoryColumn) -> Bools:
    """Return the products outside the engine, in the layout of weight gradients, that a schedule deferred.

    Deferred gradients of weights run in a row. An optimizer that multiplies (Muon) has that layout
    in every third of its products: of a row of products outside the engine most must have it. A
    forward product ends a row.

    Args:
        products: Rows of all products in launch order.
        outside: Mask of the products that run outside the engine and create no node.
        layout: Role that each event's layout stands for.
    """
    in_row = (outside & ~layout.any_of("forward"))[products]
    has_layout = in_row & layout.any_of("wgrad")[products]
    row = np.cumsum(~in_row)
    share = np.bincount(row, has_layout) / np.maximum(np.bincount(row, in_row), 1)
    return mask_of_rows(len(outside), products, has_layout & (share[row] > MIN_DEFERRED_SHARE))


def lone_input_gradients(products: Ints, layout: CategoryColumn, replay: Ints) -> Bools:
    """Return the products in the layout of an input's gradient that stand alone in a forward.

    A backward computes gradients of weights, too. Without any, a few such products before a forward
    product are forward work: tables of rotary embeddings, attention's second product.

    Args:
        products: Rows of the products launched without an operator, in launch order.
        layout: Role that each event's layout stands for.
        replay: Number of each event's replay of a graph.
    """
    roles = pl.DataFrame(
        {
            "is_forward": layout.any_of("forward")[products],
            "is_dgrad": layout.any_of("dgrad")[products],
            "replay": replay[products],
        }
    )
    # A run of gradients ends with the forward product that follows it in its replay, if one does.
    run = pl.col("is_forward").shift(1, fill_value=False).cum_sum().over("replay")
    is_lone = (
        pl.col("is_forward").last()
        & ((pl.col("is_forward") | pl.col("is_dgrad")).all())
        & (pl.col("is_dgrad").sum() <= MAX_LONE_PRODUCTS)
    )
    marked = roles.with_columns(run=run).select(pl.col("is_dgrad") & is_lone.over("replay", "run"))
    return mask_of_rows(len(replay), products, marked.to_series().to_numpy())


def _layouts_without_ops(layout: CategoryColumn) -> CategoryColumn:
    """Return the layouts of products launched without any operator, as by a graph's replay, if they can be trusted.

    In training all three layouts are about as frequent; a forward alone has mostly one.
    """
    counts = np.bincount(layout.codes[layout.present], minlength=len(layout.values))
    counts = counts[counts > 0]
    all_three = len(counts) == len(set(ROLES_OF_LAYOUTS.values()))
    is_trusted = all_three and 2 * counts.min() >= counts.max()
    return layout if is_trusted else CategoryColumn.constant(None, len(layout))


def _roles_of_previous_op(
    ranges: Ranges, outer: Ints, role: CategoryColumn, ops: Ints
) -> CategoryColumn:
    """Return for each of *ops* the role of the product that the op before it computed.

    *outer* are the outermost ops of the products that have a *role*.
    """
    index = np.full(len(ranges), -1, np.int64)
    index[outer] = np.arange(len(outer))
    return role.take(take_or_missing(index, take_or_missing(ranges.previous_op, ops)))


def roles_by_layout(names: CategoryColumn) -> CategoryColumn:
    """Return the role that the layout letters in a kernel's name stand for.

    >>> names = pl.Series(["nvjet_h_128x64_TNN", "volta_sgemm_64x64_nt", "relu"])
    >>> roles_by_layout(CategoryColumn.from_series(names)).strings()
    ['forward', 'wgrad', None]
    """
    search = re.compile(KERNELS["product_layout"]).search

    def role(name: str) -> str | None:
        match = search(name, 0, MAX_SEARCHED_CHARS)
        if not match:
            return None
        letters = next(group for group in match.groups() if group)
        return ROLES_OF_LAYOUTS.get(letters if letters in ROLES_OF_LAYOUTS else letters.lower())

    return names.replace([role(name) for name in names.values])


def _call_roles(
    autograd: Autograd,
    calls: Ints,
    outer: Ints,
    *,
    graph_products: GraphProducts,
    nodes_without_op: Ints,
) -> FirstEvidence:
    """Find the roles of the ops that launched products.

    Args:
        autograd: Nodes among the host ranges.
        calls: Rows of the ops.
        outer: Outermost product op around each of the calls.
        graph_products: Products of compiled graphs.
        nodes_without_op: Nodes that launched a product without an op, which may be the gradient of
            a weight.

    Returns:
        Role and evidence of each of the calls; null where nothing tells.
    """
    ranges = autograd.ranges
    rerun = autograd.rerun[calls] >= 0
    # Forward work that runs again is no part of its node.
    node = np.where(rerun, -1, autograd.node_of[calls])
    in_node = node >= 0
    made_node_that_ran = (autograd.differentiable[calls] >= 0) & ~rerun
    roles = FirstEvidence.empty(len(calls))
    roles.fill_mask("pass", "forward", made_node_that_ran & ~in_node)
    by_operands, is_batched = batched_roles(ranges, autograd, calls, node)
    roles.fill("operands", by_operands)
    by_shape = roles_by_shape(ranges, autograd, calls, node, rerun=rerun)
    roles.fill("shapes", by_shape.where(~is_batched & ~graph_products.doubtful[calls]))
    roles.fill_mask("order", "dgrad", graph_products.input_gradient[calls])
    roles.fill_mask("order", "wgrad", graph_products.weight_gradient[calls])
    position, count = positions_in_groups(node)
    roles.fill("order", _roles_by_order(autograd, node, position, count))
    by_consumer, by_transpose = roles_by_use(ranges, outer, node, count)
    roles.fill("consumer", by_consumer)
    roles.fill("transpose", by_transpose)
    in_linear = ranges.op_around(calls, r"^aten::linear\Z") >= 0
    # Not ~in_node, which holds for reruns too: they are inside the engine, whatever ``node`` says.
    roles.fill_mask("pass", "forward", in_linear & (autograd.node_of[calls] < 0) & autograd.active)
    called_like_forward = (
        np.isin(ranges.path[calls], ranges.path[calls[made_node_that_ran]]) | in_linear
    )
    may_be_owed = ~in_node & ~(called_like_forward | rerun)
    # A custom node with one product computed dgrad alone, and left its wgrad to a product outside
    # the engine, unless it also multiplied without an operator, which computes its wgrad.
    role = roles.value
    is_single = in_node & (count == 1)
    unknown_single = is_single & ~role.present
    owing = (unknown_single | (is_single & role.any_of("dgrad"))) & ~np.isin(node, nodes_without_op)
    is_owed = match_owed(owing, may_be_owed & ~role.present, ranges.start(calls))
    roles.fill_mask("owed", "wgrad", is_owed)
    roles.fill_mask("owed", "dgrad", unknown_single)
    return roles


def _roles_by_order(autograd: Autograd, node: Ints, position: Ints, count: Ints) -> CategoryColumn:
    """Return roles by the fixed order in which autograd's formulas multiply: mm wgrad first, addmm wgrad second.

    A node with one product computed one of the two gradients: the weight's if the nodes of the
    weight run right after it. Of a node that ran twice, the first run is for the input and the last
    for the weight, as in zero-bubble schedules.
    """
    in_node = node >= 0
    name = autograd.names.take(node)
    is_mm = name.matches(r"^MmBackward")
    is_addmm = name.matches(r"^Addmm(Activation)?Backward")
    is_pair = (is_mm | is_addmm) & (count == 2)
    is_single = (is_mm | is_addmm) & (count == 1)
    is_only_product = in_node & (count == 1)
    unnumbered = in_node & (take_or_missing(autograd.node_sequence, node) < 0)
    runs_again = autograd.runs_again[node]
    ran_before = autograd.ran_before[node]
    weight_nodes = _nodes_followed_by_transpose(autograd) if is_single.any() else node[:0]
    transpose_follows = autograd.followed_by(r"^TBackward")[node]
    accumulation_follows = autograd.followed_by(r"^AccumulateGrad$")[node]
    return CategoryColumn.choose(
        len(node),
        [
            ("wgrad", is_pair & is_mm & (position == 0)),
            ("dgrad", is_pair & is_mm & (position == 1)),
            ("dgrad", is_pair & is_addmm & (position == 0)),
            ("wgrad", is_pair & is_addmm & (position == 1)),
            ("wgrad", is_single & np.isin(node, weight_nodes)),
            ("wgrad", is_single & unnumbered & transpose_follows),
            ("wgrad", is_only_product & ran_before & ~runs_again & accumulation_follows),
            ("dgrad", is_only_product & runs_again),
            ("dgrad", is_single),
        ],
    )


def _nodes_followed_by_transpose(autograd: Autograd) -> Ints:
    """Return the product nodes after which their weight's transpose ran, which has a number one or two lower."""
    rows = autograd.numbered_rows
    name = autograd.names.take(rows)
    nodes = node_table(autograd.ranges, rows, autograd.node_sequence)
    products = nodes.filter(pl.Series(name.matches(r"^(Mm|Addmm(Activation)?)Backward")))
    transposes = nodes.filter(pl.Series(name.matches(r"^TBackward"))).drop("row")
    # For each transpose the last run before it of the product whose number is one or two higher.
    runs = []
    for step in (1, 2):
        later = transposes.with_columns(pl.col("sequence") + step)
        joined = later.join_asof(
            products,
            on="start",
            by=["thread", "sequence"],
            strategy="backward",
            check_sortedness=False,
        )
        runs.append(joined)
    return pl.concat(runs)["row"].drop_nulls().to_numpy().astype(np.int64)


def roles_by_use(
    ranges: Ranges, outer: Ints, node: Ints, count: Ints
) -> tuple[CategoryColumn, CategoryColumn]:
    """Return the roles of a custom node's products by what uses the result, and by transposed operands.

    A product whose result is added in place is the gradient of a weight, and so is one of whose
    operands was transposed just before; the others of the node are not.
    """
    is_layer = (node >= 0) & (count >= 2) & (count <= _MAX_PRODUCTS_OF_LAYER)
    following = take_or_missing(ranges.next_op, outer)
    is_added = ranges.name_matches(following, r"^aten::(add_|copy_|_foreach_add_)$")
    previous = take_or_missing(ranges.previous_op, outer)
    before_previous = take_or_missing(ranges.previous_op, previous)
    is_transposed = ranges.name_matches(previous, OPERATORS["transpose"])
    is_transposed = is_transposed | ranges.name_matches(before_previous, OPERATORS["transpose"])
    return _split_node(node, is_layer, is_added), _split_node(node, is_layer, is_transposed)


def _split_node(node: Ints, is_layer: Bools, marked: Bools) -> CategoryColumn:
    """Return wgrad for *marked* products and dgrad for the others, in nodes where some but not all are marked."""
    _, number = np.unique(node, return_inverse=True)
    marked_count = np.bincount(number, weights=marked)[number]
    count = np.bincount(number)[number]
    is_split = is_layer & (marked_count > 0) & (marked_count < count)
    return CategoryColumn.choose(
        len(node), [("wgrad", is_split & marked), ("dgrad", is_split & ~marked)]
    )


def outermost_product_ops(ranges: Ranges, calls: Ints) -> Ints:
    """Return the outermost product op around each call, such as the ``aten::matmul`` of an ``aten::mm``."""
    outer = calls
    for _ in range(_MAX_OP_DEPTH):
        parent = ranges.op_of[outer]
        outer = np.where(ranges.name_matches(parent, OPERATORS["product"]), parent, outer)
    return outer
