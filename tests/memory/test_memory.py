"""Memory by phase and by chunk, on timelines that can be counted on fingers."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.documents.analysis import Peak
from tracekit.memory.measures.chunk_memory import MIN_CELLS, ChunkMemory, measure_chunk_memory
from tracekit.memory.measures.phases import add_phases, phase_peaks
from tracekit.memory.measures.rank_memory import measure_rank_memory, thin_curve
from tracekit.memory.measures.replay import gpu_memory
from tracekit.schema import EVENTS, MEMORY, MEMORY_CURVE, Source, conform

MAIN, ENGINE = 1, 2
SOURCE = Source("a.json", "kineto", 0, "name")


def memory(*rows, device_type=1, device=0):
    """Rows (time, bytes) or (time, bytes, thread), from 100 bytes held at the start."""
    total, records = 100, []
    for time, size, *tid in rows:
        total += size
        records.append({"rank": 0, "at_ns": time, "tid": tid[0] if tid else MAIN, "device_type": device_type,
                     "device": device, "bytes": size, "allocated": total, "reserved": 1000})  # fmt: skip
    return conform(pl.DataFrame(records), MEMORY)


def ops(*rows):
    records = [{"kind": "cpu_op", "tid": tid, "start_ns": a, "end_ns": b} for tid, a, b in rows]
    return (
        conform(pl.DataFrame(records, schema_overrides={"tid": pl.Int64}), EVENTS)
        if records
        else EVENTS.to_frame()
    )


def launched(labelled, *rows):
    """GPU events (label, launch, thread)."""
    return labelled(*({"label": label, "start_ns": 1000 + ns, "end_ns": 1001 + ns, "launch_ns": ns, "launch_tid": tid,
                       **({"pass": more[0]} if more else {})} for label, ns, tid, *more in rows))  # fmt: skip


def phases(own, gpu, host):
    return add_phases(gpu_memory(own), gpu, host)["phase"].to_list()


def test_the_gpu_with_most_events_counts_and_the_host_does_not():
    both = pl.concat(
        [
            memory((1, 5), (2, 5), device_type=0),
            memory((3, 7), device=1),
            memory((4, 1), (5, 1), device=2),
        ]
    )
    assert gpu_memory(both)["at_ns"].to_list() == [4, 5]
    assert (
        measure_rank_memory(
            memory((1, 5), device_type=0), pl.DataFrame(), EVENTS.to_frame(), source=SOURCE
        )
        is None
    )


def test_files_without_totals_say_nothing():
    assert gpu_memory(memory((1, 5)).with_columns(allocated=pl.lit(None, pl.Int64))).is_empty()


def test_an_allocation_inside_an_operator_has_the_phase_of_what_it_launches(labelled):
    """The first backward operator takes memory before its first launch: the launch before it is still a forward."""
    gpu = launched(labelled, ("forward", 10, MAIN), ("dgrad", 30, ENGINE))
    host = ops((MAIN, 5, 15), (ENGINE, 22, 40), (ENGINE, 23, 30))
    assert phases(memory((25, 8, ENGINE)), gpu, host) == ["backward"]


def test_between_operators_both_sides_must_agree(labelled):
    gpu = launched(
        labelled,
        ("forward", 10, MAIN),
        ("forward", 20, MAIN),
        ("wgrad", 30, ENGINE),
        ("dgrad", 40, ENGINE),
    )
    own = memory((15, 1), (25, 1), (35, 1, ENGINE), (45, 1, ENGINE))
    assert phases(own, gpu, ops()) == ["forward", None, "backward", None]


def test_a_free_by_the_main_thread_after_a_backward_is_not_of_the_forward(labelled):
    """Its own thread launched forwards before and after; the engine's backward stands between."""
    gpu = launched(labelled, ("forward", 10, MAIN), ("dgrad", 20, ENGINE), ("forward", 40, MAIN))
    assert phases(memory((30, -1)), gpu, ops()) == [None]


def test_a_thread_that_launches_something_else_is_not_drawn_in(labelled):
    gpu = launched(
        labelled,
        ("forward", 10, MAIN),
        ("forward", 20, MAIN),
        ("dgrad", 5, ENGINE),
        ("dgrad", 40, ENGINE),
    )
    assert phases(memory((15, 1, ENGINE)), gpu, ops()) == [None]


def test_an_operator_that_launches_two_phases_tells_none_between_them(labelled):
    gpu = launched(labelled, ("recompute", 10, ENGINE), ("dgrad", 20, ENGINE))
    assert phases(memory((15, 1, ENGINE)), gpu, ops((ENGINE, 0, 30))) == [None]


def test_communication_counts_by_its_pass_and_unknown_work_not_at_all(labelled):
    gpu = launched(labelled, ("tp_comm", 10, MAIN, "forward"), ("other", 12, MAIN), ("dp_comm", 14, MAIN),
                   ("forward", 20, MAIN))  # fmt: skip
    assert phases(memory((15, 1)), gpu, ops()) == ["forward"]


