"""Findings about the iterations of an RL loop and its weight updates. Times are per iteration, or of one update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

import msgspec
import numpy as np

from tracekit.analysis import Analysis
from tracekit.documents.findings import EvidenceValue, Finding, Place
from tracekit.documents.roles import Iteration, PhaseBand, RolloutTail, WeightUpdate
from tracekit.findings.context import Context
from tracekit.metrics.process_phases import ROLLOUT, WEIGHT_SYNC

PHASE_WORDS = {ROLLOUT: "rollout", WEIGHT_SYNC: "weight update"}
MIN_SHARE = 0.01
"""Share of an iteration, or of a weight update, from which something is advised."""
MIN_IDLE_SHARE = 0.05
"""Share of the iterations from which time in which no role runs is named."""


def role_findings(context: Context) -> Iterator[Finding]:
    """Yield what rollouts, weight updates and handing over between roles cost: what recurs first, then by share."""
    analysis = context.analysis
    findings = [
        *_tails(analysis),
        *_late_starts(analysis),
        *_time_around_updates(analysis),
        *_updates_above_ideal(analysis, context.step_ns),
        *_time_between_roles(analysis),
    ]
    findings.sort(key=lambda finding: (not finding.evidence["recurs"], -finding.share))
    yield from findings


def total_ns(iterations: Sequence[Iteration]) -> int:
    """Return the time of all iterations together."""
    return sum(iteration.end_ns - iteration.start_ns for iteration in iterations)


def phase_ns(iterations: Sequence[Iteration], phase: str) -> int:
    """Return the time of a phase in all iterations together."""
    return sum(iteration.phase_ns.get(phase, 0) for iteration in iterations)


def rollout_tails(iterations: Sequence[Iteration]) -> list[RolloutTail]:
    """Return the tails of the iterations in which several ranks roll out."""
    tails = (iteration.rollout_tail for iteration in iterations)
    return [tail for tail in tails if tail is not None]


def _recurs(times_ns: Sequence[int]) -> bool:
    """Return whether most iterations have at least half of the time that the worst one has.

    >>> _recurs([30, 29, 16]), _recurs([900, 20, 30]), _recurs([900])
    (True, False, True)
    """
    return 2 * median_low(times_ns) >= max(times_ns)


class LateStart(msgspec.Struct, frozen=True):
    """A rollout that starts so late that it ends last, in the iteration where that costs most."""

    late_ns: int
    """Its start minus that of the first rank."""
    iteration: int
    rank: int
    first_rank: int
    recurs: bool
    """Whether most iterations have one that is about as late."""


def late_start(analysis: Analysis) -> LateStart | None:
    """Return the rollout whose late start costs most.

    None if every rollout that ends last does so by its length.

    The rank that ends last must have started later, by more than its rollout is longer than the
    median rank's and by more than clocks may be off.
    """
    off_ns = analysis.clocks.table["uncertainty_ns"].drop_nulls().max()
    iterations = analysis.role_results.iterations
    late_starts = []
    late_by_iteration = dict.fromkeys((iteration.index for iteration in iterations), 0)
    for iteration in iterations:
        tail = iteration.rollout_tail
        starts: dict[int, int] = {}
        for band in analysis.role_results.bands:
            if band.phase == ROLLOUT and band.iteration == iteration.index:
                starts[band.rank] = min(band.start_ns, starts.get(band.rank, band.start_ns))
        if tail is None or tail.last_rank not in starts:
            continue
        first = min(starts, key=lambda rank: starts[rank])
        late_ns = starts[tail.last_rank] - starts[first]
        longer_ns = tail.ns if tail.rank == tail.last_rank else 0
        noise_ns = max(
            MIN_SHARE * (iteration.end_ns - iteration.start_ns),
            off_ns if isinstance(off_ns, int) else 0,
        )
        if late_ns > max(longer_ns, noise_ns):
            late_starts.append((late_ns, iteration.index, tail.last_rank, first))
            late_by_iteration[iteration.index] = late_ns
    if not late_starts:
        return None
    return LateStart(*max(late_starts), recurs=_recurs([*late_by_iteration.values()]))


def _tails(analysis: Analysis) -> Iterator[Finding]:
    """Yield how much longer the longest rollout takes than the median rank's."""
    iterations = analysis.role_results.iterations
    tails = rollout_tails(iterations)
    if not tails:
        return
    longest = max(tails, key=lambda tail: tail.ns)
    worst = next(each for each in iterations if each.rollout_tail is longest)
    is_always_the_same = len({tail.rank for tail in tails}) == 1
    tail_ns = sum(tail.ns for tail in tails)
    yield from _finding(
        analysis,
        "rollout",
        "tail",
        cost_ns=round(tail_ns / len(tails)),
        share=tail_ns / total_ns(iterations),
        ranks=(longest.rank,) if is_always_the_same else (),
        where=_phase_of(analysis, worst, ROLLOUT, rank=longest.rank),
        evidence={
            "longer_ns": round(tail_ns / len(tails)),
            "always_the_same_rank": is_always_the_same,
            "decode_steps": longest.decode_steps,
            "median_decode_steps": longest.median_decode_steps,
        },
        recurs=_recurs([tail.ns for tail in tails]),
    )


def _late_starts(analysis: Analysis) -> Iterator[Finding]:
    """Yield what a rollout that starts late costs."""
    start = late_start(analysis)
    if start is None:
        return
    iterations = analysis.role_results.iterations
    iteration = next(each for each in iterations if each.index == start.iteration)
    yield from _finding(
        analysis,
        "rollout",
        "late_start",
        cost_ns=start.late_ns,
        share=start.late_ns / total_ns(iterations),
        ranks=(start.rank,),
        where=_phase_of(analysis, iteration, ROLLOUT, rank=start.rank),
        evidence={
            "late_ns": start.late_ns,
            "iteration": start.iteration,
            "iterations": len(iterations),
            "first_rank": start.first_rank,
        },
        recurs=start.recurs,
    )


