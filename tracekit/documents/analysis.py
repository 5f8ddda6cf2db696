"""The analysis of a run: ``tracekit analyze --json`` and ``-o FILE.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import force_setattr, replace

from tracekit._util.notebook import html_table
from tracekit.documents.findings import Finding, Share
from tracekit.documents.late import LateDocument
from tracekit.documents.memory import MemoryContents
from tracekit.documents.roles import Iteration, PhaseBand, WeightUpdate
from tracekit.errors import Notice

ANALYSIS_FORMAT: Literal["tracekit.analysis/2"] = "tracekit.analysis/2"

NotNegative = Annotated[int, Meta(ge=0)]
"""A time or a count. Sums and shares of measured time rest on these."""

# ---- figures of ranks and steps


class Budget(Struct, frozen=True, kw_only=True):
    """Parts of a span or of a step time, which sum to it.

    >>> Budget(span_ns=10, compute_ns=6, exposed_ns={"pp_comm": 1}, idle=3).conserved
    True
    """

    span_ns: NotNegative = field(default=0, name="span")
    """The time that is divided."""
    compute_ns: NotNegative = field(name="compute")
    """Time in which any compute runs."""
    exposed_ns: Mapping[str, NotNegative] = field(name="exposed")
    """By communication and copy label: its time in which no compute runs."""
    idle: NotNegative | None
    """Time in which nothing runs; null if work is missing in the recording."""
    unrecorded_ns: NotNegative = field(default=0, name="not_recorded")
    """Time for which the recording lacks events."""

    def __post_init__(self) -> None:
        if not self.span_ns:  # a file of an earlier version: the parts that are known
            force_setattr(self, "span_ns", self._parts_ns() + (self.idle or 0))

    def _parts_ns(self) -> int:
        """Return the sum of all parts but idle time."""
        return self.compute_ns + sum(self.exposed_ns.values()) + self.unrecorded_ns

    @property
    def idle_ns(self) -> int:
        """Time in which nothing that was recorded runs, also where work is missing."""
        return max(0, self.span_ns - self._parts_ns()) if self.idle is None else self.idle

    @property
    def recorded_ns(self) -> int:
        """The time that the recording shows, of which shares are; the span unless events are lacking."""
        return self.span_ns - self.unrecorded_ns or self.span_ns

    @property
    def conserved(self) -> bool:
        """Whether the parts sum to the span."""
        return self._parts_ns() + self.idle_ns == self.span_ns


class Bubble(Struct, frozen=True, kw_only=True):
    """Pipeline bubble.

    >>> Bubble(idle_ns=10, wait_ns=None, fraction=0.1, lower_bound=True).fraction
    0.1
    """

    idle_ns: int | None
    """Idle time; null if work is missing in the recording."""
    wait_ns: int | None
    """Exposed wait of pipeline messages; null if the wait of any message is unknown."""
    fraction: Share | None
    """(Idle time + exposed wait) / span; null without a pipeline."""
    lower_bound: bool
    """Whether the fraction is a lower bound, because some waiting could not be measured."""
    least_wait_ns: int = 0
    """Lower bound of the exposed wait."""


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of a rank, of one of its steps, or of all ranks together (then times are sums over ranks).

    >>> from tracekit import analyze
    >>> total = analyze("sample_traces/reload", schedule="none").total
    >>> total.pipeline, total.overlap["broadcast"]
    (False, 0.0)
    """

    span_ns: NotNegative
    """Time from the first to the last GPU event."""
    budget: Budget = field(name="budget_ns")
    """Where the span went."""
    label_ns: Mapping[str, NotNegative]
    """By label: time in which any of its events runs."""
    set_ns: Mapping[str, NotNegative]
    """The same for the sets compute, communication and copy."""
    label_count: Mapping[str, NotNegative]
    """By label: number of events."""
    weak_ns: NotNegative
    """Time whose label rests on weak evidence."""
    weak_share: Share | None
    """The same as a share of the busy time."""
    overlap: Mapping[str, float | None]
    """By communication and copy label, and set: share of its time that compute hides; null if it
    never ran."""
    hidden_by_ns: Mapping[str, Mapping[str, NotNegative]] = field(name="hidden_ns")
    """By communication and copy label: hidden time by the label of the compute that hides it."""
    wait_ns: Mapping[str, int | None]
    """By communication label: time spent waiting for peers; null if unknown; at least that if
    wait_open_ns names it."""
    blocking_ns: Mapping[str, int | None]
    """By exposed label: part of its exposed time on the critical path; null if unknown."""
    because_ns: Mapping[str, Mapping[str, int]] = field(name="exposed_because_ns")
    """By exposed label: exposed time by cause; the causes sum to it."""
    bubble: Bubble
    """Pipeline bubble."""
    wait_open_ns: Mapping[str, NotNegative] = {}
    """By communication label: time, beyond known waits, in operations that another rank did not
    record."""
    hidden_ns: Mapping[str, NotNegative] = field(default_factory=dict, name="hidden_total_ns")
    """By communication and copy label, and set: time that compute hides."""
    pipeline: bool = True
    """False for a run without a pipeline, which has idle time and no bubble."""

    @property
    def idle_known(self) -> bool:
        """Whether no work is missing in the recording."""
        return self.budget.idle is not None

    @property
    def bubble_fraction(self) -> float | None:
        """Share of the span that is idle or exposed pipeline waiting.

        None without a pipeline or known idle time.
        """
        return self.bubble.fraction

    @property
    def lower_bound(self) -> bool:
        """Whether the bubble is a lower bound: some waiting could not be measured, or work was not recorded."""
        return self.bubble.lower_bound


class TimedStep(Struct, frozen=True):
    """The time of one step on one rank."""

    step: int | None
    """Number of the step; null without steps."""
    time_ns: NotNegative | None
    """Step time; null if it is not known."""
    budget: Budget
    """Where that time went."""
    partial: bool = False
    """Whether this is a first or last step that looks cut off."""
    start_up: bool = False
    """Whether the host spent much of it on loading code onto the GPU."""


class StepFigures(Figures, frozen=True):
    """Figures of one step on one rank.

    Its own keys come first, because they are not keyword-only.
    """

    step: int | None
    """Number of the step; null without steps."""
    partial: bool
    """Whether this is a first or last step that looks cut off."""
    time_ns: NotNegative | None
    """Step time on this rank: from the start of the step to the start of the next one; null if
    unknown."""
    time_budget: Budget = field(name="time_budget_ns")
    """Where the step time went."""
    start_up: bool = False
    """Whether code was loaded onto the GPU for much of the step: it is no ordinary one."""


