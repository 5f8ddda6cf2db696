"""Sets of half-open intervals of time, [start, end), many groups at once.

Traces are nearly sorted, and interval sets are sorted: ``_loops.interval_sets`` joins intervals in order of start,
merges two sets, and measures how much of other intervals a set covers, each in one pass. Groups (ranks, steps, labels
…) are kept apart in the same pass, so a thousand of them cost no more than one. There is no other sweep code in the
project.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.interval_sets import BOTH, EITHER, FIRST_ONLY, join, measure_covered, merge
from tracekit._util.arrays import as_int64

Longs = npt.NDArray[np.int64]
_SPARE = 1024  # groups that may be empty before they are numbered anew


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

    group: Longs
    start_ns: Longs
    end_ns: Longs
    _cumulative: list[Longs] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.start_ns)

    def __repr__(self) -> str:
        several = len(self) > 0 and bool(self.group.any())
        parts = [
            f"{f'{g}: ' if several else ''}[{s}, {e})"
            for g, s, e in zip(self.group[:8], self.start_ns[:8], self.end_ns[:8], strict=True)
        ]
        return f"Intervals({', '.join(parts)}{', …' if len(self) > 8 else ''})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return all(
            np.array_equal(x, y)
            for x, y in (
                (self.group, other.group),
                (self.start_ns, other.start_ns),
                (self.end_ns, other.end_ns),
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return (Intervals, (self.group, self.start_ns, self.end_ns))

    def __or__(self, other: Intervals) -> Intervals:
        """Return what either set covers."""
        return _merged(self, other, EITHER)

    def __and__(self, other: Intervals) -> Intervals:
        """Return what both sets cover, group by group."""
        return _merged(self, other, BOTH)

    def __sub__(self, other: Intervals) -> Intervals:
        """Return what this set covers and *other* does not."""
        return _merged(self, other, FIRST_ONLY)

    @property
    def total_ns(self) -> int:
        """Time covered, over all groups."""
        return int((self.end_ns - self.start_ns).sum())

    def totals_ns(self, groups: int) -> Longs:
        """Time covered in each of the groups 0 … *groups* − 1.

        >>> union([0, 5, 3], [2, 9, 4], [0, 0, 2]).totals_ns(3).tolist()
        [6, 0, 1]
        """
        edges = np.searchsorted(self.group, np.arange(groups + 1))
        return np.diff(self._running()[edges])

    def hull(self) -> Intervals:
        """Each group's one interval from its first start to its last end.

        >>> union([0, 5], [2, 9]).hull()
        Intervals([0, 9))
        """
        if not len(self):
            return self
        first = np.flatnonzero(np.diff(self.group, prepend=self.group[0] - 1))
        last = np.append(first[1:], len(self)) - 1
        return Intervals(self.group[first], self.start_ns[first], self.end_ns[last])

    def gaps(self) -> Intervals:
        """Return the holes between each group's first start and last end.

        >>> union([0, 5, 20], [2, 9, 30]).gaps()
        Intervals([2, 5), [9, 20))
        """
        same = self.group[1:] == self.group[:-1]
        return Intervals(self.group[1:][same], self.end_ns[:-1][same], self.start_ns[1:][same])

    def of(self, group: int) -> Intervals:
        """One group's intervals, as group 0."""
        return self.section(group, group + 1)

    def section(self, low: int, high: int) -> Intervals:
        """Return groups *low* … *high* − 1, numbered from 0.

        >>> union([0, 5, 3], [2, 9, 4], [0, 1, 2]).section(1, 3)
        Intervals(0: [5, 9), 1: [3, 4))
        """
        rows = slice(*np.searchsorted(self.group, [low, high]))
        return Intervals(self.group[rows] - low, self.start_ns[rows], self.end_ns[rows])

    def covered_ns(self, start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, group: npt.ArrayLike | None = None) -> Longs:
        """Of each asked interval [start, end), the time this set covers. The asked intervals may overlap.

        >>> union([0, 20], [10, 30]).covered_ns([5, 0, 12], [25, 40, 15]).tolist()
        [10, 20, 0]
        """
        start, end, asked = _columns(start_ns, end_ns, group)
        covered = np.zeros(len(start), np.int64)
        if len(self):
            own = (as_int64(self.group), as_int64(self.start_ns), as_int64(self.end_ns), self._running())
            measure_covered(*own, as_int64(asked), as_int64(start), as_int64(end), covered)
        return covered

    def to_frame(self) -> pl.DataFrame:
        """As a table with columns group, start_ns, end_ns."""
        return pl.DataFrame({"group": self.group, "start_ns": self.start_ns, "end_ns": self.end_ns})

    def _running(self) -> Longs:
        """Return the running total of covered time; computed once."""
        if not self._cumulative:
            self._cumulative.append(np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)]).astype(np.int64))
        return self._cumulative[0]


