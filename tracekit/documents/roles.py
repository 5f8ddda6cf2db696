"""Roles of a run: weight updates, iterations of an RL loop, and the phases of each process."""

import msgspec


class BucketCell(msgspec.Struct, frozen=True):
    """One operation on one bucket on one device, in the buffer that it fills or empties."""

    rank: int
    lane: str
    """``H2D buffer``, ``IPC buffer 0`` or ``IPC buffer 1``."""
    op: str
    """``H2D``, ``BROADCAST`` or ``RELOAD``."""
    role: str | None
    """Of a broadcast: ``source`` or ``destination``; None if the source is unknown."""
    bucket: int
    start_ns: int
    end_ns: int
    held_until_ns: int | None = None
    """When the buffer is free again: after its bucket is staged (H2D buffer) or reloaded (IPC
    buffers)."""


class WeightUpdate(msgspec.Struct, frozen=True):
    """One weight update, from the first copy to a device to the last reload.

    Times by kind are means over ranks.
    """

    start_ns: int
    end_ns: int
    bytes: int
    buckets: int
    h2d_ns: int
    """Union of a rank's copies of weights to the device."""
    broadcast_ns: int
    """Union of a rank's broadcasts, waiting for other ranks included."""
    reload_ns: int | None
    """Union of a rank's copies into the engine's weights; None if the process that makes them is
    not recorded."""
    host_ns: int
    """Time in which neither process of a rank has GPU work."""
    ideal_ns: int | None
    """Time of the two-buffer ideal with the measured times of each bucket; None without reloads."""
    gb_s: float
    """Bytes over the time of the update."""
    server: str | None
    """Role that broadcasts."""
    worker: str | None
    """Role that takes the weights."""
    reloaded_bytes: int | None
    """Bytes that each worker copied into its weights; None if they differ between ranks or are not
    recorded."""
    sources: tuple[int | None, ...]
    """Rank that broadcasts each bucket."""
    gap_ns: dict[str, int] | None
    """Measured minus ideal time by cause; the causes sum to it."""
    late_rank: int | None
    """Rank that the others wait for longest at the start of broadcasts; None if nobody waits."""
    ideal: tuple[tuple[str, int, int, int], ...] = ()
    """Steps of the ideal: operation, bucket, start and end from 0."""
    cells: tuple[BucketCell, ...] = ()

    @property
    def measured_ns(self) -> int:
        """Time of the update."""
        return self.end_ns - self.start_ns


class RoleWait(msgspec.Struct, frozen=True):
    """Idle time of a role in an iteration, a mean over its ranks, and what ran meanwhile."""

    role: str
    idle_ns: int
    busy_ns: int
    """Union of its GPU work, a mean over its ranks."""
    waits_for: str | None
    """The role that ran in most of its idle time; None if no other role did."""
    waited_ns: dict[str, int]
    """By other role: the part of the idle time in which that role ran."""


class RolloutTail(msgspec.Struct, frozen=True):
    """The rank whose rollout takes longest, against the median rank."""

    rank: int
    ns: int
    """Its time minus the median."""
    median_ns: int
    last_rank: int
    """The rank whose rollout ends last, which may have started late."""
    last_ns: int
    """Its end minus the median end."""
    decode_steps: int | None
    """Steps in which its key/value cache grows; None if shapes were not recorded."""
    median_decode_steps: float | None


class Iteration(msgspec.Struct, frozen=True):
    """One iteration of an RL loop: rollout, training and weight update."""

    index: int
    start_ns: int
    end_ns: int
    phase_ns: dict[str, int]
    """Time by phase, a mean over GPUs; a GPU that roles share counts once. With ``idle`` they sum
    to the iteration."""
    roles: tuple[RoleWait, ...]
    rollout_tail: RolloutTail | None


class PhaseBand(msgspec.Struct, frozen=True):
    """A phase of one process on the common clock."""

    role: str
    rank: int
    phase: str
    start_ns: int
    end_ns: int
    busy_ns: int
    iteration: int | None