class Phase(Struct, frozen=True):
    """Warm-up, steady state or cool-down of one step on one rank."""

    step: int | None
    """Number of the step."""
    phase: str
    """Name of the phase."""
    span_ns: int
    """Length of the phase."""
    compute_ns: int
    """Time in which any compute runs."""
    idle_ns: int | None
    """Time in which nothing runs; null if work is missing in the recording."""
    wait_ns: int | None
    """Exposed wait of pipeline messages; null if unknown."""


class HostActivity(Struct, frozen=True):
    """Activity of the host while the GPU was idle because nothing was launched."""

    instead: str
    """Kind of activity."""
    what: str | None
    """Name of the call or range; null if unknown."""
    line: str | None
    """Line of the program; null if unknown."""
    ns: int
    """Idle time."""
    count: int
    """Number of idle gaps."""


class _RankKeys(Figures, frozen=True):
    """The keys of a rank that come before its figures."""

    rank: int
    """Number of the rank."""
    steps: tuple[int, ...]
    """Numbers of the selected steps."""


class RankFigures(_RankKeys, frozen=True, kw_only=True):
    """Figures of one rank over the selected steps and the time between them.

    >>> from tracekit import analyze
    >>> first = analyze("sample_traces/reload", schedule="none").ranks[0]
    >>> first.rank, first.steps
    (0, (2,))
    """

    phases: tuple[Phase, ...]
    """Phases of each step, in a run with a pipeline."""
    idle_host_ns: Mapping[str, int] | None
    """Launch-bound idle time by kind of host activity; null if the recording does not show the
    host."""
    idle_host: tuple[HostActivity, ...]
    """The longest of them, with the calls."""
    inside_launch_ns: int
    """Idle time inside the launch call of the work that ended it."""
    idle_causes: Mapping[str, int] | None = field(name="idle_causes_ns")
    """Idle time by cause; null if work is missing in the recording."""
    per_step: tuple[StepFigures, ...]
    """Figures of each step."""

    @property
    def whole(self) -> RankFigures:
        """Figures of all selected steps, with the time between them: the rank's own."""
        return self

    @property
    def timed_steps(self) -> tuple[TimedStep, ...]:
        """Step time of each step, from its start to the start of the next one, and where it went."""
        return tuple(
            TimedStep(
                step.step, step.time_ns, step.time_budget, step.partial, start_up=step.start_up
            )
            for step in self.per_step
        )


# ---- the step time


class StepTime(Struct, frozen=True):
    """The time of one step."""

    step: int | None
    """Number of the step; null without steps."""
    time_ns: NotNegative
    """Median over ranks of their step times."""


class RankStepTime(Struct, frozen=True):
    """The step time of one rank."""

    rank: int
    """Number of the rank."""
    time_ns: NotNegative
    """Median over steps."""


class StepNotCommon(Struct, frozen=True):
    """A step that some ranks recorded and others did not."""

    step: int
    """Number of the step."""
    missing_ranks: list[int]
    """Ranks that did not record it."""


class StepKind(Struct, frozen=True, kw_only=True):
    """Steps of one kind of an inference server."""

    kind: str
    """``prefill``, ``decode`` or ``mixed``."""
    steps: int
    time_ns: NotNegative
    """GPU work that a step launches (union of its events), the median."""
    time_tail_ns: int | None = None
    """95th percentile of the same; null for fewer than five steps."""
    interval_ns: int | None = None
    """From the end of the step before to the end of a step's own work, the median; null if no two
    steps follow each other."""
    interval_tail_ns: int | None = None
    """95th percentile of the same."""
    gap_ns: int | None = None
    """From the end of all GPU work before to the start of a step's own, the median; 0 where they
    overlap."""
    delayed_steps: int = 0
    """Decode steps that come after a prefill or mixed step which a decode step precedes."""
    delay_ns: int | None = None
    """What such a step's sequences wait for these steps, the median of their intervals; null if
    there are none."""
    gpu_busy: float | None = None
    """GPU work as a share of these intervals."""
    requests: int | None = None
    """Sequences of a step, the median."""
    tokens: int | None = None
    """Tokens that a step computes, the median; null if the marks do not tell."""
    tokens_per_s: float | None = None
    """Tokens over intervals."""
    ns_per_token: float | None = None
    """Time that each further token adds to the GPU work; null if steps have about equally many."""


MIN_PROFILER_SHARE_TO_STATE = 0.05
"""Time that the profiler added to a step, as a share of the step without it, from which that step
is stated first."""


