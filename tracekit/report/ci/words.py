"""The wording of ``gate`` and ``diff``: numbers, names and sentences, the same in every output."""

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import counted, signed, terminal
from tracekit.report.table import Column, Table, make_table
from tracekit.report.words import short_kernel

TYPICAL_STEP_NOTE = (
    "step_ms is the median step, mean_step_ms the mean; other levels are of a typical step: the median of the means "
    "of all pairs of steps, which one odd step hardly moves; "
    "analyze prints means"
)
EXPOSED_NOTE = "not hidden by compute; time of two exposed labels at once counts for one of them"
VERDICT_MARKS = {"pass": "✓", "improved": "▲", "regressed": "✗", "inconclusive": "?"}
GATE_VERDICT_ORDER = ("regressed", "inconclusive", "improved", "pass")
Row = Mapping[str, Any]


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


def change(row: Row) -> str:
    """Return the change of a check: relative to the baseline for times, in points for shares.

    >>> change({"unit": "ms", "before": 10.0, "change": 0.5})
    '+5.0 %'
    >>> change({"unit": "ratio", "before": 0.24, "change": -0.12})
    '−12.0 points'
    """
    return "–" if row["change"] is None else _changes(row, row["change"])


def _changes(row: Row, *amounts: float) -> str:
    """Return changes of a check's metric, all in the unit of ``change``."""
    if row["unit"] == "ratio":
        scale = 100.0
        unit = " points"
        digits = 1
    elif row["before"] and abs(row["change"] or 0.0) <= 10 * abs(row["before"]):
        scale = 100 / row["before"]
        unit = " %"
        digits = 1
    else:
        scale = 1.0
        unit = " ms" if row["unit"] == "ms" else ""
        digits = _digits(max(map(abs, amounts)))
    return " … ".join(signed(scale * amount, digits) for amount in amounts) + unit


def milliseconds(row: Row) -> str:
    """Return the change in time of a row.

    >>> milliseconds({"change_ms": 1.5, "change_relative": 0.1})
    '+1.500 ms (+10.0 %)'
    """
    text = f"{signed(row['change_ms'], _digits(row['change_ms']))} ms"
    share = row.get("change_relative")
    return f"{text} ({signed(100 * share, 1)} %)" if share is not None and abs(share) < 10 else text


def likely_range(row: Row) -> str:
    """Return the confidence interval of a check's change, or of its level; empty if it has none.

    >>> likely_range({"interval": [0.5, 1.0], "unit": "ms", "before": 10.0, "change": 0.7, "limit_on": "change"})
    '+5.0 … +10.0 %'
    >>> likely_range({"interval": [0.125, 0.25], "unit": "ratio", "limit_on": "level"})
    '12.5 % … 25.0 %'
    """
    if not row["interval"]:
        return ""
    if row["limit_on"] == "level":
        return " … ".join(value(end, row["unit"]) for end in row["interval"])
    return _changes(row, *row["interval"])


def limit(row: Row) -> str:
    """Return the largest change, or the level, that a check accepts.

    >>> limit({"limit": -0.02, "unit": "ratio", "before": 0.5, "change": 0.1, "limit_on": "change"})
    '−2.0 points'
    """
    if row["limit"] is None:
        return "–"
    return (
        value(row["limit"], row["unit"])
        if row["limit_on"] == "level"
        else _changes(row, row["limit"])
    )


def arrow(before: float | None, after: float | None, unit: str) -> str:
    """Return two levels with an arrow between them; empty if both are unknown."""
    return (
        "" if before is None and after is None else f"{value(before, unit)} → {value(after, unit)}"
    )


def label_levels(row: Row, metric: str) -> str:
    """Return the exposed time (``exposed_ms``) or the overlap of a label before and after."""
    return arrow(
        row[f"{metric}_before"], row[f"{metric}_after"], "ms" if metric == "exposed_ms" else "ratio"
    )


def headline(result: Row) -> str:
    """Return the outcome of a gate in one sentence.

    >>> headline({"verdict": "pass", "checks": [{"metric": "step_ms", "verdict": "pass", "waiver": None}]})
    'pass: 1 metric checked, none regressed'
    """
    verdict = result["verdict"]
    if verdict == "error":
        return f"unusable input: {result['error']}"
    if verdict == "inconclusive" and result["obstacles"]:
        return f"inconclusive: not comparable: {'; '.join(result['obstacles'])}"
    checks = result["checks"]
    waived = sum(1 for check in checks if check["waiver"])
    waivers = f" ({waived} waived)" if waived else ""
    if verdict == "pass":
        return f"pass: {counted(len(checks), 'metric')} checked, none regressed{waivers}"
    metrics = []
    for check in checks:
        if check["verdict"] == verdict and not check["waiver"]:
            metrics.append(check["metric"])
    if verdict == "inconclusive" and metrics:
        reasons = {check["reason"] for check in checks if check["metric"] in metrics}
        if len(reasons) == 1:
            return f"inconclusive: {reasons.pop()}"
    more = f" and {len(metrics) - 4} more" if len(metrics) > 4 else ""
    names = f"{', '.join(metrics[:4])}{more}"
    return f"{verdict}: {names or 'nothing could be checked'}{waivers}"


