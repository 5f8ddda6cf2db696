"""Contents of GPU memory: the contents of a rank in ``analyze --json``, and ``tracekit memory --json``."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from tracekit.documents.findings import Finding
from tracekit.errors import Notice

MEMORY_FORMAT: Literal["tracekit.memory/1"] = "tracekit.memory/1"
MEMORY_DIFF_FORMAT: Literal["tracekit.memory-diff/1"] = "tracekit.memory-diff/1"


class SnapshotPlace(Struct, frozen=True):
    """Place of a memory snapshot on the trace's clock."""

    offset_ns: int
    """Added to the snapshot's times."""
    uncertainty_ns: int
    """Largest deviation of a pair that agrees on it."""
    source: str
    """What it rests on: allocations, annotations or operators."""


class MemoryPeak(Struct, frozen=True):
    """The moment at which most is allocated.

    Times, phases and cells are the host's: memory is allocated at launch.
    """

    bytes: int
    """Allocated."""
    at_ns: int | None
    """Host time; null without a history of allocations."""
    active_bytes: int | None
    """Allocated, or freed and still in use by a stream; null if unknown."""
    requested_bytes: int | None
    """Of what is allocated, the bytes that were asked for; null if unknown."""
    reserved_bytes: int | None
    """Reserved by the allocator; null if unknown."""
    step: int | None
    """Step; null if unknown."""
    op: str | None
    """Op of the pipeline cell that the host was launching: F, B, I or W; null outside of cells."""
    stage: int | None
    """Its stage."""
    microbatch: int | None
    """Its micro-batch."""
    phase: str | None
    """forward, backward, recompute or optimizer; null if unknown."""
    operator: str | None
    """Outermost operator that the host was in; null between operators."""


class CellMemory(Struct, frozen=True):
    """Activations of one micro-batch at the peak."""

    step: int | None
    """Step of its forward."""
    stage: int | None
    """Stage; null where the schedule is not known."""
    microbatch: int | None
    """Micro-batch; null where the schedule is not known."""
    bytes: int
    """Allocated."""


class LineMemory(Struct, frozen=True):
    """What one source line holds at the peak."""

    line: str | None
    """File, line and function: the innermost of the user's own code; null where no stack was
    recorded."""
    category: str
    """weights, gradients, optimizer_state, activations, communication, workspace, program (made by a
    line of the program outside of modules, backwards and optimizers: inputs, targets, caches),
    before_recording or other."""
    bytes: int
    """Allocated."""
    count: int
    """Number of allocations."""


class ModuleMemory(Struct, frozen=True):
    """Activations of one module, and what recomputing or offloading them would save."""

    module: str
    """attention, mlp, norm, …"""
    bytes: int
    """Activations at the peak: at most this is saved."""
    step_bytes: int
    """Activations that a step allocates."""
    forward_ns: int | None
    """GPU time of its forward per step, which recomputing adds; null if unknown."""
    recompute_bytes_per_ms: float | None
    """Bytes saved per millisecond of that; null if unknown."""
    offload_ns: int | None
    """Time to copy what a step allocates to the host and back; null if the link is not known."""
    offload_bytes_per_ms: float | None
    """Bytes saved per millisecond of copying, which may be hidden; null if the link is not
    known."""


class MemoryLeak(Struct, frozen=True):
    """Allocations that steps leave behind and nothing frees."""

    line: str | None
    """Source line; null where no stack was recorded."""
    operator: str | None
    """Outermost operator around them; null if unknown."""
    module: str | None
    """Module; null if unknown."""
    phase: str | None
    """What the host was doing; null if unknown."""
    stage: int | None
    """Stage of the pipeline; null if unknown, or several."""
    microbatches: tuple[int, ...]
    """Micro-batches that left them; empty if unknown."""
    bytes: int
    """Left behind in all."""
    bytes_per_step: int
    """Left behind by a step."""
    steps: tuple[int, ...]
    """Steps that left something behind."""
    places: int = 1
    """Lines that allocated it; of several, the line above is the innermost that all of them were called from."""


class MemoryFragmentation(Struct, frozen=True):
    """Reserved memory at the moment when most was reserved."""

    at_ns: int
    """Host time."""
    reserved_bytes: int
    """Reserved."""
    allocated_bytes: int
    """In tensors."""
    pending_bytes: int
    """Freed, and still in use by a stream."""
    cached_bytes: int
    """In segments without any block in use."""
    fragmented_bytes: int | None
    """Free beside blocks in use; null with expandable segments."""
    forced_segments: int
    """Segments reserved although as much memory was free in pieces."""
    forced_bytes: int
    """Size of these segments."""
    largest_request_bytes: int | None
    """Largest request that forced a segment; null if none did."""
    largest_request_free_bytes: int | None
    """Memory that was free in pieces then."""
    largest_request_line: str | None
    """Source line of the request."""