class Step(Struct, frozen=True, kw_only=True):
    """The step time of the run: from the start of a step to the start of the next one.

    >>> Step.of(23, free_ns=15).stated_ns, Step.of(15, free_ns=15).stated_ns
    (15, 15)
    """

    time_ns: NotNegative | None
    """Median over the steps that all ranks recorded; null if unknown."""
    per_step: list[StepTime]
    """Each of them."""
    unusual: list[StepTime]
    """Those that stand out from the others."""
    single: bool
    """Whether there is only one, timed from its host start to the end of its work."""
    marked: bool
    """False if the recording has no steps: the time is then its extent."""
    by_rank: list[RankStepTime]
    """Each rank's own step time."""
    budget_ns: Budget
    """Where the time of an ordinary step goes, a mean over ranks; sums to the step time."""
    not_common: list[StepNotCommon] = []
    """Steps that some ranks recorded and others did not; no figure of the run's steps counts
    them."""
    kinds: list[StepKind] | UnsetType = UNSET
    """Prefill and decode steps, if an inference server marked them."""
    free_ns: NotNegative | None = None
    """Time of a step without the profiler, which savings and shares refer to; null if unknown."""
    free_range_ns: tuple[NotNegative, NotNegative] | None = None
    """Range in which it lies."""
    free_from: Literal["timed", "modelled"] | None = None
    """Whether the recorder timed it, or each recorded event gave back what recording it costs."""
    free_budget_ns: Budget | None = None
    """Where its time goes; sums to it."""
    in_turn_ns: list[int] = []
    """Times that steps take in turn, one for each step of the period; empty if they do not repeat."""
    start_up: list[int] = []
    """Steps in which code was loaded onto the GPU: no ordinary ones, left out unless there are no
    others."""

    @classmethod
    def of(
        cls,
        time_ns: int | None,
        *,
        per_step: Iterable[StepTime] = (),
        unusual: Iterable[StepTime] = (),
        by_rank: Mapping[int, int] | None = None,
        budget_ns: Budget | None = None,
        **fields: Any,
    ) -> Step:
        """Return the step time of the steps *per_step*, which are marked; other *fields* as in JSON."""
        steps = list(per_step)
        known_fields: dict[str, Any] = {"single": len(steps) == 1, "marked": True, **fields}
        return cls(
            time_ns=time_ns,
            per_step=steps,
            unusual=list(unusual),
            by_rank=[RankStepTime(rank, ns) for rank, ns in (by_rank or {}).items()],
            budget_ns=budget_ns or Budget(compute_ns=0, exposed_ns={}, idle=0),
            **known_fields,
        )

    @property
    def profiler_ns(self) -> int:
        """Time that the profiler added to a step; 0 if it is not known, or too little to matter."""
        if self.free_ns is None or self.time_ns is None:
            return 0
        added_ns = self.time_ns - self.free_ns
        return added_ns if added_ns > MIN_PROFILER_SHARE_TO_STATE * self.free_ns else 0

    @property
    def stated_ns(self) -> int | None:
        """The step time that is stated first: without the profiler where that matters, else as recorded."""
        return self.free_ns if self.profiler_ns else self.time_ns

    @property
    def stated_budget(self) -> Budget:
        """Parts of the step that is stated first."""
        if self.free_budget_ns is None or not self.profiler_ns:
            return self.budget_ns
        return self.free_budget_ns

    @property
    def reference_ns(self) -> int | None:
        """The time that savings and shares refer to: without the profiler, or as recorded if that is unknown.

        Time for which the recording lacks events is no part of it.
        """
        time_ns = self.time_ns if self.free_ns is None else self.free_ns
        if time_ns is None:
            return None
        return time_ns - (self.free_budget_ns or self.budget_ns).unrecorded_ns or time_ns

    def without_idle(self) -> Step:
        """Return the step of a recording in which work is missing: its idle time is not known."""
        free = self.free_budget_ns
        return replace(
            self,
            budget_ns=replace(self.budget_ns, idle=None),
            free_budget_ns=None if free is None else replace(free, idle=None),
        )

    @property
    def is_start_up_alone(self) -> bool:
        """Whether every step that counts is one of start-up."""
        return bool(self.start_up) and all(each.step in self.start_up for each in self.per_step)

    @property
    def time_ns_by_rank(self) -> dict[int, int]:
        """Each rank's own step time."""
        return {each.rank: each.time_ns for each in self.by_rank}

    @property
    def spread(self) -> float:
        """Difference between the slowest and the fastest rank, as a share of the slowest rank's step time."""
        times_ns = [each.time_ns for each in self.by_rank]
        longest_ns = max(times_ns, default=0)
        return 1 - min(times_ns) / longest_ns if longest_ns else 0.0

    @property
    def usual(self) -> list[StepTime]:
        """Steps that do not stand out."""
        return [step for step in self.per_step if step not in self.unusual]

    def __repr__(self) -> str:
        time = "unknown" if self.time_ns is None else f"{self.time_ns / 1e6:.1f} ms"
        count = len(self.per_step)
        return f"Step({time}, {count} step{'' if count == 1 else 's'})"


# ---- the schedule


class Makespan(Struct, frozen=True):
    """Length of the pipeline's step."""

    makespan_ns: int
    """From the start of the first cell to the end of the last."""
    outside_cells: float
    """Share of ranks × makespan in no pipeline cell."""


class Difference(Struct, frozen=True):
    """A position at which a rank's order differs from the schedule's."""

    rank: int
    """Index of the rank in the pipeline."""
    position: int
    """Index in the rank's order."""
    measured: tuple[str, ...]
    """Operations that ran."""
    expected: tuple[str, ...]
    """Operations of the schedule."""


class RankBubble(Struct, frozen=True):
    """Idle time of one rank in the pipeline."""

    rank: int
    """Number of the rank."""
    measured_ns: Mapping[str, int]
    """Idle time by phase."""
    ideal_ns: Mapping[str, int]
    """Idle time of the ideal by phase."""
    peak_activations: int
    """Most chunks whose activations it held at once."""


class SlowCell(Struct, frozen=True):
    """A pipeline cell that took much longer than its like."""

    rank: int
    """Number of the rank."""
    op: str
    """Kind of operation."""
    stage: int
    """Pipeline stage."""
    microbatch: int
    """Micro-batch."""
    factor: float
    """Its work over the median of its operation and stage."""


class Factors(Struct, frozen=True):
    """Imbalance of stages and cells."""

    stage: Mapping[int, float]
    """By stage: its work over that of the mean stage."""
    spread: float
    """Median distance of a cell's work from the median of its operation and stage, as a share of
    it."""
    slow_cells: list[SlowCell]
    """The slowest cells."""


class Lane(Struct, frozen=True):
    """Time of one label in one phase of a rank's step."""

    rank: int
    """Number of the rank."""
    step: int | None
    """Number of the step."""
    phase: str
    """Phase of the pipeline; FB: inside the overlapped blocks alone."""
    span_ns: int
    """Length of the phase on this rank."""
    lane: str
    """computation, communication or offload."""
    label: str
    """Label."""
    passes: str | None = field(name="pass")
    """forward, backward or null."""
    total_ns: int
    """Time of the label."""
    hidden_ns: int
    """Part of it under compute."""
    beside_wgrad_ns: int
    """Part of it under weight gradients."""
    beside_other_pass_ns: int
    """Part of it under compute of the other pass, so of another micro-batch."""


