"""Changes of findings between two runs, and predicted savings against the measured change of the step.

Findings of both sides are matched by what they are about: code, label or part of a schedule's gap,
and ranks; what is advised about it may change. Costs are means over the runs of a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import polars as pl

from tracekit._util.values import first_that_holds
from tracekit.diffs.comparability import (
    compare_work,
    find_obstacles,
    free_step,
    is_equal_work,
)
from tracekit.diffs.load_runs import Side
from tracekit.diffs.runs import Run, centre_of_runs
from tracekit.diffs.verdict import judge
from tracekit.documents.diff import FindingChange, SavingCheck
from tracekit.documents.findings import Finding
from tracekit.documents.gate import GateSettings
from tracekit.errors import OptionError
from tracekit.findings.families import kind_of
from tracekit.graph.change import parse_change

MIN_FINDING_SHARE_TO_COMPARE = 0.01
"""Cost as a share of the step time below which a finding is taken as absent."""
MIN_RELATIVE_CHANGE = 0.2
"""Smallest change of a finding's cost, as a share of the larger of both costs: waits of equal runs
differ by less than this most of the time."""
MIN_STEPS_TO_MEASURE = 3
"""Fewest steps on each side from which the noise of a saving is known."""
DIFFERENCES_OF_A_CHANGE = ("schedule", "shapes")
"""Aspects in which the sides may differ because what a finding advised was done."""

Kind = Literal["new", "worse", "gone", "better"]
Outcome = Literal["as_predicted", "less", "more", "opposite", "undecided", "not_comparable"]
_CHANGES_IN_ORDER: tuple[Kind, ...] = ("new", "worse", "gone", "better")
Identity = tuple[str, str, tuple[int, ...]]
"""What a finding is about: code, label or part of the gap, ranks."""


class FindingTotal(msgspec.Struct):
    """Findings of one identity on one side: figures per step, means over its runs."""

    example: Finding
    """The one with the largest cost, whose sentence is shown."""
    cost_ns: float = 0.0
    cost_bytes: float | None = None
    saves_ns: float | None = None
    """None if no saving was predicted for one of them."""
    least_saving_ns: float = 0.0
    largest_saving_ns: float = 0.0


class StepChange(msgspec.Struct, frozen=True):
    """Change of the step time, with its noise."""

    before_ns: int
    after_ns: int
    range_ns: tuple[int, int] | None
    """Range in which the saving (before minus after) likely lies; None if there are too few
    steps."""
    direction_of_every_step: int = 0
    """1 if every step is faster, beyond the noise floor, -1 if every step is slower, else 0."""

    @property
    def direction(self) -> int:
        """1 if the step became faster, -1 if slower, 0 if neither beyond its noise."""
        if self.range_ns is None:
            return self.direction_of_every_step
        low, high = self.range_ns
        return (low > 0) - (high < 0) or self.direction_of_every_step


def compare_findings(before: Side, after: Side) -> list[FindingChange] | None:
    """Return the findings that came, went or changed in cost.

    None if a side has no record of its findings, or no step time.
    """
    old = _findings_of_side(before.runs)
    new = _findings_of_side(after.runs)
    typical_step = _step_change("step_ms", before, after)
    mean_step = _step_change("mean_step_ms", before, after) or typical_step
    if old is None or new is None or typical_step is None or mean_step is None:
        return None
    changes = []
    for identity in {**old, **new}:
        of_sides = [side[identity] for side in (old, new) if identity in side]
        of_single_steps = kind_of(of_sides[0].example).of_single_steps
        step = mean_step if of_single_steps else typical_step
        change = change_of_finding(old.get(identity), new.get(identity), step)
        if change is not None:
            changes.append(change)
    return sorted(changes, key=_order)


def _order(change: FindingChange) -> tuple[int, float, int]:
    """Return the key by which changes are ordered: by kind, then the largest change of cost first."""
    change_ns = abs(change.cost_after_ns - change.cost_before_ns)
    change_bytes = abs((change.cost_after_bytes or 0) - (change.cost_before_bytes or 0))
    return _CHANGES_IN_ORDER.index(change.kind), -change_ns, -change_bytes


def _identity(finding: Finding) -> Identity:
    evidence = finding.evidence
    about = evidence.get("label") or evidence.get("gap_part") or ""
    ranks = () if kind_of(finding).of_single_steps else tuple(finding.ranks)
    return finding.code, str(about), ranks


def _findings_of_side(runs: Sequence[Run]) -> dict[Identity, FindingTotal] | None:
    """Return the findings of a side by what they are about; None if no run has a record of them."""
    recorded = [run.findings for run in runs if run.findings is not None]
    if not recorded:
        return None
    totals: dict[Identity, FindingTotal] = {}
    for findings in recorded:
        for finding in findings:
            if not kind_of(finding).is_about_recording:
                _add_finding(totals, finding, weight=1 / len(recorded))
    return totals


def _add_finding(totals: dict[Identity, FindingTotal], finding: Finding, *, weight: float) -> None:
    """Add a finding of one run to the totals of its side."""
    identity = _identity(finding)
    total = totals.get(identity)
    if total is None:
        total = totals[identity] = FindingTotal(example=finding, saves_ns=0.0)
    elif finding.cost_ns > total.example.cost_ns:
        total.example = finding
    total.cost_ns += weight * finding.cost_ns
    if finding.cost_bytes is not None:
        total.cost_bytes = (total.cost_bytes or 0.0) + weight * finding.cost_bytes
    if finding.saves_ns is None or total.saves_ns is None:
        total.saves_ns = None
        return
    least, largest = finding.saves_range_ns or (finding.saves_ns, finding.saves_ns)
    total.saves_ns += weight * finding.saves_ns
    total.least_saving_ns += weight * least
    total.largest_saving_ns += weight * largest


def change_of_finding(
    old: FindingTotal | None, new: FindingTotal | None, step: StepChange
) -> FindingChange | None:
    """Return how a finding changed; None if it did not, or is too small on both sides."""
    kind = kind_of_change(old, new, step)
    if kind is None:
        return None
    shown = old if kind == "gone" else new
    assert shown is not None  # a finding that is not gone is there after
    saving = None
    saving_range = None
    if kind in ("gone", "better") and old is not None:
        saving, saving_range = predicted_saving(old, new if kind == "better" else None)
    old_cost_ns = old.cost_ns if old else 0.0
    new_cost_ns = new.cost_ns if new else 0.0
    is_about_memory = shown.cost_bytes is not None
    agreeing_direction = -1 if kind in ("new", "worse") else 1
    return FindingChange(
        code=shown.example.code,
        case=shown.example.case,
        kind=kind,
        ranks=list(shown.example.ranks),
        cost_before_ns=round(old_cost_ns),
        cost_after_ns=round(new_cost_ns),
        share_before=old_cost_ns / step.before_ns,
        share_after=new_cost_ns / step.after_ns,
        cost_before_bytes=_rounded(old.cost_bytes if old else None),
        cost_after_bytes=_rounded(new.cost_bytes if new else None),
        step_agrees=is_about_memory or step.direction == agreeing_direction,
        text=shown.example.text,
        text_before=old.example.text if old is not None and kind in ("worse", "better") else "",
        advice="" if kind == "gone" else shown.example.advice,
        predicted_saving_ns=saving,
        predicted_range_ns=saving_range,
    )


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def kind_of_change(
    old: FindingTotal | None, new: FindingTotal | None, step: StepChange
) -> Kind | None:
    """Return how a finding changed; None if its cost changed too little."""
    old_bytes = (old and old.cost_bytes) or 0.0
    new_bytes = (new and new.cost_bytes) or 0.0
    old_ns = old.cost_ns if old else 0.0
    new_ns = new.cost_ns if new else 0.0
    if old_bytes or new_bytes:
        change = new_bytes - old_bytes
        is_large = abs(change) >= MIN_RELATIVE_CHANGE * max(old_bytes, new_bytes)
        was_present = old_bytes > 0
        is_present = new_bytes > 0
    else:
        change = new_ns - old_ns
        least_ns = max(
            MIN_FINDING_SHARE_TO_COMPARE * step.before_ns, MIN_RELATIVE_CHANGE * max(old_ns, new_ns)
        )
        is_large = abs(change) >= least_ns
        was_present = old_ns >= MIN_FINDING_SHARE_TO_COMPARE * step.before_ns
        is_present = new_ns >= MIN_FINDING_SHARE_TO_COMPARE * step.after_ns
    cases: list[tuple[bool, Kind | None]] = [  # the first that holds decides
        (not is_large, None),
        (not was_present and not is_present, None),  # too small a share of both steps
        (is_present and not was_present, "new"),
        (was_present and not is_present, "gone"),
        (change > 0, "worse"),
        (True, "better"),
    ]
    return first_that_holds(cases)


def predicted_saving(
    old: FindingTotal, new: FindingTotal | None
) -> tuple[int | None, tuple[int, int] | None]:
    """Return the saving predicted before, less what is still predicted after, and its range.

    None where a side has no prediction, or where as much is still predicted as before.
    """
    if old.saves_ns is None or (new is not None and new.saves_ns is None):
        return None, None
    still_ns = 0.0 if new is None or new.saves_ns is None else new.saves_ns
    saving_ns = round(old.saves_ns - still_ns)
    if saving_ns <= 0:
        return None, None
    least = max(0, round(old.least_saving_ns - still_ns))
    largest = max(saving_ns, round(old.largest_saving_ns - still_ns))
    return saving_ns, (min(least, saving_ns), largest)


class _PredictedSaving(msgspec.Struct, frozen=True):
    """What was predicted for a change, before it was made."""

    codes: list[str]  # findings that advised it
    saving_ns: int
    range_ns: tuple[int, int]


def check_savings(
    change: str, changes: Sequence[FindingChange], before: Side, after: Side
) -> SavingCheck | None:
    """Return predicted against measured saving of a change; None if a side has no step time.

    Args:
        change: The change that was made, as ``--change`` names it.
        changes: Findings that changed.
        before: Side on which the saving was predicted.
        after: Side on which it is measured.
    """
    predicted = _prediction_of(change, before)
    step = _free_step_change(before, after)
    is_free = step is not None
    if step is None:
        step = _step_change("step_ms", before, after)
    if step is None:
        return None
    added_ns = 0
    for row in changes:
        if row.kind in ("new", "worse"):
            added_ns += row.cost_after_ns - row.cost_before_ns
    allowed = (*DIFFERENCES_OF_A_CHANGE, "recording") if is_free else DIFFERENCES_OF_A_CHANGE
    obstacles = find_obstacles(after.runs, before.runs, allow=allowed)
    is_comparable = not obstacles and is_equal_work(compare_work(before.runs, after.runs))
    return SavingCheck(
        change=change,
        codes=predicted.codes,
        step="free" if is_free else "typical",
        step_before_ns=step.before_ns,
        step_after_ns=step.after_ns,
        predicted_saving_ns=predicted.saving_ns,
        predicted_range_ns=predicted.range_ns,
        measured_saving_ns=step.before_ns - step.after_ns,
        measured_range_ns=step.range_ns,
        added_cost_ns=added_ns,
        outcome=_outcome(predicted.range_ns, step) if is_comparable else "not_comparable",
    )


def _prediction_of(change: str, side: Side) -> _PredictedSaving:
    """Return what the findings of a side predicted for a change, or its replay; raise if neither did."""
    wanted = {str(part) for part in parse_change(change).parts}
    advised: dict[str, Finding] = {}  # the first finding of each change: the largest
    for run in side.runs[:1]:
        for finding in run.findings or ():
            if finding.change is not None and finding.saving_ns is not None:
                advised.setdefault(finding.change, finding)
    if wanted <= advised.keys():
        findings = [advised[part] for part in sorted(wanted)]
        savings = [finding.saving_ns or 0 for finding in findings]
        ranges = [
            finding.saves_range_ns or (ns, ns)
            for finding, ns in zip(findings, savings, strict=True)
        ]
        return _PredictedSaving(
            [finding.code for finding in findings],
            sum(savings),
            (max(least for least, _ in ranges), sum(largest for _, largest in ranges)),
        )
    analysis = side.runs[0].analysis if side.runs else None
    for changed in analysis.changed_steps if analysis is not None else ():
        parts = {str(part) for text in changed.changes for part in parse_change(text).parts}
        if changed.saves_ns is not None and parts == wanted:
            return _PredictedSaving(
                [], changed.saves_ns, changed.saves_range_ns or (changed.saves_ns,) * 2
            )
    known = ", ".join(f"'{text}'" for text in sorted(advised))
    raise OptionError(
        f"--change {change!r}: nothing was predicted for it on {side.name}",
        hint=f"its findings predict {known}" if known else "give the traces of the first run",
    )


def _free_step_change(before: Side, after: Side) -> StepChange | None:
    """Return the change of the step without the profiler; None if a side does not know it."""
    old = free_step(before.runs)
    new = free_step(after.runs)
    if old is None or new is None:
        return None
    return StepChange(
        round(1e6 * old.ms),
        round(1e6 * new.ms),
        (round(1e6 * (old.least_ms - new.most_ms)), round(1e6 * (old.most_ms - new.least_ms))),
    )


def _step_change(metric: str, before: Side, after: Side) -> StepChange | None:
    """Return the change of the step time; None if a side has none.

    Its range is the gate's confidence interval, and at least the gate's noise floor on either side:
    runs of the same code differ by that much.
    """
    old_ms = centre_of_runs(before.runs, metric)
    new_ms = centre_of_runs(after.runs, metric)
    if not old_ms or not new_ms:
        return None
    before_ns = round(1e6 * old_ms)
    after_ns = round(1e6 * new_ms)
    saving_ns = before_ns - after_ns
    range_ns = None
    direction = 0
    rules = GateSettings(min_steps=MIN_STEPS_TO_MEASURE)
    checks = judge(_step_times(after), _step_times(before), rules=rules, noise=before.noise)
    for check in checks:
        if check.metric != metric:
            continue
        if check.every_step is not None and abs(check.change or 0.0) > (check.floor or 0.0):
            direction = -1 if check.every_step[0] > 0 else 1
        if check.interval is not None:
            least_change_ms, largest_change_ms = check.interval
            floor_ns = round(1e6 * (check.floor or 0.0))
            range_ns = (
                min(round(-1e6 * largest_change_ms), saving_ns - floor_ns),
                max(round(-1e6 * least_change_ms), saving_ns + floor_ns),
            )
    return StepChange(before_ns, after_ns, range_ns, direction)


def _step_times(side: Side) -> list[Run]:
    """Return the runs of a side with their step times alone."""
    is_step_time = pl.col("metric").is_in(["step_ms", "mean_step_ms"])
    return [Run(run.name, run.samples.filter(is_step_time)) for run in side.runs]


def _outcome(predicted_ns: tuple[int, int], step: StepChange) -> Outcome:
    """Return how the measured saving compares with the predicted one, both as ranges."""
    if step.range_ns is None or step.direction == 0:
        return "undecided"
    low, high = step.range_ns
    least, largest = predicted_ns
    if step.direction < 0:
        return "opposite"
    if high < least:
        return "less"
    if low > largest:
        return "more"
    return "as_predicted"
