"""Rules are data: each names the evidence it needs and the label it gives; the first that matches wins."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

TIERS = ("annotation", "autograd", "group", "shapes", "name", "neighbour")
"""Kinds of evidence, the most trusted first. Rules are tried in this order, then in the order they are written."""

TEXT_COLUMNS = (
    "class", "kind", "name", "op", "chain", "annotation", "annotations", "node", "fwd_op", "site", "feeds", "role",
    "role_from", "after_role", "visit", "gemm_turn", "gemm_half", "gemm_share", "gradient", "direction",
    "direction_from", "library", "call", "group", "group_desc", "group_ranks", "group_kind", "group_use",
    "group_holds", "group_shape", "comm_pass", "exchange", "exchange_pass", "leads_to", "stream_pass", "copy", "host",
    "copy_use", "stream_use", "domain",
)  # fmt: skip
NUMBER_COLUMNS = ("bytes", "peer", "stream", "graph")
FLAG_COLUMNS = ("gemm", "trained", "deferred", "launched", "wgrad_annotated")
COLUMNS = (*TEXT_COLUMNS, *NUMBER_COLUMNS, *FLAG_COLUMNS)
"""What a rule may ask for."""
_TYPES = {**dict.fromkeys(TEXT_COLUMNS, "text"), **dict.fromkeys(NUMBER_COLUMNS, "number"),
          **dict.fromkeys(FLAG_COLUMNS, "flag")}  # fmt: skip

Condition = str | bool | int | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    >>> Rule("mine", label="forward", when={"name": "my_kernel"}).confidence
    0.9
    """

    name: str
    label: str
    when: Mapping[str, Condition] = field(default_factory=dict)
    unless: Mapping[str, Condition] = field(default_factory=dict)
    passes: str | None = None  # "forward", "backward"; None leaves it to the label and the evidence
    module: str | None = None
    confidence: float = 0.9
    tier: str = "name"
    pack: str = "python"

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise RuleError(f"rule {self.name!r}: {problem}", hint="see docs/rules.md")


class Kind(msgspec.Struct, frozen=True):
    """What a name stands for: a process group's description, or the module an event belongs to."""

    value: str
    when: Mapping[str, Condition]


class RuleBook(msgspec.Struct, frozen=True):
    """Every rule in the order it is tried, and the names of groups and modules.

    >>> mine = RuleBook((Rule("mine", label="forward", when={"name": "my_kernel"}),))
    >>> mine.before(builtin_rules()).rules[0].name
    'mine'
    """

    rules: tuple[Rule, ...]
    groups: tuple[Kind, ...] = ()
    modules: tuple[Kind, ...] = ()

    def before(self, other: RuleBook) -> RuleBook:
        """Put this book's rules first, then *other*'s; a rule of the same name replaces the other's."""
        names = {rule.name for rule in self.rules}
        rest = tuple(rule for rule in other.rules if rule.name not in names)
        return RuleBook(self.rules + rest, self.groups + other.groups, self.modules + other.modules)


def load_rules(path: str | Path) -> RuleBook:
    r"""Read a rules file; an error points at the file and the line.

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


def parse_rules(text: str, source: str, pack: str, *, ours: bool = False) -> RuleBook:
    """Read rules from TOML text; *source* is named in errors. Only *ours* may use patterns of any kind."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+)", str(error))
        line = match.group(1) if match else str(text.count("\n") + 1)
        raise RuleError(f"{source}:{line}: {str(error).split(' (at')[0]}", hint="this is not valid TOML") from None
    except RecursionError:
        raise RuleError(f"{source}: tables are nested too deeply", hint="this is not a rules file") from None
    where = _Lines(text, source, ours)
    for key in data:
        if key not in ("rule", "group", "module"):
            raise where.error(
                key, 0, key, f"unknown table {key!r}", "a rules file holds [[rule]], [[group]] and [[module]]"
            )
    rules = tuple(_rule(item, i, where, pack) for i, item in enumerate(_tables(data, "rule", where)))
    groups = tuple(_kind(item, i, "group", "kind", where) for i, item in enumerate(_tables(data, "group", where)))
    modules = tuple(_kind(item, i, "module", "name", where) for i, item in enumerate(_tables(data, "module", where)))
    return RuleBook(rules, groups, modules)


