"""Pipelines beside their ideals, step by step: they do not depend on each other, so that workers can share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.compare.comparison import Held, RankBubble
from tracekit.compare.finder import Finder, orders_differ
from tracekit.compare.gap import Replays, replays, split_gap
from tracekit.compare.identify import Match
from tracekit.compare.judge import doubt
from tracekit.compare.stages import stage_times
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline, renamed
from tracekit.reconstruct.rank import RankPipeline
from tracekit.reconstruct.steps import assemble_steps
from tracekit.schedules import simulate
from tracekit.schema import PHASES

Ints = npt.NDArray[np.int64]
Line = Sequence[int]
Steps = tuple[list[Held], dict[int, list[Notice]]]
"""The steps of one pipeline that could be compared, and the notices about each step."""

Share = tuple[Sequence[Line], Mapping[int, RankPipeline]]
"""Some pipelines, and their ranks."""

AT_ONCE = 16
"""Pipelines that one worker compares in one go."""


def compare_lines(
    lines: Sequence[Line], ranks: Mapping[int, RankPipeline], finder: Finder, clocks: Clocks, spread: MapFunction
) -> list[Steps]:
    """Return every pipeline's steps compared with their ideals, in the order of *lines*.

    The first few are compared here. What they showed about the run's schedule is what everybody else starts from, so
    that the answer does not depend on who compares which.
    """
    first = _compare_some(finder, clocks, (lines[:AT_ONCE], ranks))
    work = partial(_compare_more, finder, clocks)
    rest = [lines[at : at + AT_ONCE] for at in range(AT_ONCE, len(lines), AT_ONCE)]
    items = [(some, {rank: ranks[rank] for line in some for rank in line if rank in ranks}) for some in rest]
    return [*first, *(steps for done in spread(work, items) for steps in done)]


def _compare_more(finder: Finder, clocks: Clocks, item: Share) -> list[Steps]:
    return _compare_some(finder.copy(), clocks, item)


def _compare_some(finder: Finder, clocks: Clocks, item: Share) -> list[Steps]:
    """Return every step of some pipelines compared with its ideal, and the notices about each step."""
    lines, everyone = item
    ranks = {r: everyone[r].loaded() for line in lines for r in line if r in everyone}
    present = [[ranks[r] for r in line if r in ranks] for line in lines]
    steps = [_steps(of_line) for of_line in present]
    made = assemble_steps(ranks, list(zip(lines, steps, strict=True)), clocks, finder.placed)
    notices: list[dict[int, list[Notice]]] = [{} for _ in lines]
    matched: list[tuple[int, Pipeline, Match, list[Notice]]] = []
    for at, pipelines in enumerate(made):
        cut = _cut_steps(present[at], steps[at]) if finder.wanted == "auto" else set()
        for pipeline in filter(_worth, pipelines):
            step = pipeline.step
            if step in cut:
                text = f"step {step} is cut: a part of what it launched was not recorded"
                notices[at][step] = [Notice("step-cut", text)]
                continue
            match, found = finder.match(pipeline)
            notices[at][step] = [] if match is not None else [*pipeline.notices, *found]
            if match is not None:
                matched.append((at, pipeline, match, found))
    named = _with_names([(pipeline, match) for _, pipeline, match, _ in matched], finder)
    compared: list[list[Held]] = [[] for _ in lines]
    for (at, _, match, found), pipeline, replayed in zip(
        matched, named, replays(named, ranks, finder.graphs), strict=True
    ):
        comparison, notices[at][pipeline.step] = _hold(pipeline, match, found, replayed, finder)
        if comparison is not None:
            compared[at].append(comparison)
    return list(zip(compared, notices, strict=True))


def _with_names(matched: Sequence[tuple[Pipeline, Match]], finder: Finder) -> list[Pipeline]:
    """Return the steps, those that follow their schedule exactly with the names that it gives their cells."""
    exact = [(pipeline, match.schedule, finder.named_alike(pipeline)) for pipeline, match in matched if match.exact]
    named = iter(renamed(exact))
    return [next(named) if match.exact else pipeline for pipeline, match in matched]


def _cut_steps(ranks: Sequence[RankPipeline], steps: Sequence[int]) -> set[int]:
    """Return the steps that some rank recorded only in part: without step marks, the first and the last."""
    cut = {step for rank in ranks for step in rank.cut if step is not None}
    return cut | ({steps[0], steps[-1]} if steps and any(None in rank.cut for rank in ranks) else set())


def _steps(ranks: Sequence[RankPipeline]) -> list[int]:
    """Return the steps that all of the ranks have."""
    common = set.intersection(*(set(r.chunks["step"].to_list()) for r in ranks)) if ranks else set()
    return sorted(common - {None})


def _worth(pipeline: Pipeline) -> bool:
    """Return whether there is a pipeline: a rank by itself is one only where it overlaps several micro-batches."""
    if len(pipeline.ranks) > 1:
        return True
    ops = pipeline.detail["op"].to_list()
    return "FB" in ops and len(ops) > 2


def _hold(
    pipeline: Pipeline, match: Match, notices: list[Notice], measured: Replays, finder: Finder
) -> tuple[Held | None, list[Notice]]:
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
    bubbles = _bubbles(pipeline, measured, ideal)
    return Held(pipeline, match, measured, ideal.makespan, ideal.bubble, gap, bubbles, ideal.times, about), []


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


class _Ideal(msgspec.Struct, frozen=True, eq=False):
    """The ideal's makespan and bubble, every cell's times, and each position's idle time by phase."""

    makespan: int
    bubble: float
    times: tuple[Ints, Ints]
    idle: Mapping[int, Sequence[int]]


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
    done = simulate(match.schedule, stage_times(r, pipeline.detail, pp).of_chunks())
    table = match.schedule.table
    for at in pipeline.positions if match.exact else ():
        ran, planned = np.flatnonzero(r.graph.position == at), np.flatnonzero(table.rank == at)
        if len(ran) == len(planned):
            start[ran], end[ran] = done.start[planned], done.end[planned]
    idle = {at: [int(ns) for ns in phases] for at, phases in enumerate(done.idle_phases)}
    return _Ideal(int(done.makespan), done.bubble_fraction, (start, end), idle)


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
