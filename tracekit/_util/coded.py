"""Repeating text as numbers: a few hundred distinct values, millions of rows.

Regular expressions run over the distinct values only, and every row is a lookup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.native import native, whole
from tracekit._util.records import dataclass

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

LONGEST = 8192
"""Letters of a name that our own patterns look at; no compiler writes as many, and damage writes millions."""


REMEMBERED = 4096
"""Names for which the answer of each of our own patterns is kept: the same few come with every rank of a run."""


class Linear(str):
    """A pattern that somebody else wrote: the time it takes grows with the text it is tried on and no faster.

    Python's engine tries alternatives one by one, and a few letters such as ``(a+)+$`` keep it busy for ever; the
    engine of polars follows all of them at once. It knows neither look-around nor back-references.

    >>> Linear("^mine_").found_in(["mine_gemm", "other"]).tolist()
    [True, False]
    >>> Linear("(?=x)").problem()
    'look-around, including look-ahead and look-behind, is not supported'
    """

    __slots__ = ()

    def problem(self) -> str:
        """Return why it cannot be used; empty where it can."""
        try:
            self.found_in([""])
        except pl.exceptions.ComputeError as error:
            problems = [line.removeprefix("error: ") for line in str(error).splitlines() if line.startswith("error: ")]
            return (problems or str(error).splitlines())[0]
        return ""

    def found_in(self, values: Sequence[str]) -> Bools:
        """Return in which of the values it is found."""
        return pl.Series(values, dtype=pl.String).str.contains(str(self)).to_numpy().astype(np.bool_)


class Own(str):
    """A pattern that ships with tracekit: the tests compile all of them, so that a process need not."""

    __slots__ = ()


@cache
def _finder(pattern: str) -> Callable[[str], bool]:
    """Return a test whether one of our own patterns is found."""
    search = re.compile(pattern).search

    known: dict[str, bool] = {}

    def found(value: str) -> bool:
        answer = known.get(value)
        if answer is None:
            answer = search(value, 0, LONGEST) is not None
            if len(known) < REMEMBERED and len(value) < LONGEST:
                known[value] = answer
        return answer

    return found


_MISSING = 2**32 - 1


@native("int64(uint32[::1], int64[::1], int64[::1], int64[::1])")
def _encode(numbers: npt.NDArray[np.uint32], lookup: Ints, first: Ints, codes: Ints) -> int:
    """Number the values in the order they are first seen, and note in *first* where; return how many there are."""
    count = 0
    for i in range(len(numbers)):
        if numbers[i] == _MISSING:
            codes[i] = -1
            continue
        code = lookup[numbers[i]]
        if code < 0:
            code = count
            lookup[numbers[i]] = code
            first[code] = i
            count += 1
        codes[i] = code
    return count


def among(values: Ints, ordered: Ints) -> Bools:
    """Which of *values* occur in *ordered*; numbers may be far apart, so no table of all that lie between.

    >>> among(np.array([3, 4]), np.array([1, 4])).tolist()
    [False, True]
    """
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    contained: Bools = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return contained


def alike(*columns: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Return a number for each row, the same where all *columns* are, as they are first seen; and where each is.

    Columns hold whole numbers from -1 (null, say), the smaller the better.

    >>> alike(np.array([7, 7, 2]), np.array([-1, -1, 0]))
    (array([0, 0, 1]), array([0, 2]))
    """
    code, first = np.zeros(len(columns[0]), np.int64), np.zeros(1, np.int64)
    for column in columns:
        width = int(column.max(initial=-1)) + 2
        code, first = _numbered(code * width + column + 1, len(first) * width)
    return code, first


def _numbered(keys: Ints, size: int) -> tuple[Ints, Ints]:
    """Number the *keys*, which lie below *size*, in the order they are first seen, and say where that is."""
    if size <= 4 * len(keys) + 65536:
        lookup, first, codes = np.full(size, -1), np.empty(min(size, len(keys)), np.int64), np.empty_like(keys)
        count = _encode(keys.astype(np.uint32), lookup, first, codes)
        return codes, first[:count]
    _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[codes], first[order]


@native("void(int64[::1], int64[::1], int64, int64[::1])")
def _pick(values: Ints, rows: Ints, missing: int, out: Ints) -> None:
    for i in range(len(rows)):
        out[i] = values[rows[i]] if rows[i] >= 0 else missing


def pick(values: Ints, rows: Ints, missing: int = -1) -> Ints:
    """Return the values at *rows*; *missing* for a negative row.

    >>> pick(np.array([7, 8]), np.array([1, -1, 0])).tolist()
    [8, -1, 7]
    """
    out = np.empty(len(rows), np.int64)
    _pick(whole(values), whole(rows), missing, out)
    return out