def shipped_packs(folder: Path = PACKS) -> dict[str, str]:
    """Return the TOML text of each shipped rules file by file name, in the order they are tried.

    >>> "50-copies.toml" in shipped_packs()
    True
    """
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.toml"))}


@lru_cache(maxsize=1)
def builtin_rules() -> RuleBook:
    """Read the rules that ship with tracekit, sorted by how far their evidence is trusted.

    >>> "memset" in [rule.name for rule in builtin_rules().rules]
    True
    """
    rules: list[Rule] = []
    groups: list[Kind] = []
    modules: list[Kind] = []
    for name, text in shipped_packs().items():
        book = parse_rules(text, name, name.removesuffix(".toml").lstrip("0123456789-"), ours=True)
        rules += book.rules
        groups += book.groups
        modules += book.modules
    return RuleBook(tuple(sorted(rules, key=lambda r: TIERS.index(r.tier))), tuple(groups), tuple(modules))


def _problems(rule: Rule) -> list[str]:
    problems = []
    if rule.label not in LABELS:
        problems.append(f"unknown label {rule.label!r}")
    if rule.passes is not None and rule.passes not in PASSES:
        problems.append(f"unknown pass {rule.passes!r}")
    if rule.tier not in TIERS:
        problems.append(f"unknown tier {rule.tier!r}")
    if not 0 <= rule.confidence <= 1:
        problems.append(f"confidence {rule.confidence} is not between 0 and 1")
    for conditions in (rule.when, rule.unless):
        for column, condition in conditions.items():
            problems += [p for p in [_condition_problem(column, condition)] if p]
    return problems


def _condition_problem(column: str, condition: object) -> str | None:
    kind = _TYPES.get(column)
    if kind is None:
        return f"unknown evidence {column!r}"
    if kind == "flag" and not isinstance(condition, bool):
        return f"{column!r} is true or false"
    if kind == "number" and not _is_number(condition):
        return f"{column!r} is a whole number, or a comparison such as '>= 1024'"
    if kind == "text" and isinstance(condition, str):
        if problem := condition.problem() if isinstance(condition, LinearPattern) else _pattern_problem(condition):
            return f"{column!r} is not a regular expression: {problem}"
    elif kind == "text" and not isinstance(condition, (bool, tuple, list)):
        return f"{column!r} is a regular expression, a list of exact values, or true/false for present/absent"
    return None


def _pattern_problem(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return ""


COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\d+)")


def _is_number(condition: object) -> bool:
    if isinstance(condition, str):
        return COMPARISON.fullmatch(condition) is not None
    return isinstance(condition, int) and not isinstance(condition, bool)


_RULE_KEYS = ("name", "label", "when", "unless", "pass", "module", "confidence", "tier")


def _rule(item: Mapping[str, Any], place: int, where: _Lines, pack: str) -> Rule:
    for key in item:
        if key not in _RULE_KEYS:
            raise where.error("rule", place, key, f"unknown key {key!r}", _near(key, _RULE_KEYS))
    for key in ("name", "label"):
        if not isinstance(item.get(key), str):
            raise where.error("rule", place, key, f"rule needs a {key} (text)", "see docs/rules.md")
    if item["label"] not in LABELS:
        raise where.error("rule", place, "label", f"unknown label {item['label']!r}", _near(item["label"], LABELS))
    when, unless = (_conditions(item, key, place, "rule", where) for key in ("when", "unless"))
    if not when:
        raise where.error(
            "rule", place, "when", "rule needs a when table with at least one condition", "see docs/rules.md"
        )
    for key, allowed in (("pass", PASSES), ("tier", TIERS)):
        if key in item and item[key] not in allowed:
            raise where.error("rule", place, key, f"unknown {key} {item[key]!r}", f"one of {', '.join(allowed)}")
    confidence = item.get("confidence", 0.9)
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise where.error("rule", place, "confidence", "confidence is a number from 0 to 1", "leave it out for 0.9")
    return Rule(
        item["name"], item["label"], when, unless, item.get("pass"), item.get("module"), float(confidence),
        item.get("tier", "name"), pack,
    )  # fmt: skip


