"""Findings about the host: the GPU is idle because of what the host does.

Once a synchronisation, an allocation or a slow loader is gone, the host runs ahead of the GPU
again. So a saving is not the time of the offending calls: it is what the replay of all ranks
without them predicts. Where no events were kept for it, the step would take between the GPU's own
work and the host's own time without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from tracekit._util.text import percent, short_ms
from tracekit.documents.analysis import Budget, ChangedStep
from tracekit.documents.findings import (
    MAX_PLACES_PER_FINDING,
    MIN_SHARE_TO_SHOW,
    Effect,
    Finding,
    Place,
)
from tracekit.findings.context import Context, places_of, saved_range_ns
from tracekit.findings.kind import FindingKind, RunFacts
from tracekit.findings.phrases import graphs, how_often, or_unknown
from tracekit.findings.synchronisations import runs_operator, who_waits
from tracekit.graph.change import (
    Change,
    NoLaunchDelay,
    Remedied,
    WithoutActivity,
    WithoutWaitsIn,
)
from tracekit.graph.constants import HOST_VARIATION
from tracekit.graph.remedies import select_remedies
from tracekit.metrics.alternatives.stalls import KnownShapes
from tracekit.metrics.event_work import PATTERNS
from tracekit.metrics.host.time_by_activity import TIMED_ACTIVITIES
from tracekit.metrics.host.waiting_calls import MAX_TENSOR_HANDOVER_NS
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

OFFENCES = tuple(code for code in TIMED_ACTIVITIES if code != "launch_bound")
"""Activities of the host that can be removed or moved elsewhere; the rest is launching."""
MIN_EXCESS_TO_BE_SLOW = 0.5
"""Share of the idle time while launching by which the host alone is slower than the GPU, from which
launching is the limit whatever else the host does."""

MIN_NS_BETWEEN_WAITS = 1_000_000
"""Time of the step for each wait for the GPU, from which graphs between them hold enough launches: a
launch takes about 10 µs. By choice."""
MIN_SHARE_ON_NEW_SHAPES = 0.05
"""Share of the step that an operator takes longer on new shapes, from which it is named."""
MIN_SHARE_OF_LAUNCH_DELAY = 0.5
"""Saving of known shapes over that of launching in time, from which new shapes are why the host is late."""
MIN_STEPS_ON_NEW_SHAPES = 2
"""Steps in which it does so."""
MIN_SHARE_OF_LAUNCH_BOUND = 0.2
"""Share of the step that the GPU idles while the host launches, from which the whole step is said to be so."""
MIN_TIMES_OF_WAIT = 1.1
"""Saving of batches in time over the recorded wait for them, from which the wait is longer without the profiler."""
MIN_STEPS_FOR_SPREAD = 3
"""Steps from which what each saves tells how far a saving varies."""
QUANTILES_OF_STEPS = (0.1, 0.9)
"""Steps between which a saving's range lies at least, by what each saves."""
MOST_OF_IDLE = 0.5
"""Share of the idle time between two steps, from which a sentence says so."""
BESIDE_THE_GPU = (
    "schedule, sample and detokenize while the GPU runs (SGLang's overlap schedule, vLLM's "
    "`--async-scheduling`) or in another process"
)
"""What a server does with its host's work."""


class StepMeans:
    """Means over ranks and ordinary steps, in ns: step time, GPU work, and the host's activities.

    They are of the step without the profiler, where that is known: the GPU's work is the same, and
    the idle time that is left belongs to the host's activities as the recorded one does.
    """

    def __init__(self, context: Context) -> None:
        budgets = _usual_budgets(context)
        count = max(len(budgets), 1)
        time_ns = 0
        idle_ns = 0
        copied_ns = 0
        compute_ns = 0
        for budget in budgets:
            compute_ns += budget.compute_ns
            time_ns += budget.span_ns
            idle_ns += budget.idle_ns
            copied_ns += sum(budget.exposed_ns.get(label, 0) for label in COPY_LABELS)
        idle_share = context.free_idle_share
        self.gpu_ns = (time_ns - idle_ns) / count
        self.idle_ns = idle_share * idle_ns / count
        self.time_ns = self.gpu_ns + self.idle_ns
        self.compute_ns = compute_ns / count
        self.copied_ns = copied_ns / count
        """Exposed time of all copies."""
        table = context.analysis.tables["host_time"]
        is_usual = pl.col("step").is_in(list(context.usual_steps), nulls_equal=True)
        sums = (
            table.filter(is_usual)
            .group_by("code")
            .agg(
                pl.col("host_ns", "count").sum() / count,
                pl.col("idle_ns", "idle_after_ns").sum() * idle_share / count,
            )
        )
        # The name and the operator of the ranks that spend most time so; of equal ones the first by
        # alphabet, so that an answer can be repeated.
        names = (
            table.filter(is_usual)
            .group_by("code", pl.col("name", "op").cast(pl.String))
            .agg(pl.col("host_ns").sum())
            .sort("host_ns", "name", "op", descending=[True, False, False], nulls_last=True)
            .unique("code", keep="first", maintain_order=True)
        )
        sums = sums.join(names.select("code", "name", "op"), on="code")
        self.rows = {row["code"]: row for row in sums.iter_rows(named=True)}

    def value(self, code: str, column: str) -> float:
        """Return a mean of one activity; 0 if it never happens."""
        return float(self.rows[code][column]) if code in self.rows else 0.0

    @property
    def pageable_ns(self) -> float:
        """Exposed time of copies of pageable memory: at most as long as they hold the host."""
        return min(self.copied_ns, self.value("pageable_copy", "host_ns"))

    @property
    def launching_idle_ns(self) -> float:
        """Idle time while the host launches."""
        return self.value("launch_bound", "idle_ns")


