"""Prediction of the makespan of other schedules on the machine of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._util.text import percent
from tracekit.graph.constants import (
    HIGH,
    HOST_SPEED_FACTOR,
    LOW,
    MAX_CHANGE_OF_STEADY_STEP,
    MAX_OPS_TO_SIMULATE,
    MAX_REPLAY_ERROR,
    MAX_SIMULATED_STEPS,
    MIDDLE,
    MIN_ERROR_SHARE,
)
from tracekit.graph.engine import Outcome, run_program
from tracekit.graph.machine import (
    FittedMachine,
    fit_machine,
)
from tracekit.graph.measured_ops import MeasuredOps, fit_sharing, measure_ops
from tracekit.graph.messages import match_messages
from tracekit.graph.rank_programs import (
    QUEUES_IN_WORDS,
    Program,
    find_queues,
    recorded_program,
    write_program,
)
from tracekit.intervals import Intervals, union_of
from tracekit.metrics.gpu_speed import gpu_slowdowns
from tracekit.pipeline.against_ideal.replay import StepReplays
from tracekit.pipeline.reconstruct.pipeline import Pipeline
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.pipeline.schedules import Schedule

_GPU_STALLS = ("exposed_ep", "offload", "exposed_comm", "other_work")
"""Causes of a stall before a cell's start that count as GPU time of the cell; messages and hosts
are simulated."""


class Prediction(NamedTuple):
    """Predicted makespan in nanoseconds, its range, and the share of ranks × makespan outside cells."""

    ns: int
    low_ns: int
    high_ns: int
    outside_cells: float


@dataclass(frozen=True, eq=False)
class Predictor:
    """Machine, message order and op times of a run, with which other schedules are simulated."""

    own: Schedule
    machine: FittedMachine
    ops: tuple[MeasuredOps, MeasuredOps, MeasuredOps]  # lower quartiles, medians, upper quartiles
    measured_ns: int
    own_program: Program  # as recorded

    def predict(self, schedule: Schedule) -> Prediction | str:
        """Predict the makespan of a schedule; a text with the reason if that is not possible."""
        if reason := why_too_large(schedule):
            return reason
        program = write_program(schedule, self.machine.machines[MIDDLE].queues)
        low = self.simulate(program, schedule, LOW)
        middle = self.simulate(program, schedule, MIDDLE)
        high = self.simulate(program, schedule, HIGH)
        if low is None or middle is None or high is None:
            return "its messages would wait for each other in the order this runtime posts them"
        # Host share of the makespan: what a host without launch cost would save; it scales with the
        # host's speed.
        without_host = self.simulate(program, schedule, host=False)
        host_ns = 0.0 if without_host is None else max(0.0, middle.makespan - without_host.makespan)
        makespans = (low.makespan, middle.makespan, high.makespan)
        # The errors are independent: add their squares.
        model_error_ns = math.hypot(self.replay_error, MIN_ERROR_SHARE) * middle.makespan
        faster_ns = host_ns * (1 - 1 / HOST_SPEED_FACTOR)
        slower_ns = host_ns * (HOST_SPEED_FACTOR - 1)
        low_ns = max(
            0.0,
            middle.makespan
            - math.hypot(middle.makespan - min(makespans), faster_ns, model_error_ns),
        )
        high_ns = middle.makespan + math.hypot(
            max(makespans) - middle.makespan, slower_ns, model_error_ns
        )
        return Prediction(
            round(middle.makespan), round(low_ns), round(high_ns), middle.outside_cells(schedule.pp)
        )

    def predict_change(self, base: Outcome, changed: Outcome) -> Prediction:
        """Predict the run with a change: the measured makespan times the ratio of the simulated ones."""
        ns = self.measured_ns * changed.makespan / base.makespan
        error = self.replay_error
        outside_cells = changed.outside_cells(self.own.pp)
        return Prediction(
            round(ns), round(ns * (1 - error)), round(ns * (1 + error)), outside_cells
        )

    def messages_in_words(self) -> str:
        """Return the assumption about messages as text for users."""
        return f"{QUEUES_IN_WORDS[self.machine.machines[MIDDLE].queues]}, ordered as PyTorch orders them"

    @cached_property
    def replay_error(self) -> float:
        """Error of the simulated makespan of the run itself, as a share of the measured one.

        It widens every range.
        """
        outcome = self.simulate(self.own_program, self.own, own=True)
        if outcome is None:
            return 1.0
        return min(abs(outcome.makespan / max(self.measured_ns, 1) - 1), 1.0)

    def simulate(
        self,
        program: Program,
        schedule: Schedule,
        level: int = MIDDLE,
        *,
        work: Sequence[float] | None = None,
        host: bool = True,
        own: bool = False,
    ) -> Outcome | None:
        """Simulate steps of a program until the hosts begin a step as in a long run.

        Args:
            program: Program of *schedule*.
            schedule: Schedule.
            level: Costs to take: ``LOW``, ``MIDDLE`` or ``HIGH``.
            work: Duration of each piece; the typical one of such pieces in the run if None.
            host: Whether launches take time.
            own: Whether ops take what they took in the run, not what is typical, and hosts and GPUs
                begin as they did.

        Returns:
            The last step; None if pieces wait for each other.
        """
        ops = self.ops[level]
        times = ops.times(program, schedule, own=own)
        durations = [op.gpu_ns for op in times] if work is None else work
        hosts = ops.host_times(times, own=own) if host else None
        outcome = Outcome(np.zeros(0), np.zeros(0), 0)
        for _ in range(MAX_SIMULATED_STEPS if host and not own else 1):
            previous_ns = outcome.makespan
            outcome = run_program(program, durations, self.machine.machines[level], hosts)
            if (
                outcome.stuck
                or abs(outcome.makespan - previous_ns) <= MAX_CHANGE_OF_STEADY_STEP * previous_ns
            ):
                break
            if hosts is not None:
                rank_ends = [
                    float(outcome.end[numbers].max(initial=0)) for numbers in program.rank_pieces
                ]
                host_starts, gpu_starts = ops.next_starts(rank_ends, outcome.host_ends)
                hosts = replace(hosts, starts=host_starts, gpu_starts=gpu_starts)
        return None if outcome.stuck else outcome


def why_too_large(schedule: Schedule) -> str | None:
    """Return the reason why a schedule is too large to simulate; None if it is not."""
    if sum(len(order) for order in schedule.ranks) <= MAX_OPS_TO_SIMULATE:
        return None
    return f"more than {MAX_OPS_TO_SIMULATE:,} ops are too many to run message by message"


def fit_predictor(
    pipeline: Pipeline,
    ranks: Mapping[int, RankPipeline],
    own: Schedule,
    replays: StepReplays,
    *,
    exact: bool,
) -> Predictor | str:
    """Fit a predictor to one step of a run.

    Args:
        pipeline: The step.
        ranks: Tables of the run's ranks.
        own: Schedule of the run.
        replays: The step, with what stalled its cells.
        exact: Whether the run follows *own* exactly.

    Returns:
        The predictor; a text with the reason if the run shows too little of its machine.
    """
    if reason := why_not_predicted(pipeline, own, exact=exact):
        return reason
    messages = _messages_by_position(pipeline, ranks)
    matched = match_messages(
        {p: _sent_after_ops(table, pipeline.detail, p) for p, table in messages.items()}
    )
    if matched is None:
        return "not every message could be matched with its other side"
    queues = find_queues(messages, pipeline.detail)
    contention = [ranks[rank].contention for rank in pipeline.ranks]
    machine = fit_machine(matched, contention, queues)
    if any(ranks[rank].shares_gpu for rank in pipeline.ranks):
        machine = machine.on_shared_gpu(
            fit_sharing(pipeline.detail, messages, machine.machines[MIDDLE])
        )
    slowdowns = gpu_slowdowns(contention)
    lead_ns = pl.Series(np.sum([replays.before[cause] for cause in _GPU_STALLS], axis=0))
    full_queue = _full_queue_by_position(pipeline, ranks)
    measure_level = partial(
        measure_ops,
        pipeline.detail,
        messages,
        machine.machines[MIDDLE],
        stages=own.stages,
        lead_ns=lead_ns,
        full_queue=full_queue,
        gpu_slowdowns=slowdowns,
    )
    low = measure_level(level=LOW)
    middle = measure_level(level=MIDDLE)
    high = measure_level(level=HIGH)
    program = recorded_program(pipeline.detail, messages, host_waits=middle.host_waits)
    predictor = Predictor(own, machine, (low, middle, high), replays.makespan, program)
    if predictor.replay_error > MAX_REPLAY_ERROR:
        error = percent(predictor.replay_error, digits=0)
        return f"a replay of this run with its own messages and host is off by {error}"
    return predictor


def why_not_predicted(pipeline: Pipeline, own: Schedule, *, exact: bool) -> str | None:
    """Return the reason why the run cannot show enough of its machine; None if there is none."""
    if len(pipeline.ranks) < 2:
        return "a single rank sends no messages"
    if len(pipeline.positions) < len(pipeline.ranks):
        return "traces of some of the pipeline's ranks are missing"
    if not exact or pipeline.stages_from == "nothing":
        return "the run's own order is not that of a known schedule"
    return why_too_large(own)


def _messages_by_position(
    pipeline: Pipeline, ranks: Mapping[int, RankPipeline]
) -> dict[int, pl.DataFrame]:
    """Return the messages of each rank in the step by position, on the pipeline's clock, peers as positions."""
    position_of_rank = {rank: position for position, rank in enumerate(pipeline.ranks)}
    peer = pl.col("peer").replace_strict(position_of_rank, default=None, return_dtype=pl.Int32)
    messages = {}
    for rank, position in position_of_rank.items():
        table = ranks[rank].by_step[pipeline.step][1]
        on_one_clock = pipeline.clocks.moved(rank, "launch_ns", "start_ns", "end_ns")
        messages[position] = table.with_columns(*on_one_clock, peer)
    return messages


