"""Replay of the allocator's events: the lifetime of every allocation, and the memory in use after each event.

The events may begin in the middle of a run, or their beginning may be lost. What was allocated
before is known all the same: either it is freed in the events, or it is still there when the
snapshot is written. So the level is exact at every event, and an allocation from before the events
only lacks its own time and stack.

Two levels are counted, as PyTorch does: *allocated* falls when a tensor is freed
(``free_requested``), *active* when no stream uses its block any more (``free_completed``).
*Reserved* is what the allocator holds of the GPU's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.memory.measures.block_sizes import find_block_sizes, round_up
from tracekit.schema import MemorySnapshot, conform

ALLOCATIONS = pl.Schema(
    {
        "address": pl.Int64(),
        "bytes": pl.Int64(),  # of its block
        "requested": pl.Int64(),  # what was asked for, which may be less; null if unknown
        "stream": pl.Int64(),
        "stack": pl.Int32(),  # number of the stack that allocated it; null if unknown
        "alloc_row": pl.Int64(),  # event that allocated it; null: before the first event
        "alloc_ns": pl.Int64(),
        "free_row": pl.Int64(),  # event that freed it; null: still allocated at the end; -1: before the first event
        "free_ns": pl.Int64(),
        "done_row": pl.Int64(),  # event that made its block available again; null: still active at the end
        "done_ns": pl.Int64(),
    }
)
"""One row per allocation, in the order in which they were made."""

LEVELS = pl.Schema(
    {
        "at_ns": pl.Int64(),
        "allocated": pl.Int64(),  # blocks of tensors
        "active": pl.Int64(),  # these, and blocks that are freed and still in use by a stream
        "reserved": pl.Int64(),  # segments
        "requested": pl.Int64(),  # of what is allocated, the bytes that were asked for
    }
)
"""Memory after each event, in bytes; null where it is not known."""

FREED_BEFORE = -1
"""``free_row`` of an allocation that was freed before the first event, and still in use by a stream
then."""

RESERVED_CHANGES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""How an event changes what is reserved, as a multiple of its bytes."""
_HOST_DEVICE_TYPE = 0
_TENSOR_ACTIONS = ("alloc", "free_requested", "free_completed")


@dataclass(frozen=True, eq=False)
class Replay:
    """Allocations of one GPU, and the memory in use after each event."""

    allocations: pl.DataFrame
    """``ALLOCATIONS``"""
    levels: pl.DataFrame
    """``LEVELS``, one row per event."""
    first_allocated: int
    """Allocated before the first event."""
    first_reserved: int | None
    """Reserved before the first event; None if unknown."""
    end_allocated: int
    """Allocated after the last event."""
    end_active: int | None
    """Active after the last event; None if unknown."""
    difference_bytes: int
    """Largest difference between replayed levels at the end and the snapshot's own segments; 0 if
    they agree."""

    def peak_row(self, start_ns: int | None = None, end_ns: int | None = None) -> int | None:
        """Return the first event after which most is allocated, within a time.

        None if it has no event.
        """
        start = pl.lit(True) if start_ns is None else pl.col("at_ns") >= start_ns
        end = pl.lit(True) if end_ns is None else pl.col("at_ns") <= end_ns
        rows = self.levels.with_row_index("row").filter(start & end)
        if rows.is_empty():
            return None
        return int(rows["row"][rows["allocated"].arg_max()])  # type: ignore[index]


