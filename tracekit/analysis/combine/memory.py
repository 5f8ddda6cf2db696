"""Memory of all ranks, compared with the activations of the schedule.

Memory that other schedules would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._util.columns import concat_ranks
from tracekit.against_ideal import ScheduleComparison
from tracekit.align.clocks import Clocks
from tracekit.analysis.combine.memory_contents import contents_document, find_places
from tracekit.analysis.measure.tables import RankTables
from tracekit.documents.analysis import WhatIf
from tracekit.documents.memory import MemoryContents
from tracekit.errors import ScheduleError
from tracekit.metrics.memory import MEMORY_CURVE, RankMemory
from tracekit.metrics.peaks import host_link_gb_s
from tracekit.whatif.schedule_rows import TWO_STAGES_PER_RANK, microbatches_row


class HeldMemory(msgspec.Struct, frozen=True):
    """Memory that one rank held, and the chunks that the schedule has it hold."""

    rank: int
    measured: RankMemory
    capacity_bytes: int | None
    """Memory of its GPU, as recorded in the trace."""
    ideal_chunks: int | None = None
    """Most chunks that the schedule holds on this rank at once; None without a recognised
    schedule."""
    contents: MemoryContents | None = None
    """What fills it at its peak; None if single allocations are not known."""


class RunMemory(msgspec.Struct, frozen=True):
    """Memory that the allocators of all ranks held.

    Times are the hosts', because memory is allocated at launch.
    """

    ranks: tuple[HeldMemory, ...]

    @property
    def peak_bytes(self) -> int:
        """Largest peak of any rank."""
        return max(rank.measured.peak_bytes for rank in self.ranks)

    def table(self, clocks: Clocks) -> pl.DataFrame:
        """Return the ``MEMORY_CURVE`` of every rank, on the common clock."""
        lines = concat_ranks({rank.rank: rank.measured.line for rank in self.ranks}, MEMORY_CURVE)
        return clocks.align(lines, "at_ns")


def run_memory(
    ranks: Iterable[RankTables], comparison: ScheduleComparison | None
) -> RunMemory | None:
    """Return the memory of all ranks that recorded it; None if none did.

    Memory per chunk is kept only for ranks of a recognised schedule: other cells may be cut in the
    wrong places.
    """
    ideal_chunks = {} if comparison is None else _ideal_chunks(comparison)
    places = find_places(comparison)
    memories = []
    for rank in ranks:
        if rank.memory is None:
            continue
        number = rank.source.rank
        memory = rank.memory if number in ideal_chunks else replace(rank.memory, chunks=None)
        contents = None
        if memory.contents is not None:
            device = next(iter(rank.source.devices), None)
            contents = contents_document(
                memory.contents,
                places=places.get(number),
                ideal_in_flight=ideal_chunks.get(number),
                forward_ns=_forward_ns(rank.kernels),
                link_gb_s=None if device is None else host_link_gb_s(device),
                capacity_bytes=rank.source.memory_bytes,
            )
        memories.append(
            HeldMemory(number, memory, rank.source.memory_bytes, ideal_chunks.get(number), contents)
        )
    return RunMemory(tuple(memories)) if memories else None


def _forward_ns(kernels: pl.DataFrame) -> dict[str, float]:
    """Return the time of forward kernels per step, by module."""
    forward = kernels.filter((pl.col("label") == "forward") & pl.col("module").is_not_null())
    return dict(forward.group_by("module").agg(pl.sum("ns")).iter_rows())


def _ideal_chunks(comparison: ScheduleComparison) -> dict[int, int]:
    """Return the most chunks that each rank holds in the schedule of its pipeline."""
    from tracekit.schedules import simulate

    chunks_by_rank: dict[int, int] = {}
    for compared in comparison.all:
        pipeline_ranks = compared.pipeline.ranks
        if not set(pipeline_ranks) <= chunks_by_rank.keys():
            peaks = simulate(compared.match.schedule).peak_activations
            chunks_by_rank |= dict(zip(pipeline_ranks, peaks, strict=False))
    return chunks_by_rank


def with_memory(
    comparison: ScheduleComparison | None, memory: RunMemory | None
) -> ScheduleComparison | None:
    """Return the comparison with the memory that each other schedule would need, if that can be estimated."""
    if comparison is None or memory is None or not comparison.what_if:
        return comparison
    estimate = _MemoryEstimate.of(memory.ranks, comparison)
    if estimate is None:
        return comparison
    return replace(comparison, what_if=tuple(map(estimate.with_peak_bytes, comparison.what_if)))


def memory_with_microbatches(
    comparison: ScheduleComparison, memory: RunMemory | None, count: int
) -> tuple[tuple[int, int | None] | None, bool | None]:
    """Return the range of the fullest rank's peak with *count* micro-batches, and whether it fits; None: unknown."""
    estimate = None if memory is None else _MemoryEstimate.of(memory.ranks, comparison)
    if estimate is None:
        return None, None
    try:
        row = estimate.with_peak_bytes(microbatches_row(comparison.head.match.schedule, count))
    except ScheduleError:  # the schedule does not exist in this size
        return None, None
    return row.peak_bytes, row.fits


class _MemoryEstimate(msgspec.Struct, frozen=True):
    """Memory of a rank beside activations, and of the activations of a micro-batch, each as a range.

    Gradients grow while activations shrink, so the schedule decides how much of them coincides with
    the most activations: at least nothing, at most all, together with what a running cell takes
    temporarily.
    """

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
    def of(
        cls, ranks: Sequence[HeldMemory], comparison: ScheduleComparison
    ) -> _MemoryEstimate | None:
        """Return the estimate of a run; None if the memory per chunk of any rank is unknown."""
        schedule = comparison.head.match.schedule
        chunks_per_rank = schedule.stages / schedule.pp
        beside: list[int] = []
        microbatch: list[float] = []
        optimizer_bytes = 0
        for rank in ranks:
            chunks = rank.measured.chunks
            peak_bytes = rank.measured.peak_bytes
            if chunks is None or chunks.low is None or chunks.high is None:
                return None
            with_gradients = chunks.base_bytes + chunks.kept_bytes + chunks.passing_bytes
            beside += [
                chunks.base_bytes,
                max(with_gradients, peak_bytes - chunks.peak_chunks * chunks.low),
            ]
            microbatch += [chunks.low * chunks_per_rank, chunks.high * chunks_per_rank]
            if "optimizer" in rank.measured.by_phase:
                optimizer_bytes = max(optimizer_bytes, rank.measured.by_phase["optimizer"].at_least)
        unused = max(
            (rank.measured.reserved_bytes or 0) - rank.measured.peak_bytes for rank in ranks
        )
        capacities = [rank.capacity_bytes for rank in ranks if rank.capacity_bytes is not None]
        return cls(
            beside_activations=(min(beside), max(beside)),
            microbatch=(min(microbatch), max(microbatch)),
            optimizer_bytes=optimizer_bytes,
            peak_bytes=max(rank.measured.peak_bytes for rank in ranks),
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
        elif TWO_STAGES_PER_RANK in row.rests_on:
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
