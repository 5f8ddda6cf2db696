"""A run compared with its ideal: from the ranks' small tables to one comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import whole_numbers
from tracekit._util.notices import merge_notices
from tracekit._util.text import percent
from tracekit.align.clocks import Clocks
from tracekit.compare._collecting import no_collecting
from tracekit.compare.comparison import SHIFT, Held, RankBubble, ScheduleComparison, factors
from tracekit.compare.finder import Finder, orders_differ
from tracekit.compare.gap import Replays, replays, split_gap
from tracekit.compare.identify import Match
from tracekit.compare.judge import doubt
from tracekit.compare.predict.predictor import predictor
from tracekit.compare.sizes import size_from_order
from tracekit.compare.whatif import SEARCHED, WhatIf, stage_times, too_large_to_search, what_if
from tracekit.errors import Notice, OptionError
from tracekit.reconstruct.lanes import CROSSED, crossed_share
from tracekit.reconstruct.peers import name_peers
from tracekit.reconstruct.pipeline import Pipeline, renamed
from tracekit.reconstruct.rank import RankPipeline
from tracekit.reconstruct.roles import find_roles, with_pipelines
from tracekit.reconstruct.steps import assemble_steps
from tracekit.schedules import Times, simulate
from tracekit.schema import PHASES, conform

Ints = npt.NDArray[np.int64]


def compare_pipelines(
    ranks: Sequence[RankPipeline],
    *,
    schedule: str = "auto",
    layout: str | Mapping[str, int] | None = None,
    what_if: bool = False,
    clocks: Clocks | None = None,
    pipeline: int | None = None,
) -> tuple[ScheduleComparison | None, tuple[Notice, ...]]:
    """Return the ranks compared with the ideal of the schedule they followed; None, with notices why, without one.

    *schedule* is ``auto``, a schedule's name, a file of orders or ``none``; *layout* (``pp=4,ep=2``) says which ranks
    form a pipeline; *clocks* sets the ranks' clocks to one (else: times as recorded); *pipeline* is the one to show,
    counted from 0 (else: the slowest).
    """
    if schedule == "none":
        return None, ()
    with no_collecting():
        clocks = clocks or Clocks.recorded(r.rank for r in ranks)
        return _compare(ranks, schedule, layout, clocks, what_if=what_if, pipeline=pipeline)


def _compare(
    ranks: Sequence[RankPipeline],
    schedule: str,
    layout: str | Mapping[str, int] | None,
    clocks: Clocks,
    *,
    what_if: bool,
    pipeline: int | None,
) -> tuple[ScheduleComparison | None, tuple[Notice, ...]]:
    with_work, matched = name_peers([r for r in ranks if r.chunks.height], layout)
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
    finder = Finder(schedule)
    for line in roles.pipelines:
        of_line, by_step = _compare_line(line, by_rank, finder, clocks)
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
    lanes = pl.concat([r.lanes.with_columns(rank=pl.lit(r.rank, pl.Int32)) for r in with_work])
    result = ScheduleComparison(
        head=head,
        chosen=pipeline is not None,
        all=tuple(compared),
        lanes=lanes.select("rank", pl.exclude("rank")),
        positions=roles.positions,
        what_if=lines,
        factors=factors(head.replays, head.pipeline),
    )
    untried = _untried(head) if what_if else []
    return result, _once([*notices, *head.notices, *differing, *untried, *unpredicted])


def _compare_line(
    line: Sequence[int], by_rank: Mapping[int, RankPipeline], finder: Finder, clocks: Clocks
) -> tuple[list[Held], dict[int, list[Notice]]]:
    """Return every step of one pipeline compared with its ideal, and the notices about each step."""
    present = [by_rank[r] for r in line if r in by_rank]
    compared: list[_Compared] = []
    notices: dict[int, list[Notice]] = {}
    steps = _steps(present)
    cut = _cut_steps(present, steps) if finder.wanted == "auto" else set()
    matched: list[tuple[Pipeline, Match, list[Notice]]] = []
    for pipeline in assemble_steps(by_rank, line, steps, clocks):
        if not _worth(pipeline):
            continue
        step = pipeline.step
        if step in cut:
            notices[step] = [Notice("step-cut", f"step {step} is cut: a part of what it launched was not recorded")]
            continue
        match, found = finder.match(pipeline)
        notices[step] = [] if match is not None else [*pipeline.notices, *found]
        if match is not None:
            matched.append((pipeline, match, found))
    matched = _with_names(matched, finder)
    measured = replays([pipeline for pipeline, _, _ in matched], by_rank, finder.graphs)
    for (pipeline, match, found), replayed in zip(matched, measured, strict=True):
        comparison, notices[pipeline.step] = _hold(pipeline, match, found, replayed, finder)
        if comparison is not None:
            compared.append(comparison)
    return _with_shifts(compared), notices


def _with_names(
    matched: list[tuple[Pipeline, Match, list[Notice]]], finder: Finder
) -> list[tuple[Pipeline, Match, list[Notice]]]:
    """Return the steps, those that follow their schedule exactly with the names that it gives their cells."""
    exact = [
        (pipeline, match.schedule, finder.named_alike(pipeline, match.schedule))
        for pipeline, match, _ in matched
        if match.exact
    ]
    named = iter(renamed(exact))
    return [(next(named) if match.exact else pipeline, match, found) for pipeline, match, found in matched]


def _cut_steps(ranks: Sequence[RankPipeline], steps: Sequence[int]) -> set[int]:
    """Return the steps that some rank recorded only in part: without step marks, the first and the last."""
    cut = {step for rank in ranks for step in rank.cut if step is not None}
    return cut | ({steps[0], steps[-1]} if steps and any(None in rank.cut for rank in ranks) else set())


def _steps(ranks: Sequence[RankPipeline]) -> list[int]:
    """Return the steps that all of the ranks have."""
    common = set.intersection(*(set(r.chunks["step"].unique().to_list()) for r in ranks)) if ranks else set()
    return sorted(common)


def _worth(pipeline: Pipeline) -> bool:
    """Return whether there is a pipeline: a rank by itself is one only where it overlaps several micro-batches."""
    blocks = pipeline.detail["op"] == "FB"
    return len(pipeline.ranks) > 1 or (bool(blocks.any()) and len(blocks) > 2)


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


def _hold(
    pipeline: Pipeline, match: Match, notices: list[Notice], measured: Replays, finder: Finder
) -> tuple[_Compared | None, list[Notice]]:
    """Return one step compared with its ideal; None, with notices why, where that cannot be believed."""
    complete = len(pipeline.positions) == len(pipeline.ranks)
    ideal = _ideal(pipeline, measured, match, complete=complete)
    gap = split_gap(measured, ideal.makespan) if complete else None
    if reason := doubt(match, measured_ns=measured.makespan, ideal_ns=ideal.makespan, gap_ns=gap):
        if finder.wanted == "auto":
            return None, [*pipeline.notices, *notices, Notice(reason.code, f"step {pipeline.step}: {reason.message}")]
        notices, gap = [*notices, Notice("gap-doubtful", _asked(reason))], None
    if measured.graph.broken:
        text = f"{measured.graph.broken} cells seem to wait for each other: their stages or order are not certain"
        notices.append(Notice("order-uncertain", text))
    about = (*pipeline.notices, *notices, *_about(match, pipeline), *_late_starts(pipeline, measured))
    return _Compared(pipeline, match, measured, ideal, gap, about), []


def _asked(reason: Notice) -> str:
    return reason.message.replace("no schedule is named", "the gap's causes are left out")


def _about(match: Match, pipeline: Pipeline) -> list[Notice]:
    """Return notices of how the match was made and how sure it is."""
    notices = []
    if match.exact and match.unfused:
        text = f"{match.unfused} overlapped FB blocks of {match.schedule.name} ran as an F and a B, one after the other"
        notices.append(Notice("fb-run-apart", text))
    if match.exact and match.fused:
        notices.append(
            Notice("backward-fused", f"{match.fused} split backwards of {match.schedule.name} ran in one piece")
        )
    if not match.exact:
        notices.append(orders_differ(match, pipeline))
    if match.also:
        names = ", ".join(match.also)
        some = len(pipeline.positions) < len(pipeline.ranks)
        text = f"on the ranks there are traces of, {names}" if some else f"at this size {names}"
        more = "; traces of more ranks would decide it" if some else ""
        notices.append(Notice("schedule-ambiguous", f"{text} would have the same order as {match.schedule.name}{more}"))
    if pipeline.stages_from == "pattern":
        notices.append(
            Notice("stages-from-pattern", "stages and micro-batches are taken from the schedule that has this pattern")
        )
    if pipeline.weights_counted:
        notices.append(
            Notice("weights-counted", "weight gradients ran outside autograd: each is given to a backward by counting")
        )
    return notices


LATE = 0.01
"""Share of the makespan that a rank must begin late by for a notice."""


def _late_starts(pipeline: Pipeline, r: Replays) -> list[Notice]:
    """Return notices of ranks whose host began the step late: in a first step perhaps the profiler's own start."""
    first = np.flatnonzero(np.diff(r.graph.position, prepend=-1))
    waited = r.before["host"][first]
    return [
        Notice(
            "late-start",
            f"step {pipeline.step}: rank {pipeline.ranks[at]} began {ns / 1e6:.1f} ms late: its host had not launched "
            "anything (counted as host)",
        )
        for at, ns in zip(r.graph.position[first].tolist(), waited.tolist(), strict=True)
        if ns > LATE * r.makespan
    ]


