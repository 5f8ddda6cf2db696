"""Changes between two runs: ``tracekit diff --json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

DIFF_FORMAT: Literal["tracekit.diff/1"] = "tracekit.diff/1"
Verdict = Literal["pass", "improved", "regressed", "inconclusive"]
WorkUnit = Literal["token", "micro-batch", "TFLOP", "launch"]
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]


class ComparedRun(Struct, frozen=True):
    """One run."""

    name: str
    """Its path."""
    steps: int
    """Measured steps."""


class Facts(Struct, frozen=True, kw_only=True):
    """Facts of runs, as far as they are known.

    Those of candidate and baseline must agree, but for amounts of work.
    """

    reader: str | UnsetType = UNSET
    """Profiler that recorded them."""
    world_size: Count | UnsetType = UNSET
    """Number of ranks in the run."""
    ranks: Count | UnsetType = UNSET
    """Number of ranks in the traces."""
    gpu: str | UnsetType = UNSET
    """Devices."""
    shapes: list[str] | UnsetType = UNSET
    """Shapes of the model's matrix products."""
    options: str | UnsetType = UNSET
    """Options of the profiler that cost time, joined with +; none if there are none."""
    free_ms: Amount | UnsetType = UNSET
    """Step without the profiler."""
    free_range_ms: tuple[Amount, Amount] | UnsetType = UNSET
    """Range in which it lies."""
    tokens: Amount | UnsetType = UNSET
    """Tokens per step."""
    tflop: Amount | UnsetType = UNSET
    """TFLOP of the model's matrix products per step."""
    steps_not_common: list[int] | UnsetType = UNSET
    """Steps that some ranks recorded and others did not."""
    damage: list[str] | UnsetType = UNSET
    """Codes of notices about parts of the recording that are lost."""
    schedule: str | UnsetType = UNSET
    """Pipeline schedule."""
    pp: Count | UnsetType = UNSET
    """Pipeline size."""
    microbatches: Count | UnsetType = UNSET
    """Number of micro-batches."""
    virtual: Count | UnsetType = UNSET
    """Number of virtual stages."""


class SideEntry(Struct, frozen=True, kw_only=True):
    """One side of a comparison."""

    runs: list[ComparedRun]
    """Its runs."""
    facts: Facts
    """Facts that must agree before runs can be compared, such as world_size and schedule."""
    calibrated: bool | UnsetType = UNSET
    """Of the gate: whether its noise was measured between runs."""


class PartChange(Struct, frozen=True):
    """Change of one part of a rank's step."""

    part: str
    """compute, idle, or exposed with a label."""
    change_ms: float
    """After minus before."""


class FreeStepChange(Struct, frozen=True, kw_only=True):
    """The step without the profiler on both sides, which ``analyze`` names first."""

    before_ms: float
    """Before."""
    after_ms: float
    """After."""
    before_range_ms: tuple[float, float]
    """Range in which it lies before."""
    after_range_ms: tuple[float, float]
    """Range in which it lies after."""


class Waterfall(Struct, frozen=True):
    """Step time of one rank before and after, and the changes of its parts, which sum to the change."""

    rank: int
    """Number of the rank: the one whose compute changed most if that explains the change, else the
    slowest after it."""
    before_ms: float
    """Step time before."""
    after_ms: float
    """Step time after."""
    changes: list[PartChange]
    """Changes, largest first."""
    compute_changed: bool = False
    """Whether the rank is shown because its compute changed most."""


class WorkChange(Struct, frozen=True):
    """Work of a step before and after, and the step time per unit of work."""

    unit: WorkUnit
    """Unit of work; TFLOP are those of the model's matrix products. Of launches, where nothing else
    is known, only the ratio is."""
    per_gpu: bool
    """Whether amounts are those of one GPU, because the sides have different numbers of ranks."""
    before: float
    """Amount per step before."""
    after: float
    """Amount per step after."""
    ratio: float
    """Amount after / before."""
    ms_before: float
    """Step time per unit before."""
    ms_after: float
    """Step time per unit after."""
    change_relative: float
    """Change of the step time per unit / before."""


