"""Classification rules, the TOML files they are read from, and their matching.

A rule names the evidence it needs and the label it gives; the first rule that matches an event
wins. Conditions are tested on the distinct values of each column of evidence. Families of kernels
that multiply matrices are known by their names, which a file of their own lists.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict, replace

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn, LinearPattern, search_all
from tracekit._util.text import did_you_mean
from tracekit.documents.coding import SchemaProblem
from tracekit.documents.rules_file import (
    Condition,
    GroupTable,
    ModuleTable,
    RulesDocument,
    RuleTable,
)
from tracekit.errors import RuleError
from tracekit.schema import LABELS, PASSES

PACKS = Path(__file__).parent / "packs"
"""Folder of the rules files that ship with tracekit."""
KERNEL_FAMILIES = "70-kernels.toml"
"""File of the folder that holds families of kernels instead of rules (``KernelFamily``)."""

TIERS = ("annotation", "autograd", "group", "shapes", "name", "neighbour")
"""Kinds of evidence, the most trusted first. Rules are tried in this order, then in the order they
are written."""

TEXT_COLUMNS = (
    "class", "kind", "name", "op", "chain", "annotation", "annotations", "modules", "node", "fwd_op", "site", "feeds",
    "role", "role_from", "after_role", "visit", "gemm_turn", "gemm_half", "gemm_share", "gradient", "direction",
    "direction_from", "library", "call", "group", "group_desc", "group_ranks", "group_kind", "group_use",
    "group_holds", "group_shape", "moves", "next_to", "shared_label",
    "comm_pass", "exchange", "exchange_pass", "leads_to", "stream_pass", "copy", "host",
    "copy_use", "stream_use", "domain",
)  # fmt: skip
NUMBER_COLUMNS = ("bytes", "peer", "stream", "graph")
FLAG_COLUMNS = ("gemm", "trained", "deferred", "launched", "wgrad_annotated")
COLUMNS = (*TEXT_COLUMNS, *NUMBER_COLUMNS, *FLAG_COLUMNS)
"""Columns of evidence that a rule may test (``evidence.gather_evidence``)."""
_COLUMN_TYPES = {
    **dict.fromkeys(TEXT_COLUMNS, "text"),
    **dict.fromkeys(NUMBER_COLUMNS, "number"),
    **dict.fromkeys(FLAG_COLUMNS, "flag"),
}

COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\d{1,18})")
"""Condition on a number such as ``>= 1024``."""
_SEE_DOCS = "see docs/rules.md"
_TYPE_OF_TABLE = {"rule": RuleTable, "group": GroupTable, "module": ModuleTable}


class Rule(RuleTable, frozen=True):
    """One rule: the label of events that meet all conditions of ``when`` and none of ``unless``.

    >>> Rule("mine", label="forward", when={"name": "my_kernel"}).confidence
    0.9
    """

    pack: str = "python"
    """Family of rules to which it belongs."""

    def __post_init__(self) -> None:
        if problem := _find_problem(self):
            raise RuleError(f"rule {self.name!r}: {problem.message}", hint=_SEE_DOCS)


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
        """Return a book with this book's rules first, then *other*'s.

        A rule of the same name replaces the other's.
        """
        names = {rule.name for rule in self.rules}
        rest = tuple(rule for rule in other.rules if rule.name not in names)
        return RuleBook(self.rules + rest, self.groups + other.groups, self.modules + other.modules)

    def group_kind(self, description: str) -> str | None:
        """Return the kind of a process group by its description alone."""
        for group in self.groups:
            pattern = group.when.get("group_desc")
            tells_by_description_alone = isinstance(pattern, str) and len(group.when) == 1
            if tells_by_description_alone and re.search(str(pattern), description):
                return group.value
        return None


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
        raise RuleError(
            f"{path}: {reason}", hint="give the path of a TOML file with [[rule]] tables"
        ) from None
    return parse_rules(text, str(path), Path(path).stem)


def parse_rules(text: str, source: str, pack: str, *, shipped: bool = False) -> RuleBook:
    """Read rules from TOML text.

    Args:
        text: The TOML text.
        source: Name of the file, for errors.
        pack: Name of the family of rules.
        shipped: The file is part of tracekit, and may use any regular expression. Those of users
            run on an engine whose time is linear (``LinearPattern``).
    """
    document = _convert(_decode(text, source), text, source)
    reader = _RulesReader(text, source, pack, shipped=shipped)
    rules = [reader.read_rule(index, rule) for index, rule in enumerate(document.rule)]
    groups = []
    for index, group in enumerate(document.group):
        groups.append(reader.read_kind("group", index, group.kind, group.when))
    modules = []
    for index, module in enumerate(document.module):
        modules.append(reader.read_kind("module", index, module.name, module.when))
    return RuleBook(tuple(rules), tuple(groups), tuple(modules))


def _decode(text: str, source: str) -> dict[str, object]:
    """Return the contents of TOML text; an error names the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The message ends with "(at line 3, column 7)" or "(at end of document)".
        match = re.search(r"\(at line (\d+)", str(error))
        line = match.group(1) if match else str(text.count("\n") + 1)
        message = str(error).split(" (at")[0]
        raise RuleError(f"{source}:{line}: {message}", hint="this is not valid TOML") from None
    except RecursionError:
        raise RuleError(
            f"{source}: tables are nested too deeply", hint="this is not a rules file"
        ) from None