def _usual_budgets(context: Context) -> list[Budget]:
    """Return the budgets of all ranks' ordinary steps whose time is known."""
    budgets = []
    for result in context.analysis.ranks:
        for timed in result.timed_steps:
            if timed.step in context.usual_steps and timed.time_ns is not None:
                budgets.append(timed.budget)
    return budgets


def exposed_pageable_share(context: Context) -> float:
    """Return the share of the exposed time of copies that is of pageable memory, 0 to 1."""
    if context.analysis.tables["host_time"].is_empty():
        return 0.0
    means = StepMeans(context)
    return means.pageable_ns / means.copied_ns if means.copied_ns else 0.0


def beside_the_gpu(run: RunFacts) -> str:
    """Return what a program that only runs its model forward does with its host's work."""
    if run.generates:
        return BESIDE_THE_GPU
    return "do this ahead of time, while the GPU runs, or in another process"


def run_more_at_once(run: RunFacts) -> str:
    """Return how such a program gives the GPU more work for each of its kernels."""
    return "serve more sequences at once" if run.generates else "compute more inputs at once"


def between_steps(run: RunFacts) -> str:
    """Return how much of the idle time lies between two steps; empty unless that is most of it."""
    share = run.between_steps_share
    if share is None or share < MOST_OF_IDLE:
        return ""
    return f" ({percent(share, digits=0)} of all idle time is between two steps)"


class HostFinding(FindingKind, frozen=True, kw_only=True):
    """Something that the host does while the GPU is idle."""

    of_host = True

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        if not context.analysis.total.idle_known or context.analysis.tables["host_time"].is_empty():
            return
        means = StepMeans(context)
        if not means.time_ns:
            return
        own_ns = means.time_ns - sum(means.value(code, "host_ns") for code in OFFENCES)
        # What the host needs at least, even if nothing ever stopped it: more than the GPU's work is
        # its own limit.
        excess_ns = max((1 - HOST_VARIATION) * own_ns - means.gpu_ns, 0.0)
        after_ns = sum(means.value(code, "idle_after_ns") for code in OFFENCES)
        shared_ns = min(after_ns, means.launching_idle_ns - excess_ns)
        if excess_ns >= MIN_EXCESS_TO_BE_SLOW * means.launching_idle_ns:
            shared_ns = 0.0
        launch_cost_ns = means.launching_idle_ns - shared_ns
        stops_to_wait = False
        for code in OFFENCES:
            idle_after_ns = (
                means.value(code, "idle_after_ns") / after_ns * shared_ns if after_ns else 0.0
            )
            idle_ns = means.value(code, "idle_ns") + idle_after_ns
            # Waiting for a batch costs no more than the wait.
            host_ns = means.value(code, "host_ns")
            cost_ns = min(idle_ns, host_ns) if code == "data_loading" else idle_ns
            copied_ns = means.pageable_ns if code == "pageable_copy" else 0.0
            finding: HostFinding | None = None
            if host_ns:  # else only in steps that stand out
                gpu_ns = means.gpu_ns - copied_ns
                finding = find_activity(context, means, code, cost_ns + copied_ns, gpu_ns)
            # Idle time behind an activity that the step without it still has is launching.
            confirmed_ns = 0 if finding is None else finding.cost_ns
            launch_cost_ns += min(max(idle_ns + copied_ns - confirmed_ns, 0.0), idle_after_ns)
            if finding is None and host_ns and code == "unused_parameters":
                finding = SearchBesideWork.of(context, means)
            if finding is not None:
                stops_to_wait |= code == "host_sync" and finding.share >= MIN_SHARE_TO_SHOW
                yield finding
        if launch_cost_ns > 0:
            yield LaunchBound.of(context, means, launch_cost_ns, stops_to_wait=stops_to_wait)


class RemovableActivity(HostFinding, frozen=True, kw_only=True):
    """An activity of the host that can be removed or moved elsewhere; the rest is launching."""

    host_ns: int
    idle_ns: int
    idle_after_ns: int
    calls_per_step: float
    steps_marked: bool
    gpu_work_ns: int
    name: str | None
    op: str | None
    is_pytorch: bool = True
    stacks_not_read: bool = False

    @property
    def _how_often(self) -> str:
        return how_often(self.calls_per_step, steps_marked=self.steps_marked)

    @property
    def _host_time(self) -> str:
        return short_ms(self.host_ns)

    @property
    def _cost(self) -> str:
        return short_ms(self.cost_ns)


# In the order in which their absence is named.


