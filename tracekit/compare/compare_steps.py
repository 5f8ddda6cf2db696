"""Comparison of pipelines with their ideals, step by step. Pipelines are independent, so workers can share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.compare.comparison import StepComparison
from tracekit.compare.find_schedule import ScheduleFinder, find_doubt, order_differs_notice
from tracekit.compare.gap import StepReplays, measure_stage_times, prepare_replays, split_gap
from tracekit.compare.identify import Match
from tracekit.documents.analysis import RankBubble
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline, rename_cells
from tracekit.reconstruct.pipeline_steps import assemble_steps
from tracekit.reconstruct.rank_pipeline import RankPipeline
from tracekit.schedules import simulate
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

    The first batch is compared in this process. All others start from what the finder has learned in it, so that the
    result does not depend on the worker that compares a pipeline.

    Args:
        pipelines: Ranks of each pipeline.
        ranks: Tables of the ranks that have a trace.
        finder: Search for schedules.
        clocks: Clocks of the ranks.
        spread: Function that calls another one on every item, perhaps in several workers.

    Returns:
        One entry per pipeline, in the order of *pipelines*.
    """
    first = _compare_batch(finder, clocks, (pipelines[:PIPELINES_PER_BATCH], ranks))
    starts = range(PIPELINES_PER_BATCH, len(pipelines), PIPELINES_PER_BATCH)
    batches = [pipelines[start : start + PIPELINES_PER_BATCH] for start in starts]
    # A worker gets the tables of its own ranks only.
    items = [(batch, {rank: ranks[rank] for line in batch for rank in line if rank in ranks}) for batch in batches]
    results = spread(partial(_compare_batch_with_copy, finder, clocks), items)
    return [*first, *(compared for result in results for compared in result)]


_Batch = tuple[Sequence[PipelineRanks], Mapping[int, RankPipeline]]
"""Some pipelines, and the tables of their ranks."""


def _compare_batch_with_copy(finder: ScheduleFinder, clocks: Clocks, batch: _Batch) -> list[ComparedPipeline]:
    return _compare_batch(finder.copy(), clocks, batch)


def _compare_batch(finder: ScheduleFinder, clocks: Clocks, batch: _Batch) -> list[ComparedPipeline]:
    """Compare every step of some pipelines with its ideal. The steps of all of them are handled in one table."""
    pipelines, all_ranks = batch
    ranks = {rank: all_ranks[rank].loaded() for line in pipelines for rank in line if rank in all_ranks}
    ranks_of_pipelines = [[ranks[rank] for rank in line if rank in ranks] for line in pipelines]
    steps = [_common_steps(pipeline_ranks) for pipeline_ranks in ranks_of_pipelines]
    assembled = assemble_steps(ranks, list(zip(pipelines, steps, strict=True)), clocks, finder.placed)

    notices: list[dict[int, list[Notice]]] = [{} for _ in pipelines]  # by pipeline, then by step
    matched: list[tuple[int, Pipeline, Match, list[Notice]]] = []
    for index, pipeline_steps in enumerate(assembled):
        cut = _cut_steps(ranks_of_pipelines[index], steps[index]) if finder.wanted == "auto" else set()
        for pipeline in filter(_is_pipeline, pipeline_steps):
            if pipeline.step in cut:
                text = f"step {pipeline.step} is cut: a part of what it launched was not recorded"
                notices[index][pipeline.step] = [Notice("step-cut", text)]
                continue
            match, match_notices = finder.match(pipeline)
            if match is not None:
                matched.append((index, pipeline, match, match_notices))
            notices[index][pipeline.step] = [] if match is not None else [*pipeline.notices, *match_notices]

    named = _with_schedule_names([(pipeline, match) for _, pipeline, match, _ in matched], finder)
    all_replays = prepare_replays(named, ranks, finder.graphs)
    compared: list[list[StepComparison]] = [[] for _ in pipelines]
    for (index, _, match, match_notices), pipeline, replays in zip(matched, named, all_replays, strict=True):
        comparison, step_notices = _compare_step(pipeline, match, match_notices, replays, wanted=finder.wanted)
        notices[index][pipeline.step] = step_notices
        if comparison is not None:
            compared[index].append(comparison)
    return list(zip(compared, notices, strict=True))


