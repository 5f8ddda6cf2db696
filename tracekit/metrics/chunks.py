"""What one chunk of a pipeline holds: by how much memory grows over a forward cell, and falls over its backward.

Both are read off between cells, at the least that was held from the last launch of one to the first of the next: what
an operator needs only while it runs is free again there. All times are the host's (see ``metrics.memory``).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]

AGREE = 1.5
"""Growth over a forward and fall over a backward may differ by this factor; beyond, nobody knows what a chunk holds."""
FEWEST = 2
"""Cells of each kind, between two others, without which nothing is said."""


class ChunkMemory(msgspec.Struct, frozen=True):
    """What a rank's chunks hold, in bytes."""

    low: int | None
    """The smaller of the two medians, over forwards and over backwards; None where they do not agree."""
    high: int | None
    base_bytes: int
    """Held before the first forward: weights, optimizer state and whatever else stays."""
    kept_bytes: int
    """Held at the last launch of the last cell beyond that: gradients, at most."""
    passing_bytes: int
    """Most that a cell takes only while it runs."""
    peak_chunks: int
    """Most chunks that were held at once, each from its forward to its B or W."""
    cells: int
    """Cells that were measured."""


def chunk_memory(own: pl.DataFrame, chunks: pl.DataFrame) -> ChunkMemory | None:
    """Return what the chunks of a rank hold; None without allocator events around any.

    *own* comes from ``gpu_memory``, *chunks* holds ``step``, ``op`` (F, B, I, W), ``pair``, ``launch_ns``, ``last_ns``.

    >>> own = pl.DataFrame({"at_ns": [1, 11, 21, 31, 41, 51], "allocated": [7, 9, 11, 9, 7, 5], "before": [5] * 6})
    >>> cells = pl.DataFrame({"step": [0] * 6, "op": list("FFFBBB"), "pair": [0, 1, 2, 2, 1, 0],
    ...                       "launch_ns": [0, 10, 20, 30, 40, 50], "last_ns": [5, 15, 25, 35, 45, 55]})
    >>> chunk_memory(own, cells)
    ChunkMemory(low=2, high=2, base_bytes=5, kept_bytes=0, passing_bytes=0, peak_chunks=3, cells=4)
    """
    if own.is_empty() or chunks.is_empty():
        return None
    at = np.concatenate([[np.iinfo(np.int64).min], own["at_ns"].to_numpy()])
    held = np.concatenate([own["before"].to_numpy()[:1], own["allocated"].to_numpy()])
    steps = [part.sort("launch_ns") for part in chunks.partition_by("step", maintain_order=True)]
    changes, bases, kept, peaks, before = [], [], [], [], int(at[1]) - 1
    for step in steps:
        changes.append(_changes(step, at, held))
        first = int(step["launch_ns"][0])
        bases.append(int(_least(at, held, np.array([min(before, first)]), np.array([first]))[0]))
        peaks.append(_most_held(step["op"].to_list()))
        before = max(first, int(step["last_ns"].to_numpy().max()))
        kept.append(int(held[np.searchsorted(at, before, side="right") - 1]) - bases[-1])
    table = pl.concat(changes)
    grown = table.filter(pl.col("op") == "F")["change"]
    fallen = -_backwards(table)
    low, high = _together(grown, fallen)
    return ChunkMemory(
        low,
        high,
        base_bytes=int(np.median(bases)),
        kept_bytes=max(0, *kept),
        passing_bytes=int(table["passing"].max() or 0),  # type: ignore[arg-type]
        peak_chunks=max(peaks),
        cells=len(grown) + len(fallen),
    )


def _changes(step: pl.DataFrame, at: Ints, held: Ints) -> pl.DataFrame:
    """Return by how much memory changed over each cell that others stand before and behind, none beside it."""
    launch, last = step["launch_ns"].to_numpy(), np.maximum.accumulate(step["last_ns"].to_numpy())
    apart = last[:-1] <= launch[1:]
    level = np.full(len(launch) + 1, np.iinfo(np.int64).min)
    level[1:-1][apart] = _least(at, held, last[:-1][apart], launch[1:][apart])
    known = level != np.iinfo(np.int64).min
    whole = known[:-1] & known[1:]
    named = step.select(pl.col("op").cast(pl.String), pl.col("step", "pair").cast(pl.Int64))
    named = named.filter(pl.Series(whole))
    before, after = level[:-1][whole], level[1:][whole]
    most = -_least(at, -held, launch[whole], last[whole])
    return named.with_columns(
        change=pl.Series(after - before), passing=pl.Series(np.maximum(0, most - np.maximum(before, after)))
    )


def _least(at: Ints, held: Ints, first: Ints, last: Ints) -> Ints:
    """Return the least that was held in each stretch from *first* to *last*."""
    if not len(first):
        return np.zeros(0, np.int64)
    low = np.maximum(np.searchsorted(at, first, side="right") - 1, 0)
    high = np.maximum(np.searchsorted(at, last, side="right"), low + 1)
    return np.array([held[a:b].min() for a, b in zip(low.tolist(), high.tolist(), strict=True)], np.int64)


def _backwards(table: pl.DataFrame) -> pl.Series:
    """Return the change over each backward; of one that is split, over its I and W together."""
    whole = table.filter(pl.col("op") == "B")["change"]
    split = table.filter(pl.col("op").is_in(["I", "W"])).group_by("step", "pair").agg(pl.sum("change"), pl.len())
    return pl.concat([whole, split.filter(pl.col("len") == 2)["change"]])


def _together(grown: pl.Series, fallen: pl.Series) -> tuple[int | None, int | None]:
    if min(len(grown), len(fallen)) < FEWEST:
        return None, None
    low, high = sorted((int(np.median(grown.to_numpy())), int(np.median(fallen.to_numpy()))))
    return (low, high) if low > 0 and high <= AGREE * low else (None, None)


def _most_held(ops: list[str]) -> int:
    """Return the most chunks held at once.

    >>> _most_held(list("FFBFBB"))
    2
    """
    change = np.array([(op == "F") - (op in ("B", "W")) for op in ops], np.int64)
    return int(np.cumsum(change).max(initial=0))
