"""Step time of a run, and the budget of its steps.

When a step begins and ends on a rank says ``align.steps``. The time of a run's step is the median over ranks, and the
time of a run the median over its steps. It is never counted from the first start to the last end
over all ranks, because ranks enter a step at different times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from tracekit.classify.names import HOST_CALLS
from tracekit.documents.analysis import Budget, Step, StepNotCommon, StepTime, TimedStep
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.host.events import NamedRows
from tracekit.metrics.label_intervals import Lanes

MIN_UNUSUAL_DIFFERENCE = 0.25
"""Share of the median step by which a step must differ from it to stand out, and …"""
MIN_UNUSUAL_DEVIATIONS = 4
"""… how many times the median deviation of all steps that must be."""
MAX_STEPS_IN_TURN = 128
"""Longest period of steps that take times in turn; finding it takes time linear in steps."""
MAX_DIFFERENCE_IN_TURN = 0.1
"""Difference between steps of one place in a period, as a share of their time, up to which they are
alike."""
MIN_LOADING_SHARE = 0.05
"""Share of a step's time in calls that load code onto the GPU, from which it is one of start-up."""
MIN_STEPS_TO_COMPARE = 3
"""Steps from which one of them can stand out."""


def step_budgets(
    steps: pl.DataFrame,
    lanes: Lanes,
    *,
    unrecorded: Intervals = EMPTY,
    part: npt.ArrayLike | None = None,
) -> list[Budget]:
    """Return the budget of each step's interval: its terms sum to the step time.

    All GPU work inside the interval counts, also that of a step before it which still runs.

    Args:
        steps: Steps of one rank with their intervals (``align.steps.STEPS``).
        lanes: Interval sets of all GPU work of the rank, in one part.
        unrecorded: Time in which work that is missing from the file may have run.
        part: Part of *lanes* that each step is in, if steps and lanes are of several ranks.

    >>> events = pl.DataFrame({"label": ["forward", "pp_comm"], "start_ns": [0, 4], "end_ns": [6, 8]})
    >>> steps = pl.DataFrame({"interval_start_ns": [0], "interval_end_ns": [10], "time_ns": [10]})
    >>> step_budgets(steps, Lanes.of(events))
    [Budget(span_ns=10, compute_ns=6, exposed_ns={'pp_comm': 2}, idle=2, unrecorded_ns=0)]
    """
    start = steps["interval_start_ns"].to_numpy()
    end = np.maximum(steps["interval_end_ns"].to_numpy(), start)
    compute_ns = lanes.compute.covered_ns(start, end, part)
    busy_ns = lanes.busy.covered_ns(start, end, part)
    unrecorded_ns = (unrecorded - lanes.busy).covered_ns(start, end, part)
    exposed_ns = {}
    for label, exposed in lanes.exposed.items():
        exposed_ns[label] = exposed.covered_ns(start, end, part)
    result = []
    for row, time_ns in enumerate((end - start).tolist()):
        exposed_of_step = {label: int(ns[row]) for label, ns in exposed_ns.items()}
        result.append(
            Budget(
                span_ns=time_ns,
                compute_ns=int(compute_ns[row]),
                exposed_ns=exposed_of_step,
                idle=time_ns - int(busy_ns[row]) - int(unrecorded_ns[row]),
                unrecorded_ns=int(unrecorded_ns[row]),
            )
        )
    return result


def find_start_up_steps(calls: NamedRows, steps: pl.DataFrame) -> frozenset[int]:
    """Return the steps in which the host spent much of the time on loading code onto the GPU.

    Code is loaded when it is first used: such a step is no ordinary one, however many there are.

    Args:
        calls: The host's calls of the GPU's library.
        steps: Steps of the rank (``align.steps.STEPS``).

    >>> rows = {"name": ["cuLibraryLoadData"] * 2, "step": [0, 1], "start_ns": [0, 100], "end_ns": [10, 101]}
    >>> calls = NamedRows(pl.DataFrame(rows))
    >>> find_start_up_steps(calls, pl.DataFrame({"step": [0, 1], "time_ns": [100, 100]}))
    frozenset({0})
    """
    loads = calls.select(calls.named(HOST_CALLS["load_code"])).rows
    if loads.is_empty():
        return frozenset()
    loading_ns = loads.group_by("step").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    joined = steps.select("step", "time_ns").join(loading_ns, on="step")
    is_start_up = pl.col("ns") >= MIN_LOADING_SHARE * pl.col("time_ns")
    return frozenset(joined.filter(is_start_up)["step"].drop_nulls().to_list())


