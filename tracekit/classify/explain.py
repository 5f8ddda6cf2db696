"""Explanation of one event's label: its evidence, every rule that was tried, and the rule that won."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.text import did_you_mean, one_line
from tracekit.classify.classify_events import decide
from tracekit.classify.evidence import EventEvidence
from tracekit.classify.modules import fused_operators
from tracekit.classify.rules import COMPARISON, Rule, RuleBook, meets
from tracekit.documents.rules_file import Condition
from tracekit.errors import OptionError
from tracekit.schema import LABELS

Value = str | int | bool | float | None
_MAX_SHOWN_CHARS = 60
"""Characters of a value or pattern that are shown."""


class Tried(msgspec.Struct, frozen=True):
    """One rule on one event: whether it matched, and if not, the first condition that failed.

    >>> Tried("mine", "python", "name", "forward", matched=False, failed="name is not my_kernel").failed
    'name is not my_kernel'
    """

    rule: str
    pack: str
    tier: str
    label: str
    matched: bool
    failed: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """Label of one event and everything that decided it.

    >>> from tracekit.schema import EVENTS, conform
    >>> copy = {"id": 1, "kind": "memset", "name": "Memset (Device)", "start_ns": 5, "end_ns": 9}
    >>> explanation = explain(conform(pl.DataFrame([copy]), EVENTS), 1)
    >>> explanation.label, explanation.winner.rule
    ('memory', 'memset')
    """

    selector: str
    event: Mapping[str, Value]
    label: str
    passes: str | None
    module: str | None
    confidence: float
    evidence: Mapping[str, Value]
    tried: tuple[Tried, ...]  # in the order of the rules; the first that matched won
    # Labels of all events that the selector names, with their counts.
    others: tuple[tuple[str, int], ...]

    @property
    def winner(self) -> Tried | None:
        """The rule that decided; None if no rule matched."""
        return next((tried for tried in self.tried if tried.matched), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def render(self, *, all_rules: bool = True) -> str:
        """Return the text for a terminal.

        Without *all_rules*, of the rules only those that match.
        """
        width = max((len(name) for name in self.evidence), default=0)
        evidence = [f"  {name:<{width}}  {value}" for name, value in self.evidence.items()]
        lines = [
            *self._head_lines(),
            "",
            "evidence",
            *evidence,
            "",
            "rules",
            *self._rule_lines(all_rules=all_rules),
        ]
        return "\n".join(map(one_line, lines))

    def _head_lines(self) -> list[str]:
        event = self.event
        duration = self.event["duration_ns"]
        assert isinstance(duration, int)
        position = f"rank {event['rank']}, event {event['id']}, stream {event['stream']}, step {event['step']}"
        details = self.label
        if self.passes:
            details += f", pass {self.passes}"
        if self.module:
            details += f", module {self.module}"
        reason = f"by rule {self.winner.rule}" if self.winner else "because no rule knows it"
        lines = [
            str(event["name"]),
            f"  {position}, {duration / 1000:,.1f} µs",
            f"  {details}: {reason}, confidence {self.confidence:.2f}",
        ]
        selected = sum(count for _, count in self.others)
        if selected > 1:
            labels = ", ".join(f"{label} {count}" for label, count in self.others)
            lines.append(f"  one of {selected} events that {self.selector!r} names: {labels}")
        return lines

    def _rule_lines(self, *, all_rules: bool) -> list[str]:
        """Return the rules up to the winner, and later ones that match too.

        Without *all_rules* those that match.
        """
        lines = []
        has_winner = False
        for tried in self.tried:
            rule = f"{tried.rule} ({tried.tier}, {tried.pack}) → {tried.label}"
            if tried.matched and not has_winner:
                lines.append(f"  ✓ {rule}: the first that matches wins")
                has_winner = True
            elif tried.matched:
                lines.append(f"  · {rule}: matches too, but comes later")
            elif not has_winner and all_rules:
                lines.append(f"  ✗ {rule}: {tried.failed}")
        return lines if has_winner else [*lines, "  none matches: other"]


def explain(
    events: pl.DataFrame, selector: str | int, rules: RuleBook | None = None
) -> Explanation:
    """Explain the label of one of a rank's GPU events.

    Args:
        events: All events of the rank.
        selector: Id of an event, or part of a kernel's name; of several events with that name the
            longest is explained.
        rules: Rules that are tried before the built-in ones.

    >>> from tracekit.schema import EVENTS, conform
    >>> copy = {"id": 1, "kind": "memset", "name": "Memset (Device)", "start_ns": 5, "end_ns": 9}
    >>> explain(conform(pl.DataFrame([copy]), EVENTS), "Memset").winner.rule
    'memset'
    """
    classification = decide(events, rules)
    evidence = classification.evidence
    decisions = classification.decisions
    rows = _select_rows(evidence, str(selector))
    duration = evidence.gpu.int64("end_ns") - evidence.gpu.int64("start_ns")
    row = int(rows[duration[rows].argmax()])
    event_columns = ("rank", "id", "kind", "name", "start_ns", "device", "stream", "step")
    event: dict[str, Value] = evidence.gpu.frame.select(event_columns).row(row, named=True)
    values: dict[str, Value] = dict(evidence.row_values(row))
    values |= _fusion_evidence(events, str(event["name"]))
    if (module_from := classification.modules.evidence.value(row)) is not None:
        values["module_from"] = module_from
    layer = evidence.positions.layer
    stage = classification.stage
    microbatch = classification.microbatch
    numbers = {
        "stage": int(stage[row]),
        "microbatch": int(microbatch[row]),
        "layer": int(layer[row]),
    }
    values |= {name: number for name, number in numbers.items() if number >= 0}
    codes, counts = np.unique(decisions.label.codes[rows], return_counts=True)
    by_count = sorted(zip(codes.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1])
    return Explanation(
        selector=str(selector),
        event={**event, "duration_ns": int(duration[row])},
        label=decisions.label.value(row) or "other",
        passes=classification.passes.value(row),
        module=classification.modules.value.value(row),
        confidence=float(decisions.confidence[row]),
        evidence=values,
        tried=tuple(_try_rule(evidence, rule, row, values) for rule in classification.book.rules),
        others=tuple((decisions.label.values[code], count) for code, count in by_count),
    )


def _select_rows(evidence: EventEvidence, selector: str) -> Ints:
    """Return the GPU events with this id, else with this text in their name, else with it in other capitals."""
    names = evidence.text("name")
    rows = np.zeros(0, np.int64)
    if selector.isdecimal():
        rows = np.flatnonzero(evidence.gpu.int64("id") == int(selector))
    if not len(rows):
        rows = np.flatnonzero(names.map(lambda name: selector in name))
    if not len(rows):
        rows = np.flatnonzero(names.map(lambda name: selector.lower() in name.lower()))
    if not len(rows):
        hint = did_you_mean(
            selector, LABELS, otherwise="give part of a kernel's name, a label or an event's id"
        )
        raise OptionError(
            f"no GPU event has the id, the label or a name with {selector!r}", hint=hint
        )
    return rows


def _fusion_evidence(events: pl.DataFrame, kernel: str) -> dict[str, Value]:
    """Return the operators that a compiled kernel was fused from; nothing for other kernels."""
    if fused_operators(kernel) is None:
        return {}
    ops = (
        events.lazy()
        .filter(pl.col("kind") == "cpu_op")
        .select(pl.col("name").unique().cast(pl.String))
        .collect()
    )
    op_names = ops["name"].drop_nulls().str.strip_prefix("aten::")
    fusion = fused_operators(
        kernel, op_names.filter(op_names.str.contains("^[a-z0-9_]{2,40}$")).to_list()
    )
    assert fusion is not None, "only the kernel's name decides that"
    kind, operators = fusion
    return {"fused_from": ", ".join(operators), "fused_into": f"{kind} kernel"}


def _try_rule(evidence: EventEvidence, rule: Rule, row: int, values: Mapping[str, Value]) -> Tried:
    """Return whether a rule matches an event, and the first condition that fails."""
    failed = ""
    for conditions, wanted in ((rule.when, True), (rule.unless, False)):
        for column, condition in conditions.items():
            if (
                not failed
                and meets(evidence.columns[column], condition, np.array([row]))[0] != wanted
            ):
                reason = f"not {_condition_text(condition)}" if wanted else "which rules it out"
                failed = f"{column} is {shorten_value(values.get(column))}, {reason}"
    return Tried(rule.name, rule.pack, rule.tier, rule.label, not failed, failed)


def shorten_value(value: Value) -> str:
    """Return a value of the evidence as text of bounded length."""
    if value is None:
        return "unknown"
    text = str(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}…"


def _condition_text(condition: Condition) -> str:
    if isinstance(condition, tuple):
        return " or ".join(condition)
    if isinstance(condition, bool):
        return str(condition).lower()
    return shorten_value(condition)


def describe_conditions(rule: Rule) -> str:
    """Return the conditions of a rule in words.

    >>> rule = Rule("mine", "forward", when={"name": "my_kernel", "launched": True}, unless={"op": ("aten::mm",)})
    >>> describe_conditions(rule)
    'name matches my_kernel; launched is true; op is not aten::mm'
    """
    conditions = []
    for column, condition in rule.when.items():
        conditions.append(f"{column} {condition_verb(condition)} {_condition_text(condition)}")
    for column, condition in rule.unless.items():
        verb = condition_verb(condition, negated=True)
        conditions.append(f"{column} {verb} {_condition_text(condition)}")
    return "; ".join(conditions)


def condition_verb(condition: Condition, *, negated: bool = False) -> str:
    """Return the verb of a sentence that says whether a condition holds."""
    is_pattern = isinstance(condition, str) and COMPARISON.fullmatch(condition) is None
    if is_pattern:
        return "does not match" if negated else "matches"
    return "is not" if negated else "is"
