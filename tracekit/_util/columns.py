"""Conversion of polars columns to numpy arrays and back.

Conversions of small tables must be cheap as well: a pipeline's cells are read thousands of times, a
few rows each.
"""

import mmap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import AnyInts, Bools, Ints
from tracekit._util.categories import NULL_CODE, CategoryColumn, physical_codes

NULL_INT64 = -(1 << 63)
"""Stands for null in a column in which -1 may be a value."""

MAX_SHARE_OF_SPARSE = 0.1
"""Share of rows with a value up to which a column is written as sparse."""
MIN_SPARSE_BYTES = 1 << 19  # smaller columns gain nothing from pages that are never touched


def to_int64(column: pl.Series, missing: int = -1) -> Ints:
    """Return a column of integers with *missing* in place of null.

    The result must not be written to.

    >>> to_int64(pl.Series([3, None], dtype=pl.Int32), -1).tolist()
    [3, -1]
    """
    if not column.null_count():
        return column.to_numpy().astype(np.int64, copy=False)
    if column.dtype not in (pl.Int32, pl.UInt32):
        return column.fill_null(missing).to_numpy().astype(np.int64, copy=False)
    # Floats with NaN for null: exact for 32 bits, in a tenth of the time of fill_null.
    values = column.to_numpy()
    return np.where(np.isnan(values), missing, values).astype(np.int64)


def present(column: pl.Series) -> Bools:
    """Return which values are not null.

    >>> present(pl.Series([3, None])).tolist()
    [True, False]
    """
    if column.null_count() in (0, len(column)):
        return np.full(len(column), not column.null_count())
    return column.is_not_null().to_numpy()


def with_nulls(values: npt.NDArray[Any], valid: Bools) -> pl.Series:
    """Return a column of numbers that is null outside the mask *valid*.

    Few values take little memory.

    >>> with_nulls(np.array([3, 4]), np.array([True, False])).to_list()
    [3, None]
    """
    count = np.count_nonzero(valid)
    if count == len(values):
        return pl.Series(values)
    if count > MAX_SHARE_OF_SPARSE * len(values):
        return pl.Series(values).set(pl.Series(~valid), None)
    rows = np.flatnonzero(valid)
    return sparse(len(values), rows, values[rows])


def sparse(size: int, rows: Ints, values: npt.NDArray[Any]) -> pl.Series:
    """Return a column of *size* rows with *values* at *rows* and null elsewhere.

    Only pages with values take memory.

    >>> sparse(4, np.array([2]), np.array([7])).to_list()
    [None, None, 7, None]
    """
    column = _zeros_on_demand(size, values.dtype)
    column[rows] = values
    missing = np.ones(size, np.bool_)
    missing[rows] = False
    return pl.Series(column).set(pl.Series(missing), None)


def _zeros_on_demand(size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return zeros in memory pages that the system allocates when they are first written to, none of them huge."""
    if size * dtype.itemsize < MIN_SPARSE_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(size, dtype)
    pages = mmap.mmap(-1, size * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype)


def concat_ranks(tables: Mapping[int, pl.DataFrame], schema: pl.Schema) -> pl.DataFrame:
    """Return the tables of several ranks below each other, with the rank as their first column.

    >>> concat_ranks({4: pl.DataFrame({"ns": [7, 8]})}, pl.Schema({"ns": pl.Int64()})).rows()
    [(4, 7), (4, 8)]
    """
    rank = np.repeat(np.array([*tables], np.int32), [table.height for table in tables.values()])
    joined = pl.concat([schema.to_frame(), *tables.values()])
    return joined.select(pl.Series("rank", rank, pl.Int32), pl.exclude("rank"))


class ColumnReader:
    """Columns of a table as arrays.

    The columns named at construction are read in one polars query, which saves time.

    >>> reader = ColumnReader(pl.DataFrame({"start_ns": [3, None], "name": ["a", None]}), ("start_ns", "name"))
    >>> reader.int64("start_ns").tolist(), reader.text("name").strings()
    ([3, -1], ['a', None])
    """

    def __init__(self, frame: pl.DataFrame, names: Iterable[str]) -> None:
        """Read the columns *names* now; others are read at their first use."""
        self.frame = frame
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._texts: dict[str, CategoryColumn] = {}
        self._read([name for name in names if not self.is_all_null(name)])

    def __len__(self) -> int:
        return len(self.frame)

    def is_all_null(self, name: str) -> bool:
        """Return whether a column is null on every row."""
        return self.frame[name].null_count() == len(self.frame)

    def _read(self, names: list[str]) -> None:
        columns = self.frame.select(_read_expression(self.frame[name]) for name in names)
        self._arrays |= {column.name: column.to_numpy() for column in columns}

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a column as numbers: integers with their null value, or the ``physical_codes`` of text."""
        if name not in self._arrays and self.is_all_null(name):
            self._arrays[name] = np.full(len(self), _null_value(self.frame[name]), np.int64)
        elif name not in self._arrays:
            self._read([name])
        return self._arrays[name]

    def int64(self, name: str) -> Ints:
        """Return a column of integers. The result must not be written to."""
        return self.array(name).astype(np.int64, copy=False)

    def int64_at(self, name: str, rows: AnyInts) -> Ints:
        """Return a column of integers at some rows, without reading the others."""
        if name in self._arrays:
            return self.int64(name)[rows.astype(np.intp, copy=False)]
        return to_int64(self.frame[name][rows], _null_value(self.frame[name]))

    def present(self, name: str) -> Bools:
        """Return the mask of rows on which a column is not null."""
        return present(self.frame[name])

    def text(self, name: str) -> CategoryColumn:
        """Return a column of text."""
        if name not in self._texts:
            self._texts[name] = self.text_at(name, None)
        return self._texts[name]

    def text_at(self, name: str, rows: AnyInts | None) -> CategoryColumn:
        """Return a column of text at some rows; at all rows if *rows* is None."""
        if self.is_all_null(name):
            return CategoryColumn.constant(None, len(self) if rows is None else len(rows))
        if rows is not None and name not in self._arrays:
            return CategoryColumn.from_series(self.frame[name][rows])
        return CategoryColumn.from_physical(self.frame[name], self.array(name), rows)


def _read_expression(column: pl.Series) -> pl.Expr:
    """Return the expression that turns a column into numbers without nulls."""
    if not column.dtype.is_integer():
        return physical_codes(column)
    named = pl.col(column.name)
    return named.fill_null(_null_value(column)) if column.null_count() else named


def _null_value(column: pl.Series) -> int:
    """Return the number that stands for null in the array of a column."""
    if not column.dtype.is_integer():
        return NULL_CODE
    return NULL_INT64 if column.name == "correlation" else -1
