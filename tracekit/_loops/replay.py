"""Replays of a measured pipeline: its cells run again, in the order they were run, with other durations and delays.

A cell is one op on one rank. It waits for up to four cells: the one before it on its rank, its input, its gradient, and
its own forward (``tracekit.against_ideal.replay``).
"""

from __future__ import annotations

import cython


def measure_makespans(
    order: cython.const[cython.longlong][::1],
    dependencies: cython.const[cython.longlong][:, ::1],
    duration: cython.const[cython.longlong][:, ::1],
    delay: cython.const[cython.longlong][:, ::1],
    lead_share: cython.const[cython.double][:, ::1],
    first_with_lead: cython.Py_ssize_t,
    end: cython.longlong[::1],
    makespan: cython.longlong[::1],
) -> None:
    """Run the cells once for each row of durations and delays.

    Args:
        order: All cells, each behind those it waits for.
        dependencies: [cell, k]: cells that a cell waits for; -1: none.
        duration, delay: [run, cell]: durations and delays, 0 or more.
        lead_share: [cell, k]: share of dependency k's duration, before its end, from which a cell may start.
        first_with_lead: Run from which ``lead_share`` counts; earlier ones wait for the end.
        end: Result: end of each cell in the last run.
        makespan: Result: time from 0 to the last end, for each run.

    """
    ready: cython.longlong
    for run in range(duration.shape[0]):
        last_end = 0
        for i in range(order.shape[0]):
            cell = order[i]
            ready = 0
            for k in range(dependencies.shape[1]):
                dependency = dependencies[cell, k]
                if dependency >= 0:
                    lead = 0
                    if run >= first_with_lead:  # neither factor is negative, so that truncation rounds down
                        lead = cython.cast(cython.longlong, lead_share[cell, k] * duration[run, dependency])
                    ready = max(ready, end[dependency] - lead)
            end[cell] = ready + delay[run, cell] + duration[run, cell]
            last_end = max(last_end, end[cell])
        makespan[run] = last_end