class DataLoading(RemovableActivity, frozen=True, kw_only=True):
    """The loop waits for batches that the DataLoader's workers prepare."""

    code = "data_loading"
    case = "workers"
    title = "data loading"
    stated_times = ("cost_ns",)
    absence = "no data stalls"

    def text(self) -> str:
        return f"the GPU waits {self._cost} for batches: the DataLoader's workers are too slow"

    def advice(self) -> str:
        return "use more workers or a larger `prefetch_factor`, or make a sample cheaper to prepare"


class DataLoadingAtWorkersPace(DataLoading, frozen=True, kw_only=True):
    """The same where the loop waits longer without the profiler, which does not slow the workers."""

    case = "workers_pace"
    stated_times = ("saves_ns",)

    def text(self) -> str:
        return (
            f"the CPU waits {self._host_time} for batches, and longer without the profiler, which slows the loop but "
            "not the DataLoader's workers: they are too slow"
        )


class BatchesTakenOver(DataLoading, frozen=True, kw_only=True):
    """The loop takes batches from the workers itself, and they are there when it asks."""

    case = "taken_over"
    stated_times = ("host_ns",)

    def text(self) -> str:
        return (
            f"the CPU takes {self._host_time} to take batches over from the DataLoader's workers; they are there when "
            "it asks"
        )

    def advice(self) -> str:
        return (
            "let a thread take them (`pin_memory=True`), or hand over fewer tensors; more workers help only if the "
            "step without the profiler is shorter than they take for a batch"
        )


class DataLoadingWithoutWorkers(DataLoading, frozen=True, kw_only=True):
    """The loop prepares batches itself."""

    case = "no_workers"

    def text(self) -> str:
        return f"the GPU waits {self._cost} for batches: the DataLoader prepares them on the main thread"

    def advice(self) -> str:
        return (
            "give the DataLoader workers (`num_workers=4` or more, `persistent_workers=True`) "
            "and `pin_memory=True`"
        )


def in_operator(operator: object) -> str:
    """Return in which operator or call the host waits; empty if it is not known.

    >>> in_operator("aten::_local_scalar_dense"), in_operator(None)
    (' in aten::item', '')
    """
    is_value = operator == "aten::_local_scalar_dense"
    return f" in {'aten::item' if is_value else operator}" if operator else ""


class HostSync(RemovableActivity, frozen=True, kw_only=True):
    """The host waits for the GPU."""

    code = "host_sync"
    title = "CPU stops"
    absence = "no sync stalls"
    quick_to_try = True

    @classmethod
    def title_of(cls, finding: Finding) -> str:
        operator = finding.evidence.get("op") or finding.evidence.get("name")
        return f"{cls.title}{in_operator(operator)}"

    def text(self) -> str:
        return (
            f"the CPU stops {self._how_often} to wait for the GPU{in_operator(self.op or self.name)}"
            f"{self._called_from}; after each stop the GPU runs out of work"
        )

    def advice(self) -> str:
        return "keep values on the GPU, and copy with `non_blocking=True`"

    @property
    def _called_from(self) -> str:
        """The function that makes the first call that is known, or the range that it is in; empty if neither is."""
        named = (shown for shown in self.where if shown.name in (self.name, self.op))
        place = next((shown for shown in named if shown.source), None)
        if place is None:
            return ""
        return f", {'inside' if place.is_in_range else 'called from'} {place.source}"


class SyncForValue(HostSync, frozen=True, kw_only=True):
    """An operator hands a value to Python."""

    case = "value"

    def advice(self) -> str:
        if self.run.is_inference:
            results = "the sampled tokens" if self.run.generates else "results"
            return (
                "keep values on the GPU (`.item()`, `if tensor`), log every N steps, and take "
                f"{results} while the next step runs"
            )
        return (
            "take `.item()`, `.cpu()`, `print(tensor)` and `if tensor` out of the loop: keep the value "
            "on the GPU, and log it every N steps"
        )


class SyncForSize(HostSync, frozen=True, kw_only=True):
    """The size of an operator's result is known to the GPU alone."""

    case = "mask"

    def advice(self) -> str:
        return (
            "avoid sizes that only the GPU knows: `torch.where` or a multiplication by the mask instead "
            "of boolean indexing and `nonzero`"
        )


class SyncOfScaler(HostSync, frozen=True, kw_only=True):
    """``GradScaler`` asks whether a gradient is infinite."""

    case = "scaler"

    def text(self) -> str:
        return f"the `GradScaler` stops the CPU {self._how_often} to ask whether a gradient is infinite"

    def advice(self) -> str:
        return "use bf16, which needs no scaler, or a fused optimizer, which takes the answer on the GPU"


class SyncOfClipping(HostSync, frozen=True, kw_only=True):
    """Gradient clipping asks whether the norm is finite."""

    case = "clipping"

    def text(self) -> str:
        return f"gradient clipping stops the CPU {self._how_often} to check the norm"

    def advice(self) -> str:
        return "leave out `error_if_nonfinite=True` and checks of the norm in Python, or check every N steps"


class SyncForCopy(HostSync, frozen=True, kw_only=True):
    """A copy waits until it is done."""

    case = "copy"

    def advice(self) -> str:
        if self.run.is_inference:
            results = "the sampled tokens" if self.run.generates else "results"
            return (
                "copy with `non_blocking=True` from or into pinned memory (`.cpu()` and `.tolist()` always "
                f"wait), and take {results} while the next step runs"
            )
        return "copy with `non_blocking=True` from or into pinned memory; `.cpu()` and `.tolist()` always wait"