class WhatIf(Struct, frozen=True):
    """A change of the run, its predicted makespan, and the assumptions behind it."""

    change: str
    """schedule, without, layout, microbatches or chunks."""
    name: str
    """Name of the schedule, or of what is left out."""
    virtual: int | None = None
    """Chunks per rank."""
    ideal_ns: int | None = None
    """Makespan with free messages and balanced stages."""
    predicted_ns: int | None = None
    """Makespan simulated with this run's messages and machine; null if it cannot be predicted."""
    predicted_range_ns: tuple[int, int] | None = None
    """Bounds of the prediction."""
    saves_ns: int | None = None
    """Measured minus predicted makespan; negative if the change is slower, null for another amount
    of work."""
    outside_cells: float | None = None
    """Share of ranks × predicted makespan in no cell."""
    peak_activations: float | None = None
    """Most activations that a rank holds, in micro-batches of all its layers."""
    least_activations: float | None = None
    """The same if an input gradient already frees the activation."""
    peak_bytes: tuple[int, int | None] | None = None
    """Bounds of the largest memory of a rank."""
    fits: bool | None = None
    """Whether that fits into the GPU's memory; null if unknown."""
    ran: bool = False
    """Whether this is the run's own schedule: measured, not predicted."""
    microbatches: int | None = None
    """Number of micro-batches."""
    layout: str | None = None
    """Value for Megatron-Core's --pipeline-model-parallel-layout."""
    rests_on: tuple[str, ...] = ()
    """Assumptions of the prediction."""
    unknown: tuple[str, ...] = ()
    """What could not be taken into account."""
    slower: bool = False
    """Whether it would take longer than the run did."""


class PipelineStep(Struct, frozen=True):
    """One pipeline in one step."""

    ranks: list[int]
    """Ranks of the pipeline."""
    step: int | None
    """Number of the step."""
    name: str
    """Name of the schedule."""
    exact: bool
    """Whether the order is exactly the schedule's."""
    measured_ns: int
    """Measured makespan."""
    ideal_ns: int
    """Ideal makespan."""
    gap_ns: Mapping[str, int] | None
    """Measured minus ideal makespan by cause; null if it cannot be split."""


class ComparedSchedule(Struct, frozen=True, kw_only=True):
    """The run's pipeline compared with its ideal.

    Figures are those of the median step of the slowest pipeline.
    """

    name: str
    """Name of the schedule that ran; the nearest one if none is exactly it."""
    compared_with: str | None = None
    """Name of the schedule whose ideal the run is compared with."""
    pp: int
    """Ranks in the pipeline."""
    microbatches: int
    """Micro-batches per step."""
    virtual: int
    """Chunks per rank."""
    ranks: list[list[str]]
    """Order of each rank, in operations such as 0F3."""
    measured: Makespan
    """The run."""
    ideal: Makespan
    """The ideal, simulated from the durations of the run's own cells."""
    gap_ns: Mapping[str, int] | None
    """Measured minus ideal makespan by cause; null if it cannot be split."""
    exact: bool
    """Whether the order is exactly that of the schedule that ran."""
    ambiguous_with: tuple[str, ...] = ()
    """Names of other schedules that have this order on the ranks at hand."""
    distance: int
    """Operations by which the order differs from that of the schedule compared with."""
    differences: tuple[Difference, ...]
    """Where it differs."""
    fb_run_apart: int
    """Overlapped blocks whose forward and backward ran one after the other."""
    step: int | None
    """The step that the figures describe."""
    pipeline_ranks: list[int]
    """Ranks of the pipeline that the figures describe."""
    stages_from: str
    """Evidence from which the stages of ranks are known."""
    confidence: float | None
    """Lowest confidence of a cell, 0 to 1."""
    by_rank: tuple[RankBubble, ...]
    """Idle time of each rank."""
    factors: Factors
    """Imbalance of stages and cells."""
    lanes: list[Lane]
    """Time by phase and label."""
    positions: Mapping[int, Mapping[str, int]]
    """By rank: its position in each kind of process group."""
    what_if: list[WhatIf]
    """Predicted changes, with --what-if."""
    pipelines: list[PipelineStep]
    """All pipelines and steps."""

    def __repr__(self) -> str:
        return (
            f"<ComparedSchedule: {self.name}, {self.pp} ranks, {self.microbatches} micro-batches, "
            f"{self.measured.makespan_ns / 1e6:.1f} ms measured, {self.ideal.makespan_ns / 1e6:.1f} ms ideal>"
        )

    def _repr_html_(self) -> str:
        parts = sorted(
            (self.gap_ns or {}).items(), key=lambda part: (part[0] == "unexplained", -part[1])
        )
        rows = [
            ("ideal", f"{self.ideal.makespan_ns / 1e6:,.1f} ms"),
            *((cause, f"{ns / 1e6:+,.1f} ms") for cause, ns in parts if ns),
            ("measured", f"{self.measured.makespan_ns / 1e6:,.1f} ms"),
        ]
        return html_table(repr(self)[1:-1], ("from the ideal to the run", "time"), rows)


# ---- the critical path and --by


class PathSegment(Struct, frozen=True):
    """A segment of the critical path."""

    step: int | None
    """Number of the step."""
    rank: int
    """Rank on which it lies."""
    kind: str
    """cell, kernel, copy, collective, message, launch, host or unknown."""
    what: str | None
    """Name of the work."""
    label: str | None
    """Label of the work."""
    cause: str | None
    """Cause of exposure, if it was exposed."""
    stage: int | None
    """Pipeline stage."""
    peer: int | None
    """The other rank of a message."""
    start_ns: int
    """Start on the common clock."""
    end_ns: int
    """End."""
    uncertain: bool = False
    """Whether clocks leave open which rank the path came from."""


class Slack(Struct, frozen=True):
    """Slack of one rank in one step."""

    step: int | None
    """Number of the step."""
    rank: int
    """Number of the rank."""
    path_ns: int
    """Its time on the critical path."""
    slack_ns: int | None
    """Time that its work could be later without delaying the step; null if unknown."""
    operations: int
    """Matched operations from which that follows."""


class PathTotals(Struct, frozen=True):
    """Time of the critical path; each mapping sums to the total."""

    total: int
    """Length of the path over all steps."""
    by_label: Mapping[str, int]
    """By label, or by kind where work has none."""
    by_rank: Mapping[str, int]
    """By rank."""
    by_stage: Mapping[str, int]
    """By pipeline stage, or by kind where work has none."""
    by_kind: Mapping[str, int]
    """By kind of work."""
    by_cause: Mapping[str, int]
    """By cause of exposure, or by kind where work was not exposed."""
    slack: list[Slack]
    """Slack of every rank."""
    uncertain: int = 0
    """Time for which clocks leave open on which rank the path lies."""
    candidates: list[int] = field(default_factory=list)
    """Ranks that may have the most work on the path, where clocks leave it open."""


