"""The step time of a run in words, and differences between its ranks that are more than noise."""

from collections.abc import Mapping

from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis
from tracekit.report.text import ms_range

NOISE_SHARE = 0.01
"""Share by which the times of ranks or pipelines may differ and still count as equal."""


class Pace:
    """The step time of a run, and a comparison of its ranks."""

    def __init__(self, analysis: Analysis) -> None:
        step = analysis.step
        self.ns = step.time_ns or 0
        self.steps = max(len(step.per_step), 1)
        self.ranks = len(step.time_ns_by_rank)
        self.slowest = slowest_rank(step.time_ns_by_rank)
        """The rank that is slower than every other by more than noise; None if there is none."""
        self._times = step.time_ns_by_rank
        self.spread = step.spread
        """Difference between the slowest and the fastest rank, as a share of the slowest rank's
        time."""

    def compared(self) -> str:
        """Return a comparison of the ranks in a few words; empty if there is one rank.

        >>> from tracekit import analyze
        >>> Pace(analyze("sample_traces/1f1b")).compared()
        '4 ranks, their own steps 120–123 ms'
        """
        if self.ranks < 2:
            return ""
        if self.spread <= NOISE_SHARE:
            return f"{counted(self.ranks, 'rank')} alike, within {percent(max(self.spread, 0.001))}"
        # The run's step, a median over steps of all ranks, may lie outside of the ranks' own medians.
        own = "median steps" if self.steps > 1 else "own steps"
        ranks = f"{counted(self.ranks, 'rank')}, their {own} {ms_range(self._times.values())}"
        return ranks if self.slowest is None else f"{ranks}, rank {self.slowest} the slowest"


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