def timed_steps(
    steps: pl.DataFrame, budgets: Sequence[Budget], start_up: Collection[int] = ()
) -> tuple[TimedStep, ...]:
    """Return the steps of one rank (``align.steps.STEPS``) with the budgets of their intervals.

    *start_up* are those in which code was loaded.
    """
    rows = steps.select("step", "time_ns", "partial").iter_rows()
    result = []
    for (step, time_ns, partial), budget in zip(rows, budgets, strict=True):
        result.append(TimedStep(step, time_ns, budget, partial, start_up=step in start_up))
    return tuple(result)


class FreeStep(msgspec.Struct, frozen=True):
    """The step without the profiler."""

    time_ns: int
    range_ns: tuple[int, int]
    """Time within which the step lies, if it is modelled; of one that was timed, twice the time."""
    source: Literal["timed", "modelled"]
    """Whether the recorder timed it, or each recorded event gave back its cost
    (``graph.recording_cost``)."""
    budget: Budget | None = None
    """Parts of an ordinary step, which sum to the time; None if the events were not replayed."""


def with_free_step(recorded: Step, free: FreeStep | None) -> Step:
    """Return the step time with the step without the profiler.

    Time for which the recording lacks events is not idle there either.

    >>> parts = Budget(compute_ns=8, exposed_ns={}, idle=2, unrecorded_ns=10)
    >>> free = FreeStep(19, (19, 19), "modelled", Budget(compute_ns=8, exposed_ns={}, idle=11))
    >>> with_free_step(Step.of(20, budget_ns=parts), free).free_budget_ns
    Budget(span_ns=19, compute_ns=8, exposed_ns={}, idle=1, unrecorded_ns=10)
    """
    if free is None:
        return recorded
    budget = free.budget
    if budget is not None and budget.idle is not None and not budget.unrecorded_ns:
        unrecorded_ns = min(recorded.budget_ns.unrecorded_ns, budget.idle)
        budget = replace(budget, idle=budget.idle - unrecorded_ns, unrecorded_ns=unrecorded_ns)
    return replace(
        recorded,
        free_ns=free.time_ns,
        free_range_ns=free.range_ns,
        free_from=free.source,
        free_budget_ns=budget,
    )


def free_idle_share(step: Step) -> float:
    """Return the idle time of the step without the profiler over the recorded one, 0 to 1; 1 if it is not known."""
    recorded_ns = step.budget_ns.idle_ns
    if step.free_budget_ns is None or not recorded_ns:
        return 1.0
    return min(step.free_budget_ns.idle_ns / recorded_ns, 1.0)


def free_exposed_share(step: Step, label: str) -> float:
    """Return the exposed time of *label* without the profiler over the recorded one, 0 to 1.

    Ranks that the profiler delays let the others wait. 1 if it is not known.
    """
    recorded_ns = step.budget_ns.exposed_ns.get(label, 0)
    if step.free_budget_ns is None or not recorded_ns:
        return 1.0
    return min(step.free_budget_ns.exposed_ns.get(label, 0) / recorded_ns, 1.0)


