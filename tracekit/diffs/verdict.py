"""Verdict on each metric.

A metric regressed if its change is larger than the noise floor and, at the same time, statistically
significant. What cannot be decided is inconclusive, with a reason.

Two rules stand above the statistics. A limit that the user gave is broken if every step of every run
shows a change beyond twice the limit, whatever the spread between runs. And unless noise was
calibrated, several runs of a side decide no less than one: a metric that regressed in each pair of
runs alone has regressed.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, product

import msgspec
from msgspec.structs import asdict, replace

from tracekit._util.text import counted
from tracekit.diffs import noise_thresholds as thresholds
from tracekit.diffs import stats
from tracekit.diffs.comparability import FreeStepOfSide
from tracekit.diffs.metrics import Metric, Requirement, resolve
from tracekit.diffs.runs import Run, samples_of_metric
from tracekit.diffs.samples import COMPARED_LABEL_SETS
from tracekit.documents.diff import Verdict
from tracekit.documents.gate import CheckResult, Counts, GateSettings

NEEDED_ON_BOTH_SIDES = ("mean_step_ms", "slow_steps")
"""Metrics that a run of an older file lacks: without them there is nothing to compare, and 0 would
be wrong."""
WHOLE_STEP_METRICS = ("step_ms", "mean_step_ms", "slow_steps", "compute_ms")
"""Metrics of the whole step and of all GPU work in it; corrected for multiple tests apart from the
many labels."""
_SINGLE_RUN_REASON = (
    "one run per side may wait this much longer by chance: add runs, or --calibrate"
)
BETWEEN_RUNS_P_FACTOR = 2.0
"""Factor on p-values from the spread between runs: 1 % is required there where 2 % is required
between steps, because a calibrated floor is no larger than that spread."""
MIN_RUNS_OF_RUN_METRIC = 3
"""Fewest runs on each side to compare a metric that has one value per run."""
MIN_RUNS_TO_CALIBRATE_BY_DEFAULT = 5
"""Baseline runs from which their own spread is used as the noise, where none was calibrated."""
MIN_STEPS_TO_TELL_APART = 3
"""Fewest steps on each side from which it is said that every step changed."""
FAR_BEYOND_LIMIT = 2.0
"""Factor on a limit: a change beyond it in every step breaks a limit that was given, and one below
it that the steps do not show is no sign against a default limit."""


class _Conditions(msgspec.Struct, frozen=True):
    """Settings of a gate, and what keeps its runs from being judged."""

    rules: GateSettings
    obstacle: str  # reason why the sides cannot be compared; empty if they can be
    damage: str  # reason why the figures cannot be trusted; empty if they can be


class _Case(msgspec.Struct, frozen=True):
    """Samples of one metric on both sides, run by run, with what is needed to judge them."""

    metric: Metric
    requirement: Requirement | None
    sign: int  # +1 if an increase is worse, else -1
    check: CheckResult  # the figures that are known before the test, without a verdict
    before: list[list[float]]  # turned by the sign, so that larger is worse
    after: list[list[float]]
    floor: float
    noise: thresholds.Noise | None
    uncertainty: float = 0.0  # result of ``single_run_uncertainty``, 0 where noise was calibrated

    @property
    def limit(self) -> float:
        """Largest worsening that is accepted.

        Negative if the requirement demands an improvement.
        """
        return self.sign * (self.check.limit or 0.0)

    def interval(self, estimate: stats.Estimate, level: float) -> list[float]:
        """Return a confidence interval in the metric's own direction."""
        return sorted(self.sign * end for end in estimate.interval(level))

    def undecided(self, reason: str) -> CheckResult:
        """Return the check as inconclusive."""
        return replace(self.check, verdict="inconclusive", reason=reason)

    @property
    def tested_change(self) -> float:
        """Worsening that must be significantly exceeded: 0, or the demanded improvement (negative)."""
        return min(self.limit, 0.0)

    @property
    def worsening(self) -> float:
        """Change turned so that positive is worse."""
        return self.sign * (self.check.change or 0.0)

    @property
    def may_be_chance(self) -> bool:
        """Whether one run per side cannot tell the change from the difference of equal runs."""
        return self.check.runs == Counts(1, 1) and abs(self.worsening) <= self.uncertainty