class ByRow(Struct, frozen=True, kw_only=True):
    """Busy time of one layer, module, annotation or shape."""

    name: str
    """Name of the row."""
    stage: int | None
    """Pipeline stage."""
    layer: int | None
    """Number of the layer."""
    path: str | None
    """Path of modules or annotations."""
    ranks: list[int]
    """Ranks that ran it."""
    evidence: str | None
    """Evidence from which it is known."""
    count: int
    """Number of events."""
    ns: int
    """Busy time that belongs to this row alone; the rows sum to total_ns."""
    compute_ns: int
    """Compute."""
    communication_ns: int
    """Communication without compute beside it."""
    copy_ns: int
    """Copies without compute or communication beside them."""
    forward_ns: int | UnsetType = UNSET
    """Time of the label, present if it ran anywhere."""
    dgrad_ns: int | UnsetType = UNSET
    """As forward_ns."""
    wgrad_ns: int | UnsetType = UNSET
    """As forward_ns."""
    backward_ns: int | UnsetType = UNSET
    """As forward_ns."""
    recompute_ns: int | UnsetType = UNSET
    """As forward_ns."""
    optimizer_ns: int | UnsetType = UNSET
    """As forward_ns."""
    other_ns: int | UnsetType = UNSET
    """As forward_ns."""
    calls: int | None
    """Calls of matrix products."""
    flop: int | None
    """FLOP of matrix products with known shapes."""
    tflop_s: float | None
    """FLOP over the products' time."""
    share_of_peak: float | None
    """Share of the GPU's peak rate."""
    below_peak_ns: int | None
    """Time beyond that at the peak rate."""
    inclusive_ns: int | UnsetType | None = UNSET
    """Time with all that is inside; for modules and annotations."""
    share: Share | None
    """Share of total_ns."""
    apart: bool
    """Whether ranks of different stages have rows of their own."""


class ByTable(Struct, frozen=True):
    """Busy time of all GPUs by layer, module, annotation or shape. Sums over ranks and steps."""

    by: str
    """Kind of the rows: layer, module, annotation or shape."""
    total_ns: int
    """Busy time of all GPUs."""
    steps: int
    """Number of steps."""
    rows: list[ByRow] | None
    """The rows; null if no event has a place."""
    notes: list[str]
    """Notes on the rows."""


# ---- overlap, waits, clocks, kernels, copies, weight updates


class LabelSlowdown(Struct, frozen=True):
    """Slowdown of one compute label beside communication."""

    label: str
    """Compute label."""
    kernels: int
    """Compared kernels."""
    beside_ns: int
    """Their time beside communication."""
    alone_ns: int
    """Their time at the median of the same kernels alone."""
    all_ns: int
    """Time of all kernels beside communication."""
    slowdown: float
    """beside_ns / alone_ns."""
    extra_ns: int
    """beside_ns − alone_ns."""


class Hiding(Struct, frozen=True):
    """Time that hiding communication saved, and time that it cost. Sums over ranks."""

    saved_ns: int
    """Communication that ran under compute."""
    extra_ns: int | None
    """Time by which compared kernels took longer than alone; null if none was compared."""
    net_ns: int | None
    """Saved time minus extra time; null if too little was compared."""
    compared: float | None
    """Share of the kernel time beside communication that was compared."""
    by_label: list[LabelSlowdown]
    """By compute label, costliest first."""


class Evidence(Struct, frozen=True, omit_defaults=True):
    """Figures that a cause rests on; only those of the cause are present."""

    ratio: float | None = None
    """slow_gpu: time of its kernels over the same kernels elsewhere; more_work: its work over that
    of the waiting."""
    multiprocessors: int | None = None
    """slow_gpu: multiprocessors that the rank may use, where the others may use more."""
    multiprocessors_of_others: int | None = None
    """The fewest that another rank may use."""
    tokens: int | None = None
    """Tokens of the rank per step, a mean over the steps in which it is late."""
    tokens_of_others: int | None = None
    """Tokens per step of the ranks that waited, a mean over them and these steps."""
    idle_ns: int | None = None
    """Time per step in which its GPU was empty until the host launched, beyond that of the
    others."""
    copy_ns: int | None = None
    """Time per step in which its GPU did nothing but copy to or from the host, beyond that of the
    others; null if there is none."""
    chain: list[int] | None = None
    """waited_itself: ranks from this one to the one where the waiting begins."""
    role: str | None = None
    """waited_itself: role whose process on the same rank it waited for."""
    iterations: list[int] | None = None
    """Iterations of the RL loop in which it waited for that role."""
    reason: str | None = None
    """Why the cause is not known."""


class WaitCause(Struct, frozen=True):
    """A reason why others wait for a rank."""

    cause: Literal["slow_gpu", "more_work", "host_late", "slow_link", "waited_itself", "unknown"]
    """Cause."""
    ns: int
    """Waiting that it explains."""
    evidence: Evidence
    """Figures that it rests on."""


class Straggler(Struct, frozen=True):
    """A rank that others wait for, in one label."""

    rank: int
    """Number of the rank."""
    label: str
    """Communication label."""
    caused_ns: int
    """Time that others waited for it; ranks that are late together share it."""
    operations: int
    """Operations in which others waited for it."""
    uncertain: bool = False
    """Whether another rank may have been last, by the uncertainty of the clocks."""
    candidates: list[int] = field(default_factory=list)
    """Ranks that may have been last in more than half of that time, this one included."""
    alone_ns: int | None = None
    """Part of caused_ns in which all other ranks had arrived: what ends if this rank alone comes in
    time; null where clocks do not tell."""
    late_with: list[int] = field(default_factory=list)
    """Ranks that are late together with it in operations with more than half of caused_ns, if it
    alone in time would end less than half: the others wait until all of them have arrived."""
    kind: Literal["chronic", "one_off", "mixed"] | None = None
    """Whether it is late in most steps, in one or few, or in between; null if never, or if there is
    one step."""
    steps: list[int | None] = field(default_factory=list)
    """Steps in which it is late by 2 % of the step or more."""
    late_ns: int = 0
    """Time by which it is late in one of these steps, as the mean of the ranks that wait."""
    late_ns_by_step: list[int] = field(default_factory=list)
    """The same in each of these steps."""
    worst_step: int | None = None
    """Of several steps, the one in which it is later than in all others together; null if there is
    none."""
    worst_ns: int | None = None
    """Time by which it is late in that step."""
    why: list[WaitCause] = field(default_factory=list)
    """Causes, largest first; they sum to caused_ns."""


