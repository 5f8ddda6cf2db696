"""Stalls and lanes of a rank's pipeline."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.intervals import union
from tracekit.pipeline.reconstruct import stalls
from tracekit.pipeline.reconstruct.stalls import measure_lanes


def test_lanes_by_phase():
    rows = pl.DataFrame(
        [
            ("forward", "forward", 0, 10),
            ("offload", None, 5, 15),  # half hidden, while warming up
            ("dgrad", "backward", 20, 30),
            ("forward", "forward", 30, 40),
            ("ep_dispatch", "forward", 28, 44),  # 12 hidden: steady until 40
            ("wgrad", "backward", 50, 60),
            ("pp_comm", None, 52, 58),
        ],
        schema=["label", "pass", "start_ns", "end_ns"],
        orient="row",
    )
    work = pl.DataFrame(
        {
            "step": [0] * 4,
            "op": ["F", "B", "F", "W"],
            "beside": [-1] * 4,
            "start_ns": [0, 20, 30, 50],
            "end_ns": [10, 30, 40, 60],
        }
    )
    result = measure_lanes(rows, work)
    assert result.filter(label="offload").select("phase", "total_ns", "hidden_ns").rows() == [
        ("warm-up", 10, 5)
    ]
    assert result.filter(label="ep_dispatch").select("phase", "total_ns", "hidden_ns").rows() == [
        ("steady", 12, 12),
        ("cool-down", 4, 0),
    ]
    assert result.filter(label="pp_comm")["beside_wgrad_ns"].to_list() == [6]


@pytest.mark.parametrize(("gap_ns", "intervals"), [(4_999, 1), (5_000, 2)])
def test_a_gap_below_five_microseconds_is_no_stall(gap_ns, intervals):
    covered = union([0, 10 + gap_ns], [10, 20 + gap_ns])
    assert len(stalls.fill_short_gaps(covered)) == intervals
