"""What the allocators held: per rank, by phase, and against the schedule's activations."""

from __future__ import annotations

import msgspec

from tracekit._util.text import listing
from tracekit.analysis import Analysis
from tracekit.analysis.memory import HeldMemory
from tracekit.metrics.memory import MEMORY_PHASES

MOST_ROWS = 16
"""Ranks shown, those that held most."""
SHOWN_PHASES = tuple(dict.fromkeys(MEMORY_PHASES.values()))
HOST_TIME = "memory is taken when the host launches, so phases are the host's; a range where the moment tells no phase"


class MemoryRow(msgspec.Struct, frozen=True):
    """One rank, in GB, as text."""

    rank: int
    peak: str
    reserved: str
    phases: tuple[str, ...]
    base: str
    chunk: str
    chunks: str
    """Most chunks held at once, and in brackets what the schedule has it hold where that differs."""


class MemoryView(msgspec.Struct, frozen=True):
    """The ranks that held most, and what to know about the figures."""

    phases: tuple[str, ...]
    rows: tuple[MemoryRow, ...]
    pipelined: bool
    notes: tuple[str, ...]


def memory_view(analysis: Analysis) -> MemoryView | None:
    """Return memory by rank, the fullest first; None where it was not recorded."""
    if analysis.memory is None:
        return None
    ranks = sorted(analysis.memory.ranks, key=lambda one: (-one.measured.peak_bytes, one.rank))
    phases = tuple(phase for phase in SHOWN_PHASES if any(phase in one.measured.by_phase for one in ranks))
    pipelined = analysis.schedule is not None
    rows = tuple(_row(one, phases) for one in ranks[:MOST_ROWS])
    return MemoryView(phases, rows, pipelined, tuple(_notes(analysis, ranks)))


def gb(count: float | None) -> str:
    """Return bytes in GB, three digits of them.

    >>> gb(1_527_521_280), gb(8_400_000), gb(150_109_880_320), gb(None)
    ('1.53', '0.00840', '150.1', '–')
    """
    if count is None:
        return "–"
    return f"{count / 1e9:,.1f}" if count >= 10e9 else f"{count / 1e9:#.3g}"


def between(low: float, high: float | None) -> str:
    """Return a range in GB; one figure where both ends read alike.

    >>> between(1e9, 2e9), between(1e9, 1.0001e9), between(1e9, None)
    ('1.00 – 2.00', '1.00', '≥ 1.00')
    """
    if high is None:
        return f"≥ {gb(low)}"
    return gb(low) if gb(low) == gb(high) else f"{gb(low)} – {gb(high)}"


def _row(one: HeldMemory, phases: tuple[str, ...]) -> MemoryRow:
    found, chunks = one.measured, one.measured.chunks
    peaks = [found.by_phase.get(phase) for phase in phases]
    known = chunks is not None and chunks.low is not None
    held = "–" if chunks is None else str(chunks.peak_chunks)
    if chunks is not None and one.ideal_chunks not in (None, chunks.peak_chunks):
        held += f" (schedule {one.ideal_chunks})"
    return MemoryRow(
        rank=one.rank,
        peak=gb(found.peak_bytes),
        reserved=gb(found.reserved_bytes),
        phases=tuple("–" if peak is None else between(peak.at_least, peak.at_most) for peak in peaks),
        base=gb(None if chunks is None else chunks.base_bytes),
        chunk=between(chunks.low or 0, chunks.high) if known and chunks is not None else "–",
        chunks=held,
    )


def _notes(analysis: Analysis, ranks: list[HeldMemory]) -> list[str]:
    sizes = sorted({one.capacity_bytes for one in ranks if one.capacity_bytes is not None})
    notes = [f"GB of tensors; the GPU has {listing(map(gb, sizes))}" if sizes else "GB of tensors"]
    notes.append(HOST_TIME)
    if analysis.schedule is not None:
        notes.append("a chunk: what memory grows by over a forward cell and falls by over a backward, their medians")
    missing = len(analysis.rank_results) - len(ranks)
    if missing:
        notes.append(f"{missing} of {len(analysis.rank_results)} ranks did not record it")
    return notes
