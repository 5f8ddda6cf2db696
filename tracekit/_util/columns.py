"""Columns as arrays: of small tables too, since a pipeline's cells are read thousands of times, a few rows each."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import group_rows, rank_pairs
from tracekit._util.coded import MISSING, AnyInts, Bools, Ints, Text, physical

UNSAID = -(1 << 63)
"""Stands for null where any number may be written."""

FEW = 0.1
"""Share of all rows up to which values are kept apart from each other."""
_OWN_PAGES = 1 << 19  # bytes from which what lies between few values is worth not touching


def whole_numbers(column: pl.Series, missing: int = -1) -> Ints:
    """Return a column of integers with *missing* in place of null; not to be written to.

    >>> whole_numbers(pl.Series([3, None], dtype=pl.Int32), -1).tolist()
    [3, -1]
    """
    if not column.null_count():
        return column.to_numpy().astype(np.int64, copy=False)
    if column.dtype != pl.Int32:
        return column.fill_null(missing).to_numpy().astype(np.int64, copy=False)
    values = column.to_numpy()  # as floats, nulls as NaN: exact for 32 bits, and a tenth of the time of filling
    return np.where(np.isnan(values), missing, values).astype(np.int64)


def present(column: pl.Series) -> npt.NDArray[np.bool_]:
    """Return which values are not null.

    >>> present(pl.Series([3, None])).tolist()
    [True, False]
    """
    if column.null_count() in (0, len(column)):
        return np.full(len(column), not column.null_count())
    return column.is_not_null().to_numpy()


def with_nulls(values: npt.NDArray[Any], there: npt.NDArray[np.bool_]) -> pl.Series:
    """Return a column of numbers, null where none is *there*; few take little memory.

    >>> with_nulls(np.array([3, 4]), np.array([True, False])).to_list()
    [3, None]
    """
    count = np.count_nonzero(there)
    if count == len(values):
        return pl.Series(values)
    if count > FEW * len(values):
        return pl.Series(values).set(pl.Series(~there), None)
    rows = np.flatnonzero(there)
    return sparse(len(values), rows, values[rows])


def sparse(size: int, rows: Ints, values: npt.NDArray[Any]) -> pl.Series:
    """Return a column of *size* rows with *values* at *rows* and null elsewhere: memory is taken where values are.

    >>> sparse(4, np.array([2]), np.array([7])).to_list()
    [None, None, 7, None]
    """
    column = _untouched(size, values.dtype)
    column[rows] = values
    missing = np.ones(size, np.bool_)
    missing[rows] = False
    return pl.Series(column).set(pl.Series(missing), None)


def _untouched(size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Zeros in pages of their own: the system makes each when it is first written to, and no huge ones."""
    if size * dtype.itemsize < _OWN_PAGES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(size, dtype)
    pages = mmap.mmap(-1, size * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype)


class Table:
    """Columns of a table as arrays, read all at once: a question to polars costs as much as ten thousand rows.

    >>> table = Table(pl.DataFrame({"at": [3, None], "name": ["a", None]}), ("at", "name"))
    >>> table.whole("at").tolist(), table.text("name").strings()
    ([3, -1], ['a', None])
    """

    def __init__(self, frame: pl.DataFrame, names: Iterable[str]) -> None:
        """Read these columns; others are read when they are asked for."""
        self.frame = frame
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._texts: dict[str, Text] = {}
        self._read([name for name in names if not self.silent(name)])

    def __len__(self) -> int:
        return len(self.frame)

    def silent(self, name: str) -> bool:
        """Return whether a column is null on every row."""
        return self.frame[name].null_count() == len(self.frame)

    def _read(self, names: list[str]) -> None:
        self._arrays |= {c.name: c.to_numpy() for c in self.frame.select(_reads(self.frame[name]) for name in names)}

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a column as numbers: integers with -1 for null, of a correlation ``UNSAID``; texts ``physical``."""
        if name not in self._arrays and self.silent(name):
            self._arrays[name] = np.full(len(self), _null(self.frame[name]), np.int64)
        elif name not in self._arrays:
            self._read([name])
        return self._arrays[name]

    def whole(self, name: str) -> Ints:
        """Return a column of integers; not to be written to."""
        return self.array(name).astype(np.int64, copy=False)

    def whole_at(self, name: str, rows: AnyInts) -> Ints:
        """Return a column of integers at these rows, without reading the others."""
        if name in self._arrays:
            return self.whole(name)[rows.astype(np.intp, copy=False)]
        return whole_numbers(self.frame[name][rows], _null(self.frame[name]))

    def present(self, name: str) -> Bools:
        """Rows on which a column is not null."""
        return present(self.frame[name])

    def text(self, name: str) -> Text:
        """Return a column of text."""
        if name not in self._texts:
            self._texts[name] = self.text_at(name, None)
        return self._texts[name]

    def text_at(self, name: str, rows: AnyInts | None) -> Text:
        """Return a column of text at these rows; all of them where none are given."""
        if self.silent(name):
            return Text.constant(None, len(self) if rows is None else len(rows))
        if rows is not None and name not in self._arrays:
            return Text.of(self.frame[name][rows])
        return Text.coded(self.frame[name], self.array(name), rows)


def _reads(column: pl.Series) -> pl.Expr:
    if not column.dtype.is_integer():
        return physical(column)
    named = pl.col(column.name)
    return named.fill_null(_null(column)) if column.null_count() else named


def _null(column: pl.Series) -> int:
    """Return what stands for null in the array of a column."""
    if not column.dtype.is_integer():
        return MISSING
    return UNSAID if column.name == "correlation" else -1


first_seen, pair_numbers = group_rows, rank_pairs
