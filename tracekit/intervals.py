"""Sets of half-open intervals of time, [start, end), many groups at once.

Building a set rests on one fact. Sort all starts and all ends, each on its own. At any moment the number of open
intervals is (starts passed) − (ends passed), so at least *k* are open exactly inside ``[S[i+k-1], E[i])`` for some
*i*. With k = 1 that is the union, with k = *n* over *n* disjoint sets their intersection. Two sorts and a comparison,
no loop; work n log n (linear on sorted input), memory linear. Groups (ranks, steps, streams …) are laid end to end on
one line of numbers, so a thousand groups cost one sweep.

Two sets that are built already are sorted: native code (``_util.sets``) merges them in one pass, and measures how
much of other intervals they cover in another. There is no other sweep code in the project.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.native import whole
from tracekit._util.sets import BOTH, EITHER, WITHOUT, cover, merge

Longs = npt.NDArray[np.int64]
_LIMIT = 2**62  # keys on the line stay below this


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
        return _merged(self, other, WITHOUT)

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
            own = (whole(self.group), whole(self.start_ns), whole(self.end_ns), self._running())
            cover(*own, whole(asked), whole(start), whole(end), covered)
        return covered

    def to_frame(self) -> pl.DataFrame:
        """As a table with columns group, start_ns, end_ns."""
        return pl.DataFrame({"group": self.group, "start_ns": self.start_ns, "end_ns": self.end_ns})

    def _running(self) -> Longs:
        """Return the running total of covered time; computed once."""
        if not self._cumulative:
            self._cumulative.append(np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)]).astype(np.int64))
        return self._cumulative[0]


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, group: npt.ArrayLike | None = None) -> Intervals:
    """Return the time covered by any of these intervals, in each group. Empty intervals cover nothing.

    >>> union([0, 5, 3], [4, 9, 6], [0, 0, 1])
    Intervals(0: [0, 4), 0: [5, 9), 1: [3, 6))
    """
    start, end, code = _columns(start_ns, end_ns, group)
    real = end > start
    if not real.all():
        start, end, code = start[real], end[real], code[real]
    return _depth([Intervals(code, start, end)], 1)


def union_of(frame: pl.DataFrame, group: str | None = None) -> Intervals:
    """``union`` over a table's start_ns and end_ns; *group* names a column of small integers from 0.

    >>> union_of(pl.DataFrame({"start_ns": [0, 3], "end_ns": [4, 6]}))
    Intervals([0, 6))
    """
    return union(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), frame[group].to_numpy() if group else None)


def intersection(first: Intervals, *others: Intervals) -> Intervals:
    """Return what all the sets cover.

    >>> intersection(union([0], [9]), union([2], [20]), union([4], [30]))
    Intervals([4, 9))
    """
    return _depth([first, *others], 1 + len(others))


def complement(holes: Intervals, within: Intervals) -> Intervals:
    """Return what *within* covers outside *holes*.

    >>> complement(union([2, 6], [4, 20]), union([0], [10]))
    Intervals([0, 2), [4, 6))
    """
    return within - holes


def depth(
    start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, at_least: int, group: npt.ArrayLike | None = None
) -> Intervals:
    """Return the time when at least so many of the intervals are open at once.

    >>> depth([0, 2, 3], [10, 6, 8], at_least=2)
    Intervals([2, 8))
    >>> depth([0, 2, 3], [10, 6, 8], at_least=3)
    Intervals([3, 6))
    """
    start, end, code = _columns(start_ns, end_ns, group)
    real = end > start
    return _depth([Intervals(code[real], start[real], end[real])], at_least)


def _depth(sets: list[Intervals], k: int) -> Intervals:
    """Where at least *k* of all the sets' intervals are open; the empty ones are gone already."""
    group, start, end = (
        np.concatenate([getattr(s, name) for s in sets]) if len(sets) > 1 else getattr(sets[0], name)
        for name in ("group", "start_ns", "end_ns")
    )
    return _sweep(group, start, group, end, k)


def _sweep(open_group: Longs, opens: Longs, close_group: Longs, closes: Longs, k: int) -> Intervals:
    """Where the number of moments opened, less those closed, is at least *k*, group by group."""
    if len(opens) < k:
        return EMPTY
    if not open_group.any():
        start, end = _deep(_sorted(opens), _sorted(closes), k)
        return Intervals(np.zeros(len(start), np.int64), start, end)
    line = _Line.over(open_group, opens, closes)
    if line is None:
        return _sweep_in_halves(open_group, opens, close_group, closes, k)
    start, end = _deep(_sorted(line.key(open_group, opens)), _sorted(line.key(close_group, closes)), k)
    return Intervals(*line.back(start, end))