class SyncForCollective(HostSync, frozen=True, kw_only=True):
    """The host waits for a collective."""

    case = "collective"

    def advice(self) -> str:
        return "let streams wait instead of the CPU (`async_op=True`, `work.wait()` without `blocking`)"


class ExplicitSync(HostSync, frozen=True, kw_only=True):
    """The program asks the host to wait."""

    case = "explicit"

    def text(self) -> str:
        return (
            f"the CPU stops {self._how_often} in {or_unknown(self.name)}{self._called_from}; after each "
            "stop the GPU runs out of work"
        )

    def advice(self) -> str:
        return "leave explicit synchronisations out of the loop (timers: use events, or one every N steps)"


class SyncInRange(ExplicitSync, frozen=True, kw_only=True):
    """The same inside an annotated range, such as one of a framework."""

    case = "in_range"

    def advice(self) -> str:
        return (
            "see what it waits for there: copies to the CPU (offload less, or into pinned memory), or a "
            "timer or check that can go"
        )


class PageableCopy(RemovableActivity, frozen=True, kw_only=True):
    """Copies from ordinary memory make the host wait."""

    code = "pageable_copy"
    title = "pageable copies"
    stated_times = ("host_ns",)
    absence = "no pageable copies"
    quick_to_try = True

    def text(self) -> str:
        return f"copies from ordinary (pageable) memory make the CPU wait for {self._host_time}"

    def advice(self) -> str:
        if self.is_pytorch:
            return (
                "pin the memory (`pin_memory=True`) and copy with `non_blocking=True`, before the "
                "step needs the data"
            )
        return "pin the memory and copy it asynchronously, before the step needs the data"


class Allocations(RemovableActivity, frozen=True, kw_only=True):
    """The host allocates and frees memory of the GPU."""

    code = "allocator"
    title = "allocations"
    stated_times = ("host_ns",)
    absence = "no allocations"
    quick_to_try = True

    def text(self) -> str:
        return (
            f"the CPU allocates and frees GPU memory {self._how_often} ({self._host_time}, "
            f"mostly in {or_unknown(self.name)}), and the GPU waits"
        )

    def advice(self) -> str:
        if self.is_pytorch:
            return (
                "remove `torch.cuda.empty_cache()` from the loop; with shapes that change, set "
                "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
            )
        return "allocate once before the loop, or take memory from a pool"


class AllocationsAtStart(Allocations, frozen=True, kw_only=True):
    """The same without marks of steps: it may be the start of the program."""

    case = "start_up"

    def text(self) -> str:
        return (
            f"the CPU allocates and frees GPU memory {self._how_often} ({self._host_time}, "
            f"mostly in {or_unknown(self.name)}); without marks of steps this may be the start of the program"
        )

    def advice(self) -> str:
        return (
            "record a few steps after the first ones, and mark them (`profiler.step()` after each)"
        )


class Compilation(RemovableActivity, frozen=True, kw_only=True):
    """``torch.compile`` compiles inside the step."""

    code = "compile"
    title = "compilation"
    stated_times = ("host_ns",)
    absence = "no compilation"

    def text(self) -> str:
        return f"torch.compile compiles inside the step for {self._host_time}"

    def advice(self) -> str:
        return (
            "mark the dimension that changes as dynamic (`dynamic=True`, `mark_dynamic`), run "
            "every shape once before, or cache compiled graphs"
        )


def _search_text(host_ns: int, *, steps_marked: bool) -> str:
    return (
        f"before each backward DDP searches the graph for unused parameters ({short_ms(host_ns)} "
        f"of the CPU {'a step' if steps_marked else 'in all'}), and the ranks tell each other which they used"
    )


SEARCH_LESS = (
    "leave `find_unused_parameters=True` out if every parameter gets a gradient; if the "
    "same ones never do, set `static_graph=True`"
)


class SearchBesideWork(HostFinding, frozen=True, kw_only=True):
    """DDP looks for parameters that the forward did not use, while the GPU works.

    The message in which ranks tell each other which parameters they used costs something, and is not
    recorded apart: the finding is listed last, without a saving.
    """

    code = "unused_parameters"
    title = "search for unused parameters"
    stated_times = ("host_ns",)
    training_only = True
    quick_to_try = True

    host_ns: int
    calls_per_step: float

    @classmethod
    def of(cls, context: Context, means: StepMeans) -> SearchBesideWork:
        """Return the finding of a run."""
        row = means.rows["unused_parameters"]
        cost_ns = max(round(row["idle_ns"]), 1)
        return cls(
            cost_ns=cost_ns,
            share=context.share(cost_ns),
            where=longest_places(context, "unused_parameters"),
            host_ns=round(row["host_ns"]),
            calls_per_step=round(row["count"], 2),
            certain="possible",
        )

    def text(self) -> str:
        return _search_text(self.host_ns, steps_marked=self.run.steps_marked)

    def advice(self) -> str:
        return SEARCH_LESS


class UnusedParameters(RemovableActivity, frozen=True, kw_only=True):
    """The same where the GPU waits for the search."""

    code = "unused_parameters"
    title = "search for unused parameters"
    stated_times = ("host_ns",)
    training_only = True
    quick_to_try = True

    def text(self) -> str:
        return _search_text(self.host_ns, steps_marked=self.steps_marked)

    def advice(self) -> str:
        return SEARCH_LESS


