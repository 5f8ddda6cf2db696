"""The results of ``diff`` and ``gate`` as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracekit._util.text import counted, listing, markdown, markdown_code
from tracekit.report.ci import words
from tracekit.report.markdown.table import bullets, folded, simple_table

Data = Mapping[str, Any]
ICONS = {"pass": "✅", "improved": "🚀", "regressed": "❌", "inconclusive": "⚠️", "error": "⛔"}
MAX_ROWS = 15
"""Rows of a table of a diff."""


def render_diff(result: Data) -> str:
    """Return the changes by metric, label, module, rank, kernel and cell, the largest first."""
    parts = [f"# tracekit diff\n\n**{markdown(words.step_sentence(result))}**"]
    parts += [bullets(words.story(result)), markdown(words.compared_runs(result))]
    if result["obstacles"]:
        parts.append(f"> **Not comparable:** {markdown('; '.join(result['obstacles']))}")
    if result["metrics"]:
        rows = [
            (f"{ICONS[row['verdict']]} {row['metric']}", *words.levels(row), words.change(row))
            for row in result["metrics"][:MAX_ROWS]
        ]
        parts.append("## Metrics\n\n" + simple_table(("metric", "before", "after", "change"), rows, words=1))
        parts += [words.TYPICAL_STEP_NOTE] if words.has_typical_steps(result) else []
    labels = words.visible_changes(result["labels"])
    if labels:
        cells = [(row["label"], *_times(row), *words.exposed_and_overlap(row)) for row in labels]
        heads = ("label", "before", "after", "change per step", "exposed", "overlap")
        parts.append("## Labels\n\n" + simple_table(heads, cells, words=1))
    parts += [_moved_section(key, name, words.visible_changes(result[key])) for key, name in words.ROW_NAMES.items()]
    parts += [f"{words.MEANS_NOTE[:1].upper()}{words.MEANS_NOTE[1:]}."] if len(result["ranks"]) > 1 else []
    parts.append(bullets(result["notes"]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _moved_section(key: str, name: Callable[[Data], str], rows: Sequence[Data]) -> str:
    """Return the section about modules, ranks, kernels or cells; empty if there are none."""
    if not rows:
        return ""
    table = _times_table(key, name, rows[:MAX_ROWS])
    more = f"\n\n… and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
    return f"## {key.capitalize()}\n\n{table}{more}"


def _times_table(key: str, name: Callable[[Data], str], rows: Sequence[Data]) -> str:
    heads = (key.removesuffix("s"), "before", "after", "change per step")
    return simple_table(heads, [(name(row), *_times(row)) for row in rows], words=1)


def _times(row: Data) -> tuple[str, ...]:
    return (*words.times(row), words.milliseconds(row))


def render_gate(result: Data) -> str:
    """Return a verdict: the sentence, before and after, what moved most, waivers, and what was compared."""
    parts = [f"## {ICONS[result['verdict']]} tracekit gate: {markdown(words.headline(result))}"]
    if result["verdict"] in ("regressed", "improved"):
        parts.append(bullets(words.story(result)))
    checks = sorted(result["checks"], key=lambda check: words.VERDICT_ORDER.index(check["verdict"]))
    telling = [check for check in checks if check["verdict"] != "pass" or check["requirement"]]
    passing = [check for check in checks if check not in telling]
    if telling:
        parts.append(_checks(telling))
    if passing:
        count = counted(len(passing), "more metric" if telling else "metric")
        parts.append(folded(f"{count} {'passes' if len(passing) == 1 else 'pass'}", _checks(passing)))
    parts += [f"<sub>{words.TYPICAL_STEP_NOTE}</sub>"] if checks and words.has_typical_steps(result) else []
    moved = result.get("moved") or {}
    for key in ("kernels", "cells"):
        if moved.get(key):
            parts.append(folded(f"{key.capitalize()} that moved most", _times_table(key, words.row_name, moved[key])))
    parts.append(bullets(moved.get("notes") or ()))
    if result["waivers"]:
        heads = ("metric", "status", "until", "reason")
        rows = [[waiver[head] for head in heads] for waiver in result["waivers"]]
        parts.append("### Waivers\n\n" + simple_table(heads, rows, words=len(heads)))
    parts.append(_compared(result))
    return "\n\n".join(filter(None, parts)) + "\n"


def _checks(checks: Sequence[Data]) -> str:
    reasons = words.without_repeats([words.reason(check) for check in checks])
    rows = [
        (
            f"{ICONS[check['verdict']]} {check['verdict']}",
            check["requirement"] or check["metric"],
            *words.levels(check),
            words.change(check),
            words.likely_range(check),
            reason,
        )
        for check, reason in zip(checks, reasons, strict=True)
    ]
    heads = ("verdict", "metric", "before", "after", "change", "likely range", "why")
    return simple_table(heads, rows, words=2, last_words=1)


def _compared(result: Data) -> str:
    """Return the runs that were compared and their steps."""
    sides = []
    for side in ("before", "after"):
        runs = (result.get(side) or {}).get("runs") or []
        if runs:
            names = listing(markdown_code(run["name"]) for run in runs)
            steps = counted(sum(run["steps"] for run in runs), "step")
            sides.append(f"{side}: {counted(len(runs), 'run')}, {steps} ({names})")
    return f"<sub>{' · '.join(sides)}</sub>" if sides else ""