def _deep(opens: Longs, closes: Longs, k: int) -> tuple[Longs, Longs]:
    """From sorted openings and sorted closings, the merged intervals at least *k* deep."""
    opens, closes = opens[k - 1 :], closes[: len(closes) - k + 1]
    real = closes > opens
    if not real.all():
        opens, closes = opens[real], closes[real]
    if not len(opens):
        return opens.copy(), closes.copy()
    edge = np.ones(len(opens) + 1, bool)
    np.greater(opens[1:], closes[:-1], out=edge[1:-1])
    return opens[edge[:-1]], closes[edge[1:]]


def _merged(first: Intervals, second: Intervals, way: int) -> Intervals:
    """Return two sets as one, in one pass over both: each is sorted and disjoint already."""
    if not len(second):
        return EMPTY if way == BOTH else first
    if not len(first):
        return second if way == EITHER else EMPTY
    out = np.empty((3, len(first) + len(second)), np.int64)
    columns = (whole(getattr(one, name)) for one in (first, second) for name in ("group", "start_ns", "end_ns"))
    count = merge(*columns, way, out)
    return Intervals(out[0, :count].copy(), out[1, :count].copy(), out[2, :count].copy())


def _sweep_in_halves(open_group: Longs, opens: Longs, close_group: Longs, closes: Longs, k: int) -> Intervals:
    """Take the groups in two halves: so many, or times so far apart, that one line cannot hold them."""
    codes = np.unique(open_group)
    if len(codes) == 1:
        zero = np.zeros_like(open_group)
        found = _sweep(zero, opens, zero, closes, k)
        return Intervals(found.group + codes[0], found.start_ns, found.end_ns)
    middle = codes[len(codes) // 2]
    halves = ((open_group < middle, close_group < middle), (open_group >= middle, close_group >= middle))
    parts = [_sweep(open_group[a], opens[a], close_group[b], closes[b], k) for a, b in halves]
    return concat(parts)


def concat(sets: list[Intervals]) -> Intervals:
    """Join sets whose groups follow one another without overlap.

    >>> concat([union([0], [4]), union([1], [2], [1])])
    Intervals(0: [0, 4), 1: [1, 2))
    """
    return Intervals(
        np.concatenate([s.group for s in sets]),
        np.concatenate([s.start_ns for s in sets]),
        np.concatenate([s.end_ns for s in sets]),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """Groups laid end to end: key = time + group × stride."""

    origin: int
    stride: int

    @classmethod
    def over(cls, group: Longs, start: Longs, end: Longs) -> _Line | None:
        """Return the line that holds all of these, or None when the keys would not fit."""
        origin = int(start.min())
        stride = int(end.max()) - origin + 1
        groups = int(group.max()) + 1
        return cls(origin, stride) if stride * groups + abs(origin) < _LIMIT else None

    def key(self, group: Longs, time: Longs) -> Longs:
        key = group * self.stride
        key += time
        return key

    def back(self, start: Longs, end: Longs) -> tuple[Longs, Longs, Longs]:
        if not len(start):
            return start, start, end
        codes = np.arange((start[-1] - self.origin) // self.stride + 1)
        if len(codes) <= len(start):  # find each group's stretch rather than divide every key
            edges = np.append(np.searchsorted(start, codes * self.stride + self.origin), len(start))
            group = np.repeat(codes, np.diff(edges))
        else:
            group = (start - self.origin) // self.stride
        shift = group * self.stride
        start -= shift  # the sweep made these arrays: no one else holds them
        end -= shift
        return group, start, end


def _columns(start_ns: Any, end_ns: Any, group: Any) -> tuple[Longs, Longs, Longs]:
    start, end = np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)
    code = np.zeros(len(start), np.int64) if group is None else np.asarray(group, np.int64)
    return start, end, code


def _sorted(values: Longs) -> Longs:
    """Sorted values. Traces come nearly sorted, which a merge sort makes almost free."""
    falls = int(np.count_nonzero(values[1:] < values[:-1]))
    if not falls:
        return values
    if falls < len(values) // 16 or len(values) < 100_000:
        return np.sort(values, kind="stable")
    return pl.Series(values).sort().to_numpy()  # uses every core
