"""Memory of the allocators per rank: by phase, and per chunk against the schedule."""

from __future__ import annotations

import msgspec

from tracekit._util.text import UNKNOWN, listing
from tracekit.analysis import Analysis
from tracekit.analysis.memory import HeldMemory
from tracekit.metrics.memory import MEMORY_PHASES

MAX_RANKS = 16
"""Ranks shown, those with the highest peak."""
SHOWN_PHASES = tuple(dict.fromkeys(MEMORY_PHASES.values()))
HOST_TIME = (
    "memory is allocated when the host launches, so phases are the host's; a range: allocated while two phases overlap"
)


class MemoryRow(msgspec.Struct, frozen=True):
    """The memory of one rank, in GB, as text."""

    rank: int
    peak: str
    reserved: str
    phases: tuple[str, ...]
    base: str
    """Before the first chunk."""
    chunk: str
    """Of one chunk."""
    chunks: str
    """Largest number of chunks in memory at once; in brackets the schedule's number if it differs."""


class MemoryView(msgspec.Struct, frozen=True):
    """The ranks with the highest peaks, and notes about the figures."""

    phases: tuple[str, ...]
    rows: tuple[MemoryRow, ...]
    pipelined: bool
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of ``cells``, after that of the rank."""
        return ("peak", "reserved", *self.phases, *(("before", "a chunk", "chunks") if self.pipelined else ()))

    def cells(self, row: MemoryRow) -> tuple[str, ...]:
        """Return the figures of a row in the order of ``columns``."""
        return (row.peak, row.reserved, *row.phases, *((row.base, row.chunk, row.chunks) if self.pipelined else ()))


def memory_view(analysis: Analysis) -> MemoryView | None:
    """Return memory by rank, the highest peak first; None if it was not recorded."""
    if analysis.memory is None:
        return None
    ranks = sorted(analysis.memory.ranks, key=lambda rank: (-rank.measured.peak_bytes, rank.rank))
    phases = tuple(phase for phase in SHOWN_PHASES if any(phase in rank.measured.by_phase for rank in ranks))
    rows = tuple(_row(rank, phases) for rank in ranks[:MAX_RANKS])
    return MemoryView(phases, rows, analysis.schedule is not None, tuple(_notes(analysis, ranks)))


def gb(count: float | None) -> str:
    """Return bytes in GB, with at least three figures.

    >>> gb(1_527_521_280), gb(8_400_000), gb(150_109_880_320), gb(None)
    ('1.53', '0.00840', '150.1', '–')
    """
    if count is None:
        return UNKNOWN
    return f"{count / 1e9:,.1f}" if count >= 10e9 else f"{count / 1e9:#.3g}"


def gb_range(low: float, high: float | None) -> str:
    """Return a range in GB; one figure if both ends look the same, a lower bound if *high* is unknown.

    >>> gb_range(1e9, 2e9), gb_range(1e9, 1.0001e9), gb_range(1e9, None)
    ('1.00 – 2.00', '1.00', '≥ 1.00')
    """
    if high is None:
        return f"≥ {gb(low)}"
    return gb(low) if gb(low) == gb(high) else f"{gb(low)} – {gb(high)}"


def _row(rank: HeldMemory, phases: tuple[str, ...]) -> MemoryRow:
    measured, chunks = rank.measured, rank.measured.chunks
    peaks = [measured.by_phase.get(phase) for phase in phases]
    base = chunk = chunk_count = UNKNOWN
    if chunks is not None:
        base, chunk_count = gb(chunks.base_bytes), str(chunks.peak_chunks)
        if chunks.low is not None:
            chunk = gb_range(chunks.low or 0, chunks.high)
        if rank.ideal_chunks not in (None, chunks.peak_chunks):
            chunk_count += f" (schedule {rank.ideal_chunks})"
    return MemoryRow(
        rank=rank.rank,
        peak=gb(measured.peak_bytes),
        reserved=gb(measured.reserved_bytes),
        phases=tuple(UNKNOWN if peak is None else gb_range(peak.at_least, peak.at_most) for peak in peaks),
        base=base,
        chunk=chunk,
        chunks=chunk_count,
    )


def _notes(analysis: Analysis, ranks: list[HeldMemory]) -> list[str]:
    capacities = sorted({rank.capacity_bytes for rank in ranks if rank.capacity_bytes is not None})
    notes = [f"GB of tensors; the GPU has {listing(map(gb, capacities))}" if capacities else "GB of tensors", HOST_TIME]
    if analysis.schedule is not None:
        notes.append("a chunk: what memory grows by over a forward cell and falls by over a backward, their medians")
    missing = len(analysis.rank_results) - len(ranks)
    if missing:
        notes.append(f"{missing} of {len(analysis.rank_results)} ranks did not record it")
    return notes
