"""Classification rules and the TOML files they are read from.

A rule names the evidence it needs and the label it gives; the first rule that matches an event wins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from tracekit._util.patterns import LinearPattern
from tracekit._util.text import did_you_mean
from tracekit.errors import RuleError
from tracekit.schema import LABELS, PASSES

PACKS = Path(__file__).parent / "packs"
"""Folder of the rules files that ship with tracekit."""
KERNEL_FAMILIES = "70-kernels.toml"
"""File of the folder that holds families of kernels instead of rules (``kernel_families``)."""

TIERS = ("annotation", "autograd", "group", "shapes", "name", "neighbour")
"""Kinds of evidence, the most trusted first. Rules are tried in this order, then in the order they are written."""

TEXT_COLUMNS = (
    "class", "kind", "name", "op", "chain", "annotation", "annotations", "modules", "node", "fwd_op", "site", "feeds",
    "role", "role_from", "after_role", "visit", "gemm_turn", "gemm_half", "gemm_share", "gradient", "direction",
    "direction_from", "library", "call", "group", "group_desc", "group_ranks", "group_kind", "group_use",
    "group_holds", "group_shape", "next_to", "shared_label",
    "comm_pass", "exchange", "exchange_pass", "leads_to", "stream_pass", "copy", "host",
    "copy_use", "stream_use", "domain",
)  # fmt: skip
NUMBER_COLUMNS = ("bytes", "peer", "stream", "graph")
FLAG_COLUMNS = ("gemm", "trained", "deferred", "launched", "wgrad_annotated")
COLUMNS = (*TEXT_COLUMNS, *NUMBER_COLUMNS, *FLAG_COLUMNS)
"""Columns of evidence that a rule may test (``evidence.gather_evidence``)."""
_COLUMN_TYPES = {**dict.fromkeys(TEXT_COLUMNS, "text"), **dict.fromkeys(NUMBER_COLUMNS, "number"),
          **dict.fromkeys(FLAG_COLUMNS, "flag")}  # fmt: skip

Condition = str | bool | int | tuple[str, ...]


COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\d+)")
"""Condition on a number such as ``>= 1024``."""
DEFAULT_CONFIDENCE = 0.9
_RULE_KEYS = ("name", "label", "when", "unless", "pass", "module", "confidence", "tier")
_SEE_DOCS = "see docs/rules.md"


class Rule(msgspec.Struct, frozen=True):
    """One rule: the label of events that meet all conditions of ``when`` and none of ``unless``.

    >>> Rule("mine", label="forward", when={"name": "my_kernel"}).confidence
    0.9
    """

    name: str
    label: str
    when: Mapping[str, Condition] = msgspec.field(default_factory=dict)
    unless: Mapping[str, Condition] = msgspec.field(default_factory=dict)
    passes: str | None = None  # "forward" or "backward"; None leaves it to the label and the evidence
    module: str | None = None
    confidence: float = DEFAULT_CONFIDENCE
    tier: str = "name"
    pack: str = "python"

    def __post_init__(self) -> None:
        problem = _rule_problem(self)
        if problem:
            raise RuleError(f"rule {self.name!r}: {problem}", hint=_SEE_DOCS)


class NamedKind(msgspec.Struct, frozen=True):
    """Kind of a process group, or module of an event, with the conditions by which it is recognised."""

    value: str
    when: Mapping[str, Condition]


class RuleBook(msgspec.Struct, frozen=True):
    """Rules in the order in which they are tried, and how groups and modules are recognised.

    >>> mine = RuleBook((Rule("mine", label="forward", when={"name": "my_kernel"}),))
    >>> mine.before(builtin_rules()).rules[0].name
    'mine'
    """

    rules: tuple[Rule, ...]
    groups: tuple[NamedKind, ...] = ()
    modules: tuple[NamedKind, ...] = ()

    def before(self, other: RuleBook) -> RuleBook:
        """Return a book with this book's rules first, then *other*'s; a rule of the same name replaces the other's."""
        names = {rule.name for rule in self.rules}
        rest = tuple(rule for rule in other.rules if rule.name not in names)
        return RuleBook(self.rules + rest, self.groups + other.groups, self.modules + other.modules)


