"""A verdict for each metric.

Regressed takes two things at once: an effect past the floor, and samples that agree. What cannot be known is
inconclusive and says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from tracekit._util.text import counted
from tracekit.diffs import stats
from tracekit.diffs.floors import PRIOR_DF, Noise, doubt, floor_of, label_time, prior
from tracekit.diffs.limits import Requirement
from tracekit.diffs.metrics import Metric, resolve
from tracekit.diffs.samples import SETS, Run

Outcome = Literal["pass", "improved", "regressed", "inconclusive"]
WHOLE = ("step_ms", "compute_ms")
"""What answers for the whole step, and for all of the GPU's own work in it."""
_ONE_RUN = "one run per side may wait this much longer by chance: add runs, or --calibrate"
STRICTER = 7.5
"""Between runs 1 % is asked where between steps 7.5 % is: a calibrated floor is no more than their noise."""


class Rules(msgspec.Struct, frozen=True):
    """How sure a verdict must be."""

    alpha: float = 0.075  # chance of a false alarm before the floors: of the whole step, and of all its parts
    min_steps: int = 5  # with fewer steps than this on either side nothing is decided
    floors: Mapping[str, str | float] | None = None  # by metric or pattern: "3%" or a number in its unit


class Check(msgspec.Struct, frozen=True):
    """What was asked of one metric, and the answer."""

    metric: Metric
    verdict: Outcome = "pass"
    reason: str = ""
    requirement: Requirement | None = None
    before: float | None = None
    after: float | None = None
    floor: float | None = None
    interval: tuple[float, float] | None = None  # of the change; of the level where a limit was asked for
    p: float | None = None  # that it got worse, adjusted for the number of metrics
    method: str | None = None
    steps: tuple[int, int] = (0, 0)
    runs: tuple[int, int] = (0, 0)
    waiver: Mapping[str, str] | None = None

    @property
    def change(self) -> float | None:
        """After minus before, in the metric's unit."""
        return None if self.before is None or self.after is None else self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        change = self.change
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "better": self.metric.better,
            "verdict": self.verdict,
            "reason": self.reason,
            "requirement": self.requirement.text if self.requirement else None,
            "before": self.before,
            "after": self.after,
            "change": change,
            "change_relative": change / self.before if change is not None and self.before else None,
            "floor": self.floor,
            "interval": list(self.interval) if self.interval else None,
            "p": self.p,
            "method": self.method,
            "steps": {"before": self.steps[0], "after": self.steps[1]},
            "runs": {"before": self.runs[0], "after": self.runs[1]},
            "waiver": dict(self.waiver) if self.waiver else None,
        }


class _Case(msgspec.Struct, frozen=True):
    """One metric's samples on both sides, run by run, turned so that larger is worse."""

    check: Check
    before: list[list[float]]
    after: list[list[float]]
    floor: float
    noise: Noise | None
    doubt: float = 0.0  # how far apart equal runs may lie where no noise was calibrated

    @property
    def sign(self) -> int:
        """+1 where growing is worse."""
        asked = self.check.requirement
        return (1 if asked.worse == "up" else -1) if asked else (-1 if self.check.metric.better == "up" else 1)

    @property
    def limit(self) -> float:
        """The change beyond which it counts, as a worsening (negative: an improvement was demanded)."""
        asked = self.check.requirement
        if asked is None:
            return self.floor
        amount = asked.limit * (self.check.before or 0.0) if asked.kind == "relative" else asked.limit
        return self.sign * amount

    @property
    def shift(self) -> float:
        """What the samples must be shown to exceed: no change, or the improvement that was demanded."""
        return min(self.limit, 0.0)


