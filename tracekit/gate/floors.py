"""How large a change must be before it counts, and how much of that the runs themselves decide.

A floor is the largest of: a share of the baseline's value, an absolute amount, a share of the step (a label that takes
0.1 % of the step may double unnoticed), and, once calibrated, the noise between runs of the same code.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracekit.errors import OptionError
from tracekit.gate import stats
from tracekit.gate.metrics import Floor, Metric
from tracekit.gate.samples import SETS, Run
from tracekit.schema import COMMUNICATION_LABELS

SURE = 0.9975  # what calibrated noise exceeds once in 200 pairs, either way; fewer than 1 % even with heavy tails
COMMUNICATION = Floor(relative=0.1, of_step=0.02)
"""Communication contains the waiting for peers; two recordings of the same code were seen to differ by 9 % there."""
PRIOR_DF = 4.0  # how many runs' worth the default floor's idea of noise counts


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation between runs of the same code, in the metric's unit, and from how many runs less one."""

    deviation: float
    df: int

    def floor(self, runs: tuple[int, int]) -> float:
        """Return the change that only one pair in 200 exceeds, with so many runs on each side.

        >>> round(Noise(1.0, 4).floor((1, 1)), 2)
        7.92
        """
        return stats.student(SURE, self.df) * self.deviation * math.sqrt(1 / runs[0] + 1 / runs[1])


def floor_of(
    metric: Metric, before: float, baseline: Sequence[Run], overrides: Mapping[str, str | float] | None = None
) -> float:
    """Return the floor of *metric* before any calibration, in its unit.

    >>> from tracekit.gate.metrics import resolve
    >>> floor_of(resolve("step_ms"), 200.0, [])
    5.0
    >>> floor_of(resolve("step_ms"), 200.0, [], {"step_*": "1%"})
    2.0
    """
    for pattern, value in (overrides or {}).items():
        if fnmatch.fnmatchcase(metric.name, pattern):
            return _given(pattern, value, before)
    floor: Floor = metric.family.floor
    if metric.unit == "ms" and metric.key in ("communication", *COMMUNICATION_LABELS):
        floor = COMMUNICATION
    step = _centre(baseline, "step_ms")
    part = floor.of_step * step
    if metric.unit == "ratio" and floor.of_step and metric.key:
        ran = label_time(metric.key, baseline)
        part = min(1.0, part / ran) if ran else 0.0
    return max(floor.relative * abs(before), floor.absolute, part)


def label_time(key: str, runs: Sequence[Run]) -> float:
    """Milliseconds a step that a label, or one of the two sets of labels, ran."""
    return sum(_centre(runs, f"label_ms.{label}") for label in SETS.get(key, (key,)))


def prior(floor: float) -> float:
    """Return the deviation between runs that would make *floor* the calibrated floor of a pair of runs.

    >>> round(Noise(prior(3.0), 4).floor((1, 1)), 6)
    3.0
    """
    return floor / (stats.student(SURE, PRIOR_DF) * math.sqrt(2))


def calibrate(runs: Sequence[Run]) -> dict[str, Noise]:
    """Measure how runs of the same code differ, metric by metric.

    >>> runs = [Run("a", {"step_ms": (9.0, 9.0)}), Run("b", {"step_ms": (10.0,)}), Run("c", {"step_ms": (11.0,)})]
    >>> calibrate(runs)["step_ms"]
    Noise(deviation=1.0, df=2)
    """
    found = {}
    for name in runs[0].samples:
        centres = [stats.pseudomedian(r.samples[name]) for r in runs if r.samples.get(name)]
        if len(centres) == len(runs):
            mean = sum(centres) / len(centres)
            variance = sum((c - mean) ** 2 for c in centres) / (len(centres) - 1)
            found[name] = Noise(math.sqrt(variance), len(centres) - 1)
    return found


def _centre(runs: Sequence[Run], name: str) -> float:
    values = [r.samples[name] for r in runs if r.samples.get(name)]
    return stats.centre(values) if values else 0.0


def _given(pattern: str, value: str | float, before: float) -> float:
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            return abs(float(value.strip().rstrip("%")) / 100 * before)
        return abs(float(value))
    except ValueError:
        raise OptionError(f"floor of {pattern}: {value!r} is not a number", hint='write "3%" or 0.02') from None
