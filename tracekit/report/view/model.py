"""What every report shows, typed: numbers and words, never how they look. ``view_of`` builds it once from an analysis.

Times are nanoseconds, shares are of what the field's name or docstring says, unknown is None. ``per rank`` figures are
means over ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracekit.analysis import Analysis
from tracekit.analysis.spread import Spread
from tracekit.errors import Notice


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the answer: what it is about, what it says, and the section that says more."""

    topic: str
    text: str
    target: str


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do next, and the whole command to copy where there is one."""

    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a budget."""

    name: str
    kind: str
    """``compute``, ``communication``, ``copy``, ``idle`` or ``unrecorded``."""
    ns: float
    share: float
    """Of the span."""
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One rank's span in parts that sum to it, or the mean of all ranks."""

    name: str
    rank: int | None
    span_ns: float
    parts: tuple[Part, ...]
    idle_known: bool
    bubble: float | None
    """Share of the span; None where it is not known or there is no pipeline."""
    lower_bound: bool

    def share(self, kind: str) -> float:
        """Return the share of the span of one kind of part."""
        return sum(part.share for part in self.parts if part.kind == kind)


@dataclass(frozen=True, slots=True)
class BudgetView:
    """Where the step went on every rank shown, and on average."""

    bars: tuple[Bar, ...]
    mean: Bar
    hidden_ranks: int
    """Ranks that have no bar of their own."""
    legend: tuple[tuple[str, str], ...]
    """Names and colours of the parts."""


@dataclass(frozen=True, slots=True)
class LabelRow:
    """One label over all ranks; times per rank."""

    label: str
    kind: str
    """``compute``, ``communication`` or ``copy``."""
    colour: str
    ns: float
    share: float
    """Of the span."""
    count: int
    """Events on all ranks."""
    hidden: float | None
    """Share of its own time that compute hides; None of compute itself."""
    exposed_ns: float
    exposed_share: float
    """Of the span."""
    wait_ns: float | None
    loud: bool = False
    """Work of no known label that is more than a hundredth of the span."""
    because_ns: Mapping[str, float] = field(default_factory=dict)
    """Exposed time by cause (``schema.EXPOSURE_CAUSES``), where causes are known."""
    blocking_ns: float | None = None
    """Exposed time whose removal shortens the step, where it is known."""

    def causes(self, *, most: int = 2, least: float = 0.05) -> list[tuple[str, float]]:
        """Return the largest causes of exposure and their shares of the exposed time."""
        whole = sum(self.because_ns.values())
        largest = sorted(self.because_ns.items(), key=lambda item: -item[1])[:most]
        return [(cause, ns / whole) for cause, ns in largest if ns >= least * whole]


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """What hides one label: shares of the label's own time, in the order of the matrix's columns."""

    label: str
    ns: float
    cells: tuple[float, ...]
    exposed: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """What hides what."""

    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """What ran beside one label in one pass: compute label and module, and their share of the label's time."""

    label: str
    pass_: str | None
    ns: float
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class BubbleRow:
    """Why one rank was idle, and its bubble."""

    rank: int
    idle_ns: int | None
    causes: Mapping[str, float | None]
    """Shares of the idle time by cause, as ``schema.IDLE_CAUSES`` names them."""
    wait_ns: int | None
    bubble: float | None
    lower_bound: bool
    phase_ns: Mapping[str, int | None]
    """Bubble in each phase of the pipeline; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that starts operations last, and what that costs the others."""

    rank: int
    label: str
    caused_ns: int
    operations: int
    share: float
    """Of the worst."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step over the ranks."""

    step: int | None
    least_ns: int
    median_ns: float
    most_ns: int
    slowest: int
    partial: bool
    share: float
    """Median of the longest step's."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The spread of steps, where there are several."""

    rows: tuple[StepRow, ...]
    more: int
    one_rank: bool


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Copies of one label, on one rank or (rank None) on all."""

    rank: int | None
    label: str
    count: int
    bytes: int | None
    ns: int
    hidden: float | None
    stall_ns: int
    stalls: int

    @property
    def gb_s(self) -> float | None:
        """Bytes over the union of the copies' time."""
        return self.bytes / self.ns if self.bytes is not None and self.ns else None


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between host and device and into weights."""

    by_rank: tuple[CopyRow, ...]
    more: int
    total: tuple[CopyRow, ...]
    """Those that take more than a two-hundredth of the span, by label."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in a step, mean over ranks."""

    name: str
    label: str
    module: str | None
    colour: str
    count: float
    ns: float
    share: float
    """Of the span."""
    command: str | None
    """Explains its label."""


@dataclass(frozen=True, slots=True)
class ReloadView:
    """A weight update in words and by lane."""

    facts: tuple[tuple[str, str], ...]
    lanes: tuple[Mapping[str, object], ...]
    more: int


@dataclass(frozen=True, slots=True)
class Rung:
    """One bar of the waterfall from the ideal to the run."""

    name: str
    ns: int
    low_ns: int
    high_ns: int
    kind: str
    """``total``, ``more`` or ``less``."""
    share: float | None
    """Of the gap."""


@dataclass(frozen=True, slots=True)
class Side:
    """The pipeline as it ran, or its ideal."""

    name: str
    makespan_ns: int
    outside_cells: float
    """Share of ranks × makespan in no cell."""
    phase_ns: Mapping[str, float]
    """Time in no cell per rank, by phase."""


