"""Sizes of the blocks that PyTorch's allocator hands out.

The events of a snapshot carry the bytes that were asked for. A block is larger: sizes are rounded
up, and what is left of the free region that it is cut from stays with it if that is too small to be
of use. Both follow from the addresses: neighbouring free blocks are always joined, so the region
ends at the next block in use or at the end of its segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.schema import MemorySnapshot

ROUNDING_BYTES = 512
"""Blocks are multiples of this (``kMinBlockSize``); a smaller rest is never split off."""
MAX_SMALL_BLOCK_BYTES = 1 << 20
"""Largest block that is cut from a segment for small blocks (``kSmallSize``). Of other segments, a
rest up to this size stays with its block."""


def round_up(requested: Ints) -> Ints:
    """Return requested sizes rounded to those of blocks.

    >>> round_up(np.array([1, 512, 513])).tolist()
    [512, 512, 1024]
    """
    blocks = -(-requested // ROUNDING_BYTES)
    return np.maximum(blocks, 1) * ROUNDING_BYTES


def find_block_sizes(snapshot: MemorySnapshot) -> Ints:
    """Return the size of the block of each ``alloc`` event, in their order; 0 for other events."""
    events = snapshot.events
    actions = events["action"].cast(pl.String).to_list()
    addresses = events["address"].to_list()
    requested = events["bytes"].to_numpy()
    rounded = round_up(requested).tolist()
    requested_list = requested.tolist()
    sizes = [0] * len(actions)
    in_use = _used_before(snapshot)
    segments, segment_ends = _segments_before(snapshot)
    # Expandable segments are cut like those for small blocks.
    min_rest_of_large = ROUNDING_BYTES if snapshot.expandable else MAX_SMALL_BLOCK_BYTES + 1
    for row, action in enumerate(actions):
        address = addresses[row]
        if action == "alloc":
            size = rounded[row]
            following = bisect_right(in_use, address)
            segment = bisect_right(segments, address) - 1
            if segment >= 0 and address < segment_ends[segment]:
                end = segment_ends[segment]
                if following < len(in_use) and in_use[following] < end:
                    end = in_use[following]
                min_rest = ROUNDING_BYTES if size <= MAX_SMALL_BLOCK_BYTES else min_rest_of_large
                rest = end - address - size
                if 0 < rest < min_rest:
                    size += rest
            sizes[row] = size
            in_use.insert(following, address)
        elif action == "free_completed":
            index = bisect_left(in_use, address)
            if index < len(in_use) and in_use[index] == address:
                del in_use[index]
        elif action in ("segment_alloc", "segment_map"):
            index = bisect_left(segments, address)
            segments.insert(index, address)
            segment_ends.insert(index, address + requested_list[row])
            if action == "segment_map":
                join_ranges(segments, segment_ends, index)
        elif action in ("segment_free", "segment_unmap"):
            remove_range(segments, segment_ends, address, address + requested_list[row])
    return np.array(sizes, np.int64)


def join_ranges(starts: list[int], ends: list[int], index: int) -> None:
    """Join a mapped range with its neighbours: an expandable segment is one range however often it grew."""
    if index + 1 < len(starts) and ends[index] == starts[index + 1]:
        ends[index] = ends[index + 1]
        del starts[index + 1], ends[index + 1]
    if index > 0 and ends[index - 1] == starts[index]:
        ends[index - 1] = ends[index]
        del starts[index], ends[index]


def remove_range(starts: list[int], ends: list[int], start: int, end: int) -> None:
    """Take a range out of the segments.

    Of an expandable one, what lies before and behind it stays.
    """
    index = bisect_right(starts, start) - 1
    if index < 0 or start >= ends[index]:
        return
    old_start = starts[index]
    old_end = ends[index]
    del starts[index], ends[index]
    if end < old_end:
        starts.insert(index, end)
        ends.insert(index, old_end)
    if old_start < start:
        starts.insert(index, old_start)
        ends.insert(index, start)


def _used_before(snapshot: MemorySnapshot) -> list[int]:
    """Return the addresses of blocks in use before the first event, in order."""
    events = snapshot.events.select("address", pl.col("action").cast(pl.String))
    first = events.filter(pl.col("action").is_in(["alloc", "free_completed"])).unique(
        "address", keep="first"
    )
    freed_first = first.filter(pl.col("action") == "free_completed")["address"]
    used_at_end = snapshot.blocks.filter(pl.col("state").str.starts_with("active"))["address"]
    always_used = used_at_end.filter(~used_at_end.is_in(first["address"].implode()))
    return sorted({*freed_first.to_list(), *always_used.to_list()})


def _segments_before(snapshot: MemorySnapshot) -> tuple[list[int], list[int]]:
    """Return starts and ends of the segments before the first event, in order of address."""
    starts = snapshot.segments["address"].to_list()
    ends = (snapshot.segments["address"] + snapshot.segments["bytes"]).to_list()
    changes = snapshot.events.filter(pl.col("action").cast(pl.String).str.starts_with("segment_"))
    rows = changes.select(pl.col("action").cast(pl.String), "address", "bytes").rows()
    for action, address, size in reversed(rows):
        if action in ("segment_alloc", "segment_map"):
            remove_range(starts, ends, address, address + size)
        else:
            index = bisect_left(starts, address)
            starts.insert(index, address)
            ends.insert(index, address + size)
            if action == "segment_unmap":
                join_ranges(starts, ends, index)
    return starts, ends
