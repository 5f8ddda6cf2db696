"""Reference of the built-in label rules, in the order they are tried."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docsite.code import row, table

EVIDENCE_FILE = Path(__file__).with_name("evidence.toml")
"""What each piece of evidence says that a rule can ask for."""


def page() -> str:
    """Return the page of built-in rules."""
    from tracekit.classify.rules import TIERS, builtin_rules

    book = builtin_rules()
    out = [
        "# Built-in label rules",
        "",
        f"All {len(book.rules)} rules in the order they are tried; the first that matches gives the label."
        f" The {len(TIERS)} kinds of evidence are tried from the most trusted to the least. What the conditions ask"
        " for, and how to add your own, is on [How labels are found](../rules.md).",
    ]
    for tier in TIERS:
        rules = [rule for rule in book.rules if rule.tier == tier]
        out += ["", f"## By {tier}", "", *table("rule", "label", "when", "confidence", "pack")]
        for rule in rules:
            label = f"`{rule.label}`" + (f", {rule.passes}" if rule.passes else "")
            when = _all(rule.when) + (f"<br>unless {_all(rule.unless)}" if rule.unless else "")
            out.append(row(f"`{rule.name}`", label, when, f"{rule.confidence:g}", rule.pack))
    out += ["", "## What process groups are for", "", *table("kind", "when")]
    out += [row(f"`{kind.value}`", _all(kind.when)) for kind in book.groups]
    out += ["", "## Parts of the model", "", *table("module", "when")]
    out += [row(f"`{kind.value}`", _all(kind.when)) for kind in book.modules]
    out += ["", "## Evidence", "", *table("evidence", "what it says")]
    for entry in evidence_rows():
        out.append(row(", ".join(f"`{name}`" for name in entry["names"]), entry["says"]))
    return "\n".join(out) + "\n"


def evidence_rows() -> list[dict[str, Any]]:
    """Return what each piece of evidence says: ``names`` and ``says``."""
    rows: list[dict[str, Any]] = tomllib.loads(EVIDENCE_FILE.read_text(encoding="utf-8"))[
        "evidence"
    ]
    return rows


def _all(conditions: Mapping[str, Any]) -> str:
    return "<br>".join(f"{name}: {_code(value)}" for name, value in conditions.items())


def _code(value: Any) -> str:
    words = (
        value
        if isinstance(value, tuple)
        else (str(value).lower() if isinstance(value, bool) else str(value),)
    )
    return ", ".join(f"`{word}`" for word in words)
