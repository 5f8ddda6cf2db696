"""Findings about the iterations of an RL loop and its weight updates. Times are per iteration, or of one update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_low

import msgspec
import numpy as np

from tracekit._util.text import percent, short_ms
from tracekit.analysis import Analysis
from tracekit.documents.findings import Place
from tracekit.documents.roles import Iteration, PhaseBand, RolloutTail, WeightUpdate
from tracekit.findings.context import Context
from tracekit.findings.kind import FindingKind
from tracekit.metrics.process_phases import ROLLOUT, WEIGHT_SYNC
from tracekit.report.words import WORDS

PHASE_WORDS = {ROLLOUT: "rollout", WEIGHT_SYNC: "weight update"}
MIN_SHARE = 0.01
"""Share of an iteration, or of a weight update, from which something is advised."""
MIN_IDLE_SHARE = 0.05
"""Share of the iterations from which time in which no role runs is named."""


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


class RoleFinding(FindingKind, frozen=True, kw_only=True):
    """What rollouts, weight updates and handing over between roles cost: at most that can be saved."""

    independent_of_steps = True
    of_iterations = True
    time_is = "per iteration"

    recurs: bool
    """Whether most iterations have about as much of it."""
    share_of: str | None = None
    """What its share is of, if not of a step."""

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        """Yield what is found: what recurs first, then by share."""
        analysis = context.analysis
        found: list[RoleFinding | None] = [
            RolloutTailFinding.of(analysis),
            LateRollout.of(analysis),
            TimeAroundUpdates.of(analysis),
            UpdateAboveIdeal.of(analysis, context.step_ns),
            TimeBetweenRoles.of(analysis),
        ]
        share_of = "iterations" if analysis.role_results.iterations else None
        findings = [finding for finding in found if finding is not None]
        worthwhile = [finding for finding in findings if finding.share > MIN_SHARE]
        for finding in sorted(worthwhile, key=lambda finding: (not finding.recurs, -finding.share)):
            yield msgspec.structs.replace(
                finding,
                share_of=share_of,
                saves_range_ns=(0, finding.cost_ns),
                certain="bounded",
            )


class RolloutTailFinding(RoleFinding, frozen=True, kw_only=True):
    """The longest rollout takes longer than the median rank's."""

    code = "rollout"
    case = "tail"
    title = "rollouts"

    longer_ns: int
    always_the_same_rank: bool
    decode_steps: int | None
    median_decode_steps: float | None

    @classmethod
    def of(cls, analysis: Analysis) -> RoleFinding | None:
        """Return the finding; None if no iteration has a rollout of several ranks."""
        iterations = analysis.role_results.iterations
        tails = rollout_tails(iterations)
        if not tails:
            return None
        longest = max(tails, key=lambda tail: tail.ns)
        worst = next(each for each in iterations if each.rollout_tail is longest)
        is_always_the_same = len({tail.rank for tail in tails}) == 1
        tail_ns = sum(tail.ns for tail in tails)
        mean_ns = round(tail_ns / len(tails))
        return cls(
            cost_ns=mean_ns,
            share=tail_ns / total_ns(iterations),
            ranks=(longest.rank,) if is_always_the_same else (),
            where=(_phase_of(analysis, worst, ROLLOUT, rank=longest.rank),),
            longer_ns=mean_ns,
            always_the_same_rank=is_always_the_same,
            decode_steps=longest.decode_steps,
            median_decode_steps=longest.median_decode_steps,
            recurs=_recurs([tail.ns for tail in tails]),
        )

    def text(self) -> str:
        which = "the longest rollout (not always the same rank's)"
        if self.ranks:
            which = f"the rollout of rank {self.ranks[0]}"
        return f"{which} takes {short_ms(self.longer_ns)} longer than the median"

    def advice(self) -> str:
        return "cap or spread the longest sequences, or train on finished ones meanwhile"


class LateRollout(RoleFinding, frozen=True, kw_only=True):
    """A rollout starts late, and therefore ends last."""

    code = "rollout"
    case = "late_start"
    title = "rollouts"

    late_ns: int
    iteration: int
    iterations: int
    first_rank: int

    @classmethod
    def of(cls, analysis: Analysis) -> RoleFinding | None:
        """Return the finding about the late start that costs most; None if there is none."""
        start = late_start(analysis)
        if start is None:
            return None
        iterations = analysis.role_results.iterations
        iteration = next(each for each in iterations if each.index == start.iteration)
        return cls(
            cost_ns=start.late_ns,
            share=start.late_ns / total_ns(iterations),
            ranks=(start.rank,),
            where=(_phase_of(analysis, iteration, ROLLOUT, rank=start.rank),),
            late_ns=start.late_ns,
            iteration=start.iteration,
            iterations=len(iterations),
            first_rank=start.first_rank,
            recurs=start.recurs,
        )

    def text(self) -> str:
        return (
            f"{self._in_iteration}the rollout of rank {self.ranks[0]} starts {short_ms(self.late_ns)} after "
            f"that of rank {self.first_rank} and ends last"
        )

    def advice(self) -> str:
        return "see what its rollout process does before, and start all together"

    @property
    def _in_iteration(self) -> str:
        """In which iteration, and how the others compare; empty if there is one alone."""
        if self.iterations == 1:
            return ""
        others = "the other" if self.iterations == 2 else "the others"
        how_much = "about as much" if self.recurs else "much less"
        if self.recurs and self.iterations != 2:
            others = "most others"
        return f"in iteration {self.iteration}, {how_much} in {others}, "