def story(result: Row) -> list[str]:
    """Return the sentences about what happened, each with a capital letter.

    >>> story({"story": ["rank 1's mlp forward grew by 9.1 ms"]})
    ["Rank 1's mlp forward grew by 9.1 ms"]
    """
    return [f"{line[:1].upper()}{line[1:]}" for line in result.get("story") or ()]


def story_lead(result: Row) -> str:
    """Return the words before the sentences of a diff whose step time proves no change.

    Empty for other diffs.

    >>> story_lead({"story": ["idle time grew"], "metrics": [{"metric": "step_ms", "verdict": "inconclusive"}]})
    'What differs:'
    """
    undecided = any(
        row["metric"] == "step_ms" and row["verdict"] == "inconclusive" for row in result["metrics"]
    )
    return "What differs:" if undecided and result.get("story") else ""


def compared_runs(result: Row) -> str:
    """Return the names of the runs that are compared, with their steps.

    A gate without a baseline has one side.

    >>> compared_runs({"before": {"runs": [{"name": "a", "steps": 8}]}, "after": {"runs": [{"name": "b", "steps": 1}]}})
    'before: a (8 steps) · after: b (1 step)'
    """
    sides = []
    for side in ("before", "after"):
        runs = (result.get(side) or {}).get("runs")
        if not runs:  # no baseline, or input that cannot be read
            continue
        names = ", ".join(f"{run['name']} ({counted(run['steps'], 'step')})" for run in runs[:3])
        sides.append(f"{side}: {names}{' …' if len(runs) > 3 else ''}")
    return " · ".join(sides)


def step_sentence(result: Row) -> str:
    """Return a sentence about the change of the step time.

    >>> step_sentence({"metrics": []})
    'Step time cannot be compared'
    """
    step = next((row for row in result["metrics"] if row["metric"] == "step_ms"), None)
    if step is None or step["change"] is None:
        return "Step time cannot be compared"
    outcomes = {
        "regressed": "slower",
        "improved": "faster",
        "inconclusive": f"inconclusive ({step['reason']})" if step["reason"] else "inconclusive",
    }
    outcome = outcomes.get(step["verdict"], "no clear change")
    subject = "Typical step" if has_typical_steps(result) else "Step"
    levels = arrow(step["before"], step["after"], step["unit"])
    return f"{subject} {levels} ({change(step)}): {outcome}"


def has_typical_steps(result: Row) -> bool:
    """Return whether some run has several steps, so that levels are those of a typical step.

    >>> has_typical_steps({"before": {"runs": [{"steps": 1}]}, "after": {"runs": [{"steps": 8}]}})
    True
    """
    for side in ("before", "after"):
        runs = (result.get(side) or {}).get("runs") or ()
        if any(run["steps"] > 1 for run in runs):
            return True
    return False


def means_note(result: Row) -> str:
    """Return which times of a diff are means over ranks; empty if there is one rank.

    >>> means_note({"ranks": [{}, {}], "cells": []})
    'labels, modules and kernels: means over ranks; ranks: their own'
    """
    own = "ranks and cells" if result["cells"] else "ranks"
    return (
        f"labels, modules and kernels: means over ranks; {own}: their own"
        if len(result["ranks"]) > 1
        else ""
    )


