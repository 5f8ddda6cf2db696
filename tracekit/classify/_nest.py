"""Nesting of host ranges: which op and which annotation are around each of them (``_loops.nesting``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._loops import nesting
from tracekit._loops.nesting import ANNOTATION, OP
from tracekit._util.arrays import AnyInts, Int32s, as_flags, as_int32, as_int64

__all__ = [
    "ANNOTATION",
    "OP",
    "Ints",
    "Nested",
    "arrange",
    "climb",
    "in_order",
    "inherit",
    "nest",
    "time_key",
    "walk_exchanges",
]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.uint8]


class Nested(NamedTuple):
    """The innermost op and annotation around each range and each point, -1 where none, and a hash of each path."""

    op_of: Int32s
    ann_of: Int32s
    path: Ints  # of an op: of the ops down to and with itself; of an annotation: of the annotations
    before: Int32s  # of an op: the op before it with the same op around, where that was asked for
    after: Int32s
    asked_op: Ints  # of points
    asked_ann: Ints


def nest(  # noqa: PLR0917 - as many columns
    thread: Ints, start: Ints, end: Ints, what: npt.NDArray[Any], name: AnyInts, asked_thread: Ints, asked_at: Ints,
    *, siblings: bool = False,
) -> Nested:  # fmt: skip
    """Find what is around every range and every point that is asked for, on its own thread.

    Ranges come in order of thread, then start, the longer first; points in any order. A range holds the point at which
    it starts, not the one at which it ends. *siblings* too are found where they are asked for.

    >>> one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    >>> nested = nest(two, np.array([0, 2]), np.array([9, 5]), np.array([OP, OP]), two, one, np.array([3]))
    >>> nested.op_of.tolist(), nested.asked_op.tolist(), nested.asked_ann.tolist()
    ([-1, 0], [1], [-1])
    """
    ranges, order = len(start), in_order(asked_thread, asked_at)
    op_of, ann_of, path = np.empty(ranges, np.int32), np.empty(ranges, np.int32), np.empty(ranges, np.uint64)
    beside = np.empty((2, ranges if siblings else 0), np.int32)
    point_op, point_ann = np.full((2, len(order)), -1, np.int64)
    nesting.nest(
        thread=as_int64(thread),
        start=as_int64(start),
        end=as_int64(end),
        kind=np.ascontiguousarray(what, np.uint8),
        name=as_int32(name),
        point_thread=as_int64(asked_thread[order]),
        point_time=as_int64(asked_at[order]),
        stacks=np.empty((3, ranges + 2), np.int32),
        op_around=op_of,
        annotation_around=ann_of,
        path_hash=path,
        siblings=beside,
        op_around_point=point_op,
        annotation_around_point=point_ann,
    )
    asked_op, asked_ann = np.empty((2, len(order)), np.int64)
    asked_op[order], asked_ann[order] = point_op, point_ann
    return Nested(op_of, ann_of, path.view(np.int64), beside[0], beside[1], asked_op, asked_ann)


MAX_MOVES_PER_ROW = 8
"""Mean distance of a row from its place up to which insertion is faster than sorting."""


def arrange(rows: Ints, thread: Ints, start: Ints, end: Ints, kind: Kinds, number: Ints) -> Int32s:  # noqa: PLR0917
    """Rows by thread, then start, the longer first; of those alike in both, by kind and number.

    Columns hold all rows, and files list the events of a thread nearly in their order.

    >>> start, end, alike = np.array([5, 0, 5]), np.array([6, 0, 9]), np.zeros(3, np.int64)
    >>> arrange(np.array([0, 2]), alike, start, end, alike.astype(np.uint8), alike).tolist()
    [2, 0]
    """
    own = thread[rows]
    sizes = np.bincount(own)
    out = np.empty(len(rows), np.int32)
    is_sorted = nesting.sort_nearly_sorted(
        rows=as_int64(rows),
        thread=as_int64(thread),
        start=as_int64(start),
        end=as_int64(end),
        kind=np.ascontiguousarray(kind, np.uint8),
        number=as_int64(number),
        next_place=np.cumsum(sizes) - sizes,
        max_moves=MAX_MOVES_PER_ROW * len(rows),
        out=out,
    )
    if is_sorted:
        return out
    return as_int32(rows[np.lexsort((number[rows], kind[rows], -end[rows], start[rows], own))])


def in_order(thread: AnyInts, time: Ints) -> Ints:
    """Rows by thread, then time; mostly they are nearly so already, which a stable sort of one number knows to use."""
    if len(time) and int(np.ptp(time)) < 1 << 52 and int(thread.min()) >= 0 and int(thread.max()) < 1 << 10:
        return np.argsort(time_key(thread, time - time.min()), kind="stable")
    return np.lexsort((time, thread))


def time_key(thread: AnyInts, time: Ints) -> Ints:
    """One number that orders by thread, then by time: threads are few, and times here are far below 2**52."""
    return thread * np.int64(1 << 52) + time


def inherit(parent: AnyInts, own: Bools) -> Int32s:
    """For every row the nearest row at or above it for which *own* holds, -1 where none. Parents come before children.

    >>> inherit(np.array([-1, 0, 1]), np.array([False, True, False])).tolist()
    [-1, 1, 1]
    """
    nearest = np.full(len(parent), -1, np.int32)
    nesting.find_nearest_marked(as_int32(parent), as_flags(own), nearest)
    return nearest


def climb(parent: Int32s, is_op: Bools, name: Int32s, rows: AnyInts, wanted: Bools) -> Ints:
    """For each of *rows* the nearest op at or above it whose name is *wanted*, -1 where none.

    >>> tree = np.array([-1, 0, 1]), np.ones(3, np.bool_), np.array([0, 1, 0])
    >>> climb(*tree, np.array([2, 0, -1]), np.array([False, True, False])).tolist()
    [1, -1, -1]
    """
    out = np.full(len(rows), -1, np.int64)
    if wanted.any():
        nesting.find_nearest_named(
            as_int32(parent), as_flags(is_op), as_int32(name), as_flags(wanted), as_int64(rows), out
        )
    return out


def walk_exchanges(  # noqa: PLR0917 - eight columns of one table
    lane: Ints, lanes: int, engine: Ints, maker: Ints, user: Ints, fresh: Ints, products: Ints, attention: Ints
) -> tuple[Ints, Ints]:
    """Role and pass of all-to-alls in launch order; see ``experts._take_turns``.

    A lane is one group in one step; passes are 0 forward, 1 backward, 2 the forward run again. *maker* counts only if
    some compute was launched since the lane's last exchange. Where maker and user disagree, an exchange that another
    waits for decides: it closes what is open.
    """
    passes = len(products)
    # Of each lane: compute launched up to its last exchange, and of each pass the counts at its last exchange.
    last_fresh = [-1] * lanes
    last_products, last_attention = ([[0] * passes for _ in range(lanes)] for _ in range(2))
    has_begun, is_open = ([[False] * passes for _ in range(lanes)] for _ in range(2))
    role, way = np.zeros((2, len(lane)), np.int64)
    columns = (column.tolist() for column in (lane, engine, maker, user, fresh, products.T, attention.T))
    for i, (k, engine_pass, made_by, used_by, launched, product, attended) in enumerate(zip(*columns, strict=True)):
        made = made_by if launched > last_fresh[k] else -1
        last_fresh[k] = launched
        if engine_pass >= 0:
            p = engine_pass
        elif made == used_by or used_by < 0:
            p = made
        elif made < 0:
            p = used_by
        else:
            p = made if is_open[k][made] else used_by
        if p < 0:
            p = max(made_by, 0)
        if not has_begun[k][p] or attended[p] > last_attention[k][p]:
            is_open[k][p] = True  # the first of a pair
        elif product[p] > last_products[k][p]:
            is_open[k][p] = not is_open[k][p]
        has_begun[k][p] = True
        last_products[k][p], last_attention[k][p] = product[p], attended[p]
        way[i] = p
        # A pair's first exchange is dispatch in the forward and combine in the backward.
        role[i] = is_open[k][p] if p == 1 else not is_open[k][p]
    return role, way