class TimeAroundUpdates(RoleFinding, frozen=True, kw_only=True):
    """Most of a weight sync moves no weights."""

    code = "weight_sync"
    case = "around_moving"
    title = "weight update"
    states_moving_time = True

    sync_ns: int
    moving_ns: int

    @classmethod
    def of(cls, analysis: Analysis) -> RoleFinding | None:
        """Return the finding; None if moving weights takes most of the weight sync."""
        iterations = analysis.role_results.iterations
        updates = analysis.role_results.weight_updates
        sync_ns = phase_ns(iterations, "weight_sync")
        moved_ns = sum(update.measured_ns for update in updates)
        if not moved_ns or sync_ns <= 2 * moved_ns:
            return None
        longest = max(iterations, key=lambda iteration: iteration.phase_ns["weight_sync"])
        return cls(
            cost_ns=round((sync_ns - moved_ns) / len(iterations)),
            share=(sync_ns - moved_ns) / total_ns(iterations),
            where=(_phase_of(analysis, longest, WEIGHT_SYNC),),
            sync_ns=round(sync_ns / len(iterations)),
            moving_ns=round(moved_ns / len(updates)),
            recurs=_recurs([iteration.phase_ns.get("weight_sync", 0) for iteration in iterations]),
        )

    def text(self) -> str:
        return f"of the {short_ms(self.sync_ns)} of a weight update only {short_ms(self.moving_ns)} move weights"

    def advice(self) -> str:
        return "collect and register buffers once for all updates, or while weights move"


class UpdateAboveIdeal(RoleFinding, frozen=True, kw_only=True):
    """The largest part of what the longest weight update takes above its ideal.

    Its share is of all iterations; of a step or recording where there are none.
    """

    code = "weight_sync"
    case = "above_ideal"
    title = "weight update"
    time_is = "of a weight update"

    cause: str
    cause_ns: int
    above_ideal_ns: int
    measured_ns: int
    ideal_ns: int
    late_rank: int | None
    updates: int

    @classmethod
    def of(cls, analysis: Analysis, step_ns: int) -> RoleFinding | None:
        """Return the finding; None if there is no update whose ideal is known."""
        updates = analysis.role_results.weight_updates
        if not updates or analysis.reload is not None:
            return None
        update = max(updates, key=lambda each: each.measured_ns)
        if update.gap_ns is None or update.ideal_ns is None:
            return None
        cause, cause_ns = max(update.gap_ns.items(), key=lambda part: part[1])
        late_rank = update.late_rank if cause == "late_rank" else None
        whole_ns = total_ns(analysis.role_results.iterations) or step_ns or update.measured_ns
        return cls(
            cost_ns=cause_ns,
            share=cause_ns / whole_ns,
            ranks=() if late_rank is None else (late_rank,),
            where=(_place(analysis, late_rank, update, "weight update"),),
            cause=cause,
            cause_ns=cause_ns,
            above_ideal_ns=update.measured_ns - update.ideal_ns,
            measured_ns=update.measured_ns,
            ideal_ns=update.ideal_ns,
            late_rank=late_rank,
            updates=len(updates),
            recurs=True,
        )

    def text(self) -> str:
        rank = f" (rank {self.ranks[0]})" if self.ranks else ""
        cause = WORDS.update_causes.get(self.cause, "not explained")
        return (
            f"{short_ms(self.cause_ns)} of the {short_ms(self.above_ideal_ns)} between moving the weights "
            f"and its ideal is {cause}{rank}"
        )

    def advice(self) -> str:
        look = "look at the longest gaps of the update in the timeline"
        return WORDS.update_remedies.get(self.cause, look)


class TimeBetweenRoles(RoleFinding, frozen=True, kw_only=True):
    """No role runs for a part of the iterations."""

    code = "rollout"
    case = "between_roles"
    title = "rollouts"

    idle_share: float
    longest_in_iteration: int
    longest_ns: int

    @classmethod
    def of(cls, analysis: Analysis) -> RoleFinding | None:
        """Return the finding; None if there is little such time."""
        iterations = analysis.role_results.iterations
        idle_ns = phase_ns(iterations, "idle")
        if idle_ns <= MIN_IDLE_SHARE * total_ns(iterations):
            return None
        worst = max(iterations, key=lambda iteration: iteration.phase_ns["idle"])
        return cls(
            cost_ns=round(idle_ns / len(iterations)),
            share=idle_ns / total_ns(iterations),
            where=(_place(analysis, None, worst, f"iteration {worst.index}"),),
            idle_share=idle_ns / total_ns(iterations),
            longest_in_iteration=worst.index,
            longest_ns=worst.phase_ns["idle"],
            recurs=_recurs([iteration.phase_ns["idle"] for iteration in iterations]),
        )

    def text(self) -> str:
        return (
            f"no role runs in {percent(self.idle_share, digits=0)} of the iterations (longest in iteration "
            f"{self.longest_in_iteration}: {short_ms(self.longest_ns)})"
        )

    def advice(self) -> str:
        return "hand over to the next role earlier, or let roles overlap"


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
