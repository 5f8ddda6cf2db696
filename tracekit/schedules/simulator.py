"""Run a schedule on a clock: ranks work strictly in order, ops start when their inputs are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit._util.native import native, whole
from tracekit.errors import DeadlockError, OptionError
from tracekit.schedules.schedule import Edges, Schedule, align
from tracekit.schedules.simulation import Simulation
from tracekit.schedules.times import Times

Ints = npt.NDArray[np.int64]
NATIVE_OPS = 10_000
"""Ops from which native code runs the clock, even where it has to be compiled first; few it runs no faster."""


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
    order = _running_order(schedule)
    if len(taken) >= NATIVE_OPS and all(values.dtype.kind in "iu" for values in (taken, arrive_f, arrive_b)):
        start = np.zeros(len(taken), np.int64)
        waits = np.stack([edges.previous, edges.forward, edges.backward, edges.own])
        _sweep_whole(whole(np.asarray(order)), whole(waits), whole(taken), whole(arrive_f), whole(arrive_b), start)
    else:
        start = np.array(_sweep(order, edges, taken.tolist(), arrive_f.tolist(), arrive_b.tolist()))
    return Simulation(schedule, times, start, start + taken)


def _values(name: str, schedule: Schedule, given: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
    values = np.asarray(align(schedule, given))
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError(f"{name} must be numbers of 0 or more", hint="one for each op of schedule.ranks")
    return values


def _sweep(order: Sequence[int], edges: Edges, taken: list[Any], arrive_f: list[Any], arrive_b: list[Any]) -> list[Any]:
    """One pass in an order in which every producer comes first. Index -1 is an op that ended at 0."""
    previous, forward = edges.previous.tolist(), edges.forward.tolist()
    backward, own = edges.backward.tolist(), edges.own.tolist()
    starts: list[Any] = [0] * len(taken)
    ends: list[Any] = [0] * (len(taken) + 1)
    for i in order:
        start = ends[previous[i]]
        if (ready := ends[forward[i]] + arrive_f[i]) > start:
            start = ready
        if (ready := ends[backward[i]] + arrive_b[i]) > start:
            start = ready
        if (ready := ends[own[i]]) > start:
            start = ready
        starts[i] = start
        ends[i] = start + taken[i]
    return starts


@native("void(int64[::1], int64[:,::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _sweep_whole(  # noqa: PLR0917 - compiled code takes no keywords
    order: Ints, waits: Ints, taken: Ints, arrive_f: Ints, arrive_b: Ints, start: Ints
) -> None:
    """Return what ``_sweep`` does, in whole numbers."""
    for k in range(len(order)):
        i = order[k]
        ready = 0
        for w in range(4):
            j = waits[w, i]
            there = 0 if j < 0 else start[j] + taken[j]
            there += arrive_f[i] if w == 1 else arrive_b[i] if w == 2 else 0
            ready = max(ready, there)
        start[i] = ready


def _running_order(schedule: Schedule) -> list[int]:
    """Return an order of all ops in which every op follows what it waits for; kept with the schedule for replays."""
    kept: list[int] | None = schedule.__dict__.get("_running_order")
    if kept is None:
        large = len(schedule.table.kind) >= NATIVE_OPS
        kept = (_find_order_whole(schedule) if large else None) or _find_order(schedule)
        schedule.__dict__["_running_order"] = kept
    return kept


def _find_order_whole(schedule: Schedule) -> list[int] | None:
    """Return what ``_find_order`` does; None where ops wait for each other."""
    edges, offsets = schedule.edges, whole(schedule.table.offsets)
    waits = np.stack([edges.forward, edges.backward, edges.own])
    order, at = np.empty(len(edges.own), np.int64), offsets[:-1].copy()
    waiting, following = np.full(len(order), -1, np.int64), np.full(len(at), -1, np.int64)
    placed = _order(whole(waits), offsets, at, waiting, following, order)
    return order.tolist() if placed == len(order) else None


@native("int64(int64[:,::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _order(  # noqa: PLR0917 - compiled code takes no keywords
    waits: Ints, offsets: Ints, at: Ints, waiting: Ints, following: Ints, order: Ints
) -> int:
    """Let each rank run until it must wait; ``waiting[op]`` is the first rank that waits for it, linked onwards.

    ``waiting`` is -2 once the op is done.
    """
    placed = 0
    for first in range(len(at)):
        awake = first
        while awake >= 0:
            rank, awake = awake, following[awake]
            following[rank] = -1
            while at[rank] < offsets[rank + 1]:
                i, missing = at[rank], -1
                for w in range(3):
                    if waits[w, i] >= 0 and waiting[waits[w, i]] != -2:
                        missing = waits[w, i]
                if missing >= 0:
                    following[rank] = waiting[missing]
                    waiting[missing] = rank
                    break
                order[placed] = i
                placed += 1
                at[rank] += 1
                woken = waiting[i]
                waiting[i] = -2
                while woken >= 0:
                    then = following[woken]
                    following[woken] = awake
                    awake = woken
                    woken = then
    return placed


def _find_order(schedule: Schedule) -> list[int]:
    """Let each rank run until it must wait; the op it waits for wakes it. Each op is looked at once or twice."""
    edges, offsets = schedule.edges, schedule.table.offsets.tolist()
    forward, backward, own = edges.forward.tolist(), edges.backward.tolist(), edges.own.tolist()
    total = offsets[-1]
    done = bytearray(total) + b"\1"  # index -1: nothing to wait for
    at = offsets[:-1]
    waiting: dict[int, list[int]] = {}
    awake = list(range(len(at)))[::-1]
    order: list[int] = []
    while awake:
        rank = awake.pop()
        i = at[rank]
        while i < offsets[rank + 1]:
            if not done[missing := forward[i]] or not done[missing := backward[i]] or not done[missing := own[i]]:
                waiting.setdefault(missing, []).append(rank)
                break
            done[i] = 1
            order.append(i)
            if i in waiting:
                awake += waiting.pop(i)
            i += 1
        at[rank] = i
    if len(order) < total:
        raise _deadlock(schedule, at, {rank: op for op, ranks in waiting.items() for rank in ranks})
    return order


def _deadlock(schedule: Schedule, at: list[int], missing: dict[int, int]) -> DeadlockError:
    """Return the error of a ring: who waits for whom, until a rank comes up twice."""
    ring: list[int] = []
    rank = next(iter(missing))
    while rank not in ring:
        ring.append(rank)
        rank = int(schedule.table.rank[missing[rank]])
    ring = ring[ring.index(rank) :]
    steps = [
        f"rank {rank} at {schedule.op_at(at[rank])} waits for {schedule.op_at(missing[rank])}"
        f" of rank {schedule.table.rank[missing[rank]]}"
        for rank in ring
    ]
    return DeadlockError(
        f"{schedule.name}: deadlock: " + "; ".join(steps),
        hint="move one of the awaited ops before the op its rank is stuck at",
    )