def replay_snapshot(snapshot: MemorySnapshot) -> Replay:
    """Replay the events of a memory snapshot, backwards from its segments."""
    events = snapshot.events.with_row_index("row").cast({"row": pl.Int64})
    allocations = _pair_events(events.filter(pl.col("action").is_in(_TENSOR_ACTIONS)))
    allocations = _with_block_sizes(allocations, snapshot)
    allocations = pl.concat([_blocks_without_events(snapshot.blocks, allocations), allocations])
    older = allocations.filter(pl.col("alloc_row").is_null())
    first_active = int(older["bytes"].sum())
    living_first = older.filter(pl.col("free_row").ne_missing(FREED_BEFORE))
    first_allocated = int(living_first["bytes"].sum())
    first_requested = int(living_first.select(pl.coalesce("requested", "bytes")).to_series().sum())
    end_reserved = int(snapshot.segments["bytes"].sum())
    levels = _add_up(events, allocations)
    change = int(levels["reserved"][-1]) if len(levels) else 0
    first_reserved = end_reserved - change
    levels = levels.with_columns(
        pl.col("allocated") + first_allocated,
        pl.col("active") + first_active,
        pl.col("reserved") + first_reserved,
        pl.col("requested") + first_requested,
    )
    end_allocated = int(levels["allocated"][-1]) if len(levels) else first_allocated
    end_active = int(levels["active"][-1]) if len(levels) else first_active
    allocated_difference = abs(end_allocated - int(snapshot.segments["allocated"].sum()))
    active_difference = abs(end_active - int(snapshot.segments["active"].sum()))
    return Replay(
        allocations=allocations,
        levels=levels,
        first_allocated=first_allocated,
        first_reserved=first_reserved,
        end_allocated=end_allocated,
        end_active=end_active,
        difference_bytes=max(allocated_difference, active_difference),
    )


def _add_up(events: pl.DataFrame, allocations: pl.DataFrame) -> pl.DataFrame:
    """Return ``LEVELS`` relative to those before the first event."""
    sign = (
        pl.col("action")
        .cast(pl.String)
        .replace_strict(RESERVED_CHANGES, default=0, return_dtype=pl.Int64)
    )
    count = len(events)
    allocated = _changes_by_row(allocations, "alloc_row", count)
    freed = _changes_by_row(allocations, "free_row", count)
    done = _changes_by_row(allocations, "done_row", count)
    requested = _changes_by_row(allocations, "alloc_row", count, size="requested")
    returned = _changes_by_row(allocations, "free_row", count, size="requested")
    levels = events.select(
        # Threads may note events of almost the same moment in another order than that of their
        # times.
        at_ns=pl.col("at_ns").cum_max(),
        allocated=pl.Series(np.cumsum(allocated - freed)),
        active=pl.Series(np.cumsum(allocated - done)),
        reserved=(pl.col("bytes") * sign).cum_sum(),
        requested=pl.Series(np.cumsum(requested - returned)),
    )
    return conform(levels, LEVELS)


def _changes_by_row(
    allocations: pl.DataFrame, row: str, count: int, *, size: str = "bytes"
) -> Ints:
    """Return for each event the bytes of the allocation that it makes or frees."""
    changed = allocations.filter(pl.col(row) >= 0)
    changes = np.zeros(count, np.int64)
    changes[changed[row].to_numpy()] = changed[size].to_numpy()
    return changes


def _with_block_sizes(allocations: pl.DataFrame, snapshot: MemorySnapshot) -> pl.DataFrame:
    """Return the allocations with the sizes of their blocks instead of what was asked for."""
    sizes = find_block_sizes(snapshot)
    rows = allocations["alloc_row"]
    is_known = rows.is_not_null().to_numpy()
    block_sizes = round_up(allocations["bytes"].to_numpy())
    block_sizes[is_known] = sizes[rows.drop_nulls().to_numpy()]
    return allocations.with_columns(requested=pl.col("bytes"), bytes=pl.Series(block_sizes))


def _pair_events(events: pl.DataFrame) -> pl.DataFrame:
    """Return ``ALLOCATIONS``: each ``alloc`` with the frees of its address up to the next ``alloc`` there."""
    action = pl.col("action").cast(pl.String)
    # The number of an address' allocation; 0 for frees of what was allocated before the first
    # event.
    numbered = events.with_columns(number=(action == "alloc").cum_sum().over("address"))

    def first_of(name: str, column: str) -> pl.Expr:
        return pl.col(column).filter(action == name).first()

    paired = numbered.group_by("address", "number", maintain_order=True).agg(
        pl.col("bytes", "stream").first(),
        stack=first_of("alloc", "stack"),
        alloc_row=first_of("alloc", "row"),
        alloc_ns=first_of("alloc", "at_ns"),
        free_row=first_of("free_requested", "row"),
        free_ns=first_of("free_requested", "at_ns"),
        done_row=first_of("free_completed", "row"),
        done_ns=first_of("free_completed", "at_ns"),
    )
    is_completed_only = pl.col("free_row").is_null() & pl.col("done_row").is_not_null()
    return conform(
        paired.with_columns(
            pl.when(is_completed_only).then(FREED_BEFORE).otherwise("free_row").alias("free_row")
        ),
        ALLOCATIONS,
    )