@dataclass(frozen=True, eq=False)
class _Ideal:
    """The ideal's makespan and bubble, every cell's times, and each position's idle time by phase."""

    makespan: int
    bubble: float
    times: tuple[Ints, Ints]
    idle: Mapping[int, Sequence[int]]


@dataclass(frozen=True, eq=False)
class _Compared:
    """One step beside its ideal, before its cells were put into a table with it."""

    pipeline: Pipeline
    match: Match
    measured: Replays
    ideal: _Ideal
    gap_ns: Mapping[str, int] | None
    notices: tuple[Notice, ...]


def _ideal(pipeline: Pipeline, r: Replays, match: Match, *, complete: bool) -> _Ideal:
    """Return the ideal: the run's own order where it is the schedule's, else the schedule simulated at its times.

    Cells of the run that the schedule does not have one by one keep the times of their own replay.
    """
    start, end = r.graph.run(r.balanced)
    if match.exact and complete:
        makespan = int(end.max(initial=0))
        bubble = 1 - int(r.balanced.sum()) / (makespan * len(pipeline.positions)) if makespan else 0.0
        return _Ideal(makespan, bubble, (start, end), r.graph.idle_by_phase(start, end))
    pp = len(pipeline.ranks)
    times: Times = stage_times(r, pipeline.detail, pp).of_chunks(_chunks(pipeline, pp))
    done = simulate(match.schedule, times)
    table = match.schedule.table
    for at in pipeline.positions if match.exact else ():
        ran, planned = np.flatnonzero(r.graph.position == at), np.flatnonzero(table.rank == at)
        if len(ran) == len(planned):
            start[ran], end[ran] = done.start[planned], done.end[planned]
    idle = {int(row[0]): [int(ns) for ns in row[1:]] for row in done.idle_by_phase.rows()}
    return _Ideal(int(done.makespan), done.bubble_fraction, (start, end), idle)


