"""Mapped ranges of memory, joined and taken out."""

from __future__ import annotations

import pytest

from tracekit.memory.measures.block_sizes import join_ranges, remove_range


@pytest.mark.parametrize(
    ("ranges", "index", "joined"),
    [
        ([(0, 10), (10, 20), (20, 30)], 1, [(0, 30)]),
        ([(0, 10), (10, 20), (21, 30)], 1, [(0, 20), (21, 30)]),
        ([(0, 9), (10, 20), (20, 30)], 1, [(0, 9), (10, 30)]),
        ([(0, 10), (10, 20)], 0, [(0, 20)]),
        ([(0, 10), (10, 20)], 1, [(0, 20)]),
        ([(0, 9), (10, 20)], 1, [(0, 9), (10, 20)]),
        ([(0, 10)], 0, [(0, 10)]),
    ],
)
def test_a_range_that_is_mapped_joins_those_it_touches(ranges, index, joined):
    starts, ends = map(list, zip(*ranges, strict=True))
    join_ranges(starts, ends, index)
    assert list(zip(starts, ends, strict=True)) == joined


@pytest.mark.parametrize(
    ("removed", "left"),
    [
        ((10, 30), []),
        ((10, 20), [(20, 30)]),
        ((20, 30), [(10, 20)]),
        ((15, 20), [(10, 15), (20, 30)]),
        ((30, 40), [(10, 30)]),
        ((0, 10), [(10, 30)]),  # begins before what is there
    ],
)
def test_what_is_unmapped_leaves_what_lies_around_it(removed, left):
    starts, ends = [10], [30]
    remove_range(starts, ends, *removed)
    assert list(zip(starts, ends, strict=True)) == left
