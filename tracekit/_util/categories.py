"""Text columns as codes, for columns of millions of rows and a few hundred distinct values.

A regular expression runs once over the distinct values; the result for each row is a lookup by its
code. A pattern that ships with tracekit is a plain ``str`` and runs on Python's ``re``. A pattern
from a user's rules file is a ``LinearPattern``: it runs on the regex engine of polars, whose time
grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import AnyInts, Bools, Int32s, Ints, SortedGroups, take_same_type

MAX_SEARCHED_CHARS = 8192
"""Characters of a name that shipped patterns look at. No compiler writes longer names; damaged
files hold millions."""


class LinearPattern(str):
    """A user's regular expression, matched in time linear in the text.

    Python's engine backtracks: a pattern such as ``(a+)+$`` can keep it busy for ever. The engine
    of polars does not; in return it supports neither look-around nor back-references.

    >>> LinearPattern("^mine_").search_all(["mine_gemm", "other"]).tolist()
    [True, False]
    >>> LinearPattern("(?=x)").problem()
    'look-around, including look-ahead and look-behind, is not supported'
    """

    __slots__ = ()

    def problem(self) -> str:
        """Return why the pattern cannot be used; empty if it can."""
        try:
            self.search_all([""])
        except pl.exceptions.ComputeError as error:
            lines = str(error).splitlines()
            reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            return (reasons or lines)[0]
        return ""

    def search_all(self, texts: Sequence[str]) -> Bools:
        """Return for each text whether the pattern is found in it."""
        return pl.Series(texts, dtype=pl.String).str.contains(str(self)).to_numpy().astype(np.bool_)


def search_all(pattern: str, texts: Sequence[str]) -> Bools:
    """Return for each text whether *pattern* is found in it.

    >>> search_all("gemm$", ["my_gemm", "gemm_2"]).tolist()
    [True, False]
    """
    if isinstance(pattern, LinearPattern):
        return pattern.search_all(texts)
    return np.array([_is_found(pattern, text) for text in texts], np.bool_)


@lru_cache(maxsize=100_000)
def _is_found(pattern: str, text: str) -> bool:
    """Return whether a shipped pattern is found in a text; each name comes again on other ranks."""
    return _compiled(pattern).search(text, 0, MAX_SEARCHED_CHARS) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a shipped pattern compiled; ``re`` itself keeps 512, and there are more."""
    return re.compile(pattern)


NULL_CODE = 2**32 - 1
"""Physical code of a null in a categorical column."""


def physical_codes(column: pl.Series) -> pl.Expr:
    """Return the expression for the physical codes of a text column, ``NULL_CODE`` for null."""
    text = pl.col(column.name)
    codes = (text.cast(pl.Categorical()) if column.dtype == pl.String else text).to_physical()
    return codes.cast(pl.UInt32).fill_null(NULL_CODE) if column.null_count() else codes


Query = str | tuple[str, ...]
"""A regular expression to find in values, or words of which a value must be one."""


