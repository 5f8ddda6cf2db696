"""Findings about steps that stand out."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.findings.context import Context
from tracekit.findings.finding import EvidenceValue, Finding, Place
from tracekit.metrics.step_time import StepTime

MIN_EXTRA_SHARE = 0.1
"""Share of a slow step's excess from which an activity that the others lack explains it."""
COPY_TO_HOST = r"(?i)DtoH|DeviceToHost|Device -> (Host|Pageable|Pinned)"
"""Names of copies from the GPU to the host."""
MIN_TIMES_MORE_WORK = 1.5
"""Forward kernels of a step over those of the others, from which it did something else as well (an
evaluation)."""


def step_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each step that takes longer than the others."""
    usual_ns = context.step_ns
    for step in context.step.unusual:
        if step.time_ns <= usual_ns:
            continue
        excess_ns = step.time_ns - usual_ns
        cost_ns = excess_ns / len(context.step.per_step)
        case, evidence = _cause(context, step, excess_ns)
        yield Finding(
            code="slow_step",
            case=case,
            cost_ns=round(cost_ns),
            share=context.share(cost_ns),
            steps=() if step.step is None else (step.step,),
            where=_places(context, step),
            evidence={
                "step": step.step,
                "time_ns": step.time_ns,
                "usual_ns": usual_ns,
                "excess_ns": excess_ns,
                "recorded_steps": len(context.step.per_step),
                **evidence,
            },
            saves_ns=round(cost_ns),
            saves_range_ns=(0, round(cost_ns)),
            certain="bounded",
        )


def _cause(
    context: Context, step: StepTime, excess_ns: int
) -> tuple[str, dict[str, EvidenceValue]]:
    """Return what the step did that the others did not, and the figures that show it."""
    copied = _extra_copies_to_host(context, step)
    host_ns = _extra_host_time(context, step)
    forward, usual_forward = _events(context, step, "forward"), _usual_events(context, "forward")
    backward, usual_backward = _backward_events(context, step)
    largest = max(host_ns, key=lambda code: host_ns[code], default=None)
    if (
        copied > 0
        and (host_ns.get("pageable_copy", 0) + host_ns.get("python", 0))
        >= MIN_EXTRA_SHARE * excess_ns
    ):
        return "checkpoint", {"copies_to_host": round(copied)}
    if (
        usual_forward
        and forward >= MIN_TIMES_MORE_WORK * usual_forward
        and backward < MIN_TIMES_MORE_WORK * usual_backward
    ):
        return "evaluation", {
            "forward_events": round(forward),
            "usual_forward_events": round(usual_forward),
        }
    if largest is not None and host_ns[largest] >= MIN_EXTRA_SHARE * excess_ns:
        case = "python_with_stacks" if largest == "python" and context.has_stacks else largest
        return case, {"extra_ns": round(host_ns[largest])}
    return "unknown", {}


def _extra_copies_to_host(context: Context, step: StepTime) -> float:
    """Return how many more copies to the host the step has than the others, mean of ranks: offloads, or pageable."""
    offloads = _events(context, step, "offload") - _usual_events(context, "offload")
    to_host = pl.col("name").str.contains(COPY_TO_HOST)
    pageable = context.analysis.tables["host_time"].filter(
        (pl.col("code") == "pageable_copy") & to_host
    )
    counts: dict[int | None, float] = dict(
        pageable.group_by("step").agg(pl.col("count").mean()).iter_rows()
    )
    usual = [counts.get(number, 0.0) for number in context.usual_steps]
    pageable_copies = counts.get(step.step, 0.0) - sum(usual) / max(len(usual), 1)
    return max(offloads, pageable_copies)


def _extra_host_time(context: Context, step: StepTime) -> dict[str, float]:
    """Return by activity of the host how much longer it took in the step than in the others, mean of ranks."""
    table = context.analysis.tables["host_time"]
    by_step = table.group_by("code", "step").agg(pl.col("host_ns").mean())
    own = dict(
        by_step.filter(pl.col("step").eq_missing(step.step)).select("code", "host_ns").iter_rows()
    )
    is_usual = pl.col("step").is_in(list(context.usual_steps), nulls_equal=True)
    usual = dict(
        by_step.filter(is_usual).group_by("code").agg(pl.col("host_ns").mean()).iter_rows()
    )
    return {code: ns - usual.get(code, 0.0) for code, ns in own.items()}


def _events(context: Context, step: StepTime, label: str) -> float:
    """Return the number of GPU events of a label in the step, mean of ranks."""
    counts = [
        scope.label_count.get(label, 0)
        for result in context.analysis.rank_results
        for scope in result.per_step
        if scope.step == step.step
    ]
    return sum(counts) / max(len(counts), 1)


def _usual_events(context: Context, label: str) -> float:
    """Return the number of GPU events of a label in an ordinary step, mean of ranks and steps."""
    usual = context.step.usual
    return sum(_events(context, step, label) for step in usual) / max(len(usual), 1)


def _backward_events(context: Context, step: StepTime) -> tuple[float, float]:
    """Return the number of GPU events of the backward in the step, and in an ordinary one."""
    labels = ("dgrad", "wgrad", "backward")
    own = sum(_events(context, step, label) for label in labels)
    return own, sum(_usual_events(context, label) for label in labels)


def _places(context: Context, step: StepTime) -> tuple[Place, ...]:
    """Return the longest stretches of idle GPU in the step."""
    table = context.analysis.tables["host_places"].filter(pl.col("step").eq_missing(step.step))
    rows = table.top_k(5, by="idle_ns").select(
        "rank", "step", "start_ns", "end_ns", "name", "source"
    )
    return tuple(Place(*row) for row in rows.iter_rows())