def _full_queue_by_position(
    pipeline: Pipeline, ranks: Mapping[int, RankPipeline]
) -> dict[int, Intervals]:
    """Return when the host of each position waited for room in the GPU's queue, on the pipeline's clock."""
    full_queues = {}
    for position, rank in enumerate(pipeline.ranks):
        times = pipeline.clocks.moved(rank, "start_ns", "end_ns")
        full_queues[position] = union_of(ranks[rank].full_queue.select(*times))
    return full_queues


def _sent_after_ops(messages: pl.DataFrame, cells: pl.DataFrame, position: int) -> pl.DataFrame:
    """Return the messages of a rank with no send before the end of the op launched before it.

    A backward's output may leave before the backward ends. In a simulation it leaves at the end, so
    that the time it takes from there on is what counts.
    """
    ops = (
        cells.filter(pl.col("position") == position)
        .select("launch_ns", op_end_ns="end_ns")
        .sort("launch_ns")
    )
    with_ops = messages.sort("launch_ns", maintain_order=True).join_asof(ops, on="launch_ns")
    left_early = pl.col("send") & (pl.col("op_end_ns") < pl.col("end_ns")).fill_null(False)
    start_ns = (
        pl.when(left_early).then(pl.max_horizontal("start_ns", "op_end_ns")).otherwise("start_ns")
    )
    return with_ops.with_columns(start_ns=start_ns).drop("op_end_ns")
