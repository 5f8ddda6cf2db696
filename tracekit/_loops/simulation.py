"""Simulation of a pipeline schedule: an order in which its ops can run, and the start of each op."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

DONE = -2
"""Value of ``first_waiting`` for an op that has run."""

time = cython.fused_type(cython.longlong, cython.double)
"""Times are whole numbers or floats; a function is compiled for both."""


def find_running_order(
    dependencies: cython.const[cython.longlong][:, ::1],
    rank_end: cython.const[cython.longlong][::1],
    next_op: cython.longlong[::1],
    first_waiting: cython.longlong[::1],
    next_waiting: cython.longlong[::1],
    order: cython.longlong[::1],
) -> int:
    """Find an order of all ops in which every op comes after those it depends on.

    Each rank runs its ops in sequence until one has to wait for an op of another rank. It then
    joins the list of ranks that wait for this op, and continues when the op has run. So every op is
    looked at once, or once for each wait.

    Args:
        dependencies: [k, op]: ops that an op waits for besides the one before it on its rank; -1:
            none.
        rank_end: Op behind the last of each rank.
        next_op: Next op of each rank; its first at the call, and where it is stuck if there is a
            deadlock.
        first_waiting: First rank that waits for each op, -1 at the call: none. ``DONE`` once the op
            has run.
        next_waiting: The rank behind each rank in the list it is in, -1 at the call: none.
        order: Result.

    Returns:
        Number of ops in ``order``; less than all if ranks wait for each other.

    """
    done: cython.longlong = DONE
    placed: cython.Py_ssize_t = 0
    for first in range(next_op.shape[0]):
        runnable = first  # head of the list of ranks that can continue
        while runnable >= 0:
            rank = runnable
            runnable = next_waiting[rank]
            next_waiting[rank] = -1
            while next_op[rank] < rank_end[rank]:
                op = next_op[rank]
                missing = -1
                for k in range(dependencies.shape[0]):
                    if dependencies[k, op] >= 0 and first_waiting[dependencies[k, op]] != done:
                        missing = dependencies[k, op]
                if missing >= 0:
                    next_waiting[rank] = first_waiting[missing]
                    first_waiting[missing] = rank
                    break
                order[placed] = op
                placed += 1
                next_op[rank] += 1
                waiting = first_waiting[op]
                first_waiting[op] = done
                while waiting >= 0:  # everyone who waited for this op can continue
                    following = next_waiting[waiting]
                    next_waiting[waiting] = runnable
                    runnable = waiting
                    waiting = following
    return placed


def run_ops(
    order: cython.const[cython.longlong][::1],
    dependencies: cython.const[cython.longlong][:, ::1],
    duration: time[::1],
    latency: time[:, ::1],
    start: time[::1],
) -> None:
    """Start every op as soon as all it depends on has ended and arrived.

    Args:
        order: All ops, each behind those it depends on.
        dependencies: [k, op]: ops that an op waits for; -1: none.
        duration: Duration of each op.
        latency: [k, op]: time from the end of dependency k to its arrival.
        start: Result.

    """
    ready: time
    for i in range(order.shape[0]):
        op = order[i]
        ready = 0
        for k in range(dependencies.shape[0]):
            dependency = dependencies[k, op]
            if dependency >= 0:
                arrival = start[dependency] + duration[dependency] + latency[k, op]
                ready = max(ready, arrival)
        start[op] = ready
