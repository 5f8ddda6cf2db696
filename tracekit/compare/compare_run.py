"""Comparison of a run with the ideal of the schedule it followed, from the tables of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from tracekit._util.notices import merge_notices
from tracekit._util.text import percent
from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.compare.compare_steps import PipelineRanks, compare_all_pipelines
from tracekit.compare.comparison import ScheduleComparison, StepComparison
from tracekit.compare.find_schedule import ScheduleFinder
from tracekit.compare.pipeline_size import find_pipeline_size
from tracekit.compare.predict.predictor import Predictor, fit_predictor
from tracekit.compare.what_if import WhatIf, too_large_to_search, what_if_rows
from tracekit.errors import Notice, OptionError
from tracekit.reconstruct.lanes import MIN_CROSSED_SHARE, crossed_share
from tracekit.reconstruct.parallel_groups import add_pipelines, find_parallel_groups, name_peers
from tracekit.reconstruct.rank_pipeline import RankPipeline
from tracekit.schedules.registry import searched_names

_CODES_THAT_EXPLAIN = (
    "order-unknown",
    "schedule-doubtful",
    "schedule-other",
    "step-cut",
    "forward-only",
    "ranks-unknown",
    "pipeline-size-unknown",
    "layout-contradicted",
)
"""Notices that already explain why there is no schedule."""


def compare_pipelines(
    ranks: Sequence[RankPipeline],
    *,
    schedule: str = "auto",
    layout: str | Mapping[str, int] | None = None,
    what_if: bool = False,
    clocks: Clocks | None = None,
    pipeline: int | None = None,
    spread: MapFunction = map,
) -> tuple[ScheduleComparison | None, tuple[Notice, ...]]:
    """Compare a run with the ideal of its schedule.

    Args:
        ranks: Tables of the ranks.
        schedule: ``auto``, a schedule's name, a file of orders, or ``none``.
        layout: Sizes of the process mesh (``pp=4,ep=2``), which tell the ranks of a pipeline.
        what_if: Whether to predict other schedules and the run without each cause of its gap.
        clocks: Clocks of the ranks; times as recorded if None.
        pipeline: Number of the pipeline to show, from 0; the slowest one if None.
        spread: Function that calls another one on every item, perhaps in several workers.

    Returns:
        The comparison and notices; None and notices with the reason if there is no schedule to compare with.
    """
    if schedule == "none":
        return None, ()
    clocks = clocks or Clocks.recorded(rank.rank for rank in ranks)
    with_work, peer_notices = name_peers([rank for rank in ranks if rank.has_work], layout)
    if not with_work:
        return None, (Notice("no-pipeline", "no forward or backward work was found: nothing to reconstruct"),)
    by_rank = {rank.rank: rank for rank in with_work}
    roles = find_parallel_groups(with_work, layout)
    size_notices: list[Notice] = []
    if roles.unsized:
        pipelines, size_notices = find_pipeline_size([by_rank[rank] for rank in sorted(roles.unsized)], schedule)
        roles = add_pipelines(roles, pipelines)
    rank_notices = merge_notices((rank.rank, rank.notices) for rank in with_work)
    notices = [*peer_notices, *roles.notices, *size_notices, *rank_notices]

    compared: list[StepComparison] = []
    pipelines_cutting: Counter[int] = Counter()  # by step: pipelines in which it is cut
    for steps, notices_by_step in compare_all_pipelines(
        roles.pipelines, by_rank, ScheduleFinder(schedule), clocks, spread
    ):
        compared += steps
        for step, step_notices in notices_by_step.items():
            notices += step_notices
            pipelines_cutting[step] += any(notice.code == "step-cut" for notice in step_notices)
    if schedule == "auto":
        # A step that is cut in half of the pipelines is cut in all: the short orders of the others match by chance.
        compared = [c for c in compared if 2 * pipelines_cutting[c.pipeline.step] < len(roles.pipelines)]
    if not compared:
        return None, (*_unique(notices), *_no_schedule_notices(notices, roles.pipelines, with_work))

    head, head_notices = _choose_head(compared, pipeline)
    fit = partial(fit_predictor, head.pipeline, by_rank, head.match.schedule, head.replays, exact=head.match.exact)
    predictor = fit()
    rows, what_if_notices = _predict_what_if(head, predictor) if what_if else ((), [])
    lanes = [rank.lanes for rank in with_work]
    rank_of_lane = np.repeat([rank.rank for rank in with_work], [table.height for table in lanes])
    comparison = ScheduleComparison(
        head=head,
        chosen=pipeline is not None,
        all=tuple(compared),
        lanes=pl.concat(lanes).select(pl.Series("rank", rank_of_lane, pl.Int32), pl.exclude("rank")),
        positions=roles.positions,
        what_if=rows,
        factors=head.measure_imbalance(),
        fit=fit,
        no_prediction_reason=predictor if isinstance(predictor, str) else None,
    )
    return comparison, _unique([*notices, *head.notices, *head_notices, *what_if_notices])


def _unique(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))


def _no_schedule_notices(
    notices: Sequence[Notice], pipelines: Sequence[PipelineRanks], ranks: Sequence[RankPipeline]
) -> list[Notice]:
    """Return a notice with the reason why there is no schedule, unless another notice has it already."""
    if any(notice.code in _CODES_THAT_EXPLAIN for notice in notices):
        return []
    crossed = {rank.rank: share for rank in ranks if (share := crossed_share(rank.lanes)) > MIN_CROSSED_SHARE}
    if crossed:
        rank = max(crossed, key=lambda rank: crossed[rank])
        text = f"rank {rank} runs {percent(crossed[rank])} of its communication beside compute of the other pass: it "
        text += "overlaps micro-batches; which schedule that belongs to cannot be known without its messages"
        return [Notice("overlap-seen", text)]
    if all(len(pipeline) == 1 for pipeline in pipelines):
        text = "no pipeline messages and no overlapped micro-batches: no schedule to compare with"
        return [Notice("no-pipeline", text)]
    return [Notice("no-pipeline", "the ranks of a pipeline have no step in common")]


def _choose_head(compared: Sequence[StepComparison], pipeline: int | None) -> tuple[StepComparison, list[Notice]]:
    """Return the step that the figures describe: of the chosen pipeline, or of the slowest."""
    steps_of_pipelines: dict[tuple[int, ...], list[StepComparison]] = {}
    for comparison in compared:
        steps_of_pipelines.setdefault(comparison.pipeline.ranks, []).append(comparison)
    pipelines = list(steps_of_pipelines.values())
    if pipeline is None:
        return max(map(_choose_step, pipelines), key=lambda head: head[0].measured_ns)
    if not 0 <= pipeline < len(pipelines):
        hint = "there is only one: leave --pipeline out"
        if len(pipelines) > 1:
            hint = f"pipelines 0 to {len(pipelines) - 1} were found"
        raise OptionError(f"--pipeline {pipeline}: there is no such pipeline", hint=hint)
    return _choose_step(pipelines[pipeline])


def _choose_step(steps: Sequence[StepComparison]) -> tuple[StepComparison, list[Notice]]:
    """Return the step that stands for a pipeline: the one with the median makespan among those of the usual order.

    Steps that follow a schedule exactly go before others: a trace may begin or end inside a step, or with a warm-up.
    Of orders that are equally frequent, the one that ran last is taken.
    """
    count = Counter(map(_order_kind, steps))
    last_index = {_order_kind(step): index for index, step in enumerate(steps)}
    usual = max(count, key=lambda kind: (kind[0], count[kind], last_index[kind]))
    same = [step for step in steps if _order_kind(step) == usual]
    others = [step for step in steps if _order_kind(step) != usual]
    notices = []
    if others:
        numbers = ", ".join(str(step.pipeline.step) for step in others[:8]) + (" …" if len(others) > 8 else "")
        exact, name, microbatches, _ = _order_kind(others[0])
        order = f"{'' if exact else 'not quite '}{name} with {microbatches} micro-batches"
        notices.append(Notice("steps-differ", f"step(s) {numbers} ran another order than the step shown ({order})"))
    return sorted(same, key=lambda step: step.measured_ns)[(len(same) - 1) // 2], notices


def _order_kind(step: StepComparison) -> tuple[bool, str, int, int]:
    schedule = step.match.schedule
    return step.match.exact, schedule.name, schedule.microbatches, schedule.virtual


def _predict_what_if(head: StepComparison, predictor: Predictor | str) -> tuple[tuple[WhatIf, ...], list[Notice]]:
    """Return the rows of ``--what-if``, and notices about schedules and figures that are left out."""
    schedule = head.match.schedule
    notices = []
    if too_large_to_search(schedule.pp, schedule.microbatches):
        text = "are not among the schedules tried: searching their order takes too long for a run of this size"
        notices.append(Notice("what-if-limited", f"{' and '.join(searched_names())} {text}"))
    if isinstance(predictor, str):
        text = f"no schedule's makespan could be predicted, only its ideal: {predictor}"
        notices.append(Notice("what-if-ideal-only", text))
    rows = what_if_rows(head.replays, head.pipeline.detail, schedule, predictor, ideal_ns=head.ideal_ns)
    return tuple(rows), notices
