"""Allocated GPU memory over time, by phase of the step and by pipeline chunk.

Allocator events carry the time at which the host asks for memory, which is when it launches work,
not when the GPU runs it: all times are the host's.
"""

from __future__ import annotations

import msgspec
import polars as pl

from tracekit.documents.analysis import AllocatorMemory, MemoryLine
from tracekit.memory.measures.chunk_memory import ChunkMemory, measure_chunk_memory
from tracekit.memory.measures.phases import add_phases, phase_peaks
from tracekit.memory.measures.rank_contents import RankContents
from tracekit.memory.measures.replay import gpu_memory
from tracekit.schema import MEMORY_CURVE, Source

MAX_CURVE_POINTS = 200
"""Points of a rank's memory curve; each is the maximum of its stretch of time, so that no peak is
lost."""


class RankMemory(msgspec.Struct, frozen=True, eq=False):
    """One rank's memory over the selected steps, in bytes."""

    figures: AllocatorMemory
    """As far as the rank alone tells: without what belongs to a schedule."""
    chunks: ChunkMemory | None = None
    """Memory of pipeline chunks; None without a pipeline."""
    contents: RankContents | None = None
    """What fills the memory at its peak; None if single allocations are not known."""


def measure_rank_memory(
    memory: pl.DataFrame,
    labelled: pl.DataFrame,
    ops: pl.DataFrame,
    *,
    source: Source,
    window: tuple[int, int] | None = None,
    chunks: pl.DataFrame | None = None,
) -> RankMemory | None:
    """Return one rank's memory; None where the allocator's events were not recorded.

    Args:
        memory: Allocator events of the rank (``schema.MEMORY``).
        labelled: Its GPU events.
        ops: Its CPU operators.
        source: Where its events are from.
        window: First and last host time of the selected steps; None for the whole trace.
        chunks: Its cells in the pipeline (``measure_chunk_memory``); None without a pipeline.

    """
    events = gpu_memory(memory)
    if window is not None:
        events = events.filter(pl.col("at_ns").is_between(*window))
    if events.is_empty():
        return None
    peaks = events.select(pl.max("allocated", "before", "reserved"))
    figures = AllocatorMemory(
        rank=source.rank,
        device=int(events["device"][0] or 0),
        capacity_bytes=source.memory_bytes,
        peak_bytes=max(int(peaks["allocated"][0]), int(peaks["before"][0])),
        reserved_bytes=peaks["reserved"][0],
        first_bytes=int(events["before"][0]),
        by_phase=phase_peaks(add_phases(events, labelled, ops)),
        base_bytes=None,
        chunk_bytes=None,
        chunks=None,
        ideal_chunks=None,
        line=MemoryLine(**thin_curve(events).to_dict(as_series=False)),
    )
    return RankMemory(figures, None if chunks is None else measure_chunk_memory(events, chunks))


def thin_curve(events: pl.DataFrame, *, points: int = MAX_CURVE_POINTS) -> pl.DataFrame:
    """Return ``MEMORY_CURVE``: the maximum of each of *points* stretches of equal time.

    Every event if there are fewer.

    >>> rows = {"at_ns": [0, 1, 10], "allocated": [5, 9, 2], "reserved": [9, 9, 9]}
    >>> thin_curve(pl.DataFrame(rows), points=2).rows()
    [(0, 9, 9), (10, 2, 9)]
    """
    if len(events) > points:
        first = int(events["at_ns"][0])
        last = int(events["at_ns"][-1])
        stretch_ns = max(1, -(-(last - first + 1) // points))
        stretch = (pl.col("at_ns") - first) // stretch_ns
        events = events.group_by(stretch.alias("stretch"), maintain_order=True).agg(
            pl.first("at_ns"), pl.max("allocated", "reserved")
        )
    return events.select(MEMORY_CURVE.names()).cast(MEMORY_CURVE)