class HostCompute(RemovableActivity, frozen=True, kw_only=True):
    """Operators run on the CPU."""

    code = "host_compute"
    title = "work on the CPU"
    stated_times = ("cost_ns",)

    def text(self) -> str:
        text = f"the GPU is idle for {self._cost} because the CPU computes, mostly {or_unknown(self.name)}"
        return f"{text}{between_steps(self.run)}" if self.run.is_inference else text

    def advice(self) -> str:
        advice = "move this work to the GPU, or run it while the GPU works on the next step"
        if self.run.is_inference:
            return advice
        return f"{advice} (an optimizer on the CPU: offload less, or `fused`)"


class Python(RemovableActivity, frozen=True, kw_only=True):
    """The host runs Python that calls no PyTorch; which was not recorded."""

    code = "python"
    title = "CPU runs Python"
    stated_times = ("cost_ns",)

    def text(self) -> str:
        text = f"the GPU is idle for {self._cost} because the CPU runs Python that calls no PyTorch"
        return f"{text}{between_steps(self.run)}" if self.run.is_inference else text

    def advice(self) -> str:
        if self.run.is_inference:
            return f"{beside_the_gpu(self.run)}; record with `with_stack=True` to see the function"
        return (
            "record with `with_stack=True` to see the function; do tokenizing and logging ahead "
            "of time or in another process"
        )


class PythonWithoutOperators(Python, frozen=True, kw_only=True):
    """The host does something between its calls; operators were not recorded."""

    case = "no_operators"
    names_vendor = True

    def text(self) -> str:
        return (
            f"the GPU is idle for {self._cost} because the CPU does something between its calls of "
            "the GPU's library that was not recorded"
        )

    def advice(self) -> str:
        recorders = "PyTorch's profiler with CPU activities and stacks"
        if self.run.vendor == "nvidia":
            recorders = (
                "NVTX ranges or samples of its stacks in Nsight Systems, or PyTorch's profiler"
            )
        return f"record what the CPU does: {recorders}"


class PythonStacksNotRead(Python, frozen=True, kw_only=True):
    """Stacks that would name the function were recorded and not read."""

    case = "stacks_not_read"

    def advice(self) -> str:
        show = "write a page (`-o page.html`) or read the stacks (`analyze(..., stacks=True)`) to see the function"
        return f"{beside_the_gpu(self.run)}; {show}" if self.run.is_inference else show


class PythonOutsideStacks(Python, frozen=True, kw_only=True):
    """The recorded stacks name no function there."""

    case = "outside_stacks"

    def advice(self) -> str:
        if self.run.is_inference:
            return beside_the_gpu(self.run)
        return (
            "do tokenizing, logging and file access ahead of time or in another process; the "
            "recorded stacks name no function there"
        )


class PythonWithSource(Python, frozen=True, kw_only=True):
    """The function is known."""

    case = "with_source"

    def text(self) -> str:
        source = next((shown.source for shown in self.where if shown.source), "unknown")
        text = f"the GPU is idle for {self._cost} because the CPU runs Python, in {source}"
        return f"{text}{between_steps(self.run)}" if self.run.is_inference else text

    def advice(self) -> str:
        if self.run.is_inference:
            return beside_the_gpu(self.run)
        return "do this ahead of time, on another thread or process, or less often"


