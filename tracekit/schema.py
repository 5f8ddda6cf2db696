"""Schemas of the tables, label sets and the records that accompany events.

Every parser ends in ``conform(frame, EVENTS)``; nothing behind it checks again. Times are Int64
nanoseconds since the Unix epoch. Text that repeats is Categorical (dictionary-encoded). Unknown is
null, never 0 or "".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import polars as pl

from tracekit.errors import Notice

GPU_KINDS = ("kernel", "memcpy", "memset", "graph")
"""Kinds of events that occupy a GPU. ``graph`` is a whole CUDA-graph launch recorded without its
kernels."""

KINDS = (
    *GPU_KINDS,
    "gpu_annotation",  # an annotation as the profiler projected it onto a stream
    "cpu_op",
    "runtime",  # CUDA / HIP runtime API call
    "driver",  # CUDA driver API call
    "annotation",  # record_function or NVTX range on a CPU thread
    "mark",  # NVTX instant
    "sync",
    "python",  # Python frames, read only on request
    "overhead",  # the profiler's own
    "other",
)

PATH_SEPARATOR = " > "
"""Separates the names of nested operators, ranges or modules, outermost first."""

COMPUTE_LABELS = ("forward", "dgrad", "wgrad", "backward", "recompute", "optimizer")
_COLLECTIVE_LABELS = (
    "ep_dispatch",
    "ep_combine",
    "pp_comm",
    "tp_comm",
    "dp_comm",
    "cp_comm",
    "comm",
)
COMMUNICATION_LABELS = (*_COLLECTIVE_LABELS, "broadcast")
COPY_LABELS = ("offload", "onload", "reload", "memory")
LABELS = (
    *COMPUTE_LABELS,
    *_COLLECTIVE_LABELS,
    "offload",
    "onload",
    "broadcast",
    "reload",
    "memory",
    "other",
)
"""Every label. Time covered by two exposed labels is attributed to the one that comes first
here."""

NAMELESS = "[unknown kernel]"
"""Name of a kernel whose name the file lacks: it cannot be told whether it computes or
communicates."""
UNTIMED = "GPU events without usable times"
"""Key of ``Source.skipped``: GPU events in the file whose start or duration is unusable."""
ON_OTHER_GPUS = "events on other devices"
"""Key of ``Source.skipped``: GPU events of a process on GPUs other than the one that it computes on."""
LATEST_NS = 1 << 62
"""No clock shows this time, a later one, or one before its negative (the years 2116 and 1823): such a time is
damage, and the difference of two others fits into 64 bits."""
DAMAGED = "damaged events"
"""Key of ``Source.skipped``: events that cannot be read at all, whether of the host or of the
GPU."""

LABEL_WORDS = {
    "ep_dispatch": "expert dispatch",
    "ep_combine": "expert combine",
    "pp_comm": "pipeline communication",
    "tp_comm": "tensor-parallel communication",
    "dp_comm": "data-parallel communication",
    "cp_comm": "context-parallel communication",
    "comm": "communication whose role is unknown",
    "offload": "copying to the host",
    "onload": "copying from the host",
    "broadcast": "weight broadcast",
    "reload": "weight reload",
    "memory": "memory copies and sets",
    "other": "work whose label is unknown",
}
"""Labels in words, for readers who do not know them."""

PASSES = ("forward", "backward")

PHASES = ("warm-up", "steady", "cool-down")
"""Phases of a rank's pipeline: before its first backward, until its last forward, until its last
backward."""
STEP_PHASES = (*PHASES, "rest")
"""Phases of a whole step: after the pipeline come gradient sync and optimizer."""

IDLE_CAUSES = {
    "launch_bound": "launch-bound",
    "dependency": "dependency",
    "warm_up": "slow launch",
    "unknown": "unknown",
}
"""Causes of idle GPU time, with the word for each: the host launched late, launched work was not
ready, or the launch call itself took long (code was loaded)."""

GAP_CAUSES = {
    "order": "another order of ops",
    "imbalance": "imbalance between stages",
    "variation": "variation between micro-batches",
    "early_output": "outputs sent before a block ends",
    "p2p": "pipeline transfer and its wait",
    "exposed_ep": "exposed expert communication",
    "offload": "offload stalls",
    "exposed_comm": "other exposed communication",
    "host": "late launches",
    "other_work": "work outside the pipeline",
    "profiler": "the profiler",
    "unexplained": "unexplained",
}
"""Parts of the gap in the order in which they are replayed, with words for the lost time. ``order``
is the cost of running the ops in another order than the schedule's. What the profiler adds is taken out of
late launches and of pipeline transfers, where the step without it is known."""

STALL_CAUSES = ("p2p", "exposed_ep", "offload", "exposed_comm", "host", "other_work")
"""Gap causes that stop a GPU at some moment; a moment with several belongs to the first."""

EXPOSURE_CAUSES = ("same_stream", "one_queue", "launched_late", "nothing_to_hide", "compute_waited", "peer_late",
                   "unknown")  # fmt: skip
"""Reasons why no compute ran beside communication or a copy; see ``metrics.causes``."""

_TEXT = pl.Categorical()

MESSAGE_LIST = pl.List(pl.Struct({"send": pl.Boolean(), "peer": pl.Int32()}))
"""Messages of one point-to-point kernel in the order of issue; ``peer`` is null where the recording
names none."""

EVENTS = pl.Schema(
    {
        "rank": pl.Int32(),  # the rank whose file holds it
        "id": pl.Int64(),  # position in the rank's source, from 0: (rank, id) names an event
        "kind": pl.Enum(KINDS),  # kernel, cpu_op, runtime, …
        "name": _TEXT,  # as the file has it
        "start_ns": pl.Int64(),  # on the rank's own clock
        "end_ns": pl.Int64(),  # never before start_ns
        "device": pl.Int32(),  # GPU events only
        "stream": pl.Int64(),  # GPU events only
        "pid": pl.Int64(),  # process
        "tid": pl.Int64(),  # of CPU events: the thread
        "correlation": pl.Int64(),  # joins a GPU event to its launch
        "external_id": pl.Int64(),  # joins a GPU event to the op around its launch, where the file says
        "sequence": pl.Int64(),  # autograd sequence number
        "fwd_thread": pl.Int64(),  # >0 on backward ops: the thread of the forward
        "shapes": _TEXT,  # input dims as compact JSON, "[[2,512,1024],[]]"
        "collective": _TEXT,  # "all_to_allv", "send", …
        "group": _TEXT,  # process group name
        "group_desc": _TEXT,  # what its creator called it
        "group_ranks": _TEXT,  # "[0,1,2,3]"; only what the file gives
        "peer": pl.Int32(),  # of a point-to-point op: the other rank, global
        "bytes": pl.Int64(),  # moved by a copy or a collective
        "graph": pl.Int64(),  # CUDA graph (node) id, where a kernel was launched by a graph
        "domain": _TEXT,  # NVTX domain
        "step": pl.Int64(),  # null outside every step
        "dtypes": _TEXT,  # input types as the file has them, a JSON list: ["c10::BFloat16","float"]
        "received": pl.Int64(),  # of a collective: bytes this rank receives; ``bytes`` is the larger way
        "collective_seq": pl.Int64(),  # of a collective: its number in its group, alike on all ranks
        "concrete": _TEXT,  # inputs that are no tensors, a JSON list: [null,[3,3],1e-05,true]; of views none
        "strides": _TEXT,  # strides of the inputs, as ``shapes``; of views none
    }
)
"""One row per complete event. ``step`` of a GPU event is that of its launch."""

MEMORY = pl.Schema(
    {
        "rank": pl.Int32(),
        "at_ns": pl.Int64(),  # when the host asked: the GPU may use it later
        "pid": pl.Int64(),
        "tid": pl.Int64(),  # the thread that asked
        "device_type": pl.Int32(),  # 0 is the host, everything else a GPU
        "device": pl.Int32(),
        "bytes": pl.Int64(),  # taken; negative: given back
        "allocated": pl.Int64(),  # of the device, after it; null in files of 2021
        "reserved": pl.Int64(),  # what the allocator holds of the device's memory, used or not
        "address": pl.Int64(),
    }
)
"""One row per event of PyTorch's allocator (``profile_memory=True``), sorted by (rank, at_ns)."""

