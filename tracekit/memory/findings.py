"""Findings about GPU memory: a request that failed, a high peak, fragmentation, leaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET, UnsetType

from tracekit._util.text import ms, percent, size
from tracekit.documents.analysis import AllocatorMemory
from tracekit.documents.findings import Place
from tracekit.documents.memory import (
    MemoryContents,
    MemoryLeak,
    MemoryRemedy,
    ModuleMemory,
    OutOfMemory,
    SnapshotMemory,
)
from tracekit.findings.context import Context
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import number
from tracekit.memory.words import remedies_sentence
from tracekit.report.words import WORDS

NEARLY_FULL_SHARE = 0.9
"""Reserved share of the GPU's memory from which a peak is near the limit."""
MIN_OUTLIVED_SHARE = 0.05
"""Share of the peak in activations whose backward has ended, from which they are a finding."""
MIN_FRAGMENTED_SHARE = 0.1
"""Share of the reserved memory that is free in pieces, from which fragmentation is a finding."""
MIN_LEAKED_SHARE_PER_STEP = 0.001
"""Share of the peak that a step leaves behind, from which a leak is a finding."""
PHASES_OF_REQUESTS = ("forward", "backward", "recompute", "optimizer")
"""Origins of a request that are named in a sentence."""


def size_or_unknown(count: int | None) -> str:
    """Return a number of bytes; that it is unknown if it is None."""
    return "unknown" if count is None else size(count)


class MemoryFinding(FindingKind, frozen=True, kw_only=True):
    """Something about the memory of a GPU."""

    section = "memory"
    independent_of_steps = True

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        """Yield findings about the memory of each rank: of each kind the rank with most bytes."""
        memory = context.analysis.memory
        if memory is None:
            return
        largest: dict[tuple[str, str], MemoryFinding] = {}
        for rank in memory.ranks:
            if rank.contents is None:
                continue
            for kind in (OutOfMemoryFinding, PeakFinding, Leak, Fragmentation):
                finding = kind.of(rank, rank.contents)
                if finding is None:
                    continue
                other = largest.setdefault((finding.code, finding.case), finding)
                if (finding.cost_bytes or 0) > (other.cost_bytes or 0):
                    largest[finding.code, finding.case] = finding
        yield from largest.values()

    @classmethod
    def of(cls, rank: AllocatorMemory, contents: MemoryContents) -> MemoryFinding | None:
        """Return the finding about a rank; None if there is none."""
        raise NotImplementedError


def snapshot_findings(snapshots: Iterable[SnapshotMemory]) -> Iterator[FindingKind]:
    """Yield the requests that failed of memory snapshots without a trace."""
    for snapshot in snapshots:
        failure = snapshot.contents.out_of_memory
        if failure is not None:
            yield OutOfMemoryFinding.of_failure(snapshot.rank, failure)


