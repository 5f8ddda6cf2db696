"""What hiding costs: the same kernel alone and beside communication."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.overlap import (
    OVERLAP_COSTS,
    combine_overlap_costs,
    measure_overlap_costs,
)
from tracekit.report.sections.overlap import hiding_table

MS = 1_000_000


def costs(labelled, alone, beside, *, cover=1.0, **more):
    """Kernels of these lengths, first alone, then each beside a collective that covers a share of it."""
    rows, now = [], 0
    for lengths, share in ((alone, 0.0), (beside, cover)):
        for ns in lengths:
            rows.append(
                {"label": "forward", "name": "gemm", "start_ns": now, "end_ns": now + ns, **more}
            )
            if share:
                end = now + round(ns * share)
                rows.append(
                    {
                        "label": "dp_comm",
                        "name": "nccl",
                        "stream": 9,
                        "start_ns": now,
                        "end_ns": end,
                    }
                )
            now += ns + 10
    events = labelled(*rows)
    return measure_overlap_costs(events, Lanes.of(events))


def test_the_slow_down_and_the_net_gain(labelled):
    result = combine_overlap_costs([costs(labelled, [100] * 3, [120] * 4)] * 2, saved_ns=960)
    (row,) = result.by_label
    assert (row.label, row.kernels, row.beside_ns, row.alone_ns, row.all_ns) == (
        "forward",
        8,
        960,
        800,
        960,
    )
    assert row.slowdown == pytest.approx(1.2)
    assert (result.extra_ns, result.net_ns, result.compared) == (160, 800, 1.0)


@pytest.mark.parametrize(
    ("alone", "kernels"),
    [
        ([100] * 3, 3),
        ([100] * 2, 0),
    ],
)
def test_few_kernels_alone_are_not_enough(labelled, alone, kernels):
    assert costs(labelled, alone, [120] * 3)["kernels"].to_list() == [kernels]


@pytest.mark.parametrize(
    ("longest", "kernels"),
    [(125, 3), (135, 0)],
)
def test_times_that_scatter_alone_say_nothing(labelled, longest, kernels):
    result = costs(labelled, [100, 100, 100, int(longest), int(longest)], [120] * 3)
    assert result["kernels"].to_list() == [kernels]


@pytest.mark.parametrize(("cover", "counted"), [(0.9, 1), (0.85, 0)])
def test_kernels_that_are_only_partly_beside_do_not_count(labelled, cover, counted):
    assert len(costs(labelled, [1000] * 3, [1200] * 3, cover=cover)) == counted


def test_other_shapes_are_other_kernels(labelled):
    small = [{"label": "forward", "name": "gemm", "op": "aten::mm", "shapes": "[[8,8]]", "start_ns": 200 * i,
              "end_ns": 200 * i + 100} for i in range(3)]  # fmt: skip
    large = [{**row, "shapes": "[[9,9]]", "start_ns": row["start_ns"] + 1000, "end_ns": row["start_ns"] + 1180}
             for row in small]  # fmt: skip
    events = labelled(
        *small,
        *large,
        {"label": "dp_comm", "name": "nccl", "stream": 9, "start_ns": 1000, "end_ns": 1600},
    )
    assert measure_overlap_costs(events, Lanes.of(events))["kernels"].to_list() == [0]


def test_where_little_can_be_compared_there_is_no_net_gain(labelled):
    comparable, other = costs(labelled, [100] * 3, [120] * 3), costs(labelled, [100], [200] * 6)
    result = combine_overlap_costs([comparable, other], saved_ns=999)
    assert result.compared == pytest.approx(360 / 1560)
    assert result.extra_ns == 60
    assert result.net_ns is None
    assert combine_overlap_costs([], saved_ns=0) is None
    assert combine_overlap_costs([pl.DataFrame(schema=comparable.schema)], saved_ns=0) is None


@pytest.mark.parametrize(("compared_ns", "given"), [(50, True), (49, False)])
def test_a_net_gain_is_given_where_half_of_the_time_could_be_compared(compared_ns, given):
    """MIN_COMPARED_SHARE: of 100 ns beside communication."""
    row = {
        "label": "forward",
        "kernels": 3,
        "beside_ns": compared_ns,
        "alone_ns": 40,
        "all_ns": 100,
    }
    hiding = combine_overlap_costs([pl.DataFrame([row], schema=OVERLAP_COSTS)], saved_ns=1_000)
    assert (hiding.net_ns is not None) is given


@pytest.mark.parametrize(
    ("compared_ns", "sentence"),
    [
        # 10 of 50 ms more, and as much of the other 50.
        (50, "per rank hiding saved 60.0 ms and cost 20.0 ms: a net gain of 40.0 ms"),
        (49, "per rank hiding saved 60.0 ms and cost at least 9.0 ms"),
    ],
)
def test_what_hiding_saved_less_what_it_cost_is_its_net_gain(compared_ns, sentence):
    beside = {"beside_ns": compared_ns * MS, "alone_ns": 40 * MS, "all_ns": 100 * MS}
    row = {"label": "forward", "kernels": 3, **beside}
    hiding = combine_overlap_costs([pl.DataFrame([row], schema=OVERLAP_COSTS)], saved_ns=60 * MS)
    table = hiding_table(SimpleNamespace(hiding=hiding, ranks=(None,)))
    assert table.notes[0].startswith(sentence)