def judge(
    candidate: Sequence[Run],
    baseline: Sequence[Run],
    requirements: Sequence[Requirement] = (),
    *,
    rules: GateSettings = GateSettings(),  # noqa: B008 - frozen
    noise: Mapping[str, thresholds.Noise] | None = None,
    obstacle: str = "",
    damage: str = "",
) -> list[CheckResult]:
    """Return one check per metric.

    Args:
        candidate: Runs after the change.
        baseline: Runs before the change.
        requirements: What to check; without any, the default metrics against their noise floors.
        rules: Settings, of which the significance level, the fewest steps and the floors are used.
        noise: Calibrated noise by metric name; without it, the spread of the baseline's own runs if
            there are enough.
        obstacle: Reason why the sides cannot be compared at all; every comparison is then
            inconclusive.
        damage: Reason why the figures themselves cannot be trusted; limits are then inconclusive
            too.

    >>> from tracekit.diffs.samples import make_samples
    >>> step_ms = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1)
    >>> base = Run("base", make_samples({"step_ms": step_ms}))
    >>> slow = Run("slow", make_samples({"step_ms": [1.06 * ms for ms in step_ms]}))
    >>> [(c.metric, c.verdict) for c in judge([slow], [base])]
    [('step_ms', 'regressed')]
    >>> [(c.metric, c.verdict) for c in judge([base], [base])]
    [('step_ms', 'pass')]
    """
    conditions = _Conditions(rules, obstacle, damage)
    if noise:
        return _judge_together(candidate, baseline, requirements, conditions, noise)
    own_noise = None
    if len(baseline) >= MIN_RUNS_TO_CALIBRATE_BY_DEFAULT:
        own_noise = thresholds.calibrate(baseline)
    checks = _judge_together(candidate, baseline, requirements, conditions, own_noise)
    return _with_regressions_of_every_pair(checks, candidate, baseline, requirements, conditions)


def _with_regressions_of_every_pair(
    checks: Sequence[CheckResult],
    candidate: Sequence[Run],
    baseline: Sequence[Run],
    requirements: Sequence[Requirement],
    conditions: _Conditions,
) -> list[CheckResult]:
    """Return the checks, of which those are regressed that regressed in each pair of runs alone.

    More runs thereby never weaken a verdict that each of them confirms, whatever their spread is
    taken to be.
    """
    # Without a baseline the runs of the candidate are asked one by one.
    baselines = [[run] for run in baseline] or [[]]
    pairs = list(product(candidate, baselines))
    undecided = {_identity(check) for check in checks if check.verdict != "regressed"}
    if len(pairs) == 1:
        return list(checks)
    regressed: dict[tuple[str, str | None], CheckResult] = {}
    for after, before in pairs:
        if not undecided:
            break
        of_pair = _judge_together([after], before, requirements, conditions, None)
        regressed = {_identity(c): c for c in of_pair if c.verdict == "regressed"}
        undecided &= regressed.keys()
    strengthened = []
    for check in checks:
        if _identity(check) in undecided:
            pair = regressed[_identity(check)]
            reason = f"{pair.reason}, in each of {len(pairs)} pairs of runs"
            strengthened.append(
                replace(
                    check, verdict="regressed", reason=reason, floor=pair.floor, limit=pair.limit
                )
            )
        else:
            strengthened.append(check)
    return strengthened


def _identity(check: CheckResult) -> tuple[str, str | None]:
    """Return what tells the checks of one gate apart."""
    return check.metric, check.requirement


