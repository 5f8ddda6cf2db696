"""The gate's answer as Markdown, for a pull request's summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import counted, listing, markdown, markdown_code
from tracekit.report.ci import words
from tracekit.report.markdown.table import folded, table

Data = Mapping[str, Any]
ICONS = {"pass": "✅", "improved": "🚀", "regressed": "❌", "inconclusive": "⚠️", "error": "⛔"}


def render(result: Data) -> str:
    """Return the whole report: sentence, before and after, what moved most, waivers, what was compared."""
    parts = [f"## {ICONS[result['verdict']]} tracekit gate: {markdown(words.headline(result))}"]
    told = words.story(result) if result["verdict"] in ("regressed", "improved") else []
    parts += ["\n".join(f"- {markdown(line)}" for line in told)] if told else []
    checks = sorted(result["checks"], key=lambda c: words.ORDER.index(c["verdict"]))
    telling = [c for c in checks if c["verdict"] != "pass" or c["requirement"]]
    passing = [c for c in checks if c not in telling]
    if telling:
        parts.append(_checks(telling))
    if passing:
        one = len(passing) == 1
        count = counted(len(passing), "more metric" if telling else "metric")
        parts.append(folded(f"{count} {'passes' if one else 'pass'}", _checks(passing)))
    parts += [f"<sub>{words.TYPICAL}</sub>"] if checks and words.typical(result) else []
    parts += _moved(result.get("moved") or {})
    if result["waivers"]:
        rows = [(w["metric"], w["status"], w["until"], w["reason"]) for w in result["waivers"]]
        parts.append("### Waivers\n\n" + table(("metric", "status", "until", "reason"), rows))
    parts.append(_compared(result))
    return "\n\n".join(p for p in parts if p) + "\n"


def _checks(checks: Sequence[Data]) -> str:
    whys = words.said_once(
        [
            f"waived until {c['waiver']['until']}: {c['waiver']['reason']}" if c["waiver"] else c["reason"]
            for c in checks
        ]
    )
    rows = [
        (
            f"{ICONS[c['verdict']]} {c['verdict']}",
            c["requirement"] or c["metric"],
            words.value(c["before"], c["unit"]),
            words.value(c["after"], c["unit"]),
            words.change(c),
            words.sure(c),
            why,
        )
        for c, why in zip(checks, whys, strict=True)
    ]
    head = ("verdict", "metric", "before", "after", "change", "likely range", "why")
    return table(head, rows, right=(2, 3, 4, 5))


def _moved(moved: Data) -> list[str]:
    parts = []
    for name, title in (("kernels", "Kernels"), ("cells", "Cells")):
        rows = moved.get(name) or []
        if rows:
            cells = [
                (words.named(r), f"{r['before_ms']:.3f} ms", f"{r['after_ms']:.3f} ms", words.milliseconds(r))
                for r in rows
            ]
            head = (name[:-1], "before", "after", "change per step")
            parts.append(folded(f"{title} that moved most", table(head, cells, right=(1, 2, 3))))
    if moved.get("notes"):
        parts.append("\n".join(f"- {markdown(note)}" for note in moved["notes"]))
    return parts


def _compared(result: Data) -> str:
    lines = []
    for side in ("before", "after"):
        runs = (result.get(side) or {}).get("runs") or []
        if runs:
            names = listing(markdown_code(r["name"]) for r in runs)
            lines.append(
                f"{side}: {counted(len(runs), 'run')}, {counted(sum(r['steps'] for r in runs), 'step')} ({names})"
            )
    return "<sub>" + " · ".join(lines) + "</sub>" if lines else ""
