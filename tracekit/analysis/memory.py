"""All ranks' memory together: against the schedule's activations in chunks, and what another schedule would need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
from msgspec.structs import asdict, replace

from tracekit.align.clocks import Clocks
from tracekit.compare.what_if import TWO_STAGES_PER_RANK, WhatIf
from tracekit.metrics.memory import MEMORY_CURVE, RankMemory

if TYPE_CHECKING:
    from tracekit.analysis.tables import RankTables
    from tracekit.compare import ScheduleComparison

MEMORY_LINE = pl.Schema({"rank": pl.Int32(), **MEMORY_CURVE})


class HeldMemory(msgspec.Struct, frozen=True):
    """One rank's memory beside its place in the schedule."""

    rank: int
    measured: RankMemory
    capacity_bytes: int | None
    """Of its GPU, as the trace says."""
    ideal_chunks: int | None = None
    """Most chunks the schedule has it hold at once; None where no schedule was named."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found, chunks = self.measured, self.measured.chunks
        known = chunks is not None and chunks.low is not None
        return {
            "rank": self.rank,
            "device": found.device,
            "capacity_bytes": self.capacity_bytes,
            "peak_bytes": found.peak_bytes,
            "reserved_bytes": found.reserved_bytes,
            "first_bytes": found.first_bytes,
            "by_phase": {phase: asdict(peak) for phase, peak in found.by_phase.items()},
            "base_bytes": None if chunks is None else chunks.base_bytes,
            "chunk_bytes": [chunks.low, chunks.high] if known and chunks is not None else None,
            "chunks": None if chunks is None else chunks.peak_chunks,
            "ideal_chunks": self.ideal_chunks,
            "line": {name: found.line[name].to_list() for name in MEMORY_CURVE.names()},
        }


class RunMemory(msgspec.Struct, frozen=True):
    """What the allocators of all ranks held. Times are the hosts': memory is taken at launch."""

    ranks: tuple[HeldMemory, ...]

    @property
    def peak_bytes(self) -> int:
        """Most that any rank held."""
        return max(one.measured.peak_bytes for one in self.ranks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"peak_bytes": self.peak_bytes, "ranks": [one.to_dict() for one in self.ranks]}

    def table(self, clocks: Clocks) -> pl.DataFrame:
        """Return ``MEMORY_LINE``: what every rank held over time, on the common clock."""
        lines = [one.measured.line.with_columns(rank=pl.lit(one.rank, pl.Int32)) for one in self.ranks]
        return clocks.align(pl.concat(lines).select(MEMORY_LINE.names()), "at_ns")


def run_memory(parts: Iterable[RankTables], compared: ScheduleComparison | None) -> RunMemory | None:
    """Return the memory of all ranks that recorded it; None where none did.

    What a chunk holds is said only where a schedule was named: cells that fit none may be cut in the wrong places.
    """
    ideal = {} if compared is None else _ideal_chunks(compared)
    held = [
        HeldMemory(
            rank,
            part.memory if rank in ideal else replace(part.memory, chunks=None),
            part.source.memory_bytes,
            ideal.get(rank),
        )
        for part in parts
        for rank in [part.source.rank]
        if part.memory is not None
    ]
    return RunMemory(tuple(held)) if held else None


def _ideal_chunks(compared: ScheduleComparison) -> dict[int, int]:
    """Return the most chunks each rank holds in its pipeline's schedule."""
    from tracekit.schedules import simulate

    found: dict[int, int] = {}
    for held in compared.all:
        if not set(held.pipeline.ranks) <= found.keys():
            peaks = simulate(held.match.schedule).peak_activations
            found |= dict(zip(held.pipeline.ranks, peaks, strict=False))
    return found


def with_memory(compared: ScheduleComparison | None, memory: RunMemory | None) -> ScheduleComparison | None:
    """Return the comparison with what each other schedule would need of the GPU's memory, where that can be told."""
    if compared is None or memory is None or not compared.what_if:
        return compared
    own = compared.head.match.schedule
    needs = _Needs.of(memory.ranks, own.stages / own.pp)
    return compared if needs is None else replace(compared, what_if=tuple(map(needs.of_row, compared.what_if)))


class _Needs(msgspec.Struct, frozen=True):
    """What a rank needs beside activations, and what a micro-batch of all its layers holds, each between two figures.

    Gradients come in while activations go, so how much of them meets the most activations depends on the schedule: at
    least none, at most all, and with them what a cell takes while it runs.
    """

    rest: tuple[int, int]
    microbatch: tuple[float, float]
    floor: int
    """What the optimizer takes, whatever the schedule."""
    peak_bytes: int
    unused: int
    """Most that an allocator held beyond what tensors did."""
    capacity: int | None

    @classmethod
    def of(cls, ranks: Sequence[HeldMemory], chunks_a_rank: float) -> _Needs | None:
        rest, size, floor = [], [], 0
        for one in ranks:
            held, peak = one.measured.chunks, one.measured.peak_bytes
            if held is None or held.low is None or held.high is None:
                return None
            beside = held.base_bytes + held.kept_bytes + held.passing_bytes
            rest += [held.base_bytes, max(beside, peak - held.peak_chunks * held.low)]
            if "optimizer" in one.measured.by_phase:
                floor = max(floor, one.measured.by_phase["optimizer"].at_least)
            size += [held.low * chunks_a_rank, held.high * chunks_a_rank]
        known = [one.capacity_bytes for one in ranks if one.capacity_bytes is not None]
        unused = max((one.measured.reserved_bytes or 0) - one.measured.peak_bytes for one in ranks)
        return cls(
            (min(rest), max(rest)),
            (min(size), max(size)),
            floor,
            max(one.measured.peak_bytes for one in ranks),
            max(0, unused),
            min(known) if len(known) == len(ranks) else None,
        )

    def of_row(self, row: WhatIf) -> WhatIf:
        if row.peak_activations is None:
            return row
        least = row.peak_activations if row.least_activations is None else row.least_activations
        low = max(self.floor, round(self.rest[0] + least * self.microbatch[0]))
        high: int | None = max(low, round(self.rest[1] + row.peak_activations * self.microbatch[1]))
        if row.ran:
            low = high = self.peak_bytes
        elif TWO_STAGES_PER_RANK in row.rests_on:
            high = None
        return replace(row, peak_bytes=(low, high), fits=self._fits(low, high))

    def _fits(self, low: int, high: int | None) -> bool | None:
        if self.capacity is None:
            return None
        if low > self.capacity:
            return False
        return True if high is not None and high + self.unused <= self.capacity else None
