"""A run compared with its ideal: from the ranks' small tables to one comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from tracekit._util.notices import merge_notices
from tracekit._util.text import percent
from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.compare.alternatives import WhatIf
from tracekit.compare.comparison import Held, ScheduleComparison, factors
from tracekit.compare.finder import Finder
from tracekit.compare.lines import compare_lines
from tracekit.compare.sizes import size_from_order
from tracekit.errors import Notice, OptionError
from tracekit.reconstruct.lanes import CROSSED, crossed_share
from tracekit.reconstruct.peers import name_peers
from tracekit.reconstruct.rank import RankPipeline
from tracekit.reconstruct.roles import find_roles, with_pipelines
from tracekit.schedules.registry import searched_names


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
    """Return the ranks compared with the ideal of the schedule they followed; None, with notices why, without one.

    *schedule* is ``auto``, a schedule's name, a file of orders or ``none``; *layout* (``pp=4,ep=2``) says which ranks
    form a pipeline; *clocks* sets the ranks' clocks to one (else: times as recorded); *pipeline* is the one to show,
    counted from 0 (else: the slowest). Pipelines do not depend on each other: *spread* says who works on them.
    """
    if schedule == "none":
        return None, ()
    clocks = clocks or Clocks.recorded(r.rank for r in ranks)
    return _compare(ranks, schedule, layout, clocks, what_if=what_if, pipeline=pipeline, spread=spread)


def _compare(
    ranks: Sequence[RankPipeline],
    schedule: str,
    layout: str | Mapping[str, int] | None,
    clocks: Clocks,
    *,
    what_if: bool,
    pipeline: int | None,
    spread: MapFunction,
) -> tuple[ScheduleComparison | None, tuple[Notice, ...]]:
    with_work, matched = name_peers([r for r in ranks if r.has_work], layout)
    if not with_work:
        return None, (Notice("no-pipeline", "no forward or backward work was found: nothing to reconstruct"),)
    by_rank = {r.rank: r for r in with_work}
    roles = find_roles(with_work, layout)
    sized: list[Notice] = []
    if roles.unsized:
        sized_lines, sized = size_from_order([by_rank[r] for r in sorted(roles.unsized)], schedule)
        roles = with_pipelines(roles, sized_lines)
    notices: list[Notice] = [
        *matched,
        *roles.notices,
        *sized,
        *merge_notices((rank.rank, rank.notices) for rank in with_work),
    ]
    compared: list[Held] = []
    cut: Counter[int] = Counter()
    for of_line, by_step in compare_lines(roles.pipelines, by_rank, Finder(schedule), clocks, spread):
        compared += of_line
        notices += [notice for step_notices in by_step.values() for notice in step_notices]
        cut.update(
            step for step, step_notices in by_step.items() if any(notice.code == "step-cut" for notice in step_notices)
        )
    if schedule == "auto":  # what cuts half of the pipelines cuts all: the short orders of the others fit by chance
        compared = [h for h in compared if 2 * cut[h.pipeline.step] < len(roles.pipelines)]
    if not compared:
        return None, (*_once(notices), *_reason(notices, roles.pipelines, with_work))
    head, differing = _head(compared, pipeline)
    lines, unpredicted = _what_if(head, by_rank) if what_if else ((), [])
    lanes = [r.lanes for r in with_work]
    of_rank = pl.Series("rank", np.repeat([r.rank for r in with_work], [table.height for table in lanes]), pl.Int32)
    result = ScheduleComparison(
        head=head,
        chosen=pipeline is not None,
        all=tuple(compared),
        lanes=pl.concat(lanes).select(of_rank, pl.exclude("rank")),
        positions=roles.positions,
        what_if=lines,
        factors=factors(head.replays, head.pipeline),
    )
    untried = _untried(head) if what_if else []
    return result, _once([*notices, *head.notices, *differing, *untried, *unpredicted])


_REASONS = (
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


def _reason(
    notices: Sequence[Notice], lines: Sequence[Sequence[int]], ranks: Sequence[RankPipeline]
) -> tuple[Notice, ...]:
    if any(n.code in _REASONS for n in notices):
        return ()
    crossed = {r.rank: share for r in ranks if (share := crossed_share(r.lanes)) > CROSSED}
    if crossed:
        most = max(crossed, key=lambda rank: crossed[rank])
        text = f"rank {most} runs {percent(crossed[most])} of its communication beside compute of the other pass: it "
        text += "overlaps micro-batches; which schedule that belongs to cannot be known without its messages"
        return (Notice("overlap-seen", text),)
    if all(len(line) == 1 for line in lines):
        return (
            Notice(
                "no-pipeline",
                "no pipeline messages and no overlapped micro-batches: no schedule to compare with",
            ),
        )
    return (Notice("no-pipeline", "the ranks of a pipeline have no step in common"),)


def _head(compared: Sequence[Held], pipeline: int | None = None) -> tuple[Held, list[Notice]]:
    """Return the step that the numbers describe: of the pipeline asked for, or of the slowest."""
    lines = list(dict.fromkeys(h.pipeline.ranks for h in compared))
    if pipeline is not None and not 0 <= pipeline < len(lines):
        hint = (
            f"pipelines 0 to {len(lines) - 1} were found"
            if len(lines) > 1
            else "there is only one: leave --pipeline out"
        )
        raise OptionError(f"--pipeline {pipeline}: there is no such pipeline", hint=hint)
    asked = lines if pipeline is None else [lines[pipeline]]
    heads = [_usual([h for h in compared if h.pipeline.ranks == ranks]) for ranks in asked]
    return max(heads, key=lambda head: head[0].measured_ns)


def _usual(steps_of_line: Sequence[Held]) -> tuple[Held, list[Notice]]:
    """Return the step that stands for a pipeline: the median one of those that ran what most did.

    Whole steps that follow a schedule go before others: a trace may begin or end inside a step, or with a warm-up.
    """
    kinds = Counter(_kind(h) for h in steps_of_line)
    last = {_kind(h): k for k, h in enumerate(steps_of_line)}
    usual = max(kinds, key=lambda kind: (kind[0], kinds[kind], last[kind]))
    same = [h for h in steps_of_line if _kind(h) == usual]
    others = [h for h in steps_of_line if _kind(h) != usual]
    notices = []
    if others:
        steps = ", ".join(str(h.pipeline.step) for h in others[:8]) + (" …" if len(others) > 8 else "")
        plan = others[0].match.schedule
        ran = f"{'' if others[0].match.exact else 'not quite '}{plan.name} with {plan.microbatches} micro-batches"
        notices.append(Notice("steps-differ", f"step(s) {steps} ran another order than the step shown ({ran})"))
    return sorted(same, key=lambda h: h.measured_ns)[(len(same) - 1) // 2], notices


def _kind(comparison: Held) -> tuple[bool, str, int, int]:
    plan = comparison.match.schedule
    return comparison.match.exact, plan.name, plan.microbatches, plan.virtual


def _what_if(head: Held, ranks: Mapping[int, RankPipeline]) -> tuple[tuple[WhatIf, ...], list[Notice]]:
    """Return the rows of ``--what-if``, and a notice where only ideals could be computed."""
    from tracekit.compare.predict.predictor import predictor
    from tracekit.compare.whatif import what_if

    own, pipeline = head.match.schedule, head.pipeline
    predicted = predictor(pipeline, ranks, own, exact=head.match.exact, measured_ns=head.measured_ns)
    notices = []
    if isinstance(predicted, str):
        text = f"no schedule's makespan could be predicted, only its ideal: {predicted}"
        notices.append(Notice("what-if-ideal-only", text))
    return tuple(
        what_if(head.replays, pipeline.detail, len(pipeline.ranks), head.match, predicted, ideal_ns=head.ideal_ns)
    ), notices


def _untried(head: Held) -> list[Notice]:
    """Return a notice of the schedules that ``--what-if`` left out."""
    from tracekit.compare.whatif import too_large_to_search

    plan = head.match.schedule
    if not too_large_to_search(plan.pp, plan.microbatches):
        return []
    text = "are not among the schedules tried: searching their order takes too long for a run of this size"
    return [Notice("what-if-limited", f"{' and '.join(searched_names())} {text}")]


def _once(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))