class TimelineCell(Struct, frozen=True):
    """One pipeline cell of one step."""

    rank: int
    """Number of the rank."""
    op: str
    """Kind of operation."""
    stage: int | None
    """Pipeline stage."""
    microbatch: int | None
    """Micro-batch."""
    b_stage: int | None
    """Stage of the backward of an overlapped block."""
    b_microbatch: int | None
    """Micro-batch of the backward of an overlapped block."""
    start_ns: int
    """Start, from the start of the first cell."""
    end_ns: int
    """End."""


class Timelines(Struct, frozen=True):
    """Pipeline cells of one step of both sides."""

    before: list[TimelineCell]
    """First side."""
    after: list[TimelineCell]
    """Second side."""


class MetricChange(Struct, frozen=True):
    """Change of one metric with the gate's verdict."""

    metric: str
    """Name of the metric."""
    unit: str
    """Its unit."""
    better: Literal["down", "up", "none"]
    """Direction that is better."""
    verdict: Verdict
    """Verdict."""
    reason: str
    """Why."""
    before: float | None
    """Level before."""
    after: float | None
    """Level after."""
    change: float | None
    """After minus before."""
    change_relative: float | None
    """Change / before."""
    interval: list[float] | None
    """Confidence interval of the change."""
    every_step: tuple[float, float] | None
    """Where all steps after are larger than all before, or all smaller, from three steps a side on:
    the least and the largest of them minus the level before; null otherwise."""


class TimeChange(Struct, frozen=True, kw_only=True):
    """Change of a time per step."""

    before_ms: float
    """Time before."""
    after_ms: float
    """Time after."""
    change_ms: float
    """After minus before."""
    change_relative: float | None
    """Change / before; null if there was none before."""


class CountedChange(TimeChange, frozen=True, kw_only=True):
    """Change of the time of countable work."""

    count_before: float
    """Number before."""
    count_after: float
    """Number after."""


class _LabelKey(TimeChange, frozen=True):
    label: str
    """Label."""


class LabelChange(_LabelKey, frozen=True, kw_only=True):
    """Change of one label."""

    exposed_ms_before: float | None
    """Exposed time before."""
    exposed_ms_after: float | None
    """Exposed time after."""
    overlap_before: float | None
    """Share hidden under compute before."""
    overlap_after: float | None
    """Share hidden under compute after."""


class _RankKey(TimeChange, frozen=True):
    rank: int
    """Number of the rank."""


class RankChange(_RankKey, frozen=True, kw_only=True):
    """Change of one rank's step."""

    most: str | None
    """Part of its budget that changed most, as the name of a metric."""
    most_ms: float | None
    """Change of that part."""


class KernelChange(CountedChange, frozen=True):
    """Change of one kernel."""

    name: str
    """Name of the kernel."""
    label: str
    """Label."""


class ModuleChange(CountedChange, frozen=True):
    """Change of one module and label."""

    module: str
    """Module."""
    label: str
    """Label."""


class CellChange(CountedChange, frozen=True):
    """Change of one pipeline cell."""

    rank: int
    """Number of the rank."""
    op: str
    """Kind of operation."""
    stage: int | UnsetType = UNSET
    """Pipeline stage."""
    microbatch: int | UnsetType = UNSET
    """Micro-batch."""
    b_stage: int | UnsetType = UNSET
    """Stage of the backward of an overlapped block."""
    b_microbatch: int | UnsetType = UNSET
    """Micro-batch of the backward of an overlapped block."""


class LargestChanges(Struct, frozen=True, kw_only=True):
    """Kernels, modules and cells whose time changed most."""

    kernels: list[KernelChange]
    """Kernels."""
    modules: list[ModuleChange]
    """Modules."""
    cells: list[CellChange]
    """Pipeline cells; empty if those of the two sides hold different parts of the model."""
    comparable_cells: bool | None
    """Whether cells of both sides hold the same parts of the model; null if a side has none."""
    notes: list[str]
    """What could not be compared."""


