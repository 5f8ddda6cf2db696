"""Gap filling for V-shaped schedules with controllable memory (``tracekit.schedules.controllable``)."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

F, I, W = range(3)  # noqa: E741 - the kinds of op, by the letters used everywhere
"""Forward, gradient of the input, gradient of the weights."""
UNSTARTED = 2**62
"""Time slot at which an op that has not run is done."""
_NO_OP_COST = 9
"""Higher than the cost of any op."""


@cython.cfunc
@cython.inline
def _cost(
    kind: cython.longlong,
    head_kind: cython.longlong,
    is_head: cython.bint,
    has_forwards_left: cython.bint,
    eager: cython.bint,
) -> cython.longlong:
    """Return how much running a ready op costs.

    The op with the lowest cost is run, among equals the first.

    | mode                           | 0                          | 1           | 2           | 3           |
    |--------------------------------|----------------------------|-------------|-------------|-------------|
    | eager                          | head if F or I; I before W | F           | I           | W           |
    | not eager, forwards left       | head                       | I           | F           | W           |
    | not eager, no forwards left    | I                          |             | W           |             |
    """
    if eager:
        if (is_head and kind != W) or (kind == I and head_kind == W):
            return 0
        return 1 + kind
    if not has_forwards_left:
        return 0 if kind == I else 2
    if is_head:
        return 0
    return 1 if kind == I else 2 if kind == F else 3


@cython.cfunc
@cython.inline
def _is_ready(
    kind: cython.longlong,
    s: cython.longlong,
    m: cython.longlong,
    f_done: cython.longlong[:, ::1],
    i_done: cython.longlong[:, ::1],
    now: cython.longlong,
) -> cython.bint:
    """Return whether the results that an op of stage *s* and micro-batch *m* needs can be used."""
    if kind == F:
        return s == 0 or f_done[s - 1, m] <= now
    if kind == I:
        return f_done[s, m] <= now and (s == f_done.shape[0] - 1 or i_done[s + 1, m] <= now)
    return i_done[s, m] <= now


def fill_gaps(
    kind: cython.const[cython.longlong][::1],
    stage: cython.const[cython.longlong][::1],
    microbatch: cython.const[cython.longlong][::1],
    next_op: cython.longlong[::1],
    head: cython.longlong[::1],
    rank_end: cython.const[cython.longlong][::1],
    next_row: cython.longlong[::1],
    forwards_left: cython.longlong[::1],
    activations: cython.longlong[::1],
    f_done: cython.longlong[:, ::1],
    i_done: cython.longlong[:, ::1],
    max_activations: cython.longlong,
    window: cython.longlong,
    eager: cython.bint,
    order: cython.longlong[::1],
) -> int:
    """Run all ranks slot by slot.

    A rank whose next op is not ready runs a later one, if memory allows.

    While a rank has forwards to run, it leaves its order only to fill a gap (``eager``: also to run
    I before W). Without any it runs I before W, because other ranks wait only for I.

    Args:
        kind, stage, microbatch: The ops, rank after rank in their given order.
        next_op: Op behind each op on its rank's list of ops to run.
        head: First op of each rank's list.
        rank_end: Op behind the last of each rank; also the end of its list.
        next_row: Row of ``order`` for each rank's next op.
        forwards_left: Forwards each rank has to run.
        activations: Activations that each rank holds; 0 at the call.
        f_done, i_done: [stage, microbatch]: slot from which the result of F and I can be used;
            ``UNSTARTED`` at the call.
        max_activations: Activations a rank may hold when it runs a forward out of order.
        window: Ops to look ahead.
        eager: Whether a rank with forwards to run may run I before a W that is next.
        order: Result: the ops as they were run, rank after rank.

    Returns:
        Number of slots.

    Raises:
        ValueError: None of the ops that are left can ever run.

    """
    ops_left: cython.Py_ssize_t = kind.shape[0]
    ops_left_before: cython.Py_ssize_t
    now: cython.longlong = 0
    may_run: cython.bint
    while ops_left:
        ops_left_before = ops_left
        for rank in range(head.shape[0]):
            best = -1
            before_best = -1
            best_cost = _NO_OP_COST
            before_op = -1
            op = head[rank]
            looked_at = 0
            # After the ops looked at so far, run in their order.
            activations_in_order = activations[rank]
            peak_in_order = activations_in_order
            while op < rank_end[rank] and looked_at < window:
                # A forward that is run early adds an activation to all that the skipped ops will
                # hold.
                may_run = kind[op] != F or looked_at == 0 or peak_in_order < max_activations
                if may_run and _is_ready(kind[op], stage[op], microbatch[op], f_done, i_done, now):
                    cost = _cost(
                        kind[op], kind[head[rank]], looked_at == 0, forwards_left[rank] > 0, eager
                    )
                    if cost < best_cost:
                        best = op
                        before_best = before_op
                        best_cost = cost
                    # The head at no cost is run at once. Behind it the search ends at a cost of 1:
                    # it goes through the ops in their order, and leaving the order further than
                    # needed delays what was to come first.
                    if best_cost == 0 or (looked_at > 0 and best_cost == 1):
                        break
                if kind[op] == F:
                    activations_in_order += 1
                elif kind[op] == W:
                    activations_in_order -= 1
                peak_in_order = max(peak_in_order, activations_in_order)
                before_op = op
                op = next_op[op]
                looked_at += 1
            if best < 0:
                continue
            if before_best < 0:
                head[rank] = next_op[best]
            else:
                next_op[before_best] = next_op[best]
            s = stage[best]
            m = microbatch[best]
            if kind[best] == F:
                activations[rank] += 1
                forwards_left[rank] -= 1
                f_done[s, m] = now + 1
            elif kind[best] == I:
                i_done[s, m] = now + 1
            else:
                activations[rank] -= 1
            order[next_row[rank]] = best
            next_row[rank] += 1
            ops_left -= 1
        # No result is outstanding, so that the next slot would be the same.
        if ops_left == ops_left_before:
            raise ValueError(f"none of the {ops_left} ops that are left can run")
        now += 1
    return int(now)