class RankLateness(Struct, frozen=True):
    """Lateness of one rank."""

    rank: int
    """Number of the rank."""
    late_ns: list[int]
    """By step: waiting for this rank, as the mean of the ranks that waited."""


class Lateness(Struct, frozen=True):
    """Lateness of the ranks that are late in any step."""

    steps: list[int | None]
    """Numbers of the steps."""
    ranks: list[RankLateness]
    """Ranks that are late by 2 % of a step or more, at least once."""


class ImbalanceStep(Struct, frozen=True):
    """Unequal work in one step and group of ranks."""

    step: int | None
    """Number of the step."""
    group: str | None
    """Ranks that reduce gradients together; null: all."""
    most_work_rank: int
    """Rank with the most work."""
    tokens_max: int | None
    """Most tokens of a rank; null if not recorded."""
    tokens_mean: float | None
    """Mean tokens of a rank."""
    cost_ns: int
    """Work of that rank minus the mean, at the usual speed of the same kernels."""
    share: float
    """The same as a share of the step."""


class Imbalance(Struct, frozen=True):
    """Unequal work of ranks, part of which communication may hide."""

    share: Share
    """Work of the rank with the most minus the mean / time of all steps."""
    steps: list[ImbalanceStep]
    """The same of each step."""


class GroupSlowdown(Struct, frozen=True):
    """Contribution of a group of pipeline cells to the slowdown."""

    by: str
    """What the group has in common: stage, op or rank."""
    name: int | str
    """Number of the stage or rank, or kind of cell."""
    alone: float
    """Step time with the group as measured and everything else as usual, over the usual step
    time."""
    explains: float
    """Share of the slowdown that goes if the group's durations are the usual ones; above 1 if all
    others are faster."""


class Slowdown(Struct, frozen=True):
    """Slowdown of the pipeline against usual durations of all its cells."""

    ratio: float
    """Mean step time with measured durations over that with usual ones."""
    step_ratios: list[float]
    """The same of each step."""
    groups: list[GroupSlowdown]
    """Contributions, largest first; empty if the slowdown is below 3 %."""


class RankClock(Struct, frozen=True):
    """Clock of one rank."""

    rank: int
    """Number of the rank."""
    offset_ns: int | None
    """To be subtracted from its times to read the first rank's clock; null if nothing ties it to
    the others."""
    drift_ppm: float | None
    """Parts per million by which it runs faster than the first rank's clock."""
    uncertainty_ns: int | None
    """Bound of the offset's error."""
    matches: int
    """Matched operations."""
    residual_ns: int | None
    """Median distance from the first to the last end of its matches."""


class ClockAlignment(Struct, frozen=True):
    """Alignment of clocks across ranks."""

    residual_ns: int | None
    """Median distance from the first to the last end of a matched operation; null without
    matches."""
    worst_ns: int | None
    """The largest such distance."""
    ranks: list[RankClock]
    """Clock of each rank."""


class Kernel(Struct, frozen=True):
    """Kernels of one name, label and module, per step, averaged over ranks."""

    name: str
    """Name of the kernel."""
    label: str
    """Label."""
    module: str | None
    """Module."""
    count: Annotated[float, Meta(ge=0)]
    """Number of launches."""
    ns: NotNegative
    """Sum of durations."""


class Operator(Struct, frozen=True):
    """Calls of one operator with the same inputs and label, per step, averaged over ranks."""

    label: str
    """Label."""
    op: str | None
    """Name of the operator; null for work whose operator was not recorded."""
    inputs: str | None
    """Sizes and types of its tensors, with strides where one is not contiguous; null if not
    recorded, and for calls that are summed because they take little time."""
    largest: str | None
    """Sizes of the largest of these tensors."""
    calls: Annotated[float, Meta(ge=0)]
    """Number of calls."""
    kernels: Annotated[float, Meta(ge=0)]
    """Number of GPU events that they launch."""
    ns: NotNegative
    """Sum of the durations of these events."""


class Copy(Struct, frozen=True):
    """Copies of one label on one rank."""

    rank: int
    """Number of the rank."""
    label: str
    """Label."""
    count: int
    """Number of copies."""
    bytes: int | None
    """Bytes; null if not recorded for all of them, such as kernels that copy."""
    ns: int
    """Time in which any of them runs."""
    bandwidth_gb_s: float | None
    """Bytes / time."""
    link_gb_s: float | None
    """Bandwidth of the link to the host, one way."""
    of_link: float | None
    """Bandwidth / link."""
    hidden_ns: int
    """Time under compute."""
    hidden: float | None
    """The same as a share of the time."""
    stall_ns: int
    """Exposed time."""
    stalls: int
    """Number of separate stalls."""


class ReloadLane(Struct, frozen=True):
    """One lane of a weight update on one rank."""

    rank: int
    """Number of the rank."""
    lane: str
    """h2d, stage, broadcast or reload."""
    count: int
    """Operations."""
    bytes: int | None
    """Bytes; null if not recorded."""
    ns: int
    """Time in which any of them runs."""
    bandwidth_gb_s: float | None
    """Bytes / time."""


class ReloadHidden(Struct, frozen=True):
    """Overlap in a weight update on one rank."""

    rank: int
    """Number of the rank."""
    reload_under_broadcast: float | None
    """Share of the reload's time under broadcasts."""
    h2d_under_others: float | None
    """Share of the host-to-device copies' time under other work."""


class Reload(Struct, frozen=True):
    """A weight update."""

    rounds: int
    """Rounds."""
    buckets: int
    """Buckets."""
    owners: int
    """Ranks that broadcast."""
    sources: list[int | None]
    """Rank that broadcast each bucket."""
    lanes: list[ReloadLane]
    """Operations by rank and lane."""
    hidden: list[ReloadHidden]
    """Overlap by rank."""
    time_ns: Mapping[str, int]
    """Median time of H2D, BROADCAST and RELOAD: over rounds of the slowest rank's copy; over
    buckets from the arrival of the last member to the last end; over buckets of the median rank."""
    measured_ns: int
    """Time from the first copy on any rank to the last reload on any."""
    ideal_ns: int | None
    """The same with two buffers and the measured time of each round and bucket, as in
    ``weight_updates``."""


# ---- rates


class Rate(Struct, frozen=True, kw_only=True):
    """Rate of matrix products."""

    calls: int
    """Calls."""
    ns: int
    """Time of their kernels."""
    flop: int | None
    """FLOP; null if unknown."""
    at_peak_ns: float | None
    """Time at the GPU's peak rate."""
    tflop_s: float | None
    """FLOP / time."""
    share_of_peak: float | None
    """Share of the peak rate."""


