"""Lateness and hangs over a whole run: ``tracekit late --json``."""

from typing import Literal

from msgspec import Struct

from tracekit.documents.findings import Share
from tracekit.errors import Notice

LATE_FORMAT: Literal["tracekit.late/1"] = "tracekit.late/1"


class RecordingEntry(Struct, frozen=True):
    """A kind of record and how much of it there is."""

    recorder: str
    """flight_recorder, nccl_inspector or profiler."""
    ranks: tuple[int, ...]
    """Ranks of which there is one."""
    operations: int
    """Collectives and messages, over all ranks."""
    first_ns: int | None
    """Time of the first operation, on the clock of its rank; null where the record has no times."""
    last_ns: int | None
    """Time of the last operation."""


class RecordedStepsEntry(Struct, frozen=True):
    """Steps, found from the sequence of operations, which repeats."""

    count: int
    """Steps; 0 if no sequence repeats."""
    first: int | None
    """Number of the first step."""
    last: int | None
    """Number of the last step."""
    numbered_from: str
    """Start of the numbers: start (of the run; after warm-up steps are counted from 1), first
    recorded (what came before is lost) or profiler (the numbers that it recorded)."""
    time_ns: int | None
    """Median time from the start of a step to the start of the next."""
    operations: int | None
    """Collectives in a step, on the rank with most of them."""


class RecordedClock(Struct, frozen=True):
    """Clock of a rank, from the operations that recorders saw."""

    rank: int
    """The rank."""
    offset_ns: int
    """What to subtract from its times to read the reference rank's clock."""
    uncertainty_ns: int | None
    """How far off that may be; null where the operations contradict each other, so that nothing
    rests on it."""


class OperationPlace(Struct, frozen=True):
    """A collective of a step."""

    place: int | None
    """Position in the step, from 0; null if steps are not known."""
    op: str
    """all_reduce, all_gather, …"""
    bytes: int | None
    """Its size."""
    group: str
    """Its group."""


class LateRanks(Struct, frozen=True):
    """Ranks that join late: one, or several that are late in the same steps."""

    ranks: tuple[int, ...]
    """The ranks."""
    hosts: tuple[str, ...]
    """Their hosts, if the record names them."""
    kind: Literal["constant", "periodic", "drifting", "occasional"]
    """constant (in nearly every step), periodic (in every period-th), drifting (in nearly every
    step, by more and more) or occasional."""
    period: int | None
    """Steps from one late step to the next, if periodic."""
    steps: tuple[int, ...]
    """The late steps."""
    since_step: int
    """First late step."""
    since_ns: int | None
    """Time of that step."""
    until_step: int | None
    """Last late step; null if it still was late at the end of the record."""
    from_beginning: bool
    """Whether it was late from the first step of the record on."""
    late_ns: int
    """How long after the others' median it joins: the median over its late steps of the latest
    operation."""
    late_range_ns: tuple[int, int]
    """The smallest and the largest of these."""
    at: OperationPlace
    """Operation at which it usually is latest."""
    caused_wait_ns: int
    """Waiting of all other ranks in operations that it joined last, in its late steps."""
    cost_ns: int
    """Sum over its late steps of how late it was: time that the run lost."""
    share: Share
    """cost_ns over the time of the record, 0 to 1."""
    cause: Literal["host", "gpu", "waited_itself"] | None
    """host (it called the operation late), gpu (it called it in time, its GPU was not ready) or
    waited_itself (it had waited for others in another group); null if clocks do not tell."""
    uncertain: bool
    """Whether the lateness is within what clocks or ends of operations may be off."""
    growth_ns: int | None
    """How much later it gets per step, if drifting."""
    profiled_steps: tuple[int, ...] = ()
    """Late steps that a profiler's trace shows in detail."""


class RankDistribution(Struct, frozen=True):
    """How one rank joined its operations."""

    rank: int
    """The rank."""
    operations: int
    """Operations it took part in that could be compared."""
    last: int
    """Operations that it joined last."""
    median_ns: int
    """How long after the others' median it joined, median; negative: before."""
    p90_ns: int
    """The same, which one operation in ten exceeds."""
    p99_ns: int
    """The same, which one operation in a hundred exceeds."""
    max_ns: int
    """The largest."""
    waited_ns: int
    """Its own waiting for others, summed up."""
    caused_wait_ns: int
    """Waiting of others in operations that it joined last, summed up."""


class GroupWaiting(Struct, frozen=True):
    """Waiting within one group."""

    group: str
    """The group."""
    description: str | None
    """What the program calls it."""
    ranks: int
    """Members that were recorded."""
    operations: int
    """Operations that could be compared."""
    waited_ns: int
    """Waiting of all members, summed up."""