@dataclass(frozen=True)
class Text:
    """A column of text: distinct *values*, and for every row the place of its value (-1 where null)."""

    values: tuple[str, ...]
    codes: Ints

    @classmethod
    def of(cls, series: pl.Series) -> Text:
        """Read a polars text column.

        >>> Text.of(pl.Series(["b", None, "a", "b"])).codes.tolist()
        [0, -1, 1, 0]
        """
        column = series if isinstance(series.dtype, pl.Enum) else series.cast(pl.Categorical())
        missing = column.null_count()
        if missing == len(column):
            return cls((), np.full(len(series), -1, np.int64))
        physical = column.to_physical()
        most = int(physical.max())  # type: ignore[arg-type]
        numbers = (physical.fill_null(_MISSING) if missing else physical).to_numpy()
        lookup, first, codes = np.full(most + 1, -1), np.empty(most + 1, np.int64), np.empty(len(column), np.int64)
        count = _encode(np.ascontiguousarray(numbers, np.uint32), lookup, first, codes)
        return cls(tuple(column.gather(first[:count]).cast(pl.String).to_list()), codes)

    @classmethod
    def constant(cls, value: str | None, rows: int) -> Text:
        """Repeat one value, or null, on every row."""
        return cls(() if value is None else (value,), np.full(rows, -1 if value is None else 0, np.int64))

    @classmethod
    def choose(cls, rows: int, cases: Sequence[tuple[str, Bools]]) -> Text:
        """Take the value of the first case whose mask is true.

        >>> Text.choose(2, [("x", np.array([True, False])), ("y", np.array([True, True]))]).strings()
        ['x', 'y']
        """
        codes = np.full(rows, -1, np.int64)
        for place, (_, mask) in reversed(list(enumerate(cases))):
            codes[mask] = place
        return cls(tuple(value for value, _ in cases), codes)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def present(self) -> Bools:
        """Rows that have a value."""
        return self.codes >= 0

    def map(self, test: Callable[[str], bool]) -> Bools:
        """Rows whose value passes *test*; it runs once for each distinct value, and null never passes."""
        return self._where(np.fromiter((bool(test(v)) for v in self.values), np.bool_, len(self.values)))

    def _where(self, hits: Bools) -> Bools:
        """Rows whose value is among *hits*; most patterns speak of something that a trace does not have."""
        return np.append(hits, False)[self.codes] if hits.any() else np.zeros(len(self.codes), np.bool_)

    def matches(self, pattern: str) -> Bools:
        """Rows in whose value the regular expression is found."""
        if isinstance(pattern, Linear):
            return self._where(pattern.found_in(self.values))
        return self.map(_finder(pattern))

    def extract(self, pattern: str, group: int | str = 1) -> Text:
        """Keep what a group of the pattern holds; null where it is not found."""
        search = re.compile(pattern).search
        matches = [search(value, 0, LONGEST) for value in self.values]
        return self.replace([m.group(group) if m else None for m in matches])

    def replace(self, values: Sequence[str | None]) -> Text:
        """Exchange each distinct value for another, or for null."""
        distinct = tuple(dict.fromkeys(v for v in values if v is not None))
        if distinct == tuple(values):
            return Text(distinct, self.codes)
        place = {v: i for i, v in enumerate(distinct)}
        lookup = np.array([*(-1 if v is None else place[v] for v in values), -1], np.int64)
        return Text(distinct, lookup[self.codes])

    def take(self, rows: Ints) -> Text:
        """Pick the values at *rows*; a negative row gives null."""
        return Text(self.values, pick(self.codes, rows))

    def where(self, mask: Bools) -> Text:
        """Null outside *mask*."""
        return Text(self.values, np.where(mask, self.codes, -1))

    def fill(self, other: Text) -> Text:
        """Put *other*'s value where this column is null."""
        if not other.values:
            return self
        values = self.values + other.values
        codes = np.where(self.present, self.codes, np.where(other.present, other.codes + len(self.values), -1))
        return Text(values, codes).replace(values)

    def numbers(self) -> Ints:
        """Read the values as integers, -1 where null or longer than 64 bits hold."""
        return np.array([*(int(v) if len(v) < 19 else -1 for v in self.values), -1], np.int64)[self.codes]

    def value(self, row: int) -> str | None:
        """One row's value."""
        code = self.codes[row]
        return self.values[code] if code >= 0 else None

    def strings(self) -> list[str | None]:
        """Every row's value."""
        lookup = (*self.values, None)
        return [lookup[i] for i in self.codes]

    def series(self, name: str) -> pl.Series:
        """As a categorical polars column."""
        values = pl.Series(name, [*self.values, None], dtype=pl.String).cast(pl.Categorical())
        return values.gather(np.where(self.codes < 0, len(self.values), self.codes))


Kind = tuple[str | None, ...]
"""One value of each of several columns."""


def kinds(rows: Ints, *columns: Text) -> list[tuple[Kind, Ints]]:
    """Return *rows* apart by their values in all *columns*, in the order in which each kind is first seen.

    >>> text = Text.of(pl.Series(["b", "a", "b"]))
    >>> [(kind, rows.tolist()) for kind, rows in kinds(np.arange(3), text)]
    [(('b',), [0, 2]), (('a',), [1])]
    """
    key = np.zeros(len(rows), np.int64)
    for column in columns:
        key = key * (len(column.values) + 1) + column.codes[rows] + 1
    order = np.argsort(key, kind="stable")
    edges = [*np.flatnonzero(np.diff(key[order], prepend=-1)).tolist(), len(order)]
    parts = sorted((order[a:b] for a, b in pairwise(edges)), key=lambda at: int(at[0]))
    return [(tuple(column.value(rows[at[0]]) for column in columns), rows[at]) for at in parts]