def _chunks(pipeline: Pipeline, pp: int) -> float:
    columns = (whole_numbers(pipeline.detail[n], 0) for n in ("stage", "b_stage"))
    stages = int(max(column.max(initial=0) for column in columns)) + 1
    return stages / pp


def _bubbles(pipeline: Pipeline, r: Replays, ideal: _Ideal) -> tuple[RankBubble, ...]:
    measured = r.graph.idle_by_phase(r.start, r.end)
    peaks = r.graph.peak_activations()
    return tuple(
        RankBubble(
            pipeline.ranks[at],
            dict(zip(PHASES, measured[at], strict=True)),
            dict(zip(PHASES, ideal.idle[at], strict=True)),
            peaks[at],
        )
        for at in pipeline.positions
    )


def _with_shifts(compared: Sequence[_Compared]) -> list[Held]:
    """Return the steps of a pipeline with their cells beside the ideal's (``SHIFT``), put into one table at once."""
    if not compared:
        return []
    start, end = (np.concatenate([one.ideal.times[i] for one in compared]) for i in range(2))
    ran = np.concatenate([one.measured.start for one in compared])
    table = conform(
        pl.concat([one.pipeline.cells for one in compared]).with_columns(
            ideal_start_ns=pl.Series(start), ideal_end_ns=pl.Series(end), shift_ns=pl.Series(ran - start)
        ),
        SHIFT,
    )
    held, first = [], 0
    for one in compared:
        cells = table.slice(first, one.pipeline.cells.height)
        first += len(cells)
        bubbles = _bubbles(one.pipeline, one.measured, one.ideal)
        figures = (one.ideal.makespan, one.ideal.bubble, one.gap_ns, bubbles, cells, one.notices)
        held.append(Held(one.pipeline, one.match, one.measured, *figures))
    return held


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
    plan = head.match.schedule
    if not too_large_to_search(plan.pp, plan.microbatches):
        return []
    text = "are not among the schedules tried: searching their order takes too long for a run of this size"
    return [Notice("what-if-limited", f"{' and '.join(SEARCHED)} {text}")]


def _once(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))
