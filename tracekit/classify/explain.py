"""Why an event got its label: its evidence, every rule tried on it, and the one that won."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.text import did_you_mean, one_line
from tracekit.classify.engine import decide_all, find_passes
from tracekit.classify.evidence import Evidence, gather
from tracekit.classify.fused import fused_operators
from tracekit.classify.microbatch import find_places
from tracekit.classify.modules import find_modules
from tracekit.classify.rules import COMPARISON, Condition, Rule, RuleBook, builtin_rules
from tracekit.errors import OptionError
from tracekit.schema import LABELS

Value = str | int | bool | float | None


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
    """Everything that speaks for one event's label.

    >>> from tracekit.schema import EVENTS, conform
    >>> copy = {"id": 1, "kind": "memset", "name": "Memset (Device)", "start_ns": 5, "end_ns": 9}
    >>> found = explain(conform(pl.DataFrame([copy]), EVENTS), 1)
    >>> found.label, found.winner.rule
    ('memory', 'memset')
    """

    selector: str
    event: Mapping[str, Value]
    label: str
    passes: str | None
    module: str | None
    confidence: float
    evidence: Mapping[str, Value]
    tried: tuple[Tried, ...]  # in order; the first that matched won
    others: tuple[tuple[str, int], ...]  # labels of all events the selector names, with their counts

    @property
    def winner(self) -> Tried | None:
        """The rule that decided, None where no rule knows."""
        return next((t for t in self.tried if t.matched), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def render(self) -> str:
        """Plain text for a terminal."""
        lines = [*self._head(), "", "evidence", *self._evidence(), "", "rules", *self._rules()]
        return "\n".join(map(one_line, lines))

    def _head(self) -> list[str]:
        event, named = self.event, sum(count for _, count in self.others)
        place = f"rank {event['rank']}, event {event['id']}, stream {event['stream']}, step {event['step']}"
        lines = [str(event["name"]), f"  {place}, {_micros(event['duration_ns'])}"]
        beside = [f"pass {self.passes}" if self.passes else "", f"module {self.module}" if self.module else ""]
        extra = ", ".join(["", *(b for b in beside if b)])
        by = f"by rule {self.winner.rule}" if self.winner else "because no rule knows it"
        lines.append(f"  {self.label}{extra}: {by}, confidence {self.confidence:.2f}")
        if named > 1:
            spread = ", ".join(f"{label} {count}" for label, count in self.others)
            lines.append(f"  one of {named} events that {self.selector!r} names: {spread}")
        return lines

    def _evidence(self) -> list[str]:
        width = max((len(k) for k in self.evidence), default=0)
        return [f"  {key:<{width}}  {value}" for key, value in self.evidence.items()]

    def _rules(self) -> list[str]:
        lines = []
        seen = False
        for t in self.tried:
            if t.matched and not seen:
                lines.append(f"  ✓ {t.rule} ({t.tier}, {t.pack}) → {t.label}: the first that matches wins")
                seen = True
            elif t.matched:
                lines.append(f"  · {t.rule} ({t.tier}, {t.pack}) → {t.label}: matches too, but comes later")
            elif not seen:
                lines.append(f"  ✗ {t.rule} ({t.tier}, {t.pack}) → {t.label}: {t.failed}")
        return lines if seen else [*lines, "  none matches: other"]


def explain(events: pl.DataFrame, selector: str | int, rules: RuleBook | None = None) -> Explanation:
    """Explain the label of one rank's GPU event.

    *selector* is an event's id, or part of a kernel's name; of several events with that name the longest is explained.

    >>> from tracekit.schema import EVENTS, conform
    >>> copy = {"id": 1, "kind": "memset", "name": "Memset (Device)", "start_ns": 5, "end_ns": 9}
    >>> explain(conform(pl.DataFrame([copy]), EVENTS), "Memset").winner.rule
    'memset'
    """
    book = rules.before(builtin_rules()) if rules else builtin_rules()
    evidence = gather(events, book.groups)
    rows = _select(evidence, selector)
    decisions = decide_all(evidence, book)
    duration = evidence.gpu.int64("end_ns") - evidence.gpu.int64("start_ns")
    row = int(rows[duration[rows].argmax()])
    places = find_places(evidence, decisions)
    shown: dict[str, Value] = dict(evidence.show(row))
    shown |= _fused(events, str(evidence.gpu.frame["name"][row]))
    for name, number in (("stage", places.stage[row]), ("microbatch", places.microbatch[row])):
        if number >= 0:
            shown[name] = int(number)
    labels, counts = np.unique(decisions.label.codes[rows], return_counts=True)
    spread = sorted(zip(labels.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1])
    modules = find_modules(evidence, decisions, book)
    passes = find_passes(evidence, decisions)
    return Explanation(
        str(selector),
        _event(evidence, row, int(duration[row])),
        _value(decisions.label, row) or "other",
        _value(passes, row),
        _value(modules, row),
        float(decisions.confidence[row]),
        shown,
        tuple(_try(evidence, rule, row, shown) for rule in book.rules),
        tuple((decisions.label.values[code], count) for code, count in spread),
    )


def _fused(events: pl.DataFrame, kernel: str) -> dict[str, Value]:
    """Return what a compiled kernel was fused from; nothing of any other."""
    if fused_operators(kernel) is None:
        return {}
    ops = events.lazy().filter(pl.col("kind") == "cpu_op").select(pl.col("name").unique().cast(pl.String)).collect()
    own = ops["name"].drop_nulls().str.strip_prefix("aten::")
    found = fused_operators(kernel, own.filter(own.str.contains("^[a-z0-9_]{2,40}$")).to_list())
    assert found is not None, "its name was one before"
    kind, operators = found
    return {"fused_from": ", ".join(operators), "fused_into": f"{kind} kernel"}


def _select(evidence: Evidence, selector: str | int) -> np.ndarray[Any, np.dtype[np.int64]]:
    text = str(selector)
    ids = evidence.gpu.int64("id")
    rows = np.flatnonzero(ids == int(text)) if text.isdecimal() else np.zeros(0, np.int64)
    if not len(rows):
        rows = np.flatnonzero(evidence.text("name").map(lambda name: text in name))
    if not len(rows):
        rows = np.flatnonzero(evidence.text("name").map(lambda name: text.lower() in name.lower()))
    if not len(rows):
        hint = did_you_mean(text, LABELS, otherwise="give part of a kernel's name, a label or an event's id")
        raise OptionError(f"no GPU event has the id, the label or a name with {text!r}", hint=hint)
    return rows


def _event(evidence: Evidence, row: int, duration: int) -> dict[str, Value]:
    record = evidence.gpu.frame.select("rank", "id", "kind", "name", "start_ns", "device", "stream", "step").row(
        row, named=True
    )
    return {**record, "duration_ns": duration}


def _value(text: CategoryColumn, row: int) -> str | None:
    return text.values[text.codes[row]] if text.codes[row] >= 0 else None


def _try(evidence: Evidence, rule: Rule, row: int, shown: Mapping[str, Value]) -> Tried:
    failed = ""
    for column, condition in rule.when.items():
        if not failed and not evidence.test(column, condition)[row]:
            failed = f"{column} is {_said(shown.get(column))}, not {_asked(condition)}"
    for column, condition in rule.unless.items():
        if not failed and evidence.test(column, condition)[row]:
            failed = f"{column} is {_said(shown.get(column))}, which rules it out"
    return Tried(rule.name, rule.pack, rule.tier, rule.label, not failed, failed)


def _said(value: Value) -> str:
    if value is None:
        return "unknown"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _asked(condition: Condition) -> str:
    if isinstance(condition, tuple):
        return " or ".join(condition)
    if isinstance(condition, bool):
        return str(condition).lower()
    return _said(condition)


def asked_of(rule: Rule) -> str:
    """Return what a rule asks of an event, in words.

    >>> asked_of(Rule("mine", "forward", when={"name": "my_kernel", "launched": True}, unless={"op": ("aten::mm",)}))
    'name matches my_kernel; launched is true; op is not aten::mm'
    """
    asks = [f"{column} {_is(condition)} {_asked(condition)}" for column, condition in rule.when.items()]
    bars = [f"{column} {_is(condition, negated=True)} {_asked(condition)}" for column, condition in rule.unless.items()]
    return "; ".join((*asks, *bars))


def _is(condition: Condition, *, negated: bool = False) -> str:
    if isinstance(condition, str) and COMPARISON.fullmatch(condition) is None:
        return "does not match" if negated else "matches"
    return "is not" if negated else "is"


def _micros(duration: Value) -> str:
    assert isinstance(duration, int)
    return f"{duration / 1000:,.1f} µs"
