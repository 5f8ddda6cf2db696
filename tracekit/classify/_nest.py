"""Which CPU ranges contain which: one pass over every thread with two stacks.

Ranges of one thread nest like calls. The pass walks them in order of start and keeps the open ops and the open
annotations on a stack each, so the innermost range around anything is the top of its stack: linear time, no search.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._util.coded import AnyInts, Places
from tracekit._util.native import narrow, native, whole

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.uint8]

OP, ANNOTATION = 0, 1
"""What a range is."""


@native(
    "void(int64[::1], int64[::1], int64[::1], uint8[::1], int32[::1], int32[:,::1], int64[::1], int32[:,::1],"
    " int32[:,::1], int64[::1], int64[::1], int64[:,::1])"
)
def _sweep(  # noqa: PLR0912, PLR0917 - compiled code takes no keywords, and calls cost it
    thread: Ints, start: Ints, end: Ints, what: Kinds, name: Places, around: Places, path: Ints, beside: Places,
    room: Places, asked_thread: Ints, asked_at: Ints, answers: Ints,
) -> None:  # fmt: skip
    op_of, ann_of = around[0], around[1]
    ops, anns, youngest = room[0], room[1], room[2]
    siblings = beside.shape[1] > 0
    n_ops = n_anns = 0
    current = np.int64(-1)
    j, asked = 0, len(asked_at)
    for i in range(len(start) + 1):
        last = i == len(start)
        # Points before this range; one that comes as the range starts lies inside it.
        while j < asked and (
            last or asked_thread[j] < thread[i] or (asked_thread[j] == thread[i] and asked_at[j] < start[i])
        ):
            if asked_thread[j] == current:
                while n_ops > 0 and end[ops[n_ops - 1]] <= asked_at[j]:
                    n_ops -= 1
                while n_anns > 0 and end[anns[n_anns - 1]] <= asked_at[j]:
                    n_anns -= 1
                if n_ops > 0:
                    answers[0, j] = ops[n_ops - 1]
                if n_anns > 0:
                    answers[1, j] = anns[n_anns - 1]
            j += 1
        if last:
            break
        if thread[i] != current:
            current, n_ops, n_anns, youngest[0] = thread[i], 0, 0, -1
        while n_ops > 0 and end[ops[n_ops - 1]] <= start[i]:
            n_ops -= 1
        while n_anns > 0 and end[anns[n_anns - 1]] <= start[i]:
            n_anns -= 1
        op_of[i] = ops[n_ops - 1] if n_ops > 0 else -1
        ann_of[i] = anns[n_anns - 1] if n_anns > 0 else -1
        above = op_of[i] if what[i] == OP else ann_of[i]
        way = path[above] if above >= 0 else np.int64(0)
        path[i] = (way ^ (name[i] + 1)) * np.int64(1099511628211) + np.int64(0x9E3779B9)
        if siblings:
            beside[0, i] = beside[1, i] = -1
        if what[i] == OP:
            if siblings:
                last = youngest[n_ops]  # of the op around
                if last >= 0:
                    beside[0, i], beside[1, last] = last, i
                youngest[n_ops], youngest[n_ops + 1] = i, -1
            ops[n_ops] = i
            n_ops += 1
        else:
            anns[n_anns] = i
            n_anns += 1


class Nested(NamedTuple):
    """The innermost op and annotation around each range and each point, -1 where none, and a hash of each path."""

    op_of: Places
    ann_of: Places
    path: Ints  # of an op: of the ops down to and with itself; of an annotation: of the annotations
    before: Places  # of an op: the op before it with the same op around, where that was asked for
    after: Places
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
    around, path = np.empty((2, len(start)), np.int32), np.empty(len(start), np.int64)
    order = in_order(asked_thread, asked_at)
    answers = np.full((2, len(order)), -1, np.int64)
    columns = (*map(whole, (thread, start, end)), np.ascontiguousarray(what, np.uint8), narrow(name))
    beside, room = np.empty((2, len(start) if siblings else 0), np.int32), np.empty((3, len(start) + 2), np.int32)
    _sweep(*columns, around, path, beside, room, asked_thread[order], asked_at[order], answers)
    asked = np.empty_like(answers)
    asked[:, order] = answers
    return Nested(around[0], around[1], path, beside[0], beside[1], asked[0], asked[1])


MOVES = 8
"""Places that a row may be from its own, on the mean, for moving it there to be quicker than sorting."""


@native("int64(int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1], int32[::1])")
def _arrange(  # noqa: PLR0917 - compiled code takes no keywords
    rows: Ints, thread: Ints, start: Ints, end: Ints, kind: Kinds, number: Ints, free: Ints, out: Places
) -> int:
    """Put the rows of each thread together, then each before those it comes before; 0 where that is too far."""
    for k in range(len(rows)):
        out[free[thread[rows[k]]]] = rows[k]
        free[thread[rows[k]]] += 1
    left = MOVES * len(rows)
    for k in range(1, len(out)):
        row, at = out[k], k
        while at > 0 and thread[out[at - 1]] == thread[row]:
            other = out[at - 1]
            if start[other] != start[row]:
                after = start[other] > start[row]
            elif end[other] != end[row]:
                after = end[other] < end[row]
            elif kind[other] != kind[row]:
                after = kind[other] > kind[row]
            else:
                after = number[other] > number[row]
            if not after:
                break
            out[at] = other
            at -= 1
            left -= 1
            if left < 0:
                return 0
        out[at] = row
    return 1


def arrange(rows: Ints, thread: Ints, start: Ints, end: Ints, kind: Kinds, number: Ints) -> Places:  # noqa: PLR0917
    """Rows by thread, then start, the longer first; of those alike in both, by kind and number.

    Columns hold all rows, and files list the events of a thread nearly in their order.

    >>> start, end, alike = np.array([5, 0, 5]), np.array([6, 0, 9]), np.zeros(3, np.int64)
    >>> arrange(np.array([0, 2]), alike, start, end, alike.astype(np.uint8), alike).tolist()
    [2, 0]
    """
    own = thread[rows]
    sizes = np.bincount(own)
    out = np.empty(len(rows), np.int32)
    given = (whole(column) for column in (rows, thread, start, end))
    if _arrange(*given, np.ascontiguousarray(kind, np.uint8), whole(number), np.cumsum(sizes) - sizes, out):
        return out
    return narrow(rows[np.lexsort((number[rows], kind[rows], -end[rows], start[rows], own))])


def in_order(thread: AnyInts, time: Ints) -> Ints:
    """Rows by thread, then time; mostly they are nearly so already, which a stable sort of one number knows to use."""
    if len(time) and int(np.ptp(time)) < 1 << 52 and int(thread.min()) >= 0 and int(thread.max()) < 1 << 10:
        return np.argsort(time_key(thread, time - time.min()), kind="stable")
    return np.lexsort((time, thread))


def time_key(thread: AnyInts, time: Ints) -> Ints:
    """One number that orders by thread, then by time: threads are few, and times here are far below 2**52."""
    return thread * np.int64(1 << 52) + time


@native("void(int32[::1], boolean[::1], int32[::1])")
def _inherit(parent: Places, own: Bools, out: Places) -> None:
    for i in range(len(parent)):
        if own[i]:
            out[i] = i
        elif parent[i] >= 0:
            out[i] = out[parent[i]]


def inherit(parent: AnyInts, own: Bools) -> Places:
    """For every row the nearest row at or above it for which *own* holds, -1 where none. Parents come before children.

    >>> inherit(np.array([-1, 0, 1]), np.array([False, True, False])).tolist()
    [-1, 1, 1]
    """
    nearest = np.full(len(parent), -1, np.int32)
    _inherit(narrow(parent), np.ascontiguousarray(own), nearest)
    return nearest


@native("void(int32[::1], boolean[::1], int32[::1], int64[::1], boolean[::1], int64[::1])")
def _climb(parent: Places, is_op: Bools, name: Places, rows: Ints, wanted: Bools, out: Ints) -> None:  # noqa: PLR0917
    for i in range(len(rows)):
        row = rows[i]
        if i and row == rows[i - 1]:
            out[i] = out[i - 1]
            continue
        while row >= 0 and not (is_op[row] and wanted[name[row]]):
            row = parent[row]
        out[i] = row


def climb(parent: Places, is_op: Bools, name: Places, rows: AnyInts, wanted: Bools) -> Ints:
    """For each of *rows* the nearest op at or above it whose name is *wanted*, -1 where none.

    >>> tree = np.array([-1, 0, 1]), np.ones(3, np.bool_), np.array([0, 1, 0])
    >>> climb(*tree, np.array([2, 0, -1]), np.array([False, True, False])).tolist()
    [1, -1, -1]
    """
    out = np.full(len(rows), -1, np.int64)
    if wanted.any():
        _climb(narrow(parent), is_op, narrow(name), whole(rows), wanted, out)
    return out


@native(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64[:,::1], "
    "int64[::1], boolean[:,::1], boolean[:,::1], int64[:,::1], int64[:,::1], int64[::1], int64[::1])"
)
def _exchanges(  # noqa: PLR0917 - compiled code takes no keywords
    lane: Ints, engine: Ints, maker: Ints, user: Ints, fresh: Ints, products: Ints, attention: Ints,
    seen: Ints, begun: Bools, open_: Bools, product: Ints, attended: Ints, role: Ints, way: Ints,
) -> None:  # fmt: skip
    for i in range(len(lane)):
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
        role[i] = (1 if open_[k, p] else 0) if p == 1 else (0 if open_[k, p] else 1)


def walk_exchanges(  # noqa: PLR0917 - eight columns of one table
    lane: Ints, lanes: int, engine: Ints, maker: Ints, user: Ints, fresh: Ints, products: Ints, attention: Ints
) -> tuple[Ints, Ints]:
    """Role and pass of all-to-alls in launch order; see ``experts._take_turns``.

    A lane is one group in one step; passes are 0 forward, 1 backward, 2 the forward run again. *maker* counts only if
    some compute was launched since the lane's last exchange. Where maker and user disagree, an exchange that another
    waits for decides: it closes what is open.
    """
    role, way = np.zeros((2, len(lane)), np.int64)
    begun, open_ = np.zeros((2, lanes, len(products)), np.bool_)
    product, attended = np.zeros((2, lanes, len(products)), np.int64)
    given = (whole(column) for column in (lane, engine, maker, user, fresh, products, attention))
    _exchanges(*given, np.full(lanes, -1, np.int64), begun, open_, product, attended, role, way)
    return role, way
