"""Numpy arrays: layouts that compiled loops take, and lookup and grouping of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit._loops import grouping

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
"""Row numbers or codes. There are many of them, and no trace has as many rows as 32 bits can
count."""
Floats = npt.NDArray[np.float64]
AnyInts = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def as_int64(values: npt.NDArray[Any]) -> Ints:
    """Return *values* as contiguous 64-bit integers; a copy only where they are not.

    >>> as_int64(np.arange(6, dtype=np.uint8)[::2])
    array([0, 2, 4])
    """
    return np.ascontiguousarray(values, np.int64)


def as_int32(values: npt.NDArray[Any]) -> Int32s:
    """Return *values*, which are row numbers or codes, as contiguous 32-bit integers.

    A copy only where they are not.

    >>> as_int32(np.array([3, -1])).dtype
    dtype('int32')
    """
    return np.ascontiguousarray(values, np.int32)


def as_flags(mask: Bools) -> npt.NDArray[np.uint8]:
    """Return a mask as contiguous bytes, 0 or 1.

    >>> as_flags(np.array([True, False]))
    array([1, 0], dtype=uint8)
    """
    return np.ascontiguousarray(mask, np.bool_).view(np.uint8)


def find_sorted(values: AnyInts, ordered: AnyInts) -> Ints:
    """Return the first index of each of *values* in *ordered*, which ascends.

    -1 where it does not occur.

    >>> find_sorted(np.array([3, 4]), np.array([1, 4])).tolist()
    [-1, 1]
    """
    if not len(ordered):
        return np.full(len(values), -1, np.int64)
    index = np.searchsorted(ordered, values)
    # Clip: a value behind the last is compared with the last.
    occurs = ordered.take(index, mode="clip") == values
    return np.where(occurs, index, -1)


def is_in_sorted(values: AnyInts, ordered: AnyInts) -> Bools:
    """Return which of *values* occur in *ordered*, which ascends.

    >>> is_in_sorted(np.array([3, 4]), np.array([1, 4])).tolist()
    [False, True]
    """
    return find_sorted(values, ordered) >= 0


def take_or_missing(values: AnyInts, rows: AnyInts, missing: int = -1) -> Ints:
    """Return the values at *rows*, and *missing* for a negative row.

    >>> take_or_missing(np.array([7, 8]), np.array([1, -1, 0])).tolist()
    [8, -1, 7]
    """
    return take_same_type(values, rows, missing).astype(np.int64, copy=False)


def find_ids(wanted: Ints, ids: Ints) -> Ints:
    """Return the first row of each wanted id among *ids*, which are in any order.

    -1 if it is negative or not there.

    >>> find_ids(np.array([4, 5, -1]), np.array([9, 4, -1, 4])).tolist()
    [1, -1, -1]
    """
    order = np.argsort(ids, kind="stable")
    return take_or_missing(order, np.where(wanted >= 0, find_sorted(wanted, ids[order]), -1))


def take_same_type(values: npt.NDArray[Any], rows: AnyInts, missing: int) -> npt.NDArray[Any]:
    """Return the values at *rows* as ``take_or_missing`` does, in the type of *values*."""
    if not len(values):
        return np.full(len(rows), missing, values.dtype)
    taken = values.take(rows, mode="clip")  # clip: negative rows must not count from the end
    taken[rows < 0] = missing
    return taken


def group_rows(*columns: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Number the distinct rows of some integer columns in the order in which they first appear.

    Returns:
        The number of each row, and for each number the row at which it first appears.

    >>> group_rows(np.array([7, 7, 2]), np.array([-1, -1, 0]))
    (array([0, 0, 1]), array([0, 2]))

    """
    first, *others = (as_int64(column) for column in columns)
    group, first_row = _number_pairs(first, others[0] if others else first)
    for column in others[1:]:
        group, first_row = _number_pairs(group, column)
    return group, first_row


