"""New durations shared among events."""

from __future__ import annotations

import polars as pl

from tracekit.metrics.alternatives.remedy import new_durations


def test_events_share_the_new_duration_by_the_present_ones_and_get_no_longer():
    """10 and 30 ns become 20 together; 100 ns would be longer than what they take."""
    events = pl.DataFrame(
        {
            "row": [4, 2],
            "ns": [10, 30],
            "group": 0,
            "low_ns": 8.0,
            "likely_ns": 20.0,
            "high_ns": 100.0,
        }
    )
    remedies = new_durations(events, "fused", keeps_first=True)
    columns = ("low_ns", "likely_ns", "high_ns", "host_share")
    assert remedies.select(columns).rows() == [(2, 5, 10, 0.0), (6, 15, 30, 1.0)]
