"""Fragmentation: reserved memory that tensors cannot use because it is free in pieces.

The allocator reserves segments and cuts blocks from them. A segment without any block in use is
only cached: it can be given back. Free memory beside blocks in use is not: it serves smaller
requests alone. The proof that this costs memory is a new segment that was reserved although as much
was free in the segments of the same kind and stream.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.documents.memory import MemoryFragmentation
from tracekit.memory.measures.block_sizes import MAX_SMALL_BLOCK_BYTES
from tracekit.memory.measures.replay import Replay
from tracekit.memory.measures.stacks import source_line
from tracekit.schema import MemorySnapshot

SMALL_SEGMENT_BYTES = 2 << 20
"""Size of the segments that PyTorch keeps for small blocks."""


def measure_fragmentation(
    replay: Replay,
    snapshot: MemorySnapshot,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
) -> MemoryFragmentation | None:
    """Return the fragmentation of a snapshot's history at the most that was reserved.

    None without a history.

    Args:
        replay: Replay of the snapshot, on any clock.
        snapshot: The snapshot.
        start_ns: Beginning of the time to look at, on the replay's clock; None for all.
        end_ns: Its end.

    """
    levels = replay.levels.with_row_index("row").cast({"row": pl.Int64})
    if start_ns is not None:
        levels = levels.filter(pl.col("at_ns") >= start_ns)
    if end_ns is not None:
        levels = levels.filter(pl.col("at_ns") <= end_ns)
    if levels.is_empty():
        return None
    # Of all moments with as much reserved, the one with most in tensors: what is free even then is
    # not needed.
    fullest = levels.filter(pl.col("reserved") == pl.col("reserved").max()).sort(
        "active", "row", descending=[True, False]
    )
    most = fullest.row(0, named=True)
    row = int(most["row"])
    segments = segment_lifetimes(snapshot)
    cached_bytes = int(most["reserved"] - most["active"])
    fragmented_bytes = None
    forced: list[_Request] = []
    if not snapshot.expandable:
        free_by_segment, is_used = _free_bytes(replay, segments, row)
        cached_bytes = int(free_by_segment[~is_used].sum())
        fragmented_bytes = int(free_by_segment[is_used].sum())
        forced = _forced_segments(replay, snapshot, int(levels["row"][0]), row)
    largest = max(forced, key=lambda request: request.bytes, default=None)
    largest_stack = None if largest is None else largest.stack
    return MemoryFragmentation(
        at_ns=int(most["at_ns"]),
        reserved_bytes=int(most["reserved"]),
        allocated_bytes=int(most["allocated"]),
        pending_bytes=int(most["active"] - most["allocated"]),
        cached_bytes=cached_bytes,
        fragmented_bytes=fragmented_bytes,
        forced_segments=len(forced),
        forced_bytes=sum(request.segment_bytes for request in forced),
        largest_request_bytes=None if largest is None else largest.bytes,
        largest_request_free_bytes=None if largest is None else largest.free_bytes,
        largest_request_line=None
        if largest_stack is None
        else source_line(snapshot.stacks[largest_stack]),
    )


class _Request(msgspec.Struct, frozen=True):
    """A request for memory that led to a new segment although as much was free."""

    bytes: int
    segment_bytes: int
    free_bytes: int
    stack: int | None


def segment_lifetimes(snapshot: MemorySnapshot) -> pl.DataFrame:
    """Return address, bytes, stream, first row and last row of every segment.

    -1 and the largest number for always.
    """
    events = snapshot.events.with_row_index("row").cast({"row": pl.Int64})
    events = events.filter(pl.col("action").is_in(["segment_alloc", "segment_free"]))
    is_alloc = pl.col("action") == "segment_alloc"
    numbered = events.with_columns(number=is_alloc.cum_sum().over("address"))
    lifetimes = numbered.group_by("address", "number", maintain_order=True).agg(
        pl.col("bytes", "stream").first(),
        first_row=pl.col("row").filter(is_alloc).first().fill_null(-1),
        last_row=pl.col("row").filter(~is_alloc).first().fill_null(np.iinfo(np.int64).max),
    )
    at_end = lifetimes.filter(pl.col("last_row") == np.iinfo(np.int64).max)
    older = snapshot.segments.join(at_end, on="address", how="anti").select(
        "address",
        "bytes",
        "stream",
        first_row=pl.lit(-1, pl.Int64),
        last_row=pl.lit(np.iinfo(np.int64).max, pl.Int64),
    )
    return pl.concat([lifetimes.drop("number"), older]).sort("address")


def _free_bytes(replay: Replay, segments: pl.DataFrame, row: int) -> tuple[Ints, Bools]:
    """Return the free bytes of each segment that exists after an event, and whether any block of it is in use."""
    existing = segments.filter((pl.col("first_row") <= row) & (pl.col("last_row") > row)).sort(
        "address"
    )
    is_made = pl.col("alloc_row").is_null() | (pl.col("alloc_row") <= row)
    is_done = (pl.col("done_row") <= row).fill_null(False)
    active = replay.allocations.filter(is_made & ~is_done & pl.col("address").is_not_null())
    starts = existing["address"].to_numpy()
    if not len(starts):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    segment = np.maximum(np.searchsorted(starts, active["address"].to_numpy(), side="right") - 1, 0)
    used = np.bincount(segment, active["bytes"].to_numpy(), len(starts)).astype(np.int64)
    return np.maximum(existing["bytes"].to_numpy() - used, 0), used > 0


def _forced_segments(
    replay: Replay, snapshot: MemorySnapshot, first_row: int, last_row: int
) -> list[_Request]:
    """Return the requests between two events that led to a new segment although as much was free in pieces.

    A block is cut from a segment of its own stream and kind (small or large), which make a pool.
    """
    events = snapshot.events.with_row_index("row").cast({"row": pl.Int64})
    is_segment = pl.col("action").cast(pl.String).str.starts_with("segment_")
    is_small_segment = pl.col("bytes") == SMALL_SEGMENT_BYTES
    is_small_block = pl.col("bytes") <= MAX_SMALL_BLOCK_BYTES
    is_small = pl.when(is_segment).then(is_small_segment).otherwise(is_small_block)
    sign = (
        pl.col("action")
        .cast(pl.String)
        .replace_strict(_FREE_CHANGES, default=0, return_dtype=pl.Int64)
    )
    pool = ["stream", "is_small"]
    changes = events.with_columns(is_small=is_small, change=pl.col("bytes") * sign)
    free_after = pl.col("change").cum_sum().over(pool)
    pooled = changes.with_columns(free=free_after - pl.col("change"))
    pooled = pooled.join(_first_free(replay, snapshot), on=pool, how="left", maintain_order="left")
    allocs = events.filter(pl.col("action") == "alloc").select(
        "address", "row", requested="bytes", alloc_stack="stack"
    )
    is_new = (pl.col("action") == "segment_alloc") & pl.col("row").is_between(first_row, last_row)
    new = pooled.filter(is_new).join_asof(
        allocs, on="row", by="address", strategy="forward", check_sortedness=False
    )
    new = new.with_columns(free=pl.col("free") + pl.col("first_free").fill_null(0))
    forced = new.filter(pl.col("free") >= pl.col("requested"))
    rows = forced.select("requested", "bytes", "free", "alloc_stack").rows()
    return [_Request(*row) for row in rows]


_FREE_CHANGES = {"segment_alloc": 1, "segment_free": -1, "alloc": -1, "free_completed": 1}
"""How an event changes what is free in its pool, as a multiple of its bytes."""


def _first_free(replay: Replay, snapshot: MemorySnapshot) -> pl.DataFrame:
    """Return by pool what was free before the first event (``first_free``)."""
    segments = segment_lifetimes(snapshot).filter(pl.col("first_row") < 0)
    reserved = segments.select(
        "stream", is_small=pl.col("bytes") == SMALL_SEGMENT_BYTES, first_free="bytes"
    )
    older = replay.allocations.filter(pl.col("alloc_row").is_null())
    used = older.select(
        "stream", is_small=pl.col("bytes") <= MAX_SMALL_BLOCK_BYTES, first_free=-pl.col("bytes")
    )
    return pl.concat([reserved, used]).group_by("stream", "is_small").agg(pl.sum("first_free"))
