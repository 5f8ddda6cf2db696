"""Simulation of a schedule on a clock, and its results: cells, makespan, bubbles, memory and idle time.

Ranks work strictly in order; ops start when their inputs have arrived.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.notebook import html_table
from tracekit._util.text import percent
from tracekit.documents.coding import HasDocument
from tracekit.documents.schedule import SCHEDULE_FORMAT, Cell, RankIdle, ScheduleDocument
from tracekit.errors import OptionError, ScheduleError
from tracekit.pipeline.schedules import schedule as s
from tracekit.pipeline.schedules.ops import OP_KINDS
from tracekit.pipeline.schedules.schedule import Numbers, Schedule
from tracekit.pipeline.schedules.times import Times


@dataclass(frozen=True, eq=False)
class Simulation(HasDocument):
    """A schedule with its clock; ``start`` and ``end`` are aligned to ``schedule.table``.

    >>> from tracekit.pipeline.schedules import generate, simulate
    >>> done = simulate(generate("1f1b", pp=4, microbatches=8))
    >>> done.makespan, done.bubble, done.peak_activations
    (33, [9, 9, 9, 9], [4, 3, 2, 1])
    >>> round(done.bubble_fraction, 4), done.bubble_over_work
    (0.2727, 0.375)
    """

    schedule: Schedule
    times: Times
    start: Numbers
    end: Numbers

    @cached_property
    def cells(self) -> pl.DataFrame:
        """One row per op: rank, op, stage, microbatch, b_stage, b_microbatch (of FB), start, end."""
        table = self.schedule.table
        names = ("rank", "stage", "microbatch", "b_stage", "b_microbatch")
        numbers = pl.DataFrame({name: getattr(table, name) for name in names}).cast(pl.Int32)
        ops = pl.Series("op", np.array(OP_KINDS)[table.kind], pl.Enum(OP_KINDS))
        # Null in other ops.
        of_blocks = pl.when(ops == "FB").then(pl.col("b_stage", "b_microbatch"))
        times = {"start": self.start, "end": self.end}
        return numbers.select("rank", ops, "stage", "microbatch", of_blocks).with_columns(**times)

    @cached_property
    def makespan(self) -> Any:
        """Time from 0 to the end of the last op."""
        return self.end.max().item()

    @cached_property
    def busy(self) -> list[Any]:
        """Work time of each rank."""
        work = np.zeros(len(self.schedule.ranks), self.end.dtype)
        np.add.at(work, self.schedule.table.rank, self.end - self.start)
        return list(work.tolist())

    @property
    def span(self) -> list[Any]:
        """Time from the start of each rank's first op to the end of its last."""
        rows = itertools.pairwise(self.schedule.table.offsets.tolist())
        return [
            (self.end[end - 1] - self.start[first]).item() if end > first else 0
            for first, end in rows
        ]

    @property
    def bubble(self) -> list[Any]:
        """Makespan − work time of each rank."""
        return [self.makespan - work for work in self.busy]

    @property
    def bubble_fraction(self) -> float:
        """Idle time as a share of ranks × makespan."""
        return _ratio(sum(self.bubble), self.makespan * self.schedule.pp)

    @property
    def bubble_rate_zb(self) -> float:
        """Rate of the zero-bubble papers: 1 − mean work time of a rank / longest span of a rank."""
        return _ratio(max(self.span) - sum(self.busy) / self.schedule.pp, max(self.span))

    @property
    def bubble_over_work(self) -> float:
        """Rate of the Megatron papers: bubble / work time."""
        return _ratio(sum(self.bubble), sum(self.busy))

    @cached_property
    def peak_activations(self) -> list[int]:
        """Largest number of chunks whose activations each rank holds at once: from F's start to the end of B or W."""
        return self.schedule.table.count_peak_activations(s.B, s.W, s.FB)

    @cached_property
    def least_activations(self) -> list[int]:
        """The same if I freed all activations of a chunk: a lower bound, because W needs some of them."""
        return self.schedule.table.count_peak_activations(s.B, s.I, s.FB)

    @cached_property
    def idle_by_phase(self) -> pl.DataFrame:
        """Idle time of each rank before its first backward, after its last forward, and between.

        >>> from tracekit.pipeline.schedules import generate, simulate
        >>> simulate(generate("1f1b", pp=2, microbatches=4)).idle_by_phase.rows()
        [(0, 2, 0, 1), (1, 1, 0, 2)]
        """
        phases = self.schedule.table.idle_by_phase(self.start, self.end)
        rows = [(rank, *idle) for rank, idle in enumerate(phases)]
        return pl.DataFrame(rows, schema=["rank", "warm_up", "steady", "cool_down"], orient="row")

    def __repr__(self) -> str:
        plan = self.schedule
        size = f"{plan.pp} ranks × {plan.microbatches} micro-batches"
        return f"<Simulation: {plan.name}, {size}, makespan {self.makespan:g}>"

    def _repr_html_(self) -> str:
        columns = zip(self.busy, self.bubble, self.peak_activations, strict=True)
        rows = [
            (rank, f"{busy:g}", f"{idle:g}", peak)
            for rank, (busy, idle, peak) in enumerate(columns)
        ]
        heads = ("rank", "work", "idle", "most activations held")
        return html_table(f"{repr(self)[1:-1]}, {percent(self.bubble_fraction)} idle", heads, rows)

    def to_document(self) -> ScheduleDocument:
        """Return the JSON document (``format: tracekit.schedule/1``)."""
        plan = self.schedule
        return ScheduleDocument(
            format=SCHEDULE_FORMAT,
            name=plan.name,
            pp=plan.pp,
            microbatches=plan.microbatches,
            virtual=plan.virtual,
            group=plan.group,
            time=self.times.scalars(),
            ranks=plan.orders(),
            cells=[Cell(**cell) for cell in self.cells.iter_rows(named=True)],
            makespan=self.makespan,
            bubble=self.bubble,
            bubble_fraction=self.bubble_fraction,
            bubble_rate_zb=self.bubble_rate_zb,
            bubble_over_work=self.bubble_over_work,
            peak_activations=self.peak_activations,
            idle_by_phase=[RankIdle(*row) for row in self.idle_by_phase.iter_rows()],
        )


