"""Bounds of clock offsets from messages, and drifts, at their limits."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.align import clock_bounds
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


def windows_of(*places):
    """Meetings of two ranks at these thousandths of a sixteenth of the recording, their clocks 0.1 ‰ apart."""
    times = pl.Series("since_ns", [1_000 * time_us for time_us in places])
    return pl.DataFrame(
        {"low": 0, "high": 1, "since_ns": times, "ends_ns": times // 10_000, "most_ns": 0, "least_ns": 0,
         "is_most": False, "is_least": False, "surest": True, "low_sends": None},
        schema_overrides={"low_sends": pl.Boolean},
    )  # fmt: skip


@pytest.mark.parametrize(("last", "believed"), [(10_900, False), (11_000, True)])
def test_a_drift_shows_in_eight_sixteenths_of_the_recording(last, believed):
    """DRIFT_WINDOWS and MIN_DRIFT_WINDOWS: two meetings in one sixteenth count once."""
    places = [0, 2_000, 4_000, 6_000, 8_000, 10_000, last, 15_999]
    assert (
        bool(clock_bounds.find_drift(windows_of(*(1_000 * time_us for time_us in places))))
        is believed
    )


@pytest.mark.parametrize(("times", "believed"), [(5.5, False), (6.5, True)])
def test_a_drift_is_six_times_its_scatter(times, believed):
    """MIN_DRIFT_TO_SCATTER_RATIO: the values lie 10 µs above and below a line in turn."""
    at = np.linspace(0, 1e9, 16)
    scatter = 1e4 * np.tile([1, -1, -1, 1], 4)
    rate, _ = clock_bounds.fit_drift(at, times * 1e4 * at / 1e9 + scatter)
    assert bool(rate) is believed