def judge(
    candidate: Sequence[Run],
    baseline: Sequence[Run],
    requirements: Sequence[Requirement] = (),
    *,
    rules: Rules = Rules(),  # noqa: B008 - frozen
    noise: Mapping[str, Noise] | None = None,
    obstacle: str = "",
) -> list[Check]:
    """Return one check per metric; *obstacle* says why they cannot be compared at all.

    >>> base = Run("base", {"step_ms": (100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1)})
    >>> slow = Run("slow", {"step_ms": tuple(1.06 * v for v in base.samples["step_ms"])})
    >>> [(c.metric.name, c.verdict) for c in judge([slow], [base])]
    [('step_ms', 'regressed')]
    >>> [(c.metric.name, c.verdict) for c in judge([base], [base])]
    [('step_ms', 'pass')]
    """
    asked: list[tuple[Metric, Requirement | None]] = [(r.metric, r) for r in requirements]
    asked = asked or [(m, None) for m in default_metrics(candidate, baseline, rules)]
    cases = [_case(m, r, (candidate, baseline), rules, (noise or {}).get(m.name)) for m, r in asked]
    settled = [_settle(case, rules, obstacle) for case in cases]
    waiting = [i for i, check in enumerate(settled) if check is None]
    families = _families([cases[i].check.metric.name for i in waiting], named=bool(requirements))
    agreed = [_agreement(cases[i], rules.alpha / families.count(f)) for i, f in zip(waiting, families, strict=True)]
    worse = _corrected([a.worse for a in agreed], families)
    better = _corrected([a.better for a in agreed], families)
    for at, i in enumerate(waiting):
        settled[i] = _decide(cases[i], agreed[at], worse[at], better[at], rules)
    return [check for check in settled if check is not None]


def default_metrics(candidate: Sequence[Run], baseline: Sequence[Run], rules: Rules) -> list[Metric]:
    """Return what is checked when nothing is named: the default families, where a change could pass its floor."""
    metrics = []
    for name in dict.fromkeys(n for run in (*baseline, *candidate) for n in run.samples):
        metric = resolve(name, known=[name])
        if metric.key in metric.family.details:
            continue
        if metric.family.default and (metric.key is None or _matters(metric, candidate, baseline, rules)):
            metrics.append(metric)
    labels = [m for m in metrics if m.key not in SETS]
    seen = {(m.family.name, _all_values(m, candidate, baseline)) for m in labels}
    # A set of one label is that label: asking twice only costs certainty.
    sets = [m for m in metrics if m.key in SETS and (m.family.name, _all_values(m, candidate, baseline)) not in seen]
    return sorted([*labels, *sets], key=lambda m: m.name != "step_ms")


def _all_values(metric: Metric, *sides: Sequence[Run]) -> tuple[tuple[float, ...], ...]:
    return tuple(run.values(metric) for side in sides for run in side)


def _matters(metric: Metric, candidate: Sequence[Run], baseline: Sequence[Run], rules: Rules) -> bool:
    sides = [[v for r in side if (v := r.values(metric))] for side in (baseline, candidate)]
    if metric.unit == "ratio":
        # A share needs both sides; and a label too short to cost a floor's worth of step cannot fail.
        return (
            all(sides)
            and floor_of(metric, 0.0, baseline, rules.floors) < 1.0
            and label_time(metric.key or "", baseline) > 0
        )
    before, after = (stats.centre(side) if side else 0.0 for side in sides)
    return max(before, after) > floor_of(metric, before, baseline, rules.floors)


def _case(
    metric: Metric,
    asked: Requirement | None,
    sides: tuple[Sequence[Run], Sequence[Run]],
    rules: Rules,
    noise: Noise | None,
) -> _Case:
    """One metric's samples, its floor and its noise, ready to be judged; *sides* are the candidate and the baseline."""
    candidate, baseline = sides
    before, after = _samples(metric, baseline, candidate)
    old, new = (stats.centre(side) if side else None for side in (before, after))
    limited = asked is not None and asked.kind == "limit"
    reference = new if limited or old is None else old
    runs = (len(before), len(after))
    floor = floor_of(metric, reference or 0.0, candidate if limited else baseline, rules.floors)
    floor, noise = _with_noise(metric, floor, noise, runs)
    steps = (sum(map(len, before)), sum(map(len, after)))
    check = Check(metric, requirement=asked, before=old, after=new, floor=floor, steps=steps, runs=runs)
    unsure = 0.0 if noise or limited else doubt(metric, (baseline, candidate))
    return _Case(check, before, after, floor, noise, unsure)