class LaunchBound(HostFinding, frozen=True, kw_only=True):
    """The host only launches, and is slower at it than the GPU works."""

    code = "launch_bound"
    title = "CPU starts kernels too slowly"
    rests_on_launches = True
    names_vendor = True
    least_is_unknown = True

    gpu_work_ns: int
    events_per_step: int
    steps_marked: bool
    mean_event_ns: int
    waits_per_step: float
    stops_to_wait: bool
    has_fused_optimizer: bool
    is_pytorch: bool = True
    new_shapes_op: str | None = None
    new_shapes_ns: int | None = None

    @staticmethod
    def of(
        context: Context, means: StepMeans, cost_ns: float, *, stops_to_wait: bool
    ) -> LaunchBound | PlansForNewShapes:
        """Return the finding of a run.

        *stops_to_wait*: whether waits for the GPU cost time of their own. No graph holds these, nor is
        one worth much between two that follow each other soon.
        """
        waits = means.value("host_sync", "count")
        stops_to_wait |= _follow_each_other_soon(waits, means.time_ns)
        events = 0
        transfers = 0
        for result in context.analysis.ranks:
            events += sum(result.whole.label_count.values())
            transfers += sum(
                result.whole.label_count.get(label, 0) for label in COMMUNICATION_LABELS
            )
        rank_steps = max(len(context.step.per_step), 1) * context.ranks
        events_per_step = events / rank_steps
        # A kernel of communication takes as long as it waits: that is no work of the GPU.
        works_per_step = (events - transfers) / rank_steps
        predicted = context.predict(NoLaunchDelay())
        saves_ns = None if predicted is None else max(predicted.saves_ns or 0, 0)
        # The replay keeps the time between kernels, which those of a CUDA graph do not have.
        most_ns = round(context.longest_free_share * max(cost_ns, saves_ns or 0))
        new_shapes = _on_new_shapes(context)
        on_known_shapes = context.predict(Remedied(KnownShapes.change)) if new_shapes else None
        if new_shapes is not None and on_known_shapes is not None:
            removed_ns = on_known_shapes.saves_ns or 0
            if removed_ns >= MIN_SHARE_OF_LAUNCH_DELAY * (saves_ns or 0):
                return PlansForNewShapes.of(context, on_known_shapes, *new_shapes, cost_ns)
        kind = LaunchBoundUnderGraphs if context.uses_cuda_graphs else LaunchBound
        new_shapes_op, new_shapes_ns = new_shapes or (None, None)
        return kind(
            cost_ns=round(cost_ns),
            share=context.share(cost_ns),
            where=longest_places(context, "launch_bound"),
            is_pytorch=context.runs_pytorch,
            gpu_work_ns=round(means.gpu_ns),
            events_per_step=round(events_per_step),
            steps_marked=context.step.marked,
            mean_event_ns=round((means.compute_ns + means.copied_ns) / max(works_per_step, 1)),
            waits_per_step=round(waits, 2),
            stops_to_wait=stops_to_wait,
            has_fused_optimizer=runs_operator(context, PATTERNS["fused_optimizer"]),
            new_shapes_op=new_shapes_op,
            new_shapes_ns=new_shapes_ns,
            change=None if predicted is None else NoLaunchDelay(),
            saves_ns=saves_ns,
            saves_range_ns=(0, most_ns),
            certain="bounded",
        )

    def text(self) -> str:
        mean_event = short_ms(self.mean_event_ns)
        kernels = f"{self.events_per_step:,} kernels and copies {self._per_step}"
        slower = "the CPU takes longer to start the GPU's work than the GPU takes to run it"
        if self.run.is_inference:
            return (
                f"{slower}: {kernels}, {mean_event} each on average"
                f"{between_steps(self.run)}{self._on_new_shapes}"
            )
        at_times = "at times " if self.share < MIN_SHARE_OF_LAUNCH_BOUND else ""
        return f"{at_times}{slower}: {kernels}, {mean_event} of GPU time each{self._on_new_shapes}"

    def advice(self) -> str:
        keep_shapes = ""
        if self.new_shapes_op is not None:
            keep_shapes = (
                f"; give {self.new_shapes_op} few different shapes (padded lengths, a cache of fixed "
                "size), or another kernel"
            )
        return f"{self._launch_less()}{keep_shapes}"

    def _launch_less(self) -> str:
        """Return how to launch less, without what is there already; a graph holds no wait for the GPU."""
        own_graphs = graphs(self.run.vendor)
        if self.run.is_inference:
            if between_steps(self.run):
                return beside_the_gpu(self.run)
            return (
                f"replay steps as {own_graphs}, fuse small kernels, or {run_more_at_once(self.run)}"
            )
        if not self.is_pytorch:
            return f"use {own_graphs}, or fewer and larger kernels"
        switch = ' (`torch.compile(mode="reduce-overhead")`)' if self.run.vendor else ""
        fused = "" if self.has_fused_optimizer else "fused optimizers, or "
        if self.stops_to_wait:
            return f"use {fused}larger batches; {own_graphs}{switch} once {self._waits} gone"
        return f"use {own_graphs}{switch}, {fused or 'or '}larger batches"

    @property
    def _per_step(self) -> str:
        return "a step" if self.steps_marked else "in all"

    @property
    def _waits(self) -> str:
        """The waits for the GPU as a subject with its verb: the 8 waits a step for the GPU are."""
        count = round(self.waits_per_step)
        if not count:
            return "the waits for the GPU are"
        if count == 1:
            return f"the wait {self._per_step} for the GPU is"
        return f"the {count:,} waits {self._per_step} for the GPU are"

    @property
    def _on_new_shapes(self) -> str:
        """Which operator takes longer on each new shape of its inputs, and how long; empty if there is none."""
        if self.new_shapes_op is None:
            return ""
        return (
            f"; {short_ms(self.new_shapes_ns)} of it in {self.new_shapes_op}, which takes many times as "
            "long on each new shape of its inputs"
        )


class LaunchBoundUnderGraphs(LaunchBound, frozen=True, kw_only=True):
    """The same although graphs of kernels are used."""

    case = "under_graphs"

    def text(self) -> str:
        text = (
            "the CPU takes longer to start the GPU's work than the GPU takes to run it, although "
            f"{graphs(self.run.vendor)} are used"
        )
        return f"{text}{between_steps(self.run)}" if self.run.is_inference else text

    def advice(self) -> str:
        if self.run.is_inference:
            return (
                "capture the batch sizes that still run without a graph, use whole graphs instead of "
                "piecewise ones, and do less in Python between their launches"
            )
        return "use fewer and larger graphs, and less Python between their launches"


