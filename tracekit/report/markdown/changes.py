"""The results of ``diff`` and ``gate`` as Markdown, for a pull request."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from tracekit._util.text import capitalize, counted, markdown
from tracekit.report.ci import words
from tracekit.report.markdown.table import VERDICT_ICONS, bullets, folded, render_table, simple_table
from tracekit.report.table import Table

Data = Mapping[str, Any]
MAX_ROWS = 15
"""Rows of a table of a diff."""


def render_diff(result: Data) -> str:
    """Return the changes by metric, label, module, rank, kernel and cell, the largest first."""
    parts = [f"# tracekit diff\n\n**{markdown(words.step_sentence(result))}**"]
    parts += [words.story_lead(result), bullets(words.story(result)), markdown(words.compared_runs(result))]
    if result["obstacles"]:
        parts.append(f"> **Not comparable:** {markdown('; '.join(result['obstacles']))}")
    parts.append(_section("Metrics", words.metric_table(result["metrics"][:MAX_ROWS])))
    parts += [words.TYPICAL_STEP_NOTE] if result["metrics"] and words.has_typical_steps(result) else []
    parts.append(_section("Labels", words.label_table(result)))
    parts += [_section(key.capitalize(), words.moved_table(key, result[key])) for key in words.MOVED]
    parts += [f"{capitalize(note)}."] if (note := words.means_note(result)) else []
    parts.append(bullets(result["notes"]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(title: str, table: Table | None) -> str:
    """Return a table with its title, without the rows after the first; empty if there is none."""
    if table is None:
        return ""
    more = f"\n\n… and {len(table.rows) - MAX_ROWS} more" if len(table.rows) > MAX_ROWS else ""
    return f"## {title}\n\n{render_table(replace(table, rows=table.rows[:MAX_ROWS]))}{more}"


def render_gate(result: Data) -> str:
    """Return a verdict: the sentence, before and after, what moved most, waivers, and what was compared."""
    parts = [f"## {VERDICT_ICONS[result['verdict']]} tracekit gate: {markdown(words.headline(result))}"]
    if result["verdict"] in ("regressed", "improved"):
        parts.append(bullets(words.story(result)))
    checks = result["checks"]
    telling = [check for check in checks if check["verdict"] != "pass" or check["requirement"]]
    passing = [check for check in checks if check not in telling]
    if (table := words.check_table(telling)) is not None:
        parts.append(render_table(table, fold=False))
    if (table := words.check_table(passing)) is not None:
        count = counted(len(passing), "more metric" if telling else "metric")
        verb = "passes" if len(passing) == 1 else "pass"
        parts.append(folded(f"{count} {verb}", render_table(table, fold=False)))
    parts += [f"<sub>{words.TYPICAL_STEP_NOTE}</sub>"] if checks and words.has_typical_steps(result) else []
    moved = result.get("moved") or {}
    for key in ("kernels", "cells"):
        if (table := words.moved_table(key, moved.get(key) or ())) is not None:
            parts.append(folded(f"{key.capitalize()} that moved most", render_table(table, fold=False)))
    parts.append(bullets(moved.get("notes") or ()))
    if result["waivers"]:
        heads = ("metric", "status", "until", "reason")
        rows = [[waiver[head] for head in heads] for waiver in result["waivers"]]
        parts.append("### Waivers\n\n" + simple_table(heads, rows, words=len(heads)))
    if runs := words.compared_runs(result):
        parts.append(f"<sub>{markdown(runs)}</sub>")
    return "\n\n".join(filter(None, parts)) + "\n"