def _judge_together(
    candidate: Sequence[Run],
    baseline: Sequence[Run],
    requirements: Sequence[Requirement],
    conditions: _Conditions,
    noise: Mapping[str, thresholds.Noise] | None,
) -> list[CheckResult]:
    """Return one check per metric, from all runs of a side together."""
    rules = conditions.rules
    requested: list[tuple[Metric, Requirement | None]] = [
        (requirement.metric, requirement) for requirement in requirements
    ]
    if not requirements:
        requested += [(metric, None) for metric in default_metrics(candidate, baseline, rules)]
    checks: dict[int, CheckResult] = {}  # by position in ``requested``
    whole_step: dict[int, _Case] = {}
    parts: dict[int, _Case] = {}
    for i, (metric, required) in enumerate(requested):
        metric_noise = (noise or {}).get(metric.name)
        case = make_case(
            metric,
            required,
            baseline=baseline,
            candidate=candidate,
            rules=rules,
            noise=metric_noise,
        )
        check = _check_without_test(case, conditions)
        if check is not None:
            checks[i] = check
        elif required is None and metric.name in WHOLE_STEP_METRICS:
            whole_step[i] = case
        else:
            parts[i] = case
    # Each group is corrected for its own number of tests, so that the many labels do not make the
    # test of the whole step less sensitive. Requirements of the user are one group: none is more
    # important.
    checks |= _check_group(whole_step, rules)
    checks |= _check_group(parts, rules)
    return [checks[i] for i in range(len(requested))]


def _check_group(cases: Mapping[int, _Case], rules: GateSettings) -> dict[int, CheckResult]:
    """Return the checks of cases that are tested together, with p-values corrected for their number (Holm)."""
    # With few steps a rank test cannot give a p-value below this level: run_test then takes another.
    tests = [run_test(case, rules.alpha / len(cases)) for case in cases.values()]
    worse_ps = stats.holm([test.p_worse for test in tests])
    better_ps = stats.holm([test.p_better for test in tests])
    steps_ps = stats.holm([test.p_steps for test in tests])
    checks = {}
    for row, (i, case) in enumerate(cases.items()):
        corrected = _CorrectedPs(worse_ps[row], better_ps[row], steps_ps[row])
        checks[i] = _decide(case, tests[row], corrected, rules)
    return checks


def default_metrics(
    candidate: Sequence[Run], baseline: Sequence[Run], rules: GateSettings
) -> list[Metric]:
    """Return the metrics checked without requirements: the default families, where a change can exceed its floor."""
    every_run = (*baseline, *candidate)
    metrics = []
    for name in dict.fromkeys(chain.from_iterable(run.metric_names for run in every_run)):
        metric = resolve(name, names_in_runs=[name])
        if not metric.family.default or metric.key in metric.family.details:
            continue
        is_on_both_sides = samples_of_metric(candidate, metric) and samples_of_metric(
            baseline, metric
        )
        if name in NEEDED_ON_BOTH_SIDES and not is_on_both_sides:
            continue
        if metric.key is None or _can_exceed_floor(metric, candidate, baseline, rules):
            metrics.append(metric)
    labels = [metric for metric in metrics if metric.key not in COMPARED_LABEL_SETS]
    # A set with the values of a single label is the same metric twice: it would only weaken the
    # correction.
    label_values = {_values_of_runs(metric, every_run) for metric in labels}
    sets = [
        metric
        for metric in metrics
        if metric.key in COMPARED_LABEL_SETS
        and _values_of_runs(metric, every_run) not in label_values
    ]
    return sorted([*labels, *sets], key=lambda metric: metric.name != "step_ms")


def _values_of_runs(
    metric: Metric, runs: Sequence[Run]
) -> tuple[str, tuple[tuple[float, ...], ...]]:
    """Return the family and all samples of a metric; two metrics for which they are equal are the same."""
    return metric.family.name, tuple(run.values(metric.name) for run in runs)


def _can_exceed_floor(
    metric: Metric, candidate: Sequence[Run], baseline: Sequence[Run], rules: GateSettings
) -> bool:
    """Return whether a metric is large enough for a change of it to count."""
    before = samples_of_metric(baseline, metric)
    after = samples_of_metric(candidate, metric)
    if metric.family.unit == "ratio":
        # A share must be known on both sides, and its label must run long enough to cost the
        # floor's part of the step.
        has_room = thresholds.noise_floor(metric, 0.0, baseline, rules.floors) < 1.0
        label_ms = thresholds.label_ms_per_step(metric.key or "", baseline)
        return bool(before) and bool(after) and has_room and label_ms > 0
    level_before = _centre(metric, before) or 0.0
    level_after = _centre(metric, after) or 0.0
    floor = thresholds.noise_floor(metric, level_before, baseline, rules.floors)
    return max(level_before, level_after) > floor


