"""Sets of half-open intervals of time, [start, end), many groups at once.

``_loops.interval_sets`` joins intervals in order of start, subtracts sets, and measures how much of
other intervals a set covers, each in one pass over sorted input (traces are nearly sorted already).
An interval belongs to a group (a rank, step or label); groups are kept apart in the same pass, so a
thousand of them cost no more than one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.interval_sets import join, measure_covered, subtract
from tracekit._util.arrays import Bools, Ints, SortedGroups, as_int64

_MAX_EMPTY_GROUPS = 1024
"""Empty groups up to which ``union`` takes group numbers as they are; beyond, it numbers the groups
that occur."""
_MAX_REPR = 8
"""Intervals shown by ``repr``."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Disjoint, non-touching intervals, sorted by (group, start_ns). Build them with ``union``.

    >>> a = union([0, 5, 20], [10, 12, 30])
    >>> a
    Intervals([0, 12), [20, 30))
    >>> a.total_ns
    22
    >>> a & union([8], [25])
    Intervals([8, 12), [20, 25))
    >>> a - union([8], [25])
    Intervals([0, 8), [25, 30))
    >>> a | union([12], [20])
    Intervals([0, 30))
    """

    group: Ints
    start_ns: Ints
    end_ns: Ints
    _cumulative: list[Ints] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.start_ns)

    def __repr__(self) -> str:
        several = len(self) > 0 and bool(self.group.any())
        rows = zip(
            *(column[:_MAX_REPR] for column in (self.group, self.start_ns, self.end_ns)),
            strict=True,
        )
        parts = [f"{f'{group}: ' if several else ''}[{start}, {end})" for group, start, end in rows]
        return f"Intervals({', '.join(parts)}{', …' if len(self) > _MAX_REPR else ''})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return (
            np.array_equal(self.group, other.group)
            and np.array_equal(self.start_ns, other.start_ns)
            and np.array_equal(self.end_ns, other.end_ns)
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return (Intervals, (self.group, self.start_ns, self.end_ns))

    def __or__(self, other: Intervals) -> Intervals:
        """Return the time that either set covers, group by group."""
        pairs = (
            (self.start_ns, other.start_ns),
            (self.end_ns, other.end_ns),
            (self.group, other.group),
        )
        return union(*(np.concatenate(pair) for pair in pairs))

    def __and__(self, other: Intervals) -> Intervals:
        """Return the time that both sets cover, group by group."""
        return self - (self - other)

    def __sub__(self, other: Intervals) -> Intervals:
        """Return the time that this set covers and *other* does not, group by group."""
        if not len(self) or not len(other):
            return self
        out = np.empty((3, len(self) + len(other)), np.int64)
        return _from_rows(out, subtract(*self._columns(), *other._columns(), out))

    @property
    def total_ns(self) -> int:
        """Time covered, over all groups."""
        return int((self.end_ns - self.start_ns).sum())

    def totals_ns(self, groups: int) -> Ints:
        """Return the time covered in each of the groups 0 … *groups* − 1.

        >>> union([0, 5, 3], [2, 9, 4], [0, 0, 2]).totals_ns(3).tolist()
        [6, 0, 1]
        """
        # Groups ascend: group g has the rows edges[g] to edges[g + 1].
        edges = np.searchsorted(self.group, np.arange(groups + 1))
        return np.diff(self._running_total()[edges])

    def hull(self) -> Intervals:
        """Return one interval for each group, from its first start to its last end.

        >>> union([0, 5], [2, 9]).hull()
        Intervals([0, 9))
        """
        groups = SortedGroups.of(self.group)
        start_ns = self.start_ns[groups.first]
        end_ns = self.end_ns[groups.last]
        return Intervals(self.group[groups.first], start_ns, end_ns)

    def gaps(self) -> Intervals:
        """Return the holes between each group's first start and last end.

        >>> union([0, 5, 20], [2, 9, 30]).gaps()
        Intervals([2, 5), [9, 20))
        """
        same_group = self.group[1:] == self.group[:-1]
        return Intervals(
            self.group[1:][same_group], self.end_ns[:-1][same_group], self.start_ns[1:][same_group]
        )

    def of(self, group: int) -> Intervals:
        """Return one group's intervals, as group 0."""
        return self.section(group, group + 1)

    def section(self, low: int, high: int) -> Intervals:
        """Return groups *low* … *high* − 1, numbered from 0.

        >>> union([0, 5, 3], [2, 9, 4], [0, 1, 2]).section(1, 3)
        Intervals(0: [5, 9), 1: [3, 4))
        """
        rows = slice(*np.searchsorted(self.group, [low, high]))
        return Intervals(self.group[rows] - low, self.start_ns[rows], self.end_ns[rows])

    def covered_ns(
        self, start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, group: npt.ArrayLike | None = None
    ) -> Ints:
        """Return how much of each query interval [start, end) this set covers.

        Query intervals may overlap.

        >>> union([0, 20], [10, 30]).covered_ns([5, 0, 12], [25, 40, 15]).tolist()
        [10, 20, 0]
        """
        start, end, query_group = _as_arrays(start_ns, end_ns, group)
        covered = np.zeros(len(start), np.int64)
        if len(self):
            measure_covered(
                *self._columns(), self._running_total(), query_group, start, end, covered
            )
        return covered

    def to_frame(self) -> pl.DataFrame:
        """Return a table with the columns group, start_ns and end_ns."""
        return pl.DataFrame({"group": self.group, "start_ns": self.start_ns, "end_ns": self.end_ns})

    def _running_total(self) -> Ints:
        """Return the running total of covered time; computed once."""
        if not self._cumulative:
            self._cumulative.append(
                np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)]).astype(np.int64)
            )
        return self._cumulative[0]

    def _columns(self) -> tuple[Ints, Ints, Ints]:
        """Return group, start and end as the compiled loops take them."""
        return as_int64(self.group), as_int64(self.start_ns), as_int64(self.end_ns)


