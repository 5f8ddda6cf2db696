"""Memory of pipeline chunks: growth over a forward cell, and fall over its backward.

Both are measured between cells, at the least allocated memory from the last launch of one cell to
the first launch of the next: what an operator needs only while it runs is free again there. All
times are the host's (see ``phases``).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints

MAX_GROWTH_RATIO = 1.5
"""Largest ratio between growth over a forward and fall over a backward; beyond it, a chunk's memory
is unknown."""
MIN_CELLS = 2
"""Measured cells of each kind needed to state a chunk's memory."""
_UNKNOWN = np.iinfo(np.int64).min


class ChunkMemory(msgspec.Struct, frozen=True):
    """Memory of a rank's chunks, in bytes."""

    low: int | None
    """Smaller median of growth over forwards and fall over backwards; None where they do not
    agree."""
    high: int | None
    """Larger of the two medians."""
    base_bytes: int
    """Allocated before the first forward: weights, optimizer state and other memory that stays."""
    kept_bytes: int
    """Allocated beyond that at the last launch of the last cell: gradients, at most."""
    passing_bytes: int
    """Largest amount that a cell needs only while it runs."""
    peak_chunks: int
    """Largest number of chunks in memory at once, each from its forward to its B or W."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """``low`` and ``high``; None where they are not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def measure_chunk_memory(memory: pl.DataFrame, chunks: pl.DataFrame) -> ChunkMemory | None:
    """Return the memory of a rank's chunks; None without allocator events or chunks.

    Args:
        memory: Allocator events of one GPU (``replay.gpu_memory``).
        chunks: Cells of the rank, with columns ``step``, ``op`` (F, B, I, W), ``pair``,
            ``launch_ns`` and ``last_ns`` (first and last launch).

    >>> memory = pl.DataFrame({"at_ns": [1, 11, 21, 31, 41, 51], "allocated": [7, 9, 11, 9, 7, 5], "before": [5] * 6})
    >>> cells = pl.DataFrame({"step": [0] * 6, "op": list("FFFBBB"), "pair": [0, 1, 2, 2, 1, 0],
    ...                       "launch_ns": [0, 10, 20, 30, 40, 50], "last_ns": [5, 15, 25, 35, 45, 55]})
    >>> measure_chunk_memory(memory, cells)
    ChunkMemory(low=2, high=2, base_bytes=5, kept_bytes=0, passing_bytes=0, peak_chunks=3)

    """
    if memory.is_empty() or chunks.is_empty():
        return None
    level = _MemoryLevel.build(memory)
    changes = []
    base_bytes = []
    kept_bytes = []
    peak_chunks = []
    previous_end = int(level.time_ns[1]) - 1
    for cells in chunks.partition_by("step", maintain_order=True):
        step = cells.sort("launch_ns")
        first_launch = int(step["launch_ns"][0])
        changes.append(_measure_changes(step, level))
        base = level.extremes(
            np.min, np.array([min(previous_end, first_launch)]), np.array([first_launch])
        )
        base_bytes.append(int(base[0]))
        previous_end = max(first_launch, int(step["last_ns"].to_numpy().max()))
        kept_bytes.append(level.at(previous_end) - base_bytes[-1])
        peak_chunks.append(_max_chunks_in_memory(step["op"].to_list()))
    table = pl.concat(changes)
    growth = table.filter(pl.col("op") == "F")["change"]
    fall = -_changes_over_backwards(table)
    low, high = _agreeing_medians(growth, fall)
    return ChunkMemory(
        low,
        high,
        base_bytes=int(np.median(base_bytes)),
        kept_bytes=max(0, *kept_bytes),
        passing_bytes=int(table["passing"].max() or 0),  # type: ignore[arg-type]
        peak_chunks=max(peak_chunks),
    )


class _MemoryLevel(msgspec.Struct, frozen=True, eq=False):
    """Allocated bytes over time; each level lasts until the next time, the first since ever."""

    time_ns: Ints
    allocated: Ints

    @classmethod
    def build(cls, memory: pl.DataFrame) -> _MemoryLevel:
        """Return the level over time from the allocator's events."""
        time_ns = np.concatenate([[np.iinfo(np.int64).min], memory["at_ns"].to_numpy()])
        return cls(
            time_ns,
            np.concatenate([memory["before"].to_numpy()[:1], memory["allocated"].to_numpy()]),
        )

    def at(self, time_ns: int) -> int:
        """Return the level at a time."""
        return int(self.allocated[np.searchsorted(self.time_ns, time_ns, side="right") - 1])

    def extremes(self, function: Callable[[Ints], np.int64], start: Ints, end: Ints) -> Ints:
        """Return the lowest (``np.min``) or highest level in each period from *start* to *end*, both included."""
        first = np.maximum(np.searchsorted(self.time_ns, start, side="right") - 1, 0)
        stop = np.maximum(np.searchsorted(self.time_ns, end, side="right"), first + 1)
        extremes = np.empty(len(first), np.int64)
        for i in range(len(first)):
            extremes[i] = function(self.allocated[first[i] : stop[i]])
        return extremes


def _measure_changes(step: pl.DataFrame, level: _MemoryLevel) -> pl.DataFrame:
    """Return the change of memory over each cell of a step that does not overlap the cells before and after it."""
    launch = step["launch_ns"].to_numpy()
    last = np.maximum.accumulate(step["last_ns"].to_numpy())
    # Level between neighbouring cells; unknown where they overlap, and before the first and after
    # the last cell.
    is_apart = last[:-1] <= launch[1:]
    between = np.full(len(launch) + 1, _UNKNOWN)
    between[1:-1][is_apart] = level.extremes(np.min, last[:-1][is_apart], launch[1:][is_apart])
    is_measured = (between[:-1] != _UNKNOWN) & (between[1:] != _UNKNOWN)
    before = between[:-1][is_measured]
    after = between[1:][is_measured]
    peak = level.extremes(np.max, launch[is_measured], last[is_measured])
    cells = step.select(pl.col("op").cast(pl.String), pl.col("step", "pair").cast(pl.Int64))
    return cells.filter(pl.Series(is_measured)).with_columns(
        change=pl.Series(after - before),
        passing=pl.Series(np.maximum(0, peak - np.maximum(before, after))),
    )


def _changes_over_backwards(table: pl.DataFrame) -> pl.Series:
    """Return the change over each backward; over I and W together where it is split."""
    unsplit = table.filter(pl.col("op") == "B")["change"]
    split = (
        table.filter(pl.col("op").is_in(["I", "W"]))
        .group_by("step", "pair")
        .agg(pl.sum("change"), pl.len())
    )
    return pl.concat([unsplit, split.filter(pl.col("len") == 2)["change"]])


def _agreeing_medians(growth: pl.Series, fall: pl.Series) -> tuple[int | None, int | None]:
    """Return the smaller and the larger median.

    None and None where they disagree or too few cells were measured.
    """
    if min(len(growth), len(fall)) < MIN_CELLS:
        return None, None
    low, high = sorted((int(np.median(growth.to_numpy())), int(np.median(fall.to_numpy()))))
    return (low, high) if low > 0 and high <= MAX_GROWTH_RATIO * low else (None, None)


def _max_chunks_in_memory(ops: list[str]) -> int:
    """Return the largest number of chunks in memory at once: F adds one, B or W frees one.

    >>> _max_chunks_in_memory(list("FFBFBB"))
    2
    """
    change = np.array([(op == "F") - (op in ("B", "W")) for op in ops], np.int64)
    return int(np.cumsum(change).max(initial=0))