@dataclass(frozen=True, slots=True)
class RankSide:
    """One rank of the pipeline as it ran."""

    rank: int
    outside_cells: float | None
    phase_ns: Mapping[str, int]
    peak_activations: int


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Share of one label's time that compute hides, phase by phase; then inside overlapped pairs."""

    name: str
    shares: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class WhatIfRow:
    """What another schedule, or one trouble less, would come to. Savings are against the measured run."""

    name: str
    change: str
    virtual: int | None
    predicted_ns: int | None
    """On this run's machine; None where that cannot be told."""
    range_ns: tuple[int, int] | None
    """Where the prediction may lie."""
    ideal_ns: int | None
    """With free messages and balanced stages."""
    saves_ns: int | None
    slower: bool
    ran: bool
    """The run's own schedule: measured, not predicted."""
    outside_cells: float | None
    peak_activations: float | None
    layout: str | None
    rests_on: tuple[str, ...]
    unknown: tuple[str, ...]
    command: str | None = None
    """Draws that schedule."""


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """The pipeline against its ideal."""

    name: str
    exact: bool
    distance: int
    pp: int
    microbatches: int
    virtual: int
    sizes: str
    which: str
    """Which step and pipeline, where there are several; else empty."""
    measured: Side
    ideal: Side
    by_rank: tuple[RankSide, ...]
    gap: tuple[Rung, ...] | None
    """None where ranks are missing, so that causes cannot be told apart."""
    differences: tuple[str, ...]
    orders: tuple[tuple[int, Sequence[str]], ...]
    phases: tuple[PhaseRow, ...]
    what_if: tuple[WhatIfRow, ...]


@dataclass(frozen=True, slots=True)
class ProductRow:
    """How fast the matrix products of one label, or of one kind (label, module, shape), ran on all ranks."""

    name: str
    shape: str
    tflop_s: float | None
    share_of_peak: float | None
    """Time at the GPU's peak over their own time."""
    ns: int


@dataclass(frozen=True, slots=True)
class BandwidthRow:
    """How fast operations of one kind and size moved their bytes, waiting apart."""

    name: str
    size: str
    count: int
    gb_s: float | None
    bus_gb_s: float | None
    transfer_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """What one rank's experts were sent in the forward's dispatches."""

    rank: int
    received_bytes: int
    over_mean: float
    """Of the mean of its group."""
    largest: int
    """Exchanges in which it received most."""
    exchanges: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class RatesView:
    """How fast products and communication ran, where the trace says enough."""

    labels: tuple[ProductRow, ...]
    kinds: tuple[ProductRow, ...]
    """Those that take longest."""
    notes: tuple[str, ...]
    communication: tuple[BandwidthRow, ...]
    experts: tuple[ExpertRow, ...]
    """Empty where all ranks receive alike."""
    below_peak: str | None
    """What better kernels could give at most, in words; it is part of the ideal too."""


@dataclass(frozen=True, slots=True)
class PathRow:
    """One segment of the critical path."""

    from_ns: int
    """From the step's start."""
    ns: int
    share: float | None
    """Of the step."""
    rank: int
    kind: str
    label: str | None
    what: str
    peer: int | None
    """The rank that came last, where the path goes on."""

    def name(self, *, most: int | None = None) -> str:
        """Return what ran, cut to *most* characters; of the host's work, what it came before.

        >>> PathRow(0, 5, 0.5, 1, "host", None, "aten::mm", None).name()
        'until it launched aten::mm'
        """
        until = "until it launched " if self.kind == "host" and self.what else ""
        return f"{until}{self.what[:most]}"


@dataclass(frozen=True, slots=True)
class PathView:
    """The critical path of the slowest step."""

    step: int | None
    rows: tuple[PathRow, ...]
    """The longest segments, in order of time."""
    notes: tuple[str, ...]
    """What the rows cover, and the whole path by label and by rank."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Everything a report shows, in the order it is read."""

    title: str
    ranks: str
    """``8 ranks``, or ``4 of 8 ranks``."""
    steps_named: str
    devices: tuple[str, ...]
    reader: str
    paths: tuple[str, ...]
    asked: str | None
    """The input again, short: one path, or the folder that holds them all."""
    has_gpu: bool
    pipelined: bool
    """A run without a pipeline has no bubble: it has idle."""
    answer: tuple[Line, ...]
    advice: tuple[Advice, ...]
    budget: BudgetView
    labels: tuple[LabelRow, ...]
    matrix: Matrix | None
    beside: tuple[Beside, ...]
    bubbles: tuple[BubbleRow, ...]
    more_bubbles: int
    schedule: ScheduleView | None
    phases: tuple[PhaseRow, ...]
    """What a rank that overlaps micro-batches hid in each phase, where no schedule could be named."""
    critical: PathView | None
    """The critical path, where it was asked for."""
    rates: RatesView | None
    stragglers: tuple[Straggler, ...]
    clock_note: str
    steps: Steps | None
    copies: Copies | None
    reload: ReloadView | None
    kernels: tuple[Kernel, ...]
    fleet: Spread | None
    """How figures are spread over many ranks."""
    warnings: tuple[Notice, ...]
    definitions: tuple[tuple[str, str], ...]
    analysis: Analysis
    """The result itself, for what draws timelines."""

    @property
    def exposure(self) -> tuple[LabelRow, ...]:
        """Communication and copies, the most exposed first."""
        rows = [row for row in self.labels if row.kind != "compute"]
        return tuple(sorted(rows, key=lambda row: -row.exposed_ns))
