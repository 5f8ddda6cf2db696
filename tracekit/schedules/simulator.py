"""Simulation of a schedule on a clock: ranks work strictly in order, ops start when their inputs have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit._loops import simulation
from tracekit._util.arrays import Ints, as_int64
from tracekit.errors import OptionError, ScheduleError
from tracekit.schedules.schedule import Schedule
from tracekit.schedules.simulation import Simulation
from tracekit.schedules.times import Times


def simulate(
    schedule: Schedule,
    times: Times | None = None,
    *,
    durations: Sequence[Sequence[Any]] | None = None,
    forward_latency: Sequence[Sequence[Any]] | None = None,
    backward_latency: Sequence[Sequence[Any]] | None = None,
) -> Simulation:
    """Return start and end of every op of *schedule*. Integer times stay integers, so nanoseconds are exact.

    Args:
        schedule: The order of ops on every rank.
        times: Durations by kind of op; 1 each by default.
        durations: Durations op by op instead: one sequence per rank, aligned to ``schedule.ranks``.
        forward_latency: Likewise, the time from the end of the stage before to the arrival of its activation.
        backward_latency: Likewise, the time from the end of the stage after to the arrival of its gradient.

    >>> from tracekit.schedules import generate
    >>> simulate(generate("dualpipe", pp=8, microbatches=20)).makespan
    66
    >>> simulate(generate("1f1b", pp=2, microbatches=2), durations=[[1, 1, 2, 2], [1, 2, 1, 2]]).makespan
    9

    """
    times = times or Times()
    edges = schedule.edges
    duration = times.durations(schedule) if durations is None else _flatten("durations", schedule, durations)

    def latency_of(name: str, producers: Ints, latency: Sequence[Sequence[Any]] | None) -> npt.NDArray[Any]:
        if latency is None:
            return times.latencies(schedule.table, producers)
        return np.where(producers >= 0, _flatten(name, schedule, latency), 0)

    dependencies = as_int64(np.stack([edges.previous, edges.forward, edges.backward, edges.own]))
    no_latency = np.zeros(len(duration), np.int64)
    latency = np.stack(
        [
            no_latency,
            latency_of("forward_latency", edges.forward, forward_latency),
            latency_of("backward_latency", edges.backward, backward_latency),
            no_latency,
        ]
    )
    dtype = np.float64 if np.result_type(duration, latency).kind == "f" else np.int64
    start = np.zeros(len(duration), dtype)
    simulation.run_ops(
        schedule.running_order,
        dependencies,
        np.ascontiguousarray(duration, dtype),
        np.ascontiguousarray(latency, dtype),
        start,
    )
    return Simulation(schedule, times, start, start + duration)


def _flatten(name: str, schedule: Schedule, by_rank: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
    """Return values given per rank in the order of ``schedule.table``, after checking them."""
    lengths, wanted = [len(rank) for rank in by_rank], [len(rank) for rank in schedule.ranks]
    if lengths != wanted:
        raise ScheduleError(
            f"{schedule.name}: durations for {lengths} ops per rank, the schedule has {wanted}",
            hint="give one value for each op of schedule.ranks",
        )
    values = np.asarray([value for rank in by_rank for value in rank])
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError(f"{name} must be numbers of 0 or more", hint="one for each op of schedule.ranks")
    return values