class RepeatedFunction(Struct, frozen=True):
    """A function of a module that ran several times, and the activations that it left."""

    function: str
    """File and function."""
    calls: int
    """Calls whose activations were in memory."""
    bytes: int
    """Activations that it and what it calls allocated."""


class MemoryRemedy(Struct, frozen=True):
    """What would have made memory for a request that failed."""

    code: str
    """stop_leak, expandable_segments, fewer_pools, end_other_processes, raise_limit, loss_in_pieces, preallocate,
    smaller_request, smaller_microbatch, recompute, offload_activations, offload_optimizer, share_gradient_buckets
    or free_gradients."""
    bytes: int | None
    """What it frees at most; null if unknown."""
    is_enough: bool | None
    """Whether that much would have been enough; null if it is not known how much was missing."""
    name: str | None
    """Function or module to recompute; null for others."""


class CopiedBlock(Struct, frozen=True):
    """A block in use of which a request was to be a copy in a type twice as wide."""

    bytes: int
    """Its size."""
    line: str | None
    """Source line that made it; null if unknown."""


class OutOfMemory(Struct, frozen=True):
    """The last request that failed, the memory at that moment, and what would have made it fit."""

    cause: str
    """request (larger than all there is), leak, fragmentation, other_pools (free memory of other streams and
    private pools), other_processes, float32_copy (a copy in a wider type, as of logits), limit (of the process, with
    nothing in it); else what filled the memory most: activations, weights, cache, …"""
    at_ns: int
    """Host time."""
    failures: int
    """Requests that failed in the history."""
    requested_bytes: int
    """What was asked for."""
    needed_bytes: int
    """Segment that the allocator asked the GPU for."""
    missing_bytes: int | None
    """What the GPU, or the limit of the process, lacked for that at most; null if it is not recorded what was free."""
    line: str | None
    """Source line of the request; null if unknown."""
    origin: str | None
    """What asked: forward, backward, recompute, optimizer, …; null if unknown."""
    capacity_bytes: int | None
    """Memory of the GPU; null if unknown."""
    device_free_bytes: int | None
    """Free on the GPU; null if it is not recorded."""
    outside_bytes: int | None
    """Held by other processes and by CUDA itself; null without the memory of the GPU."""
    reserved_bytes: int
    """Reserved by the allocator."""
    allocated_bytes: int
    """In tensors."""
    pending_bytes: int
    """Freed, and still in use by a stream."""
    rounding_bytes: int
    """Of what is in tensors, the bytes that nobody asked for: blocks are larger."""
    fragmented_bytes: int
    """Free beside blocks in use, in segments that serve the request."""
    largest_piece_bytes: int
    """Largest of these pieces."""
    cached_bytes: int
    """Free in segments that serve the request and hold no block in use."""
    other_streams_bytes: int
    """Free in segments of other streams."""
    private_pools_bytes: int
    """Free in pools of CUDA graphs and of MemPool."""
    small_segments_bytes: int
    """Free in segments for the other kind of blocks: those up to 1 MiB, or those above."""
    leaked_bytes: int
    """Left behind by steps, at least."""
    by_category: Mapping[str, int]
    """Bytes in tensors by what they are for, the largest first."""
    lines: list[LineMemory]
    """Bytes by source line, the largest first."""
    repeated: list[RepeatedFunction]
    """Functions of modules with activations of several calls, those first whose recomputation frees
    most."""
    remedies: list[MemoryRemedy]
    """What would have made it fit, the likeliest first."""
    limit_bytes: int | None = None
    """What the process may reserve at least, where a limit of its own refused what the GPU had free; else null."""
    copied: CopiedBlock | None = None
    """The block that the request was to be a copy of; null if it was none."""


class StepMemory(Struct, frozen=True):
    """Allocated memory of one step."""

    step: int
    """Number of the step."""
    first_bytes: int
    """Allocated when it starts."""
    peak_bytes: int
    """Most allocated in it."""


