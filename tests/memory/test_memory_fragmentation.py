"""Fragmentation of histories that can be counted by hand."""

from __future__ import annotations

import pytest

from tests.memory_snapshots import block, event, segment, snapshot
from tracekit.documents.memory import MemoryFragmentation
from tracekit.memory.measures.fragmentation import measure_fragmentation
from tracekit.memory.measures.replay import replay_snapshot
from tracekit.memory.snapshot_file import parse_memory_snapshot

MIB = 1 << 20
BASE = 1 << 40


def measured(content, **options) -> MemoryFragmentation:
    read = parse_memory_snapshot(content, name="a")
    return measure_fragmentation(replay_snapshot(read), read, **options)


def freed(address, size, us):
    return [event("free_requested", address, size, us), event("free_completed", address, size, us)]


def history(*, second_request):
    """A segment of 20 MiB whose second half was freed.

    Then more is asked for, and a segment is reserved.
    """
    return [
        event("segment_alloc", BASE, 20 * MIB, 1),
        event("alloc", BASE, 10 * MIB, 2),
        event("alloc", BASE + 10 * MIB, 10 * MIB, 3),
        *freed(BASE, 10 * MIB, 4),
        event("segment_alloc", 2 * BASE, 20 * MIB, 5),
        event("alloc", 2 * BASE, second_request, 6),
    ]


def end(second_request):
    first = segment(BASE, [block(BASE + 10 * MIB, 10 * MIB)], total=20 * MIB)
    second = segment(2 * BASE, [block(2 * BASE, second_request)], total=20 * MIB)
    return [first, second]


def test_a_segment_reserved_while_as_much_was_free_is_forced():
    result = measured(snapshot(history(second_request=10 * MIB), end(10 * MIB)))
    assert (result.forced_segments, result.forced_bytes) == (1, 20 * MIB)
    assert (result.largest_request_bytes, result.largest_request_free_bytes) == (10 * MIB, 10 * MIB)


def test_a_request_for_more_than_is_free_forces_nothing():
    result = measured(snapshot(history(second_request=10 * MIB + 1), end(10 * MIB + 1)))
    assert (result.forced_segments, result.forced_bytes, result.largest_request_bytes) == (
        0,
        0,
        None,
    )


def test_free_memory_of_another_stream_or_kind_does_not_count():
    other_stream = history(second_request=10 * MIB)
    for row in other_stream[-2:]:
        row["stream"] = 7
    assert measured(snapshot(other_stream, end(10 * MIB))).forced_segments == 0
    small = history(second_request=1 << 20)
    small[-2]["size"] = 2 << 20
    assert measured(snapshot(small, end(1 << 20))).forced_segments == 0
    large = history(second_request=2 << 20)
    assert measured(snapshot(large, end(2 << 20))).forced_segments == 1


def test_free_memory_beside_blocks_in_use_is_fragmented_and_an_empty_segment_is_cached():
    events = [event("segment_alloc", BASE, 20 * MIB, 1), event("alloc", BASE, 5 * MIB, 2)]
    empty = segment(2 * BASE, [block(2 * BASE, 8 * MIB, "inactive")], total=8 * MIB)
    used = segment(
        BASE, [block(BASE, 5 * MIB), block(BASE + 5 * MIB, 15 * MIB, "inactive")], total=20 * MIB
    )
    result = measured(snapshot(events, [used, empty]))
    assert (result.reserved_bytes, result.allocated_bytes) == (28 * MIB, 5 * MIB)
    assert (result.fragmented_bytes, result.cached_bytes, result.pending_bytes) == (
        15 * MIB,
        8 * MIB,
        0,
    )


def test_what_a_stream_still_uses_is_pending():
    events = [
        event("segment_alloc", BASE, 20 * MIB, 1),
        event("alloc", BASE, 5 * MIB, 2),
        event("free_requested", BASE, 5 * MIB, 3),
        event("segment_alloc", 2 * BASE, 2 * MIB, 4),
    ]
    used = segment(BASE, [block(BASE, 5 * MIB, "active_pending_free")], total=20 * MIB)
    result = measured(snapshot(events, [used, segment(2 * BASE, [], total=2 * MIB)]))
    assert (result.pending_bytes, result.allocated_bytes, result.reserved_bytes) == (
        5 * MIB,
        0,
        22 * MIB,
    )


def test_segments_that_grow_are_not_told_apart():
    events = [event("segment_map", BASE, 20 * MIB, 1), event("alloc", BASE, 5 * MIB, 2)]
    content = snapshot(events, [segment(BASE, [block(BASE, 5 * MIB)], total=20 * MIB)])
    content["allocator_settings"]["expandable_segments"] = True
    result = measured(content)
    assert (result.fragmented_bytes, result.cached_bytes, result.forced_segments) == (
        None,
        15 * MIB,
        0,
    )


def test_the_most_reserved_is_looked_for_within_the_time_asked_for():
    events = [
        event("segment_alloc", BASE, 20 * MIB, 1),
        event("segment_alloc", 2 * BASE, 20 * MIB, 2),
        event("segment_free", 2 * BASE, 20 * MIB, 3),
        event("segment_alloc", 3 * BASE, 2 * MIB, 9),
    ]
    content = snapshot(
        events, [segment(BASE, [], total=20 * MIB), segment(3 * BASE, [], total=2 * MIB)]
    )
    read = parse_memory_snapshot(content, name="a")
    replay = replay_snapshot(read)
    late_ns = int(replay.levels["at_ns"][2])
    assert measure_fragmentation(replay, read).reserved_bytes == 40 * MIB
    assert measure_fragmentation(replay, read, start_ns=late_ns).reserved_bytes == 22 * MIB
    assert measure_fragmentation(replay, read, start_ns=2 * late_ns) is None


@pytest.mark.parametrize(("segment_mib", "forced"), [(1, 1), (2, 0), (4, 1)])
def test_segments_of_two_mebibytes_are_those_for_small_blocks(segment_mib, forced):
    """A segment of that size is not for large blocks: half a mebibyte that is free in another does not fit into it."""
    events = history(second_request=MIB // 2)
    events[-2]["size"] = segment_mib * MIB
    small_segment = segment(2 * BASE, [block(2 * BASE, MIB // 2)], total=segment_mib * MIB)
    result = measured(snapshot(events, [end(MIB // 2)[0], small_segment]))
    assert result.forced_segments == forced