ALLOCATOR_ACTIONS = (
    "alloc",
    "free_requested",  # the tensor is gone: no longer allocated
    "free_completed",  # no stream uses it any more: no longer active, may be handed out again
    "segment_alloc",
    "segment_free",
    "segment_map",  # an expandable segment grows
    "segment_unmap",
    "oom",
    "snapshot",
)
MEMORY_CURVE = pl.Schema({"at_ns": pl.Int64(), "allocated": pl.Int64(), "reserved": pl.Int64()})
"""Bytes that a rank's program holds and its allocator has reserved, each valid until the next row."""

ALLOCATOR_EVENTS = pl.Schema(
    {
        "at_ns": pl.Int64(),  # on the host's clock
        "action": pl.Enum(ALLOCATOR_ACTIONS),
        "address": pl.Int64(),
        "bytes": pl.Int64(),
        "stream": pl.Int64(),
        "stack": pl.Int32(),  # number of its stack; null where none was recorded
        "device_free": pl.Int64(),  # of oom: what was free on the GPU; null of other events
    }
)
"""One row per event of a memory snapshot's history, in the order in which they happened."""
ALLOCATOR_SEGMENTS = pl.Schema(
    {
        "address": pl.Int64(),
        "bytes": pl.Int64(),  # reserved
        "allocated": pl.Int64(),  # of that, in tensors
        "active": pl.Int64(),  # of that, in tensors or freed and still in use by a stream
        "stream": pl.Int64(),
        "kind": pl.String(),  # "small" or "large"
        "pool": pl.String(),  # "(0, 0)"; others are private, such as those of CUDA graphs
    }
)
"""One row per segment of a memory snapshot, sorted by address."""
ALLOCATOR_BLOCKS = pl.Schema(
    {
        "segment": pl.Int64(),  # its address
        "address": pl.Int64(),
        "bytes": pl.Int64(),
        "requested": pl.Int64(),  # what was asked for
        "stream": pl.Int64(),  # of its segment
        "state": pl.String(),  # "active_allocated", "active_pending_free" or "inactive"
        "stack": pl.Int32(),  # of its allocation
    }
)
"""One row per block of a memory snapshot's segments."""
SNAPSHOT_ANNOTATIONS = pl.Schema(
    {"at_ns": pl.Int64(), "name": pl.String(), "is_start": pl.Boolean()}
)
"""Begins and ends of the ranges that a memory snapshot recorded."""

