"""The wording of ``gate`` and ``diff``: numbers, names and sentences, the same in every output."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from tracekit._util.text import counted, signed, terminal
from tracekit.documents.coding import known
from tracekit.documents.diff import (
    CellChange,
    ComparedRun,
    DiffDocument,
    FreeStepChange,
    KernelChange,
    LabelChange,
    LargestChanges,
    MetricChange,
    ModuleChange,
    RankChange,
    SideEntry,
    TimeChange,
)
from tracekit.documents.gate import CheckResult, GateDocument
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import capitalize
from tracekit.report.words import short_kernel

TYPICAL_STEP_NOTE = (
    "times are as recorded, with what the profiler costs; step_ms is the median step, mean_step_ms the mean; "
    "other levels are of a typical step: the median of the means of all pairs of steps, "
    "which one odd step hardly moves; analyze prints means"
)
SAME_RECORDING = "before and after are the same files: every step is equal to the nanosecond"
EXPOSED_NOTE = "not hidden by compute; time of two exposed labels at once counts for one of them"
VERDICT_MARKS = {"pass": "✓", "improved": "▲", "regressed": "✗", "inconclusive": "?"}
GATE_VERDICT_ORDER = ("regressed", "inconclusive", "improved", "pass")
Compared: TypeAlias = DiffDocument | GateDocument
"""Two sides that were compared."""
Moved: TypeAlias = ModuleChange | RankChange | KernelChange | CellChange
"""Row of a table of what moved."""
Time = TypeVar("Time", bound=TimeChange)


def value(number: float | None, unit: str) -> str:
    """Return a level in its unit.

    >>> value(12.345, "ms"), value(0.1234, "ratio"), value(None, "ms")
    ('12.35 ms', '12.3 %', '–')
    """
    if number is None:
        return "–"
    if unit == "ms":
        return f"{number:,.{_digits(number)}f} ms"
    return f"{100 * number:.1f} %" if unit == "ratio" else f"{number:,.6g}"


def change(row: MetricChange) -> str:
    """Return the change of a check: relative to the baseline for times, in points for shares."""
    return "–" if row.change is None else _changes(row, row.change)


def _changes(row: MetricChange, *amounts: float) -> str:
    """Return changes of a check's metric, all in the unit of ``change``."""
    if row.unit == "ratio":
        scale = 100.0
        unit = " points"
        digits = 1
    elif row.before and abs(row.change or 0.0) <= 10 * abs(row.before):
        scale = 100 / row.before
        unit = " %"
        digits = 1
    else:
        scale = 1.0
        unit = " ms" if row.unit == "ms" else ""
        digits = _digits(max(map(abs, amounts)))
    return " … ".join(signed(scale * amount, digits) for amount in amounts) + unit


def milliseconds(row: TimeChange) -> str:
    """Return the change in time of a row."""
    text = f"{signed(row.change_ms, _digits(row.change_ms))} ms"
    share = row.change_relative
    return f"{text} ({signed(100 * share, 1)} %)" if share is not None and abs(share) < 10 else text


def likely_range(row: CheckResult) -> str:
    """Return the confidence interval of a check's change, or of its level; empty if it has none."""
    if not row.interval:
        return ""
    if row.limit_on == "level":
        return " … ".join(value(end, row.unit) for end in row.interval)
    return _changes(row, *row.interval)


def limit(row: CheckResult) -> str:
    """Return the largest change, or the level, that a check accepts."""
    if row.limit is None:
        return "–"
    return value(row.limit, row.unit) if row.limit_on == "level" else _changes(row, row.limit)


def arrow(before: float | None, after: float | None, unit: str) -> str:
    """Return two levels with an arrow between them; empty if both are unknown."""
    return (
        "" if before is None and after is None else f"{value(before, unit)} → {value(after, unit)}"
    )


