"""Columns of numbers: rows alike, and nulls in and out."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit._util import columns
from tracekit._util.arrays import group_rows
from tracekit._util.columns import present, sparse, with_nulls

pairs = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2)), max_size=30)


@pytest.mark.parametrize("apart", [1, 10**9, (2**63 - 1) // 3])
@given(raw=pairs)
def test_rows_alike_are_numbered_as_they_are_first_seen(raw, apart):
    """Numbers far apart take another way than numbers close together, in either column."""
    wide = [tuple(one * apart if one > 0 else one for one in row) for row in raw]
    code, first = group_rows(
        *(np.array([row[column] for row in wide], np.int64) for column in (0, 1))
    )
    distinct = list(dict.fromkeys(wide))
    assert code.tolist() == [distinct.index(row) for row in wide]
    assert [wide[row] for row in first.tolist()] == distinct


@given(st.lists(st.none() | st.integers(-5, 5)))
def test_nulls_come_and_go(values):
    column = pl.Series(values, dtype=pl.Int64)
    there = present(column)
    assert there.tolist() == [value is not None for value in values]
    again = with_nulls(np.array([value or 0 for value in values], np.int64), there)
    assert again.to_list() == values


@pytest.mark.parametrize("own_pages", [0, 1 << 30])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint32])
@given(st.lists(st.none() | st.integers(0, 2**31 - 1), min_size=1))
def test_a_column_of_few_values(own_pages, dtype, values):
    rows = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MIN_SPARSE_BYTES", own_pages)
        column = sparse(len(values), rows, np.array([values[row] for row in rows], dtype))
    assert column.to_list() == values
    assert column.to_numpy().dtype == dtype or column.null_count()


def test_a_column_of_few_values_can_be_empty():
    nothing = np.empty(0, np.int64)
    assert sparse(0, nothing, nothing).to_list() == []


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the system does not say what memory is used"
)
def test_memory_is_taken_where_values_are():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    size, rows = 1 << 24, np.arange(1000)
    sparse(size, rows, rows)  # what polars and numpy load at their first use is not counted
    before = resident()
    column = sparse(size, rows, rows)
    assert column.null_count() == size - 1000
    assert resident() - before < size * 8 // 2