def _with_schedule_names(matched: Sequence[tuple[Pipeline, Match]], finder: ScheduleFinder) -> list[Pipeline]:
    """Return the pipelines; the cells of those that match exactly get the names of the schedule."""
    exact = [
        (pipeline, match.schedule, finder.has_schedule_names(pipeline)) for pipeline, match in matched if match.exact
    ]
    named = iter(rename_cells(exact))
    return [next(named) if match.exact else pipeline for pipeline, match in matched]


def _cut_steps(ranks: Sequence[RankPipeline], steps: Sequence[int]) -> set[int]:
    """Return the steps that some rank recorded only in part: without step marks, the first and the last."""
    cut = {step for rank in ranks for step in rank.cut if step is not None}
    return cut | ({steps[0], steps[-1]} if steps and any(None in rank.cut for rank in ranks) else set())


def _common_steps(ranks: Sequence[RankPipeline]) -> list[int]:
    """Return the steps that all of the ranks have."""
    common = set.intersection(*(set(rank.chunks["step"].to_list()) for rank in ranks)) if ranks else set()
    return sorted(common - {None})


def _is_pipeline(pipeline: Pipeline) -> bool:
    """Return whether there is a schedule to find: a single rank has one only if it overlaps several micro-batches."""
    if len(pipeline.ranks) > 1:
        return True
    ops = pipeline.detail["op"].to_list()
    return "FB" in ops and len(ops) > 2


def _compare_step(
    pipeline: Pipeline, match: Match, notices: list[Notice], replays: StepReplays, *, wanted: str
) -> tuple[StepComparison | None, list[Notice]]:
    """Compare one step with its ideal; None and notices with the reason if the comparison is doubtful."""
    complete = len(pipeline.positions) == len(pipeline.ranks)
    ideal = _simulate_ideal(pipeline, replays, match, complete=complete)
    gap_ns = split_gap(replays, ideal.makespan) if complete else None
    doubt = find_doubt(match, measured_ns=replays.makespan, ideal_ns=ideal.makespan, gap_ns=gap_ns)
    if doubt and wanted == "auto" and not (match.exact and pipeline.stages_from != "nothing"):
        text = f"step {pipeline.step}: {doubt}: no schedule is named"
        return None, [*pipeline.notices, *notices, Notice("schedule-doubtful", text)]
    if doubt:
        gap_ns = None
        notices = [*notices, Notice("gap-doubtful", f"{doubt}: the gap is not split by cause")]
    if replays.graph.broken:
        text = f"{replays.graph.broken} cells seem to wait for each other: their stages or order are not certain"
        notices = [*notices, Notice("order-uncertain", text)]
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
            *_late_start_notices(pipeline, replays),
        ),
    ), []


def _match_notices(match: Match, pipeline: Pipeline) -> list[Notice]:
    """Return notices about the evidence for a match."""
    name = match.schedule.name
    notices = []
    if match.exact and match.blocks_run_apart:
        text = f"{match.blocks_run_apart} overlapped FB blocks of {name} ran as an F and a B, one after the other"
        notices.append(Notice("fb-run-apart", text))
    if match.exact and match.backwards_run_whole:
        text = f"{match.backwards_run_whole} split backwards of {name} ran in one piece"
        notices.append(Notice("backward-fused", text))
    if not match.exact:
        notices.append(order_differs_notice(match, pipeline))
    if match.ambiguous_with:
        names = ", ".join(match.ambiguous_with)
        if len(pipeline.positions) < len(pipeline.ranks):
            text = f"on the ranks there are traces of, {names} would have the same order as {name}"
            text += "; traces of more ranks would decide it"
        else:
            text = f"at this size {names} would have the same order as {name}"
        notices.append(Notice("schedule-ambiguous", text))
    if pipeline.stages_from == "pattern":
        text = "stages and micro-batches are taken from the schedule that has this pattern"
        notices.append(Notice("stages-from-pattern", text))
    if pipeline.weights_counted:
        text = "weight gradients ran outside autograd: each is given to a backward by counting"
        notices.append(Notice("weights-counted", text))
    return notices