def exposed_levels(row: LabelChange) -> str:
    """Return the exposed time of a label before and after."""
    return arrow(row.exposed_ms_before, row.exposed_ms_after, "ms")


def overlap_levels(row: LabelChange) -> str:
    """Return the overlap of a label before and after."""
    return arrow(row.overlap_before, row.overlap_after, "ratio")


def headline(result: GateDocument) -> str:
    """Return the outcome of a gate in one sentence."""
    verdict = result.verdict
    if verdict == "error":
        return f"unusable input: {result.error}"
    if verdict == "inconclusive" and result.obstacles:
        return f"inconclusive: not comparable: {'; '.join(result.obstacles)}"
    checks = result.checks
    waived = sum(1 for check in checks if check.waiver)
    waivers = f" ({waived} waived)" if waived else ""
    if verdict == "pass" and result.same_recording:
        return f"pass: {SAME_RECORDING}{waivers}"
    if verdict == "pass":
        return f"pass: {counted(len(checks), 'metric')} checked, none regressed{waivers}"
    metrics = [check.metric for check in checks if check.verdict == verdict and not check.waiver]
    if verdict == "inconclusive" and (reason := _shared_reason(result)):
        return f"inconclusive: {reason}"
    more = f" and {len(metrics) - 4} more" if len(metrics) > 4 else ""
    names = f"{', '.join(metrics[:4])}{more}"
    return f"{verdict}: {names or 'nothing could be checked'}{waivers}"


def _shared_reason(result: GateDocument) -> str | None:
    """Return the one reason why all checks that are inconclusive are so; None if there are several."""
    undecided = [
        check for check in result.checks if check.verdict == "inconclusive" and not check.waiver
    ]
    reasons = {check.reason for check in undecided}
    return reasons.pop() if len(reasons) == 1 else None


def is_reason_in_headline(check: CheckResult, result: GateDocument) -> bool:
    """Return whether the headline says why a check is inconclusive."""
    if check.verdict != "inconclusive" or result.verdict != "inconclusive" or check.waiver:
        return False
    return bool(result.obstacles) or _shared_reason(result) is not None


def story(result: Compared) -> list[str]:
    """Return the sentences about what happened, each with a capital letter."""
    return [capitalize(line) for line in known(result.story, [])]


def story_lead(result: DiffDocument) -> str:
    """Return the words before the sentences of a diff whose step time proves no change.

    Empty for other diffs.
    """
    step = _step_of(result.metrics)
    is_undecided = step is not None and step.verdict == "inconclusive"
    return "What differs:" if is_undecided and result.story else ""


def _step_of(metrics: Sequence[MetricChange]) -> MetricChange | None:
    """Return the change of the step time; None if it was not compared."""
    return next((row for row in metrics if row.metric == "step_ms"), None)


def _runs_by_side(result: Compared) -> dict[str, list[ComparedRun]]:
    """Return the runs of each side: none of a gate without a baseline, or of input that cannot be read."""
    sides: dict[str, SideEntry | None] = {
        "before": known(result.before, None),
        "after": known(result.after, None),
    }
    return {name: side.runs for name, side in sides.items() if side is not None and side.runs}


def compared_runs(result: Compared) -> str:
    """Return the names of the runs that are compared, with their steps.

    A gate without a baseline has one side.
    """
    sides = []
    for side, runs in _runs_by_side(result).items():
        names = ", ".join(f"{run.name} ({counted(run.steps, 'step')})" for run in runs[:3])
        sides.append(f"{side}: {names}{' …' if len(runs) > 3 else ''}")
    return " · ".join(sides)


