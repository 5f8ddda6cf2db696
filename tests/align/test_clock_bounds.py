"""Bounds of clock offsets from messages, and drifts, at their limits."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.align.clock_bounds import (
    Compared,
    bounds_of_messages,
    offset_of_messages,
    one_way_offset,
)
from tracekit.align.matching import MEMBERS
from tracekit.schema import conform

NO_BOUND = 2**62


@pytest.mark.parametrize(
    ("forward", "backward", "bounds"),
    [
        # The other end may acknowledge within 20 µs.
        (5_000, 7_000, (-27_000, 25_000)),
        (None, 7_000, (-27_000, NO_BOUND)),
        (5_000, None, (-NO_BOUND, 25_000)),
        (None, None, (-NO_BOUND, NO_BOUND)),
    ],
)
def test_the_fastest_messages_bound_the_offset_of_a_clock(forward, backward, bounds):
    row = {"fastest_forward_ns": forward, "fastest_backward_ns": backward}
    assert bounds_of_messages(row) == bounds


@pytest.mark.parametrize(
    ("row", "offset"),
    [
        ((True, 5_000, 7_000), -1_000),
        ((True, None, 7_000), 15),
        ((True, 5_000, None), 15),
        ((False, 5_000, 7_000), None),
    ],
)
def test_messages_of_both_directions_take_equally_long(row, offset):
    """Else the offset is in the middle of its bounds, 10 and 20."""
    names = ("two_way", "fastest_forward_ns", "fastest_backward_ns")
    assert offset_of_messages(dict(zip(names, row, strict=True)), 10, 20) == offset


@pytest.mark.parametrize(
    ("meetings", "least", "most", "offset"),
    [(1, 3, None, 20), (0, 3, 4, 20), (0, None, None, 20), (0, None, 4, 10), (0, 3, None, 30)],
)
def test_of_one_direction_the_extreme_is_likeliest(meetings, least, most, offset):
    row = {
        "meetings": meetings, "least_ns": least, "most_ns": most, "earliest_ns": 10, "middle_ns": 20,
        "latest_ns": 30,
    }  # fmt: skip
    assert one_way_offset(row) == offset


@pytest.mark.parametrize(("members", "pairs"), [(8, 28), (9, 15)])
def test_all_of_up_to_eight_members_are_compared_with_each_other(members, pairs):
    """Eight make 8 × 7 / 2 pairs. Of nine, eight are compared with the lowest, and seven with the next lower."""
    match = pl.DataFrame({"match": 0, "rank": range(members), "what": "all_reduce"})
    low, high = Compared.of(conform(match, MEMBERS)).pairs()
    assert len(low) == len(high) == pairs