def load_rules(path: str | Path) -> RuleBook:
    r"""Read a rules file; an error names the file and the line.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "my.toml")
    ...     _ = file.write_text('[[rule]]\nname = "mine"\nlabel = "forward"\nwhen = { name = "^my_kernel" }\n')
    ...     load_rules(file).rules[0].label
    'forward'
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RuleError(f"{path}: {reason}", hint="give the path of a TOML file with [[rule]] tables") from None
    return parse_rules(text, str(path), Path(path).stem)


def parse_rules(text: str, source: str, pack: str, *, shipped: bool = False) -> RuleBook:
    """Read rules from TOML text.

    Args:
        text: The TOML text.
        source: Name of the file, for errors.
        pack: Name of the family of rules.
        shipped: The file is part of tracekit, and may use any regular expression. Those of users run on an engine whose
            time is linear (``LinearPattern``).
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+)", str(error))
        line = match.group(1) if match else str(text.count("\n") + 1)
        raise RuleError(f"{source}:{line}: {str(error).split(' (at')[0]}", hint="this is not valid TOML") from None
    except RecursionError:
        raise RuleError(f"{source}: tables are nested too deeply", hint="this is not a rules file") from None
    file = _RulesFile(text, source, pack, shipped)
    for key in data:
        if key not in ("rule", "group", "module"):
            hint = "a rules file holds [[rule]], [[group]] and [[module]]"
            raise file.error(key, 0, key, f"unknown table {key!r}", hint)
    return RuleBook(
        tuple(_parse_rule(table) for table in _tables(file, data, "rule")),
        tuple(_parse_kind(table, "kind") for table in _tables(file, data, "group")),
        tuple(_parse_kind(table, "name") for table in _tables(file, data, "module")),
    )


def shipped_packs(folder: Path = PACKS) -> dict[str, str]:
    """Return the TOML text of each shipped rules file by file name, in the order in which they are tried.

    >>> "50-copies.toml" in shipped_packs()
    True
    """
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.toml"))}


@lru_cache(maxsize=1)
def builtin_rules() -> RuleBook:
    """Return the rules that ship with tracekit, sorted by tier.

    >>> "memset" in [rule.name for rule in builtin_rules().rules]
    True
    """
    books = [
        parse_rules(text, name, name.removesuffix(".toml").lstrip("0123456789-"), shipped=True)
        for name, text in shipped_packs().items()
        if name != KERNEL_FAMILIES
    ]
    rules = sorted((rule for book in books for rule in book.rules), key=lambda rule: TIERS.index(rule.tier))
    groups = tuple(kind for book in books for kind in book.groups)
    return RuleBook(tuple(rules), groups, tuple(kind for book in books for kind in book.modules))


def _rule_problem(rule: Rule) -> str | None:
    """Return the first mistake in a rule; None if there is none."""
    if rule.label not in LABELS:
        return f"unknown label {rule.label!r}"
    if rule.passes is not None and rule.passes not in PASSES:
        return f"unknown pass {rule.passes!r}"
    if rule.tier not in TIERS:
        return f"unknown tier {rule.tier!r}"
    if not 0 <= rule.confidence <= 1:
        return f"confidence {rule.confidence} is not between 0 and 1"
    conditions = (*rule.when.items(), *rule.unless.items())
    problems = (_condition_problem(column, condition) for column, condition in conditions)
    return next((problem for problem in problems if problem), None)


def _condition_problem(column: str, condition: object) -> str | None:
    """Return what is wrong with a condition on a column; None if nothing is."""
    column_type = _COLUMN_TYPES.get(column)
    if column_type is None:
        return f"unknown evidence {column!r}"
    if column_type == "flag" and not isinstance(condition, bool):
        return f"{column!r} is true or false"
    if column_type == "number" and not _is_number_condition(condition):
        return f"{column!r} is a whole number, or a comparison such as '>= 1024'"
    if column_type == "text" and isinstance(condition, str):
        if problem := condition.problem() if isinstance(condition, LinearPattern) else _pattern_problem(condition):
            return f"{column!r} is not a regular expression: {problem}"
    elif column_type == "text" and not isinstance(condition, (bool, tuple, list)):
        return f"{column!r} is a regular expression, a list of exact values, or true/false for present/absent"
    return None


