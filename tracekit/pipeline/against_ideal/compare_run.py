"""Comparison of a run with the ideal of the schedule it followed, from the tables of its ranks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, SortedGroups
from tracekit._util.columns import concat_ranks
from tracekit._util.notices import merge_notices
from tracekit._util.text import joined, listed, ms, percent, ranks_named
from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.documents.analysis import RankBubble
from tracekit.errors import Notice, NoticeValues, OptionError
from tracekit.pipeline.against_ideal.comparison import ScheduleComparison, StepComparison
from tracekit.pipeline.against_ideal.find_schedule import (
    ScheduleFinder,
    find_doubt,
    find_pipeline_size,
    order_differs_notice,
)
from tracekit.pipeline.against_ideal.identify import Match
from tracekit.pipeline.against_ideal.replay import (
    StepReplays,
    measure_stage_times,
    prepare_replays,
    replay_balanced,
    split_gaps,
)
from tracekit.pipeline.reconstruct.parallel_groups import (
    add_pipelines,
    find_parallel_groups,
    name_peers,
)
from tracekit.pipeline.reconstruct.pipeline import Pipeline, rename_cells
from tracekit.pipeline.reconstruct.pipeline_steps import assemble_steps
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.pipeline.reconstruct.stalls import LANES, MIN_CROSSED_SHARE, crossed_share
from tracekit.pipeline.schedules import simulate
from tracekit.schema import PHASES

PipelineRanks = Sequence[int]
"""Ranks of one pipeline in stage order."""

ComparedPipeline = tuple[list[StepComparison], dict[int, list[Notice]]]
"""Steps of one pipeline that could be compared, and the notices about each step."""

PIPELINES_PER_BATCH = 16
"""Pipelines that one worker compares in one call."""

MIN_LATE_SHARE_TO_REPORT = 0.01
"""Share of the makespan by which a rank must begin its step late for a notice."""


def compare_all_pipelines(
    pipelines: Sequence[PipelineRanks],
    ranks: Mapping[int, RankPipeline],
    finder: ScheduleFinder,
    clocks: Clocks,
    spread: MapFunction,
) -> list[ComparedPipeline]:
    """Compare every step of every pipeline with its ideal.

    The first batch is compared in this process. All others start from what the finder has learned
    in it, so that the result does not depend on the worker that compares a pipeline.

    Args:
        pipelines: Ranks of each pipeline.
        ranks: Tables of the ranks that have a trace.
        finder: Search for schedules.
        clocks: Clocks of the ranks.
        spread: Function that calls another one on every item, perhaps in several workers.

    Returns:
        One entry per pipeline, in the order of *pipelines*.
    """
    compared = _compare_batch(finder, clocks, (pipelines[:PIPELINES_PER_BATCH], ranks))
    batches: list[_Batch] = []
    for start in range(PIPELINES_PER_BATCH, len(pipelines), PIPELINES_PER_BATCH):
        batch = pipelines[start : start + PIPELINES_PER_BATCH]
        # A worker gets the tables of its own ranks only.
        batches.append((batch, _tables_of(batch, ranks)))
    for result in spread(partial(_compare_batch_alone, finder, clocks), batches):
        compared += result
    return compared


_Batch = tuple[Sequence[PipelineRanks], Mapping[int, RankPipeline]]
"""Some pipelines, and the tables of their ranks."""


class _Ideal(msgspec.Struct, frozen=True, eq=False):
    """Ideal of one step."""

    makespan: int
    bubble: float  # share of ranks × makespan outside cells
    start: Ints  # of every cell of the run
    end: Ints
    idle: Sequence[tuple[int, int, int]]  # by position: idle time in each phase
    cells: pl.DataFrame | None = None  # of the schedule, if the run has another order


def _compare_batch_alone(
    finder: ScheduleFinder, clocks: Clocks, batch: _Batch
) -> list[ComparedPipeline]:
    """Compare a batch with a finder that learns on its own."""
    return _compare_batch(deepcopy(finder), clocks, batch)


class _MatchedStep(msgspec.Struct, frozen=True, eq=False):
    """A step of a pipeline for which a schedule was found."""

    index: int
    """Of the pipeline in its batch."""
    pipeline: Pipeline
    match: Match
    notices: list[Notice]


def _compare_batch(finder: ScheduleFinder, clocks: Clocks, batch: _Batch) -> list[ComparedPipeline]:
    """Compare every step of some pipelines with its ideal.

    The steps of all of them are handled in one table.
    """
    pipelines, all_ranks = batch
    ranks = _tables_of(pipelines, all_ranks)
    recorded_ranks: list[list[RankPipeline]] = []
    steps: list[list[int]] = []
    for line in pipelines:
        line_ranks = [ranks[rank] for rank in line if rank in ranks]
        recorded_ranks.append(line_ranks)
        steps.append(_common_steps(line_ranks))
    assembled = assemble_steps(
        ranks, list(zip(pipelines, steps, strict=True)), clocks, finder.placed
    )

    matched: list[_MatchedStep] = []
    notices: list[dict[int, list[Notice]]] = []  # by pipeline, then by step
    for index, pipeline_steps in enumerate(assembled):
        cut_steps: set[int] = set()
        if finder.wanted == "auto":
            cut_steps = _cut_steps(recorded_ranks[index], steps[index])
        matched_steps, notices_by_step = _match_steps(finder, index, pipeline_steps, cut_steps)
        matched += matched_steps
        notices.append(notices_by_step)

    all_replays = prepare_replays([step.pipeline for step in matched], ranks, finder.graphs)
    compared: list[list[StepComparison]] = [[] for _ in pipelines]
    balanced = replay_balanced(all_replays)
    ideals = [
        _simulate_ideal(step.pipeline, replays, step.match, start_and_end)
        for step, replays, start_and_end in zip(matched, all_replays, balanced, strict=True)
    ]
    gaps = split_gaps(all_replays, [ideal.makespan for ideal in ideals])
    for step, replays, ideal, gap_ns in zip(matched, all_replays, ideals, gaps, strict=True):
        comparison, step_notices = _compare_step(step, replays, ideal, gap_ns, wanted=finder.wanted)
        notices[step.index][step.pipeline.step] = step_notices
        if comparison is not None:
            compared[step.index].append(comparison)
    return list(zip(compared, notices, strict=True))


def _match_steps(
    finder: ScheduleFinder, index: int, pipeline_steps: Iterable[Pipeline], cut_steps: set[int]
) -> tuple[list[_MatchedStep], dict[int, list[Notice]]]:
    """Find the schedule of each step of one pipeline.

    Return those that have one, and the notices about all.
    """
    matched: list[_MatchedStep] = []
    notices: dict[int, list[Notice]] = {}
    for pipeline in pipeline_steps:
        if not _is_pipeline(pipeline):
            continue
        if pipeline.step in cut_steps:
            notices[pipeline.step] = [
                Notice(
                    "partial-step",
                    (f"step {pipeline.step} is cut: a part of what it launched was not recorded"),
                    values={"case": "not_recorded", "step": pipeline.step},
                )
            ]
            continue
        finding = finder.find(pipeline)
        notices[pipeline.step] = [*pipeline.notices, *finding.notices]
        match = finding.match
        if match is None:
            continue
        named = pipeline
        if match.exact:
            named = rename_cells(pipeline, match.schedule, has_names=finding.has_schedule_names)
        matched.append(_MatchedStep(index, named, match, finding.notices))
    return matched, notices


def _tables_of(
    pipelines: Sequence[PipelineRanks], ranks: Mapping[int, RankPipeline]
) -> dict[int, RankPipeline]:
    """Return the tables of those ranks of *pipelines* that have a trace."""
    tables: dict[int, RankPipeline] = {}
    for line in pipelines:
        for rank in line:
            if rank in ranks:
                tables[rank] = ranks[rank]
    return tables


def _cut_steps(ranks: Sequence[RankPipeline], steps: Sequence[int]) -> set[int]:
    """Return the steps that some rank recorded only in part: without step marks, the first and the last."""
    cut: set[int] = set()
    for rank in ranks:
        cut |= {step for step in rank.cut if step is not None}
        if None in rank.cut and steps:
            cut |= {steps[0], steps[-1]}
    return cut


def _common_steps(ranks: Sequence[RankPipeline]) -> list[int]:
    """Return the steps that all of the ranks have."""
    common = (
        set.intersection(*(set(rank.chunks["step"].to_list()) for rank in ranks))
        if ranks
        else set()
    )
    return sorted(common - {None})


def _is_pipeline(pipeline: Pipeline) -> bool:
    """Return whether there is a schedule to find: a single rank has one only if it overlaps several micro-batches."""
    if len(pipeline.ranks) > 1:
        return True
    ops = pipeline.detail["op"].to_list()
    return "FB" in ops and len(ops) > 2


def _compare_step(
    step: _MatchedStep,
    replays: StepReplays,
    ideal: _Ideal,
    gap_ns: dict[str, int] | None,
    *,
    wanted: str,
) -> tuple[StepComparison | None, list[Notice]]:
    """Compare one step with its ideal.

    None and notices with the reason if the comparison is doubtful.
    """
    pipeline = step.pipeline
    match = step.match
    notices = step.notices
    if not _is_complete(pipeline):
        gap_ns = None
    doubt = find_doubt(match, measured_ns=replays.makespan, ideal_ns=ideal.makespan, gap_ns=gap_ns)
    if doubt and wanted == "auto" and not (match.exact and pipeline.stages_from != "nothing"):
        message = f"step {pipeline.step}: {doubt.text}: no schedule is named"
        values = {"step": pipeline.step, **doubt.values}
        doubtful = Notice("no-schedule", message, values=values)
        return None, [*pipeline.notices, *notices, doubtful]
    if doubt:
        gap_ns = None
        message = f"{doubt.text}: the gap is not split by cause"
        notices = [*notices, Notice("gap-doubtful", message, values=doubt.values)]
    if replays.graph.broken:
        notices = [
            *notices,
            Notice(
                "order-uncertain",
                (
                    f"{int(replays.graph.broken)} cells seem to wait for "
                    "each other: their stages or order are not certain"
                ),
                values={"cells": int(replays.graph.broken)},
            ),
        ]
    return StepComparison(
        pipeline,
        match,
        replays,
        ideal.makespan,
        ideal.bubble,
        gap_ns,
        bubbles=_rank_bubbles(pipeline, replays, ideal),
        ideal_times=(ideal.start, ideal.end),
        ideal_cells=ideal.cells,
        notices=(
            *pipeline.notices,
            *notices,
            *_match_notices(match, pipeline),
            *late_start_notices(pipeline, replays),
        ),
    ), []


def _is_complete(pipeline: Pipeline) -> bool:
    """Return whether every rank of a pipeline has a trace."""
    return len(pipeline.positions) == len(pipeline.ranks)


def _match_notices(match: Match, pipeline: Pipeline) -> list[Notice]:
    """Return notices about the evidence for a match."""
    name = match.schedule.name
    notices = []
    if match.exact and match.blocks_run_apart:
        notices.append(
            Notice(
                "blocks-differ",
                (
                    f"{match.blocks_run_apart} overlapped FB blocks of {name} ran as an F and "
                    "a B, one after the other"
                ),
                values={
                    "case": "block_run_apart",
                    "blocks": match.blocks_run_apart,
                    "schedule": name,
                },
                severity="note",
            )
        )
    if match.exact and match.backwards_run_whole:
        notices.append(
            Notice(
                "blocks-differ",
                (f"{match.backwards_run_whole} split backwards of {name} ran in one piece"),
                values={
                    "case": "backward_run_whole",
                    "backwards": match.backwards_run_whole,
                    "schedule": name,
                },
                severity="note",
            )
        )
    if not match.exact:
        notices.append(order_differs_notice(match, pipeline))
    if match.ambiguous_with:
        same_order = f"{joined(match.ambiguous_with)} would have the same order as {name}"
        case = "at_this_size"
        message = f"at this size {same_order}"
        if len(pipeline.positions) < len(pipeline.ranks):
            case = "on_these_ranks"
            message = f"on the ranks there are traces of, {same_order}; traces of more ranks would decide it"
        values: NoticeValues = {
            "case": case,
            "others": tuple(match.ambiguous_with),
            "schedule": name,
        }
        notices.append(Notice("schedule-ambiguous", message, values=values))
    if pipeline.stages_from == "pattern":
        notices.append(
            Notice(
                "size-from-order",
                ("stages and micro-batches are taken from the schedule that has this pattern"),
                severity="note",
                values={"case": "stages"},
            )
        )
    if pipeline.weights_counted:
        notices.append(
            Notice(
                "pairs-by-order",
                ("weight gradients ran outside autograd: each is given to a backward by counting"),
                severity="note",
                values={"case": "weights_counted"},
            )
        )
    return notices


def late_start_notices(pipeline: Pipeline, replays: StepReplays) -> list[Notice]:
    """Return notices of ranks whose host began the step late.

    In a first step the profiler's start may be the cause.
    """
    position_of_cell = replays.graph.table.rank
    first_cells = SortedGroups.of(position_of_cell).first
    positions = position_of_cell[first_cells].tolist()
    late_ns = replays.before["host"][first_cells].tolist()
    notices = []
    for position, ns in zip(positions, late_ns, strict=True):
        if ns > MIN_LATE_SHARE_TO_REPORT * replays.makespan:
            notices.append(
                Notice(
                    "late-start",
                    (
                        f"step {pipeline.step}: {ranks_named((pipeline.ranks[position],))} "
                        f"began {ms(ns)} late: its host had not launched anything (counted as "
                        "host)"
                    ),
                    ranks=(pipeline.ranks[position],),
                    values={"step": pipeline.step, "late_ns": ns},
                    severity="note",
                )
            )
    return notices


def _simulate_ideal(
    pipeline: Pipeline, replays: StepReplays, match: Match, balanced: tuple[Ints, Ints]
) -> _Ideal:
    """Return the ideal: a replay of the run if it has the schedule's order, else the schedule simulated at its times.

    Cells of the run that do not correspond one by one to ops of the schedule keep the times of the
    replay.

    Args:
        pipeline: The pipeline in one step.
        replays: The same, ready to be replayed.
        match: Its schedule.
        balanced: Start and end of its cells with balanced work.
    """
    start, end = balanced
    if match.exact and _is_complete(pipeline):
        makespan = int(end.max(initial=0))
        bubble = (
            1 - int(replays.balanced.sum()) / (makespan * len(pipeline.positions))
            if makespan
            else 0.0
        )
        return _Ideal(makespan, bubble, start, end, replays.graph.table.idle_by_phase(start, end))
    times = measure_stage_times(replays, pipeline.detail, len(pipeline.ranks)).for_chunks()
    simulation = simulate(match.schedule, times)
    for position in pipeline.positions if match.exact else ():
        cells = np.flatnonzero(replays.graph.table.rank == position)
        ops = np.flatnonzero(match.schedule.table.rank == position)
        if len(cells) == len(ops):
            start[cells] = simulation.start[ops]
            end[cells] = simulation.end[ops]
    idle = match.schedule.table.idle_by_phase(simulation.start, simulation.end)
    ideal_cells = None
    if not match.exact:
        rank_of_position = dict(enumerate(pipeline.ranks))
        ideal_cells = simulation.cells.with_columns(pl.col("rank").replace_strict(rank_of_position))
    return _Ideal(
        int(simulation.makespan),
        simulation.bubble_fraction,
        start,
        end,
        idle,
        cells=ideal_cells,
    )


def _rank_bubbles(
    pipeline: Pipeline, replays: StepReplays, ideal: _Ideal
) -> tuple[RankBubble, ...]:
    """Return the measured and ideal idle time of each rank by phase."""
    measured_idle = replays.graph.table.idle_by_phase(replays.start, replays.end)
    bubbles = []
    for position in pipeline.positions:
        bubble = RankBubble(
            rank=pipeline.ranks[position],
            measured_ns=dict(zip(PHASES, measured_idle[position], strict=True)),
            ideal_ns=dict(zip(PHASES, ideal.idle[position], strict=True)),
            peak_activations=replays.graph.peak_activations[position],
        )
        bubbles.append(bubble)
    return tuple(bubbles)


_CODES_THAT_EXPLAIN = ("no-schedule", "schedule-other", "partial-step")
"""Notices that already explain why there is no schedule."""


def compare_pipelines(
    ranks: Sequence[RankPipeline],
    *,
    schedule: str = "auto",
    layout: str | Mapping[str, int] | None = None,
    clocks: Clocks | None = None,
    pipeline_number: int | None = None,
    spread: MapFunction = map,
) -> tuple[ScheduleComparison | None, tuple[Notice, ...]]:
    """Compare a run with the ideal of its schedule.

    Args:
        ranks: Tables of the ranks.
        schedule: ``auto``, a schedule's name, a file of orders, or ``none``.
        layout: Sizes of the process mesh (``pp=4,ep=2``), which tell the ranks of a pipeline.
        clocks: Clocks of the ranks; times as recorded if None.
        pipeline_number: Pipeline to show, counted from 0; the slowest one if None.
        spread: Function that calls another one on every item, perhaps in several workers.

    Returns:
        The comparison and notices; None and notices with the reason if there is no schedule to
        compare with.
    """
    if schedule == "none":
        return None, ()
    clocks = clocks or Clocks.recorded(rank.rank for rank in ranks)
    with_work, peer_notices = name_peers([rank for rank in ranks if rank.has_work], layout)
    if not with_work:  # so there are no messages either, whose peers a notice could be about
        return None, (
            Notice(
                "no-pipeline",
                ("no forward or backward work was found: nothing to reconstruct"),
                values={"case": "no_work"},
                severity="note",
            ),
        )
    by_rank = {rank.rank: rank for rank in with_work}
    groups = find_parallel_groups(with_work, layout)
    size_notices: list[Notice] = []
    if groups.unsized:
        # Only some ranks of these pipelines have a trace, and nothing says how many ranks there
        # are. The order of the recorded ones may show it.
        unsized_ranks = [by_rank[rank] for rank in sorted(groups.unsized)]
        pipelines, size_notices = find_pipeline_size(unsized_ranks, schedule)
        groups = add_pipelines(groups, pipelines)
    rank_notices = merge_notices((rank.rank, rank.notices) for rank in with_work)
    notices = [*peer_notices, *groups.notices, *size_notices, *rank_notices]

    results = compare_all_pipelines(
        groups.pipelines, by_rank, ScheduleFinder(schedule), clocks, spread
    )
    cut_steps = _steps_cut_in_most(results) if schedule == "auto" else set()
    compared: list[StepComparison] = []
    for steps, notices_by_step in results:
        compared += [step for step in steps if step.pipeline.step not in cut_steps]
        for step_notices in notices_by_step.values():
            notices += step_notices
    if not compared:
        return None, (
            *_unique(notices),
            *_no_schedule_notices(notices, groups.pipelines, with_work),
        )

    # The step of one pipeline that reports show.
    head, head_notices = _choose_head(compared, pipeline_number)
    lanes = {rank.rank: rank.lanes for rank in with_work}
    head_ranks = {rank: by_rank[rank] for rank in head.pipeline.ranks if rank in by_rank}
    comparison = ScheduleComparison(
        head=head,
        chosen=pipeline_number is not None,
        all=tuple(compared),
        lanes=concat_ranks(lanes, LANES),
        positions=groups.positions,
        head_ranks=head_ranks,
        factors=head.measure_imbalance(),
    )
    return comparison, _unique([*notices, *head.notices, *head_notices])


def _steps_cut_in_most(results: Sequence[ComparedPipeline]) -> set[int]:
    """Return the steps that are cut in at least half of the pipelines, and so in all.

    The short orders of the other pipelines match some schedule by chance. A schedule that the
    caller names is compared with whatever was recorded.
    """
    cut_pipelines_by_step: Counter[int] = Counter()
    for _, notices_by_step in results:
        for step, step_notices in notices_by_step.items():
            if any(notice.code == "partial-step" for notice in step_notices):
                cut_pipelines_by_step[step] += 1
    return {
        step
        for step, cut_pipelines in cut_pipelines_by_step.items()
        if 2 * cut_pipelines >= len(results)
    }


def _unique(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))


def _no_schedule_notices(
    notices: Sequence[Notice], pipelines: Sequence[PipelineRanks], ranks: Sequence[RankPipeline]
) -> list[Notice]:
    """Return a notice with the reason why there is no schedule, unless another notice has it already."""
    if any(notice.code in _CODES_THAT_EXPLAIN for notice in notices):
        return []
    crossed = {}
    for tables in ranks:
        share = crossed_share(tables.lanes)
        if share > MIN_CROSSED_SHARE:
            crossed[tables.rank] = share
    if crossed:
        rank = max(crossed, key=lambda rank: crossed[rank])
        return [
            Notice(
                "no-schedule",
                (
                    f"{ranks_named((rank,))} runs {percent(crossed[rank])} of its "
                    "communication beside compute of the other pass: it overlaps "
                    "micro-batches; which schedule that belongs to cannot be known "
                    "without its messages"
                ),
                ranks=(rank,),
                values={"case": "overlap_alone", "share": crossed[rank]},
            )
        ]
    if all(len(pipeline) == 1 for pipeline in pipelines):
        return [
            Notice(
                "no-pipeline",
                (
                    "no pipeline messages and no overlapped micro-batches: no schedule "
                    "to compare with"
                ),
                values={"case": "no_messages"},
                severity="note",
            )
        ]
    return [
        Notice(
            "no-pipeline",
            ("the ranks of a pipeline have no step in common"),
            values={"case": "no_common_step"},
        )
    ]


def _choose_head(
    compared: Sequence[StepComparison], pipeline_number: int | None
) -> tuple[StepComparison, list[Notice]]:
    """Return the step that the figures describe: of the chosen pipeline, or of the slowest."""
    steps_of_pipelines: dict[tuple[int, ...], list[StepComparison]] = {}
    for comparison in compared:
        steps_of_pipelines.setdefault(comparison.pipeline.ranks, []).append(comparison)
    pipelines = list(steps_of_pipelines.values())
    if pipeline_number is None:
        return max(map(_choose_step, pipelines), key=lambda head: head[0].measured_ns)
    if not 0 <= pipeline_number < len(pipelines):
        hint = "there is only one: leave --pipeline out"
        if len(pipelines) > 1:
            hint = f"pipelines 0 to {len(pipelines) - 1} were found"
        raise OptionError(f"--pipeline {pipeline_number}: there is no such pipeline", hint=hint)
    return _choose_step(pipelines[pipeline_number])


def _choose_step(steps: Sequence[StepComparison]) -> tuple[StepComparison, list[Notice]]:
    """Return the step that stands for a pipeline: the one with the median makespan among those of the usual order.

    Steps that follow a schedule exactly go before others: a trace may begin or end inside a step,
    or with a warm-up. Of orders that are equally frequent, the one that ran last is taken.
    """
    count: Counter[_OrderKind] = Counter()
    last_index: dict[_OrderKind, int] = {}
    for index, step in enumerate(steps):
        kind = _order_kind(step)
        count[kind] += 1
        last_index[kind] = index
    usual = max(count, key=lambda kind: (kind.exact, count[kind], last_index[kind]))
    same = [step for step in steps if _order_kind(step) == usual]
    others = [step for step in steps if _order_kind(step) != usual]
    notices = []
    if others:
        other = _order_kind(others[0])
        values: NoticeValues = {
            "steps": tuple(step.pipeline.step for step in others),
            "schedule": other.name,
            "exact": other.exact,
            "microbatches": other.microbatches,
        }
        notices.append(
            Notice(
                "steps-differ",
                (
                    "step(s) "
                    f"{listed(tuple(step.pipeline.step for step in others), most=8)}"
                    " ran another order than the step shown ("
                    f"{'' if other.exact else 'not quite '}{other.name} with "
                    f"{other.microbatches} micro-batches)"
                ),
                values=values,
            )
        )
    by_time = sorted(same, key=lambda step: step.measured_ns)
    return by_time[(len(by_time) - 1) // 2], notices


class _OrderKind(NamedTuple):
    """What steps of the same order have in common."""

    exact: bool
    """Whether the order is exactly that of the schedule."""
    name: str
    microbatches: int
    virtual: int


def _order_kind(step: StepComparison) -> _OrderKind:
    schedule = step.match.schedule
    return _OrderKind(step.match.exact, schedule.name, schedule.microbatches, schedule.virtual)