def sum_by_group(values: Ints, group: Ints, groups: int) -> Ints:
    """Return the sum of the values in each of the groups 0 … *groups* − 1; *group* ascends.

    >>> sum_by_group(np.array([1, 2, 4]), np.array([0, 0, 2]), 3).tolist()
    [3, 0, 4]
    """
    # Total of the first rows of each group's range, then differences: a group without rows gets 0.
    running = np.concatenate([[0], np.cumsum(values)])
    return np.diff(running[np.searchsorted(group, np.arange(groups + 1))])


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(
    start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, group: npt.ArrayLike | None = None
) -> Intervals:
    """Return the time covered by any of these intervals, in each group.

    Empty intervals cover nothing.

    >>> union([0, 5, 3], [4, 9, 6], [0, 0, 1])
    Intervals(0: [0, 4), 0: [5, 9), 1: [3, 6))
    """
    start, end, code = _as_arrays(start_ns, end_ns, group)
    if not len(start):
        return EMPTY
    groups = 1 if group is None else int(code.max()) + 1
    if groups > len(code) + _MAX_EMPTY_GROUPS or (group is not None and code.min() < 0):
        # The loop needs memory for every group from 0 on: number those that occur, and translate
        # the result back.
        occurring, dense = np.unique(code, return_inverse=True)
        joined = union(start, end, dense)
        return Intervals(occurring[joined.group], joined.start_ns, joined.end_ns)
    scratch, out = np.empty((3, groups + 1), np.int64), np.empty((3, len(start)), np.int64)
    count = join(code, start, end, scratch, out)
    if count < 0:  # the starts of some group do not ascend
        order = _sort_by_start(start)
        count = join(code[order], start[order], end[order], scratch, out)
    return _from_rows(out, count)


def overlaps_any(
    start_ns: Ints, end_ns: Ints, stretch_start_ns: Ints, stretch_end_ns: Ints
) -> Bools:
    """Return which intervals overlap one of some stretches of time, which ascend and do not overlap each other.

    >>> overlaps_any(np.array([0, 4]), np.array([3, 6]), np.array([2, 9]), np.array([4, 12])).tolist()
    [True, False]
    """
    # The only candidate is the first stretch that ends after the interval's start; behind the last
    # there is none.
    candidate = np.searchsorted(stretch_end_ns, start_ns, side="right")
    return np.append(stretch_start_ns, np.iinfo(np.int64).max)[candidate] < end_ns


def union_of(frame: pl.DataFrame) -> Intervals:
    """Return the ``union`` over a table's start_ns and end_ns.

    >>> union_of(pl.DataFrame({"start_ns": [0, 3], "end_ns": [4, 6]}))
    Intervals([0, 6))
    """
    return union(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


def _from_rows(out: Ints, count: int) -> Intervals:
    """Return the first *count* intervals that a loop wrote to the rows group, start and end of *out*."""
    group, start, end = (row[:count].copy() for row in out)
    return Intervals(group, start, end)


def _as_arrays(start_ns: Any, end_ns: Any, group: Any) -> tuple[Ints, Ints, Ints]:
    """Return start, end and group as contiguous 64-bit integers; group 0 if *group* is None."""
    start, end = as_int64(start_ns), as_int64(end_ns)
    return start, end, np.zeros(len(start), np.int64) if group is None else as_int64(group)


def _sort_by_start(start: Ints) -> Ints:
    """Return the rows in order of start.

    numpy's stable sort is nearly free for nearly sorted input. Polars sorts on every core, which
    pays for long input in no order.
    """
    falls = int(np.count_nonzero(start[1:] < start[:-1]))
    if falls < len(start) // 16 or len(start) < 100_000:
        return np.argsort(start, kind="stable")
    return pl.Series(start).arg_sort().to_numpy().astype(np.int64)