def test_the_peak_of_a_phase_is_a_range_where_moments_belong_to_none(labelled):
    gpu = launched(
        labelled,
        ("forward", 10, MAIN),
        ("forward", 20, MAIN),
        ("dgrad", 30, ENGINE),
        ("dgrad", 40, ENGINE),
    )
    # 150, then 180 between the phases, then 120 from 180.
    own = memory((15, 50), (25, 30), (35, -60, ENGINE))
    assert phase_peaks(add_phases(gpu_memory(own), gpu, ops())) == {
        "forward": Peak(150, 180),
        "backward": Peak(180, 180),  # what was held when it began
    }


def test_a_rank_in_bytes(labelled):
    gpu = launched(labelled, ("forward", 10, MAIN), ("forward", 20, MAIN))
    result = measure_rank_memory(
        memory((11, 50), (12, -80), (30, 5)), gpu, ops(), source=SOURCE
    ).figures
    assert (result.peak_bytes, result.first_bytes, result.reserved_bytes) == (150, 100, 1000)
    later = measure_rank_memory(
        memory((11, 50), (12, -80), (30, 5)), gpu, ops(), source=SOURCE, window=(12, 40)
    ).figures
    assert (later.peak_bytes, later.first_bytes) == (150, 150)


def test_without_launches_there_is_a_peak_and_no_phase(labelled):
    own = memory((11, 50), (12, -80))
    bare = launched(labelled, ("forward", 10, MAIN)).with_columns(
        pl.lit(None, pl.Int64).alias("launch_ns")
    )
    for gpu in (bare, bare.clear()):
        result = measure_rank_memory(own, gpu, ops(), source=SOURCE)
        figures = result.figures
        assert (figures.peak_bytes, dict(figures.by_phase), result.chunks) == (150, {}, None)


@pytest.mark.parametrize("points", [2, 3, 50])
def test_a_thinned_line_keeps_its_peak(points):
    own = gpu_memory(memory(*((k, 7 if k < 30 else -7) for k in range(60))))
    thin = thin_curve(own, points=points)
    assert thin.schema == MEMORY_CURVE
    assert len(thin) <= points
    assert thin["allocated"].max() == own["allocated"].max()
    assert thin["at_ns"].is_sorted()


def cells(*rows):
    """(op, pair, first launch, last launch)"""
    return pl.DataFrame(
        [
            {"step": 0, "op": op, "pair": pair, "launch_ns": a, "last_ns": b}
            for op, pair, a, b in rows
        ],
        schema={
            "step": pl.Int64,
            "op": pl.String,
            "pair": pl.Int64,
            "launch_ns": pl.Int64,
            "last_ns": pl.Int64,
        },
    )


def alternate(grow, fall, *, kinds="FFFFBBBB", passing=0):
    """Cells 10 apart; each takes *passing* bytes only while it runs."""
    size = {"F": grow, "B": -fall, "I": -fall // 2, "W": -(fall - fall // 2)}
    events, rows, forward, back = [], [], 0, {"B": 0, "I": 0, "W": 0}
    for k, op in enumerate(kinds):
        events += [(10 * k + 1, passing), (10 * k + 2, size[op]), (10 * k + 5, -passing)]
        rows.append((op, forward if op == "F" else back[op], 10 * k, 10 * k + 4))
        forward, back[op] = forward + (op == "F"), back.get(op, 0) + 1
    return gpu_memory(memory(*events)), cells(*rows)


def test_a_chunk_grows_by_its_forward_and_falls_by_its_backward():
    assert measure_chunk_memory(*alternate(20, 20)) == ChunkMemory(20, 20, 100, 0, 0, 4)
    assert measure_chunk_memory(*alternate(20, 20, passing=500)) == ChunkMemory(
        20, 20, 100, 500, 500, 4
    )


def test_a_backward_in_two_counts_as_one():
    result = measure_chunk_memory(*alternate(20, 20, kinds="FFFFIWIWIWIW"))
    assert (result.low, result.high, result.peak_chunks) == (20, 20, 4)


def test_cells_beside_each_other_are_not_measured():
    own, rows = alternate(20, 20)
    beside = rows.with_columns(last_ns=pl.col("launch_ns") + 15)
    assert measure_chunk_memory(own, beside) == ChunkMemory(None, None, 100, 0, 0, 4)


@pytest.mark.parametrize(("fall", "told"), [(30, True), (31, False), (-1, False), (0, False)])
def test_forward_and_backward_must_agree(fall, told):
    result = measure_chunk_memory(*alternate(20, fall))
    assert (result.low is not None) is told


@pytest.mark.parametrize(("kinds", "told"), [("FFFBBB", True), ("FFBFB", False)])
def test_too_few_cells_say_nothing(kinds, told):
    assert MIN_CELLS == 2
    result = measure_chunk_memory(*alternate(20, 20, kinds=kinds))
    assert (result.low is not None) is told


def test_without_cells_or_events_there_is_nothing():
    own, rows = alternate(20, 20)
    assert measure_chunk_memory(own, rows.clear()) is None
    assert measure_chunk_memory(own.clear(), rows) is None


@pytest.mark.parametrize(("events", "points"), [(199, 199), (10_000, 200)])
def test_the_curve_of_a_rank_has_at_most_200_points(events, points):
    own = gpu_memory(memory(*((k, 1) for k in range(events))))
    assert len(thin_curve(own)) == points