def _convert(data: dict[str, object], text: str, source: str) -> RulesDocument:
    """Return the tables of a rules file; an error names the line in *text*."""
    try:
        return msgspec.convert(data, RulesDocument)
    except msgspec.ValidationError as error:
        raise _schema_error(error, text, source) from None


def _schema_error(error: msgspec.ValidationError, text: str, source: str) -> RuleError:
    """Return the error of a key that is missing or unknown, or of a value of the wrong type."""
    problem = SchemaProblem.of(error)
    # The path is that of the table and the key: $.rule[1].when. A key that is missing or unknown is
    # not in it.
    match = re.match(r"\$\.?(\w*)(?:\[(\d+)\])?\.?(\w*)", problem.json_path)
    table, index, key = match.groups() if match else ("", None, "")
    name = problem.unknown_key or problem.missing_key or ""
    line = _find_line(text, table or name, int(index or 0), key or name)
    known_keys: tuple[str, ...] = ()
    if problem.unknown_key:
        known_keys = _TYPE_OF_TABLE.get(table, RulesDocument).__struct_fields__
    return RuleError(
        f"{source}:{line}: {table or 'a rules file'}: {problem.text}",
        hint=did_you_mean(name, known_keys, otherwise=_SEE_DOCS),
    )


class _RulesReader:
    """Checks the tables of one rules file; an error names the line.

    Args:
        text: The TOML text.
        source: Name of the file, for errors.
        pack: Name of the family of rules.
        shipped: Whether the file is part of tracekit (``parse_rules``).
    """

    def __init__(self, text: str, source: str, pack: str, *, shipped: bool) -> None:
        self.text = text
        self.source = source
        self.pack = pack
        self.shipped = shipped

    def read_rule(self, index: int, table: RuleTable) -> Rule:
        """Return the rule of the table ``[[rule]]`` at *index*."""
        table = replace(
            table, when=self._conditions(table.when), unless=self._conditions(table.unless)
        )
        if table.when:
            problem = _find_problem(table)
        else:
            problem = _Problem("rule needs a when table with at least one condition", "when")
        self._raise_if(problem, "rule", index)
        return Rule(**asdict(table), pack=self.pack)

    def read_kind(
        self, table: str, index: int, value: str, when: Mapping[str, Condition]
    ) -> NamedKind:
        """Return the kind of a group, or the module, of the table ``[[group]]`` or ``[[module]]`` at *index*."""
        conditions = self._conditions(when)
        self._raise_if(_find_condition_problem("when", conditions), table, index)
        return NamedKind(value, conditions)

    def _conditions(self, conditions: Mapping[str, Condition]) -> Mapping[str, Condition]:
        """Return conditions with the patterns that the file may use."""
        return conditions if self.shipped else _with_linear_patterns(conditions)

    def _raise_if(self, problem: _Problem | None, table: str, index: int) -> None:
        """Raise a problem, if there is one, with the line of its key in a table."""
        if problem is not None:
            line = _find_line(self.text, table, index, problem.key, problem.inside)
            raise RuleError(f"{self.source}:{line}: {problem.message}", hint=problem.hint)


def _with_linear_patterns(conditions: Mapping[str, Condition]) -> dict[str, Condition]:
    """Return the conditions of a user, with patterns on an engine whose time is linear."""
    with_patterns: dict[str, Condition] = {}
    for column, condition in conditions.items():
        is_pattern = isinstance(condition, str) and _COLUMN_TYPES.get(column) == "text"
        with_patterns[column] = LinearPattern(condition) if is_pattern else condition
    return with_patterns


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
    rules: list[Rule] = []
    groups: list[NamedKind] = []
    modules: list[NamedKind] = []
    for name, text in shipped_packs().items():
        if name == KERNEL_FAMILIES:
            continue
        pack = name.removesuffix(".toml").lstrip("0123456789-")
        book = parse_rules(text, name, pack, shipped=True)
        rules += book.rules
        groups += book.groups
        modules += book.modules
    rules.sort(key=lambda rule: TIERS.index(rule.tier))
    return RuleBook(tuple(rules), tuple(groups), tuple(modules))


class _Problem(NamedTuple):
    """A mistake in a rule: the key it is in, or the inner table and the key in it."""

    message: str
    key: str
    hint: str = _SEE_DOCS
    inside: str = ""


