"""The little statistics the gate needs, in numpy alone.

Steps are compared by ranks, because step times have long tails. Neighbouring steps resemble each other, so the rank
test is weakened by their correlation; runs differ by more than their steps do, so several runs are judged as runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


def pseudomedian(values: Sequence[float] | Floats) -> float:
    """Median of all pairwise means: as robust as one needs, and nearly as sharp as the mean (Hodges and Lehmann).

    >>> pseudomedian([1.0, 2.0, 3.0, 100.0])
    2.75
    """
    x = np.asarray(values, float)
    if len(x) > 400:  # pairs grow with the square; a median of so many is sharp enough
        return float(np.median(x))
    i, j = np.triu_indices(len(x))
    return float(np.median((x[i] + x[j]) / 2))


@lru_cache(maxsize=256)
def _counts(n: int, m: int) -> tuple[int, ...]:
    """Return in how many of the orders of n and m values without ties U takes each value 0…n*m."""
    counts = np.zeros(n * m + 1, dtype=object)
    counts[0] = 1
    # The Gaussian binomial (n+m over n), multiplied and divided factor by factor.
    for k in range(1, n + 1):
        up = counts.copy()
        up[m + k :] -= counts[: len(counts) - m - k] if m + k < len(counts) else 0
        for at in range(k, len(up)):
            up[at] += up[at - k]
        counts = up
    return tuple(int(c) for c in counts)


def rank_test(worse: Sequence[float] | Floats, better: Sequence[float] | Floats) -> float:
    """One-sided Mann-Whitney p: how likely equal samples look this much as if *worse* held the larger values.

    Exact for small samples without ties, the normal approximation with ties and continuity corrected otherwise.

    >>> rank_test([5.0, 6.0, 7.0], [1.0, 2.0, 3.0])
    0.05
    """
    x, y = np.asarray(worse, float), np.asarray(better, float)
    n, m = len(x), len(y)
    if not n or not m:
        return 1.0
    both = np.concatenate([x, y])
    order, tied = _midranks(both)
    u = float(order[:n].sum() - n * (n + 1) / 2)
    if not tied and n * m <= 2500:
        counts = _counts(n, m)
        return min(1.0, sum(counts[math.ceil(u) :]) / math.comb(n + m, n))
    _, sizes = np.unique(both, return_counts=True)
    total = n + m
    spread = n * m / 12 * ((total + 1) - float((sizes**3 - sizes).sum()) / (total * (total - 1)))
    if spread <= 0:
        return 1.0
    return _NORMAL.cdf(-(u - n * m / 2 - 0.5) / math.sqrt(spread))


def _midranks(values: Floats) -> tuple[Floats, bool]:
    unique, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[inverse], len(unique) < len(values)


def smallest_p(n: int, m: int) -> float:
    """Return the smallest p the rank test can give with so many values: what the sample allows.

    >>> round(smallest_p(8, 8), 6)
    7.8e-05
    """
    return 1 / math.comb(n + m, n) if n and m else 1.0


def correlation(runs: Sequence[Sequence[float] | Floats]) -> float:
    """Lag-1 correlation of neighbouring steps inside runs, drawn towards 0 where few steps tell it.

    Eight steps a run count a third: a drift that both sides share (clocks that settle after the start) looks like
    correlation too, and a gate that believed it fully would miss one slowdown in ten.

    >>> round(correlation([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]), 2)
    0.21
    """
    top = bottom = 0.0
    for run in runs:
        d = np.asarray(run, float)
        d = d - d.mean() if len(d) else d
        top += float((d[1:] * d[:-1]).sum())
        bottom += float((d * d).sum())
    steps = float(np.mean([len(run) for run in runs])) if len(runs) else 0.0
    return top / bottom * steps / (steps + 16) if bottom > 0 else 0.0


def deviation(runs: Sequence[Sequence[float]]) -> float:
    """Standard deviation of steps inside their runs, all runs pooled.

    >>> deviation([[1.0, 3.0], [11.0, 13.0]])
    1.4142135623730951
    """
    squares = sum(float(np.square(np.asarray(r, float) - np.mean(r)).sum()) for r in runs)
    return math.sqrt(squares / max(sum(len(r) - 1 for r in runs), 1))


def weaken(p: float, rho: float) -> float:
    """Return *p* for steps of which each repeats part of the last: as if there were (1 - rho)/(1 + rho) as many.

    >>> weaken(0.001, 0.0)
    0.001
    >>> round(weaken(0.001, 0.5), 3)
    0.037
    """
    rho = min(max(rho, 0.0), 0.9)
    if rho == 0 or not 0 < p < 0.5:
        return p
    return _NORMAL.cdf(_NORMAL.inv_cdf(p) * math.sqrt((1 - rho) / (1 + rho)))


class Estimate(msgspec.Struct, frozen=True):
    """A change (or a level), its standard error, and how many values stand behind the error.

    >>> e = Estimate(3.0, 1.0, 4)
    >>> [round(v, 2) for v in e.interval(0.95)], round(e.tail(), 3)
    ([0.22, 5.78], 0.02)
    """

    value: float
    error: float
    df: float

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided interval at *level*."""
        half = student(0.5 + level / 2, self.df) * self.error
        return self.value - half, self.value + half

    def tail(self, above: float = 0.0) -> float:
        """One-sided p that the true value is not above *above*."""
        if self.error == 0:
            return 0.0 if self.value > above else 1.0
        t = (self.value - above) / self.error
        return 1 - student_cdf(t, self.df)


