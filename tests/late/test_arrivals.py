"""Arrivals at collectives: what they are read from."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.late import arrivals as arriving
from tracekit.late import late_ranks


def member_rows(rows):
    names = ("step", "op_id", "rank", "group", "late_ns", "wait_ns", "call_late_ns")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


@pytest.mark.parametrize(("first_late", "chosen"), [(91, 1), (89, 2)])
def test_a_late_host_is_late_first_where_it_has_nine_tenths_of_its_lateness(first_late, chosen):
    members = member_rows([(0, 1, 0, 0, first_late, 0, 0), (0, 2, 0, 0, 100, 0, 0)])
    arrived = arriving.Arrivals(members, "calls")
    worst = late_ranks.latest_operations(arrived, 0, np.array([0]))
    assert worst["op_id"].to_list() == [chosen]


@pytest.mark.parametrize(("call_late", "cause"), [(51, "host"), (49, "gpu")])
def test_the_host_is_the_cause_if_its_calls_have_half_of_the_lateness(call_late, cause):
    members = member_rows([(0, 1, 0, 0, 100, 0, call_late)])
    arrived = arriving.Arrivals(members, "durations")
    assert late_ranks.find_cause(members, arrived, 0, 0) == cause


@pytest.mark.parametrize(("waited", "cause"), [(51, "waited_itself"), (49, "host")])
def test_a_rank_waited_itself_if_it_had_waited_half_of_its_lateness(waited, cause):
    late_row = (0, 2, 0, 7, 100, 0, 100)
    waiting_row = (0, 1, 0, 8, 0, waited, 0)
    arrived = arriving.Arrivals(member_rows([waiting_row, late_row]), "durations")
    assert late_ranks.find_cause(member_rows([late_row]), arrived, 0, 0) == cause


@pytest.mark.parametrize(("on_time", "found"), [(3, True), (2, False)])
def test_a_tenth_of_the_calls_on_time_tells_a_late_rank_from_its_clock(on_time, found):
    """Twenty calls; the tenth percentile is the third smallest difference."""
    rows = []
    for op in range(20):
        for rank in range(3):
            late_ns = 100 if rank == 2 and op >= on_time else 0
            rows.append((op, rank, 0, 1_000 * op + late_ns))
    schema = {"op_id": pl.Int64, "rank": pl.Int32, "group": pl.Int64, "enqueued_ns": pl.Int64}
    called = pl.DataFrame(rows, schema=schema, orient="row")
    compared = arriving.compare_calls(called, {}).filter(pl.col("rank") == 2)
    assert (compared["arrival_ns"].max() == 100) is found
