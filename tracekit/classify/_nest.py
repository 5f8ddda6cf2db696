"""Which CPU ranges contain which: one pass over every thread with two stacks.

Ranges of one thread nest like calls. The pass walks them in order of start and keeps the open ops and the open
annotations on a stack each, so the innermost range around anything is the top of its stack: linear time, no search.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

OP, ANNOTATION, PROBE = 0, 1, 2
"""What a row is: an op, an annotation, or a point in time whose surroundings are asked for."""


@numba.njit(cache=True)
def _sweep(thread: Ints, start: Ints, end: Ints, what: Ints, name: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    n = len(start)
    op_of, ann_of = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    op_path, ann_path = np.zeros(n, np.int64), np.zeros(n, np.int64)
    ops, anns = np.empty(n, np.int64), np.empty(n, np.int64)
    n_ops = n_anns = 0
    current = np.int64(-1)
    for i in range(n):
        if thread[i] != current:
            current, n_ops, n_anns = thread[i], 0, 0
        while n_ops > 0 and end[ops[n_ops - 1]] <= start[i]:
            n_ops -= 1
        while n_anns > 0 and end[anns[n_anns - 1]] <= start[i]:
            n_anns -= 1
        if n_ops > 0:
            op_of[i] = ops[n_ops - 1]
            op_path[i] = op_path[ops[n_ops - 1]]
        if n_anns > 0:
            ann_of[i] = anns[n_anns - 1]
            ann_path[i] = ann_path[anns[n_anns - 1]]
        if what[i] == OP:
            op_path[i] = (op_path[i] ^ (name[i] + 1)) * np.int64(1099511628211) + np.int64(0x9E3779B9)
            ops[n_ops] = i
            n_ops += 1
        elif what[i] == ANNOTATION:
            ann_path[i] = (ann_path[i] ^ (name[i] + 1)) * np.int64(1099511628211) + np.int64(0x9E3779B9)
            anns[n_anns] = i
            n_anns += 1
    return op_of, ann_of, op_path, ann_path


def nest(thread: Ints, start: Ints, end: Ints, what: Ints, name: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """For every row: the innermost op and annotation around it (-1 where none), and a hash of each path down to it.

    Rows may come in any order. The path of an op or annotation includes itself, that of a probe does not.

    >>> one = np.zeros(3, np.int64)
    >>> op, ann, _, _ = nest(one, np.array([0, 2, 3]), np.array([9, 5, 4]), np.array([OP, OP, PROBE]), one)
    >>> op.tolist(), ann.tolist()
    ([-1, 0, 1], [-1, -1, -1])
    """
    order = np.lexsort((what, -end, start, thread))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    op_of, ann_of, op_path, ann_path = _sweep(
        *(np.ascontiguousarray(a[order]) for a in (thread, start, end, what, name))
    )
    op_of = np.where(op_of >= 0, order[op_of], -1)
    ann_of = np.where(ann_of >= 0, order[ann_of], -1)
    return op_of[back], ann_of[back], op_path[back], ann_path[back]


@numba.njit(cache=True)
def _inherit(parent: Ints, own: npt.NDArray[np.bool_]) -> Ints:
    out = np.full(len(parent), -1, np.int64)
    for i in range(len(parent)):
        if own[i]:
            out[i] = i
        elif parent[i] >= 0:
            out[i] = out[parent[i]]
    return out


def inherit(parent: Ints, own: npt.NDArray[np.bool_]) -> Ints:
    """For every row the nearest row at or above it for which *own* holds, -1 where none. Parents come before children.

    >>> inherit(np.array([-1, 0, 1]), np.array([False, True, False])).tolist()
    [-1, 1, 1]
    """
    found: Ints = _inherit(parent, own)
    return found


@numba.njit(cache=True)
def _siblings(thread: Ints, parent: Ints, is_op: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    n = len(parent)
    before, after = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    youngest = np.full(n, -1, np.int64)
    root = np.int64(-1)
    for i in range(n):
        if i == 0 or thread[i] != thread[i - 1]:
            root = np.int64(-1)
        if not is_op[i]:
            continue
        last = youngest[parent[i]] if parent[i] >= 0 else root
        if last >= 0:
            before[i] = last
            after[last] = i
        if parent[i] >= 0:
            youngest[parent[i]] = i
        else:
            root = np.int64(i)
    return before, after


def siblings(thread: Ints, parent: Ints, is_op: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """For every op the op before and after it under the same parent, -1 where none.

    >>> flat = np.zeros(3, np.int64), np.array([-1, 0, 0]), np.array([True, True, True])
    >>> [side.tolist() for side in siblings(*flat)]
    [[-1, -1, 1], [-1, 2, -1]]
    """
    before, after = _siblings(thread, parent, is_op)
    return before, after


@numba.njit(cache=True)
def walk_exchanges(  # noqa: PLR0917 - compiled code takes no keywords
    lane: Ints, lanes: int, engine: Ints, maker: Ints, user: Ints, fresh: Ints, products: Ints, attention: Ints
) -> tuple[Ints, Ints]:
    """Role and pass of all-to-alls in launch order; see ``experts._take_turns``.

    A lane is one group in one step. *maker* counts only if some compute was launched since the lane's last exchange.
    Where maker and user disagree, an exchange that another waits for decides: it closes what is open.
    """
    n = len(lane)
    role, way = np.zeros(n, np.int64), np.zeros(n, np.int64)
    seen = np.full(lanes, -1, np.int64)
    begun = np.zeros((lanes, 2), np.bool_)
    open_ = np.zeros((lanes, 2), np.bool_)
    product = np.zeros((lanes, 2), np.int64)
    attended = np.zeros((lanes, 2), np.int64)
    for i in range(n):
        k = lane[i]
        made = maker[i] if fresh[i] > seen[k] else -1
        used = user[i]
        seen[k] = fresh[i]
        if engine[i] >= 0:
            p = engine[i]
        elif made == used or used < 0:
            p = made
        elif made < 0:
            p = used
        else:
            p = made if open_[k, made] else used
        if p < 0:
            p = maker[i] if maker[i] >= 0 else 0
        worked = products[p, i] > product[k, p]
        looked = attention[p, i] > attended[k, p]
        if not begun[k, p] or looked:
            open_[k, p] = True  # the first of a pair
        elif worked:
            open_[k, p] = not open_[k, p]
        begun[k, p] = True
        product[k, p], attended[k, p] = products[p, i], attention[p, i]
        way[i] = p
        # A pair's first exchange is dispatch in the forward and combine in the backward.
        role[i] = (0 if open_[k, p] else 1) if p == 0 else (1 if open_[k, p] else 0)
    return role, way