def _pattern_problem(pattern: str) -> str:
    """Return why Python cannot compile a pattern; empty if it can."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return ""


def _is_number_condition(condition: object) -> bool:
    if isinstance(condition, str):
        return COMPARISON.fullmatch(condition) is not None
    return isinstance(condition, int) and not isinstance(condition, bool)


def _choices_hint(word: str, choices: Sequence[str]) -> str:
    """Return the hint for a word that is none of the *choices*: the nearest one, or all of them."""
    return did_you_mean(word, choices, otherwise=f"one of {', '.join(choices)}")


class _RulesFile(msgspec.Struct, frozen=True):
    """A rules file. It finds the line of a mistake, which the TOML reader does not keep."""

    text: str
    source: str
    pack: str
    shipped: bool

    def error(self, table: str, index: int, key: str, message: str, hint: str, *, inside: str = "") -> RuleError:
        """Return the error about a key of the table with this name and index, or of its inner table *inside*."""
        return RuleError(f"{self.source}:{self._find_line(table, index, key, inside)}: {message}", hint=hint)

    def _find_line(self, table: str, index: int, key: str, inside: str) -> int:
        """Return the line of a table's own *key*, or of *key* in its inner table *inside*; else of the table's head."""
        lines = self.text.splitlines()
        heads = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\[?\s*{re.escape(table)}\s*\]\]?", line)]
        start = heads[index] if index < len(heads) else 0
        stop = next((i for i in range(start + 1, len(lines)) if re.match(r"\s*\[\[", lines[i])), len(lines))
        outer_key = re.escape(inside or key)
        outer = rf"^\s*[\"']?{outer_key}[\"']?\s*[=.]|^\s*\[{re.escape(table)}\.{outer_key}\]"
        first = next((i for i in range(start, stop) if re.search(outer, lines[i])), start)
        if not inside:
            return first + 1
        inner = re.compile(rf"(^|[\s{{,.])[\"']?{re.escape(key)}[\"']?\s*=")
        return next((i + 1 for i in range(first, stop) if inner.search(lines[i])), first + 1)


class _Table(msgspec.Struct, frozen=True):
    """One [[rule]], [[group]] or [[module]] of a rules file."""

    file: _RulesFile
    name: str  # "rule", "group" or "module"
    index: int
    values: Mapping[str, Any]

    def error(self, key: str, message: str, hint: str, *, inside: str = "") -> RuleError:
        """Return the error about one key of this table."""
        return self.file.error(self.name, self.index, key, message, hint, inside=inside)


def _tables(file: _RulesFile, data: Mapping[str, Any], name: str) -> list[_Table]:
    """Return the tables of one name."""
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise file.error(name, 0, name, f"{name} must be written [[{name}]]", "two brackets: a list of tables")
    return [_Table(file, name, index, values) for index, values in enumerate(tables)]


def _parse_rule(table: _Table) -> Rule:
    """Return the rule in a table."""
    values = table.values
    for key in values:
        if key not in _RULE_KEYS:
            raise table.error(key, f"unknown key {key!r}", _choices_hint(key, _RULE_KEYS))
    for key in ("name", "label"):
        if not isinstance(values.get(key), str):
            raise table.error(key, f"rule needs a {key} (text)", _SEE_DOCS)
    label = values["label"]
    if label not in LABELS:
        raise table.error("label", f"unknown label {label!r}", _choices_hint(label, LABELS))
    when, unless = (_parse_conditions(table, key) for key in ("when", "unless"))
    if not when:
        raise table.error("when", "rule needs a when table with at least one condition", _SEE_DOCS)
    for key, choices in (("pass", PASSES), ("tier", TIERS)):
        if key in values and values[key] not in choices:
            raise table.error(key, f"unknown {key} {values[key]!r}", f"one of {', '.join(choices)}")
    confidence = values.get("confidence", DEFAULT_CONFIDENCE)
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise table.error("confidence", "confidence is a number from 0 to 1", "leave it out for 0.9")
    return Rule(
        name=values["name"],
        label=label,
        when=when,
        unless=unless,
        passes=values.get("pass"),
        module=values.get("module"),
        confidence=float(confidence),
        tier=values.get("tier", "name"),
        pack=table.file.pack,
    )


def _parse_kind(table: _Table, value_key: str) -> NamedKind:
    """Return the kind of a group, or the module, in a table; *value_key* is the key of its name."""
    for key in table.values:
        if key not in (value_key, "when"):
            raise table.error(key, f"unknown key {key!r}", f"a {table.name} has {value_key} and when")
    if not isinstance(table.values.get(value_key), str):
        raise table.error(value_key, f"{table.name} needs a {value_key} (text)", _SEE_DOCS)
    return NamedKind(table.values[value_key], _parse_conditions(table, "when"))


def _parse_conditions(table: _Table, key: str) -> dict[str, Condition]:
    """Return the conditions in the inner table *key*: column and what it must be."""
    values = table.values.get(key, {})
    if not isinstance(values, Mapping):
        raise table.error(key, f"{key} is a table of conditions", 'write when = { name = "regex" }')
    conditions: dict[str, Condition] = {}
    for column, value in values.items():
        condition = tuple(value) if isinstance(value, list) else value
        if isinstance(condition, str) and _COLUMN_TYPES.get(column) == "text" and not table.file.shipped:
            condition = LinearPattern(condition)
        problem = _condition_problem(column, condition)
        if problem:
            hint = _SEE_DOCS if column in COLUMNS else _choices_hint(column, COLUMNS)
            raise table.error(column, problem, hint, inside=key)
        conditions[column] = condition
    return conditions