class OutOfMemoryFinding(MemoryFinding, frozen=True, kw_only=True):
    """A request for memory failed."""

    code = "out_of_memory"
    title = "out of memory"
    ended_run = True

    cause: str
    requested_bytes: int
    missing_bytes: int | None
    line: str | None
    origin: str | None
    device_free_bytes: int | None
    capacity_bytes: int | None
    outside_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    fragmented_bytes: int
    largest_piece_bytes: int
    pools_bytes: int
    leaked_bytes: int
    category: str
    category_bytes: int
    limit_bytes: int | None
    copied_bytes: int | UnsetType | None = UNSET
    copied_from: str | UnsetType | None = UNSET
    remedy: str | UnsetType = UNSET
    remedy_bytes: int | UnsetType | None = UNSET
    remedy_is_enough: bool | UnsetType | None = UNSET
    remedy_name: str | UnsetType | None = UNSET
    second_remedy: str | UnsetType = UNSET
    second_remedy_bytes: int | UnsetType | None = UNSET
    second_remedy_is_enough: bool | UnsetType | None = UNSET
    second_remedy_name: str | UnsetType | None = UNSET

    @classmethod
    def of(cls, rank: AllocatorMemory, contents: MemoryContents) -> MemoryFinding | None:
        failure = contents.out_of_memory
        return None if failure is None else cls.of_failure(rank.rank, failure)

    @classmethod
    def of_failure(cls, rank: int | None, failure: OutOfMemory) -> OutOfMemoryFinding:
        """Return the finding about a request that failed."""
        category, category_bytes = next(iter(failure.by_category.items()), ("other", 0))
        where: tuple[Place, ...] = ()
        if rank is not None:
            where = (Place(rank, None, failure.at_ns, failure.at_ns, None, failure.line),)
        first, second = (*failure.remedies, None, None)[:2]
        return cls(
            cost_ns=0,
            cost_bytes=failure.requested_bytes,
            share=0.0,
            ranks=() if rank is None else (rank,),
            where=where,
            cause=failure.cause,
            requested_bytes=failure.requested_bytes,
            missing_bytes=failure.missing_bytes,
            line=failure.line,
            origin=failure.origin,
            device_free_bytes=failure.device_free_bytes,
            capacity_bytes=failure.capacity_bytes,
            outside_bytes=failure.outside_bytes,
            reserved_bytes=failure.reserved_bytes,
            allocated_bytes=failure.allocated_bytes,
            fragmented_bytes=failure.fragmented_bytes,
            largest_piece_bytes=failure.largest_piece_bytes,
            pools_bytes=failure.other_streams_bytes + failure.private_pools_bytes,
            leaked_bytes=failure.leaked_bytes,
            category=category,
            category_bytes=category_bytes,
            limit_bytes=failure.limit_bytes,
            copied_bytes=UNSET if failure.copied is None else failure.copied.bytes,
            copied_from=UNSET if failure.copied is None else failure.copied.line,
            remedy=UNSET if first is None else first.code,
            remedy_bytes=UNSET if first is None else first.bytes,
            remedy_is_enough=UNSET if first is None else first.is_enough,
            remedy_name=UNSET if first is None else first.name,
            second_remedy=UNSET if second is None else second.code,
            second_remedy_bytes=UNSET if second is None else second.bytes,
            second_remedy_is_enough=UNSET if second is None else second.is_enough,
            second_remedy_name=UNSET if second is None else second.name,
        )

    def text(self) -> str:
        gpu = f"rank {self.ranks[0]}" if self.ranks else "the GPU"
        return (
            f"{gpu} ran out of memory: {size(self.requested_bytes)} were asked for{self._asked_by} while "
            f"{size(self.allocated_bytes)} were in use and {self._free_then}; {self._why}"
        )

    def advice(self) -> str:
        if self.run.is_inference:
            return (
                "give the cache of keys and values less memory, or compute fewer tokens in a step"
            )
        return self._remedies or "take smaller micro-batches, or recompute activations"

    @property
    def _asked_by(self) -> str:
        """Phase and source line of the request; empty if neither is known."""
        phase = f" by the {self.origin}" if self.origin in PHASES_OF_REQUESTS else ""
        return f"{phase} at {self.line}" if self.line else phase

    @property
    def _free_then(self) -> str:
        """What was free when the request failed, and what the process was allowed."""
        free = f"{size_or_unknown(self.device_free_bytes)} free"
        if self.limit_bytes is None:
            return free
        return f"a limit of this process (at least {size(self.limit_bytes)}) left no more, of {free} on the GPU"

    @property
    def _why(self) -> str:
        if self.cause == "float32_copy":
            made_at = f" made at {self.copied_from}" if isinstance(self.copied_from, str) else ""
            copied_bytes = self.copied_bytes if isinstance(self.copied_bytes, int) else None
            return WORDS.memory_causes[self.cause].format(
                copied_bytes=size_or_unknown(copied_bytes), copied_line=made_at
            )
        words = WORDS.memory_causes.get(self.cause)
        if words is None:
            category = WORDS.memory_categories.get(self.cause, self.cause)
            return f"most of it {category} ({size(self.category_bytes)})"
        return words.format(
            leaked_bytes=size(self.leaked_bytes),
            fragmented_bytes=size(self.fragmented_bytes),
            largest_piece_bytes=size(self.largest_piece_bytes),
            pools_bytes=size(self.pools_bytes),
            outside_bytes=size_or_unknown(self.outside_bytes),
            capacity_bytes=size_or_unknown(self.capacity_bytes),
        )

    @property
    def _remedies(self) -> str:
        """What would have made the request fit; empty if nothing is known."""
        remedies = []
        if isinstance(self.remedy, str):
            figures = (self.remedy_bytes, self.remedy_is_enough, self.remedy_name)
            remedies.append(_remedy(self.remedy, *figures))
        if isinstance(self.second_remedy, str):
            figures = (
                self.second_remedy_bytes,
                self.second_remedy_is_enough,
                self.second_remedy_name,
            )
            remedies.append(_remedy(self.second_remedy, *figures))
        return remedies_sentence(remedies)


