"""Findings about steps that stand out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit._util.text import ranks_named, short_ms
from tracekit.documents.analysis import StepTime
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, Place
from tracekit.findings.context import Context, places_of
from tracekit.findings.kind import FindingKind

MIN_EXTRA_SHARE = 0.1
"""Share of a slow step's excess from which an activity that the others lack explains it."""
COPY_TO_HOST = r"(?i)DtoH|DeviceToHost|Device -> (Host|Pageable|Pinned)"
"""Names of copies from the GPU to the host."""
MIN_TIMES_DELAYED = 2.0
"""What sequences that decode wait for prefills over the usual time of a decode step, from which it is
a finding."""
MIN_TIMES_MORE_WORK = 1.5
"""Forward kernels of a step over those of the others, from which it did something else as well (an
evaluation)."""


class SlowStep(FindingKind, frozen=True, kw_only=True):
    """A step takes longer than the others."""

    code = "slow_step"
    case = "unknown"
    title = "slow step"
    of_single_steps = True

    step: int | None
    time_ns: int
    usual_ns: int
    excess_ns: int
    recorded_steps: int
    mean_ns: int
    share_of: str

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        if context.analysis.step_kinds:  # steps differ by their kinds, each of which has a tail
            return
        usual_ns = context.step.time_ns or 0
        # What only the first step does may be start-up, and what only the last one does the end of the
        # recording.
        ends = (
            (context.step.per_step[0], context.step.per_step[-1]) if context.step.per_step else ()
        )
        for step in context.step.unusual:
            if step.time_ns <= usual_ns or step in ends:
                continue
            excess_ns = step.time_ns - usual_ns
            cost_ns = excess_ns / len(context.step.per_step)
            # Of what the run spends on a step: it may be more than an ordinary one takes.
            mean_ns = sum(each.time_ns for each in context.step.per_step) / len(
                context.step.per_step
            )
            late_ranks = late_ranks_of_step(context, step, excess_ns)
            kind, evidence = _cause(context, step, excess_ns, late_ranks)
            yield kind(
                cost_ns=round(cost_ns),
                share=cost_ns / mean_ns,
                ranks=late_ranks,
                steps=() if step.step is None else (step.step,),
                where=_places(context, step),
                step=step.step,
                time_ns=step.time_ns,
                usual_ns=usual_ns,
                excess_ns=excess_ns,
                recorded_steps=len(context.step.per_step),
                mean_ns=round(mean_ns),
                share_of="mean step",
                saves_ns=round(cost_ns),
                saves_range_ns=(0, round(cost_ns)),
                certain="bounded",
                **evidence,
            )

    def text(self) -> str:
        return f"{self._takes}{self._while_others_wait}"

    def advice(self) -> str:
        return f"look at step {self._number} in the timeline: what it did and the others did not"

    @property
    def _number(self) -> str:
        return "unknown" if self.step is None else f"{self.step:,}"

    @property
    def _takes(self) -> str:
        return f"step {self._number} takes {short_ms(self.time_ns)}, the others {short_ms(self.usual_ns)}"

    @property
    def _while_others_wait(self) -> str:
        """For whom the others wait in it; empty if nobody comes late to it."""
        return f"; the others wait for {ranks_named(self.ranks)}" if self.ranks else ""


class StepWithCheckpoint(SlowStep, frozen=True, kw_only=True):
    """It writes a checkpoint."""

    case = "checkpoint"
    training_only = True

    copies_to_host: int

    def text(self) -> str:
        return (
            f"{self._takes}: it copies the weights to the host and writes them "
            f"(checkpoint){self._while_others_wait}"
        )

    def advice(self) -> str:
        return (
            "save asynchronously (`torch.distributed.checkpoint.async_save`), from pinned "
            "memory, or less often"
        )


class StepWithEvaluation(SlowStep, frozen=True, kw_only=True):
    """It evaluates as well."""

    case = "evaluation"
    training_only = True

    forward_events: int
    usual_forward_events: int

    def text(self) -> str:
        return (
            f"{self._takes}: it also runs {self.forward_events:,} forward kernels without "
            f"a backward (evaluation){self._while_others_wait}"
        )

    def advice(self) -> str:
        return "leave evaluation out of the timed steps, or evaluate less often or elsewhere"


