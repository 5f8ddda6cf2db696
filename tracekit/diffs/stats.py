"""Statistics of diff and gate.

Steps are compared with a rank test, because step times have long tails. Neighbouring steps resemble
each other, so the p-value of the rank test is weakened by their correlation. Runs differ by more
than their steps do, so where there are several runs, the spread between runs is used as well.

``scipy`` is imported by the functions that need it: no other command has to wait for it.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Runs = Sequence[Sequence[float]]
"""Step values of each run of a side."""
_NORMAL = NormalDist()
MAX_VALUES_FOR_PAIRS = 400  # the number of pairs grows with the square; a plain median of more values is precise enough
MAX_PRODUCT_FOR_EXACT_TEST = 2500  # n * m up to which the exact distribution of U is computed
CORRELATION_PRIOR_STEPS = 16.0  # steps per run at which a measured correlation counts half
MAX_CORRELATION = 0.9
BOOTSTRAP_DRAWS = 500


Level = Literal["pseudomedian", "median", "mean"]
"""How the level of a run is taken from its steps."""


def level_of(values: Sequence[float] | Floats, level: Level = "pseudomedian") -> float:
    """Return the level of one run.

    >>> [level_of([1.0, 2.0, 3.0, 100.0], level) for level in ("pseudomedian", "median", "mean")]
    [2.75, 2.5, 26.5]
    """
    if level == "mean":
        return float(np.mean(values))
    return float(np.median(values)) if level == "median" else pseudomedian(values)


def pseudomedian(values: Sequence[float] | Floats) -> float:
    """Return the median of all pairwise means (Hodges-Lehmann): robust, and nearly as precise as the mean.

    >>> pseudomedian([1.0, 2.0, 3.0, 100.0])
    2.75
    """
    x = np.asarray(values, float)
    if len(x) > MAX_VALUES_FOR_PAIRS:
        return float(np.median(x))
    i, j = np.triu_indices(len(x))  # every pair once, each value with itself included
    return float(np.median((x[i] + x[j]) / 2))


def rank_test(worse: Sequence[float] | Floats, better: Sequence[float] | Floats) -> float:
    """Return the one-sided Mann-Whitney p-value of "the values of *worse* are larger than those of *better*".

    Exact for small samples without ties; otherwise the normal approximation with tie and continuity
    correction.

    >>> rank_test([5.0, 6.0, 7.0], [1.0, 2.0, 3.0])
    0.05
    """
    from scipy.stats import mannwhitneyu

    has_ties = len(np.unique([*worse, *better])) < len(worse) + len(better)
    is_small = len(worse) * len(better) <= MAX_PRODUCT_FOR_EXACT_TEST
    method = "exact" if is_small and not has_ties else "asymptotic"
    test = mannwhitneyu(worse, better, alternative="greater", method=method)
    return float(test.pvalue)


def smallest_p(n: int, m: int) -> float:
    """Return the smallest p-value the rank test can give for samples of *n* and *m* values.

    >>> round(smallest_p(8, 8), 6)
    7.8e-05
    """
    return 1 / math.comb(n + m, n)


def correlation(runs: Sequence[Sequence[float] | Floats]) -> float:
    """Return the lag-1 correlation of neighbouring steps inside runs, shrunk towards 0 for short runs.

    With eight steps per run it counts a third. A drift that both sides share (GPU clocks that
    settle after the start) looks like correlation too, and a gate that used it unshrunk would miss
    one slowdown in ten.

    >>> round(correlation([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]), 2)
    0.21
    """
    # Both times the number of values, which cancels.
    covariance = 0.0
    variance = 0.0
    for run in runs:
        deviations = np.asarray(run, float)
        deviations = deviations - deviations.mean() if len(deviations) else deviations
        covariance += float((deviations[1:] * deviations[:-1]).sum())
        variance += float((deviations * deviations).sum())
    if variance <= 0:
        return 0.0
    steps = float(np.mean([len(run) for run in runs]))
    return covariance / variance * steps / (steps + CORRELATION_PRIOR_STEPS)


def within_run_deviation(runs: Runs) -> float:
    """Return the standard deviation of steps around the mean of their run, pooled over runs.

    >>> within_run_deviation([[1.0, 3.0], [11.0, 13.0]])
    1.4142135623730951
    """
    squares = 0.0
    degrees_of_freedom = 0
    for run in runs:
        squares += _squared_deviations(run)
        degrees_of_freedom += len(run) - 1
    return math.sqrt(squares / max(degrees_of_freedom, 1))


def _squared_deviations(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    return float(np.square(np.asarray(values, float) - np.mean(values)).sum())


def weaken(p: float, rho: float) -> float:
    """Return the one-sided p-value *p* corrected for a step-to-step correlation *rho*.

    Correlated steps carry less information: n of them count as n * (1 - rho) / (1 + rho)
    independent ones.

    >>> weaken(0.001, 0.0)
    0.001
    >>> round(weaken(0.001, 0.5), 3)
    0.037
    """
    rho = min(max(rho, 0.0), MAX_CORRELATION)
    # From 0.5 on the correction would lower p, and 0 has no normal quantile.
    if rho == 0 or not 0 < p < 0.5:
        return p
    return _NORMAL.cdf(_NORMAL.inv_cdf(p) * math.sqrt((1 - rho) / (1 + rho)))


class Estimate(msgspec.Struct, frozen=True):
    """A change (or a level), its standard error, and the degrees of freedom of that error.

    >>> e = Estimate(3.0, 1.0, 4)
    >>> [round(v, 2) for v in e.interval(0.95)], round(e.p_not_above(), 3)
    ([0.22, 5.78], 0.02)
    """

    value: float
    error: float
    df: float

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided confidence interval at *level* (0 to 1)."""
        half_width = student_quantile(0.5 + level / 2, self.df) * self.error
        return self.value - half_width, self.value + half_width

    def p_not_above(self, threshold: float = 0.0) -> float:
        """Return the one-sided p-value of "the true value is not above *threshold*"."""
        if self.error == 0:
            return 0.0 if self.value > threshold else 1.0
        t = (self.value - threshold) / self.error
        return student_cdf(-t, self.df)