def _ratio(part: Any, whole: Any) -> float:
    """Return the ratio; a schedule that takes no time has no idle time either."""
    return float(part / whole) if whole else 0.0


def simulate(
    schedule: Schedule,
    times: Times | None = None,
    *,
    durations: Sequence[Sequence[Any]] | None = None,
) -> Simulation:
    """Return start and end of every op of *schedule*.

    Integer times stay integers, so nanoseconds are exact.

    Args:
        schedule: The order of ops on every rank.
        times: Durations by kind of op; 1 each by default.
        durations: Durations op by op instead: one sequence per rank, aligned to ``schedule.ranks``.

    >>> from tracekit.pipeline.schedules import generate
    >>> simulate(generate("dualpipe", pp=8, microbatches=20)).makespan
    66
    >>> simulate(generate("1f1b", pp=2, microbatches=2), durations=[[1, 1, 2, 2], [1, 2, 1, 2]]).makespan
    9

    """
    times = times or Times()
    duration = times.durations(schedule) if durations is None else _flatten(schedule, durations)
    latency = np.stack([times.latencies(schedule.table, producers) for producers in schedule.edges])
    dtype = np.float64 if np.result_type(duration, latency).kind == "f" else np.int64
    duration = np.ascontiguousarray(duration, dtype)
    start = run_ops(
        schedule.running_order, np.stack(schedule.edges), duration, latency.astype(dtype)
    )
    return Simulation(schedule, times, start, start + duration)


def run_ops(order: Ints, waits: Ints, duration: Numbers, latency: Numbers) -> Numbers:
    """Return the start of every op if it starts as soon as all that it waits for has ended and arrived.

    Ideal schedules and replays of measured cells are run by this function alone.

    Args:
        order: All ops, each behind those it waits for.
        waits: [k, op]: ops that an op waits for; -1: none.
        duration: Duration of each op; of several runs in the same order: [op, run].
        latency: [k, op] or [k, op, run]: time from the end of what it waits for to its arrival, of
            the type of *duration*; below 0 if an op may start before that end.

    >>> order, waits = np.array([0, 1]), np.array([[-1, 0]])
    >>> run_ops(order, waits, np.array([[2, 3], [1, 1]]), np.zeros((1, 2, 2), int)).tolist()
    [[0, 0], [2, 3]]
    """
    if duration.ndim > 1:
        return _run_together(order, waits, duration, latency)
    # Lists: an element of an array is an object that numpy makes anew at each access.
    waits_of_op = waits.T.tolist()
    latency_of_op = latency.T.tolist()
    durations = duration.tolist()
    start = [0] * len(durations)
    for op in order.tolist():
        ready = 0
        for dependency, delay in zip(waits_of_op[op], latency_of_op[op], strict=True):
            if dependency >= 0:
                ready = max(ready, start[dependency] + durations[dependency] + delay)
        start[op] = ready
    return np.array(start, duration.dtype)


def _run_together(order: Ints, waits: Ints, duration: Numbers, latency: Numbers) -> Numbers:
    """Return ``run_ops`` of several runs: numpy takes as long for hundreds of them as for one."""
    start = np.zeros_like(duration)
    end = np.zeros_like(duration)
    waits_of_op = waits.T.tolist()
    for op in order.tolist():
        for k, dependency in enumerate(waits_of_op[op]):
            if dependency >= 0:
                np.maximum(start[op], end[dependency] + latency[k, op], out=start[op])
        np.add(start[op], duration[op], out=end[op])
    return start


def _flatten(schedule: Schedule, by_rank: Sequence[Sequence[Any]]) -> Numbers:
    """Return durations given per rank in the order of ``schedule.table``, after checking them."""
    lengths = [len(rank) for rank in by_rank]
    wanted = [len(rank) for rank in schedule.ranks]
    if lengths != wanted:
        problem = (
            f"{schedule.name}: durations for {lengths} ops per rank, the schedule has {wanted}"
        )
        raise ScheduleError(problem, hint="give one value for each op of schedule.ranks")
    values = np.asarray(list(chain.from_iterable(by_rank)))
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError(
            "durations must be numbers of 0 or more", hint="one for each op of schedule.ranks"
        )
    return values
