"""Gap filling for V-shaped schedules with controllable memory (``tracekit.schedules.controllable``)."""

from __future__ import annotations

import cython

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
    """Return how much running a ready op costs; the op with the lowest cost is run, among equals the first.

    | mode                           | 0                          | 1           | 2           | 3           |
    |--------------------------------|----------------------------|-------------|-------------|-------------|
    | eager                          | head if F or I; I before W | F           | I           | W           |
    | not eager, forwards left       | head                       | I           | F           | W           |
    | not eager, no forwards left    | I                          | F           | W           |             |
    """
    if eager:
        if (is_head and kind != W) or (kind == I and head_kind == W):
            return 0
        return 1 + kind
    if has_forwards_left and is_head:
        return 0
    rank_of_kind: cython.longlong = 1 if kind == F else 0 if kind == I else 2
    return rank_of_kind + 1 if has_forwards_left else rank_of_kind


def fill_gaps(
    kind: cython.const[cython.longlong][::1],
    stage: cython.const[cython.longlong][::1],
    microbatch: cython.const[cython.longlong][::1],
    following: cython.longlong[::1],
    head: cython.longlong[::1],
    rank_end: cython.const[cython.longlong][::1],
    placed: cython.longlong[::1],
    forwards_left: cython.longlong[::1],
    activations: cython.longlong[::1],
    f_done: cython.longlong[:, ::1],
    i_done: cython.longlong[:, ::1],
    max_activations: cython.longlong,
    window: cython.longlong,
    eager: cython.bint,
    order: cython.longlong[::1],
) -> int:
    """Run all ranks slot by slot; a rank whose next op is not ready runs a later one, if memory allows.

    While a rank has forwards to run, it leaves its order only to fill a gap (``eager``: also to run I before W).
    Without any it runs I before W, because other ranks wait only for I.

    Args:
        kind, stage, microbatch: The ops, rank after rank in their given order.
        following: Op behind each op on its rank's list of ops to run.
        head: First op of each rank's list.
        rank_end: Op behind the last of each rank; also the end of its list.
        placed: Row of ``order`` for each rank's next op.
        forwards_left: Forwards each rank has to run.
        activations: Activations that each rank holds; 0 at the call.
        f_done, i_done: [stage, microbatch]: slot from which the result of F and I can be used; ``UNSTARTED`` at the
            call.
        max_activations: Activations a rank may hold when it runs a forward out of order.
        window: Ops to look ahead.
        eager: Whether a rank with forwards to run may run I before a W that is next.
        order: Result: the ops as they were run, rank after rank.

    Returns:
        Number of slots.

    """
    ranks: cython.Py_ssize_t = head.shape[0]
    ops_left: cython.Py_ssize_t = kind.shape[0]
    last_stage: cython.Py_ssize_t = 2 * ranks - 1  # a V has two stages on each rank
    now: cython.longlong = 0
    ready: cython.bint
    while ops_left:
        for rank in range(ranks):
            best = -1
            best_previous = -1
            best_cost = _NO_OP_COST
            previous = -1
            op = head[rank]
            looked_at = 0
            activations_in_order = activations[rank]  # after the ops looked at so far, run in their order
            peak = activations_in_order
            while op < rank_end[rank] and looked_at < window:
                s = stage[op]
                m = microbatch[op]
                if kind[op] == F:
                    # Run early, it adds an activation to all that the skipped ops will hold.
                    ready = looked_at == 0 or peak < max_activations
                    ready = ready and (s == 0 or f_done[s - 1, m] <= now)
                elif kind[op] == I:
                    ready = f_done[s, m] <= now and (s == last_stage or i_done[s + 1, m] <= now)
                else:
                    ready = i_done[s, m] <= now
                if ready:
                    cost = _cost(kind[op], kind[head[rank]], looked_at == 0, forwards_left[rank] > 0, eager)
                    if cost < best_cost:
                        best = op
                        best_previous = previous
                        best_cost = cost
                    # The head at no cost is run at once. Behind it the search ends at a cost of 1: it goes through the
                    # ops in their order, and leaving the order further than needed delays what was to come first.
                    if best_cost <= min(looked_at, 1):
                        break
                if kind[op] == F:
                    activations_in_order += 1
                elif kind[op] == W:
                    activations_in_order -= 1
                peak = max(peak, activations_in_order)
                previous = op
                op = following[op]
                looked_at += 1
            if best < 0:
                continue
            if best_previous < 0:
                head[rank] = following[best]
            else:
                following[best_previous] = following[best]
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
            order[placed[rank]] = best
            placed[rank] += 1
            ops_left -= 1
        now += 1
    return int(now)
