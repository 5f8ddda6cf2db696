"""A diff as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import counted, markdown
from tracekit.report.ci import words
from tracekit.report.markdown.gate import ICONS
from tracekit.report.markdown.table import table

Data = Mapping[str, Any]
MOST = 15


def render(result: Data) -> str:
    """Return what changed by metric, label, module, rank, kernel and cell, the largest change first."""
    parts = [f"# tracekit diff\n\n**{markdown(sentence(result))}**"]
    parts += ["\n".join(f"- {markdown(line)}" for line in told)] if (told := words.story(result)) else []
    parts.append(markdown(names(result)))
    parts += [f"> **Not comparable:** {markdown('; '.join(result['obstacles']))}"] if result["obstacles"] else []
    if result["metrics"]:
        rows = [
            (f"{ICONS[m['verdict']]} {m['metric']}", words.value(m["before"], m["unit"]),
             words.value(m["after"], m["unit"]), words.change(m))
            for m in result["metrics"][:MOST]
        ]  # fmt: skip
        parts.append("## Metrics\n\n" + table(("metric", "before", "after", "change"), rows, right=(1, 2, 3)))
        parts += [words.TYPICAL] if words.typical(result) else []
    parts += _labels(words.telling(result["labels"]))
    for key, title, name in (
        ("modules", "Modules", words.named),
        ("ranks", "Ranks", rank_name),
        ("kernels", "Kernels", words.named),
        ("cells", "Cells", words.named),
    ):
        parts += _times(title, name, words.telling(result[key]))
    parts += [f"{words.MEANS[:1].upper()}{words.MEANS[1:]}."] if len(result["ranks"]) > 1 else []
    if result["notes"]:
        parts.append("\n".join(f"- {markdown(note)}" for note in result["notes"]))
    return "\n\n".join(parts) + "\n"


def names(result: Data) -> str:
    """Return what is compared.

    >>> names({"before": {"runs": [{"name": "a", "steps": 8}]}, "after": {"runs": [{"name": "b", "steps": 1}]}})
    'before: a (8 steps) · after: b (1 step)'
    """
    sides = []
    for side in ("before", "after"):
        runs = result[side]["runs"]
        shown = ", ".join(f"{r['name']} ({counted(r['steps'], 'step')})" for r in runs[:3])
        sides.append(f"{side}: {shown}{' …' if len(runs) > 3 else ''}")
    return " · ".join(sides)


def sentence(result: Data) -> str:
    """Return what became of the step.

    >>> sentence({"metrics": []})
    'Step time cannot be compared'
    """
    step = next((m for m in result["metrics"] if m["metric"] == "step_ms"), None)
    if step is None or step["change"] is None:
        return "Step time cannot be compared"
    how = {"regressed": "slower", "improved": "faster"}.get(step["verdict"], "no clear change")
    if step["verdict"] == "inconclusive":
        how = step["reason"]
    what = "Typical step" if words.typical(result) else "Step"
    return (
        f"{what} {words.value(step['before'], 'ms')} → {words.value(step['after'], 'ms')} ({words.change(step)}): {how}"
    )


def rank_name(row: Data) -> str:
    """Name a rank, with the part of its budget that moved most.

    >>> rank_name({"rank": 1, "most": "idle_ms", "most_ms": 1.5})
    'rank 1 (idle)'
    """
    if not row["most"]:
        return f"rank {row['rank']}"
    part = row["most"].replace("exposed_ms.", "exposed ").replace("_ms", "")
    return f"rank {row['rank']} ({part})"


def _labels(rows: Sequence[Data]) -> list[str]:
    if not rows:
        return []
    cells = [
        (r["label"], f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", words.milliseconds(r),
         arrow(r["exposed_ms_before"], r["exposed_ms_after"], "ms"),
         arrow(r["overlap_before"], r["overlap_after"], "ratio"))
        for r in rows
    ]  # fmt: skip
    head = ("label", "before", "after", "change per step", "exposed", "overlap")
    return ["## Labels\n\n" + table(head, cells, right=(1, 2, 3, 4, 5))]


def arrow(before: float | None, after: float | None, unit: str) -> str:
    """Write two levels side by side, nothing where both are unknown."""
    if before is None and after is None:
        return ""
    return f"{words.value(before, unit)} → {words.value(after, unit)}"


def _times(title: str, name: Any, rows: Sequence[Data]) -> list[str]:
    if not rows:
        return []
    cells = [
        (name(r), f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", words.milliseconds(r)) for r in rows[:MOST]
    ]
    more = f"\n\n… and {len(rows) - MOST} more" if len(rows) > MOST else ""
    return [
        f"## {title}\n\n"
        + table((title.lower()[:-1], "before", "after", "change per step"), cells, right=(1, 2, 3))
        + more
    ]
