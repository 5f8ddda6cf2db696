"""How many products a node runs, and in which order: what is left to tell gradients apart without names and shapes.

A layer with a kernel library of its own multiplies without operators. Its backward runs twice as many products as its
forward did, or as many, if the weights' gradients are left for later.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.classify._nest import Ints
from tracekit.classify._text import Bools, Text

_TURNS = ("first", "second")
_SHARES = ("once", "twice", "odd")


def node_rows(products: Bools, node: Ints, at: Ints) -> Ints:
    """Rows of the products that nodes run, in the order they were launched."""
    rows = np.flatnonzero(products & (node >= 0))
    return rows[np.argsort(at[rows], kind="stable")]


def turns(products: Bools, node: Ints, at: Ints) -> Text:
    """Take the products of one node by turns: first, second, first again."""
    rows = node_rows(products, node, at)
    return _spread(rows, _places(node[rows]) % 2, len(products))


def halves(products: Bools, node: Ints, at: Ints) -> Text:
    """Cut the products of one node in two; nothing is said of an odd number.

    >>> one = np.zeros(4, np.int64)
    >>> halves(np.ones(4, np.bool_), one, np.arange(4)).series("half").to_list()
    ['first', 'first', 'second', 'second']
    """
    rows = node_rows(products, node, at)
    count = np.bincount(node[rows])[node[rows]] if len(rows) else rows
    return _spread(rows, np.where(count % 2 == 0, 2 * _places(node[rows]) // np.maximum(count, 1), -1), len(products))


def shares(products: Bools, node: Ints, sequence: Ints, ahead: Bools) -> Text:
    """Hold a node's number of products against its forward's: once, twice, or odd; null where either has none.

    *sequence* ties the events of a node to those of its forward, which are *ahead*.
    """
    first = pl.DataFrame({"sequence": sequence, "use": products & ahead & (sequence >= 0)}).filter("use")
    then = pl.DataFrame({"node": node, "sequence": sequence, "use": products & (node >= 0)})
    counted = then.select("node", "sequence", mine=pl.col("use").sum().over("node"), inside=pl.col("node") >= 0).join(
        first.group_by("sequence").len("ahead"), on="sequence", how="left", maintain_order="left"
    )
    known = pl.col("inside") & (pl.col("mine") > 0) & pl.col("ahead").is_not_null()
    code = (
        pl.when(~known)
        .then(-1)
        .when(pl.col("mine") == pl.col("ahead"))
        .then(0)
        .when(pl.col("mine") == 2 * pl.col("ahead"))
        .then(1)
        .otherwise(2)
    )
    return Text(_SHARES, counted.select(code.alias("code"))["code"].to_numpy().astype(np.int64))


def owed(products: Bools, share: Text, outside: Bools, at: Ints) -> Bools:
    """Products *outside* the engine that pay for nodes which ran theirs once, each for one, while any is owed."""
    due = products & share.map(lambda v: v == "once")
    order = np.argsort(at, kind="stable")
    balance = np.cumsum(due[order].astype(np.int64)) - np.cumsum(outside[order].astype(np.int64))
    pays = np.zeros(len(at), np.bool_)
    pays[order] = outside[order] & (balance >= 0)
    return pays


def _places(node: Ints) -> Ints:
    place: Ints = pl.DataFrame({"node": node}).select(pl.int_range(pl.len()).over("node")).to_series().to_numpy()
    return place


def _spread(rows: Ints, codes: Ints, size: int) -> Text:
    out = np.full(size, -1, np.int64)
    out[rows] = codes
    return Text(_TURNS, out)
