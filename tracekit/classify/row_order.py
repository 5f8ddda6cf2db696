"""Row arithmetic for several modules of the classifier, and columns filled by one kind of evidence after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from tracekit._util.arrays import AnyInts, Bools, Ints
from tracekit._util.categories import CategoryColumn


def mask_of_rows(size: int, rows: AnyInts, values: Bools | bool = True) -> Bools:
    """Return a mask of *size* rows with *values* at *rows* and False elsewhere.

    >>> mask_of_rows(3, np.array([2])).tolist()
    [False, False, True]
    """
    mask = np.zeros(size, np.bool_)
    mask[rows] = values
    return mask


def nearest_rows(mask: Bools) -> tuple[Ints, Ints]:
    """Return for each row the nearest row in *mask* at or before it, and the nearest at or after it; -1 where none.

    >>> [rows.tolist() for rows in nearest_rows(np.array([False, True, False]))]
    [[-1, 1, 1], [1, 1, -1]]
    """
    size = len(mask)
    row = np.arange(len(mask))
    before = np.maximum.accumulate(np.where(mask, row, -1))
    after = np.minimum.accumulate(np.where(mask, row, size)[::-1])[::-1]
    return before, np.where(after < size, after, -1)


def positions_in_groups(group: Ints) -> tuple[Ints, Ints]:
    """Return for every row its position among the rows of its group, and how many rows the group has.

    >>> position, count = positions_in_groups(np.array([4, 9, 4]))
    >>> position.tolist(), count.tolist()
    ([0, 0, 1], [2, 1, 2])
    """
    rows = pl.DataFrame({"group": group})
    positions = rows.select(
        pl.int_range(pl.len()).over("group"), count=pl.len().cast(pl.Int64).over("group")
    )
    position, count = (column.to_numpy() for column in positions)
    return position, count


def agreed_values(group: AnyInts, value: AnyInts, groups: int) -> Ints:
    """Return for each group the value that all of its rows have.

    -1 where they differ or there are none.

    >>> agreed_values(np.array([0, 0, 1, 1]), np.array([7, 7, 7, 8]), 3).tolist()
    [7, -1, -1]
    """
    highest = np.full(groups, -1, np.int64)
    np.maximum.at(highest, group, value)
    lowest = highest.copy()
    np.minimum.at(lowest, group, value)
    return np.where(lowest == highest, highest, -1)


def number_values(column: CategoryColumn, number: Callable[[str], int], missing: int = -1) -> Ints:
    """Return for every row the *number* of its value, computed once per distinct value.

    *missing* for null.

    >>> number_values(CategoryColumn(("a", "bb"), np.array([1, 0, -1])), len).tolist()
    [2, 1, -1]
    """
    return column.look_up(np.array([*map(number, column.values), missing], np.int64))


def codes_in(column: CategoryColumn, values: Sequence[str]) -> Ints:
    """Return for every row the index of its value in *values*; -1 for null and for any other value.

    >>> codes_in(CategoryColumn(("a", "b"), np.array([1, 0, -1])), ("b", "c")).tolist()
    [0, -1, -1]
    """
    code_of = {value: code for code, value in enumerate(values)}
    return number_values(column, lambda value: code_of.get(value, -1))


class FirstEvidence:
    """A value for every row, and the evidence for it. The evidence that is filled in first counts.

    >>> roles = FirstEvidence.empty(2)
    >>> roles.fill_mask("shapes", "wgrad", np.array([True, False]))
    >>> roles.fill_mask("order", "dgrad", np.array([True, True]))
    >>> roles.value.strings(), roles.evidence.strings()
    (['wgrad', 'dgrad'], ['shapes', 'order'])
    """

    def __init__(self, value: CategoryColumn, evidence: CategoryColumn) -> None:
        self.value = value
        self.evidence = evidence

    @classmethod
    def empty(cls, size: int) -> FirstEvidence:
        """Return a column of *size* rows without values."""
        return cls(CategoryColumn.constant(None, size), CategoryColumn.constant(None, size))

    def fill(self, evidence: str, value: CategoryColumn) -> None:
        """Take *value* where there is none yet."""
        new = value.present & ~self.value.present
        if new.any():
            self.value = self.value.fill(value)
            self.evidence = self.evidence.fill(CategoryColumn.choose(len(value), [(evidence, new)]))

    def fill_mask(self, evidence: str, value: str, mask: Bools) -> None:
        """Take one *value* for the rows of *mask* that have none yet."""
        self.fill(evidence, CategoryColumn.choose(len(mask), [(value, mask)]))
