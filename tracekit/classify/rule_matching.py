"""Matching of rules: the first rule whose conditions an event meets decides its label.

Conditions are tested on the distinct values of each column of evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.rules import COMPARISON, NamedKind, RuleBook
from tracekit.documents.rules_file import Condition

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
    "dgrad": "backward",
    "wgrad": "backward",
    "backward": "backward",
    "recompute": "backward",
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
    winner = first_matching_case(columns, [(rule.when, rule.unless) for rule in rules], np.arange(size))

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


def match_kinds(columns: Columns, kinds: Sequence[NamedKind], rows: Ints, size: int) -> CategoryColumn:
    """Return for *rows* the value of the first kind whose conditions all hold; null for the other of *size* rows."""
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
    """Return the mask of numbers that compare as the condition says; an unknown number (-1) never does."""
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
    matched, undecided = np.full(len(rows), -1, np.int64), np.arange(len(rows))
    for index, (when, unless) in enumerate(cases):
        # Most rules are about things that a trace does not have: no distinct value meets one of their conditions.
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