def _remedy(
    code: str,
    freed_bytes: int | UnsetType | None,
    is_enough: bool | UnsetType | None,
    name: str | UnsetType | None,
) -> MemoryRemedy:
    """Return a remedy of the evidence as what it was."""
    return MemoryRemedy(
        code,
        None if freed_bytes is UNSET else freed_bytes,
        None if is_enough is UNSET else is_enough,
        None if name is UNSET else name,
    )


class PeakFinding(MemoryFinding, frozen=True, kw_only=True):
    """A peak that is high for a reason."""

    code = "memory_peak"
    title = "memory"
    training_only = True  # a server fills the GPU with its cache on purpose

    peak_bytes: int
    capacity_bytes: int | None
    reserved_bytes: int | None
    failed_request_bytes: int | None
    category: str
    category_bytes: int
    in_flight: int | None
    ideal_in_flight: int | None
    outlived_bytes: int
    op: str | None
    stage: int | None
    microbatch: int | None
    phase: str | None
    recompute_module: str | None
    recompute_bytes: int | None
    recompute_ns: int | None

    @classmethod
    def of(cls, rank: AllocatorMemory, contents: MemoryContents) -> MemoryFinding | None:
        """Return the first finding about a rank's peak that holds; none where a request failed."""
        if contents.out_of_memory is not None:
            return None
        reserved = rank.reserved_bytes or contents.peak.bytes
        capacity = rank.capacity_bytes
        is_nearly_full = capacity is not None and reserved >= NEARLY_FULL_SHARE * capacity
        measured = contents.in_flight
        ideal = contents.ideal_in_flight
        holds_too_many = measured is not None and ideal is not None and measured > ideal
        least_outlived_bytes = MIN_OUTLIVED_SHARE * contents.peak.bytes
        keeps_after_backward = (
            not contents.leaks and contents.outlived_bytes >= least_outlived_bytes
        )
        cases: list[tuple[bool, type[PeakFinding], int]] = [  # the first that holds decides
            (is_nearly_full, NearlyFull, contents.peak.bytes),
            (holds_too_many, AboveSchedule, _excess_bytes(contents)),
            (keeps_after_backward, Outlived, contents.outlived_bytes),
        ]
        for holds, kind, cost_bytes in cases:
            if holds:
                return kind._of_peak(rank, contents, cost_bytes)
        return None

    @classmethod
    def _of_peak(
        cls, rank: AllocatorMemory, contents: MemoryContents, cost_bytes: int
    ) -> PeakFinding:
        peak = contents.peak
        category, category_bytes = next(iter(contents.by_category.items()), ("other", 0))
        module = _cheapest_module(contents.modules)
        return cls(
            cost_ns=0,
            cost_bytes=cost_bytes,
            share=0.0,
            ranks=(rank.rank,),
            where=_moment_of_peak(rank, contents),
            peak_bytes=peak.bytes,
            capacity_bytes=rank.capacity_bytes,
            reserved_bytes=rank.reserved_bytes,
            failed_request_bytes=contents.failed_request_bytes,
            category=category,
            category_bytes=category_bytes,
            in_flight=contents.in_flight,
            ideal_in_flight=contents.ideal_in_flight,
            outlived_bytes=contents.outlived_bytes,
            op=peak.op,
            stage=peak.stage,
            microbatch=peak.microbatch,
            phase=peak.phase,
            recompute_module=None if module is None else module.module,
            recompute_bytes=None if module is None else module.bytes,
            recompute_ns=None if module is None else module.forward_ns,
        )