EVIDENCE = pl.Schema(
    {
        "launch_ns": pl.Int64(),  # start of the API call that launched it; null when the file has none
        "launch_tid": pl.Int64(),  # thread of that call
        "op": _TEXT,  # innermost CPU op around the launch
        "chain": _TEXT,  # the ops above it, outermost first, joined by ``PATH_SEPARATOR``
        "annotation": _TEXT,  # innermost user annotation around the launch
        "annotations": _TEXT,  # all of them, outermost first, joined by ``PATH_SEPARATOR``
        "node": _TEXT,  # autograd node that ran it: "MmBackward0"; null outside the engine
        "fwd_op": _TEXT,  # the forward op the node belongs to: "aten::mm"
        "autograd_sequence": pl.Int64(),  # number that ties a backward to its forward
        "p2p": _TEXT,  # what one point-to-point kernel moves, in issue order: "send:2,recv:0"
        "op_id": pl.Int64(),  # event of ``op``; its input shapes and types stand in ``shapes`` and ``dtypes``
    }
)
"""Evidence about a GPU event, the input of the classification rules."""

LABELLING = pl.Schema(
    {
        "label": pl.Enum(LABELS),  # what it is; "other" where no rule knows
        "pass": pl.Enum(PASSES),  # which pass it serves; null where nothing tells
        "module": _TEXT,  # attention, mlp, norm, embedding, head, router, …
        "microbatch": pl.Int32(),  # where ranges or calls number them
        "stage": pl.Int32(),  # of the pipeline, where ranges name it
        "rule": _TEXT,  # the rule that decided
        "confidence": pl.Float32(),  # how far to trust it, 0 to 1
        "module_from": _TEXT,  # the evidence for ``module``: "module stack", "annotation", "name", "shapes", …
        "modules": _TEXT,  # calls of nn.Module around it, outermost first, joined by ``PATH_SEPARATOR``
        "layer": pl.Int32(),  # from 0, where calls of modules or ranges tell; null outside of layers
        "layer_from": _TEXT,  # the evidence for ``layer`` or for being outside; null where nothing tells
    }
)
"""Result of classifying a GPU event."""