class TransferEntry(Struct, frozen=True):
    """Transfers of one kind and size in one group."""

    group: str
    """The group."""
    ranks: int
    """Its members."""
    op: str
    """The operation."""
    bytes: int
    """Its size."""
    operations: int
    """How many there were."""
    median_ns: int
    """Median time of a transfer: the duration on the member that joined last."""
    bus_bytes_per_s: int | None
    """Bus bandwidth at the median."""


class SlowLink(Struct, frozen=True):
    """Transfers of a group that became slower, or are slower than the same transfers of other groups."""

    group: str
    """The group."""
    ranks: tuple[int, ...]
    """Its members."""
    op: str
    """The operation."""
    bytes: int
    """Its size."""
    kind: Literal["degraded", "slower_than_others"]
    """Compared with itself before, or with other groups."""
    usual_ns: int
    """Transfer time before, or of the other groups."""
    slow_ns: int
    """Transfer time now."""
    since_step: int | None
    """Step since which it is slower, if it became so."""
    since_ns: int | None
    """Time since which it is slower."""
    cost_ns: int
    """Time lost by it: the difference times the number of slow transfers."""


class RankState(Struct, frozen=True):
    """What one rank did last."""

    rank: int
    """The rank."""
    op: str | None
    """Its last operation in the group; null if it has none."""
    sequence: int | None
    """Number of that operation."""
    bytes: int | None
    """Its size."""
    state: str | None
    """scheduled, started, timed_out or completed."""
    enqueued_ns: int | None
    """When it was called, on the rank's own clock."""
    stack: tuple[str, ...]
    """Where it was called, innermost frame first; empty if stacks were not recorded."""


class Hang(Struct, frozen=True):
    """An operation that did not complete."""

    kind: Literal["missing", "mismatch", "stuck"]
    """missing (a member did not join), mismatch (members called different operations) or stuck (all
    joined)."""
    group: str
    """The group."""
    description: str | None
    """What the program calls it."""
    op: str
    """The operation that the waiting ranks called."""
    bytes: int | None
    """Its size."""
    dtype: str | None
    """Its type."""
    sequence: int | None
    """Its number in the group."""
    step: int | None
    """Its step."""
    missing: tuple[RankState, ...]
    """Members that did not join, with what they did last."""
    no_record: tuple[int, ...]
    """Members of which there is no dump: they may have ended."""
    waiting: tuple[int, ...]
    """Members that joined and wait."""
    different: tuple[RankState, ...]
    """Members that called another operation with the same number."""
    waited_ns: int | None
    """How long the first has waited, at least: until the last time in any dump."""
    certain: bool
    """Whether it is a hang: it timed out, or waited for much longer than a step takes. Otherwise
    the dumps may have been written while it ran."""
    members_known: bool = True
    """Whether a dump says who the members are; otherwise those that recorded something are named."""


class PipelineOrder(Struct, frozen=True):
    """Pipeline whose schedule follows from the order of its messages."""

    ranks: tuple[int, ...]
    """Its ranks, by stage."""
    microbatches: int
    """Micro-batches of a step."""
    steps: int
    """Steps recorded."""
    schedules: tuple[str, ...]
    """Schedules with exactly this order of forwards and backwards: several if messages do not tell
    them apart."""


class LateDocument(Struct, frozen=True):
    """Who joins collectives late over a whole run, and hangs."""

    tracekit: str
    """Version of tracekit."""
    format: Literal["tracekit.late/1"]
    """The format."""
    paths: tuple[str, ...]
    """Files read."""
    records: tuple[RecordingEntry, ...]
    """What was recorded."""
    ranks: tuple[int, ...]
    """Ranks with a record."""
    world_size: int | None
    """Ranks of the run, if known."""
    operations: int
    """Collectives matched across ranks."""
    compared: int
    """Those of which it is known who joined last."""
    basis: Literal["durations", "calls", "changes of calls"] | None
    """What lateness rests on: durations on the GPU (no clocks needed), times of the calls on
    aligned clocks, or only changes of these, where clocks are not known."""
    steps: RecordedStepsEntry
    """The steps."""
    clocks: tuple[RecordedClock, ...]
    """Clocks of the ranks."""
    hang: Hang | None
    """The operation that did not complete, if there is one."""
    late: tuple[LateRanks, ...]
    """Ranks that join late, the most expensive first."""
    distributions: tuple[RankDistribution, ...]
    """How each rank joined."""
    groups: tuple[GroupWaiting, ...]
    """Waiting by group."""
    transfers: tuple[TransferEntry, ...]
    """Transfers by group, operation and size, those with most time first."""
    slow_links: tuple[SlowLink, ...]
    """Transfers that became slow, or are slower than others."""
    pipelines: tuple[PipelineOrder, ...]
    """Pipelines recognised from messages."""
    warnings: tuple[Notice, ...]
    """What was left out or is not certain."""
    lost_ns: int | None = None
    """Time that the run lost to the ranks in late: of each step the lateness of the latest; null if
    nothing could be compared."""
    lost_share: Share | None = None
    """lost_ns over the time of the record, 0 to 1."""
