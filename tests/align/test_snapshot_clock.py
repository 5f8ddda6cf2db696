"""The place of a memory snapshot on a trace's clock: found by each kind of evidence, refused for other runs."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from tests.memory_snapshots import BASE_US, annotation, event, snapshot
from tracekit.align import snapshot_clock
from tracekit.align.snapshot_clock import (
    place_snapshot,
)
from tracekit.memory.snapshot_file import parse_memory_snapshot, read_memory_snapshot
from tracekit.run.load import load
from tracekit.schema import EVENTS, MEMORY, RankEvents, Source, conform

RECORDED = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "always-on/1f1b-memory"
COUNT = 40
TIMES_US = [100 * i + 7 * (i * i % 11) for i in range(COUNT)]
"""Times of the allocations, at uneven distances: only one offset fits them."""


def the_snapshot(*, ranges=(), times_us=TIMES_US):
    events = [event("alloc", 4096 * (i + 1), 512, us) for i, us in enumerate(times_us)]
    rows = [row for name, us in ranges for row in annotation(name, us, us + 1)]
    return parse_memory_snapshot(snapshot(events, annotations=rows), name="a")


def the_trace(*, offset_us=0, ranges=(), operators=True, memory=()):
    """A trace whose operators allocate 2 µs after they begin, moved by *offset_us*."""
    rows = []
    if operators:
        for us in TIMES_US:
            start_ns = (BASE_US + us + offset_us - 2) * 1000
            rows.append(
                {
                    "kind": "cpu_op",
                    "name": "aten::empty",
                    "start_ns": start_ns,
                    "end_ns": start_ns + 5000,
                }
            )
    for name, us in ranges:
        start_ns = (BASE_US + us + offset_us) * 1000
        rows.append(
            {"kind": "annotation", "name": name, "start_ns": start_ns, "end_ns": start_ns + 9}
        )
    events = conform(pl.DataFrame(rows), EVENTS)
    allocations = []
    for address, us in memory:
        at_ns = (BASE_US + us + offset_us) * 1000
        allocations.append({"at_ns": at_ns, "device_type": 1, "bytes": 512, "address": address})
    table = conform(pl.DataFrame(allocations), MEMORY) if allocations else MEMORY.to_frame()
    return RankEvents(events, Source("a.json", "kineto", 0, "name"), table)


RANGES = [("ProfilerStep#2", 5), ("Optimizer.step#AdamW.step", 900), ("ProfilerStep#3", 1900)]


def test_ranges_of_the_same_name_tell_the_offset():
    placement = place_snapshot(the_snapshot(ranges=RANGES), the_trace(offset_us=300, ranges=RANGES))
    assert (placement.on_trace.source, placement.pairs) == ("annotations", 3)
    assert abs(placement.on_trace.offset_ns - 300_000) <= 10_000
    assert placement.on_trace.uncertainty_ns <= 1000


def test_allocations_of_the_trace_tell_it_before_ranges_do():
    memory = [(4096 * (i + 1), us) for i, us in enumerate(TIMES_US)]
    placement = place_snapshot(
        the_snapshot(ranges=RANGES), the_trace(offset_us=300, ranges=RANGES, memory=memory)
    )
    assert (placement.on_trace.source, placement.pairs) == ("allocations", COUNT)


def test_ranges_alone_tell_it_where_no_operator_was_recorded():
    """All 40 allocations lie between the ranges: enough to be looked for in operators, if there were any."""
    ranges = [*RANGES, ("ProfilerStep#4", 4500)]
    trace = the_trace(offset_us=300, ranges=ranges, operators=False)
    placement = place_snapshot(the_snapshot(ranges=ranges), trace)
    assert (placement.on_trace.source, placement.pairs) == ("annotations", 4)
    assert abs(placement.on_trace.offset_ns - 300_000) <= 1000


def test_operators_tell_it_where_nothing_else_does():
    placement = place_snapshot(the_snapshot(), the_trace(offset_us=300))
    assert placement.on_trace.source == "operators"
    assert abs(placement.on_trace.offset_ns - 300_000) <= 20_000


def test_a_range_that_was_interrupted_widens_the_uncertainty():
    late = [*RANGES[:2], ("ProfilerStep#3", 1900 + 100)]
    placement = place_snapshot(the_snapshot(ranges=RANGES), the_trace(ranges=late))
    assert placement.pairs == 3
    assert placement.on_trace.uncertainty_ns == pytest.approx(100_000, rel=0.05)
    too_late = [*RANGES[:2], ("ProfilerStep#3", 1900 + 400)]
    assert place_snapshot(the_snapshot(ranges=RANGES), the_trace(ranges=too_late)).pairs == 2


def test_a_snapshot_of_another_time_is_refused():
    seconds = 2_000_000
    assert (
        place_snapshot(the_snapshot(ranges=RANGES), the_trace(offset_us=seconds, ranges=RANGES))
        is None
    )
    near = 500_000
    assert (
        place_snapshot(the_snapshot(ranges=RANGES), the_trace(offset_us=near, ranges=RANGES))
        is not None
    )


def test_a_snapshot_whose_allocations_lie_outside_operators_is_refused():
    """Its ranges fit, as those of another rank of the same run may."""
    moved = [us + 50 for us in TIMES_US]
    assert (
        place_snapshot(the_snapshot(ranges=RANGES, times_us=moved), the_trace(ranges=RANGES))
        is None
    )


@pytest.mark.parametrize(
    ("inside", "with_ranges", "without"), [(3, False, False), (10, True, False), (16, True, True)]
)
def test_how_many_allocations_must_lie_inside_operators(inside, with_ranges, without):
    """Of forty: a fifth if ranges tell the offset, a third if operators are all there is."""
    times = [us if i < inside else us + 11 * (i % 7) + 13 for i, us in enumerate(TIMES_US)]
    by_ranges = place_snapshot(
        the_snapshot(ranges=RANGES, times_us=times), the_trace(ranges=RANGES)
    )
    by_operators = place_snapshot(the_snapshot(times_us=times), the_trace())
    assert (by_ranges is not None, by_operators is not None) == (with_ranges, without)


def test_a_snapshot_that_was_written_early_is_compared_with_the_time_it_saw():
    saw_one_range = the_snapshot(ranges=RANGES[:1], times_us=TIMES_US[: COUNT // 2])
    later = [*RANGES, *((f"ProfilerStep#{i}", 100 * i) for i in range(30, 40))]
    shared = [*RANGES[:1], *((name, us) for name, us in later if name in dict(RANGES))]
    placement = place_snapshot(saw_one_range, the_trace(ranges=shared))
    assert placement is not None


def test_ranges_alone_are_believed_where_the_trace_has_no_operators():
    placement = place_snapshot(
        the_snapshot(ranges=RANGES), the_trace(ranges=RANGES, operators=False)
    )
    assert placement.on_trace.source == "annotations"


def test_ranges_that_mostly_disagree_are_not_believed():
    half = [("ProfilerStep#2", 5), ("ProfilerStep#3", 1905), ("a", 2500), ("b", 3700), ("c", 1100)]
    own = [("ProfilerStep#2", 5), ("ProfilerStep#3", 1905), ("a", 90), ("b", 1900), ("c", 3900)]
    assert place_snapshot(the_snapshot(ranges=own), the_trace(ranges=half, operators=False)) is None


@cache
def recorded(rank):
    trace = load(RECORDED / f"rank{rank}.pt.trace.json.gz").rank(rank)
    return trace, read_memory_snapshot(RECORDED / f"memory_rank{rank}.pickle")


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recording is not here")
@pytest.mark.slow
@pytest.mark.parametrize("rank", range(4))
def test_recorded_snapshots_fit_their_own_rank_alone(rank, monkeypatch):
    trace, own = recorded(rank)
    placement = place_snapshot(own, trace)
    assert placement.on_trace.source == "annotations"
    assert abs(placement.on_trace.offset_ns) < 10_000
    assert placement.on_trace.uncertainty_ns < 130_000
    for other in range(4):
        if other != rank:
            assert place_snapshot(recorded(other)[1], trace) is None
    monkeypatch.setattr(
        snapshot_clock, "annotation_pairs", lambda *_: snapshot_clock.PAIRS.to_frame()
    )
    without_ranges = place_snapshot(own, trace)
    assert without_ranges.on_trace.source == "operators"
    assert abs(without_ranges.on_trace.offset_ns - placement.on_trace.offset_ns) < 20_000


def agreed_offset(offsets_ns):
    """The offset that pairs of different rows agree on."""
    rows = {"row": range(len(offsets_ns)), "at_ns": 0, "offset_ns": offsets_ns}
    pairs = pl.DataFrame(rows, schema_overrides=snapshot_clock.PAIRS)
    return snapshot_clock.find_agreed_offset(pairs, span=(-(10**9), 10**9))


@pytest.mark.parametrize(("apart_ns", "offset_ns"), [(20_000, 10_000), (20_002, 1_000_000)])
def test_offsets_within_twenty_microseconds_are_counted_together(apart_ns, offset_ns):
    """Of two groups of two, the first counts unless its two lie too far apart."""
    agreed = agreed_offset([0, apart_ns, 1_000_000, 1_000_000])
    assert agreed is not None
    assert agreed[0] == offset_ns


@pytest.mark.parametrize(("deviation_ns", "agreeing"), [(200_000, 4), (200_001, 3)])
def test_a_pair_agrees_up_to_two_hundred_microseconds(deviation_ns, agreeing):
    agreed = agreed_offset([0, 0, 0, deviation_ns])
    assert agreed is not None
    assert agreed[2] == agreeing


@pytest.mark.parametrize(("agreeing", "is_believed"), [(5, True), (4, False)])
def test_half_of_the_rows_must_agree_on_an_offset(agreeing, is_believed):
    others = [1_000_000 * n for n in range(1, 11 - agreeing)]
    assert (agreed_offset([0] * agreeing + others) is not None) is is_believed


def fitted_offset(times_ns, start_ns):
    """The offset of allocations at these times beside operators that begin, and end, at *start_ns*."""
    placed = pl.DataFrame({"action": "alloc", "at_ns": times_ns})
    operators = pl.DataFrame({"start_ns": start_ns, "end_ns": start_ns})
    return snapshot_clock.fit_to_operators(placed, operators, 0, min_share=0.2)


@pytest.mark.parametrize(("count", "is_refused"), [(19, False), (20, True)])
def test_twenty_allocations_outside_operators_refuse_a_snapshot(count, is_refused):
    times_ns = [1_000_000 * n for n in range(count)]
    far_off_ns = [1_000_000 * n + 500_000 for n in range(count)]
    assert (fitted_offset(times_ns, far_off_ns) is None) is is_refused


def test_an_offset_is_moved_in_steps_of_two_microseconds():
    times_ns = [1_000_000 * n for n in range(20)]
    later_ns = [at_ns + 2_000 for at_ns in times_ns]
    assert fitted_offset(times_ns, later_ns) == 2_000
    between_ns = [at_ns + 1_000 for at_ns in times_ns]
    assert fitted_offset(times_ns, between_ns) is None
