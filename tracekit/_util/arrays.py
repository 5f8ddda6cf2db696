"""Numpy arrays: layouts that compiled loops take, and lookup and grouping of rows."""

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
    size, count = 256, -1
    group = np.empty(len(a), np.int64)
    while count < 0:
        size *= 4
        first_row = np.empty(size, np.int64)
        count = grouping.number_pairs(a, b, np.full(size, -1, np.int64), first_row, group)
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
