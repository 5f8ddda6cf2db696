"""Columns of numbers: rows alike, and nulls in and out."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit._util.coded import alike
from tracekit._util.columns import present, with_nulls

pairs = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2)), max_size=30)


@pytest.mark.parametrize("apart", [1, 10**9, (2**63 - 1) // 3])
@given(raw=pairs)
def test_rows_alike_are_numbered_as_they_are_first_seen(raw, apart):
    """Numbers far apart take another way than numbers close together, in either column."""
    wide = [tuple(one * apart if one > 0 else one for one in row) for row in raw]
    code, first = alike(*(np.array([row[column] for row in wide], np.int64) for column in (0, 1)))
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
