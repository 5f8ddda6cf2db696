"""Operations that a rank with a trace did not record: waits in the others stay known."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.analysis.measured import waits_by_label
from tracekit.graph.critical_path import labels_with_unknown_path


def waits_of(*operations):
    """Waits of rank 0 in dp_comm, and its open time.

    Operations of 100 ns are (wait, open, hole).
    """
    rows = [
        {
            "start_ns": 1000 * n,
            "end_ns": 1000 * n + 100,
            "wait_ns": wait,
            "open": is_open,
            "hole": is_hole,
        }
        for n, (wait, is_open, is_hole) in enumerate(operations)
    ]
    frame = pl.DataFrame(rows, schema_overrides={"wait_ns": pl.Int64})
    waits, open_ns = waits_by_label(frame.with_columns(label=pl.lit("dp_comm"), scope=0), 1)
    return waits[0]["dp_comm"], open_ns[0].get("dp_comm")


COMPLETE, BOUNDED, ALONE, WITHOUT_TRACE = (
    (40, False, False),
    (30, True, True),
    (None, True, True),
    (None, True, False),
)


def test_waits_of_complete_operations_are_exact():
    assert waits_of(COMPLETE, COMPLETE) == (80, None)


def test_a_hole_leaves_a_lower_bound_and_the_time_that_is_open():
    assert waits_of(COMPLETE, COMPLETE, BOUNDED) == (110, 70)
    assert waits_of(COMPLETE, COMPLETE, ALONE) == (80, 100)
    assert waits_of(BOUNDED) == (30, 70)


def test_without_the_trace_of_a_peer_waits_are_unknown():
    assert waits_of(COMPLETE, COMPLETE, COMPLETE, WITHOUT_TRACE) == (None, None)


@pytest.mark.parametrize(
    ("alone", "complete", "is_known"), [(1, 2, True), (1, 1, True), (4, 3, False), (2, 0, False)]
)
def test_traces_that_have_less_than_half_of_their_time_in_common_tell_no_waits(
    alone, complete, is_known
):
    wait, _ = waits_of(*[COMPLETE] * complete, *[ALONE] * alone)
    assert (wait is not None) is is_known


def path_through(hole_ns, *, is_hole=True):
    """Labels of unknown part, if a path of 1000 ns runs so long through a message without a match."""
    segments = pl.DataFrame(
        {
            "rank": [0, 0],
            "label": ["forward", "pp_comm"],
            "start_ns": [0, 1000 - hole_ns],
            "end_ns": [1000 - hole_ns, 1000],
        }
    )
    unmatched = {
        "rank": [0],
        "label": ["pp_comm"],
        "start_ns": [1000 - hole_ns],
        "end_ns": [5000],
        "hole": [is_hole],
    }
    return labels_with_unknown_path(pl.DataFrame(unmatched), segments)


def test_a_path_that_runs_mostly_through_what_all_ranks_recorded_is_known():
    """Half of it at most."""
    assert path_through(499) == frozenset()
    assert path_through(501) == {"pp_comm"}
    assert path_through(1, is_hole=False) == {"pp_comm"}
