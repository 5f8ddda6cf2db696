"""How large a change must be before it counts, and how much of that the runs themselves decide.

A floor is the largest of: a share of the baseline's value, an absolute amount, a share of the step (a label that takes
0.1 % of the step may double unnoticed), and, once calibrated, the noise between runs of the same code.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec

from tracekit.diffs import stats
from tracekit.diffs.metrics import Floor, Metric, resolve
from tracekit.diffs.samples import SETS, Run
from tracekit.errors import OptionError
from tracekit.schema import COMMUNICATION_LABELS

SURE = 0.9975  # what calibrated noise exceeds once in 200 pairs, either way; fewer than 1 % even with heavy tails
COMMUNICATION = Floor(relative=0.1, of_step=0.02)
"""Communication contains the waiting for peers; two recordings of the same code were seen to differ by 9 % there."""
ALIKE = {"waiting": 1.25, "copying": 0.45}
"""How much longer the waiting (the copying) of one run may be than another's of the same code, as a share of itself.
Of equal runs whose host or network sets the pace fewer than one pair in 100 differed by more (docs/gate.md)."""
QUIET = 20.0
"""A change of so many times what the steps of each run differ by is more than two runs differ by on their own."""
PRIOR_DF = 4.0  # how many runs' worth the default floor's idea of noise counts


class Noise(msgspec.Struct, frozen=True):
    """Standard deviation between runs of the same code, in the metric's unit, and from how many runs less one."""

    deviation: float
    df: int

    def floor(self, runs: tuple[int, int]) -> float:
        """Return the change that only one pair in 200 exceeds, with so many runs on each side.

        >>> round(Noise(1.0, 4).floor((1, 1)), 2)
        7.92
        """
        return stats.student(SURE, self.df) * self.deviation * math.sqrt(1 / runs[0] + 1 / runs[1])

    def with_prior(self, deviation: float) -> Noise:
        """Pool with a *deviation* known beforehand: three runs alone would have to allow for anything.

        >>> Noise(1.0, 2).with_prior(1.0)
        Noise(deviation=1.0, df=6)
        """
        df = self.df + int(PRIOR_DF)
        return Noise(math.sqrt((self.df * self.deviation**2 + PRIOR_DF * deviation**2) / df), df)


def floor_of(
    metric: Metric, before: float, baseline: Sequence[Run], overrides: Mapping[str, str | float] | None = None
) -> float:
    """Return the floor of *metric* before any calibration, in its unit.

    >>> from tracekit.diffs.metrics import resolve
    >>> floor_of(resolve("step_ms"), 200.0, [])
    5.7
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
    """Milliseconds per step that a label, or one of the two sets of labels, ran."""
    return sum(_centre(runs, f"label_ms.{label}") for label in SETS.get(key, (key,)))


def doubt(metric: Metric, sides: Sequence[Sequence[Run]]) -> float:
    """Return the change, in the metric's unit, that one run per side cannot tell from how runs of the same code differ.

    Nothing of the sort for the GPU's own work, which equal runs repeat to a percent. What waits for the host, for a
    peer or for a bus differs between processes by more than its steps show.

    >>> from tracekit.diffs.metrics import resolve
    >>> waits = Run("a", {"step_ms": (10.0, 11.0), "idle_ms": (4.0, 5.0), "label_ms.forward": (6.0, 6.0)})
    >>> doubt(resolve("step_ms"), [[waits], [waits]])
    5.625
    >>> doubt(resolve("label_ms.forward"), [[waits], [waits]])
    0.0
    """
    if metric.nature == "work":
        return 0.0
    baseline, *_ = series = [[v for run in side if len(v := _waiting(metric, run))] for side in sides]
    if not all(series):
        return 0.0
    level = stats.centre(baseline)
    alike = ALIKE["copying" if metric.nature == "copying" else "waiting"]
    most = alike * (level * (1 - level) if metric.unit == "ratio" else abs(level))
    # The time of a copy keeps still within a run and still takes another value in the next.
    return most if metric.nature == "copying" else min(most, QUIET * stats.deviation([r for s in series for r in s]))


def _waiting(metric: Metric, run: Run) -> Sequence[float]:
    """Step by step, the part of *metric* that may differ between equal runs."""
    if metric.nature != "pace":
        return run.values(metric)
    where = "" if metric.rank is None else f"@{metric.rank}"
    idle, exposed = (run.values(resolve(n + where)) for n in ("idle_ms", "exposed_ms.communication"))
    if idle and exposed and len(idle) == len(exposed):
        return [a + b for a, b in zip(idle, exposed, strict=True)]
    return idle or exposed


def prior(floor: float, doubt: float = 0.0) -> float:
    """Return the deviation between runs to begin with: what makes *floor* a calibrated floor, or *doubt* a rare pair.

    >>> round(Noise(prior(3.0), 4).floor((1, 1)), 6)
    3.0
    >>> round(prior(3.0, doubt=100.0), 1)
    25.2
    """
    known = NormalDist().inv_cdf(SURE)
    return max(floor / stats.student(SURE, PRIOR_DF), doubt / known) / math.sqrt(2)


def calibrate(runs: Sequence[Run]) -> dict[str, Noise]:
    """Measure how runs of the same code differ, metric by metric.

    >>> runs = [Run("a", {"step_ms": (9.0, 9.0)}), Run("b", {"step_ms": (10.0,)}), Run("c", {"step_ms": (11.0,)})]
    >>> calibrate(runs)["step_ms"]
    Noise(deviation=1.0, df=2)
    """
    noise = {}
    for name in runs[0].samples:
        centres = [stats.pseudomedian(r.samples[name]) for r in runs if r.samples.get(name)]
        if len(centres) == len(runs):
            mean = sum(centres) / len(centres)
            variance = sum((c - mean) ** 2 for c in centres) / (len(centres) - 1)
            noise[name] = Noise(math.sqrt(variance), len(centres) - 1)
    return noise


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