class PlansForNewShapes(HostFinding, frozen=True, kw_only=True):
    """The host launches late because an operator builds a plan for each new shape of its inputs."""

    code = "launch_bound"
    case = "new_shapes"
    title = "CPU starts kernels too slowly"
    stated_times = ("new_shapes_ns",)
    names_vendor = True
    least_is_unknown = True

    steps_marked: bool
    new_shapes_op: str
    new_shapes_ns: int

    @classmethod
    def of(
        cls,
        context: Context,
        on_known_shapes: ChangedStep,
        op: str,
        new_shapes_ns: int,
        cost_ns: float,
    ) -> PlansForNewShapes:
        """Return the finding of a run, which would be as predicted *on_known_shapes*."""
        saves_ns = on_known_shapes.saves_ns or 0
        return cls(
            cost_ns=round(cost_ns),
            share=context.share(cost_ns),
            where=longest_places(context, "launch_bound"),
            steps_marked=context.step.marked,
            new_shapes_op=op,
            new_shapes_ns=new_shapes_ns,
            change=Remedied(KnownShapes.change),
            saves_ns=saves_ns,
            saves_range_ns=saved_range_ns(on_known_shapes),
            certain="bounded",
        )

    def text(self) -> str:
        per_step = "a step" if self.steps_marked else "in all"
        return (
            f"a plan is built for each new shape: {self.new_shapes_op} takes many times as long on each new "
            f"shape of its inputs, {short_ms(self.new_shapes_ns)} {per_step}"
        )

    def advice(self) -> str:
        return (
            f"give {self.new_shapes_op} few different shapes (padded lengths, a cache of fixed size that is used "
            "whole), or use another kernel that needs no plan (for attention FlashAttention: "
            "`torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`)"
        )


def find_activity(
    context: Context, means: StepMeans, code: str, cost_ns: float, gpu_ns: float
) -> HostFinding | None:
    """Return the finding about one activity; None if it costs nothing."""
    if cost_ns <= 0:
        return None
    row = means.rows[code]
    change = _change_without_waits(context, row) if code == "host_sync" else WithoutActivity(code)
    predicted = context.predict(change)
    saves_ns = None
    if predicted is None:
        if context.can_replay:  # it never holds a launch back
            return None
        without_ns = max(gpu_ns, means.time_ns - means.value(code, "host_ns"))
        low_ns = min(means.time_ns - without_ns, cost_ns)
        high_ns = min(means.time_ns - gpu_ns, max(cost_ns, low_ns))
        saves_range_ns: tuple[int, int] | None = (round(low_ns), round(high_ns))
    else:
        saves_ns = max(predicted.saves_ns or 0, 0)
        saves_range_ns = _range_with_steps(context, change, saved_range_ns(predicted))
        # Idle time behind the activity is its cost only as far as the replay without it saves it.
        idle_ns = means.value(code, "idle_ns")
        copied_ns = means.gpu_ns - gpu_ns
        cost_ns = min(cost_ns, max(idle_ns + copied_ns, saves_ns))
    effect = Effect(
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="bounded",
    )
    places = longest_places(context, code)
    kind = kind_of_activity(context, code, row, places)
    places_with_lines = None
    if kind in NAMED_BY_STACKS and effect.effect_share >= MIN_SHARE_TO_SHOW:
        places_with_lines = context.analysis.with_lines(places)
    stacks_read = places_with_lines is not None or not context.has_unread_stacks
    if places_with_lines is not None:
        places = places_with_lines
        kind = kind_of_activity(context, code, row, places, stacks_read=True)
    if (
        kind is DataLoading
        and saves_ns is not None
        and saves_ns > MIN_TIMES_OF_WAIT * row["host_ns"]
    ):
        kind = DataLoadingAtWorkersPace
    return kind(
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        where=places,
        host_ns=round(row["host_ns"]),
        idle_ns=round(row["idle_ns"]),
        idle_after_ns=max(round(cost_ns - row["idle_ns"]), 0),
        calls_per_step=round(row["count"], 2),
        steps_marked=context.step.marked,
        gpu_work_ns=round(gpu_ns),
        name=row["name"],
        op=row["op"],
        is_pytorch=context.runs_pytorch,
        stacks_not_read=kind is PythonStacksNotRead
        or (kind in (ExplicitSync, SyncInRange) and not stacks_read),
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="bounded",
    )


def _change_without_waits(context: Context, row: dict[str, object]) -> Change:
    """Return the change that takes the waits away that a ``host_sync`` names; all others stay."""
    graph = context.analysis.graph
    waits_in = str(row["op"] or row["name"])
    if graph is not None and waits_in in graph.graph.waiting_operators:
        return WithoutWaitsIn(waits_in)
    return WithoutActivity("host_sync")


def kind_of_activity(
    context: Context,
    code: str,
    row: dict[str, object],
    places: Sequence[Place],
    *,
    stacks_read: bool = False,
) -> type[RemovableActivity]:
    """Return the class of the finding about an activity, by what is known of its *places*.

    *stacks_read* if their stacks were read just now.
    """
    name = str(row["name"] or "")
    if code == "host_sync":
        op = None if row["op"] is None else str(row["op"])
        kind = KINDS_OF_SYNC[who_waits(context, op, name, float(str(row["count"])))]
        waits = [wait for wait in places if wait.name == name]
        is_in_range = bool(waits) and waits[0].is_in_range
        return SyncInRange if kind is ExplicitSync and is_in_range else kind
    if code == "allocator":
        return Allocations if context.step.marked else AllocationsAtStart
    if code == "data_loading":
        return _kind_of_loading(context, name, places)
    if code == "python":
        return _kind_of_python(context, places, stacks_read=stacks_read)
    return KINDS_OF_ACTIVITY[code]


