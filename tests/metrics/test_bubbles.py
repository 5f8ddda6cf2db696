"""Bubbles, phases, idle gaps and copies, counted on fingers."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.figures import with_figures
from tracekit.analysis.measured import total_figures
from tracekit.documents.analysis import Budget
from tracekit.intervals import EMPTY, union
from tracekit.metrics.bandwidth import copies
from tracekit.metrics.budget import (
    add_slow_launch_ends,
    budgets,
    find_exposed_waits,
    gaps,
    phases,
)
from tracekit.metrics.host.waiting_calls import MIN_SLOW_LAUNCH_NS
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.overlap import label_times
from tracekit.schema import IDLE_CAUSES


def test_a_wait_is_exposed_only_where_no_compute_runs():
    start, wait, group = np.array([0, 5, 0]), np.array([10, 10, 4]), np.array([0, 0, 1])
    result = find_exposed_waits(start, wait, group, union([2], [6]))
    assert result.of(0).total_ns == 11  # [0,15) less [2,6)
    assert result.of(1).total_ns == 4
    assert find_exposed_waits(start[:0], wait[:0], group[:0], EMPTY) == EMPTY


def pipelined(idle, wait, least_wait=0, *, compute=None):
    """Figures of a rank of a pipeline that computes in all of 100 ns but its idle time."""
    compute_ns = 100 - idle if compute is None else compute
    return with_figures(
        total_figures([]),
        budget=Budget(compute_ns=compute_ns, exposed_ns={}, idle=idle),
        exposed_wait_ns=wait,
        least_wait_ns=least_wait,
        pipeline=True,
    )


def test_bubble_is_a_lower_bound_without_wait():
    assert pipelined(10, None).bubble_fraction == 0.1
    assert pipelined(0, None, compute=0).bubble_fraction is None
    assert total_figures([pipelined(10, None), pipelined(0, 20, 20)]).bubble_fraction == 0.15


def test_gpipe_has_no_steady_phase(labelled):
    events = labelled(
        ("forward", 0, 10), ("forward", 10, 20), ("backward", 25, 35), ("backward", 35, 45)
    )
    table = phases(Lanes.of(events))
    assert table.select("phase", "span_ns", "idle_ns").rows() == [
        ("warm-up", 25, 5),
        ("steady", 0, 0),
        ("cool-down", 20, 0),
        ("rest", 0, 0),
    ]


def test_phases_need_a_backward(labelled):
    assert phases(Lanes.of(labelled(("forward", 0, 10)))).is_empty()


def test_phases_cover_the_span(labelled):
    events = labelled(
        ("pp_comm", 0, 5),
        ("forward", 5, 9),
        ("dgrad", 12, 20),
        ("wgrad", 21, 23),
        ("dp_comm", 24, 30),
    )
    assert phases(Lanes.of(events))["span_ns"].sum() == 30


def test_idle_is_launch_bound_until_the_next_event_is_launched(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10, "launch_ns": 0},
        # 15 of 20 not yet launched.
        {
            "label": "forward",
            "start_ns": 30,
            "end_ns": 40,
            "launch_ns": 25,
        },
        # Launched long ago: a dependency.
        {
            "label": "forward",
            "start_ns": 50,
            "end_ns": 60,
            "launch_ns": 1,
        },
        # No launch in the file.
        {
            "label": "forward",
            "start_ns": 90,
            "end_ns": 99,
            "launch_ns": None,
        },
    )
    result = gaps(events, Lanes.of(events))
    assert result.select("ns", "launch_bound_ns", "dependency_ns", "unknown_ns").rows() == [
        (20, 15, 5, 0),
        (10, 0, 10, 0),
        (30, 0, 0, 30),
    ]
    assert [result[f"{cause}_ns"].sum() for cause in IDLE_CAUSES] == [15, 15, 0, 30]
    assert len(result) == 3
    assert (
        result["ns"].sum()
        == result["launch_bound_ns"].sum()
        + result["dependency_ns"].sum()
        + result["unknown_ns"].sum()
    )


def test_of_two_events_that_end_a_gap_the_earlier_launch_counts(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10, "launch_ns": 0},
        {"label": "forward", "start_ns": 30, "end_ns": 40, "launch_ns": 29},
        {"label": "offload", "start_ns": 30, "end_ns": 35, "launch_ns": 12},
    )
    assert gaps(events, Lanes.of(events))["launch_bound_ns"].to_list() == [2]


def test_offload_bandwidth_hidden_share_and_stall(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 100},
        {"label": "offload", "start_ns": 50, "end_ns": 150, "bytes": 4000, "kind": "memcpy"},
        {"label": "offload", "start_ns": 150, "end_ns": 250, "bytes": 6000, "kind": "memcpy"},
    )
    lanes = Lanes.of(events)
    row = copies(label_times(events, lanes), lanes.exposed).row(0, named=True)
    assert (row["count"], row["bytes"], row["ns"]) == (2, 10_000, 200)
    assert (row["bandwidth_gb_s"], row["hidden"], row["stall_ns"]) == (50.0, 0.25, 150)


@pytest.mark.parametrize(("took", "warm"), [(100_000, 0), (100_001, 100_001)])
def test_time_inside_a_slow_launch_call_is_warm_up(labelled, took, warm):
    """A kernel that starts 1 ms after its launch: what of that the call itself took is no dependency."""
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10, "launch_ns": 0, "correlation": 1},
        {
            "label": "forward",
            "start_ns": 1_000_010,
            "end_ns": 1_000_020,
            "launch_ns": 10,
            "correlation": 2,
        },
    )
    calls = pl.DataFrame(
        {"name": "hipLaunchKernel", "correlation": [2], "start_ns": [10], "end_ns": [10 + took]}
    )
    result = gaps(add_slow_launch_ends(events, calls), Lanes.of(events))
    assert MIN_SLOW_LAUNCH_NS == 100_000
    assert result.select("ns", "warm_up_ns", "dependency_ns").rows() == [
        (1_000_000, warm, 1_000_000 - warm)
    ]


def test_a_wait_unknown_on_one_rank_is_unknown_in_the_sum_and_what_is_known_stays_a_bound():
    total = total_figures([pipelined(5, 20, 20), pipelined(5, None, 3)])
    assert total.bubble.wait_ns is None
    assert total.bubble_fraction == (10 + 23) / 200


def test_idle_in_which_lost_work_may_have_run_is_a_part_of_its_own(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10, "launch_ns": 0},
        {"label": "forward", "start_ns": 30, "end_ns": 40, "launch_ns": 5},
    )
    lanes = Lanes.of(events)
    lost = union([15], [22])
    (budget,) = budgets(lanes, unrecorded=lost)
    assert (budget.idle_ns, budget.unrecorded_ns, budget.conserved) == (13, 7, True)
    assert gaps(events, lanes, unrecorded=lost)["ns"].sum() == 13
