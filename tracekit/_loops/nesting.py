"""Nesting of host ranges, found in one pass with a stack of open ranges.

Ranges of one thread nest like calls. A pass visits them by thread and start and keeps the open
ranges on a stack, so that the innermost range around anything is on top.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops import let_interrupt

OP, ANNOTATION = range(2)
"""Kinds of ranges."""

_HASH_FACTOR = 1099511628211  # the 64-bit FNV prime
_HASH_OFFSET = 0x9E3779B9  # added at every level: without it a range without a name, in no other, would have hash 0
_LOW_64_BITS = 2**64 - 1


@cython.cfunc
@cython.inline
def _count_open(
    stack: cython.const[cython.int][::1],
    count: cython.Py_ssize_t,
    end: cython.const[cython.longlong][::1],
    now: cython.longlong,
) -> cython.Py_ssize_t:
    """Return how many of the *count* ranges on a stack are open at *now*.

    It is the innermost ones that were closed.
    """
    while count > 0 and end[stack[count - 1]] <= now:
        count -= 1
    return count


def nest(
    thread: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    end: cython.const[cython.longlong][::1],
    kind: cython.const[cython.uchar][::1],
    name: cython.const[cython.int][::1],
    point_thread: cython.const[cython.longlong][::1],
    point_time: cython.const[cython.longlong][::1],
    stacks: cython.int[:, ::1],
    op_around: cython.int[::1],
    annotation_around: cython.int[::1],
    path_hash: cython.ulonglong[::1],
    siblings: cython.int[:, ::1],
    op_around_point: cython.longlong[::1],
    annotation_around_point: cython.longlong[::1],
) -> None:
    """Find the innermost op and annotation around every range and around every point.

    A range contains the moment at which it starts, and not the one at which it ends. Annotations may
    cross: one that lies mostly behind another contains what both do.

    Args:
        thread, start, end, kind, name: Ranges by thread, then start, the longer first.
        point_thread, point_time: Points by thread, then time.
        stacks: Scratch space: three rows, one longer than the ranges: the depth inside the
            innermost is written too.
        op_around, annotation_around: Results: row of the range around every range; -1 where there
            is none.
        path_hash: Result: hash of the names of the ops (of an annotation: of the annotations) from
            the outermost to the range itself.
        siblings: Result: op before and op after each op in the same op; -1 where there is none. Not
            computed if it has no columns.
        op_around_point, annotation_around_point: Results: row of the range around every point. Must
            be filled with -1 by the caller, and stays so where there is none.

    """
    range_count: cython.Py_ssize_t = start.shape[0]
    point_count: cython.Py_ssize_t = point_time.shape[0]
    want_siblings: cython.bint = siblings.shape[1] > 0
    op_kind: cython.uchar = OP
    factor: cython.ulonglong = _HASH_FACTOR
    offset: cython.ulonglong = _HASH_OFFSET
    low_64_bits: cython.ulonglong = _LOW_64_BITS
    point: cython.Py_ssize_t = 0
    current_thread: cython.longlong = -1
    parent_hash: cython.ulonglong
    # The open ranges of the current thread, the innermost last. Entries behind these were closed
    # and do not count.
    op_stack: cython.int[::1] = stacks[0]
    open_ops: cython.Py_ssize_t = 0
    annotation_stack: cython.int[::1] = stacks[1]
    open_annotations: cython.Py_ssize_t = 0
    # The last op seen at each depth, a possible sibling of the next op there; -1: none since the op
    # around was opened.
    last_op_at_depth: cython.int[::1] = stacks[2]
    for i in range(range_count + 1):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        # Points before this range. One at its start lies inside, and is assigned after that range
        # was opened; behind the last range come all points that are left.
        while point < point_count and (
            i == range_count
            or point_thread[point] < thread[i]
            or (point_thread[point] == thread[i] and point_time[point] < start[i])
        ):
            if point_thread[point] == current_thread:
                open_ops = _count_open(op_stack, open_ops, end, point_time[point])
                open_annotations = _count_open(
                    annotation_stack, open_annotations, end, point_time[point]
                )
                if open_ops > 0:
                    op_around_point[point] = op_stack[open_ops - 1]
                if open_annotations > 0:
                    annotation_around_point[point] = annotation_stack[open_annotations - 1]
            point += 1
        if i == range_count:
            break
        if thread[i] != current_thread:
            current_thread = thread[i]
            open_ops = 0
            open_annotations = 0
            last_op_at_depth[0] = -1
        open_ops = _count_open(op_stack, open_ops, end, start[i])
        open_annotations = _count_open(annotation_stack, open_annotations, end, start[i])
        if kind[i] != op_kind:
            # An annotation that lies mostly behind the end of one that it begins in is not inside that.
            while open_annotations > 0:
                around = annotation_stack[open_annotations - 1]
                if end[i] - end[around] <= end[around] - start[i]:
                    break
                open_annotations -= 1
        op_around[i] = op_stack[open_ops - 1] if open_ops > 0 else -1
        annotation_around[i] = (
            annotation_stack[open_annotations - 1] if open_annotations > 0 else -1
        )
        parent = op_around[i] if kind[i] == op_kind else annotation_around[i]
        parent_hash = 0
        if parent >= 0:
            parent_hash = cython.cast(cython.ulonglong, path_hash[parent])
        # Names are numbered from 0, and -1 is no name: one more is never negative. The product
        # wraps around at 64 bits: by itself in C, by the mask where this file is run as Python.
        parent_hash ^= cython.cast(cython.ulonglong, name[i] + 1)
        path_hash[i] = (parent_hash * factor + offset) & low_64_bits
        if want_siblings:
            siblings[0, i] = -1
            siblings[1, i] = -1
        if kind[i] == op_kind:
            if want_siblings:
                previous_op = last_op_at_depth[open_ops]
                if previous_op >= 0:
                    siblings[0, i] = previous_op
                    siblings[1, previous_op] = i
                last_op_at_depth[open_ops] = i
                last_op_at_depth[open_ops + 1] = -1
            op_stack[open_ops] = i
            open_ops += 1
        else:
            annotation_stack[open_annotations] = i
            open_annotations += 1


def find_nearest_marked(
    parent: cython.const[cython.int][::1],
    marked: cython.const[cython.uchar][::1],
    nearest: cython.int[::1],
) -> None:
    """Find for every row the nearest marked row at or above it.

    Args:
        parent: Parent of each row, which comes before it; -1: none.
        marked: Which rows are marked.
        nearest: Result. Must be filled with -1 by the caller, and stays so where there is none.

    """
    for i in range(parent.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        if marked[i]:
            nearest[i] = i
        elif parent[i] >= 0:
            nearest[i] = nearest[parent[i]]


def assign_lines(
    track: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    end: cython.const[cython.longlong][::1],
    around: cython.longlong[::1],
    innermost: cython.longlong[::1],
    line: cython.longlong[::1],
) -> None:
    """Assign each event to the first line of its track on which it nests with the events already there.

    Args:
        track, start, end: Events by track, then start, the longer first.
        around: Scratch space: the event that each event lies in, on its line.
        innermost: Scratch space: innermost open event of each line. Its length is the number of
            lines; what nests on none of them goes to the last.
        line: Result.

    """
    lines: cython.Py_ssize_t = innermost.shape[0]
    for i in range(start.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        if i == 0 or track[i] != track[i - 1]:
            for k in range(lines):
                innermost[k] = -1
        for k in range(lines):
            while innermost[k] >= 0 and end[innermost[k]] <= start[i]:
                innermost[k] = around[innermost[k]]
            if innermost[k] < 0 or end[innermost[k]] >= end[i] or k == lines - 1:
                line[i] = k
                around[i] = innermost[k]
                innermost[k] = i
                break