def bootstrap(
    candidate: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]] = (), *, draws: int = 500
) -> Estimate:
    """Change of centre, candidate − baseline, with its error from resampled blocks of neighbouring steps.

    Read with Student's t: a plain bootstrap of five values is too sure of itself. Without a baseline, the level.

    >>> e = bootstrap([[11.0, 12.0, 11.5, 12.5, 11.2]], [[1.0, 2.0, 1.5, 2.5, 1.2]])
    >>> round(e.value, 3), 0.1 < e.error < 0.6, e.df
    (10.0, True, 8)
    """
    seed = np.random.default_rng(20240229)  # the same input gives the same verdict
    spread, df = 0.0, 0
    for side in (candidate, baseline):
        for run in side:
            n = len(run)
            drawn = _resampled_means(np.asarray(run, float), seed, draws)
            spread += float(drawn.var()) * n / max(n - 1, 1) / len(side) ** 2
            df += n - 1
    value = centre(candidate) - (centre(baseline) if baseline else 0.0)
    return Estimate(value, math.sqrt(spread), max(df, 1))


def between_runs(
    candidate: Sequence[Sequence[float]],
    baseline: Sequence[Sequence[float]],
    *,
    prior: float,
    prior_df: float,
    calibrated: bool = False,
) -> Estimate:
    """Change of centre with its error from how runs differ, where there are several.

    Few runs tell little about their spread, so what was known before (*prior*, a standard deviation worth *prior_df*
    runs) is pooled with what they show. If it was *calibrated* on the baseline's runs, these do not count again.

    >>> e = between_runs([[5.0], [5.2]], [[4.0], [4.2]], prior=0.1, prior_df=4)
    >>> round(e.value, 2), round(e.error, 3), e.df
    (1.0, 0.115, 6)
    """
    sides = [[pseudomedian(r) for r in side] for side in (candidate, baseline)]
    shown = sides[:1] if calibrated else sides
    squares = sum(float(((np.array(s) - np.mean(s)) ** 2).sum()) for s in shown)
    df = sum(len(s) - 1 for s in shown) + prior_df
    deviation = math.sqrt((squares + prior_df * prior**2) / df)
    error = deviation * math.sqrt(sum(1 / len(s) for s in sides))
    return Estimate(float(np.mean(sides[0]) - np.mean(sides[1])), error, df)


def centre(runs: Sequence[Sequence[float]]) -> float:
    """Mean over runs of each run's pseudo-median: every run counts once, however many steps it has.

    >>> centre([[1.0, 1.0, 1.0], [3.0]])
    2.0
    """
    return float(np.mean([pseudomedian(r) for r in runs]))


def _resampled_means(x: Floats, seed: np.random.Generator, draws: int) -> Floats:
    block = max(1, round(len(x) ** (1 / 3)))
    starts = seed.integers(0, len(x), (draws, -(-len(x) // block)))
    at = ((starts[:, :, None] + np.arange(block)) % len(x)).reshape(draws, -1)[:, : len(x)]
    return np.asarray(x[at].mean(axis=1), float)


@lru_cache(maxsize=256)
def student(probability: float, df: float) -> float:
    """Quantile of Student's t, by bisection on its distribution function.

    >>> round(student(0.975, 4), 3)
    2.776
    """
    if probability == 0.5:
        return 0.0
    if probability < 0.5:
        return -student(1 - probability, df)
    low, high = 0.0, 2.0
    while student_cdf(high, df) < probability and high < 1e9:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, df: float) -> float:
    """Distribution function of Student's t.

    >>> round(student_cdf(2.776, 4), 4)
    0.975
    """
    square = t * t
    # Two forms of the same: each keeps its digits where the other loses them.
    near = square < df
    tail = (1 - _beta(square / (df + square), 0.5, df / 2) if near else _beta(df / (df + square), df / 2, 0.5)) / 2
    return 1 - tail if t > 0 else tail


def _beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - (math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))) / a
    tiny, c, d = 1e-300, 1.0, 1 / max(1 - (a + b) * x / (a + 1), 1e-300)
    h = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            h *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return front * h


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm): the chance of any false one stays under the level.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [1.0] * len(ps), 0.0
    for at, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, ps[i] * (len(ps) - at)))
        adjusted[i] = largest
    return adjusted
