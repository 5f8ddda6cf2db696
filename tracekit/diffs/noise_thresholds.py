"""Noise thresholds: the size from which a change of a metric counts.

A noise floor is the largest of: a share of the baseline's value, an absolute amount, a share of the
step (a label that takes 0.1 % of the step may double without consequence), and, once calibrated,
the noise between runs of the same code.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import NormalDist

import msgspec
import numpy as np

from tracekit.diffs import stats
from tracekit.diffs.metrics import Floor, Metric, resolve
from tracekit.diffs.runs import Run, centre_of_runs, samples_of_metric
from tracekit.diffs.samples import COMPARED_LABEL_SETS
from tracekit.errors import OptionError
from tracekit.schema import COMMUNICATION_LABELS

CALIBRATED_QUANTILE = 0.9975
"""Quantile of the noise that a calibrated floor lies at: one pair of equal runs in 200 exceeds it
in either direction (fewer than 1 % even with heavy tails)."""
COMMUNICATION_FLOOR = Floor(relative=0.1, of_step=0.02)
"""Communication includes waiting for peers; two recordings of the same code differed by 9 %
there."""
MAX_RELATIVE_DIFFERENCE_OF_EQUAL_RUNS = {"waiting": 1.25, "copying": 0.45}
"""Largest difference of waiting (copying) between two runs of the same code, as a share of its
level. Fewer than one pair in 100 of equal runs whose host or network sets the pace differed by more
(docs/maintainers/measurements.md)."""
MAX_STEP_DEVIATIONS_BETWEEN_RUNS = 20.0
"""Largest difference between two runs of the same code, in standard deviations of the steps inside
a run."""
MEAN_FLOOR_ERRORS = 2.0
"""Standard errors of the difference of two means that the floor of a mean over steps has at
least."""
PRIOR_DEGREES_OF_FREEDOM = 4.0
"""Degrees of freedom that the noise assumed by the default floor counts for, when pooled with
measured noise."""


class Noise(msgspec.Struct, frozen=True):
    """Noise of a metric between runs of the same code."""

    deviation: float  # standard deviation, in the metric's unit
    df: int  # degrees of freedom: the number of runs minus one

    def floor(self, runs: tuple[int, int]) -> float:
        """Return the change that one comparison of equal code in 200 exceeds, given the number of runs on each side.

        >>> round(Noise(1.0, 4).floor((1, 1)), 2)
        7.92
        """
        quantile = stats.student_quantile(CALIBRATED_QUANTILE, self.df)
        return quantile * self.deviation * math.sqrt(1 / runs[0] + 1 / runs[1])

    def with_prior(self, deviation: float) -> Noise:
        """Return this noise pooled with an assumed *deviation*: three runs alone leave their noise almost unknown.

        >>> Noise(1.0, 2).with_prior(1.0)
        Noise(deviation=1.0, df=6)
        """
        df = self.df + int(PRIOR_DEGREES_OF_FREEDOM)
        squares = self.df * self.deviation**2 + PRIOR_DEGREES_OF_FREEDOM * deviation**2
        return Noise(math.sqrt(squares / df), df)


def pooled_noise(metric: Metric, noise: Noise, level_floor: float) -> Noise:
    """Return calibrated noise; that of work is pooled with what the floor of the level stands for.

    Few runs of the same work may differ by next to nothing, and waits by anything: only work has a
    usual deviation to fall back on.
    """
    if metric.nature != "work":
        return noise
    return noise.with_prior(prior_deviation(level_floor))


def noise_floor(
    metric: Metric,
    before: float,
    baseline: Sequence[Run],
    overrides: Mapping[str, str | float] | None = None,
) -> float:
    """Return the uncalibrated noise floor of *metric*, in its unit.

    Args:
        metric: The metric.
        before: Its value in the baseline.
        baseline: Runs of the baseline, for the step time.
        overrides: Floors set by the user, by metric name or pattern.

    >>> from tracekit.diffs.metrics import resolve
    >>> noise_floor(resolve("step_ms"), 200.0, [])
    5.7
    >>> noise_floor(resolve("step_ms"), 200.0, [], {"step_*": "1%"})
    2.0
    """
    for pattern, value in (overrides or {}).items():
        if fnmatch.fnmatchcase(metric.name, pattern):
            return _parse_floor(pattern, value, before)
    floor: Floor = metric.family.floor
    if metric.family.unit == "ms" and metric.key in ("communication", *COMMUNICATION_LABELS):
        floor = COMMUNICATION_FLOOR
    step_part = floor.of_step * (centre_of_runs(baseline, "step_ms") or 0.0)
    if metric.family.unit == "ratio" and floor.of_step and metric.key:
        # For an overlap, convert milliseconds of exposed time to a share of the label's time.
        label_ms = label_ms_per_step(metric.key, baseline)
        step_part = min(1.0, step_part / label_ms) if label_ms else 0.0
    return max(
        floor.relative * abs(before), floor.absolute, step_part, _error_of_means(metric, baseline)
    )


def _error_of_means(metric: Metric, baseline: Sequence[Run]) -> float:
    """Return by how much two means over steps may differ, from the spread of the baseline's steps.

    0 for other levels.

    The spread of the candidate does not count: slow steps that only the candidate has would widen
    their own limit.
    """
    values = samples_of_metric(baseline, metric)
    if metric.family.level != "mean" or not values:
        return 0.0
    steps = sum(map(len, values))
    return MEAN_FLOOR_ERRORS * stats.within_run_deviation(values) * math.sqrt(2 / steps)


def label_ms_per_step(key: str, runs: Sequence[Run]) -> float:
    """Return the milliseconds per step that a label, or the labels of a set (communication, copy), ran."""
    labels = COMPARED_LABEL_SETS.get(key, (key,))
    return sum(centre_of_runs(runs, f"label_ms.{label}") or 0.0 for label in labels)


def single_run_uncertainty(metric: Metric, sides: Sequence[Sequence[Run]]) -> float:
    """Return the change, in the metric's unit, that may be chance where each side has one run.

    It is 0 for the GPU's own work, which runs of the same code repeat to a percent. Time spent
    waiting for the host, for a peer or for a bus differs between processes by more than the steps
    of one process show.

    >>> from tracekit.diffs.samples import make_samples
    >>> from tracekit.diffs.metrics import resolve
    >>> steps = {"step_ms": (10.0, 11.0), "idle_ms": (4.0, 5.0), "label_ms.forward": (6.0, 6.0)}
    >>> waits = Run("a", make_samples(steps))
    >>> single_run_uncertainty(resolve("step_ms"), [[waits], [waits]])
    5.625
    >>> single_run_uncertainty(resolve("label_ms.forward"), [[waits], [waits]])
    0.0
    """
    if metric.nature == "work":
        return 0.0
    series_of_sides = []
    for side in sides:
        series_of_sides.append([values for run in side if (values := _variable_part(metric, run))])
    if not all(series_of_sides):
        return 0.0
    level = stats.centre(series_of_sides[0])
    copying = metric.nature == "copying"
    relative = MAX_RELATIVE_DIFFERENCE_OF_EQUAL_RUNS["copying" if copying else "waiting"]
    scale = abs(level)
    if metric.family.unit == "ratio":
        scale = level * (1 - level)  # a share cannot leave 0…1: near either end it differs by less
    uncertainty = relative * scale
    # Steady within a run and still different in the next: the steps say nothing about it.
    if copying:
        return uncertainty
    every_series = list(chain.from_iterable(series_of_sides))
    step_deviation = stats.within_run_deviation(every_series)
    return min(uncertainty, MAX_STEP_DEVIATIONS_BETWEEN_RUNS * step_deviation)


def _variable_part(metric: Metric, run: Run) -> Sequence[float]:
    """Return, per step, the part of *metric* that may differ between runs of the same code."""
    if metric.nature != "pace":
        return run.values(metric.name)
    suffix = "" if metric.rank is None else f"@{metric.rank}"
    idle = run.values(f"idle_ms{suffix}")
    exposed = run.values(f"exposed_ms.communication{suffix}")
    if idle and exposed and len(idle) == len(exposed):
        return [idle_ms + exposed_ms for idle_ms, exposed_ms in zip(idle, exposed, strict=True)]
    return idle or exposed


def prior_deviation(floor: float, uncertainty: float = 0.0) -> float:
    """Return the standard deviation between runs to assume before any is measured.

    Args:
        floor: Uncalibrated noise floor; the deviation is at least the one that would calibrate to
            this floor.
        uncertainty: Result of ``single_run_uncertainty``; the deviation is at least the one that
            makes it as rare.

    >>> round(Noise(prior_deviation(3.0), 4).floor((1, 1)), 6)
    3.0
    >>> round(prior_deviation(3.0, uncertainty=100.0), 1)
    25.2
    """
    from_floor = floor / stats.student_quantile(CALIBRATED_QUANTILE, PRIOR_DEGREES_OF_FREEDOM)
    from_uncertainty = uncertainty / NormalDist().inv_cdf(CALIBRATED_QUANTILE)
    # Of one run; both are about a difference of two.
    return max(from_floor, from_uncertainty) / math.sqrt(2)


def calibrate(runs: Sequence[Run]) -> dict[str, Noise]:
    """Return the noise between *runs* of the same code, by metric name.

    >>> from tracekit.diffs.samples import make_samples
    >>> steps_of_runs = ((9.0, 9.0), (10.0,), (11.0,))
    >>> calibrate([Run("", make_samples({"step_ms": steps})) for steps in steps_of_runs])["step_ms"]
    Noise(deviation=1.0, df=2)
    """
    noise = {}
    for name in runs[0].metric_names:
        if all(name in run.metric_names for run in runs):
            level = resolve(name, names_in_runs=[name]).family.level
            levels = [stats.level_of(run.values(name), level) for run in runs]
            noise[name] = Noise(float(np.std(levels, ddof=1)), len(levels) - 1)
    return noise


def _parse_floor(pattern: str, value: str | float, before: float) -> float:
    """Return a floor set by the user (``"3%"`` of *before*, or a number) in the metric's unit."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            return abs(float(value.strip().rstrip("%")) / 100 * before)
        return abs(float(value))
    except ValueError:
        raise OptionError(
            f"floor of {pattern}: {value!r} is not a number", hint='write "3%" or 0.02'
        ) from None
