"""The gate: a candidate is compared with a baseline and with limits, and gets one verdict."""

from collections.abc import Sequence
from datetime import date
from os import PathLike
from typing import Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tracekit._util.arguments import checked_words
from tracekit._version import __version__
from tracekit.diffs.changes import largest_changes, side_summary
from tracekit.diffs.comparability import (
    are_same_recording,
    check_formats,
    differing_free_steps,
    find_damage,
    find_obstacles,
)
from tracekit.diffs.explanation import explain_change
from tracekit.diffs.finding_changes import compare_findings
from tracekit.diffs.gate_config import Config, apply_waivers, check_syntax, parse_requirement
from tracekit.diffs.load_runs import Comparable, Side, select_role, side_of
from tracekit.diffs.metrics import Requirement
from tracekit.diffs.runs import Run
from tracekit.diffs.verdict import compare_free_steps, is_far_beyond_limit, judge
from tracekit.documents.coding import HasDocument
from tracekit.documents.gate import GATE_FORMAT, CheckResult, GateDocument, Settings
from tracekit.errors import InputError, OptionError
from tracekit.report.ci.write import write_gate
from tracekit.report.notebook import NOTEBOOK_WIDTH, screen_html
from tracekit.report.terminal.changes import render_gate

EXIT_CODES = {"pass": 0, "regressed": 1, "inconclusive": 3}
Verdict = Literal["pass", "regressed", "inconclusive"]


class GateResult(HasDocument, msgspec.Struct, frozen=True):
    """Verdict of one gate, with everything it rests on.

    >>> from tracekit.diffs.samples import make_samples
    >>> steps = {"step_ms": (20.0, 20.1, 19.9, 20.0, 20.2, 19.8)}
    >>> slow = Side((Run("slow", make_samples(steps)),), {})
    >>> result = gate(slow, require=["step_ms < 12"])
    >>> result.verdict, result.exit_code
    ('regressed', 1)
    """

    verdict: Verdict
    checks: tuple[CheckResult, ...]
    obstacles: tuple[str, ...]
    candidate: Side
    baseline: Side
    config: Config
    today: date

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 pass, 1 regressed, 3 inconclusive (unless the settings say otherwise)."""
        if self.verdict == "inconclusive" and self.config.inconclusive:
            return 0 if self.config.inconclusive == "pass" else 1
        return EXIT_CODES[self.verdict]

    @property
    def far_beyond_limits(self) -> tuple[CheckResult, ...]:
        """Inconclusive checks of comparable runs whose change breaks a limit that was given by more than twice."""
        if self.obstacles:
            return ()
        checks = []
        for check in self.checks:
            if check.verdict != "inconclusive" or check.waiver or check.requirement is None:
                continue
            requirement = parse_requirement(check.requirement, names_in_runs=[check.metric])
            if is_far_beyond_limit(check, requirement):
                checks.append(check)
        return tuple(checks)

    def to_document(self) -> GateDocument:
        """Return the JSON document (``format: tracekit.gate/1``)."""
        config = self.config
        return GateDocument(
            tracekit=__version__,
            format=GATE_FORMAT,
            name=config.name or UNSET,
            verdict=self.verdict,
            exit_code=self.exit_code,
            obstacles=list(self.obstacles),
            same_recording=are_same_recording(self.candidate.runs, self.baseline.runs),
            checks=list(self.checks),
            waivers=[waiver.status_on(self.today) for waiver in config.waivers],
            before=side_summary(self.baseline, calibrated=bool(self.baseline.noise)),
            after=side_summary(self.candidate, calibrated=bool(self.candidate.noise)),
            story=explain_change(self.baseline.runs, self.candidate.runs),
            findings=compare_findings(self.baseline, self.candidate),
            moved=largest_changes(self.baseline.runs, self.candidate.runs),
            settings=Settings(
                config.alpha, config.min_steps, config.inconclusive, list(config.allow), config.path
            ),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the result to *path* in the format of its extension: .json, .xml (JUnit), .md or .txt (metrics)."""
        write_gate(self.to_document(), path)

    def __repr__(self) -> str:
        return f"<GateResult: {self.verdict}, {len(self.checks)} checked>"

    def _repr_html_(self) -> str:
        return screen_html(render_gate(self.to_document(), width=NOTEBOOK_WIDTH))