class NearlyFull(PeakFinding, frozen=True, kw_only=True):
    """The process reserves nearly all of the GPU's memory."""

    case = "nearly_full"

    def text(self) -> str:
        return (
            f"rank {self.ranks[0]} reserves {size_or_unknown(self.reserved_bytes)} of "
            f"{size_or_unknown(self.capacity_bytes)}; at its peak it holds {size(self.peak_bytes)}"
            f"{self._where_then}, most of it {self.category.replace('_', ' ')} ({size(self.category_bytes)})"
        )

    def advice(self) -> str:
        return (
            f"{self._recompute}, or take smaller micro-batches or a schedule with fewer of them "
            "in flight (`--what-if` says what each needs)"
        )

    @property
    def _where_then(self) -> str:
        """Where the host is at the peak: cell, else phase."""
        if self.op is not None and self.stage is not None:
            cell = f"{self.stage}{self.op}{self.microbatch}"
            return f", in {cell} (stage {self.stage}, micro-batch {self.microbatch})"
        return f", in the {self.phase}" if self.phase else ""

    @property
    def _recompute(self) -> str:
        """What to recompute to free memory, and what that costs."""
        if (
            self.recompute_module is None
            or self.recompute_bytes is None
            or self.recompute_ns is None
        ):
            return "recompute activations"
        freed = size(self.recompute_bytes)
        return f"recompute {self.recompute_module} (frees up to {freed} for {ms(self.recompute_ns)} per step)"


class AboveSchedule(PeakFinding, frozen=True, kw_only=True):
    """A rank holds more micro-batches than its schedule asks for."""

    case = "above_schedule"

    def text(self) -> str:
        return (
            f"rank {self.ranks[0]} holds the activations of {number(self.in_flight)} micro-batches at "
            f"once, and its schedule asks for {number(self.ideal_in_flight)}"
        )

    def advice(self) -> str:
        return (
            "free outputs and losses of a micro-batch when its backward has ended, and look for "
            "what still refers to them"
        )


class Outlived(PeakFinding, frozen=True, kw_only=True):
    """Activations are kept whose backward has ended."""

    case = "outlived"

    def text(self) -> str:
        return (
            f"rank {self.ranks[0]} holds {size(self.outlived_bytes)} of activations at its peak whose "
            "backward has ended"
        )

    def advice(self) -> str:
        return (
            "drop references to outputs and losses of a micro-batch when its backward has ended "
            "(keep `loss.detach()`)"
        )


def _excess_bytes(contents: MemoryContents) -> int:
    """Return the activations of the micro-batches in flight beyond those of the schedule."""
    if (
        contents.in_flight is None
        or contents.ideal_in_flight is None
        or contents.microbatch_bytes is None
    ):
        return 0
    return (contents.in_flight - contents.ideal_in_flight) * contents.microbatch_bytes[0]


def _cheapest_module(modules: list[ModuleMemory]) -> ModuleMemory | None:
    """Return the module whose recomputation saves most memory for its time."""
    rated = [module for module in modules if module.recompute_bytes_per_ms]
    return max(rated, key=lambda module: module.recompute_bytes_per_ms or 0.0, default=None)


def _moment_of_peak(
    rank: AllocatorMemory, contents: MemoryContents, line: str | None = None
) -> tuple[Place, ...]:
    """Return the moment of the peak as a place, with the source line that a finding names."""
    peak = contents.peak
    if peak.at_ns is None:
        return ()
    return (Place(rank.rank, peak.step, peak.at_ns, peak.at_ns, peak.operator, line),)