class CategoryColumn:
    """A text column: distinct *values*, and for every row the index of its value (-1 for null).

    Results of patterns are cached and must not be written to; columns with the same values share
    the masks over values.
    """

    def __init__(
        self, values: tuple[str, ...], codes: AnyInts, value_masks: dict[Query, Bools] | None = None
    ) -> None:
        self.values = values
        self.codes: Int32s = codes.astype(np.int32, copy=False)
        self._value_masks = {} if value_masks is None else value_masks
        self._row_masks: dict[Query, Bools] = {}

    @classmethod
    def from_series(cls, series: pl.Series) -> CategoryColumn:
        """Convert a polars text column.

        >>> CategoryColumn.from_series(pl.Series(["b", None, "a", "b"])).codes.tolist()
        [0, -1, 1, 0]
        """
        if series.null_count() == len(series):
            return cls.constant(None, len(series))
        return cls.from_physical(
            series, series.to_frame().select(physical_codes(series)).to_series().to_numpy()
        )

    @classmethod
    def from_physical(
        cls, column: pl.Series, physical: npt.NDArray[Any], rows: AnyInts | None = None
    ) -> CategoryColumn:
        """Convert a text column, or some *rows* of it, whose ``physical_codes`` on all rows are *physical*."""
        old_codes = np.ascontiguousarray(
            physical if rows is None else physical.take(rows), np.uint32
        )
        # Codes of a categorical column count the values of all columns: number those that occur
        # here from 0, in the order of their first rows.
        first_rows = pl.Series(old_codes).arg_unique().to_numpy()
        used_codes = old_codes[first_rows]
        is_value = used_codes != NULL_CODE
        first_rows = first_rows[is_value]
        used_codes = used_codes[is_value]
        largest = int(used_codes.max(initial=0))
        # The last element is that of null: its code is above all others.
        new_code = np.full(largest + 2, -1, np.int32)
        new_code[used_codes] = np.arange(len(used_codes))
        codes = new_code.take(old_codes if is_value.all() else np.minimum(old_codes, largest + 1))
        value_rows = first_rows if rows is None else rows[first_rows]
        return cls(tuple(column[value_rows].to_list()), codes)

    @classmethod
    def constant(cls, value: str | None, rows: int) -> CategoryColumn:
        """Return a column with one value, or null, on every row."""
        return cls(
            () if value is None else (value,), np.full(rows, -1 if value is None else 0, np.int32)
        )

    @classmethod
    def choose(cls, rows: int, cases: Sequence[tuple[str, Bools]]) -> CategoryColumn:
        """Take the value of the first case whose mask is true.

        >>> CategoryColumn.choose(2, [("x", np.array([True, False])), ("y", np.array([True, True]))]).strings()
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
        """Mask of rows that are not null."""
        return self.codes >= 0

    def map(self, test: Callable[[str], bool]) -> Bools:
        """Return the mask of rows whose value passes *test*, which runs once per distinct value.

        Null never passes.
        """
        return self._mask_rows(_mask_values(test(value) for value in self.values))

    def look_up(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for every row the element of *table* at its code; the last element for null.

        >>> CategoryColumn.from_series(pl.Series(["b", None, "a"])).look_up(np.array([7, 8, -1])).tolist()
        [7, -1, 8]
        """
        return table[self.codes.astype(np.intp)]  # three times as fast as with 32-bit indices

    def _mask_rows(self, value_mask: Bools) -> Bools:
        """Return the mask of rows for a mask over the distinct values (and, at its end, null)."""
        # Most patterns match nothing in a trace.
        return self.look_up(value_mask) if value_mask.any() else np.zeros(len(self.codes), np.bool_)

    def any_of(self, *words: str) -> Bools:
        """Return the mask of rows whose value is one of *words*.

        >>> CategoryColumn.from_series(pl.Series(["b", None, "a"])).any_of("a", "c").tolist()
        [False, False, True]
        """
        return self.matches(words)

    def matches(self, query: Query) -> Bools:
        """Return the mask of rows whose value matches a query."""
        if query not in self._row_masks:
            self._row_masks[query] = self._mask_rows(self.answers(query))
            self._row_masks[query].flags.writeable = False
        return self._row_masks[query]

    def answers(self, query: Query) -> Bools:
        """Return which distinct values match a query; the last element, for null, is False."""
        # A LinearPattern equals a plain string of the same text, but another engine runs it: the
        # key must differ.
        key = (query, "") if isinstance(query, LinearPattern) else query
        if key not in self._value_masks:
            if isinstance(query, tuple):
                self._value_masks[key] = _mask_values(value in query for value in self.values)
            else:
                self._value_masks[key] = np.append(search_all(query, self.values), False)
        return self._value_masks[key]

    def extract(self, pattern: str, group: int | str = 1) -> CategoryColumn:
        """Return what a group of the pattern matches; null where the pattern is not found."""
        search = re.compile(pattern).search
        groups: list[str | None] = []
        for value in self.values:
            match = search(value, 0, MAX_SEARCHED_CHARS)
            groups.append(match.group(group) if match else None)
        return self.replace(groups)

    def replace(self, values: Sequence[str | None]) -> CategoryColumn:
        """Replace each distinct value by another, or by null."""
        code_of: dict[str, int] = {}
        new_codes = []
        for value in values:
            if value is None:
                new_codes.append(-1)
            else:
                new_codes.append(code_of.setdefault(value, len(code_of)))
        distinct = tuple(code_of)
        if len(distinct) == len(values):  # each value has the code it had
            return CategoryColumn(distinct, self.codes)
        new_codes.append(-1)  # of null
        return CategoryColumn(distinct, self.look_up(np.array(new_codes, np.int32)))

    def take(self, rows: AnyInts) -> CategoryColumn:
        """Return the values at *rows*; null for a negative row."""
        return CategoryColumn(self.values, take_same_type(self.codes, rows, -1), self._value_masks)

    def where(self, mask: Bools) -> CategoryColumn:
        """Return the column with null outside *mask*."""
        return CategoryColumn(self.values, np.where(mask, self.codes, -1), self._value_masks)

    def spread(self, rows: Ints, size: int) -> CategoryColumn:
        """Return a column of *size* rows with the values at *rows* and null elsewhere.

        >>> CategoryColumn.from_series(pl.Series(["a"])).spread(np.array([1]), 3).strings()
        [None, 'a', None]
        """
        codes = np.full(size, -1, np.int32)
        codes[rows] = self.codes
        return CategoryColumn(self.values, codes, self._value_masks)

    def fill(self, other: CategoryColumn) -> CategoryColumn:
        """Return the column with *other*'s value where it is null."""
        filled = np.flatnonzero(other.present & ~self.present)
        if not len(filled):
            return self
        code_of = {
            value: code for code, value in enumerate(dict.fromkeys(self.values + other.values))
        }
        new_code = np.array([code_of[value] for value in other.values])
        codes = self.codes.copy()
        codes[filled] = new_code[other.codes[filled]]
        return CategoryColumn(tuple(code_of), codes)

    def numbers(self) -> Ints:
        """Return the values as integers; -1 for null and for numbers that do not fit in 64 bits."""
        numbers = np.full(len(self.values) + 1, -1, np.int64)  # the last one is that of null
        for code, value in enumerate(self.values):
            if len(value) < 19:
                numbers[code] = int(value)
        return self.look_up(numbers)

    def value(self, row: int) -> str | None:
        """Return the value of one row."""
        code = self.codes[row]
        return self.values[code] if code >= 0 else None

    def strings(self) -> list[str | None]:
        """Return the value of every row."""
        lookup = (*self.values, None)
        return [lookup[i] for i in self.codes]

    def series(self, name: str, dtype: pl.DataType | None = None) -> pl.Series:
        """Return a polars column, categorical unless *dtype* says otherwise."""
        dtype = dtype or pl.Categorical()
        if not self.present.any():
            return pl.Series(name, [None], dtype).new_from_index(0, len(self))
        values = pl.Series(name, [None, *self.values], dtype=pl.String).cast(dtype)
        return values[(self.codes + 1).astype(np.uint32)]


