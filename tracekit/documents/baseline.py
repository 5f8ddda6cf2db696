"""Baseline file of the gate: the samples of one or more runs, small enough to be kept in git."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tracekit.documents.analysis import Kernel, NotNegative
from tracekit.documents.diff import Count, Facts
from tracekit.documents.findings import Finding

BASELINE_FORMAT: Literal["tracekit.baseline/1"] = "tracekit.baseline/1"


class RunSamples(Struct, frozen=True):
    """Samples of one run."""

    name: str
    """Path from which it was read."""
    samples: Mapping[str, list[float]]
    """By metric: one value per step, or one per run."""
    recorded_steps: Count | UnsetType = UNSET
    """Steps of a run of dumps and logs alone, whose metrics have one value per run."""


class NoiseEntry(Struct, frozen=True):
    """Noise of one metric between runs of the same code."""

    deviation: Annotated[float, Meta(ge=0)]
    """Standard deviation between runs."""
    runs: Annotated[int, Meta(ge=2)]
    """Number of runs from which it was measured."""


class ModuleTime(Struct, frozen=True):
    """Time of one module and label, per step."""

    module: str
    """Module."""
    label: str
    """Label."""
    ns: NotNegative
    """Sum of durations."""


class CellTime(Struct, frozen=True):
    """Median time of one pipeline cell."""

    rank: int
    """Number of the rank."""
    op: str
    """Kind of operation."""
    ns: NotNegative
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
    kernels: list[Kernel] | UnsetType = UNSET
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