class MemoryContents(Struct, frozen=True):
    """What fills one rank's memory."""

    source: str
    """snapshot or trace."""
    clock: SnapshotPlace | None
    """Place of the snapshot on the trace's clock; null for a trace's own events, or without a
    trace."""
    peak: MemoryPeak
    """The moment at which most is allocated."""
    by_category: Mapping[str, int]
    """Bytes at the peak by what they are for, the largest first."""
    activations: list[CellMemory]
    """Activations at the peak by micro-batch and stage."""
    lines: list[LineMemory]
    """Bytes at the peak by source line, the largest first."""
    modules: list[ModuleMemory]
    """Activations by module; empty without a trace."""
    in_flight: int | None
    """Most micro-batches of a chunk whose activations are in memory at once; null without a
    recognised schedule."""
    ideal_in_flight: int | None
    """The same in the schedule."""
    microbatch_bytes: tuple[int, int] | None
    """Smallest and largest activations that a forward of a chunk leaves; null without a recognised
    schedule."""
    outlived_bytes: int
    """Activations at the peak whose own backward had ended."""
    leaks: list[MemoryLeak]
    """What steps leave behind, the largest first."""
    fragmentation: MemoryFragmentation | None
    """Null without a snapshot's history."""
    steps: list[StepMemory]
    """Allocated memory by step, as far as steps are known."""
    end_allocated_bytes: int
    """Allocated after the last event."""
    end_active_bytes: int | None
    """Active after the last event; null if unknown."""
    end_difference_bytes: int
    """Difference between replayed events and the snapshot's own segments; 0 if they agree."""
    failed_request_bytes: int | None
    """Largest request that failed because memory had run out; null if none did."""
    out_of_memory: OutOfMemory | None = None
    """The last request that failed; null if none did."""


class SnapshotMemory(Struct, frozen=True):
    """A memory snapshot without a trace."""

    rank: int | None
    """Rank; null if its name does not tell."""
    path: str
    """The file."""
    device: int
    """Number of the GPU."""
    events: int
    """Events of its history."""
    contents: MemoryContents
    """What fills its memory at the peak."""


class CategoryChange(Struct, frozen=True):
    """What is for one purpose in two snapshots."""

    category: str
    """weights, gradients, optimizer_state, …"""
    before_bytes: int
    """Allocated in the first."""
    after_bytes: int
    """Allocated in the second."""


class LineChange(Struct, frozen=True):
    """What one source line holds in two snapshots."""

    line: str | None
    """Source line; null where no stack was recorded."""
    category: str
    """weights, gradients, optimizer_state, …"""
    before_bytes: int
    """Allocated in the first."""
    after_bytes: int
    """Allocated in the second."""
    before_count: int
    """Allocations in the first."""
    after_count: int
    """Allocations in the second."""


class MomentChange(Struct, frozen=True):
    """Two snapshots compared at one kind of moment."""

    before_bytes: int
    """Allocated in the first."""
    after_bytes: int
    """Allocated in the second."""
    categories: list[CategoryChange]
    """By purpose, the largest change first."""
    lines: list[LineChange]
    """By source line, the largest change first."""


class SnapshotChange(Struct, frozen=True):
    """The snapshots of one rank in two runs, or at two times."""

    rank: int | None
    """Rank; null if its name does not tell."""
    before_path: str
    """First snapshot."""
    after_path: str
    """Second snapshot."""
    peak: MomentChange
    """At the most that was allocated."""
    end: MomentChange
    """When each was written."""
    before_reserved_bytes: int | None
    """Most reserved in the first; null without a history."""
    after_reserved_bytes: int | None
    """Most reserved in the second."""


class MemoryDiffDocument(Struct, frozen=True):
    """Two memory snapshots of each rank compared: ``tracekit diff A B --json``."""

    tracekit: str
    """Version of tracekit."""
    format: Literal["tracekit.memory-diff/1"]
    """The format."""
    snapshots: list[SnapshotChange]
    """Each rank's, by rank."""
    warnings: tuple[Notice, ...]
    """Notices."""


class MemoryDocument(Struct, frozen=True):
    """Memory snapshots of a run: ``tracekit memory --json``."""

    tracekit: str
    """Version of tracekit."""
    format: Literal["tracekit.memory/1"]
    """The format."""
    peak_bytes: int
    """Largest peak of any snapshot."""
    snapshots: list[SnapshotMemory]
    """The snapshots, by rank."""
    findings: tuple[Finding, ...]
    """Requests for memory that failed."""
    warnings: tuple[Notice, ...]
    """Notices."""
