"""Baseline file of the gate: the samples of one or more runs, small enough to be kept in git."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tracekit.documents.findings import Finding

FORMAT: Literal["tracekit.baseline/1"] = "tracekit.baseline/1"
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]


class RunSamples(Struct, frozen=True):
    """Samples of one run."""

    name: str
    """Path from which it was read."""
    samples: Mapping[str, list[float]]
    """By metric: one value per step, or one per run."""
    recorded_steps: Count | UnsetType = UNSET
    """Steps of a run of dumps and logs alone, whose metrics have one value per run."""


class Facts(Struct, frozen=True, kw_only=True):
    """Facts of runs, as far as they are known.

    Those of candidate and baseline must agree, but for amounts of work.
    """

    damage: list[str] | UnsetType = UNSET
    """Codes of notices about parts of the recording that are lost."""
    gpu: str | UnsetType = UNSET
    """Devices."""
    microbatches: Count | UnsetType = UNSET
    """Number of micro-batches."""
    pp: Count | UnsetType = UNSET
    """Pipeline size."""
    ranks: Count | UnsetType = UNSET
    """Number of ranks in the traces."""
    reader: str | UnsetType = UNSET
    """Profiler that recorded them."""
    schedule: str | UnsetType = UNSET
    """Pipeline schedule."""
    shapes: list[str] | UnsetType = UNSET
    """Shapes of the model's matrix products."""
    steps_not_common: list[int] | UnsetType = UNSET
    """Steps that some ranks recorded and others did not."""
    tflop: Amount | UnsetType = UNSET
    """TFLOP of the model's matrix products per step."""
    tokens: Amount | UnsetType = UNSET
    """Tokens per step."""
    virtual: Count | UnsetType = UNSET
    """Number of virtual stages."""
    world_size: Count | UnsetType = UNSET
    """Number of ranks in the run."""


class NoiseEntry(Struct, frozen=True):
    """Noise of one metric between runs of the same code."""

    deviation: Annotated[float, Meta(ge=0)]
    """Standard deviation between runs."""
    runs: Annotated[int, Meta(ge=2)]
    """Number of runs from which it was measured."""


class KernelTime(Struct, frozen=True):
    """Kernels of one name, label and module, per step."""

    name: str
    """Name of the kernel."""
    label: str
    """Label."""
    ns: int
    """Sum of durations."""
    count: int | float | None = None
    """Number of launches."""
    module: str | None = None
    """Module."""


class ModuleTime(Struct, frozen=True):
    """Time of one module and label, per step."""

    module: str
    """Module."""
    label: str
    """Label."""
    ns: int
    """Sum of durations."""


class CellTime(Struct, frozen=True):
    """Median time of one pipeline cell."""

    rank: int
    """Number of the rank."""
    op: str
    """Kind of operation."""
    ns: int
    """Median over steps."""
    stage: int | UnsetType = UNSET
    """Pipeline stage."""
    microbatch: int | UnsetType = UNSET
    """Micro-batch."""
    b_stage: int | UnsetType = UNSET
    """Stage of the backward of an overlapped block."""
    b_microbatch: int | UnsetType = UNSET
    """Micro-batch of the backward of an overlapped block."""


class BaselineTables(Struct, frozen=True):
    """Tables that explain a change, of the first run."""

    cells: list[CellTime] | UnsetType = UNSET
    """Pipeline cells."""
    findings: list[Finding] | UnsetType = UNSET
    """What costs time, and the savings predicted for it; without places and advice."""
    kernels: list[KernelTime] | UnsetType = UNSET
    """Kernels with the most time."""
    modules: list[ModuleTime] | UnsetType = UNSET
    """Modules."""


class RoleBaseline(Struct, frozen=True):
    """Runs of one role."""

    facts: Facts
    """Facts that must agree before runs can be compared, and amounts of work."""
    noise: Mapping[str, NoiseEntry]
    """By metric: calibrated noise."""
    runs: list[RunSamples]
    """The runs."""
    tables: BaselineTables
    """Tables that explain a change."""


class BaselineDocument(RoleBaseline, frozen=True, kw_only=True):
    """Runs that a candidate is compared with. Keys are sorted."""

    format: Literal["tracekit.baseline/1"]
    """Name and number of the format."""
    main_role: str | UnsetType = UNSET
    """Where ranks have several processes: the role that the other keys are of."""
    roles: Mapping[str, RoleBaseline] | UnsetType = UNSET
    """… and by name the other roles, their runs in the same order."""
    tracekit: str
    """Version that wrote it."""