def _samples(
    metric: Metric, baseline: Sequence[Run], candidate: Sequence[Run]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the samples before and after, run by run; runs without the metric are left out."""
    before, after = ([list(v) for r in side if (v := r.values(metric))] for side in (baseline, candidate))
    if metric.unit == "ms" and not metric.once_a_run:  # a label that one side never ran took no time there
        before = before or (_zeros(baseline) if after else [])
        after = after or (_zeros(candidate) if before else [])
    return before, after


def _zeros(side: Sequence[Run]) -> list[list[float]]:
    """Return zero for every step of the first run, as the only run; nothing where no steps are known."""
    return [[0.0] * side[0].steps] if side and side[0].steps else []


def _with_noise(metric: Metric, floor: float, noise: Noise | None, runs: tuple[int, int]) -> tuple[float, Noise | None]:
    """Return the floor, raised to that of the calibrated noise, and the noise, steadied by its prior for work."""
    if noise and metric.nature == "work":
        noise = noise.with_prior(prior(floor))
    if noise and all(runs):
        floor = max(floor, noise.floor(runs))
    return floor, noise


def _settle(case: _Case, rules: Rules, obstacle: str) -> Check | None:
    """Decide what needs no comparison: limits on the candidate alone, and what cannot be compared."""
    check, asked = case.check, case.check.requirement
    if check.after is None:
        return replace(check, verdict="inconclusive", reason="the candidate has no such metric")
    if asked and asked.kind == "limit":
        return _limit(case, asked, rules)
    if obstacle:
        return replace(check, verdict="inconclusive", reason=obstacle)
    if check.before is None:
        return replace(check, verdict="inconclusive", reason="the baseline has no such metric")
    what = "runs" if check.metric.once_a_run else "steps"
    need = 3 if check.metric.once_a_run else rules.min_steps
    if min(check.steps) < need:
        side = f"{check.steps[0]} before, {check.steps[1]} after"
        return replace(check, verdict="inconclusive", reason=f"too few {what}: {side}; at least {need} are needed")
    return None


def _limit(case: _Case, asked: Requirement, rules: Rules) -> Check:
    """Return the verdict on the candidate's own steps against a number."""
    check, value = case.check, case.check.after or 0.0
    over = case.sign * (value - asked.limit)
    if check.steps[1] < rules.min_steps:
        # Too few steps to know their noise: only a distance beyond the floor decides.
        few = f"only {counted(check.steps[1], 'step')}"
        if abs(over) <= case.floor:
            return replace(check, verdict="inconclusive", reason=f"{few}, and the limit is within the noise floor")
        ok = asked.holds(value)
        return replace(check, verdict="pass" if ok else "regressed", reason=f"{few}, but beyond the noise floor",
                       method="floor")  # fmt: skip
    estimate = stats.bootstrap([[case.sign * v for v in run] for run in case.after])
    ends = sorted(case.sign * end for end in estimate.interval(1 - rules.alpha))
    check = replace(check, interval=(ends[0], ends[1]), method="bootstrap", p=estimate.tail(case.sign * asked.limit))
    if asked.holds(value):
        return replace(check, verdict="pass")
    if (check.p or 0.0) <= rules.alpha:
        return replace(check, verdict="regressed", reason=f"the limit is {asked.op} {asked.limit:g}")
    return replace(check, verdict="inconclusive", reason="past the limit, but the limit is within its noise")


class _Agreement(msgspec.Struct, frozen=True):
    """How the samples speak for a change, before correction: p of worse, p of better, the interval of the change."""

    worse: float
    better: float
    interval: tuple[float, float]
    method: str


def _agreement(case: _Case, level: float) -> _Agreement:
    after = [[case.sign * v for v in run] for run in case.after]
    before = [[case.sign * v for v in run] for run in case.before]
    estimate = stats.bootstrap(after, before)
    flat_after, flat_before = ([v for run in side for v in run] for side in (after, before))
    moved = [v + case.shift for v in flat_before]
    if stats.smallest_p(len(flat_after), len(flat_before)) <= level:
        rho = stats.correlation([*after, *before])
        worse = stats.weaken(stats.rank_test(flat_after, moved), rho)
        better = stats.weaken(stats.rank_test(flat_before, flat_after), rho)
        method = "rank test"
    else:
        worse, better, method = estimate.tail(case.shift), replace(estimate, value=-estimate.value).tail(), "bootstrap"
    if case.noise or len(after) + len(before) > 2:
        deviation = case.noise.deviation if case.noise else prior(case.floor, case.doubt)
        df = float(case.noise.df) if case.noise else PRIOR_DF
        spread = stats.between_runs(after, before, prior=deviation, prior_df=df, calibrated=case.noise is not None)
        # Steps of one run resemble each other: the runs themselves must agree too.
        worse = max(worse, min(1.0, STRICTER * spread.tail(case.shift)))
        better = max(better, min(1.0, STRICTER * replace(spread, value=-spread.value).tail()))
        estimate, method = max(estimate, spread, key=lambda e: e.error), f"{method}, over runs"
    ends = sorted(case.sign * end for end in estimate.interval(1 - 2 * level))
    return _Agreement(worse, better, (ends[0], ends[1]), method)


def _decide(case: _Case, agreed: _Agreement, p_worse: float, p_better: float, rules: Rules) -> Check:
    check = replace(case.check, interval=agreed.interval, p=p_worse, method=agreed.method)
    worse, asked = case.sign * (check.change or 0.0), check.requirement
    past = worse > case.limit if asked is None else not asked.holds(_asked_change(check, asked))
    alike = sum(check.runs) == 2 and abs(worse) <= case.doubt
    if past:
        return _past(case, check, agreed, rules, alike=alike)
    if -worse > case.floor and p_better <= rules.alpha and not alike:
        return replace(check, verdict="improved")
    return check


def _past(case: _Case, check: Check, agreed: _Agreement, rules: Rules, *, alike: bool) -> Check:
    """Judge a change past its limit: regressed, unless it may be noise."""
    worse = case.sign * (check.change or 0.0)
    if check.requirement and case.noise and abs(worse) <= case.noise.floor(check.runs):
        return replace(check, verdict="inconclusive", reason="past the limit, but within the calibrated noise")
    if check.p is not None and check.p <= rules.alpha:
        if alike:
            return replace(check, verdict="inconclusive", reason=_ONE_RUN)
        return replace(check, verdict="regressed", reason=_because(case))
    if agreed.worse <= 2 * rules.alpha and worse > 2 * case.floor:
        return replace(check, verdict="inconclusive", reason="looks worse, but may be noise: record more")
    return replace(check, reason="past the floor, but it may be noise")


def _asked_change(check: Check, asked: Requirement) -> float:
    change = check.change or 0.0
    if asked.kind != "relative":
        return change
    if check.before:
        return change / check.before
    return math.copysign(math.inf, change) if change else 0.0


def _because(case: _Case) -> str:
    asked, unit = case.check.requirement, case.check.metric.unit
    if asked:
        return f"breaks {asked.text}"
    floor = f"{100 * case.floor:.1f} points" if unit == "ratio" else f"{case.floor:.3g} {unit}"
    return f"worse by more than {floor}"


def _families(metrics: Sequence[str], *, named: bool) -> list[int]:
    """Return which metrics are corrected together: the step as a whole is not blunted by many labels."""
    return [int(not named and name in WHOLE) for name in metrics]


def _corrected(ps: Sequence[float], families: Sequence[int]) -> list[float]:
    result = list(ps)
    for family in set(families):
        members = [i for i, f in enumerate(families) if f == family]
        for i, p in zip(members, stats.holm([ps[i] for i in members]), strict=True):
            result[i] = p
    return result