class LabelRate(Rate, frozen=True):
    """Rate of one label."""

    label: str
    """Label."""


class ModuleRate(Rate, frozen=True):
    """Rate of one module."""

    module: str | None
    """Module."""


class ProductRate(Rate, frozen=True):
    """Rate of one kind of matrix product."""

    label: str
    """Label."""
    module: str | None
    """Module."""
    op: str | None
    """Operator."""
    shapes: str | None
    """Shapes of its inputs."""
    dtype: str | None
    """Data type."""
    kernel: str | None = None
    """Family of the kernel, if its operator has no formula."""


class Uncounted(Struct, frozen=True):
    """Products whose FLOP are unknown."""

    label: str
    """Label."""
    module: str | None
    """Module."""
    op: str | None
    """Operator."""
    kernel: str | None
    """Family of the kernel."""
    calls: int
    """Number of products."""
    ns: int
    """Their time."""


class Bandwidth(Struct, frozen=True):
    """Bandwidth of operations of one label, kind, group and size."""

    label: str
    """Label."""
    what: str
    """The collective, or p2p."""
    group: str | None
    """Process group."""
    ranks: int | None
    """Members of the group."""
    where: str | None
    """in node, across nodes, or null if unknown."""
    size: str
    """Range of bytes per operation."""
    count: int
    """Operations."""
    bytes: int
    """Bytes of all of them."""
    transfer_ns: int
    """Sum over operations of the shortest member."""
    wait_ns: int | None
    """Sum over members and operations."""
    algorithm_gb_s: float | None
    """Bytes / transfer time."""
    bus_gb_s: float | None
    """Bus bandwidth."""
    share_of_link: float | None
    """Bus bandwidth / peak of the link."""
    gpu_link_gb_s: float | None = None
    """Bandwidth of a GPU's links in one direction by its data sheet; null unless the ranks are known
    to have GPUs of their own on one machine."""
    measured_bus_gb_s: float | None = None
    """Bus bandwidth that was measured elsewhere for the same operation, sizes, data type, GPU and
    number of GPUs."""
    share_of_measured: float | None = None
    """Bus bandwidth / the bus bandwidth measured elsewhere."""


class ExpertLoad(Struct, frozen=True):
    """Load of the experts of one rank."""

    rank: int
    """Number of the rank."""
    group: str | None
    """Expert-parallel group."""
    exchanges: int
    """Dispatches of the forward."""
    received: int | None
    """Bytes received."""
    over_mean: float | None
    """Received / mean of the group."""
    largest: int
    """Exchanges in which this rank received most."""
    wait_ns: int | None
    """Its wait for other ranks in those exchanges."""


class ExpertLayer(Struct, frozen=True):
    """Load of one rank in one exchange."""

    exchange: int
    """Number of the dispatch in the forward of a step."""
    group: str | None
    """Expert-parallel group."""
    rank: int
    """Number of the rank."""
    received: int | None
    """Bytes over all steps."""
    received_over_mean: float | None
    """Received / mean of the group."""
    expert_ns: int | None
    """Compute between dispatch and combine."""
    expert_over_mean: float | None
    """The same over the mean of the group."""
    wait_ns: int | None
    """Wait in the combine that others' longer work explains."""
    exposed_ns: int | None
    """Part of it that no compute hides."""


class ExpertCost(Struct, frozen=True):
    """Upper bounds of the cost of uneven experts, over all steps."""

    exchanges: int
    """Dispatches that were matched and have a combine."""
    transfer_ns: int | None
    """Time by which dispatches would be shorter if every rank received the mean and time were
    proportional to bytes."""
    wait_ns: int
    """Wait in combines that follow longer expert work, summed over ranks."""
    step_ns: int
    """Loss of the step: of each exchange, the longest exposed wait of a rank."""


class Rates(Struct, frozen=True):
    """Rates of matrix products and communication. Sums over ranks."""

    flop: int | None
    """FLOP of all products, those of recomputation and optimizer included; null if unknown."""
    model_flop: int | None
    """FLOP without recomputation and optimizer."""
    product_ns: int
    """Time of products."""
    uncounted_ns: int
    """Part of it whose FLOP are unknown."""
    tflop_s: float | None
    """FLOP / time of products; null if too much is uncounted."""
    utilisation: float | None
    """Model FLOP utilisation; null if too much is uncounted."""
    below_peak_ns: int | None
    """Time beyond that at the peak rate."""
    by_label: list[LabelRate]
    """Products by label."""
    by_module: list[ModuleRate]
    """Products by module."""
    products: list[ProductRate]
    """Products by label, module, operator, shapes and type, those with the most time."""
    communication: list[Bandwidth]
    """Bandwidth of communication."""
    experts: list[ExpertLoad]
    """Load of experts by rank."""
    expert_layers: list[ExpertLayer]
    """Load of experts by exchange, the most uneven first."""
    expert_cost: ExpertCost | None
    """Cost of uneven experts; null if no dispatch and combine were matched."""
    lower_bound: bool = False
    """Whether the FLOP are a lower bound, because some products could not be counted."""
    uncounted: list[Uncounted] = field(default_factory=list)
    """Products that could not be counted, those with the most time."""


# ---- memory


class Peak(Struct, frozen=True):
    """Bounds of the largest memory."""

    at_least: int
    """Lower bound in bytes."""
    at_most: int
    """Upper bound in bytes."""


class MemoryLine(Struct, frozen=True):
    """Memory over time."""

    at_ns: list[int]
    """Times."""
    allocated: list[int]
    """Bytes allocated."""
    reserved: list[int | None]
    """Bytes reserved."""


class AllocatorMemory(Struct, frozen=True):
    """Memory of one rank's allocator."""

    rank: int
    """Number of the rank."""
    device: int
    """Number of the GPU."""
    capacity_bytes: int | None
    """Memory of the GPU."""
    peak_bytes: int
    """Largest allocated memory."""
    reserved_bytes: int | None
    """Largest reserved memory."""
    first_bytes: int
    """Memory at the first event."""
    by_phase: Mapping[str, Peak]
    """Largest memory by phase."""
    base_bytes: int | None
    """Memory without activations of chunks."""
    chunk_bytes: tuple[int, int] | None
    """Bounds of the memory of one chunk's activations."""
    chunks: int | None
    """Most chunks whose activations it held at once."""
    ideal_chunks: int | None
    """The same in the schedule."""
    line: MemoryLine
    """Memory over time."""
    contents: MemoryContents | None = None
    """What fills it at its peak; null if single allocations are not known."""


