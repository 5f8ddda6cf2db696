"""Passes over intervals of time, and over interval sets.

An interval set holds disjoint half-open intervals [start, end), sorted by group and start
(``tracekit.intervals``).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops import let_interrupt

NEVER = -(2**62)
"""Earlier than every time of a trace."""


def join(
    group: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    end: cython.const[cython.longlong][::1],
    state: cython.longlong[:, ::1],
    out: cython.longlong[:, ::1],
) -> int:
    """Join overlapping and touching intervals of each group into an interval set.

    Args:
        group: Group of each interval, 0 to G - 1.
        start: Start times, ascending within each group; groups may alternate.
        end: End times. An interval that ends at or before its start is skipped.
        state: Scratch space of three rows and G + 1 columns.
        out: Result: rows group, start and end, with room for as many intervals as there are.

    Returns:
        Number of intervals in ``out``; -1 if the starts of some group do not ascend.

    """
    groups: cython.Py_ssize_t = state.shape[1] - 1
    never: cython.longlong = NEVER
    # Count each group's joined intervals. state[0] has the count of group g at g + 1, so that the
    # running sum below gives the first output row of each group; state[1] is how far the group's
    # last interval reaches, state[2] its last start.
    for g in range(groups + 1):
        state[0, g] = 0
        state[1, g] = never
        state[2, g] = never
    for i in range(start.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        g = group[i]
        if end[i] > start[i]:
            if start[i] < state[2, g]:
                return -1
            state[2, g] = start[i]
            if start[i] > state[1, g]:
                state[0, g + 1] += 1
            state[1, g] = max(state[1, g], end[i])
    for g in range(groups):
        state[0, g + 1] += state[0, g]
        state[1, g] = never
    # Write them. state[0, g] is now the output row of the group's next interval; it ends where the
    # next group's rows begin, so the total stays in the last column.
    for i in range(start.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        g = group[i]
        if end[i] > start[i]:
            if start[i] > state[1, g]:
                row = state[0, g]
                state[0, g] = row + 1
                out[0, row] = g
                out[1, row] = start[i]
            state[1, g] = max(state[1, g], end[i])
            out[2, state[0, g] - 1] = state[1, g]
    return int(state[0, groups])


def subtract(
    group_a: cython.const[cython.longlong][::1],
    start_a: cython.const[cython.longlong][::1],
    end_a: cython.const[cython.longlong][::1],
    group_b: cython.const[cython.longlong][::1],
    start_b: cython.const[cython.longlong][::1],
    end_b: cython.const[cython.longlong][::1],
    out: cython.longlong[:, ::1],
) -> int:
    """Find the time of one interval set that another does not cover.

    Args:
        group_a, start_a, end_a: The interval set.
        group_b, start_b, end_b: The other one.
        out: Result: rows group, start and end, with room for the intervals of both sets.

    Returns:
        Number of intervals in ``out``.

    """
    count: cython.Py_ssize_t = 0
    # Of the other set's intervals, the first that may overlap the present one.
    first: cython.Py_ssize_t = 0
    for i in range(start_a.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        while first < start_b.shape[0] and (
            group_b[first] < group_a[i]
            or (group_b[first] == group_a[i] and end_b[first] <= start_a[i])
        ):
            first += 1
        rest = start_a[i]  # start of what is left of the present interval
        k = first
        while k < start_b.shape[0] and group_b[k] == group_a[i] and start_b[k] < end_a[i]:
            if rest < start_b[k]:
                out[0, count] = group_a[i]
                out[1, count] = rest
                out[2, count] = start_b[k]
                count += 1
            rest = end_b[k]
            k += 1
        if rest < end_a[i]:
            out[0, count] = group_a[i]
            out[1, count] = rest
            out[2, count] = end_a[i]
            count += 1
        first = max(first, k - 1)  # the last one may reach into the next interval
    return count


def measure_covered(
    group: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    end: cython.const[cython.longlong][::1],
    running_total: cython.const[cython.longlong][::1],
    query_group: cython.const[cython.longlong][::1],
    query_start: cython.const[cython.longlong][::1],
    query_end: cython.const[cython.longlong][::1],
    covered: cython.longlong[::1],
) -> None:
    """Add to ``covered`` how much of each query interval an interval set covers.

    Args:
        group, start, end: Interval set.
        running_total: Covered time of the first i intervals of the set, for i = 0 to their number.
        query_group, query_start, query_end: Intervals to measure, in any order; they may overlap.
        covered: Result, one number for each query interval, 0 at the call.

    """
    # Time covered up to the query's end, minus time covered up to its start. Both searches begin at
    # the result of the query before, because queries mostly ascend; the two must not share it, so
    # there are two passes.
    count = 0
    for i in range(query_start.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        count = _count_started(group, start, query_group[i], query_start[i], count)
        covered[i] -= _covered_until(
            group, end, running_total, query_group[i], query_start[i], count
        )
    count = 0
    for i in range(query_end.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        count = _count_started(group, start, query_group[i], query_end[i], count)
        covered[i] += _covered_until(group, end, running_total, query_group[i], query_end[i], count)


@cython.cfunc
@cython.inline
def _count_started(
    group: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    query_group: cython.longlong,
    time: cython.longlong,
    guess: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return how many intervals lie in earlier groups, or in the query's group and start at or before ``time``."""
    step: cython.Py_ssize_t = 1
    if guess > 0 and (
        group[guess - 1] > query_group
        or (group[guess - 1] == query_group and start[guess - 1] > time)
    ):
        low = 0
        high = guess - 1
    else:  # gallop forward from the guess
        low = guess
        high = guess
        while high < start.shape[0] and (
            group[high] < query_group or (group[high] == query_group and start[high] <= time)
        ):
            low = high + 1
            high += step
            step *= 2
        high = min(high, start.shape[0])
    while low < high:
        middle = (low + high) // 2
        if group[middle] < query_group or (group[middle] == query_group and start[middle] <= time):
            low = middle + 1
        else:
            high = middle
    return low


@cython.cfunc
@cython.inline
def _covered_until(
    group: cython.const[cython.longlong][::1],
    end: cython.const[cython.longlong][::1],
    running_total: cython.const[cython.longlong][::1],
    query_group: cython.longlong,
    time: cython.longlong,
    count: cython.Py_ssize_t,
) -> cython.longlong:
    """Return the time covered by the first ``count`` intervals, without what the last of them covers after ``time``."""
    covered: cython.longlong = running_total[count]
    if count > 0 and group[count - 1] == query_group and end[count - 1] > time:
        covered -= end[count - 1] - time
    return covered
