"""An ideal schedule: ``tracekit schedule --json``. Times are in the units of the given times."""

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

SCHEDULE_FORMAT: Literal["tracekit.schedule/1"] = "tracekit.schedule/1"
Time = int | float


class Cell(Struct, frozen=True, kw_only=True):
    """One operation on one rank: of a pipeline (stage and micro-batch) or of a weight update (lane and bucket)."""

    rank: int
    """Number of the rank."""
    lane: str | UnsetType = UNSET
    """Weight update: copies or one of the two buffers."""
    op: str
    """Kind of operation."""
    role: str | UnsetType | None = UNSET
    """Weight update: source or destination of a broadcast."""
    bucket: int | UnsetType = UNSET
    """Weight update: number of the bucket."""
    round: int | UnsetType = UNSET
    """Weight update: number of the round."""
    stage: int | UnsetType | None = UNSET
    """Pipeline stage."""
    microbatch: int | UnsetType | None = UNSET
    """Micro-batch."""
    b_stage: int | UnsetType | None = UNSET
    """Stage of the backward of an overlapped block."""
    b_microbatch: int | UnsetType | None = UNSET
    """Micro-batch of the backward of an overlapped block."""
    start: Time
    """Start."""
    end: Time
    """End."""


class RankIdle(Struct, frozen=True):
    """Idle time of one rank by phase."""

    rank: int
    """Number of the rank."""
    warm_up: Time
    """Before the first backward."""
    steady: Time
    """Between them."""
    cool_down: Time
    """After the last forward."""


class ScheduleDocument(Struct, frozen=True, kw_only=True):
    """A simulated schedule of a pipeline, or of a weight update (weight-reload)."""

    format: Literal["tracekit.schedule/1"]
    """Name and number of the format."""
    name: str
    """Name of the schedule."""
    pp: int | UnsetType = UNSET
    """Ranks of the pipeline."""
    microbatches: int | UnsetType = UNSET
    """Micro-batches."""
    virtual: int | UnsetType = UNSET
    """Chunks per rank."""
    group: int | UnsetType | None = UNSET
    """Micro-batches per group; null if the schedule has no groups."""
    devices: int | UnsetType = UNSET
    """Weight update: devices."""
    rounds: int | UnsetType = UNSET
    """Weight update: rounds."""
    time: Mapping[str, Time]
    """Time of each operation."""
    ranks: list[list[str]]
    """Order of each rank, in operations such as 0F3, 7I0 and (0F7;7B3)."""
    cells: list[Cell]
    """The operations with their times."""
    makespan: Time
    """End of the last operation."""
    bubble: list[Time] | UnsetType = UNSET
    """Idle time of each rank."""
    bubble_fraction: float | UnsetType = UNSET
    """Idle time / (ranks × makespan)."""
    bubble_rate_zb: float | UnsetType = UNSET
    """Bubble rate as the zero-bubble papers define it."""
    bubble_over_work: float | UnsetType = UNSET
    """Idle time / work."""
    peak_activations: list[int] | UnsetType = UNSET
    """Most activations that each rank holds at once."""
    idle_by_phase: list[RankIdle] | UnsetType = UNSET
    """Idle time of each rank by phase."""


class ScheduleEntry(Struct, frozen=True):
    """A schedule in ``tracekit schedule --list --json``."""

    name: str
    """Name of the schedule."""
    summary: str
    """One sentence."""
    source: str
    """Paper or program it comes from."""
    constraint: str
    """Sizes it accepts, in words; empty if it accepts any."""