def step_sentence(result: Compared) -> str:
    """Return a sentence about the change of the step time."""
    if result.same_recording:
        return capitalize(SAME_RECORDING)
    step = _step_of(result.metrics if isinstance(result, DiffDocument) else result.checks)
    if step is None or step.change is None:
        return "Step time cannot be compared"
    undecided = f"inconclusive ({step.reason})" if step.reason else "inconclusive"
    outcomes = {
        "regressed": "slower",
        "improved": "faster",
        "inconclusive": f"{_every_step(step)}{undecided}",
    }
    outcome = outcomes.get(step.verdict, "no clear change")
    levels = arrow(step.before, step.after, step.unit)
    subject = "typical recorded step" if has_typical_steps(result) else "recorded step"
    recorded = f"{subject} {levels} ({change(step)}): {outcome}"
    free = result.free_step if isinstance(result, DiffDocument) else None
    return capitalize(f"{_free_step(free)}; {recorded}" if free is not None else recorded)


def _every_step(step: MetricChange) -> str:
    """Return that every step changed in one direction, and by how much; empty if they did not."""
    if step.every_step is None or not step.before:
        return ""
    shares = sorted(100 * abs(ms / step.before) for ms in step.every_step)
    direction = "slower" if step.every_step[0] > 0 else "faster"
    digits = 0 if shares[1] - shares[0] >= 1 else 1
    least, largest = (f"{share:.{digits}f}" for share in shares)
    amount = f"{least} %" if least == largest else f"{least} to {largest} %"
    return f"every step is {direction} ({amount}), "


def _free_step(free: FreeStepChange) -> str:
    """Return the steps without the profiler, and whether they differ beyond their ranges."""
    share = 100 * (free.after_ms - free.before_ms) / free.before_ms
    levels = arrow(free.before_ms, free.after_ms, "ms")
    outcome = "within their ranges"
    if free.after_range_ms[0] > free.before_range_ms[1]:
        outcome = "slower"
    elif free.after_range_ms[1] < free.before_range_ms[0]:
        outcome = "faster"
    return f"step without the profiler {levels} ({signed(share, 1)} %): {outcome}"


def has_typical_steps(result: Compared) -> bool:
    """Return whether some run has several steps, so that levels are those of a typical step."""
    return any(run.steps > 1 for runs in _runs_by_side(result).values() for run in runs)


def means_note(result: DiffDocument) -> str:
    """Return which times of a diff are means over ranks; empty if there is one rank."""
    own = "ranks and cells" if result.cells else "ranks"
    return (
        f"labels, modules and kernels: means over ranks; {own}: their own"
        if len(result.ranks) > 1
        else ""
    )


def visible_changes(rows: Sequence[Time]) -> list[Time]:
    """Return the rows whose change does not round to zero; all rows if there is none."""
    return [row for row in rows if round(row.change_ms, 3)] or list(rows)


def without_repeats(reasons: Sequence[str]) -> list[str]:
    """Return the reasons of a table's rows; a reason equal to the one above becomes "as above".

    >>> without_repeats(["may be noise", "may be noise", "", "breaks step_ms < +3%"])
    ['may be noise', 'as above', '', 'breaks step_ms < +3%']
    """
    texts = []
    above = ""
    for reason_of_row in reasons:
        is_repeated = reason_of_row and reason_of_row == above
        texts.append("as above" if is_repeated else reason_of_row)
        above = reason_of_row
    return texts


def reason(check: CheckResult) -> str:
    """Return why a check has its verdict; for a waived check, the waiver."""
    waiver = check.waiver
    return f"waived until {waiver.until}: {waiver.reason}" if waiver else check.reason


def explain(row: CheckResult) -> str:
    """Return the levels, the change and the reason of a check in one line."""
    levels = value(row.after, row.unit)
    if row.before is not None:
        levels = f"{arrow(row.before, row.after, row.unit)} ({change(row)})"
    reason_text = f": {row.reason}" if row.reason else ""
    return f"{row.metric} {levels}{reason_text}"


