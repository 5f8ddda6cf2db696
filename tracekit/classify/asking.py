"""Which conditions events meet: asked of the distinct values of their evidence, and of all rules at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.rules import COMPARISON, Condition

Column = CategoryColumn | Bools | Ints
Columns = Mapping[str, Column]
"""Evidence: columns of one length, by name."""
Conditions = Mapping[str, Condition]
Case = tuple[Conditions, Conditions]
"""What must hold, and what must not."""

_AT_ONCE = 64
"""Cases that are told apart by the bits of one number."""


def met(values: Column, condition: Condition) -> Bools:
    """Rows that meet one condition.

    >>> met(np.array([3, -1, 8]), "< 8").tolist()
    [True, False, False]
    """
    if isinstance(values, CategoryColumn):
        return values.look_up(_answers(values, condition))
    if isinstance(condition, str):
        return _compare(values, condition)
    equal: Bools = values == condition
    return equal


def _compare(values: Column, condition: str) -> Bools:
    """Numbers that compare as asked; an unknown number never does."""
    match = COMPARISON.fullmatch(condition)
    assert match is not None
    compare = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}[match[1]]
    numbers = np.asarray(values)
    holds: Bools = compare(numbers, int(match[2])) & (numbers >= 0)
    return holds


def _answers(values: CategoryColumn, condition: Condition) -> Bools:
    """For each distinct value, and last for null: it meets a condition."""
    if isinstance(condition, bool):
        return np.append(np.full(len(values.values), condition), not condition)
    assert isinstance(condition, str | tuple), "numbers are compared with numbers"
    return values.answers(condition)


def first_met(columns: Columns, cases: Sequence[Case], rows: Ints) -> Ints:
    """For each of *rows* the place of the first case that holds, -1 where none does.

    Cases that no distinct value meets are left out before any row is looked at.

    >>> size, cases = {"size": np.array([3, 5, 9])}, [({"size": "> 8"}, {}), ({"size": "> 4"}, {"size": 5})]
    >>> first_met(size, cases, np.arange(3)).tolist()
    [-1, -1, 0]
    """
    found, left = np.full(len(rows), -1, np.int64), np.arange(len(rows))
    known: dict[tuple[str, Condition], bool] = {}
    open_cases = (place for place, (when, _) in enumerate(cases) if _possible(columns, when, known))
    while len(left) and (places := list(islice(open_cases, _AT_ONCE))):
        bits = _meets(columns, [cases[place] for place in places], rows[left])
        hit = bits > 0
        first = np.bitwise_count((bits & (~bits + np.uint64(1))) - np.uint64(1))  # bits below the lowest that is set
        found[left[hit]] = np.array(places)[first[hit]]
        left = left[~hit]
    return found


def _possible(columns: Columns, when: Conditions, known: dict[tuple[str, Condition], bool]) -> bool:
    """Return whether some value meets each condition; most rules speak of something that this trace does not have."""
    for asked in when.items():
        if asked not in known:
            values = columns[asked[0]]
            known[asked] = not isinstance(values, CategoryColumn) or bool(_answers(values, asked[1]).any())
        if not known[asked]:
            return False
    return True


def _meets(columns: Columns, cases: Sequence[Case], rows: Ints) -> npt.NDArray[np.uint64]:
    """For each of *rows* the cases that hold, one bit each."""
    bits = np.full(len(rows), (1 << len(cases)) - 1, np.uint64)
    asked: dict[tuple[str, Condition, bool], int] = {}  # the cases that a condition bars where it is met, or is not
    for place, sides in enumerate(cases):
        for bars, conditions in zip((False, True), sides, strict=True):
            for column, condition in conditions.items():
                asked[column, condition, bars] = asked.get((column, condition, bars), 0) | 1 << place
    barred: dict[str, npt.NDArray[np.uint64]] = {}
    for (column, condition, bars), mask in asked.items():
        values = columns[column]
        if isinstance(values, CategoryColumn):
            table = barred.setdefault(column, np.zeros(len(values.values) + 1, np.uint64))
            table[_answers(values, condition) == bars] |= np.uint64(mask)
        else:
            bits[met(values, condition)[rows] == bars] &= ~np.uint64(mask)
    for column, table in barred.items():
        text = columns[column]
        assert isinstance(text, CategoryColumn)
        asked_of = text if len(rows) == len(text) else text.take(rows)
        bits &= asked_of.look_up(~table) if text.values else ~table[-1]
    return bits