class StepWithActivity(SlowStep, frozen=True, kw_only=True):
    """The host does something for longer in it than in others."""

    extra_ns: int

    @property
    def _extra(self) -> str:
        return short_ms(self.extra_ns)


class StepThatCompiles(StepWithActivity, frozen=True, kw_only=True):
    """It compiles."""

    case = "compile"

    def text(self) -> str:
        return f"{self._takes}: torch.compile compiles in it for {self._extra}{self._while_others_wait}"

    def advice(self) -> str:
        return "run every shape once before the loop, or mark changing dimensions as dynamic"


class StepThatLoadsData(StepWithActivity, frozen=True, kw_only=True):
    """It waits longer for its batch."""

    case = "data_loading"

    def text(self) -> str:
        batch = "input" if self.run.is_inference else "batch"
        return (
            f"{self._takes}: it waits {self._extra} longer for its {batch}{self._while_others_wait}"
        )

    def advice(self) -> str:
        if self.run.is_inference:
            return "prepare inputs ahead of time, in another process"
        return "use more DataLoader workers or a larger `prefetch_factor`"


class StepInPython(StepWithActivity, frozen=True, kw_only=True):
    """The host is in Python for longer."""

    case = "python"

    def text(self) -> str:
        return (
            f"{self._takes}: the host is in Python for {self._extra} (a garbage "
            f"collection, logging or file access){self._while_others_wait}"
        )

    def advice(self) -> str:
        return (
            "record with `with_stack=True`; if it is the garbage collector, call `gc.freeze()` "
            "or collect at set times"
        )


class StepThatCopies(StepWithActivity, frozen=True, kw_only=True):
    """Copies of pageable memory hold the host for longer."""

    case = "pageable_copy"

    def text(self) -> str:
        return (
            f"{self._takes}: copies of pageable host memory hold the host for "
            f"{self._extra} longer{self._while_others_wait}"
        )

    def advice(self) -> str:
        return "pin the memory (`pin_memory=True`) and copy with `non_blocking=True`"


class StepThatSearches(StepWithActivity, frozen=True, kw_only=True):
    """DDP searches for unused parameters for longer."""

    case = "unused_parameters"
    training_only = True

    def text(self) -> str:
        return (
            f"{self._takes}: DDP searches for unused parameters for {self._extra} "
            f"longer{self._while_others_wait}"
        )

    def advice(self) -> str:
        return "leave `find_unused_parameters=True` out if every parameter gets a gradient"


class StepThatAllocates(StepWithActivity, frozen=True, kw_only=True):
    """The host allocates memory for longer."""

    case = "allocator"

    def text(self) -> str:
        return (
            f"{self._takes}: the host allocates and frees GPU memory for "
            f"{self._extra} longer{self._while_others_wait}"
        )

    def advice(self) -> str:
        return (
            "run the largest shapes once before the loop, or set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
        )


class StepThatWaits(StepWithActivity, frozen=True, kw_only=True):
    """The host waits for the GPU for longer."""

    case = "host_sync"

    def text(self) -> str:
        return f"{self._takes}: the host waits {self._extra} longer for the GPU{self._while_others_wait}"

    def advice(self) -> str:
        return (
            f"look at step {self._number} in the timeline: what the GPU did in it and in no other"
        )


class StepOnCpu(StepWithActivity, frozen=True, kw_only=True):
    """Operators run on the CPU for longer."""

    case = "host_compute"

    def text(self) -> str:
        return (
            f"{self._takes}: operators run on the CPU for {self._extra} "
            f"longer{self._while_others_wait}"
        )

    def advice(self) -> str:
        return "move this work to the GPU or out of the loop"


class StepThatLaunches(StepWithActivity, frozen=True, kw_only=True):
    """The host takes longer to launch its work."""

    case = "launch_bound"

    def text(self) -> str:
        return (
            f"{self._takes}: the host takes {self._extra} longer to launch its "
            f"work{self._while_others_wait}"
        )

    def advice(self) -> str:
        return (
            f"look at step {self._number} in the timeline: operators that only it runs, or that "
            "it runs for the first time"
        )