def bootstrap(candidate: Runs, baseline: Runs = (), *, level: Level = "pseudomedian") -> Estimate:
    """Estimate the change of centre, candidate minus baseline, with its error from resampled blocks of steps.

    The error is used with Student's t, because a plain bootstrap of five values underestimates it.
    Without a baseline the estimate is the candidate's level.

    >>> e = bootstrap([[11.0, 12.0, 11.5, 12.5, 11.2]], [[1.0, 2.0, 1.5, 2.5, 1.2]])
    >>> round(e.value, 3), 0.1 < e.error < 0.6, e.df
    (10.0, True, 8)
    """
    # A fixed seed: the same input gives the same verdict.
    generator = np.random.default_rng(20240229)
    variance = 0.0
    df = 0
    for runs in (candidate, baseline):
        for run in runs:
            steps = len(run)
            means = _resampled_means(np.asarray(run, float), generator)
            # n / (n - 1) removes the bias of a bootstrap variance; a side's centre is the mean over
            # its runs.
            variance += float(means.var()) * steps / max(steps - 1, 1) / len(runs) ** 2
            df += steps - 1
    value = centre(candidate, level) - (centre(baseline, level) if baseline else 0.0)
    return Estimate(value, math.sqrt(variance), max(df, 1))


def between_runs(
    candidate: Runs,
    baseline: Runs,
    *,
    prior: float,
    prior_df: float,
    calibrated: bool = False,
    level: Level = "pseudomedian",
) -> Estimate:
    """Estimate the change of centre, with its error from the spread between runs.

    Args:
        candidate: Step values of each run after the change.
        baseline: Step values of each run before the change.
        prior: Standard deviation between runs assumed beforehand; few runs alone say little about
            it.
        prior_df: Degrees of freedom that *prior* counts for when it is pooled with the spread of
            these runs.
        calibrated: Whether *prior* was measured on the baseline's runs, which then must not count a
            second time.
        level: How the level of a run is taken from its steps.

    >>> e = between_runs([[5.0], [5.2]], [[4.0], [4.2]], prior=0.1, prior_df=4)
    >>> round(e.value, 2), round(e.error, 3), e.df
    (1.0, 0.115, 6)
    """
    candidate_levels = [level_of(run, level) for run in candidate]
    baseline_levels = [level_of(run, level) for run in baseline]
    squares = _squared_deviations(candidate_levels)
    df = len(candidate_levels) - 1 + prior_df
    if not calibrated:
        squares += _squared_deviations(baseline_levels)
        df += len(baseline_levels) - 1
    deviation = math.sqrt((squares + prior_df * prior**2) / df)
    error = deviation * math.sqrt(1 / len(candidate_levels) + 1 / len(baseline_levels))
    change = float(np.mean(candidate_levels) - np.mean(baseline_levels))
    return Estimate(change, error, df)


def centre(runs: Runs, level: Level = "pseudomedian") -> float:
    """Return the mean over runs of each run's level: every run counts once, however many steps it has.

    >>> centre([[1.0, 1.0, 1.0], [3.0]])
    2.0
    """
    return float(np.mean([level_of(run, level) for run in runs]))


def _resampled_means(values: Floats, generator: np.random.Generator) -> Floats:
    """Return ``BOOTSTRAP_DRAWS`` means of resampled *values*, drawn in blocks so that neighbours stay together.

    A block has about the cube root of the number of values, the usual choice for a block bootstrap.
    Blocks wrap around at the end, and the last block of a draw is cut so that each draw has as many
    values as the sample.
    """
    block = max(1, round(len(values) ** (1 / 3)))
    starts = generator.integers(0, len(values), (BOOTSTRAP_DRAWS, -(-len(values) // block)))
    # (draw, block, offset inside the block) flattened to one row of value indices per draw.
    indices = ((starts[:, :, None] + np.arange(block)) % len(values)).reshape(BOOTSTRAP_DRAWS, -1)[
        :, : len(values)
    ]
    return np.asarray(values[indices].mean(axis=1), float)


def student_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t distribution.

    >>> round(student_quantile(0.975, 4), 3)
    2.776
    """
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def student_cdf(t: float, df: float) -> float:
    """Return the distribution function of Student's t.

    >>> round(student_cdf(2.776, 4), 4)
    0.975
    """
    from scipy.special import stdtr

    return float(stdtr(df, t))


def holm(ps: Sequence[float]) -> list[float]:
    """Return *ps* adjusted for their number (Holm): the chance of any false positive stays below the level.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted = [1.0] * len(ps)
    largest = 0.0
    for smaller, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, ps[i] * (len(ps) - smaller)))
        adjusted[i] = largest
    return adjusted
