"""Reserved memory that is free after an event, by why a request cannot have it.

The allocator serves a request from a segment of its own stream, kind (small or large) and pool. Free
memory elsewhere is reserved and of no use to it, and free memory between blocks in use serves
smaller requests alone.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.memory.measures.block_sizes import MAX_SMALL_BLOCK_BYTES
from tracekit.memory.measures.fragmentation import SMALL_SEGMENT_BYTES
from tracekit.memory.measures.replay import RESERVED_CHANGES, Replay
from tracekit.schema import MemorySnapshot

DEFAULT_POOL = "(0, 0)"
"""Pool of every segment that belongs to no CUDA graph and no ``MemPool``."""


def free_bytes_by_reason(
    replay: Replay, snapshot: MemorySnapshot, *, row: int, requested_bytes: int, stream: int
) -> dict[str, int]:
    """Return what is reserved and in no block in use after an event, by why a request cannot have it, in bytes.

    ``fragmented``: beside blocks in use, in segments that serve the request (``largest_piece``: the
    largest of these pieces). ``cached``: in such segments without a block in use. ``other_streams``,
    ``private_pools`` (CUDA graphs and ``MemPool``) and ``small_segments`` (for the other kind of
    blocks: those up to 1 MiB, or those above): in segments that do not serve it.

    Args:
        replay: Replay of the snapshot.
        snapshot: The snapshot.
        row: The event.
        requested_bytes: Size of the request that looks for memory.
        stream: Its stream.

    """
    segments = reserved_ranges(snapshot, row)
    pieces = free_pieces(replay, segments, row)
    is_own_kind = pl.col("is_small") == (requested_bytes <= MAX_SMALL_BLOCK_BYTES)
    is_private = pl.col("pool") != DEFAULT_POOL
    cases = [  # the first that holds decides
        (is_private, "private_pools"),
        (pl.col("stream") != stream, "other_streams"),
        (~is_own_kind, "small_segments"),
        (~pl.col("is_used"), "cached"),
    ]
    reason = pl.lit("fragmented")
    for condition, name in reversed(cases):
        reason = pl.when(condition).then(pl.lit(name)).otherwise(reason)
    named = pieces.with_columns(reason=reason)
    fragments = named.filter(pl.col("reason") == "fragmented")["bytes"].to_list()
    sums = dict.fromkeys(("fragmented", *(name for _, name in cases)), 0)
    sums |= dict(named.group_by("reason").agg(pl.sum("bytes")).iter_rows())
    return {**sums, "largest_piece": max(fragments, default=0)}


def reserved_ranges(snapshot: MemorySnapshot, row: int) -> pl.DataFrame:
    """Return the ranges of addresses that are reserved after an event, in their order.

    Columns: ``start``, ``end``, ``stream``, ``is_small`` and ``pool``. They follow from the segments
    at the end, and from the events after *row*, backwards. Pages of an expandable segment that
    follow each other are one range.
    """
    events = snapshot.events.with_row_index("row").filter(
        (pl.col("row") > row) & pl.col("action").is_in(list(RESERVED_CHANGES))
    )
    changed = events.select(
        start="address",
        end=pl.col("address") + pl.col("bytes"),
        stream="stream",
        is_small=pl.col("bytes") == SMALL_SEGMENT_BYTES,
        pool=pl.lit(DEFAULT_POOL),
        change=pl.col("action")
        .cast(pl.String)
        .replace_strict(RESERVED_CHANGES, return_dtype=pl.Int64),
    )
    at_end = snapshot.segments.select(
        start="address",
        end=pl.col("address") + pl.col("bytes"),
        stream="stream",
        is_small=pl.col("kind") == "small",
        pool="pool",
        change=pl.lit(-1, pl.Int64),
    )
    # A range that an event gives back, or that is there at the end, is reserved before it; one that
    # an event takes is not. Of all that touch a place the first event tells.
    ranges = pl.concat([changed, at_end])
    starts = ranges["start"].to_numpy()
    ends = ranges["end"].to_numpy()
    borders = np.unique(np.concatenate([starts, ends]))
    if not len(borders):
        return ranges_table([], ranges)
    owner = np.full(len(borders) - 1, -1)
    is_reserved = (ranges["change"] < 0).to_numpy()
    first = np.searchsorted(borders, starts)
    last = np.searchsorted(borders, ends)
    for i in range(len(ranges) - 1, -1, -1):
        owner[first[i] : last[i]] = i if is_reserved[i] else -1
    return joined_ranges(borders, owner, ranges, is_expandable=snapshot.expandable)


def joined_ranges(
    borders: Ints, owner: Ints, ranges: pl.DataFrame, *, is_expandable: bool
) -> pl.DataFrame:
    """Return the stretches between borders that have an owner, those of one segment as one."""
    streams = ranges["stream"].to_list()
    pools = ranges["pool"].to_list()
    rows: list[list[int]] = []  # start, end and owner
    for i, number in enumerate(owner.tolist()):
        if number < 0:
            continue
        start = int(borders[i])
        end = int(borders[i + 1])
        continues = bool(rows) and rows[-1][1] == start
        if continues:
            before = rows[-1][2]
            is_same_segment = before == number or (
                is_expandable
                and streams[before] == streams[number]
                and pools[before] == pools[number]
            )
            if is_same_segment:
                rows[-1][1] = end
                continue
        rows.append([start, end, number])
    return ranges_table(rows, ranges)


def ranges_table(rows: list[list[int]], ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ranges of memory, each as start, end and the row of its owner in *ranges*, with what their owners have."""
    owners = ranges.select("stream", "is_small", "pool")[[row[2] for row in rows]]
    borders = pl.DataFrame(
        {"start": [row[0] for row in rows], "end": [row[1] for row in rows]},
        schema={"start": pl.Int64(), "end": pl.Int64()},
    )
    return pl.concat([borders, owners], how="horizontal")