KINDS_OF_SLOW_STEP: dict[str, type[StepWithActivity]] = {
    kind.case: kind
    for kind in (
        StepThatCompiles,
        StepThatLoadsData,
        StepInPython,
        StepThatCopies,
        StepThatSearches,
        StepThatAllocates,
        StepThatWaits,
        StepOnCpu,
        StepThatLaunches,
    )
}
"""Class of a slow step by the activity of the host that makes it so (``time_by_activity.TIMED_ACTIVITIES``)."""


class DelayedDecode(FindingKind, frozen=True, kw_only=True):
    """Sequences that decode wait for prefills much longer than for their own steps."""

    code = "slow_step"
    case = "prefill"
    title = "slow step"
    of_single_steps = True

    delay_ns: int
    usual_ns: int
    delayed_steps: int
    decode_steps: int

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        for kind in context.analysis.step_kinds:
            delay_ns = kind.delay_ns
            usual_ns = kind.interval_ns or kind.time_ns
            is_decode = kind.kind == "decode"
            if not is_decode or delay_ns is None or delay_ns < MIN_TIMES_DELAYED * usual_ns:
                continue
            cost_ns = delay_ns * kind.delayed_steps / max(len(context.step.per_step), 1)
            yield cls(
                cost_ns=round(cost_ns),
                share=context.share(cost_ns),
                delay_ns=delay_ns,
                usual_ns=usual_ns,
                delayed_steps=kind.delayed_steps,
                decode_steps=kind.steps,
                certain="possible",
            )

    def text(self) -> str:
        return (
            f"in {self.delayed_steps:,} of {self.decode_steps:,} decode steps the sequences wait "
            f"{short_ms(self.delay_ns)} for a prefill; otherwise a token takes {short_ms(self.usual_ns)}"
        )

    def advice(self) -> str:
        return (
            "compute prefills in smaller pieces beside decode (SGLang `--chunked-prefill-size`, vLLM "
            "`--max-num-batched-tokens`), or on other GPUs: tokens then come more evenly, not sooner in all"
        )


def late_ranks_of_step(context: Context, step: StepTime, excess_ns: int) -> tuple[int, ...]:
    """Return the ranks that the others wait for in the step for a part of its excess, ascending."""
    late = set()
    for row in context.analysis.stragglers:
        if row.uncertain or row.label == "pp_comm" or step.step not in row.steps:
            continue
        late_ns = row.late_ns_by_step[row.steps.index(step.step)]
        if late_ns >= MIN_EXTRA_SHARE * excess_ns:
            late.add(row.rank)
    return tuple(sorted(late))


def _cause(
    context: Context, step: StepTime, excess_ns: int, late_ranks: tuple[int, ...]
) -> tuple[type[SlowStep], dict[str, Any]]:
    """Return the class of what the step did that the others did not, and the figures that show it.

    Where the others wait for *late_ranks*, only what these did counts, in the step or at the end of
    the one before: what makes them late may happen before they begin the step.
    """
    scopes = [_StepScope(context, step.step, late_ranks)]
    if late_ranks:
        numbers = [recorded.step for recorded in context.step.per_step]
        position = numbers.index(step.step)
        if position:
            scopes.append(_StepScope(context, numbers[position - 1], late_ranks))
    causes = [cause_in_step(scope, excess_ns) for scope in scopes]
    for recurring in (StepWithCheckpoint, StepWithEvaluation):
        for kind, evidence in causes:
            if kind is recurring:
                return kind, evidence
    return max(causes, key=lambda cause: cause[1].get("extra_ns") or 0)


def cause_in_step(scope: _StepScope, excess_ns: int) -> tuple[type[SlowStep], dict[str, Any]]:
    """Return what the ranks did longer or more often in one step than in the others."""
    copied = scope.extra_copies_to_host()
    host_ns = scope.extra_host_time()
    forward = scope.events("forward")
    usual_forward = scope.usual_events("forward")
    backward, usual_backward = scope.backward_events()
    largest = max(host_ns, key=lambda code: host_ns[code], default=None)
    writes_ns = host_ns.get("pageable_copy", 0) + host_ns.get("python", 0)
    trains = not scope.context.is_inference
    if trains and copied > 0 and writes_ns >= MIN_EXTRA_SHARE * excess_ns:
        return StepWithCheckpoint, {"copies_to_host": round(copied)}
    has_more_forward = forward >= MIN_TIMES_MORE_WORK * usual_forward > 0
    has_more_backward = backward >= MIN_TIMES_MORE_WORK * usual_backward
    if trains and has_more_forward and not has_more_backward:
        return StepWithEvaluation, {
            "forward_events": round(forward),
            "usual_forward_events": round(usual_forward),
        }
    if largest is not None and host_ns[largest] >= MIN_EXTRA_SHARE * excess_ns:
        return KINDS_OF_SLOW_STEP[largest], {"extra_ns": round(host_ns[largest])}
    return SlowStep, {}