def make_case(
    metric: Metric,
    requirement: Requirement | None,
    *,
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    rules: GateSettings,
    noise: thresholds.Noise | None,
) -> _Case:
    """Prepare the test of one metric: samples of both sides, noise floor, limit, and the check without its verdict."""
    before, after = _samples(metric, baseline, candidate)
    level_before = _centre(metric, before)
    level_after = _centre(metric, after)
    sign = _sign_of_worse(metric, requirement)
    # The floor is a share of a level: of the baseline's, or of the candidate's where a requirement
    # bounds that.
    if _bounds_level(requirement):
        level_floor = thresholds.noise_floor(metric, level_after or 0.0, candidate, rules.floors)
    else:
        reference = level_after if level_before is None else level_before
        level_floor = thresholds.noise_floor(metric, reference or 0.0, baseline, rules.floors)
    pooled_noise = None if noise is None else thresholds.pooled_noise(metric, noise, level_floor)
    floor = level_floor
    if pooled_noise is not None and before and after:
        floor = max(level_floor, pooled_noise.floor((len(before), len(after))))
    # Calibrated noise says how runs differ, and a bound of a level compares no two runs.
    uncertainty = 0.0
    if noise is None and not _bounds_level(requirement):
        uncertainty = thresholds.single_run_uncertainty(metric, (baseline, candidate))
    check = _unjudged_check(
        metric,
        requirement,
        level_before=level_before,
        level_after=level_after,
        floor=floor,
        limit=_limit(requirement, level_before, default=sign * floor),
        steps=Counts(_count_steps(before), _count_steps(after)),
        runs=Counts(len(before), len(after)),
        every_step=_change_of_every_step(before, after, level_before),
    )
    return _Case(
        metric=metric,
        requirement=requirement,
        sign=sign,
        check=check,
        before=_turn(before, sign),
        after=_turn(after, sign),
        floor=floor,
        noise=pooled_noise,
        uncertainty=uncertainty,
    )


def _unjudged_check(
    metric: Metric,
    requirement: Requirement | None,
    *,
    level_before: float | None,
    level_after: float | None,
    floor: float,
    limit: float,
    steps: Counts,
    runs: Counts,
    every_step: tuple[float, float] | None,
) -> CheckResult:
    """Return a check with the figures that are known before the test; its verdict is a pass until it is judged."""
    change = None
    change_relative = None
    if level_before is not None and level_after is not None:
        change = level_after - level_before
        change_relative = change / level_before if level_before else None
    return CheckResult(
        metric=metric.name,
        unit=metric.family.unit,
        better=metric.family.better,
        verdict="pass",
        reason="",
        before=level_before,
        after=level_after,
        change=change,
        change_relative=change_relative,
        interval=None,
        every_step=every_step,
        requirement=None if requirement is None else requirement.text,
        floor=floor,
        p=None,
        method=None,
        steps=steps,
        runs=runs,
        waiver=None,
        limit=limit,
        limit_on="level" if _bounds_level(requirement) else "change",
    )


def is_far_beyond_limit(check: CheckResult, requirement: Requirement) -> bool:
    """Return whether a change breaks a limit that was given by more than twice.

    >>> from tracekit.diffs.gate_config import parse_requirement
    >>> from tracekit.diffs.samples import make_samples
    >>> base, slow = (Run("", make_samples({"step_ms": [ms]})) for ms in (10.0, 10.7))
    >>> limit = parse_requirement("step_ms < +3%")
    >>> check, = judge([slow], [base], [limit])
    >>> check.verdict, is_far_beyond_limit(check, limit)
    ('inconclusive', True)
    """
    if requirement.kind == "limit" or check.change is None or check.limit is None:
        return False
    sign = _sign_of_worse(requirement.metric, requirement)
    return _is_far_beyond(sign * check.change, sign * check.limit, floor=check.floor or 0.0)


