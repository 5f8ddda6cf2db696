"""Run a schedule on a clock: ranks work strictly in order, ops start when their inputs are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit._loops import simulation
from tracekit._util.arrays import as_int64
from tracekit.errors import DeadlockError, OptionError
from tracekit.schedules.schedule import Schedule, align
from tracekit.schedules.simulation import Simulation
from tracekit.schedules.times import Times

Ints = npt.NDArray[np.int64]


def simulate(
    schedule: Schedule,
    times: Times | None = None,
    *,
    durations: Sequence[Sequence[Any]] | None = None,
    forward_latency: Sequence[Sequence[Any]] | None = None,
    backward_latency: Sequence[Sequence[Any]] | None = None,
) -> Simulation:
    """Return start and end of every op of *schedule*.

    *durations* replaces the times op by op, and the latencies the p2p time of what an op receives (the activation
    from the stage before, the gradient from the stage after); each is one sequence per rank, aligned to
    ``schedule.ranks``. Whole numbers stay whole, so nanoseconds are exact.

    >>> from tracekit.schedules import generate
    >>> simulate(generate("dualpipe", pp=8, microbatches=20)).makespan
    66
    >>> simulate(generate("1f1b", pp=2, microbatches=2), durations=[[1, 1, 2, 2], [1, 2, 1, 2]]).makespan
    9
    """
    times = times or Times()
    edges = schedule.edges
    taken = times.durations(schedule) if durations is None else _values("durations", schedule, durations)
    arrive_f = (
        times.latencies(schedule.table, edges.forward)
        if forward_latency is None
        else np.where(edges.forward >= 0, _values("forward_latency", schedule, forward_latency), 0)
    )
    arrive_b = (
        times.latencies(schedule.table, edges.backward)
        if backward_latency is None
        else np.where(edges.backward >= 0, _values("backward_latency", schedule, backward_latency), 0)
    )
    dependencies = as_int64(np.stack([edges.previous, edges.forward, edges.backward, edges.own]))
    at_once = np.zeros(len(taken), np.int64)
    latency = np.stack([at_once, arrive_f, arrive_b, at_once])
    dtype = np.float64 if np.result_type(taken, latency).kind == "f" else np.int64
    start = np.zeros(len(taken), dtype)
    simulation.run_ops(
        _running_order(schedule),
        dependencies,
        np.ascontiguousarray(taken, dtype),
        np.ascontiguousarray(latency, dtype),
        start,
    )
    return Simulation(schedule, times, start, start + taken)


def _values(name: str, schedule: Schedule, given: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
    values = np.asarray(align(schedule, given))
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError(f"{name} must be numbers of 0 or more", hint="one for each op of schedule.ranks")
    return values


def _running_order(schedule: Schedule) -> Ints:
    """Return an order of all ops in which every op follows those it depends on; kept with the schedule for replays."""
    order: Ints | None = schedule.__dict__.get("_running_order")
    if order is None:
        order = schedule.__dict__["_running_order"] = _find_running_order(schedule)
    return order


def _find_running_order(schedule: Schedule) -> Ints:
    edges, offsets = schedule.edges, as_int64(schedule.table.offsets)
    dependencies = as_int64(np.stack([edges.forward, edges.backward, edges.own]))
    ops, ranks = len(edges.own), len(offsets) - 1
    next_op = offsets[:-1].copy()
    first_waiting, next_waiting = np.full(ops, -1, np.int64), np.full(ranks, -1, np.int64)
    order = np.empty(ops, np.int64)
    placed = simulation.find_running_order(dependencies, offsets[1:], next_op, first_waiting, next_waiting, order)
    if placed < ops:
        stuck = {rank: op for rank, op in enumerate(next_op.tolist()) if op < offsets[rank + 1]}
        missing = {
            rank: next(op for op in dependencies[:, op].tolist() if op >= 0 and first_waiting[op] != simulation.DONE)
            for rank, op in stuck.items()
        }
        raise _deadlock(schedule, stuck, missing)
    return order


def _deadlock(schedule: Schedule, stuck: dict[int, int], missing: dict[int, int]) -> DeadlockError:
    """Return the error that names the ranks of a ring, the op each is *stuck* at and the *missing* op it waits for."""
    ring: list[int] = []
    rank = next(iter(missing))
    while rank not in ring:
        ring.append(rank)
        rank = int(schedule.table.rank[missing[rank]])
    ring = ring[ring.index(rank) :]
    steps = [
        f"rank {rank} at {schedule.op_at(stuck[rank])} waits for {schedule.op_at(missing[rank])}"
        f" of rank {schedule.table.rank[missing[rank]]}"
        for rank in ring
    ]
    return DeadlockError(
        f"{schedule.name}: deadlock: " + "; ".join(steps),
        hint="move one of the awaited ops before the op its rank is stuck at",
    )
