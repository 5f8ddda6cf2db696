"""The time of a step, and the rank that is slower than the others by more than noise, if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis

NOISE_SHARE = 0.01
"""Share by which the times of ranks or pipelines may differ and still count as equal."""


class Pace(msgspec.Struct, frozen=True):
    """The time of a step on the rank that takes longest, as a mean over steps, and a comparison of the ranks."""

    ns: float
    steps: int
    ranks: int
    slowest: int | None
    """The rank that is slower than every other by more than noise, in most steps; None if there is none."""
    spread: float
    """Difference between the slowest and the fastest rank, as a share of the slowest rank's time."""
    between_ns: float = 0.0
    """Time from the end of a step to the start of the next, as a mean over ranks and steps."""

    def compared(self) -> str:
        """Return a comparison of the ranks in a few words; empty if there is one rank.

        >>> Pace(5.0, 1, 4, 2, 0.08).compared(), Pace(5.0, 1, 4, None, 0.004).compared()
        ('rank 2, the slowest of 4', '4 ranks alike, within 0.4 %')
        >>> Pace(5.0, 1, 4, None, 0.08).compared(), Pace(5.0, 1, 1, None, 0.0).compared()
        ('the longest of 4 ranks, the shortest 8.0 % less', '')
        """
        if self.ranks < 2:
            return ""
        if self.slowest is not None:
            return f"rank {self.slowest}, the slowest of {self.ranks}"
        if self.spread <= NOISE_SHARE:
            return f"{counted(self.ranks, 'rank')} alike, within {percent(max(self.spread, 0.001))}"
        return f"the longest of {counted(self.ranks, 'rank')}, the shortest {percent(self.spread)} less"


def beyond_noise(longest: float, second: float) -> bool:
    """Return whether the longest of some times exceeds the second longest by more than noise.

    >>> beyond_noise(100, 98), beyond_noise(100, 99.5)
    (True, False)
    """
    return longest - second > NOISE_SHARE * longest


def slowest_rank(times: Mapping[int, float]) -> int | None:
    """Return the rank that takes longer than every other by more than noise; None if there is none.

    >>> slowest_rank({0: 100, 1: 90}), slowest_rank({0: 100, 1: 99.5}), slowest_rank({0: 100})
    (0, None, None)
    """
    if len(times) < 2:
        return None
    longest = max(times, key=lambda rank: times[rank])
    second_ns = max(ns for rank, ns in times.items() if rank != longest)
    return longest if beyond_noise(times[longest], second_ns) else None


def pace(analysis: Analysis) -> Pace:
    """Return the pace of the steps that every rank has; a trace without step marks counts as one step."""
    spans = {rank.rank: {step.step: step.budget.span_ns for step in rank.per_step} for rank in analysis.rank_results}
    step_times = [ns for ns, _ in analysis.step_times.values()]
    steps: list[int | None] = list(analysis.step_times)
    if not steps:
        with_events = [rank for rank in analysis.rank_results if rank.whole.budget.span_ns]
        spans = {rank.rank: {None: rank.whole.budget.span_ns} for rank in with_events}
        step_times, steps = [max((span_of[None] for span_of in spans.values()), default=0)], [None]
    means = {rank: sum(span_of[step] for step in steps) / len(steps) for rank, span_of in spans.items()}
    longest_mean = max(means.values(), default=0.0)
    return Pace(
        ns=sum(step_times) / len(step_times),
        steps=len(steps),
        ranks=len(spans),
        slowest=_if_slowest_in_most_steps(slowest_rank(means), spans, steps),
        spread=1 - min(means.values()) / longest_mean if longest_mean else 0.0,
        between_ns=_time_between_steps(analysis),
    )


def _if_slowest_in_most_steps(
    rank: int | None, spans: Mapping[int, Mapping[int | None, int]], steps: Sequence[int | None]
) -> int | None:
    """Return the rank if it is the slowest of more than half the steps: one odd step does not make a rank slow."""
    slowest = [slowest_rank({rank: span_of[step] for rank, span_of in spans.items()}) for step in steps]
    return rank if rank is not None and 2 * slowest.count(rank) > len(steps) else None


def _time_between_steps(analysis: Analysis) -> float:
    """Return the mean time between two steps; 0 if there is one step, or if steps overlap."""
    ranks = [rank for rank in analysis.rank_results if len(rank.per_step) > 1]
    outside_ns = sum(rank.whole.budget.span_ns - sum(step.budget.span_ns for step in rank.per_step) for rank in ranks)
    return max(0.0, outside_ns / sum(len(rank.per_step) - 1 for rank in ranks)) if ranks else 0.0
