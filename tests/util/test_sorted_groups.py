"""Groups of rows that stand next to each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit._util.arrays import SortedGroups

KEY = np.array([5, 5, 2, 2, 2, 8])
"""Three groups, of two, three and one rows."""


def test_a_group_ends_where_the_key_changes():
    groups = SortedGroups.of(KEY)
    assert len(groups) == 3
    assert groups.first.tolist() == [0, 2, 5]
    assert groups.last.tolist() == [1, 4, 5]
    assert groups.size.tolist() == [2, 3, 1]
    assert groups.edges == [0, 2, 5, 6]


def test_rows_know_their_group_and_their_position_in_it():
    groups = SortedGroups.of(KEY)
    assert groups.number_of_rows().tolist() == [0, 0, 1, 1, 1, 2]
    assert groups.positions().tolist() == [0, 1, 0, 1, 2, 0]
    assert groups.spread(np.array([10, 20, 30])).tolist() == [10, 10, 20, 20, 20, 30]


def test_values_are_reduced_group_by_group():
    groups = SortedGroups.of(KEY)
    values = np.array([4, 3, 9, 7, 8, 1])
    assert groups.lowest(values).tolist() == [3, 7, 1]
    assert groups.highest(values).tolist() == [4, 9, 1]
    assert groups.total(values).tolist() == [7, 24, 1]
    assert groups.count(values > 3).tolist() == [1, 3, 0]


def test_a_first_key_of_minus_one_begins_a_group_as_any_other():
    assert SortedGroups.of(np.array([-1, -1, 0])).first.tolist() == [0, 2]


def test_no_rows_are_no_groups():
    groups = SortedGroups.of(np.zeros(0, np.int64))
    nothing = np.zeros(0, np.int64)
    assert len(groups) == 0
    assert groups.edges == [0]
    assert groups.positions().tolist() == []
    assert groups.total(nothing).tolist() == []
    assert groups.lowest(nothing).tolist() == []


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(sizes=st.lists(st.integers(1, 4), max_size=6))
def test_sizes_that_were_put_in_come_out(sizes, dtype):
    key = np.repeat(np.arange(len(sizes), dtype=dtype), sizes)
    assert SortedGroups.of(key).size.tolist() == sizes