class CategoryColumns:
    """The text columns of a table, each converted at its first use and cached.

    >>> texts = CategoryColumns(pl.DataFrame({"name": ["b", "a"]}))
    >>> texts["name"].values, texts["name"] is texts["name"]
    (('b', 'a'), True)
    """

    def __init__(self, table: pl.DataFrame) -> None:
        self._table = table
        self._columns: dict[str, CategoryColumn] = {}

    def __getitem__(self, name: str) -> CategoryColumn:
        """Return one column."""
        if name not in self._columns:
            self._columns[name] = CategoryColumn.from_series(self._table[name])
        return self._columns[name]


def _mask_values(matches: Iterable[bool]) -> Bools:
    """Return a mask over distinct values, with False for null at its end."""
    return np.array([*matches, False], np.bool_)


def group_by_values(
    rows: Ints, *columns: CategoryColumn
) -> list[tuple[tuple[str | None, ...], Ints]]:
    """Split *rows* by their values in all *columns*, in the order in which each combination first appears.

    >>> column = CategoryColumn.from_series(pl.Series(["b", "a", "b"]))
    >>> [(values, rows.tolist()) for values, rows in group_by_values(np.arange(3), column)]
    [(('b',), [0, 2]), (('a',), [1])]
    """
    # One number per combination: codes start at -1, so that each column adds a digit of its number
    # of values + 1.
    key = np.zeros(len(rows), np.int64)
    for column in columns:
        key = key * (len(column.values) + 1) + column.codes[rows] + 1
    order = np.argsort(key, kind="stable")
    groups = [order[start:stop] for start, stop in pairwise(SortedGroups.of(key[order]).edges)]
    groups.sort(key=lambda group: int(group[0]))
    split = []
    for group in groups:
        first_row = rows[group[0]]
        values = tuple(column.value(first_row) for column in columns)
        split.append((values, rows[group]))
    return split
