"""How long a step takes, and whether one rank sets the pace: named only where it is slower than noise."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis

ALIKE = 0.01
"""Share by which times of ranks or pipelines may differ and still be called alike: less than this is noise."""


class Pace(msgspec.Struct, frozen=True):
    """A step's time on whichever rank took longest, the mean over steps, and how the ranks compare."""

    ns: float
    steps: int
    ranks: int
    slowest: int | None
    """The rank that is slower than every other beyond noise, in most steps; None where none is."""
    spread: float
    """How much less the fastest rank takes than the slowest, as a share of the slowest's time."""
    between_ns: float = 0.0
    """Time from one step's end to the next one's start, the mean over ranks and steps."""

    def compared(self) -> str:
        """Return how the ranks compare, in a few words; nothing of one rank.

        >>> Pace(5.0, 1, 4, 2, 0.08).compared(), Pace(5.0, 1, 4, None, 0.004).compared()
        ('rank 2, the slowest of 4', '4 ranks alike, within 0.4 %')
        >>> Pace(5.0, 1, 4, None, 0.08).compared(), Pace(5.0, 1, 1, None, 0.0).compared()
        ('the longest of 4 ranks, the shortest 8.0 % less', '')
        """
        if self.ranks < 2:
            return ""
        if self.slowest is not None:
            return f"rank {self.slowest}, the slowest of {self.ranks}"
        if self.spread <= ALIKE:
            return f"{counted(self.ranks, 'rank')} alike, within {percent(max(self.spread, 0.001))}"
        return f"the longest of {counted(self.ranks, 'rank')}, the shortest {percent(self.spread)} less"


def beyond_noise(longest: float, second: float) -> bool:
    """Return whether the longest of some times is longer than the second by more than noise.

    >>> beyond_noise(100, 98), beyond_noise(100, 99.5)
    (True, False)
    """
    return longest - second > ALIKE * longest


def slowest_rank(times: Mapping[int, float]) -> int | None:
    """Return the rank that takes longer than every other by more than noise; None where none does.

    >>> slowest_rank({0: 100, 1: 90}), slowest_rank({0: 100, 1: 99.5}), slowest_rank({0: 100})
    (0, None, None)
    """
    if len(times) < 2:
        return None
    rank = max(times, key=lambda one: times[one])
    second = max(ns for other, ns in times.items() if other != rank)
    return rank if beyond_noise(times[rank], second) else None


def pace(analysis: Analysis) -> Pace:
    """Return the pace of the steps that every rank has; a trace without step marks is one step."""
    spans = {one.rank: {step.step: step.budget.span_ns for step in one.per_step} for one in analysis.rank_results}
    taken = [ns for ns, _ in analysis.step_times.values()]
    if not taken:
        ran = [one for one in analysis.rank_results if one.whole.budget.span_ns]
        spans = {one.rank: {None: one.whole.budget.span_ns} for one in ran}
        taken = [max((of[None] for of in spans.values()), default=0)]
    steps = list(analysis.step_times) or [None]
    means = {rank: sum(of[step] for step in steps) / len(steps) for rank, of in spans.items()}
    most = max(means.values(), default=0.0)
    return Pace(
        ns=sum(taken) / len(taken),
        steps=len(steps),
        ranks=len(spans),
        slowest=_in_most_steps(spans, steps, slowest_rank(means)),
        spread=1 - min(means.values()) / most if most else 0.0,
        between_ns=_between(analysis),
    )


def _in_most_steps(
    spans: Mapping[int, Mapping[int | None, int]], steps: list[int | None], rank: int | None
) -> int | None:
    """Return the rank where it is the slowest of most steps by itself: one odd step makes no rank slow."""
    alone = [slowest_rank({one: of[step] for one, of in spans.items()}) for step in steps]
    return rank if rank is not None and 2 * alone.count(rank) > len(steps) else None


def _between(analysis: Analysis) -> float:
    """Return the time between two steps; 0 where there is one, or where they overlap."""
    pairs = [(one, len(one.per_step) - 1) for one in analysis.rank_results if len(one.per_step) > 1]
    outside = sum(one.whole.budget.span_ns - sum(step.budget.span_ns for step in one.per_step) for one, _ in pairs)
    return max(0.0, outside / sum(gaps for _, gaps in pairs)) if pairs else 0.0
