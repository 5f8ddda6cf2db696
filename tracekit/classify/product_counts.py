"""Roles of matrix products from their number and order in a node, where neither names nor shapes tell.

A layer with a kernel library of its own multiplies without operators. Its backward runs twice as many products as its
forward did, or as many if the gradients of the weights are left for later.
"""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.row_order import mask_of_rows, positions_in_groups

_TURNS = ("first", "second")
_RATIOS = ("once", "twice", "odd")


def alternating_turns(products: Bools, node: Ints, launch_ns: Ints) -> CategoryColumn:
    """Return the turn of each product in its node: first, second, first, second, and so on."""
    rows = _node_products(products, node, launch_ns)
    position, _ = positions_in_groups(node[rows])
    return CategoryColumn(_TURNS, position % 2).spread(rows, len(products))


def product_halves(products: Bools, node: Ints, launch_ns: Ints) -> CategoryColumn:
    """Return the half of its node's products that each product is in; null where their number is odd.

    >>> same_node = np.zeros(4, np.int64)
    >>> product_halves(np.ones(4, np.bool_), same_node, np.arange(4)).strings()
    ['first', 'first', 'second', 'second']
    """
    rows = _node_products(products, node, launch_ns)
    position, count = positions_in_groups(node[rows])
    half = np.where(count % 2 == 0, 2 * position // np.maximum(count, 1), -1)
    return CategoryColumn(_TURNS, half).spread(rows, len(products))


def _node_products(products: Bools, node: Ints, launch_ns: Ints) -> Ints:
    """Return the rows of the products that nodes launch, in launch order."""
    rows = np.flatnonzero(products & (node >= 0))
    return rows[np.argsort(launch_ns[rows], kind="stable")]


def backward_forward_ratio(products: Bools, node: Ints, sequence: Ints, forward: Bools) -> CategoryColumn:
    """Compare the number of a node's products with that of its forward: ``once`` as many, ``twice``, or ``odd``.

    Args:
        products: Mask of matrix products.
        node: Node of each event, -1 outside.
        sequence: Sequence number of each event, which a node shares with its forward.
        forward: Mask of forward events.

    Returns:
        The ratio for products inside nodes; null elsewhere, and where the forward is not in the trace.
    """
    rows = np.flatnonzero(products & (node >= 0))
    numbers, forward_counts = np.unique(sequence[products & forward & (sequence >= 0)], return_counts=True)
    if not len(rows) or not len(numbers):
        return CategoryColumn.constant(None, len(products))
    own_count = np.bincount(node[rows])[node[rows]]
    index = np.minimum(np.searchsorted(numbers, sequence[rows]), len(numbers) - 1)
    forward_count = forward_counts[index]
    ratio = np.where(own_count == forward_count, 0, np.where(own_count == 2 * forward_count, 1, 2))
    has_forward = numbers[index] == sequence[rows]
    return CategoryColumn(_RATIOS, np.where(has_forward, ratio, -1)).spread(rows, len(products))


def match_owed(owing: Bools, candidates: Bools, time: Ints) -> Bools:
    """Return the *candidates* that deliver what earlier *owing* rows left to do, in order of time.

    Every owing row adds one to a balance, every candidate takes one from it. A candidate counts if the balance does not
    fall below zero.
    """
    order = np.argsort(time, kind="stable")
    balance = np.cumsum(owing[order].astype(np.int64)) - np.cumsum(candidates[order].astype(np.int64))
    return mask_of_rows(len(time), order, candidates[order] & (balance >= 0))
