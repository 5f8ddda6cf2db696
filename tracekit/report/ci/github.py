"""What GitHub Actions reads: annotations as workflow commands. At most ten, the worst first."""

from collections.abc import Mapping
from typing import Any

from tracekit._util.text import escape_workflow
from tracekit.report.ci import words

MOST = 10


def commands(result: Mapping[str, Any]) -> list[str]:
    """Return the workflow commands, one line each.

    >>> commands({"verdict": "error", "error": "a: no such file", "checks": [], "waivers": []})
    ['::error title=tracekit gate::unusable input: a: no such file']
    """
    if result["verdict"] == "error":
        return [_line("error", "tracekit gate", words.headline(result))]
    if result["verdict"] == "inconclusive" and result["obstacles"]:
        return [_line("warning", "tracekit gate", words.headline(result))]
    lines = [_check(c) for name in ("regressed", "inconclusive") for c in result["checks"] if c["verdict"] == name]
    lines += [
        _line("warning", f"waiver of {w['metric']} expired", f"on {w['until']}: {w['reason']}")
        for w in result["waivers"]
        if w["status"] == "expired"
    ]
    if len(lines) > MOST:
        lines = [
            *lines[: MOST - 1],
            _line("notice", "tracekit gate", f"and {len(lines) - MOST + 1} more in the summary"),
        ]
    return lines


def _check(check: Mapping[str, Any]) -> str:
    if check["waiver"]:
        text = f"{words.explain(check)} (waived until {check['waiver']['until']}: {check['waiver']['reason']})"
        return _line("notice", f"waived: {check['metric']}", text)
    level = "error" if check["verdict"] == "regressed" else "warning"
    return _line(level, f"{check['verdict']}: {check['metric']}", words.explain(check))


def _line(level: str, title: str, text: str) -> str:
    return f"::{level} title={escape_workflow(title, also=':,')}::{escape_workflow(text)}"
