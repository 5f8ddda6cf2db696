"""An order of all ops of a schedule in which every op follows those it depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit._loops import simulation
from tracekit._util.arrays import Ints, as_int64
from tracekit.errors import DeadlockError

if TYPE_CHECKING:
    from tracekit.schedules.schedule import Schedule


def find_running_order(schedule: Schedule) -> Ints:
    """Return the indices of all ops, each behind those it depends on; raise if ranks wait for each other."""
    edges, offsets = schedule.edges, as_int64(schedule.table.offsets)
    dependencies = as_int64(np.stack([edges.forward, edges.backward, edges.own]))
    ops, ranks = len(edges.own), len(offsets) - 1
    next_op = offsets[:-1].copy()
    first_waiting, next_waiting = np.full(ops, -1, np.int64), np.full(ranks, -1, np.int64)
    order = np.empty(ops, np.int64)
    placed = simulation.find_running_order(dependencies, offsets[1:], next_op, first_waiting, next_waiting, order)
    if placed < ops:
        # The op at which each rank is stuck, and an op it depends on that has not run.
        stuck = {rank: op for rank, op in enumerate(next_op.tolist()) if op < offsets[rank + 1]}
        missing = {
            rank: next(op for op in dependencies[:, op].tolist() if op >= 0 and first_waiting[op] != simulation.DONE)
            for rank, op in stuck.items()
        }
        raise _deadlock(schedule, stuck, missing)
    return order


def _deadlock(schedule: Schedule, stuck: dict[int, int], missing: dict[int, int]) -> DeadlockError:
    """Return an error that names the ranks that wait for each other in a ring.

    Args:
        schedule: The schedule that cannot run.
        stuck: By rank, the op it cannot run.
        missing: By rank, the op that its op waits for.

    """
    ring: list[int] = []
    rank = next(iter(missing))
    while rank not in ring:
        ring.append(rank)
        rank = int(schedule.table.rank[missing[rank]])
    waits = [
        f"rank {rank} at {schedule.op_at(stuck[rank])} waits for {schedule.op_at(missing[rank])}"
        f" of rank {schedule.table.rank[missing[rank]]}"
        for rank in ring[ring.index(rank) :]
    ]
    return DeadlockError(
        f"{schedule.name}: deadlock: " + "; ".join(waits),
        hint="move one of the awaited ops before the op its rank is stuck at",
    )