def _late_start_notices(pipeline: Pipeline, replays: StepReplays) -> list[Notice]:
    """Return notices of ranks whose host began the step late; in a first step the profiler's start may be the cause."""
    first_cells = np.flatnonzero(np.diff(replays.graph.position, prepend=-1))
    positions = replays.graph.position[first_cells].tolist()
    late_ns = replays.before["host"][first_cells].tolist()
    return [
        Notice(
            "late-start",
            f"step {pipeline.step}: rank {pipeline.ranks[position]} began {ns / 1e6:.1f} ms late: its host had not "
            "launched anything (counted as host)",
        )
        for position, ns in zip(positions, late_ns, strict=True)
        if ns > MIN_LATE_SHARE_TO_REPORT * replays.makespan
    ]


class _Ideal(msgspec.Struct, frozen=True, eq=False):
    """Ideal of one step."""

    makespan: int
    bubble: float  # share of ranks × makespan outside cells
    start: Ints  # of every cell of the run
    end: Ints
    idle: Mapping[int, Sequence[int]]  # by position: idle time in each phase
    cells: pl.DataFrame | None = None  # of the schedule, if the run has another order


def _simulate_ideal(pipeline: Pipeline, replays: StepReplays, match: Match, *, complete: bool) -> _Ideal:
    """Return the ideal: a replay of the run if it has the schedule's order, else the schedule simulated at its times.

    Cells of the run that do not correspond one by one to ops of the schedule keep the times of the replay.
    """
    start, end = replays.graph.run(replays.balanced)
    if match.exact and complete:
        makespan = int(end.max(initial=0))
        bubble = 1 - int(replays.balanced.sum()) / (makespan * len(pipeline.positions)) if makespan else 0.0
        return _Ideal(makespan, bubble, start, end, replays.graph.idle_by_phase(start, end))
    times = measure_stage_times(replays, pipeline.detail, len(pipeline.ranks)).for_chunks()
    simulation = simulate(match.schedule, times)
    for position in pipeline.positions if match.exact else ():
        cells = np.flatnonzero(replays.graph.position == position)
        ops = np.flatnonzero(match.schedule.table.rank == position)
        if len(cells) == len(ops):
            start[cells], end[cells] = simulation.start[ops], simulation.end[ops]
    idle = {position: [int(ns) for ns in phases] for position, phases in enumerate(simulation.idle_phases)}
    rank_of_position = dict(enumerate(pipeline.ranks))
    ideal_cells = simulation.cells.with_columns(pl.col("rank").replace_strict(rank_of_position))
    return _Ideal(
        int(simulation.makespan),
        simulation.bubble_fraction,
        start,
        end,
        idle,
        cells=None if match.exact else ideal_cells,
    )


def _rank_bubbles(pipeline: Pipeline, replays: StepReplays, ideal: _Ideal) -> tuple[RankBubble, ...]:
    """Return the measured and ideal idle time of each rank by phase."""
    measured_idle = replays.graph.idle_by_phase(replays.start, replays.end)
    return tuple(
        RankBubble(
            rank=pipeline.ranks[position],
            measured_ns=dict(zip(PHASES, measured_idle[position], strict=True)),
            ideal_ns=dict(zip(PHASES, ideal.idle[position], strict=True)),
            peak_activations=replays.graph.peak_activations[position],
        )
        for position in pipeline.positions
    )