def sums(values: Longs, group: Longs, groups: int) -> Longs:
    """Return the sum of the values in each of the groups 0 … *groups* − 1; *group* ascends.

    >>> sums(np.array([1, 2, 4]), np.array([0, 0, 2]), 3).tolist()
    [3, 0, 4]
    """
    running = np.concatenate([[0], np.cumsum(values)])
    return np.diff(running[np.searchsorted(group, np.arange(groups + 1))])


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, group: npt.ArrayLike | None = None) -> Intervals:
    """Return the time covered by any of these intervals, in each group. Empty intervals cover nothing.

    >>> union([0, 5, 3], [4, 9, 6], [0, 0, 1])
    Intervals(0: [0, 4), 0: [5, 9), 1: [3, 6))
    """
    start, end, code = _columns(start_ns, end_ns, group)
    if not len(start):
        return EMPTY
    groups = int(code.max()) + 1
    if groups > len(code) + _SPARE or code.min() < 0:
        codes, dense = np.unique(code, return_inverse=True)
        found = union(start, end, dense)
        return Intervals(codes[found.group], found.start_ns, found.end_ns)
    room, out = np.empty((3, groups + 1), np.int64), np.empty((3, len(start)), np.int64)
    count = join(as_int64(code), as_int64(start), as_int64(end), room, out)
    if count < 0:
        order = _by_start(start)
        count = join(code[order], start[order], end[order], room, out)
    return Intervals(out[0, :count].copy(), out[1, :count].copy(), out[2, :count].copy())


def touches_any(
    start_ns: Longs, end_ns: Longs, stretch_start_ns: Longs, stretch_end_ns: Longs
) -> npt.NDArray[np.bool_]:
    """Return which intervals overlap one of some stretches, which ascend and do not overlap each other.

    >>> touches_any(np.array([0, 4]), np.array([3, 6]), np.array([2, 9]), np.array([4, 12])).tolist()
    [True, False]
    """
    # The only candidate is the first stretch that ends after the interval's start; behind the last there is none.
    candidate = np.searchsorted(stretch_end_ns, start_ns, side="right")
    return np.append(stretch_start_ns, np.iinfo(np.int64).max)[candidate] < end_ns


def union_of(frame: pl.DataFrame, group: str | None = None) -> Intervals:
    """``union`` over a table's start_ns and end_ns; *group* names a column of small integers from 0.

    >>> union_of(pl.DataFrame({"start_ns": [0, 3], "end_ns": [4, 6]}))
    Intervals([0, 6))
    """
    return union(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), frame[group].to_numpy() if group else None)


def _merged(first: Intervals, second: Intervals, way: int) -> Intervals:
    """Return two sets as one, in one pass over both: each is sorted and disjoint already."""
    if not len(second):
        return EMPTY if way == BOTH else first
    if not len(first):
        return second if way == EITHER else EMPTY
    out = np.empty((3, len(first) + len(second)), np.int64)
    count = merge(
        as_int64(first.group),
        as_int64(first.start_ns),
        as_int64(first.end_ns),
        as_int64(second.group),
        as_int64(second.start_ns),
        as_int64(second.end_ns),
        way,
        out,
    )
    return Intervals(out[0, :count].copy(), out[1, :count].copy(), out[2, :count].copy())


def _columns(start_ns: Any, end_ns: Any, group: Any) -> tuple[Longs, Longs, Longs]:
    start, end = np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)
    code = np.zeros(len(start), np.int64) if group is None else np.asarray(group, np.int64)
    return start, end, code


def _by_start(start: Longs) -> Longs:
    """Return the rows in order of start. Traces come nearly sorted, which a merge sort makes almost free."""
    falls = int(np.count_nonzero(start[1:] < start[:-1]))
    if falls < len(start) // 16 or len(start) < 100_000:
        return np.argsort(start, kind="stable")
    return pl.Series(start).arg_sort().to_numpy().astype(np.int64)  # uses every core