def _find_problem(rule: RuleTable) -> _Problem | None:
    """Return the first mistake in a rule; None if there is none."""
    words = (
        ("label", rule.label, LABELS),
        ("pass", rule.passes, PASSES),
        ("tier", rule.tier, TIERS),
    )
    for key, word, choices in words:
        if word is not None and word not in choices:
            hint = did_you_mean(word, choices, otherwise=f"one of {', '.join(choices)}")
            return _Problem(f"unknown {key} {word!r}", key, hint)
    if not 0 <= rule.confidence <= 1:
        return _Problem("confidence is a number from 0 to 1", "confidence", "leave it out for 0.9")
    return _find_condition_problem("when", rule.when) or _find_condition_problem(
        "unless", rule.unless
    )


def _find_condition_problem(key: str, conditions: Mapping[str, Condition]) -> _Problem | None:
    """Return the first mistake in the conditions of the inner table *key*."""
    for column, condition in conditions.items():
        if problem := condition_problem(column, condition):
            hint = (
                _SEE_DOCS
                if column in COLUMNS
                else did_you_mean(column, COLUMNS, otherwise=_SEE_DOCS)
            )
            return _Problem(problem, column, hint, inside=key)
    return None


def condition_problem(column: str, condition: object) -> str | None:
    """Return what is wrong with a condition on a column; None if nothing is."""
    column_type = _COLUMN_TYPES.get(column)
    if column_type is None:
        return f"unknown evidence {column!r}"
    if column_type == "flag" and not isinstance(condition, bool):
        return f"{column!r} is true or false"
    if column_type == "number" and not _is_number_condition(condition):
        return f"{column!r} is a whole number, or a comparison such as '>= 1024'"
    if column_type == "text" and isinstance(condition, LinearPattern):
        # A shipped pattern is compiled when it is first searched for: a trace asks for few of them.
        if problem := condition.problem():
            return f"{column!r} is not a regular expression: {problem}"
    elif column_type == "text" and not isinstance(condition, (str, bool, tuple, list)):
        return f"{column!r} is a regular expression, a list of exact values, or true/false for present/absent"
    return None


def _is_number_condition(condition: object) -> bool:
    if isinstance(condition, str):
        return COMPARISON.fullmatch(condition) is not None
    return isinstance(condition, int) and not isinstance(condition, bool)


def _find_line(text: str, table: str, index: int, key: str, inside: str = "") -> int:
    """Return the line of a table's own *key*, or of *key* in its inner table *inside*.

    Else of the table's head.
    """
    lines = text.splitlines()
    head = re.compile(rf"\s*\[\[?\s*{re.escape(table)}\s*\]\]?")
    heads = [i for i, line in enumerate(lines) if head.match(line)]
    start = heads[index] if index < len(heads) else 0
    stop = next(
        (i for i in range(start + 1, len(lines)) if re.match(r"\s*\[\[", lines[i])), len(lines)
    )
    outer_key = re.escape(inside or key)
    outer = rf"^\s*[\"']?{outer_key}[\"']?\s*[=.]|^\s*\[{re.escape(table)}\.{outer_key}\]"
    first = next((i for i in range(start, stop) if re.search(outer, lines[i])), start)
    if not inside:
        return first + 1
    inner = re.compile(rf"(^|[\s{{,.])[\"']?{re.escape(key)}[\"']?\s*=")
    return next((i + 1 for i in range(first, stop) if inner.search(lines[i])), first + 1)


class KernelFamily(msgspec.Struct, frozen=True):
    """Kernels of one library."""

    family: str
    computes: str
    """``product`` or ``attention``."""
    pattern: str
    """Regular expression that is searched for in names, whatever their capitals."""
    source: str


@cache
def kernel_families() -> tuple[KernelFamily, ...]:
    """Return all families.

    >>> {family.computes for family in kernel_families()} == {"product", "attention"}
    True
    """
    entries = tomllib.loads(shipped_packs()[KERNEL_FAMILIES])["kernel"]
    return msgspec.convert(entries, tuple[KernelFamily, ...])


@cache
def kernel_pattern(computes: str) -> str:
    """Return one regular expression for all families that compute the same.

    >>> bool(re.search(kernel_pattern("attention"), "void ck_tile::kentry<FmhaFwdKernel<>>"))
    True
    """
    return "|".join(
        f"(?i:{family.pattern})" for family in kernel_families() if family.computes == computes
    )


def family_of(kernel: str) -> str | None:
    """Return the family of a kernel by its name; None if it is in none.

    >>> family_of("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2"), family_of("relu")
    ('TensorRT-LLM batched product', None)
    """
    for family in kernel_families():
        if search_all(f"(?i:{family.pattern})", [kernel])[0]:
            return family.family
    return None