LABELLED = pl.Schema({**EVENTS, **EVIDENCE, **LABELLING})
"""The labelled table: GPU events only, one row each, sorted by (rank, start_ns)."""

CELL_OPS = ("F", "I", "W", "B", "FB")
"""Operations of a pipeline: forward, backward for input, for weights, both; F and B at once."""
CELLS = pl.Schema(
    {
        "rank": pl.Int32(),  # the rank it ran on
        "step": pl.Int64(),  # the step
        "op": pl.Enum(CELL_OPS),  # forward, backward, its two halves, or both passes at once (FB)
        "stage": pl.Int32(),  # of the pipeline, from 0
        "microbatch": pl.Int32(),  # from 0
        "b_stage": pl.Int32(),  # FB only: stage of its backward half
        "b_microbatch": pl.Int32(),  # FB only: micro-batch of its backward half
        "start_ns": pl.Int64(),  # start of its first kernel
        "end_ns": pl.Int64(),  # end of its last kernel
        "busy_ns": pl.Int64(),  # union of compute inside it
        "confidence": pl.Float32(),  # how far to trust its place, 0 to 1
    }
)
"""Pipeline cells measured from a trace."""

RECORDERS = ("flight_recorder", "nccl_inspector", "profiler")
"""Recorders of collectives."""

SYMMETRIC_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no member can complete before all have joined: they end on all members at about
the same time."""

COLLECTIVE_STATES = ("scheduled", "started", "timed_out", "completed")
"""How far an operation had come when it was recorded, as its rank knew."""

COLLECTIVES = pl.Schema(
    {
        "rank": pl.Int32(),  # the rank that recorded it
        "source": pl.Enum(RECORDERS),  # the recorder
        "id": pl.Int64(),  # position among the rank's operations of this source, in the order of recording
        "group": _TEXT,  # communicator: a name that its members share, and that no other communicator has
        "sequence": pl.Int64(),  # number that its members share, within group, is_message and, of Inspector logs, op
        "op": _TEXT,  # all_reduce, all_gather, …, send, recv; coalesced is a batch of several
        "is_message": pl.Boolean(),  # between two ranks: a send, a recv or a batch of these
        "peer": pl.Int32(),  # the other rank of a message
        "bytes": pl.Int64(),  # of the smaller of input and output
        "dtype": _TEXT,  # of the input
        "enqueued_ns": pl.Int64(),  # when the host called it
        "started_ns": pl.Int64(),  # when the GPU started on it
        "completed_ns": pl.Int64(),  # when the GPU was done
        "completed_by_ns": pl.Int64(),  # some moment after it was completed, from a recorder that looks now and then
        "duration_ns": pl.Int64(),  # on the GPU
        "state": pl.Enum(COLLECTIVE_STATES),  # null where the recorder does not say
        "step": pl.Int64(),  # as the profiler numbers steps; null for other recorders
    }
)
"""Collectives and messages of a rank, from an always-on recorder or from a profiler; on the rank's
host clock."""


def conform(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return *frame* with exactly the columns of *schema*, in order; missing columns become null.

    >>> conform(pl.DataFrame({"rank": [0], "noise": [1]}), pl.Schema({"rank": pl.Int32(), "id": pl.Int64()}))
    shape: (1, 2)
    ┌──────┬──────┐
    │ rank ┆ id   │
    │ ---  ┆ ---  │
    │ i32  ┆ i64  │
    ╞══════╪══════╡
    │ 0    ┆ null │
    └──────┴──────┘
    """
    if not frame.width:
        return schema.to_frame()
    have = frame.schema
    # A literal takes no memory for its rows.
    missing = [
        pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if name not in have
    ]
    casts = [
        pl.col(name).cast(dtype)
        for name, dtype in schema.items()
        if name in have and have[name] != dtype
    ]
    return frame.with_columns(*missing, *casts).select(schema.names())


