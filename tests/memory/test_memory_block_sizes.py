"""Sizes of blocks from addresses alone, held against what PyTorch's allocator counted while it was recorded."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.memory_snapshots import block, event, segment, snapshot
from tracekit.memory.measures.block_sizes import (
    ROUNDING_BYTES,
    find_block_sizes,
)
from tracekit.memory.measures.replay import replay_snapshot
from tracekit.memory.snapshot_file import parse_memory_snapshot, read_memory_snapshot

MIB = 1 << 20


def sizes(events, segments=(), *, expandable=False):
    content = snapshot(events, segments)
    content["allocator_settings"]["expandable_segments"] = expandable
    return find_block_sizes(parse_memory_snapshot(content, name="a")).tolist()


def test_sizes_are_rounded_up():
    events = [
        event("segment_alloc", 0, 2 * MIB, 0),
        event("alloc", 0, 1, 1),
        event("alloc", ROUNDING_BYTES, 600, 2),
    ]
    assert sizes(events) == [0, 512, 1024]


@pytest.mark.parametrize(("rest", "stays"), [(1 << 20, True), ((1 << 20) + 512, False)])
def test_a_small_rest_of_a_large_segment_stays_with_its_block(rest, stays):
    events = [event("segment_alloc", 0, 4 * MIB + rest, 0), event("alloc", 0, 4 * MIB, 1)]
    assert sizes(events) == [0, 4 * MIB + rest * stays]


def test_segments_for_small_blocks_and_those_that_grow_keep_no_rest():
    small = [event("segment_alloc", 0, 2 * MIB, 0), event("alloc", 0, 1 << 20, 1)]
    assert sizes(small) == [0, 1 << 20]
    growing = [event("segment_map", 0, 5 * MIB, 0), event("alloc", 0, 4 * MIB + 512, 1)]
    assert sizes(growing, expandable=True) == [0, 4 * MIB + 512]


def test_a_region_ends_at_the_next_block_in_use():
    events = [
        event("segment_alloc", 0, 20 * MIB, 0),
        event("alloc", 0, 5 * MIB, 1),
        event("alloc", 5 * MIB, 5 * MIB, 2),
        event("free_requested", 0, 5 * MIB, 3),
        event("free_completed", 0, 5 * MIB, 3),
        # Its rest is smaller than 1 MiB and ends at the second block.
        event("alloc", 0, 4 * MIB + 512, 4),
    ]
    assert sizes(events)[-1] == 5 * MIB
    still_in_use = [*events[:3], event("alloc", 10 * MIB, 4 * MIB, 4)]
    assert sizes(still_in_use)[-1] == 4 * MIB


def test_blocks_and_segments_from_before_the_history_count():
    older = segment(0, [block(5 * MIB, 5 * MIB)], total=20 * MIB)
    assert sizes([event("alloc", 0, 4 * MIB + 512, 4)], [older]) == [5 * MIB]
    freed = [event("alloc", 0, 4 * MIB + 512, 4), event("free_completed", 5 * MIB, 5 * MIB, 5)]
    assert sizes(freed, [segment(0, [], total=20 * MIB)])[0] == 5 * MIB
    gone = [event("alloc", 0, 19 * MIB + 512, 4), event("segment_free", 0, 20 * MIB, 5)]
    assert sizes(gone)[0] == 20 * MIB


def test_an_expandable_segment_is_one_range_however_often_it_grew():
    events = [
        event("segment_map", 0, 2 * MIB, 0),
        event("segment_map", 2 * MIB, 2 * MIB, 1),
        event("alloc", 0, 4 * MIB - 256, 2),
        event("segment_unmap", 2 * MIB, 2 * MIB, 3),
        event("segment_map", 2 * MIB, 2 * MIB, 4),
    ]
    assert sizes(events, expandable=True)[2] == 4 * MIB


@pytest.mark.parametrize(
    "path", ["leak/memory_rank1", "fragmentation/memory_rank0", "streams/memory_rank0"]
)
def test_levels_are_those_that_the_allocator_counted(snapshots, path):
    """The program that recorded it asked ``torch.cuda.memory_stats`` for the peaks of every step."""
    name = path.replace("memory_", "truth_")
    truth = json.loads(gzip.decompress((snapshots / f"{name}.json.gz").read_bytes()))
    replay = replay_snapshot(read_memory_snapshot(snapshots / f"{path}.pickle.gz"))
    for step in truth["steps"]:
        levels = replay.levels.filter(
            replay.levels["at_ns"].is_between(step["start_ns"], step["end_ns"])
        )
        assert levels["allocated"].max() == step["allocated_peak"]
        assert levels["active"].max() == step["active_peak"]
        assert levels["reserved"].max() == step["reserved_peak"]
        assert levels["allocated"][-1] == step["allocated_end"]
    assert replay.difference_bytes == 0
