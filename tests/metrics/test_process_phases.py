"""Phases of a process: events without one get that of a neighbour."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.process_phases import fill_neutral_phases


def phases_of(*rows, trains=True):
    """Phase, start and end of events; those that end in ``!`` are agreements."""
    events = pl.DataFrame(
        [
            {
                "phase": None if phase in ("", "!") else phase.rstrip("!"),
                "agreement": phase.endswith("!"),
                "start_ns": start,
                "end_ns": end,
            }
            for phase, start, end in rows
        ],
        schema={
            "phase": pl.String,
            "agreement": pl.Boolean,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
        },
    )
    return fill_neutral_phases(events, trains=trains).to_list()


SYNC = "weight_sync"


@pytest.mark.parametrize(
    ("rows", "phases"),
    [
        ([("a", 0, 1), ("", 1, 2), ("a", 2, 3)], ["a", "a", "a"]),
        ([("a", 0, 1), ("", 1, 2)], ["a", "a"]),
        ([("", 0, 1), ("a", 1, 2)], [None, "a"]),
        # The longest pause divides: it is behind the second event, before it, or at either end.
        ([("a", 0, 1), ("", 1, 2), ("", 9, 10), ("b", 11, 12)], ["a", "a", "b", "b"]),
        ([("a", 0, 1), ("", 9, 10), ("", 10, 11), ("b", 11, 12)], ["a", "b", "b", "b"]),
        ([("a", 0, 1), ("", 1, 2), ("", 3, 4), ("b", 9, 12)], ["a", "a", "a", "b"]),
        # Two changes of phase, each with its own pause.
        (
            [("a", 0, 1), ("", 5, 6), ("b", 6, 7), ("", 7, 8), ("c", 12, 13)],
            ["a", "b", "b", "b", "c"],
        ),
        # After training everything prepares the synchronisation of weights, whatever the pauses.
        ([("a", 0, 1), ("", 1, 2), ("", 9, 10), (SYNC, 11, 12)], ["a", SYNC, SYNC, SYNC]),
        # After that, agreements still belong to it.
        ([(SYNC, 0, 1), ("!", 5, 6), ("", 6, 7), ("b", 7, 8)], [SYNC, SYNC, "b", "b"]),
        ([(SYNC, 0, 1), ("", 1, 2), ("", 9, 10), ("b", 11, 12)], [SYNC, SYNC, "b", "b"]),
    ],
)
def test_events_between_two_phases_are_divided_at_the_longest_pause(rows, phases):
    assert phases_of(*rows) == phases


def test_without_training_the_pause_divides_before_a_synchronisation_too():
    rows = [("a", 0, 1), ("", 1, 2), ("", 9, 10), (SYNC, 11, 12)]
    assert phases_of(*rows, trains=False) == ["a", "a", SYNC, SYNC]