class ProcessGroup(msgspec.Struct, frozen=True):
    """A communicator as the trace's header lists it."""

    name: str
    description: str | None
    ranks: tuple[int, ...]


PYTORCH_READERS = ("kineto", "perfetto")
"""Readers of what PyTorch's profiler writes, as JSON or as Perfetto trace: each file holds one
rank."""
MULTI_RANK_READERS = ("merged", "nsight", "rocm")
"""Readers whose files may hold several ranks, which only reading can tell."""


class Source(msgspec.Struct, frozen=True):
    """Origin of one rank's events, and metadata of the file."""

    path: str
    reader: str  # "kineto", "perfetto", "nsight" or "rocm"
    rank: int
    rank_from: str  # "content", "name", "option", "only file", "matched" or "order"
    world_size: int | None = None
    devices: tuple[str, ...] = ()  # GPU names
    versions: Mapping[str, str] = {}
    groups: tuple[ProcessGroup, ...] = ()
    run: str | None = None  # what files of one run share and files of two runs do not
    record_shapes: bool | None = None
    # Step without the profiler, as tracekit's recorder timed it; None: it did not.
    free_step_ns: int | None = None
    # Of the GPU, as many as this process may use; None: all, or not said.
    multiprocessors: int | None = None
    memory_bytes: int | None = None  # of the GPU; None where it is not said, or GPUs differ
    counts: Mapping[str, int] = {}  # events by kind
    skipped: Mapping[str, int] = {}  # what the file held and the table does not
    notices: tuple[Notice, ...] = ()
    role: str | None = None  # of a run whose ranks have several processes
    # Of the process that ran the model; None where several did, or none is said.
    pid: int | None = None
    # Added to the file's own times, for ns since 1970; None: not known.
    clock_base_ns: int | None = None
    # Of the times and streams of its GPU events: equal only for copies of a file; None: too few.
    times_digest: str | None = None


def has_stacks(source: Source) -> bool:
    """Return whether Python's stacks were recorded, whether they were read or not.

    >>> has_stacks(Source("a.json", "kineto", 0, "name", skipped={"python": 7}))
    True
    """
    return source.skipped.get("python", 0) > 0 or source.counts.get("python", 0) > 0


def has_read_stacks(source: Source) -> bool:
    """Return whether Python's stacks were recorded and are among the events.

    >>> has_read_stacks(Source("a.json", "kineto", 0, "name", counts={"python": 7}))
    True
    """
    return has_stacks(source) and not source.skipped.get("python", 0)


Frame = tuple[str, str, int]
"""Function, file and line of a stack frame."""


@dataclass(frozen=True, eq=False)
class MemorySnapshot:
    """One rank's memory snapshot: the events of its GPU's allocator and what was allocated when it was written."""

    path: str
    device: int
    """The GPU whose events these are: the one with most of them."""
    events: pl.DataFrame
    """``ALLOCATOR_EVENTS``, in the order in which they happened."""
    segments: pl.DataFrame
    """``ALLOCATOR_SEGMENTS``: memory reserved when the snapshot was written."""
    blocks: pl.DataFrame
    """``ALLOCATOR_BLOCKS``: the contents of these segments."""
    annotations: pl.DataFrame
    """``SNAPSHOT_ANNOTATIONS``: ranges such as ``ProfilerStep#2``, by which it is placed on a
    trace's clock."""
    stacks: tuple[tuple[Frame, ...], ...]
    """Stacks by their number in ``events`` and ``blocks``, innermost frame first."""
    expandable: bool = False
    """Whether segments may grow (``expandable_segments``)."""
    notices: tuple[Notice, ...] = ()