def visible_changes(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose change does not round to zero; all rows if there is none.

    >>> [row["change_ms"] for row in visible_changes([{"change_ms": 0.2}, {"change_ms": -0.0001}])]
    [0.2]
    """
    return [row for row in rows if round(row["change_ms"], 3)] or list(rows)


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


def reason(check: Row) -> str:
    """Return why a check has its verdict; for a waived check, the waiver."""
    waiver = check["waiver"]
    return f"waived until {waiver['until']}: {waiver['reason']}" if waiver else str(check["reason"])


def explain(row: Row) -> str:
    """Return the levels, the change and the reason of a check in one line.

    >>> explain({"metric": "step_ms", "unit": "ms", "before": 10.0, "after": 11.0, "change": 1.0,
    ...     "reason": "breaks step_ms < +3%"})
    'step_ms 10.00 ms → 11.00 ms (+10.0 %): breaks step_ms < +3%'
    """
    levels = value(row["after"], row["unit"])
    if row["before"] is not None:
        levels = f"{arrow(row['before'], row['after'], row['unit'])} ({change(row)})"
    reason_text = f": {row['reason']}" if row["reason"] else ""
    return f"{row['metric']} {levels}{reason_text}"


def row_name(row: Row) -> str:
    """Return the name of a row of modules, ranks (with the part of the budget that moved most), kernels or cells.

    >>> row_name({"rank": 1, "op": "F", "stage": 0, "microbatch": 3}), row_name({"module": "mlp", "label": "wgrad"})
    ('rank 1, 0F3', 'mlp, wgrad')
    >>> row_name({"rank": 1, "most": "idle_ms", "most_ms": 1.5})
    'rank 1 (idle)'
    """
    if "op" in row:
        cell = f"{row.get('stage')}{row['op']}{row.get('microbatch')}"
        if row["op"] == "FB":
            cell = f"({row.get('stage')}F{row.get('microbatch')};{row.get('b_stage')}B{row.get('b_microbatch')})"
        return f"rank {row['rank']}, {cell}"
    if "most" in row:
        part = (row["most"] or "").replace("exposed_ms.", "exposed ").replace("_ms", "")
        return f"rank {row['rank']} ({part})" if part else f"rank {row['rank']}"
    name = short_kernel(row["name"]) if row.get("name") else row.get("module")
    return ", ".join(terminal(part) for part in (name, row.get("label")) if part)


MOVED = ("modules", "ranks", "kernels", "cells")
"""The tables of a diff after that of labels."""
_TIMES = (
    Column("before", "figure", value=lambda row: value(row["before_ms"], "ms")),
    Column("after", "figure", value=lambda row: value(row["after_ms"], "ms")),
    Column("change per step", "change", value=milliseconds),
)
_LEVEL_COLUMNS = (
    Column("before", "figure", value=lambda row: value(row["before"], row["unit"])),
    Column("after", "figure", value=lambda row: value(row["after"], row["unit"])),
    Column("change", "figure", value=change),
)


def metric_table(rows: Sequence[Row]) -> Table | None:
    """Return the metrics of a diff with their verdicts."""
    return make_table(
        (Column("metric"), *_LEVEL_COLUMNS, Column("", "verdict", value="verdict")), rows
    )


def label_table(result: Row) -> Table | None:
    """Return the labels of a diff, with their exposed time and overlap."""
    columns = (
        Column("label"),
        *_TIMES,
        Column(
            "exposed", "figure", 1, EXPOSED_NOTE, value=lambda row: label_levels(row, "exposed_ms")
        ),
        Column("overlap", "figure", 1, value=lambda row: label_levels(row, "overlap")),
    )
    return make_table(columns, visible_changes(result["labels"]))


def moved_table(key: str, rows: Sequence[Row]) -> Table | None:
    """Return the modules, ranks, kernels or cells that moved, the largest change first."""
    return make_table(
        (Column(key.removesuffix("s"), "name", value=row_name), *_TIMES), visible_changes(rows)
    )


def check_table(checks: Sequence[Row], *, reasons_below: bool = False) -> Table | None:
    """Return the checks of a gate, the worst verdict first.

    For a narrow terminal with the reasons below it, as notes.

    >>> check = {"verdict": "pass", "requirement": None, "unit": "ms", "before": 1.0, "after": 1.0, "change": 0.0,
    ...     "limit": None, "interval": None, "waiver": None}
    >>> checks = [{**check, "metric": "a", "reason": "noise"}, {**check, "metric": "b", "reason": ""}]
    >>> check_table(checks, reasons_below=True).notes, [row[-1] for row in check_table(checks).rows]
    (('a: noise',), ['noise', ''])
    """
    ordered = sorted(checks, key=lambda check: GATE_VERDICT_ORDER.index(check["verdict"]))
    reasons = [reason(check) for check in ordered]
    columns = [
        Column("verdict", "verdict"),
        Column("metric", value=_requirement),
        *_LEVEL_COLUMNS,
        Column("limit", "figure", value=limit),
        Column("likely range", "figure", 1, value=likely_range),
    ]
    if not reasons_below:
        rows = []
        for check, why in zip(ordered, without_repeats(reasons), strict=True):
            rows.append({**check, "why": why})
        return make_table([*columns, Column("why")], rows)
    notes = []
    for why in dict.fromkeys(filter(None, reasons)):
        metrics = [_requirement(check) for check in ordered if reason(check) == why]
        notes.append(f"{'all' if len(metrics) == len(ordered) else ', '.join(metrics)}: {why}")
    return make_table(columns, ordered, notes=notes)


def _requirement(check: Row) -> str:
    return str(check["requirement"] or check["metric"])


def _digits(number: float) -> int:
    return 0 if abs(number) >= 1000 else 1 if abs(number) >= 100 else 2 if abs(number) >= 10 else 3