def summarize_steps(ranks: Mapping[int, Sequence[TimedStep]]) -> Step:
    """Return the step time of a run, as recorded, from the timed steps of its ranks.

    Time in which nothing runs is known there, also where work is missing in the recording.

    >>> budgets = [Budget(compute_ns=ns, exposed_ns={}, idle=0) for ns in (17, 177, 18, 16)]
    >>> day = [TimedStep(n, budget.span_ns, budget) for n, budget in enumerate(budgets, start=4)]
    >>> steps = summarize_steps({0: day})
    >>> steps.time_ns, [unusual.step for unusual in steps.unusual]
    (18, [5])
    """
    timed = _timed_by_rank(ranks)
    if not timed:
        return Step.of(None)
    recorded = _in_order(set().union(*timed.values()))
    lacking_ranks = {step: _ranks_without(step, timed) for step in recorded}
    compared = _compared_steps(lacking_ranks, timed)
    per_step = []
    for step in compared:
        steps_of_ranks = [steps[step] for steps in timed.values()]
        per_step.append(StepTime(step, _median_time(steps_of_ranks)))
    time_ns = round(median([step.time_ns for step in per_step])) if per_step else None
    unusual = find_unusual(per_step)
    not_common = [
        StepNotCommon(step, lack)
        for step, lack in lacking_ranks.items()
        if lack and step is not None
    ]
    return Step.of(
        time_ns,
        per_step=per_step,
        unusual=unusual,
        by_rank=_time_by_rank(compared, timed),
        budget_ns=_usual_budget(compared, timed, unusual, time_ns or 0),
        not_common=not_common,
        marked=recorded != [None],
        in_turn_ns=find_times_in_turn([step.time_ns for step in per_step]),
        start_up=_start_up_steps(timed),
    )


TimedByRank = Mapping[int, Mapping[int | None, TimedStep]]
"""Steps that have a time, by rank and number; the number is None in a trace without steps."""


def _timed_by_rank(ranks: Mapping[int, Sequence[TimedStep]]) -> TimedByRank:
    """Return the steps that have a time, of ranks that have any."""
    timed = {}
    for rank, rank_steps in ranks.items():
        steps_with_time = {step.step: step for step in rank_steps if step.time_ns is not None}
        if steps_with_time:
            timed[rank] = steps_with_time
    return timed


def _compared_steps(
    lacking_ranks: Mapping[int | None, list[int]], timed: TimedByRank
) -> list[int | None]:
    """Return the steps of all ranks; those that are cut off count only where there are no others."""
    common = [step for step, ranks in lacking_ranks.items() if not ranks]
    complete = [step for step in common if _is_complete(step, timed)]
    start_up = _start_up_steps(timed)
    ordinary = [step for step in complete if step not in start_up]
    return ordinary or complete or common


def _start_up_steps(timed: TimedByRank) -> list[int]:
    """Return the steps in which any rank loaded code onto the GPU."""
    loading: set[int] = set()
    for steps in timed.values():
        loading.update(step for step, each in steps.items() if each.start_up and step is not None)
    return sorted(loading)


def _time_by_rank(compared: Sequence[int | None], timed: TimedByRank) -> dict[int, int]:
    """Return each rank's own step time; empty if there is no step to compare."""
    if not compared:
        return {}
    by_rank = {}
    for rank, steps in timed.items():
        by_rank[rank] = _median_time([steps[step] for step in compared])
    return by_rank


def _usual_budget(
    compared: Sequence[int | None], timed: TimedByRank, unusual: Sequence[StepTime], time_ns: int
) -> Budget:
    """Return the mean budget of the compared steps that do not stand out, of all ranks."""
    unusual_numbers = {step.step for step in unusual}
    usual = [step for step in compared if step not in unusual_numbers]
    budgets = []
    for steps in timed.values():
        budgets += [steps[step].budget for step in usual]
    return mean_budget(budgets, time_ns)


def _is_complete(step: int | None, timed: TimedByRank) -> bool:
    """Return whether all ranks recorded all of a step."""
    return not any(steps[step].partial for steps in timed.values())


def _ranks_without(
    step: int | None, timed: Mapping[int, Mapping[int | None, TimedStep]]
) -> list[int]:
    """Return the ranks that have no time of a step."""
    return [rank for rank, steps in timed.items() if step not in steps]