KINDS_OF_ACTIVITY: dict[str, type[RemovableActivity]] = {
    kind.code: kind for kind in (Compilation, UnusedParameters, PageableCopy, HostCompute)
}
"""Class of an activity that has one alone, by its code (``time_by_activity.TIMED_ACTIVITIES``)."""
KINDS_OF_SYNC: dict[str, type[HostSync]] = {
    "mask": SyncForSize,
    "scaler": SyncOfScaler,
    "clipping": SyncOfClipping,
    "value": SyncForValue,
    "copy": SyncForCopy,
    "collective": SyncForCollective,
    "explicit": ExplicitSync,
    "": HostSync,
}
"""Class of a synchronisation by what asks for it (``synchronisations.who_waits``)."""
NAMED_BY_STACKS = (PythonStacksNotRead, PythonOutsideStacks, ExplicitSync, SyncInRange)
"""Classes that name a function of the program if stacks were recorded: they are read for it if it is shown."""


def _kind_of_python(
    context: Context, places: Sequence[Place], *, stacks_read: bool
) -> type[Python]:
    """Return the class by what is known of the Python code in which the host is."""
    if any(place.source for place in places):
        return PythonWithSource
    if not context.has_operators:
        return PythonWithoutOperators
    if context.has_unread_stacks and not stacks_read:
        return PythonStacksNotRead
    return PythonOutsideStacks if context.has_stacks else Python


def _range_with_steps(
    context: Context, change: Change, range_ns: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the range of a saving, which holds what most steps save: a host delays them by different times."""
    graph = context.analysis.graph
    if graph is None or range_ns is None:
        return range_ns
    saved_ns = graph.saved_by_step_ns([change])
    if len(saved_ns) < MIN_STEPS_FOR_SPREAD:
        return range_ns
    least_ns, most_ns = np.quantile(saved_ns, QUANTILES_OF_STEPS)
    return (
        min(range_ns[0], max(round(least_ns), 0)),
        max(range_ns[1], min(round(most_ns), context.step_ns)),
    )


def _kind_of_loading(
    context: Context, name: str, places: Sequence[Place]
) -> type[RemovableActivity]:
    """Return the class by who prepares batches, and whether they are waited for."""
    if "MultiProcessing" not in name:
        return DataLoadingWithoutWorkers
    graph = context.analysis.graph
    if graph is None or (graph.graph.events["loader_before"] >= 0).any():
        return DataLoading
    # The first batch that was waited for tells nothing of the workers' pace, and is a wait all the same.
    longest_ns = max((place.end_ns - place.start_ns for place in places), default=0)
    return DataLoading if longest_ns >= MAX_TENSOR_HANDOVER_NS else BatchesTakenOver


def _follow_each_other_soon(waits: float, time_ns: float) -> bool:
    """Return whether waits of a step leave no room for graphs between them; one alone may lie at its end.

    >>> _follow_each_other_soon(630, 50e6), _follow_each_other_soon(8, 170e6), _follow_each_other_soon(1, 0.9e6)
    (True, False, False)
    """
    return waits > 1 and time_ns < waits * MIN_NS_BETWEEN_WAITS


def _on_new_shapes(context: Context) -> tuple[str, int] | None:
    """Return the operator that takes much longer on each new shape, and how long; None if there is none."""
    graph = context.analysis.graph
    if graph is None:
        return None
    remedies = select_remedies(graph.graph, KnownShapes.change)
    if remedies.is_empty():
        return None
    # A single slow step may be the first of all, whose operators are slow on every shape.
    steps = graph.graph.events["step"]
    slow_steps = steps.gather(remedies["event"]).n_unique()
    if slow_steps < max(MIN_STEPS_ON_NEW_SHAPES, steps.n_unique() / 2):
        return None
    predicted = context.predict(Remedied(KnownShapes.change))
    saves_ns = 0 if predicted is None else predicted.saves_ns or 0
    if context.share(saves_ns) < MIN_SHARE_ON_NEW_SHAPES:
        return None
    of_op = remedies.group_by("what").agg(removed=(1 - pl.col("host_share")).sum())
    op = of_op.sort(-pl.col("removed"), "what")["what"].first()
    return str(op), saves_ns


def longest_places(context: Context, code: str) -> tuple[Place, ...]:
    """Return the places where the GPU is idle longest, first those between recorded GPU work.

    Before the first and after the last of it, work may be missing in the recording.
    """
    table = context.analysis.tables["host_places"].filter(pl.col("code") == code)
    recorded = (
        context.analysis.tables["timeline"]
        .group_by("rank")
        .agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    )
    is_inside = (pl.col("start_ns") >= pl.col("first_ns")) & (pl.col("end_ns") <= pl.col("last_ns"))
    rows = (
        table.top_k(MAX_PLACES_PER_FINDING, by="idle_ns")
        .join(recorded, on="rank", how="left", maintain_order="left")
        .sort(is_inside.fill_null(False), "idle_ns", descending=True, maintain_order=True)
    )
    return places_of(rows.select("rank", "step", "start_ns", "end_ns", "name", "source"))
