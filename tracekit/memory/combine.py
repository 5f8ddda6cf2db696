"""Memory of all ranks, compared with the activations of the schedule.

Memory that other schedules would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit.analysis import Analysis
from tracekit.analysis.measure.tables import RankTables
from tracekit.documents.analysis import AllocatorMemory, Memory, WhatIf
from tracekit.errors import ScheduleError
from tracekit.graph.schedule_rows import microbatches_row
from tracekit.memory.combine_contents import complete_contents, find_places
from tracekit.memory.measures import RANK_MEMORY, ChunkMemory, RankContents
from tracekit.metrics.peaks import host_link_gb_s
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.pipeline.schedules.registry import describe, generate
from tracekit.pipeline.schedules.schedule import Schedule


class RunMemory(msgspec.Struct, frozen=True, eq=False):
    """Memory that the allocators of all ranks held.

    Times are the hosts', because memory is allocated at launch.
    """

    figures: Memory
    chunks: Mapping[int, ChunkMemory] = {}
    """Memory of pipeline chunks, by rank of a recognised schedule."""
    contents: Mapping[int, RankContents] = {}
    """What fills the memory at the peak, by rank of which single allocations are known."""

    def with_needs(self, comparison: ScheduleComparison) -> ScheduleComparison:
        """Return the comparison with the memory that each other schedule would need, if that can be estimated."""
        estimate = _MemoryEstimate.of(self, comparison) if comparison.what_if else None
        if estimate is None:
            return comparison
        return replace(comparison, what_if=tuple(map(estimate.with_peak_bytes, comparison.what_if)))

    def needed_with_microbatches(
        self, comparison: ScheduleComparison, count: int
    ) -> tuple[tuple[int, int | None] | None, bool | None]:
        """Return the range of the fullest rank's peak with *count* micro-batches, and if it fits; None: unknown."""
        estimate = _MemoryEstimate.of(self, comparison)
        if estimate is None:
            return None, None
        try:
            row = estimate.with_peak_bytes(microbatches_row(comparison.head.match.schedule, count))
        except ScheduleError:  # the schedule does not exist in this size
            return None, None
        return row.peak_bytes, row.fits


def contents_by_rank(analysis: Analysis) -> Mapping[int, RankContents]:
    """Return what fills the memory of each rank at its peak; empty where single allocations are not known."""
    memory = analysis.allocations
    return memory.contents if isinstance(memory, RunMemory) else {}


def combine_memory(
    ranks: Iterable[RankTables], comparison: ScheduleComparison | None
) -> RunMemory | None:
    """Return the memory of all ranks that recorded it; None if none did.

    Memory per chunk is kept only for ranks of a recognised schedule: other cells may be cut in the
    wrong places.
    """
    measured_ranks = [(rank, RANK_MEMORY.of(rank)) for rank in ranks]
    if all(memory is None for _, memory in measured_ranks):
        return None
    ideal_chunks = {} if comparison is None else _ideal_chunks(comparison)
    places = find_places(comparison)
    figures: list[AllocatorMemory] = []
    chunks_by_rank: dict[int, ChunkMemory] = {}
    contents_by_rank: dict[int, RankContents] = {}
    for rank, memory in measured_ranks:
        if memory is None:
            continue
        number = rank.source.rank
        measured = replace(
            memory.figures,
            rank=number,
            capacity_bytes=rank.source.memory_bytes,
            ideal_chunks=ideal_chunks.get(number),
        )
        chunks = memory.chunks
        if chunks is not None and number in ideal_chunks:
            chunks_by_rank[number] = chunks
            measured = replace(
                measured,
                base_bytes=chunks.base_bytes,
                chunk_bytes=chunks.bounds,
                chunks=chunks.peak_chunks,
            )
        contents = memory.contents
        if contents is not None:
            contents_by_rank[number] = contents
            device = next(iter(rank.source.devices), None)
            shown = complete_contents(
                contents,
                places=places.get(number, {}),
                ideal_in_flight=ideal_chunks.get(number),
                forward_ns=_forward_ns(rank.kernels),
                link_gb_s=None if device is None else host_link_gb_s(device),
            )
            measured = replace(measured, contents=shown)
        figures.append(measured)
    if not figures:
        return None
    peak_bytes = max(rank.peak_bytes for rank in figures)
    return RunMemory(Memory(peak_bytes, figures), chunks_by_rank, contents_by_rank)


def _forward_ns(kernels: pl.DataFrame) -> dict[str, float]:
    """Return the time of forward kernels per step, by module."""
    forward = kernels.filter((pl.col("label") == "forward") & pl.col("module").is_not_null())
    return dict(forward.group_by("module").agg(pl.sum("ns")).iter_rows())