def _is_far_beyond(worsening: float, limit: float, *, floor: float) -> bool:
    """Return whether a worsening is more than twice the limit; of a limit of 0, more than the noise floor.

    A demanded improvement has no such multiple.
    """
    return limit >= 0 and worsening > (FAR_BEYOND_LIMIT * limit or floor)


def compare_free_steps(
    before: FreeStepOfSide, after: FreeStepOfSide, *, is_comparable: bool
) -> CheckResult:
    """Return the check of steps without the profiler, of runs that were recorded with different options.

    A difference inside the ranges of both is inconclusive.

    >>> fast, slow = FreeStepOfSide(15.0, 14.4, 16.1), FreeStepOfSide(18.0, 17.0, 19.0)
    >>> compare_free_steps(fast, slow, is_comparable=True).verdict
    'regressed'
    >>> compare_free_steps(fast, fast, is_comparable=True).verdict
    'inconclusive'
    """
    verdict: Verdict = "inconclusive"
    reason = "the difference lies inside the ranges of the steps without the profiler"
    if not is_comparable:
        reason = "the runs differ in more than the options they were recorded with"
    elif after.least_ms > before.most_ms:
        verdict = "regressed"
        reason = "the step without the profiler is longer, beyond both ranges"
    elif after.most_ms < before.least_ms:
        verdict = "pass"
        reason = "the step without the profiler is shorter, beyond both ranges"
    change_ms = after.ms - before.ms
    return CheckResult(
        metric="free_step_ms",
        unit="ms",
        better="down",
        verdict=verdict,
        reason=reason,
        before=before.ms,
        after=after.ms,
        change=change_ms,
        change_relative=change_ms / before.ms if before.ms else None,
        interval=[after.least_ms - before.most_ms, after.most_ms - before.least_ms],
        every_step=None,
        requirement=None,
        floor=None,
        p=None,
        method=None,
        steps=Counts(0, 0),
        runs=Counts(1, 1),
        waiver=None,
        limit=None,
        limit_on="change",
    )


def _centre(metric: Metric, samples: Sequence[Sequence[float]]) -> float | None:
    """Return the level of a metric on one side, as the mean over its runs; None without samples."""
    return stats.centre(samples, metric.family.level) if samples else None


def _bounds_level(requirement: Requirement | None) -> bool:
    """Return whether a requirement bounds the candidate's own level, not its change from the baseline."""
    return requirement is not None and requirement.kind == "limit"


def _count_steps(samples: Sequence[Sequence[float]]) -> int:
    """Return the number of steps of all runs of one side."""
    return sum(len(steps_of_run) for steps_of_run in samples)


def _sign_of_worse(metric: Metric, requirement: Requirement | None) -> int:
    """Return +1 if an increase of the metric is worse, else -1."""
    if requirement is not None:
        return -1 if requirement.worse == "down" else 1
    return -1 if metric.family.better == "up" else 1


def _limit(requirement: Requirement | None, level_before: float | None, *, default: float) -> float:
    """Return the limit in the unit of the metric; *default* without a requirement."""
    if requirement is None:
        return default
    if requirement.kind == "relative":
        return requirement.limit * (level_before or 0.0)
    return requirement.limit


def _change_of_every_step(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], level_before: float | None
) -> tuple[float, float] | None:
    """Return by how much steps differ from the level before, if all after lie on one side of all before.

    From ``MIN_STEPS_TO_TELL_APART`` steps on: two may do so by chance in one of three cases.

    >>> _change_of_every_step([[10.0, 10.1, 9.9]], [[13.0, 12.8, 13.6]], 10.0)
    (2.8000000000000007, 3.5999999999999996)
    """
    old = list(chain.from_iterable(before))
    new = list(chain.from_iterable(after))
    if level_before is None or min(len(old), len(new)) < MIN_STEPS_TO_TELL_APART:
        return None
    if min(new) > max(old) or max(new) < min(old):
        return min(new) - level_before, max(new) - level_before
    return None


