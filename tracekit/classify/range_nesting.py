"""Nesting of host ranges: the op and the annotation around each range and around points in time.

These functions allocate arrays and call the compiled loops of ``tracekit._loops.nesting``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._loops import nesting
from tracekit._util.arrays import AnyInts, Bools, Int32s, Ints, as_flags, as_int32, as_int64

MAX_MOVES_PER_ROW = 8
"""Mean distance of a row from its sorted position up to which insertion is faster than sorting."""


class Nested(NamedTuple):
    """Innermost op and annotation around each range and each point; -1 where none."""

    op_of: Int32s
    ann_of: Int32s
    path: Ints  # hash of the names from the outermost op down to an op; for an annotation, of the annotations
    previous_op: Int32s  # of an op: the op before it in the same op; empty unless siblings were asked for
    next_op: Int32s
    point_op: Ints
    point_annotation: Ints


def nest(  # noqa: PLR0917 - one argument per column
    thread: Ints, start: Ints, end: Ints, kind: npt.NDArray[Any], name: AnyInts, point_thread: Ints, point_time: Ints,
    *, siblings: bool = False,
) -> Nested:  # fmt: skip
    """Find what is around every range and every point, on its own thread.

    A range contains the moment at which it starts, not the one at which it ends.

    Args:
        thread: Thread of each range. Ranges are sorted by thread, then start, the longer first.
        start: Start of each range.
        end: End of each range.
        kind: ``OP`` or ``ANNOTATION``.
        name: Code of each range's name.
        point_thread: Thread of each point. Points come in any order.
        point_time: Time of each point.
        siblings: Find the op before and after each op, too.

    >>> first, zeros = np.zeros(1, np.int64), np.zeros(2, np.int64)
    >>> kind = np.array([nesting.OP, nesting.OP])
    >>> nested = nest(zeros, np.array([0, 2]), np.array([9, 5]), kind, zeros, first, np.array([3]))
    >>> nested.op_of.tolist(), nested.point_op.tolist(), nested.point_annotation.tolist()
    ([-1, 0], [1], [-1])
    """
    ranges, order = len(start), np.lexsort((point_time, point_thread))
    op_of, ann_of, path = np.empty(ranges, np.int32), np.empty(ranges, np.int32), np.empty(ranges, np.uint64)
    neighbours = np.empty((2, ranges if siblings else 0), np.int32)
    sorted_op, sorted_annotation = np.full((2, len(order)), -1, np.int64)
    nesting.nest(
        thread=as_int64(thread),
        start=as_int64(start),
        end=as_int64(end),
        kind=np.ascontiguousarray(kind, np.uint8),
        name=as_int32(name),
        point_thread=as_int64(point_thread[order]),
        point_time=as_int64(point_time[order]),
        stacks=np.empty((3, ranges + 2), np.int32),
        op_around=op_of,
        annotation_around=ann_of,
        path_hash=path,
        siblings=neighbours,
        op_around_point=sorted_op,
        annotation_around_point=sorted_annotation,
    )
    # The loop visits points in sorted order: put its results back into the caller's order.
    point_op, point_annotation = np.empty((2, len(order)), np.int64)
    point_op[order], point_annotation[order] = sorted_op, sorted_annotation
    return Nested(op_of, ann_of, path.view(np.int64), neighbours[0], neighbours[1], point_op, point_annotation)


def sort_ranges(  # noqa: PLR0917 - one argument per column
    rows: Ints, thread: Ints, start: Ints, end: Ints, kind: npt.NDArray[np.uint8], number: Ints
) -> Int32s:
    """Sort *rows* by thread, then start, the longer first, then kind, then number.

    The columns hold all rows, of which *rows* are some. Files list the events of a thread nearly in order, so insertion
    is tried first.

    >>> start, end, zeros = np.array([5, 0, 5]), np.array([6, 0, 9]), np.zeros(3, np.int64)
    >>> sort_ranges(np.array([0, 2]), zeros, start, end, zeros.astype(np.uint8), zeros).tolist()
    [2, 0]
    """
    own_thread = thread[rows]
    thread_sizes = np.bincount(own_thread)
    out = np.empty(len(rows), np.int32)
    is_sorted = nesting.sort_nearly_sorted(
        rows=as_int64(rows),
        thread=as_int64(thread),
        start=as_int64(start),
        end=as_int64(end),
        kind=np.ascontiguousarray(kind, np.uint8),
        number=as_int64(number),
        next_slot=np.cumsum(thread_sizes) - thread_sizes,
        max_moves=MAX_MOVES_PER_ROW * len(rows),
        out=out,
    )
    if is_sorted:
        return out
    return as_int32(rows[np.lexsort((number[rows], kind[rows], -end[rows], start[rows], own_thread))])


def nearest_marked_ancestor(parent: AnyInts, marked: Bools) -> Int32s:
    """Return for every row the nearest *marked* row at or above it; -1 where none. Parents come before children.

    >>> nearest_marked_ancestor(np.array([-1, 0, 1]), np.array([False, True, False])).tolist()
    [-1, 1, 1]
    """
    nearest = np.full(len(parent), -1, np.int32)
    nesting.find_nearest_marked(as_int32(parent), as_flags(marked), nearest)
    return nearest


def nearest_named_op(parent: Int32s, is_op: Bools, name: Int32s, rows: AnyInts, wanted_name: Bools) -> Ints:
    """Return for each of *rows* the nearest op at or above it whose name is wanted; -1 where none.

    >>> tree = np.array([-1, 0, 1]), np.ones(3, np.bool_), np.array([0, 1, 0])
    >>> nearest_named_op(*tree, np.array([2, 0, -1]), np.array([False, True, False])).tolist()
    [1, -1, -1]
    """
    nearest = np.full(len(rows), -1, np.int64)
    if wanted_name.any():
        nesting.find_nearest_named(
            as_int32(parent), as_flags(is_op), as_int32(name), as_flags(wanted_name), as_int64(rows), nearest
        )
    return nearest
