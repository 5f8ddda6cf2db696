"""Thresholds by which chunks, their layers and their stalls are found, each on both sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.intervals import union
from tracekit.pipeline.against_ideal.comparison import StepComparison
from tracekit.pipeline.against_ideal.replay import weight_gradient_share
from tracekit.pipeline.reconstruct import chunk_table, segment, stalls


@pytest.mark.parametrize(("shared_ns", "is_block"), [(34, True), (33, False)])
def test_halves_of_a_block_share_more_than_a_third_of_the_shorter_one(shared_ns, is_block):
    rows = [
        {"op": "F", "pair": 9, "launch_ns": 0, "last_ns": 1, "start_ns": 0, "end_ns": 100},
        {"op": "B", "pair": 8, "launch_ns": 50, "last_ns": 60, "start_ns": 100, "end_ns": 200},
    ]
    chunks = pl.DataFrame(rows).with_columns(block=pl.lit(None, pl.String))
    is_backward = pl.col("op") == "B"
    times = pl.col("start_ns", "end_ns")
    moved = chunks.with_columns(pl.when(is_backward).then(times - shared_ns).otherwise(times))
    partner = chunk_table.find_partners(moved, from_ranges=False)
    assert partner.to_list() == ([1, 0] if is_block else [-1, -1])


@pytest.mark.parametrize(("once_ns", "layers"), [(4, 3), (6, 1)])
def test_kernels_of_layers_take_95_percent_of_a_chunk(once_ns, layers):
    """Three kernels of one name take the rest of 100 ns; one of another name occurs once."""
    each_ns = (100 - once_ns) // 3
    duration_ns = np.array([each_ns, each_ns, 100 - once_ns - 2 * each_ns, once_ns])
    chunk = np.zeros(4, np.int64)
    name = np.array([7, 7, 7, 8])
    assert chunk_table.count_layers(chunk, name, duration_ns).tolist() == [layers]


@pytest.mark.parametrize(("named_ns", "is_covered"), [(90, True), (89, False)])
def test_ranges_decide_if_they_hold_nine_tenths_of_the_time(named_ns, is_covered):
    duration_ns = np.array([named_ns, 100 - named_ns])
    is_named = np.array([True, False])
    is_forward = np.array([True, True])
    assert segment.are_parts_covered(duration_ns, is_named, is_forward) is is_covered


@pytest.mark.parametrize(("gap_ns", "intervals"), [(4_999, 1), (5_000, 2)])
def test_a_gap_below_five_microseconds_is_no_stall(gap_ns, intervals):
    covered = union([0, 10 + gap_ns], [10, 20 + gap_ns])
    assert len(stalls.fill_short_gaps(covered)) == intervals


def test_weight_gradients_take_at_most_nine_tenths_of_a_backward():
    assert weight_gradient_share(np.array([95]), np.array([100])) == pytest.approx(0.9)
    assert weight_gradient_share(np.array([85]), np.array([100])) == pytest.approx(0.85)


@pytest.mark.parametrize(("work_ns", "is_slow"), [(125, False), (126, True)])
def test_a_cell_is_slow_above_one_and_a_quarter_of_its_usual_work(work_ns, is_slow):
    ones = np.array([0])
    usual_ns = np.array([100])
    graph = SimpleNamespace(table=SimpleNamespace(stage=ones, microbatch=ones), op=["F"])
    replays = SimpleNamespace(
        graph=graph, typical=usual_ns, balanced=usual_ns, work=np.array([work_ns])
    )
    pipeline = SimpleNamespace(detail=pl.DataFrame({"rank": [0]}))
    step = SimpleNamespace(replays=replays, pipeline=pipeline)
    slow_cells = StepComparison.measure_imbalance(step).slow_cells
    assert bool(slow_cells) is is_slow