@dataclass(frozen=True)
class _StepScope:
    """One step on some ranks, to compare with the ordinary steps on the same ranks."""

    context: Context
    step: int | None
    ranks: tuple[int, ...]
    """Empty: all ranks."""

    def _of_ranks(self, table: pl.DataFrame) -> pl.DataFrame:
        return table.filter(pl.col("rank").is_in(self.ranks)) if self.ranks else table

    def _usual_steps(self) -> list[int | None]:
        return [number for number in self.context.usual_steps if number != self.step]

    def extra_copies_to_host(self) -> float:
        """Return how many more copies to the host the step has than the others, mean of ranks.

        Offloads, or copies to pageable memory.
        """
        offloads = self.events("offload") - self.usual_events("offload")
        to_host = pl.col("name").str.contains(COPY_TO_HOST)
        pageable = self._of_ranks(self.context.analysis.tables["host_time"]).filter(
            (pl.col("code") == "pageable_copy") & to_host
        )
        counts: dict[int | None, float] = dict(
            pageable.group_by("step").agg(pl.col("count").mean()).iter_rows()
        )
        usual = [counts.get(number, 0.0) for number in self._usual_steps()]
        pageable_copies = counts.get(self.step, 0.0) - sum(usual) / max(len(usual), 1)
        return max(offloads, pageable_copies)

    def extra_host_time(self) -> dict[str, float]:
        """Return by activity of the host how much longer it took in the step than in the others, mean of ranks."""
        table = self._of_ranks(self.context.analysis.tables["host_time"])
        by_step = table.group_by("code", "step").agg(pl.col("host_ns").mean())
        own = dict(
            by_step.filter(pl.col("step").eq_missing(self.step))
            .select("code", "host_ns")
            .iter_rows()
        )
        is_usual = pl.col("step").is_in(self._usual_steps(), nulls_equal=True)
        usual = dict(
            by_step.filter(is_usual).group_by("code").agg(pl.col("host_ns").mean()).iter_rows()
        )
        return {code: ns - usual.get(code, 0.0) for code, ns in own.items()}

    def events(self, label: str) -> float:
        """Return the number of GPU events of a label in the step, mean of ranks."""
        return self._events_of(self.step, label)

    def usual_events(self, label: str) -> float:
        """Return the number of GPU events of a label in an ordinary step, mean of ranks and steps."""
        counts = [self._events_of(number, label) for number in self._usual_steps()]
        return sum(counts) / max(len(counts), 1)

    def backward_events(self) -> tuple[float, float]:
        """Return the number of GPU events of the backward in the step, and in an ordinary one."""
        labels = ("dgrad", "wgrad", "backward")
        own = sum(self.events(label) for label in labels)
        return own, sum(self.usual_events(label) for label in labels)

    def _events_of(self, number: int | None, label: str) -> float:
        """Return the number of GPU events of a label in one step, mean of ranks."""
        counts = []
        for result in self.context.analysis.ranks:
            if self.ranks and result.rank not in self.ranks:
                continue
            counts += [
                scope.label_count.get(label, 0) for scope in result.per_step if scope.step == number
            ]
        return sum(counts) / max(len(counts), 1)


def _places(context: Context, step: StepTime) -> tuple[Place, ...]:
    """Return the longest stretches of idle GPU in the step."""
    table = context.analysis.tables["host_places"].filter(pl.col("step").eq_missing(step.step))
    rows = table.top_k(MAX_PLACES_PER_FINDING, by="idle_ns").select(
        "rank", "step", "start_ns", "end_ns", "name", "source"
    )
    return places_of(rows)
