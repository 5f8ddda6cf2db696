"""Repeating text as numbers: a few hundred distinct values, millions of rows.

Regular expressions run over the distinct values only, and every row is a lookup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import grouping
from tracekit._util.arrays import (
    AnyInts,
    Bools,
    Int32s,
    Ints,
    find_sorted,
    group_rows,
    is_in_sorted,
    take_or_missing,
    take_same_type,
)
from tracekit._util.literals import lacks, needed
from tracekit._util.patterns import LONGEST, Linear, finder

__all__ = ["AnyInts", "Bools", "Ints", "Places", "Text", "Texts", "alike", "among", "find", "kinds", "pick"]

Places = Int32s
alike, among, find, pick = group_rows, is_in_sorted, find_sorted, take_or_missing

MISSING = 2**32 - 1
"""What stands for null among the numbers of a categorical column."""


def physical(column: pl.Series) -> pl.Expr:
    """Return what reads the numbers that stand for a column's texts."""
    named = pl.col(column.name)
    numbers = (named.cast(pl.Categorical()) if column.dtype == pl.String else named).to_physical()
    return numbers.cast(pl.UInt32).fill_null(MISSING) if column.null_count() else numbers


def _table(answers: Iterable[bool]) -> Bools:
    return np.array([*answers, False], np.bool_)


Answers = dict[str | tuple[str, ...], Bools]
"""Of each pattern, and of each choice of words, which distinct values it holds for; the last is null's, False."""