def _turn(runs: Sequence[Sequence[float]], sign: int) -> list[list[float]]:
    """Return the samples turned so that larger is worse, whatever the metric."""
    turned = []
    for run in runs:
        turned.append([sign * value for value in run])
    return turned


def _samples(
    metric: Metric, baseline: Sequence[Run], candidate: Sequence[Run]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the samples before and after, run by run; runs without the metric are left out."""
    before = [list(values) for values in samples_of_metric(baseline, metric)]
    after = [list(values) for values in samples_of_metric(candidate, metric)]
    # A label that one side never ran took no time there.
    if metric.family.unit == "ms" and not metric.family.once_a_run:
        before = before or (_zeros(baseline) if after else [])
        after = after or (_zeros(candidate) if before else [])
    return before, after


def _zeros(runs: Sequence[Run]) -> list[list[float]]:
    """Return samples of 0 for the steps of the first run."""
    return [[0.0] * runs[0].steps] if runs and runs[0].steps else []


def _check_without_test(case: _Case, conditions: _Conditions) -> CheckResult | None:
    """Return the check if it needs no comparison of samples: a limit on the candidate alone, or nothing to compare."""
    rules = conditions.rules
    if conditions.damage or case.check.after is None:
        return case.undecided(conditions.damage or "the candidate has no such metric")
    if case.requirement and case.requirement.kind == "limit":
        return _check_limit(case, case.requirement, case.check.after, rules)
    if conditions.obstacle:
        return case.undecided(conditions.obstacle)
    if case.check.before is None:
        return case.undecided("the baseline has no such metric")
    if case.metric.family.once_a_run:
        unit = "run"
        least = MIN_RUNS_OF_RUN_METRIC
    else:
        unit = "step"
        least = rules.min_steps
    steps = case.check.steps
    if min(steps.before, steps.after) < least:
        return case.undecided(
            f"{counted(steps.before, unit)} before, {steps.after} after; at least {least} are needed"
        )
    return None


def _check_limit(
    case: _Case, requirement: Requirement, value: float, rules: GateSettings
) -> CheckResult:
    """Return the verdict on the candidate's own steps, with the level *value*, against a limit."""
    holds = requirement.holds(value)
    breaks_in_every_step = not any(
        requirement.holds(case.sign * step) for step in chain.from_iterable(case.after)
    )
    steps = case.check.steps.after
    if steps < rules.min_steps:
        # Too few steps to know their noise: only a distance larger than the floor decides.
        is_once_a_run = case.metric.family.once_a_run
        few = "one value per run" if is_once_a_run else f"only {counted(steps, 'step')}"
        # A count without noise is what it is.
        is_exact = case.floor == 0 and case.metric.family.unit == "count"
        if abs(value - requirement.limit) <= case.floor and not is_exact:
            return case.undecided(f"{few}, and the limit is within the noise floor")
        if not holds and not breaks_in_every_step:
            return case.undecided(f"{few}, of which some keep the limit")
        verdict: Verdict = "pass" if holds else "regressed"
        return replace(
            case.check, verdict=verdict, reason=f"{few}, but beyond the noise floor", method="floor"
        )
    estimate = stats.bootstrap(case.after, level=case.metric.family.level)
    p = estimate.p_not_above(case.sign * requirement.limit)
    check = replace(
        case.check, interval=case.interval(estimate, 1 - rules.alpha), method="bootstrap", p=p
    )
    if holds:
        return check
    if p <= rules.alpha or breaks_in_every_step:
        return replace(
            check,
            verdict="regressed",
            reason=f"the limit is {requirement.op} {requirement.limit:g}",
        )
    return replace(
        check, verdict="inconclusive", reason="past the limit, but the limit is within its noise"
    )


class _StepTest(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing the steps of both sides, without the spread between runs."""

    p_worse: float
    p_better: float
    method: str


class _Test(_StepTest, frozen=True, kw_only=True):
    """Result of the statistical test of one metric, before correction for the number of metrics."""

    interval: list[float]  # confidence interval of the change
    p_steps: float  # ``p_worse`` without the spread between runs


class _CorrectedPs(msgspec.Struct, frozen=True):
    """P-values of one metric, corrected for the number of metrics."""

    worse: float
    better: float
    steps: float  # of a change for the worse, without the spread between runs


def run_test(case: _Case, alpha: float) -> _Test:
    """Test whether a metric got worse or better.

    *alpha* is the significance level of this one test.

    Steps are compared with a rank test, or with a bootstrap for their mean and where there are too
    few steps for the rank test to reach *alpha*. Where there are several runs or calibrated noise,
    the difference must also be significant given the spread between runs, because the steps of one
    run resemble each other.
    """
    level = case.metric.family.level
    estimate = stats.bootstrap(case.after, case.before, level=level)
    test = _test_steps(case, estimate, alpha)
    if case.noise is None and len(case.after) + len(case.before) == 2:
        interval = case.interval(estimate, 1 - 2 * alpha)
        return _Test(**asdict(test), interval=interval, p_steps=test.p_worse)
    spread = _estimate_between_runs(case)
    p_worse = BETWEEN_RUNS_P_FACTOR * spread.p_not_above(case.tested_change)
    p_better = BETWEEN_RUNS_P_FACTOR * _reversed(spread).p_not_above()
    less_certain = max(estimate, spread, key=lambda candidate: candidate.error)
    return _Test(
        p_worse=max(test.p_worse, min(1.0, p_worse)),
        p_better=max(test.p_better, min(1.0, p_better)),
        interval=case.interval(less_certain, 1 - 2 * alpha),
        method=f"{test.method}, over runs",
        p_steps=test.p_worse,
    )


def _test_steps(case: _Case, estimate: stats.Estimate, alpha: float) -> _StepTest:
    """Compare the steps of both sides; *estimate* is the bootstrap of their change."""
    after_steps = list(chain.from_iterable(case.after))
    before_steps = list(chain.from_iterable(case.before))
    correlation = stats.correlation([*case.after, *case.before])
    # A rank test asks whether most steps are slower: a mean can grow although they are not.
    ranks_decide = case.metric.name != "mean_step_ms"
    if ranks_decide and stats.smallest_p(len(after_steps), len(before_steps)) <= alpha:
        shifted = [value + case.tested_change for value in before_steps]
        p_worse = stats.rank_test(after_steps, shifted)
        p_better = stats.rank_test(before_steps, after_steps)
        method = "rank test"
    else:
        p_worse = estimate.p_not_above(case.tested_change)
        p_better = _reversed(estimate).p_not_above()
        method = "bootstrap"
    # Neighbouring steps have something in common, which also a bootstrap of blocks of a few steps
    # keeps only in part.
    return _StepTest(
        p_worse=stats.weaken(p_worse, correlation),
        p_better=stats.weaken(p_better, correlation),
        method=method,
    )


def _estimate_between_runs(case: _Case) -> stats.Estimate:
    """Estimate the change from the spread between runs, with calibrated or assumed noise."""
    if case.noise is None:
        deviation = thresholds.prior_deviation(case.floor, case.uncertainty)
        df = thresholds.PRIOR_DEGREES_OF_FREEDOM
    else:
        deviation = case.noise.deviation
        df = float(case.noise.df)
    return stats.between_runs(
        case.after,
        case.before,
        prior=deviation,
        prior_df=df,
        calibrated=case.noise is not None,
        level=case.metric.family.level,
    )


def _reversed(estimate: stats.Estimate) -> stats.Estimate:
    """Return the estimate of the same change with before and after exchanged."""
    return replace(estimate, value=-estimate.value)


def _decide(case: _Case, test: _Test, corrected: _CorrectedPs, rules: GateSettings) -> CheckResult:
    """Return the verdict from the test and its corrected p-values."""
    check = replace(case.check, interval=test.interval, p=corrected.worse, method=test.method)
    if case.requirement is None:
        exceeded = case.worsening > case.limit
    else:
        exceeded = not case.requirement.holds(_required_change(check, case.requirement))
    if exceeded:
        verdict, reason = _decide_exceeded(case, test, corrected, rules)
        return replace(check, verdict=verdict, reason=reason)
    if -case.worsening > case.floor and corrected.better <= rules.alpha and not case.may_be_chance:
        return replace(check, verdict="improved")
    is_worse = min(case.sign * end for end in test.interval) > 0
    return replace(check, reason="worse, within the limit") if is_worse else check


def _decide_exceeded(
    case: _Case, test: _Test, corrected: _CorrectedPs, rules: GateSettings
) -> tuple[Verdict, str]:
    """Return the verdict on a change beyond its limit, and the reason: regressed, unless it may be noise."""
    runs = (len(case.before), len(case.after))
    is_limit_within_noise = (
        case.requirement is not None
        and case.noise is not None
        and abs(case.worsening) <= case.noise.floor(runs)
    )
    is_significant = corrected.worse <= rules.alpha
    is_far_beyond = case.worsening > FAR_BEYOND_LIMIT * case.floor
    # Metrics that are means see a few slow steps, which most steps do not show.
    is_about_most_steps = case.metric.family.level != "mean"
    is_default_limit_just_passed = (
        case.requirement is None and not is_far_beyond and is_about_most_steps
    )
    broken = _regression_reason(case)
    cases: list[tuple[bool, Verdict, str]] = [  # the first that holds decides
        (
            _breaks_limit_throughout(case, rules),
            "regressed",
            f"{broken}, in every step by more than twice",
        ),
        (
            is_limit_within_noise,
            "inconclusive",
            "past the limit, but within the calibrated noise",
        ),
        (is_significant and case.may_be_chance, "inconclusive", _SINGLE_RUN_REASON),
        (is_significant, "regressed", broken),
        (
            is_default_limit_just_passed and corrected.steps > rules.alpha,
            "pass",
            "past the limit, by no more than equal steps differ",
        ),
        (
            is_far_beyond and test.p_worse <= 2 * rules.alpha,
            "inconclusive",
            "looks worse, but may be noise: record more",
        ),
    ]
    for holds, verdict, reason in cases:
        if holds:
            return verdict, reason
    return "inconclusive", "past the limit, but it may be noise: record more"


def _breaks_limit_throughout(case: _Case, rules: GateSettings) -> bool:
    """Return whether every step of every run breaks a limit that was given, by more than twice all in all.

    What runs of the same code may differ by is no excuse then: the limit says what is accepted.
    """
    if case.requirement is None:
        return False
    if not _is_far_beyond(case.worsening, case.limit, floor=case.floor):
        return False
    return all(
        _steps_exceed(after, before, case.limit, rules.alpha)
        for after, before in product(case.after, case.before)
    )


def _steps_exceed(
    after: Sequence[float], before: Sequence[float], limit: float, alpha: float
) -> bool:
    """Return whether the steps of one run are larger by more than *limit* than those of another.

    Either each step is, in order, or so many that a rank test agrees.
    """
    if all(new - old > limit for new, old in zip(after, before, strict=False)):
        return True
    p = stats.rank_test(after, [value + limit for value in before])
    return stats.weaken(p, stats.correlation([after, before])) <= alpha


def _required_change(check: CheckResult, requirement: Requirement) -> float:
    """Return the change in the unit of the requirement: the metric's, or a share of the baseline."""
    change = check.change or 0.0
    if requirement.kind != "relative":
        return change
    if check.before:
        return change / check.before
    return math.copysign(math.inf, change) if change else 0.0


def _regression_reason(case: _Case) -> str:
    """Return why a change counts as a regression."""
    unit = case.metric.family.unit
    before = case.check.before
    if case.requirement:
        return f"breaks {case.requirement.text}"
    if unit == "ratio":
        return f"worse by more than {100 * case.floor:.1f} points"
    if before:
        return f"worse by more than {100 / before * case.floor:.1f} %"
    return f"worse by more than {case.floor:.3g} {unit}"