def free_pieces(replay: Replay, segments: pl.DataFrame, row: int) -> pl.DataFrame:
    """Return the free pieces of reserved ranges: those of the range, ``bytes``, and ``is_used``.

    A range is used if any block of it is in use.
    """
    is_made = pl.col("alloc_row").is_null() | (pl.col("alloc_row") <= row)
    is_done = (pl.col("done_row") <= row).fill_null(False)
    active = replay.allocations.filter(is_made & ~is_done & pl.col("address").is_not_null())
    active = active.sort("address")
    starts = segments["start"].to_numpy()
    ends = segments["end"].to_numpy()
    block_starts = active["address"].to_numpy()
    block_ends = block_starts + active["bytes"].to_numpy()
    segment = np.searchsorted(starts, block_starts, side="right") - 1
    is_inside: Bools = segment >= 0
    is_inside[is_inside] &= block_starts[is_inside] < ends[segment[is_inside]]
    segment, block_starts, block_ends = (
        column[is_inside] for column in (segment, block_starts, block_ends)
    )
    is_first = np.diff(segment, prepend=-1) != 0
    is_last = np.diff(segment, append=len(starts)) != 0
    before = (
        np.where(is_first, starts[segment], np.roll(block_ends, 1)) if len(segment) else segment
    )
    after = ends[segment[is_last]] - block_ends[is_last]
    unused = np.setdiff1d(np.arange(len(starts)), segment)
    numbers = np.concatenate([segment, segment[is_last], unused])
    sizes = np.concatenate([block_starts - before, after, ends[unused] - starts[unused]])
    is_used = np.concatenate(
        [np.ones(len(numbers) - len(unused), np.bool_), np.zeros(len(unused), np.bool_)]
    )
    pieces = segments[numbers].with_columns(bytes=pl.Series(sizes), is_used=pl.Series(is_used))
    return pieces.filter(pl.col("bytes") > 0)