Column = CategoryColumn | Bools | Ints
Columns = Mapping[str, Column]
"""Columns of evidence of one length, by name."""
Conditions = Mapping[str, Condition]
Case = tuple[Conditions, Conditions]
"""Conditions that must hold, and conditions that must not."""

UNKNOWN = "other"
"""Label, and name of the rule, of events that no rule matches."""
_PASS_OF_LABEL = {
    "forward": "forward",
    **dict.fromkeys(("dgrad", "wgrad", "backward", "recompute"), "backward"),
}


class Decisions(NamedTuple):
    """For every event the rule that won, and what it decides."""

    label: CategoryColumn
    passes: CategoryColumn  # as the rule or the label says; null where neither does
    module: CategoryColumn  # as the rule says
    rule: CategoryColumn
    confidence: npt.NDArray[np.float32]


def apply_rules(columns: Columns, book: RuleBook, size: int) -> Decisions:
    """Give each of *size* events the label of the first rule that matches it."""
    rules = book.rules
    winner = first_matching_case(
        columns, [(rule.when, rule.unless) for rule in rules], np.arange(size)
    )

    def decided(values: Sequence[str | None]) -> CategoryColumn:
        """Return the value of the winning rule; the last value where none won."""
        indices = tuple(map(str, range(len(values))))
        return CategoryColumn(indices, np.where(winner < 0, len(rules), winner)).replace(values)

    label = decided([*(rule.label for rule in rules), UNKNOWN])
    passes = decided([*(rule.passes for rule in rules), None])
    return Decisions(
        label=label,
        passes=passes.fill(label.replace([_PASS_OF_LABEL.get(value) for value in label.values])),
        module=decided([*(rule.module or None for rule in rules), None]),
        rule=decided([*(rule.name for rule in rules), UNKNOWN]),
        confidence=np.array([*(rule.confidence for rule in rules), 0.0], np.float32)[winner],
    )


def match_kinds(
    columns: Columns, kinds: Sequence[NamedKind], rows: Ints, size: int
) -> CategoryColumn:
    """Return for *rows* the value of the first kind whose conditions all hold.

    Null for the other of *size* rows.
    """
    matched = first_matching_case(columns, [(kind.when, {}) for kind in kinds], rows)
    chosen = CategoryColumn(tuple(kind.value for kind in kinds), matched).spread(rows, size)
    return chosen.replace(chosen.values)


def meets(values: Column, condition: Condition, rows: Ints) -> Bools:
    """Return which of *rows* meet one condition.

    >>> meets(np.array([3, -1, 8]), "< 8", np.arange(3)).tolist()
    [True, False, False]
    """
    if isinstance(values, CategoryColumn):
        return values.take(rows).look_up(_values_meet(values, condition))
    if isinstance(condition, str):
        return _compare(values[rows], condition)
    equal: Bools = values[rows] == condition
    return equal


def _compare(values: Column, condition: str) -> Bools:
    """Return the mask of numbers that compare as the condition says.

    An unknown number (-1) never does.
    """
    match = COMPARISON.fullmatch(condition)
    assert match is not None
    compare = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}[match[1]]
    numbers = np.asarray(values)
    holds: Bools = compare(numbers, int(match[2])) & (numbers >= 0)
    return holds


def _values_meet(values: CategoryColumn, condition: Condition) -> Bools:
    """Return for each distinct value, and last for null, whether it meets a condition."""
    if isinstance(condition, bool):
        return np.append(np.full(len(values.values), condition), not condition)
    assert isinstance(condition, str | tuple), "numbers are compared with numbers"
    return values.answers(condition)


def first_matching_case(columns: Columns, cases: Sequence[Case], rows: Ints) -> Ints:
    """Return for each of *rows* the index of the first case that holds; -1 where none does.

    >>> size, cases = {"size": np.array([3, 5, 9])}, [({"size": "> 8"}, {}), ({"size": "> 4"}, {"size": 5})]
    >>> first_matching_case(size, cases, np.arange(3)).tolist()
    [-1, -1, 0]
    """
    matched = np.full(len(rows), -1, np.int64)
    undecided = np.arange(len(rows))
    for index, (when, unless) in enumerate(cases):
        # Most rules are about things that a trace does not have: no distinct value meets one of
        # their conditions.
        if not all(_is_possible(columns[column], condition) for column, condition in when.items()):
            continue
        hit = undecided
        for conditions, wanted in ((when, True), (unless, False)):
            for column, condition in conditions.items():
                hit = hit[meets(columns[column], condition, rows[hit]) == wanted]
        matched[hit] = index
        undecided = undecided[matched[undecided] < 0]
    return matched


def _is_possible(values: Column, condition: Condition) -> bool:
    return not isinstance(values, CategoryColumn) or bool(_values_meet(values, condition).any())