def _time_around_updates(analysis: Analysis) -> Iterator[Finding]:
    """Yield the weight sync's time without moving weights, unless moving takes most of it."""
    iterations = analysis.role_results.iterations
    updates = analysis.role_results.weight_updates
    sync_ns = phase_ns(iterations, "weight_sync")
    moved_ns = sum(update.measured_ns for update in updates)
    if not moved_ns or sync_ns <= 2 * moved_ns:
        return
    longest = max(iterations, key=lambda iteration: iteration.phase_ns["weight_sync"])
    yield from _finding(
        analysis,
        "weight_sync",
        "around_moving",
        cost_ns=round((sync_ns - moved_ns) / len(iterations)),
        share=(sync_ns - moved_ns) / total_ns(iterations),
        where=_phase_of(analysis, longest, WEIGHT_SYNC),
        evidence={
            "sync_ns": round(sync_ns / len(iterations)),
            "moving_ns": round(moved_ns / len(updates)),
        },
        recurs=_recurs([iteration.phase_ns.get("weight_sync", 0) for iteration in iterations]),
    )


def _updates_above_ideal(analysis: Analysis, step_ns: int) -> Iterator[Finding]:
    """Yield the largest part of what the longest weight update takes above its ideal.

    Its share is of all iterations; of a step or recording of *step_ns* where there are none.
    """
    updates = analysis.role_results.weight_updates
    if not updates or analysis.reload is not None:
        return
    update = max(updates, key=lambda each: each.measured_ns)
    if update.gap_ns is None or update.ideal_ns is None:
        return
    cause, cause_ns = max(update.gap_ns.items(), key=lambda part: part[1])
    late_rank = update.late_rank if cause == "late_rank" else None
    yield from _finding(
        analysis,
        "weight_sync",
        "above_ideal",
        cost_ns=cause_ns,
        share=cause_ns
        / (total_ns(analysis.role_results.iterations) or step_ns or update.measured_ns),
        ranks=() if late_rank is None else (late_rank,),
        where=_place(analysis, late_rank, update, "weight update"),
        evidence={
            "cause": cause,
            "cause_ns": cause_ns,
            "above_ideal_ns": update.measured_ns - update.ideal_ns,
            "measured_ns": update.measured_ns,
            "ideal_ns": update.ideal_ns,
            "late_rank": late_rank,
            "updates": len(updates),
        },
    )


def _time_between_roles(analysis: Analysis) -> Iterator[Finding]:
    """Yield the time of iterations in which no role runs."""
    iterations = analysis.role_results.iterations
    idle_ns = phase_ns(iterations, "idle")
    if idle_ns <= MIN_IDLE_SHARE * total_ns(iterations):
        return
    worst = max(iterations, key=lambda iteration: iteration.phase_ns["idle"])
    yield from _finding(
        analysis,
        "rollout",
        "between_roles",
        cost_ns=round(idle_ns / len(iterations)),
        share=idle_ns / total_ns(iterations),
        where=_place(analysis, None, worst, f"iteration {worst.index}"),
        evidence={
            "idle_share": idle_ns / total_ns(iterations),
            "longest_in_iteration": worst.index,
            "longest_ns": worst.phase_ns["idle"],
        },
        recurs=_recurs([iteration.phase_ns["idle"] for iteration in iterations]),
    )


def _phase_of(
    analysis: Analysis, iteration: Iteration, phase: str, *, rank: int | None = None
) -> Place:
    """Return where a rank is longest in a phase of an iteration; the iteration if it is not in that phase.

    Without a *rank* it is the rank that is in it longest.
    """
    bands = [
        band
        for band in analysis.role_results.bands
        if (band.iteration, band.phase) == (iteration.index, phase) and rank in (None, band.rank)
    ]
    name = f"iteration {iteration.index}"
    if not bands:
        return _place(analysis, rank, iteration, name)
    longest = max(bands, key=lambda band: band.end_ns - band.start_ns)
    return _place(analysis, longest.rank, longest, f"{PHASE_WORDS[phase]} of {name}")


def _place(
    analysis: Analysis, rank: int | None, time: PhaseBand | Iteration | WeightUpdate, name: str
) -> Place:
    """Return a time of the common clock as a place of a rank, on its own clock.

    Without a *rank* it is of the first one.
    """
    shown_rank = min(source.rank for source in analysis.sources) if rank is None else rank
    times_ns = np.array([time.start_ns, time.end_ns])
    ranks = np.full_like(times_ns, shown_rank)
    start_ns, end_ns = analysis.clocks.to_recorded_each(ranks, times_ns).tolist()
    return Place(shown_rank, None, start_ns, end_ns, name)


def _finding(
    analysis: Analysis,
    code: str,
    case: str,
    *,
    cost_ns: int,
    share: float,
    where: Place,
    evidence: Mapping[str, EvidenceValue],
    ranks: tuple[int, ...] = (),
    recurs: bool = True,
) -> Iterator[Finding]:
    """Yield a finding whose cost is the most that can be saved, if it is large enough to be advised about."""
    if share <= MIN_SHARE:
        return
    share_of = {"share_of": "iterations"} if analysis.role_results.iterations else {}
    yield Finding(
        code=code,
        case=case,
        cost_ns=cost_ns,
        share=share,
        ranks=ranks,
        where=(where,),
        evidence={**evidence, "recurs": recurs, **share_of},
        saves_range_ns=(0, cost_ns),
        certain="bounded",
    )