def _ideal_chunks(comparison: ScheduleComparison) -> dict[int, int]:
    """Return the most chunks that each rank holds in the schedule of its pipeline."""
    from tracekit.pipeline.schedules import simulate

    chunks_by_rank: dict[int, int] = {}
    for compared in comparison.all:
        pipeline_ranks = compared.pipeline.ranks
        if not set(pipeline_ranks) <= chunks_by_rank.keys():
            peaks = simulate(compared.match.schedule).peak_activations
            chunks_by_rank |= dict(zip(pipeline_ranks, peaks, strict=False))
    return chunks_by_rank


class _MemoryEstimate(msgspec.Struct, frozen=True):
    """Memory of a rank beside activations, and of the activations of a micro-batch, each as a range.

    Gradients grow while activations shrink, so the schedule decides how much of them coincides with
    the most activations: at least nothing, at most all, together with what a running cell takes
    temporarily.
    """

    schedule: Schedule
    """The run's own."""
    beside_activations: tuple[int, int]
    microbatch: tuple[float, float]
    """Activations of one micro-batch in all chunks of a rank."""
    optimizer_bytes: int
    """Memory that the optimizer takes, a lower bound under any schedule."""
    peak_bytes: int
    max_unused_bytes: int
    """Most memory that an allocator reserved beyond the peak of its tensors."""
    capacity_bytes: int | None
    """Memory of the smallest GPU; None if any is unknown."""

    @classmethod
    def of(cls, memory: RunMemory, comparison: ScheduleComparison) -> _MemoryEstimate | None:
        """Return the estimate of a run; None if the memory per chunk of any rank is unknown."""
        schedule = comparison.head.match.schedule
        chunks_per_rank = schedule.stages / schedule.pp
        beside: list[int] = []
        microbatch: list[float] = []
        optimizer_bytes = 0
        ranks = memory.figures.ranks
        for rank in ranks:
            chunks = memory.chunks.get(rank.rank)
            if chunks is None or chunks.low is None or chunks.high is None:
                return None
            with_gradients = chunks.base_bytes + chunks.kept_bytes + chunks.passing_bytes
            beside += [
                chunks.base_bytes,
                max(with_gradients, rank.peak_bytes - chunks.peak_chunks * chunks.low),
            ]
            microbatch += [chunks.low * chunks_per_rank, chunks.high * chunks_per_rank]
            if "optimizer" in rank.by_phase:
                optimizer_bytes = max(optimizer_bytes, rank.by_phase["optimizer"].at_least)
        unused = max((rank.reserved_bytes or 0) - rank.peak_bytes for rank in ranks)
        capacities = [rank.capacity_bytes for rank in ranks if rank.capacity_bytes is not None]
        return cls(
            schedule=schedule,
            beside_activations=(min(beside), max(beside)),
            microbatch=(min(microbatch), max(microbatch)),
            optimizer_bytes=optimizer_bytes,
            peak_bytes=memory.figures.peak_bytes,
            max_unused_bytes=max(0, unused),
            capacity_bytes=min(capacities) if len(capacities) == len(ranks) else None,
        )

    def with_peak_bytes(self, row: WhatIf) -> WhatIf:
        """Return a prediction with the range of its peak memory, and whether that fits the GPU."""
        if row.peak_activations is None:
            return row
        min_activations = (
            row.peak_activations if row.least_activations is None else row.least_activations
        )
        low = max(
            self.optimizer_bytes,
            round(self.beside_activations[0] + min_activations * self.microbatch[0]),
        )
        high: int | None = max(
            low, round(self.beside_activations[1] + row.peak_activations * self.microbatch[1])
        )
        if row.ran:
            low = high = self.peak_bytes
        elif _holds_two_stages(row, self.schedule):
            high = None
        return replace(row, peak_bytes=(low, high), fits=self._fits(low, high))

    def _fits(self, low: int, high: int | None) -> bool | None:
        """Return whether a peak within the range fits the GPU; None if that is open."""
        if self.capacity_bytes is None:
            return None
        if low > self.capacity_bytes:
            return False
        return (
            True
            if high is not None and high + self.max_unused_bytes <= self.capacity_bytes
            else None
        )


def _holds_two_stages(row: WhatIf, own: Schedule) -> bool:
    """Return whether every rank holds the weights of two stages under another schedule than the run's *own*."""
    if row.change != "schedule" or describe(row.name).searched:
        return False
    microbatches = own.microbatches if row.microbatches is None else row.microbatches
    return generate(row.name, pp=own.pp, microbatches=microbatches, virtual=row.virtual).both_ways