def row_name(row: Moved) -> str:
    """Return the name of a row of modules, ranks (with the part of the budget that moved most), kernels or cells."""
    if isinstance(row, CellChange):
        return f"rank {row.rank}, {_cell_name(row)}"
    if isinstance(row, RankChange):
        part = (row.most or "").replace("exposed_ms.", "exposed ").replace("_ms", "")
        return f"rank {row.rank} ({part})" if part else f"rank {row.rank}"
    name = short_kernel(row.name) if isinstance(row, KernelChange) else row.module
    return ", ".join(terminal(part) for part in (name, row.label) if part)


def _cell_name(row: CellChange) -> str:
    stage = known(row.stage, None)
    microbatch = known(row.microbatch, None)
    if row.op == "FB":
        backward = f"{known(row.b_stage, None)}B{known(row.b_microbatch, None)}"
        return f"({stage}F{microbatch};{backward})"
    return f"{stage}{row.op}{microbatch}"


MOVED = ("modules", "ranks", "kernels", "cells")
"""The tables of a diff after that of labels."""
_BEFORE_AND_AFTER = (
    Column("before", "figure", value=lambda row: value(row.before_ms, "ms")),
    Column("after", "figure", value=lambda row: value(row.after_ms, "ms")),
    Column("change per step", "change", value=milliseconds),
)
_LEVEL_COLUMNS = (
    Column("before", "figure", value=lambda row: value(row.before, row.unit)),
    Column("after", "figure", value=lambda row: value(row.after, row.unit)),
    Column("change", "figure", value=change),
)


def metric_table(rows: Sequence[MetricChange]) -> Table | None:
    """Return the metrics of a diff with their verdicts."""
    return make_table(
        (Column("metric"), *_LEVEL_COLUMNS, Column("", "verdict", value="verdict")), rows
    )


def label_table(result: DiffDocument) -> Table | None:
    """Return the labels of a diff, with their exposed time and overlap."""
    columns = (
        Column("label"),
        *_BEFORE_AND_AFTER,
        Column("exposed", "figure", 1, EXPOSED_NOTE, value=exposed_levels),
        Column("overlap", "figure", 1, value=overlap_levels),
    )
    return make_table(columns, visible_changes(result.labels))


def moved_table(key: str, changes: LargestChanges) -> Table | None:
    """Return the modules, ranks, kernels or cells that moved, the largest change first."""
    rows: Sequence[Moved] = getattr(changes, key)
    return make_table(
        (Column(key.removesuffix("s"), "name", value=row_name), *_BEFORE_AND_AFTER),
        visible_changes(rows),
    )


def check_table(
    checks: Sequence[CheckResult], *, reasons_below: bool = False, likely_ranges: bool = True
) -> Table | None:
    """Return the checks of a gate, the worst verdict first.

    For a narrow terminal with the reasons below it, as notes. The first table of a comment has no
    *likely_ranges*: they are in the folded one and the JSON.
    """
    ordered = sorted(checks, key=lambda check: GATE_VERDICT_ORDER.index(check.verdict))
    reasons = [reason(check) for check in ordered]
    columns = [
        Column("verdict", "verdict"),
        Column("metric", value=_requirement),
        *_LEVEL_COLUMNS,
        Column("limit", "figure", value=limit),
    ]
    if likely_ranges:
        columns.append(Column("likely range", "figure", 1, value=likely_range))
    if not reasons_below:
        explained = [
            replace(check, reason=why)
            for check, why in zip(ordered, without_repeats(reasons), strict=True)
        ]
        return make_table([*columns, Column("why", value="reason")], explained)
    notes = []
    for why in dict.fromkeys(filter(None, reasons)):
        metrics = [_requirement(check) for check in ordered if reason(check) == why]
        notes.append(f"{'all' if len(metrics) == len(ordered) else ', '.join(metrics)}: {why}")
    return make_table(columns, ordered, notes=notes)


def _requirement(check: CheckResult) -> str:
    return check.requirement or check.metric


def _digits(number: float) -> int:
    return 0 if abs(number) >= 1000 else 1 if abs(number) >= 100 else 2 if abs(number) >= 10 else 3
