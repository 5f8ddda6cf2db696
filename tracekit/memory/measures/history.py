"""All allocations of a history with their purposes and stacks, from which every moment can be told.

Rows are numbers of events. An allocation exists from its own event up to the event that frees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tracekit.memory.measures.contents import CATEGORIES
from tracekit.memory.measures.fragmentation import segment_lifetimes
from tracekit.memory.measures.replay import FREED_BEFORE, Replay
from tracekit.memory.measures.stacks import Stack, is_compiled, is_of_library, source_line
from tracekit.schema import MemorySnapshot, conform

LIVES = pl.Schema(
    {
        "made": pl.Int64(),  # event that allocated it; -1: before the first event
        "freed": pl.Int64(),  # event that freed it; the number of events: never
        "address": pl.Int64(),  # null if unknown
        "bytes": pl.Int64(),
        "category": pl.Enum(CATEGORIES),
        "stack": pl.Int32(),  # null if unknown
        "is_leaked": pl.Boolean(),
    }
)
"""One row per allocation."""
HISTORY_LEVELS = pl.Schema({"at_ns": pl.Int64(), "allocated": pl.Int64(), "reserved": pl.Int64()})
"""Memory after each event; ``reserved`` is null where it is not known."""
SEGMENT_LIVES = pl.Schema(
    {
        "address": pl.Int64(),
        "bytes": pl.Int64(),
        "stream": pl.Int64(),
        "made": pl.Int64(),
        "freed": pl.Int64(),
    }
)
"""One row per segment, with the events that reserve it and give it back, as ``LIVES`` has them."""
FRAMES = pl.Schema(
    {
        "text": pl.String(),  # file, line and function
        "kind": pl.String(),  # own, library or compiled
    }
)
"""Distinct frames."""
HISTORY_STACKS = pl.Schema(
    {
        "stack": pl.Int32(),
        "line": pl.String(),  # that stands for it
        "frames": pl.List(pl.Int32()),  # rows of ``FRAMES``, outermost first
    }
)
"""Stacks of the allocations."""


class AllocationHistory(msgspec.Struct, frozen=True, eq=False):
    """All allocations of one GPU."""

    lives: pl.DataFrame
    """``LIVES``"""
    levels: pl.DataFrame
    """``HISTORY_LEVELS``, one row per event."""
    segments: pl.DataFrame
    """``SEGMENT_LIVES``; empty where segments may grow, or are not recorded."""
    frames: pl.DataFrame
    """``FRAMES``"""
    stacks: pl.DataFrame
    """``HISTORY_STACKS``"""
    peak_row: int | None
    """Event of the peak; None without events."""
    failed_row: int | None
    """Event of the last request that failed; None if none did."""


def allocation_history(
    replay: Replay,
    purposes: pl.DataFrame,
    leaked_rows: pl.Series,
    *,
    stacks: Sequence[Stack],
    snapshot: MemorySnapshot | None,
    peak_row: int | None,
) -> AllocationHistory:
    """Return all allocations of a history.

    Args:
        replay: Replay of the events.
        purposes: From ``contents.find_purposes``.
        leaked_rows: Events of the allocations that are leaks.
        stacks: Stacks by their number.
        snapshot: The snapshot; None for the events of a trace.
        peak_row: Event of the peak; None without events.

    """
    count = len(replay.levels)
    existing = purposes.filter(pl.col("free_row").ne_missing(FREED_BEFORE))
    lives = existing.select(
        "address",
        "bytes",
        "category",
        "stack",
        made=pl.col("alloc_row").fill_null(-1),
        freed=pl.col("free_row").fill_null(count),
        is_leaked=pl.col("alloc_row").is_in(leaked_rows.implode()).fill_null(False),
    )
    failed_row = None
    segments = SEGMENT_LIVES.to_frame()
    if snapshot is not None:
        failed = snapshot.events["action"].to_frame().with_row_index("row")
        failed_rows = failed.filter(pl.col("action") == "oom")["row"].to_list()
        failed_row = failed_rows[-1] if failed_rows else None
        if not snapshot.expandable:
            segments = _segment_lives(snapshot, count)
    used = lives["stack"].drop_nulls().unique().sort().to_list()
    frames, stack_table = _frame_tables(stacks, used)
    return AllocationHistory(
        lives=conform(lives, LIVES),
        levels=conform(replay.levels, HISTORY_LEVELS),
        segments=segments,
        frames=frames,
        stacks=stack_table,
        peak_row=peak_row,
        failed_row=failed_row,
    )


def _segment_lives(snapshot: MemorySnapshot, count: int) -> pl.DataFrame:
    lifetimes = segment_lifetimes(snapshot)
    return conform(
        lifetimes.select(
            "address",
            "bytes",
            "stream",
            made="first_row",
            freed=pl.min_horizontal("last_row", pl.lit(count, pl.Int64)),
        ),
        SEGMENT_LIVES,
    )


def _frame_tables(
    stacks: Sequence[Stack], numbers: Sequence[int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``FRAMES`` and ``HISTORY_STACKS`` of the stacks with these numbers."""
    texts: dict[tuple[str, str], int] = {}
    rows = []
    for number in numbers:
        frames = []
        for frame in reversed(stacks[number]):
            function, file, line = frame
            text = f"{file}:{line} {function}" if file else function
            kind = "own"
            if is_compiled(frame):
                kind = "compiled"
            elif is_of_library(frame):
                kind = "library"
            frames.append(texts.setdefault((text, kind), len(texts)))
        rows.append((number, source_line(stacks[number]), frames))
    frame_table = pl.DataFrame(list(texts), schema=FRAMES, orient="row")
    return frame_table, pl.DataFrame(rows, schema=HISTORY_STACKS, orient="row")