class Leak(MemoryFinding, frozen=True, kw_only=True):
    """Every step leaves memory behind; of several leaks the largest."""

    code = "leak"
    title = "memory left behind"

    leaked_bytes: int
    step_bytes: int
    leaking_steps: int
    line: str | None
    operator: str | None
    module: str | None
    stage: int | None
    microbatch: int | None
    steps_until_full: int | None

    @classmethod
    def of(cls, rank: AllocatorMemory, contents: MemoryContents) -> MemoryFinding | None:
        leak = next(iter(contents.leaks), None)
        least_bytes = MIN_LEAKED_SHARE_PER_STEP * contents.peak.bytes
        if leak is None or leak.bytes_per_step < least_bytes:
            return None
        return cls(
            cost_ns=0,
            cost_bytes=leak.bytes_per_step,
            share=0.0,
            ranks=(rank.rank,),
            steps=leak.steps,
            where=_moment_of_peak(rank, contents, leak.line),
            leaked_bytes=leak.bytes,
            step_bytes=leak.bytes_per_step,
            leaking_steps=len(leak.steps),
            line=leak.line,
            operator=leak.operator,
            module=leak.module,
            stage=leak.stage,
            microbatch=leak.microbatches[0] if len(leak.microbatches) == 1 else None,
            steps_until_full=_steps_until_full(rank, leak),
        )

    def text(self) -> str:
        until_full = ""
        if self.steps_until_full is not None:
            until_full = f"; the GPU is full in about {self.steps_until_full:,} steps"
        step = size(self.step_bytes)
        return (
            f"rank {self.ranks[0]} leaves {step} behind in every step{self._what_leaks}{until_full}"
        )

    def advice(self) -> str:
        return (
            "something keeps these tensors: detach what is stored (`.detach()`, `.item()`), and "
            "clear lists and caches between steps"
        )

    @property
    def _what_leaks(self) -> str:
        """What leaks, as far as known: line, operator, module, stage and micro-batch."""
        parts = []
        if self.line:
            parts.append(f"allocated at {self.line}")
        if self.operator:
            parts.append(f"by {self.operator}")
        if self.module:
            parts.append(f"in {self.module}")
        if self.stage is not None and self.microbatch is not None:
            parts.append(f"of micro-batch {self.microbatch} on stage {self.stage}")
        return f", {' '.join(parts)}" if parts else ""


def _steps_until_full(rank: AllocatorMemory, leak: MemoryLeak) -> int | None:
    """Return the number of steps after which the leak has filled the GPU.

    None if its memory is not known.
    """
    reserved = rank.reserved_bytes
    if rank.capacity_bytes is None or reserved is None or not leak.bytes_per_step:
        return None
    return max(0, rank.capacity_bytes - reserved) // leak.bytes_per_step


class Fragmentation(MemoryFinding, frozen=True, kw_only=True):
    """Memory is free in pieces that requests did not fit into."""

    code = "fragmentation"
    title = "fragmented memory"

    reserved_bytes: int
    fragmented_bytes: int
    fragmented_share: float
    forced_segments: int
    request_bytes: int | None
    free_bytes: int | None
    line: str | None

    @classmethod
    def of(cls, rank: AllocatorMemory, contents: MemoryContents) -> MemoryFinding | None:
        fragmentation = contents.fragmentation
        if (
            fragmentation is None
            or fragmentation.fragmented_bytes is None
            or not fragmentation.forced_segments
        ):
            return None
        if fragmentation.fragmented_bytes < MIN_FRAGMENTED_SHARE * fragmentation.reserved_bytes:
            return None
        line = fragmentation.largest_request_line
        return cls(
            cost_ns=0,
            cost_bytes=fragmentation.fragmented_bytes,
            share=0.0,
            ranks=(rank.rank,),
            where=_moment_of_peak(rank, contents, line),
            reserved_bytes=fragmentation.reserved_bytes,
            fragmented_bytes=fragmentation.fragmented_bytes,
            fragmented_share=fragmentation.fragmented_bytes / fragmentation.reserved_bytes,
            forced_segments=fragmentation.forced_segments,
            request_bytes=fragmentation.largest_request_bytes,
            free_bytes=fragmentation.largest_request_free_bytes,
            line=line,
        )

    def text(self) -> str:
        at_line = f" in {self.line}" if self.line else ""
        return (
            f"rank {self.ranks[0]} reserves {size(self.reserved_bytes)}, of which "
            f"{size(self.fragmented_bytes)} ({percent(self.fragmented_share, digits=0)}) are free in pieces; "
            f"{size_or_unknown(self.request_bytes)} did not fit while "
            f"{size_or_unknown(self.free_bytes)} were free{at_line}"
        )

    def advice(self) -> str:
        return (
            "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, allocate what stays before "
            "what comes and goes, or keep shapes the same"
        )