def find_unusual(steps: Sequence[StepTime]) -> list[StepTime]:
    """Return the steps whose time stands out from the others.

    >>> [step.step for step in find_unusual([StepTime(n, ns) for n, ns in enumerate([96, 87, 80, 66])])]
    []
    """
    if len(steps) < MIN_STEPS_TO_COMPARE:
        return []
    usual_ns = median([step.time_ns for step in steps])
    deviation_ns = median([abs(step.time_ns - usual_ns) for step in steps])
    least_ns = max(MIN_UNUSUAL_DIFFERENCE * usual_ns, MIN_UNUSUAL_DEVIATIONS * deviation_ns)
    return [step for step in steps if abs(step.time_ns - usual_ns) > least_ns]


def find_times_in_turn(times_ns: Sequence[int]) -> list[int]:
    """Return the times that steps take in turn, for the shortest period; empty if they do not repeat.

    The recording must have the whole period twice, in which some step takes clearly longer than
    another.

    >>> find_times_in_turn([33, 114, 34, 113])
    [34, 114]
    >>> find_times_in_turn([33, 33, 33, 114, 33, 33, 33, 114])
    [33, 33, 33, 114]
    >>> find_times_in_turn([33, 34, 33, 114]), find_times_in_turn([33, 34, 33, 34])
    ([], [])
    """
    if not times_ns or max(times_ns) < (1 + MIN_UNUSUAL_DIFFERENCE) * min(times_ns):
        return []
    for period in range(2, min(len(times_ns) // 2, MAX_STEPS_IN_TURN) + 1):
        medians = _medians_by_position(times_ns, period)
        if medians is not None and max(medians) >= (1 + MIN_UNUSUAL_DIFFERENCE) * min(medians):
            return [round(middle) for middle in medians]
    return []


def _medians_by_position(times_ns: Sequence[int], period: int) -> list[float] | None:
    """Return the median time at each position of a period; None if the times at some position differ."""
    medians = []
    for position in range(period):
        times = times_ns[position::period]
        middle = median(times)
        if max(times) - min(times) > MAX_DIFFERENCE_IN_TURN * middle:
            return None
        medians.append(middle)
    return medians


def _median_time(steps: Iterable[TimedStep]) -> int:
    """Return the median time of steps that all have a time, in nanoseconds."""
    times_ns = []
    for step in steps:
        assert step.time_ns is not None
        times_ns.append(step.time_ns)
    return round(median(times_ns))


def _in_order(steps: Iterable[int | None]) -> list[int | None]:
    """Return steps by number; an unnumbered step (the whole trace) last."""
    return sorted(steps, key=lambda step: (step is None, step or 0))


def mean_budget(budgets: Iterable[Budget], time_ns: int) -> Budget:
    """Return the terms of *budgets* as shares of their sum, scaled to *time_ns*.

    Idle time is the rest.
    """
    all_budgets = list(budgets)
    total_ns = sum(budget.span_ns for budget in all_budgets)
    if not total_ns:
        return Budget(span_ns=time_ns, compute_ns=0, exposed_ns={}, idle=time_ns)

    def scaled(ns: int) -> int:
        return round(ns / total_ns * time_ns)

    compute_ns = scaled(sum(budget.compute_ns for budget in all_budgets))
    unrecorded_ns = scaled(sum(budget.unrecorded_ns for budget in all_budgets))
    total_exposed_ns: Counter[str] = Counter()
    for budget in all_budgets:
        total_exposed_ns.update(budget.exposed_ns)
    exposed_ns = {label: scaled(ns) for label, ns in total_exposed_ns.items()}
    idle_ns = time_ns - compute_ns - unrecorded_ns - sum(exposed_ns.values())
    return Budget(
        span_ns=time_ns,
        compute_ns=compute_ns,
        exposed_ns=exposed_ns,
        idle=max(idle_ns, 0),
        unrecorded_ns=unrecorded_ns,
    )
