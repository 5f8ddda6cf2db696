"""How many products a node runs, and in which order: what is left to tell gradients apart without names and shapes.

A layer with a kernel library of its own multiplies without operators. Its backward runs twice as many products as its
forward did, or as many, if the weights' gradients are left for later.
"""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints

_TURNS = ("first", "second")
_SHARES = ("once", "twice", "odd")


def node_rows(products: Bools, node: Ints, at: Ints) -> Ints:
    """Rows of the products that nodes run, in the order they were launched."""
    rows = np.flatnonzero(products & (node >= 0))
    return rows[np.argsort(at[rows], kind="stable")]


def turns(products: Bools, node: Ints, at: Ints) -> CategoryColumn:
    """Return the products of one node in turns: first, second, first again."""
    rows = node_rows(products, node, at)
    return _spread(rows, places(node[rows])[0] % 2, len(products))


def halves(products: Bools, node: Ints, at: Ints) -> CategoryColumn:
    """Return which half of its node's products each is in; null where their number is odd.

    >>> one = np.zeros(4, np.int64)
    >>> halves(np.ones(4, np.bool_), one, np.arange(4)).series("half").to_list()
    ['first', 'first', 'second', 'second']
    """
    rows = node_rows(products, node, at)
    place, count = places(node[rows])
    return _spread(rows, np.where(count % 2 == 0, 2 * place // np.maximum(count, 1), -1), len(products))


def shares(products: Bools, node: Ints, sequence: Ints, ahead: Bools) -> CategoryColumn:
    """Return a node's number of products against its forward's: once, twice, or odd; null for what is not a product.

    *sequence* ties the events of a node to those of its forward, which are *ahead*.
    """
    rows = np.flatnonzero(products & (node >= 0))
    numbers, count = np.unique(sequence[products & ahead & (sequence >= 0)], return_counts=True)
    if not len(rows) or not len(numbers):
        return CategoryColumn(_SHARES, np.full(len(products), -1, np.int64))
    per_node = np.bincount(node[rows])
    place = np.minimum(np.searchsorted(numbers, sequence[rows]), len(numbers) - 1)
    theirs, here = count[place], per_node[node[rows]]
    share = np.where(here == theirs, 0, np.where(here == 2 * theirs, 1, 2))
    out = np.full(len(products), -1, np.int64)
    out[rows] = np.where(numbers[place] == sequence[rows], share, -1)
    return CategoryColumn(_SHARES, out)


def owed(products: Bools, share: CategoryColumn, outside: Bools, at: Ints) -> Bools:
    """Products *outside* the engine that pay for nodes which ran theirs once, each for one, while any is owed."""
    due = products & share.any_of("once")
    order = np.argsort(at, kind="stable")
    balance = np.cumsum(due[order].astype(np.int64)) - np.cumsum(outside[order].astype(np.int64))
    pays = np.zeros(len(at), np.bool_)
    pays[order] = outside[order] & (balance >= 0)
    return pays


def places(group: Ints) -> tuple[Ints, Ints]:
    """For every row its place among the rows of its group, and how many there are.

    >>> place, count = places(np.array([4, 9, 4]))
    >>> place.tolist(), count.tolist()
    ([0, 0, 1], [2, 1, 2])
    """
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    first = np.ones(len(group), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    run = np.cumsum(first) - 1
    place, count = np.empty(len(group), np.int64), np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.flatnonzero(first)[run]
    count[order] = np.bincount(run, minlength=1)[run]
    return place, count


def _spread(rows: Ints, codes: Ints, size: int) -> CategoryColumn:
    out = np.full(size, -1, np.int64)
    out[rows] = codes
    return CategoryColumn(_TURNS, out)