class Text:
    """A column of text: distinct *values*, and for every row the place of its value (-1 where null).

    What was asked of its values is kept, and is not to be written to; columns of the same values share it.
    """

    def __init__(self, values: tuple[str, ...], codes: AnyInts, known: Answers | None = None) -> None:
        self.values = values
        self.codes: Places = codes.astype(np.int32, copy=False)
        self._known: Answers = {} if known is None else known
        self._rows: Answers = {}

    @classmethod
    def of(cls, series: pl.Series) -> Text:
        """Read a polars text column.

        >>> Text.of(pl.Series(["b", None, "a", "b"])).codes.tolist()
        [0, -1, 1, 0]
        """
        if series.null_count() == len(series):
            return cls.constant(None, len(series))
        return cls.coded(series, series.to_frame().select(physical(series)).to_series().to_numpy())

    @classmethod
    def coded(cls, column: pl.Series, numbers: npt.NDArray[Any], rows: AnyInts | None = None) -> Text:
        """Read a column of text, or the given *rows* of it; *numbers* are what ``physical`` reads of all its rows."""
        asked = np.ascontiguousarray(numbers if rows is None else numbers.take(rows), np.uint32)
        most = int(asked.max(initial=0))
        if most == MISSING:
            most = int(asked.max(where=asked != MISSING, initial=0))
        first, codes = np.empty(most + 1, np.int64), np.empty(len(asked), np.int32)
        seen = first[: grouping.number_codes(asked, MISSING, np.full(most + 1, -1, np.int32), first, codes)]
        return cls(tuple(column[seen if rows is None else rows[seen]].to_list()), codes)

    @classmethod
    def constant(cls, value: str | None, rows: int) -> Text:
        """Repeat one value, or null, on every row."""
        return cls(() if value is None else (value,), np.full(rows, -1 if value is None else 0, np.int32))

    @classmethod
    def choose(cls, rows: int, cases: Sequence[tuple[str, Bools]]) -> Text:
        """Take the value of the first case whose mask is true.

        >>> Text.choose(2, [("x", np.array([True, False])), ("y", np.array([True, True]))]).strings()
        ['x', 'y']
        """
        codes = np.full(rows, -1, np.int32)
        values = tuple(dict.fromkeys(value for value, _ in cases))
        for value, mask in reversed(cases):
            codes[mask] = values.index(value)
        return cls(values, codes)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def present(self) -> Bools:
        """Rows that have a value."""
        return self.codes >= 0

    def map(self, test: Callable[[str], bool]) -> Bools:
        """Rows whose value passes *test*; it runs once for each distinct value, and null never passes."""
        return self._where(_table(test(value) for value in self.values))

    def look_up(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for every row what *table* holds at its value's place; what it holds last, where null.

        >>> Text.of(pl.Series(["b", None, "a"])).look_up(np.array([7, 8, -1])).tolist()
        [7, -1, 8]
        """
        return table[self.codes.astype(np.intp)]  # numpy takes three times as long with places of 32 bits

    def _where(self, hits: Bools) -> Bools:
        """Rows whose value is among *hits*; most patterns speak of something that a trace does not have."""
        return self.look_up(hits) if hits.any() else np.zeros(len(self.codes), np.bool_)

    def _kept(self, asked: str | tuple[str, ...]) -> Bools:
        if asked not in self._rows:
            self._rows[asked] = self._where(self.answers(asked))
            self._rows[asked].flags.writeable = False
        return self._rows[asked]

    def any_of(self, *words: str) -> Bools:
        """Rows whose value is one of these words.

        >>> Text.of(pl.Series(["b", None, "a"])).any_of("a", "c").tolist()
        [False, False, True]
        """
        return self._kept(words)

    def matches(self, pattern: str) -> Bools:
        """Rows in whose value the regular expression is found."""
        return self._kept(pattern)

    def answers(self, asked: str | tuple[str, ...]) -> Bools:
        """For each distinct value, and last for null: a pattern is found in it, or it is one of several words."""
        key = (asked, "") if isinstance(asked, Linear) else asked  # the same letters may be a pattern of either kind
        if key not in self._known:
            self._known[key] = self._asked(asked)
        return self._known[key]

    def _asked(self, asked: str | tuple[str, ...]) -> Bools:
        if isinstance(asked, tuple):
            return _table(value in asked for value in self.values)
        if isinstance(asked, Linear):
            return np.append(asked.found_in(self.values), False)
        if lacks(self._spelt, needed(asked)):
            return np.zeros(len(self.values) + 1, np.bool_)
        return _table(map(finder(asked), self.values))

    @cached_property
    def _spelt(self) -> str:
        return "\n".join(self.values).lower()

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
        lookup = np.array([*(-1 if v is None else place[v] for v in values), -1], np.int32)
        return Text(distinct, self.look_up(lookup))

    def take(self, rows: AnyInts) -> Text:
        """Pick the values at *rows*; a negative row gives null."""
        return Text(self.values, take_same_type(self.codes, rows, -1), self._known)

    def where(self, mask: Bools) -> Text:
        """Null outside *mask*."""
        return Text(self.values, np.where(mask, self.codes, -1), self._known)

    def spread(self, rows: Ints, size: int) -> Text:
        """Put the values at *rows* of a column of *size* rows, null elsewhere.

        >>> Text.of(pl.Series(["a"])).spread(np.array([1]), 3).strings()
        [None, 'a', None]
        """
        codes = np.full(size, -1, np.int32)
        codes[rows] = self.codes
        return Text(self.values, codes, self._known)

    def fill(self, other: Text) -> Text:
        """Put *other*'s value where this column is null."""
        new = np.flatnonzero(other.present & ~self.present)
        if not len(new):
            return self
        place = {value: code for code, value in enumerate(dict.fromkeys(self.values + other.values))}
        theirs, codes = np.array([place[value] for value in other.values]), self.codes.copy()
        codes[new] = theirs[other.codes[new]]
        return Text(tuple(place), codes)

    def numbers(self) -> Ints:
        """Read the values as integers, -1 where null or longer than 64 bits hold."""
        return self.look_up(np.array([*(int(v) if len(v) < 19 else -1 for v in self.values), -1], np.int64))

    def value(self, row: int) -> str | None:
        """One row's value."""
        code = self.codes[row]
        return self.values[code] if code >= 0 else None

    def strings(self) -> list[str | None]:
        """Every row's value."""
        lookup = (*self.values, None)
        return [lookup[i] for i in self.codes]

    def series(self, name: str, dtype: pl.DataType | None = None) -> pl.Series:
        """As a polars column, categorical unless another type is asked for."""
        dtype = dtype or pl.Categorical()
        if not self.present.any():
            return pl.Series(name, [None], dtype).new_from_index(0, len(self))
        values = pl.Series(name, [None, *self.values], dtype=pl.String).cast(dtype)
        return values[(self.codes + 1).astype(np.uint32)]


class Texts:
    """The text columns of a table, each read when it is first asked for and then kept.

    >>> texts = Texts(pl.DataFrame({"name": ["b", "a"]}))
    >>> texts["name"].values, texts["name"] is texts["name"]
    (('b', 'a'), True)
    """

    def __init__(self, table: pl.DataFrame) -> None:
        self._table = table
        self._known: dict[str, Text] = {}

    def __getitem__(self, name: str) -> Text:
        """Return one column."""
        if name not in self._known:
            self._known[name] = Text.of(self._table[name])
        return self._known[name]


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