class FindingChange(Struct, frozen=True, kw_only=True):
    """A finding that came, went or changed in cost. Times are per step, means over the runs of a side."""

    code: str
    """Kind of finding."""
    case: str
    """Variant of the code, after the change if it is still there; empty if it has one."""
    kind: Literal["new", "worse", "better", "gone"]
    """How it changed. A finding below 1 % of the step is taken as absent."""
    ranks: list[int]
    """Ranks that it is about; empty: all alike."""
    cost_before_ns: int
    """Time that it cost before; 0 if there was no such finding."""
    cost_after_ns: int
    """Time that it costs after; 0 if there is no such finding."""
    share_before: float
    """Cost before / step time before."""
    share_after: float
    """Cost after / step time after."""
    cost_before_bytes: int | None
    """Memory that it cost before; null if it is about time."""
    cost_after_bytes: int | None
    """Memory that it costs after; null if it is about time."""
    step_agrees: bool
    """Whether the step time changed beyond its noise in the same direction, or it is about memory.
    Otherwise costs of equal runs may differ as much."""
    text: str
    """What costs time and why: of the run after, or of the run before if it is gone."""
    text_before: str
    """What the run before said, of a finding that is worse or better; else empty."""
    advice: str
    """What to do about it; empty if it is gone."""
    predicted_saving_ns: int | None
    """Saving that was predicted before, less what is still predicted after; null for a finding that
    is new or worse, and where nothing was predicted."""
    predicted_range_ns: tuple[int, int] | None
    """Least and largest predicted saving."""


class SavingCheck(Struct, frozen=True, kw_only=True):
    """Saving predicted for the change that was made, as its user named it, against the measured change of the step."""

    change: str
    """The change."""
    codes: list[str]
    """Findings that had advised it. Of several only the sum can be compared: the step has one
    time."""
    step: Literal["typical", "free"]
    """Step time that is compared: without the profiler where both sides know it, else the typical
    recorded step."""
    step_before_ns: int
    """Step time before."""
    step_after_ns: int
    """Step time after."""
    predicted_saving_ns: int
    """Predicted saving; of several findings the sum, which counts time twice that two share."""
    predicted_range_ns: tuple[int, int]
    """Least and largest predicted saving: of several findings the largest of the least savings, and
    the sum of the largest ones."""
    measured_saving_ns: int
    """Step time before minus after; negative if the step became slower."""
    measured_range_ns: tuple[int, int] | None
    """Range in which the measured saving likely lies, at least the noise floor of the step time wide
    on either side; null if there are too few steps to know."""
    added_cost_ns: int
    """Cost of findings that are new, and growth of those that are worse: it is in the measured time
    too."""
    outcome: Literal["as_predicted", "less", "more", "opposite", "undecided", "not_comparable"]
    """Whether the ranges meet, or the measured saving is less or more, or the step became slower;
    undecided if it may be noise, not_comparable if the sides do different work."""


class DiffDocument(LargestChanges, frozen=True):
    """What changed from one run to another.

    Its own keys come before those of the largest changes.
    """

    tracekit: str
    """Version that wrote it."""
    format: Literal["tracekit.diff/1"]
    """Name and number of the format."""
    before: SideEntry
    """First side."""
    after: SideEntry
    """Second side."""
    obstacles: list[str]
    """Reasons why the sides should not be compared."""
    same_recording: bool
    """Whether both sides are the same files: equal in every step."""
    story: list[str]
    """Sentences that explain the change."""
    free_step: FreeStepChange | None
    """Step without the profiler; null if a side does not know it. All other times are as recorded."""
    work: WorkChange | None
    """Amount of work on both sides; null if it is unknown."""
    waterfall: Waterfall | None
    """Step time of the slowest rank, part by part; null if the sides have no rank in common."""
    timelines: Timelines | None
    """Pipeline cells of both sides; null if a side has none."""
    metrics: list[MetricChange]
    """Changes of metrics, regressions first."""
    labels: list[LabelChange]
    """Changes of labels, largest first."""
    ranks: list[RankChange]
    """Changes of ranks, largest first."""
    findings: list[FindingChange] | None
    """Findings that changed: new and worse ones first, then by change of cost; null if a side has no
    record of them."""
    savings: SavingCheck | None
    """Predicted against measured saving; null if no change was named."""
    roles: Mapping[str, DiffDocument] | UnsetType = UNSET
    """The same for the other roles of runs whose ranks have several processes."""