def gate(
    candidate: Comparable,
    baseline: Comparable | None = None,
    *,
    require: Sequence[str] = (),
    config: Config | None = None,
    today: date | None = None,
    role: str | None = None,
) -> GateResult:
    """Return the verdict on *candidate* against *baseline*.

    Args:
        candidate: The path of a trace, a folder, a store, a saved analysis or a baseline file; an
            ``Analysis``; or several runs in a list.
        baseline: The same for the baseline. Limits such as ``bubble_fraction < 0.12`` need none.
        require: Requirements; they replace those of *config*.
        config: Settings of the project, as ``load_config`` reads them.
        today: Date on which waivers are evaluated.
        role: The role to judge alone, where ranks have several processes; by default each that both
            sides have, the main one by its plain metrics and the others by ``ROLE/METRIC``.

    >>> from tracekit.diffs.samples import make_samples
    >>> steps = {"step_ms": (10.0, 10.1, 9.9, 10.0, 10.2, 9.8)}
    >>> base = Side((Run("a", make_samples(steps)),), {})
    >>> gate(base, base, require=["step_ms < 12"]).verdict
    'pass'
    """
    require = checked_words(require, "require")
    config = config or Config()
    for text in require or config.require:
        check_syntax(text)
    today = today or date.today()
    candidate_side = side_of(candidate, what="candidate")
    baseline_side = Side((), {}) if baseline is None else side_of(baseline, what="baseline")
    # What reading a run of several roles noticed is kept with its main role. It counts for every
    # role: which of them the damage is in cannot be seen from it.
    run_damage = find_damage((*baseline_side.runs, *candidate_side.runs), allow=config.allow)
    if role is not None:
        baseline_side, candidate_side = select_role(baseline_side, candidate_side, role)
    check_formats(candidate_side.runs, baseline_side.runs)
    requirements = _parse_requirements(
        require or config.require, (*candidate_side.runs, *baseline_side.runs)
    )
    _check_ranks(requirements, candidate_side)
    if not baseline_side.runs and not _are_limits(requirements):
        raise InputError(
            "there is no baseline to compare with",
            hint="give --baseline, or only limits without a sign",
        )
    checks, obstacles = _judge_sides(
        candidate_side, baseline_side, requirements, run_damage, config
    )
    # Limits are the main role's; every other role must not get worse than its baseline. A role that
    # one side lacks was not recorded there: there is nothing to compare it with.
    other_roles = candidate_side.other_roles if role is None else ()
    for name in other_roles:
        if name not in baseline_side.other_roles:
            continue
        role_checks, role_obstacles = _judge_sides(
            candidate_side.of_role(name), baseline_side.of_role(name), [], run_damage, config
        )
        obstacles += [f"{name}: {obstacle}" for obstacle in role_obstacles]
        checks += [replace(check, metric=f"{name}/{check.metric}") for check in role_checks]
    checks = apply_waivers(checks, config.waivers, today)
    return GateResult(
        verdict=_overall_verdict(checks),
        checks=tuple(checks),
        obstacles=tuple(obstacles),
        candidate=candidate_side,
        baseline=baseline_side,
        config=config,
        today=today,
    )


def _parse_requirements(texts: Sequence[str], runs: Sequence[Run]) -> list[Requirement]:
    """Return the requirements; they may be on metrics that occur in these runs alone."""
    metric_names: set[str] = set()
    for run in runs:
        metric_names.update(run.metric_names)
    return [parse_requirement(text, names_in_runs=sorted(metric_names)) for text in texts]


def _are_limits(requirements: Sequence[Requirement]) -> bool:
    """Return whether there are requirements, all of them on the candidate alone."""
    kinds = {requirement.kind for requirement in requirements}
    return kinds == {"limit"}


def _judge_sides(
    candidate: Side,
    baseline: Side,
    requirements: Sequence[Requirement],
    run_damage: Sequence[str],
    config: Config,
) -> tuple[list[CheckResult], list[str]]:
    """Return the checks of one role, and why its sides cannot be compared.

    Args:
        candidate: Runs of the role to judge.
        baseline: Runs of the role to compare with; none if there are only limits.
        requirements: Requirements; the default metrics if there are none.
        run_damage: Damage of the runs as a whole; every check is then inconclusive.
        config: Settings.
    """
    obstacles = []
    if baseline.runs:
        obstacles = find_obstacles(candidate.runs, baseline.runs, allow=config.allow)
    role_damage = find_damage((*baseline.runs, *candidate.runs), allow=config.allow)
    obstacle = "not comparable: " + "; ".join(obstacles) if obstacles else ""
    damage = "; ".join(dict.fromkeys([*run_damage, *role_damage]))
    checks = judge(
        candidate.runs,
        baseline.runs,
        requirements,
        rules=config,
        noise=baseline.noise,
        obstacle=obstacle,
        damage=damage,
    )
    free_steps = None
    if baseline.runs and "recording" not in config.allow:
        free_steps = differing_free_steps(candidate.runs, baseline.runs)
    if free_steps is not None and not damage:
        # Recorded times cannot be compared: without requirements the free steps alone decide.
        is_sole_obstacle = len(obstacles) == 1
        if is_sole_obstacle and not requirements:
            checks = []
        checks.append(compare_free_steps(*free_steps, is_comparable=is_sole_obstacle))
    return checks, obstacles


def _check_ranks(requirements: Sequence[Requirement], candidate: Side) -> None:
    """Raise OptionError for a rank that no run of the candidate has: its requirement could never be decided."""
    ranks: set[int] = set()
    for run in candidate.runs:
        ranks.update(rank.rank for rank in run.ranks)
    for requirement in requirements:
        metric = requirement.metric
        if ranks and metric.rank is not None and metric.rank not in ranks:
            problem = f"{metric.name}: the candidate has no rank {metric.rank}"
            raise OptionError(problem, hint=f"it has ranks {min(ranks)} to {max(ranks)}")


def _overall_verdict(checks: Sequence[CheckResult]) -> Verdict:
    """Return the worst verdict of the checks without a waiver.

    Without any check it is inconclusive.
    """
    verdicts = {check.verdict for check in checks if check.waiver is None}
    if "regressed" in verdicts:
        return "regressed"
    return "inconclusive" if "inconclusive" in verdicts or not checks else "pass"