def _blocks_without_events(blocks: pl.DataFrame, allocations: pl.DataFrame) -> pl.DataFrame:
    """Return the blocks of a snapshot that were allocated before its first event and are still there."""
    active_at_end = allocations.filter(pl.col("done_row").is_null())
    is_active = pl.col("state").str.starts_with("active")
    older = blocks.filter(is_active).join(
        active_at_end, on="address", how="anti", maintain_order="left"
    )
    is_freed = pl.col("state") == "active_pending_free"
    return conform(older.with_columns(free_row=pl.when(is_freed).then(FREED_BEFORE)), ALLOCATIONS)


def gpu_memory(memory: pl.DataFrame) -> pl.DataFrame:
    """Return the allocator events of the GPU that has most of them, with the allocation ``before`` each event.

    >>> rows = {"at_ns": [1, 2, 3], "device_type": [1, 1, 0], "device": [0, 0, -1], "bytes": [5, -5, 9],
    ...         "allocated": [15, 10, 9], "reserved": [20, 20, 0]}
    >>> gpu_memory(pl.DataFrame(rows)).select("at_ns", "allocated", "before").rows()
    [(1, 15, 10), (2, 10, 15)]
    """
    on_gpus = memory.filter(
        (pl.col("device_type") != _HOST_DEVICE_TYPE) & pl.col("allocated").is_not_null()
    )
    if on_gpus.is_empty():
        return on_gpus.with_columns(before=pl.col("allocated"))
    counts = (
        on_gpus.group_by("device_type", "device")
        .len()
        .sort(["len", "device"], descending=[True, False])
    )
    device_type, device = counts.select("device_type", "device").row(0)
    on_gpu = on_gpus.filter(
        (pl.col("device_type") == device_type) & pl.col("device").eq_missing(device)
    )
    return on_gpu.with_columns(before=pl.col("allocated") - pl.col("bytes")).sort(
        "at_ns", maintain_order=True
    )


def replay_trace(memory: pl.DataFrame) -> Replay | None:
    """Replay the allocator's events in a profiler trace (``schema.MEMORY``).

    None if it has none of a GPU.

    They have no stacks, and nothing tells when a stream is done with a block. What is allocated all
    the time has no event at all: it is one allocation without an address.
    """
    events = gpu_memory(memory)
    if events.is_empty():
        return None
    rows = events.with_row_index("row").select(
        pl.col("row").cast(pl.Int64),
        "at_ns",
        "address",
        pl.col("bytes").abs(),
        stream=pl.lit(None, pl.Int64),
        stack=pl.lit(None, pl.Int32),
        action=pl.when(pl.col("bytes") > 0)
        .then(pl.lit("alloc"))
        .otherwise(pl.lit("free_requested")),
    )
    allocations = _pair_events(rows)
    first_allocated = int(events["before"][0])
    older_bytes = int(allocations.filter(pl.col("alloc_row").is_null())["bytes"].sum())
    if first_allocated > older_bytes:
        rest = pl.DataFrame({"bytes": [first_allocated - older_bytes]})
        allocations = pl.concat([conform(rest, ALLOCATIONS), allocations])
    first_reserved = events["reserved"][0]
    return Replay(
        allocations=allocations,
        levels=conform(events.select("at_ns", "allocated", "reserved"), LEVELS),
        first_allocated=first_allocated,
        first_reserved=None if first_reserved is None else int(first_reserved),
        end_allocated=int(events["allocated"][-1]),
        end_active=None,
        difference_bytes=0,
    )