def _number_pairs(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Number pairs in the order in which they first appear, in a hash table that grows until they fit."""
    table_size = 256
    count = -1  # as long as the pairs do not fit
    group = np.empty(len(a), np.int64)
    while count < 0:
        table_size *= 4
        first_row = np.empty(table_size, np.int64)
        count = grouping.number_pairs(a, b, np.full(table_size, -1, np.int64), first_row, group)
    return group, first_row[:count].copy()


def rank_pairs(a: AnyInts, b: AnyInts) -> Ints:
    """Number the pairs of two columns by their rank among the distinct pairs.

    >>> rank_pairs(np.array([7, 0, 7]), np.array([2, 9, 1])).tolist()
    [2, 0, 1]
    """
    # Sort the distinct pairs only (by a, then b), and look up each row's pair.
    group, first_row = group_rows(a, b)
    rank = np.empty(len(first_row), np.int64)
    rank[np.lexsort((b[first_row], a[first_row]))] = np.arange(len(first_row))
    return rank[group]


@dataclass(frozen=True, eq=False, slots=True)
class SortedGroups:
    """Groups of rows of a table that is sorted by group: the rows of a group stand next to each other.

    >>> groups = SortedGroups.of(np.array([7, 7, 7, 9]))
    >>> groups.first.tolist(), groups.size.tolist(), groups.last.tolist()
    ([0, 3], [3, 1], [2, 3])
    """

    first: Ints
    """First row of each group."""
    size: Ints
    """Number of rows of each group."""

    @classmethod
    def of(cls, key: AnyInts) -> SortedGroups:
        """Divide rows at each change of *key*."""
        begins_group = np.ones(len(key), np.bool_)
        begins_group[1:] = key[1:] != key[:-1]
        first = np.flatnonzero(begins_group)
        # A group reaches up to the first row of the next one; the last one up to the last row.
        return cls(first, np.diff(first, append=len(key)))

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.first)

    @property
    def last(self) -> Ints:
        """Last row of each group."""
        return self.first + self.size - 1

    @property
    def edges(self) -> list[int]:
        """First row of each group, then the number of rows: group g is ``[edges[g], edges[g + 1])``.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).edges
        [0, 3, 4]
        """
        return [*self.first.tolist(), int(self.size.sum())]

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each row the value of its group.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).spread(np.array([5, 6])).tolist()
        [5, 5, 5, 6]
        """
        return np.repeat(values, self.size)

    def number_of_rows(self) -> Int32s:
        """Return for each row the number of its group, from 0.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).number_of_rows().tolist()
        [0, 0, 0, 1]
        """
        return self.spread(np.arange(len(self), dtype=np.int32))

    def positions(self) -> Ints:
        """Return for each row its position in its group, from 0.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).positions().tolist()
        [0, 1, 2, 0]
        """
        first = self.spread(self.first)
        positions: Ints = np.arange(len(first)) - first
        return positions

    def lowest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the lowest value of each group.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).lowest(np.array([3, 1, 2, 8])).tolist()
        [1, 8]
        """
        return self._reduce(np.minimum, values)

    def highest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the highest value of each group.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).highest(np.array([3, 1, 2, 8])).tolist()
        [3, 8]
        """
        return self._reduce(np.maximum, values)

    def total(self, values: Ints) -> Ints:
        """Return the sum of the values of each group.

        >>> SortedGroups.of(np.array([7, 7, 7, 9])).total(np.array([3, 1, 2, 8])).tolist()
        [6, 8]
        """
        return self._reduce(np.add, values)

    def count(self, mask: Bools) -> Ints:
        """Return in how many rows of each group *mask* holds.

        >>> groups = SortedGroups.of(np.array([7, 7, 7, 9]))
        >>> groups.count(np.array([True, False, True, False])).tolist()
        [2, 0]
        """
        return self.total(mask.astype(np.int64))

    def _reduce(self, ufunc: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return *ufunc* over the values of each group; ``reduceat`` takes no empty list of groups."""
        if not len(self):
            return values[:0]
        reduced: npt.NDArray[Any] = ufunc.reduceat(values, self.first)
        return reduced