def _kind(item: Mapping[str, Any], place: int, table: str, key: str, where: _Lines) -> Kind:
    for name in item:
        if name not in (key, "when"):
            raise where.error(table, place, name, f"unknown key {name!r}", f"a {table} has {key} and when")
    if not isinstance(item.get(key), str):
        raise where.error(table, place, key, f"{table} needs a {key} (text)", "see docs/rules.md")
    return Kind(item[key], _conditions(item, "when", place, table, where))


def _conditions(item: Mapping[str, Any], key: str, place: int, table: str, where: _Lines) -> dict[str, Condition]:
    raw = item.get(key, {})
    if not isinstance(raw, Mapping):
        raise where.error(table, place, key, f"{key} is a table of conditions", 'write when = { name = "regex" }')
    out: dict[str, Condition] = {}
    for column, value in raw.items():
        condition = tuple(value) if isinstance(value, list) else value
        if isinstance(condition, str) and _TYPES.get(column) == "text" and not where.ours:
            condition = LinearPattern(condition)
        problem = _condition_problem(column, condition)
        if problem:
            hint = "see docs/rules.md" if column in COLUMNS else _near(column, COLUMNS)
            raise where.error(table, place, column, problem, hint, inside=key)
        out[column] = condition
    return out


def _near(word: str, known: Sequence[str]) -> str:
    """Return the hint for a word that is not *known*: the nearest one, or all there are."""
    return did_you_mean(word, known, otherwise=f"one of {', '.join(known)}")


def _tables(data: Mapping[str, Any], key: str, where: _Lines) -> Sequence[Mapping[str, Any]]:
    items = data.get(key, [])
    if not isinstance(items, list) or not all(isinstance(i, Mapping) for i in items):
        raise where.error(key, 0, key, f"{key} must be written [[{key}]]", "two brackets: a list of tables")
    return items


class _Lines(msgspec.Struct, frozen=True):
    """Finds the line a problem is on, which the TOML reader does not keep."""

    text: str
    source: str
    ours: bool = False

    def error(self, table: str, place: int, key: str, message: str, hint: str, *, inside: str = "") -> RuleError:
        return RuleError(f"{self.source}:{self.line(table, place, key, inside)}: {message}", hint=hint)

    def line(self, table: str, place: int, key: str, inside: str = "") -> int:
        """Find the line of a table's own *key*, or of *key* in its inner table *inside*; else of the table's head."""
        lines = self.text.splitlines()
        heads = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\[?\s*{re.escape(table)}\s*\]\]?", line)]
        start = heads[place] if place < len(heads) else 0
        stop = next((i for i in range(start + 1, len(lines)) if re.match(r"\s*\[\[", lines[i])), len(lines))
        own = (
            rf"^\s*[\"']?{re.escape(inside or key)}[\"']?\s*[=.]|^\s*\[{re.escape(table)}\.{re.escape(inside or key)}\]"
        )
        first = next((i for i in range(start, stop) if re.search(own, lines[i])), start)
        if not inside:
            return first + 1
        word = re.compile(rf"(^|[\s{{,.])[\"']?{re.escape(key)}[\"']?\s*=")
        return next((i + 1 for i in range(first, stop) if word.search(lines[i])), first + 1)