CAPTURED_KERNELS = pl.Schema({"correlation": pl.Int64(), "kernel": pl.String()})
"""Names of the kernels that calls launched, where the calls record them, as HIP's do."""


KERNEL_BLOCKS = pl.Schema({"id": pl.Int64(), "blocks": pl.Int64()})
"""Thread blocks of kernels, by the id of the event."""


@dataclass(frozen=True, slots=True)
class GraphCapture:
    """Recording of the capture of CUDA or HIP graphs, which a rank replays."""

    events: pl.DataFrame
    """Columns: ``EVENTS``."""
    path: str = ""
    kernels: pl.DataFrame = field(default_factory=CAPTURED_KERNELS.to_frame)
    """Columns: ``CAPTURED_KERNELS``."""
    blocks: pl.DataFrame = field(default_factory=KERNEL_BLOCKS.to_frame)
    """Thread blocks of the kernels of the rank that replays. Columns: ``KERNEL_BLOCKS``."""


@dataclass(frozen=True, slots=True)
class RankEvents:
    """One rank as a parser returns it: events, their source, and the allocator's events."""

    events: pl.DataFrame
    source: Source
    memory: pl.DataFrame = field(default_factory=MEMORY.to_frame)
    """Columns: ``MEMORY``; empty where allocations were not recorded."""
    snapshots: tuple[MemorySnapshot, ...] = ()
    """Memory snapshots of the rank's process."""
    capture: GraphCapture | None = None
    """Recording of the capture of the graphs that the rank replays."""


RUN_TABLE = pl.Schema(
    {
        "recorded": pl.Datetime("ms", "UTC"),  # when its last file was written
        "run": pl.String(),  # name of the recording in the watched folder
        "ranks": pl.Int64(),
        "steps": pl.Int64(),
        "time_ns": pl.Int64(),  # the step as recorded
        "free_ns": pl.Int64(),  # the step without the profiler; null where it is not known
        "compute_ns": pl.Int64(),  # this and the next two: parts of the recorded step, means over ranks
        "exposed_ns": pl.Int64(),
        "idle_ns": pl.Int64(),  # null where it is not known
        "bubble_fraction": pl.Float64(),  # null without a pipeline
        "code": pl.String(),  # of the first finding, with its text and what it would save
        "finding": pl.String(),
        "saves_ns": pl.Int64(),
    }
)
"""Table of many runs in one file (``watch -o runs.parquet``), a row per recording, the oldest first."""


class GroupProgress(msgspec.Struct, frozen=True):
    """Sequence numbers that a group had reached on one rank when the flight recorder was dumped.

    None: not said.
    """

    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


class Recording(msgspec.Struct, frozen=True):
    """Origin of a table of collectives: a dump or log, and what it says about itself."""

    path: str
    recorder: str  # one of RECORDERS
    rank: int | None = None  # None where neither the content nor the name tells
    rank_from: str = "content"  # as in ``Source``
    version: str | None = None  # of the format
    groups: tuple[ProcessGroup, ...] = ()
    # Rank of this process within each group, where the file says it.
    group_ranks: Mapping[str, int] = {}
    # Number of members of each group, where the file says only this.
    group_sizes: Mapping[str, int] = {}
    progress: Mapping[str, GroupProgress] = {}  # by group
    # Where the last operation was called, innermost frame first; empty: not recorded.
    last_stack: tuple[str, ...] = ()
    last_ns: int | None = None  # latest time in the file, on the clock of its host
    host: str | None = None
    pid: int | None = None
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """One process as a reader of dumps or logs returns it."""

    collectives: pl.DataFrame
    """Columns: ``COLLECTIVES``; in the order of recording. ``rank`` is null where the file does not
    say it."""
    source: Recording
