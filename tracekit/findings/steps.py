"""Findings about steps that stand out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tracekit.documents.analysis import StepTime
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, EvidenceValue, Finding, Place
from tracekit.findings.context import Context, places_of

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


def step_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each step that takes longer than the others."""
    if context.analysis.step_kinds:  # steps differ by their kinds, each of which has a tail
        yield from _delayed_decode(context)
        return
    usual_ns = context.step.time_ns or 0
    # What only the first step does may be start-up, and what only the last one does the end of the recording.
    ends = (context.step.per_step[0], context.step.per_step[-1]) if context.step.per_step else ()
    for step in context.step.unusual:
        if step.time_ns <= usual_ns or step in ends:
            continue
        excess_ns = step.time_ns - usual_ns
        cost_ns = excess_ns / len(context.step.per_step)
        # Of what the run spends on a step: it may be more than an ordinary one takes.
        mean_ns = sum(each.time_ns for each in context.step.per_step) / len(context.step.per_step)
        late_ranks = _late_ranks(context, step, excess_ns)
        case, evidence = _cause(context, step, excess_ns, late_ranks)
        yield Finding(
            code="slow_step",
            case=case,
            cost_ns=round(cost_ns),
            share=cost_ns / mean_ns,
            ranks=late_ranks,
            steps=() if step.step is None else (step.step,),
            where=_places(context, step),
            evidence={
                "step": step.step,
                "time_ns": step.time_ns,
                "usual_ns": usual_ns,
                "excess_ns": excess_ns,
                "recorded_steps": len(context.step.per_step),
                "mean_ns": round(mean_ns),
                "share_of": "mean step",
                **evidence,
            },
            saves_ns=round(cost_ns),
            saves_range_ns=(0, round(cost_ns)),
            certain="bounded",
        )


def _delayed_decode(context: Context) -> Iterator[Finding]:
    """Yield a finding if sequences that decode wait for prefills much longer than for their own steps."""
    for kind in context.analysis.step_kinds:
        delay_ns = kind.delay_ns
        usual_ns = kind.interval_ns or kind.time_ns
        if kind.kind != "decode" or delay_ns is None or delay_ns < MIN_TIMES_DELAYED * usual_ns:
            continue
        cost_ns = delay_ns * kind.delayed_steps / max(len(context.step.per_step), 1)
        yield Finding(
            code="slow_step",
            case="prefill",
            cost_ns=round(cost_ns),
            share=context.share(cost_ns),
            evidence={
                "delay_ns": delay_ns,
                "usual_ns": usual_ns,
                "delayed_steps": kind.delayed_steps,
                "decode_steps": kind.steps,
            },
            certain="possible",
        )


def _late_ranks(context: Context, step: StepTime, excess_ns: int) -> tuple[int, ...]:
    """Return the ranks that the others wait for in the step for a part of its excess, ascending."""
    late = set()
    for row in context.analysis.stragglers.rows:
        if row.uncertain or row.label == "pp_comm" or step.step not in row.steps:
            continue
        late_ns = row.late_ns_by_step[row.steps.index(step.step)]
        if late_ns >= MIN_EXTRA_SHARE * excess_ns:
            late.add(row.rank)
    return tuple(sorted(late))


def _cause(
    context: Context, step: StepTime, excess_ns: int, late_ranks: tuple[int, ...]
) -> tuple[str, dict[str, EvidenceValue]]:
    """Return what the step did that the others did not, and the figures that show it.

    Where the others wait for *late_ranks*, only what these did counts, in the step or at the end of
    the one before: what makes them late may happen before they begin the step.
    """
    scopes = [_StepScope(context, step.step, late_ranks)]
    if late_ranks:
        numbers = [recorded.step for recorded in context.step.per_step]
        position = numbers.index(step.step)
        if position:
            scopes.append(_StepScope(context, numbers[position - 1], late_ranks))
    causes = [_cause_in(scope, excess_ns) for scope in scopes]
    for case in ("checkpoint", "evaluation"):
        for named, evidence in causes:
            if named == case:
                return named, evidence
    return max(causes, key=lambda cause: cause[1].get("extra_ns") or 0)


def _cause_in(scope: _StepScope, excess_ns: int) -> tuple[str, dict[str, EvidenceValue]]:
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
        return "checkpoint", {"copies_to_host": round(copied)}
    has_more_forward = forward >= MIN_TIMES_MORE_WORK * usual_forward > 0
    has_more_backward = backward >= MIN_TIMES_MORE_WORK * usual_backward
    if trains and has_more_forward and not has_more_backward:
        return "evaluation", {
            "forward_events": round(forward),
            "usual_forward_events": round(usual_forward),
        }
    if largest is not None and host_ns[largest] >= MIN_EXTRA_SHARE * excess_ns:
        return largest, {"extra_ns": round(host_ns[largest])}
    return "unknown", {}


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
        for result in self.context.analysis.rank_results:
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