class Memory(Struct, frozen=True):
    """Memory that the ranks' allocators held."""

    peak_bytes: int
    """Largest peak of any rank."""
    ranks: list[AllocatorMemory]
    """Memory of each rank."""


# ---- the document


class RunOrigin(Struct, frozen=True):
    """Origin of the events."""

    paths: list[str]
    """Paths as given."""
    reader: str
    """kineto or nsight; both joined by + if traces are mixed."""
    ranks: list[int]
    """Numbers of the ranks."""
    world_size: int | None
    """Ranks of the run, as far as the files show."""
    devices: list[str]
    """Names of the GPUs."""
    shapes: list[str]
    """Input shapes of the model's matrix products."""
    tokens_per_step: float | None = None
    """Tokens that the ranks' token embeddings take in a step, a mean over steps; null if no
    embedding is recorded."""
    options: list[str] | None = None
    """Options of PyTorch's profiler that the events show; null if another program recorded them."""


class PathPart(Struct, frozen=True):
    """Time of one label on one rank on the critical path, per step."""

    rank: int
    """Number of the rank."""
    label: str | None
    """Label; null for the host."""
    ns: int
    """Time."""


class ChangedStep(Struct, frozen=True):
    """Changes and the time per step that they would lead to."""

    change: str
    """The changes in words."""
    changes: tuple[str, ...]
    """The single changes."""
    measured_ns: int
    """Time of the step as recorded."""
    predicted_ns: int | None = None
    """Predicted time of a recording; null if there is no prediction."""
    predicted_range_ns: tuple[int, int] | None = None
    """Range of the prediction."""
    saves_ns: int | None = None
    """Upper bound of what the changes can give: of the step without the profiler, or as recorded if
    that is unknown; null where they are another amount of work."""
    critical_path: tuple[PathPart, ...] = ()
    """The largest parts of the new critical path."""
    rests_on: tuple[str, ...] = ()
    """Assumptions of the prediction."""
    why_not: str | None = None
    """Reason why there is no prediction."""
    peak_bytes: tuple[int, int | None] | None = None
    """Bounds of the largest memory of a rank with another number of micro-batches; null if
    unknown."""
    fits: bool | None = None
    """Whether that memory fits the GPU; null if unknown."""
    free_ns: int | None = None
    """Time of the step without the profiler; null if unknown."""
    free_predicted_ns: int | None = None
    """Predicted time without the profiler; null if unknown."""
    saves_range_ns: tuple[int, int] | None = None
    """Range of the saving; null where it is not known."""


class RoleDocument(Struct, frozen=True):
    """One kind of process, analysed as a run of its own."""

    name: str
    """Name of the role."""
    kind: str
    """trainer, rollout, inference, parameter_server, inference_worker or unknown."""
    ranks: tuple[int, ...]
    """Its ranks."""
    analysis: AnalysisDocument
    """Its analysis."""


Workload = Literal["training", "inference"]
"""What a program does with its model."""


class AnalysisDocument(Struct, frozen=True, kw_only=True):
    """Where the step's time went on every rank."""

    tracekit: str
    """Version that wrote it."""
    format: Literal["tracekit.analysis/2", "tracekit.analysis/1"]
    """Name and number of the format. In files of number 1, which are still read, savings and shares
    refer to the recorded step."""
    source: RunOrigin
    """Origin of the events."""
    ranks: list[RankFigures]
    """Figures of each rank."""
    step: Step
    """The step time, which savings and predictions refer to."""
    workload: Workload | None = None
    """``inference`` if the model only runs forward, ``training`` if it also runs backwards; null if
    the labels do not show it."""
    findings: tuple[Finding, ...]
    """What costs time, why and what to do, those with the largest saving first."""
    total: Figures
    """Figures of all ranks together: times are sums, shares are ratios of these sums."""
    schedule: ComparedSchedule | None
    """The pipeline compared with its ideal; null without one."""
    lanes: list[Lane] | UnsetType = UNSET
    """Time by phase and label, if there is no schedule that holds them."""
    critical_path: list[PathSegment] | UnsetType = UNSET
    """Segments of the critical path, with --show critical-path."""
    critical_path_ns: PathTotals | UnsetType = UNSET
    """Totals of the critical path, with --show critical-path."""
    what_if: list[ChangedStep] | UnsetType = UNSET
    """Predictions for changes, with --change or --what-if."""
    by: ByTable | UnsetType = UNSET
    """Busy time by layer, module, annotation or shape, with --by."""
    main_role: str | UnsetType = UNSET
    """Role that ranks, total and schedule are of, where ranks have several processes."""
    roles: list[RoleDocument] | UnsetType = UNSET
    """Kinds of processes, where ranks have several."""
    iterations: list[Iteration] | UnsetType = UNSET
    """Iterations of an RL loop."""
    weight_updates: list[WeightUpdate] | UnsetType = UNSET
    """Weight updates."""
    phases: list[PhaseBand] | UnsetType = UNSET
    """Phases of each process, in a run with iterations."""
    late: LateDocument | UnsetType = UNSET
    """Lateness and hangs over the whole run, in files of earlier versions; now a file of
    ``tracekit late``."""
    hiding: Hiding | None
    """Time that hiding communication saved and cost; null if no compute ran beside
    communication."""
    stragglers: list[Straggler]
    """Ranks that others wait for."""
    lateness: Lateness | None = None
    """Lateness by rank and step; null with one rank."""
    imbalance: Imbalance | None = None
    """Cost of unequal work; null if shapes were not recorded."""
    slowdown: Slowdown | None = None
    """Slowdown of the pipeline by stage, kind of cell and rank; null without a pipeline."""
    clocks: ClockAlignment
    """Alignment of clocks."""
    kernels: list[Kernel]
    """Kernels with the most time."""
    operators: list[Operator] = []
    """Operators with the most time, by what they were given."""
    copies: list[Copy]
    """Copies by rank and label."""
    reload: Reload | None
    """The weight update; null without one."""
    rates: Rates | None
    """Rates of matrix products and communication."""
    memory: Memory | None
    """Memory of the allocators; null if it was not recorded."""
    warnings: tuple[Notice, ...]
    """Notices."""
