"""Predict what a schedule would take on this run's machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.text import percent
from tracekit.compare.predict.engine import Outcome, run
from tracekit.compare.predict.machine import HIGH, LOW, MIDDLE, Fitted, Machine, fit, match_messages
from tracekit.compare.predict.programs import RUN, Program
from tracekit.compare.predict.ran import Ran, ran
from tracekit.compare.predict.runtime import Runtime, find_runtime
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.rank import RankPipeline
from tracekit.schedules import Schedule

Floats = npt.NDArray[np.float64]

MOST_OPS = 4_000
"""Ops of a schedule up to which it is run message by message."""

MOST_MISS = 0.15
"""Share of the run's own makespan by which the engine may miss it; beyond, something is not understood."""

ROUNDS = 3
"""Steps run one after the other at most: a host begins a step when its rank has ended the one before."""

SETTLED = 0.002
"""Share of a step by which the next one may differ for it to count as the same."""


HOST_PACE = 1.4
"""How much faster or slower the same host may be in another recording of the same program."""


class Prediction(NamedTuple):
    """What a schedule would take, at least and at most, and the share of it outside cells."""

    ns: int
    low_ns: int
    high_ns: int
    outside: float


@dataclass(frozen=True, eq=False)
class Predictor:
    """A run's machine and cells, ready to run other schedules."""

    own: Schedule
    runtime: Runtime
    fitted: Fitted
    cells: tuple[Ran, Ran, Ran]  # lower quartiles, medians, upper quartiles
    measured_ns: int

    def predict(self, schedule: Schedule) -> Prediction | str:
        """Return what *schedule* would take, or why that is not known."""
        if too_many := _too_many(schedule):
            return too_many
        program = self.runtime.program(schedule, self.own)
        outcomes = [self.play(program, schedule, level) for level in (LOW, MIDDLE, HIGH)]
        if any(outcome is None for outcome in outcomes):
            return "its messages would wait for each other in the order this runtime posts them"
        spans = [outcome.makespan for outcome in outcomes if outcome is not None]
        middle = outcomes[MIDDLE]
        assert middle is not None
        busy = float((middle.end - middle.start).sum())
        outside = max(0.0, 1 - busy / (schedule.pp * spans[MIDDLE])) if spans[MIDDLE] else 0.0
        waits = self._host_ns(program, schedule, spans[MIDDLE])
        low = (min(spans) - waits * (1 - 1 / HOST_PACE)) * (1 - self.miss)
        high = (max(spans) + waits * (HOST_PACE - 1)) * (1 + self.miss)
        return Prediction(round(spans[MIDDLE]), round(low), round(high), outside)

    def _host_ns(self, program: Program, schedule: Schedule, makespan: float) -> float:
        """Return the part of a makespan that a host that launches at once would save: it goes with the host's pace."""
        ready = self.play(program, schedule, host=False)
        return 0.0 if ready is None else max(0.0, makespan - ready.makespan)

    @property
    def miss(self) -> float:
        """Error of the replayed makespan, as a share of the measured one (1: it gets stuck); it widens every range."""
        if "_miss" not in self.__dict__:
            program = self.runtime.program(self.own, self.own)
            outcome = self.play(program, self.own, MIDDLE)
            share = 1.0 if outcome is None else abs(outcome.makespan / max(self.measured_ns, 1) - 1)
            self.__dict__["_miss"] = min(share, 1.0)
        return float(self.__dict__["_miss"])

    def play(
        self,
        program: Program,
        schedule: Schedule,
        level: int = MIDDLE,
        *,
        machine: Machine | None = None,
        work: Sequence[float] | None = None,
        host: bool = True,
    ) -> Outcome | None:
        """Run *program* step after step until hosts begin as they would; None where it gets stuck.

        *work* says what each piece takes where that is not what such a piece took in this run.
        """
        cells = self.cells[level]
        machine = machine or self.fitted.machines[level]
        times = cells.work_of(program, schedule) if work is None else work
        done = run(program, times, machine, cells.launches_of(program, schedule) if host else None)
        for _ in range(ROUNDS - 1 if host and not done.stuck else 0):
            before, ends = done.makespan, _ends(program, done)
            done = run(program, times, machine, cells.launches_of(program, schedule, begins=ends - ends.min()))
            if abs(done.makespan - before) <= SETTLED * before:
                break
        return None if done.stuck else done


def _too_many(schedule: Schedule) -> str | None:
    """Return why a schedule is too large to run, None where it is not."""
    few = sum(len(order) for order in schedule.ranks) <= MOST_OPS
    return None if few else f"more than {MOST_OPS:,} ops are too many to run message by message"


def _ends(program: Program, done: Outcome) -> Floats:
    """Return when each rank's last piece ended."""
    return np.array([max((done.end[at] for code, at in steps if code == RUN), default=0.0) for steps in program.steps])


def predictor(
    pipeline: Pipeline, ranks: Mapping[int, RankPipeline], own: Schedule, *, exact: bool, measured_ns: int
) -> Predictor | str:
    """Return a predictor fitted to this run's machine, or why the run shows too little of it."""
    if reason := _unfit(pipeline, own, exact=exact):
        return reason
    messages = _messages(pipeline, ranks)
    matched = match_messages(messages)
    if matched is None:
        return "not every message could be matched with its other side"
    runtime = find_runtime(own, messages, pipeline.detail)
    contention = [ranks[r].contention for r in pipeline.ranks]
    fitted = fit(matched, contention, runtime.queues)
    cells = [
        ran(pipeline.detail, messages, fitted.machines[MIDDLE], stages=own.stages, level=level)
        for level in (LOW, MIDDLE, HIGH)
    ]
    made = Predictor(own, runtime, fitted, (cells[0], cells[1], cells[2]), measured_ns)
    if made.miss > MOST_MISS:
        return f"a replay of this run with its own messages and host is off by {percent(made.miss, digits=0)}"
    return made


def _unfit(pipeline: Pipeline, own: Schedule, *, exact: bool) -> str | None:
    """Return why a run shows too little of its machine; None where it may show enough."""
    if len(pipeline.ranks) < 2:
        return "a single rank sends no messages"
    if len(pipeline.positions) < len(pipeline.ranks):
        return "traces of some of the pipeline's ranks are missing"
    if not exact or pipeline.stages_from == "nothing":
        return "the run's own order is not that of a known schedule"
    return _too_many(own)


def _messages(pipeline: Pipeline, ranks: Mapping[int, RankPipeline]) -> dict[int, pl.DataFrame]:
    """Return each position's messages of the step, on the pipeline's clock, peers as positions."""
    position = {rank: at for at, rank in enumerate(pipeline.ranks)}
    messages = {}
    for rank, at in position.items():
        table = ranks[rank].by_step[pipeline.step][1]
        peers = pl.col("peer").replace_strict(position, default=None, return_dtype=pl.Int32)
        messages[at] = table.with_columns(*pipeline.clocks.moved(rank, "launch_ns", "start_ns", "end_ns"), peers)
    return messages
