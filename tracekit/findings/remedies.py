"""Findings that a change of types, kernels or calls would help: their cost is the GPU work it changes.

What each change would make of the work was found rank by rank (``metrics.remedies``); what it saves is
what the replay of all ranks with that change predicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec
import numpy as np
import polars as pl

from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, EvidenceValue, Finding, Place
from tracekit.findings.context import Context, places_of
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.remedies import FUSE, FUSE_LOSS, select_remedies
from tracekit.metrics.alternatives import ALTERNATIVES
from tracekit.metrics.remedies.precision import NARROW
from tracekit.metrics.remedies.rows import HOST_ALONE, SLOWER_OPERATORS

MIN_SAVED_SHARE = 0.05
"""Share of the step that a change must save to be advised: predictions are not more exact than that."""
MIN_FUSED_KERNELS = 16
"""Kernels of a step in chains, below which fusing them is no advice: a mask or a position is made once."""
MIN_EXPLAINED_SHARE = 0.5
"""Share of an operator's time that has a remedy, above which its rate is no finding of its own."""


class _Changed(msgspec.Struct, frozen=True):
    """GPU work that a change concerns, per rank and step."""

    ns: float
    events: float
    whats: tuple[str, ...]
    """What is changed, that with most time first."""
    op: str | None
    """Operator that takes most of the time."""
    module: str | None


def remedy_findings(context: Context) -> Iterator[Finding]:
    """Yield the findings whose remedy is a change of the GPU's work."""
    graph = context.analysis.replay_graph
    if graph is None or graph.graph.remedies.is_empty():
        return
    yield from _precision(context)
    yield from _finding(context, "attention", "fused attention")
    yield from _finding(context, "unfused", FUSE)
    yield from _finding(context, "unfused", FUSE_LOSS, case="loss")
    yield from _finding(context, "recompute", "no recompute", case="")
    yield from _finding(context, "small_copies", "one copy", case="")
    yield from _finding(context, "optimizer", "fused optimizer")
    yield from _finding(context, "optimizer", "clip together", case="clipping")
    yield from _finding(context, "layout", "channels last", case="")
    yield from _finding(context, "small_messages", "large messages", case="")
    yield from _finding(context, "late_reduction", "reduce in backward", case="")
    yield from _finding(context, "exposed_comm", "gather once", case="gathered_twice")
    yield from _finding(context, "busy_cpu", "free cpu", case="")
    yield from _finding(context, "slow_kernel", "pad sizes", case="padding")
    for alternative in ALTERNATIVES:
        yield from _finding(context, alternative.code, alternative.change, case=alternative.case)


def operators_with_remedy(context: Context, findings: Collection[Finding]) -> set[str]:
    """Return the operators most of whose time *findings* explain, and say how to save."""
    graph = context.analysis.replay_graph
    changes = {finding.change for finding in findings}
    if graph is None or not changes:
        return set()
    events = graph.graph.events
    is_explained = np.zeros(events.height, np.bool_)
    for change in changes:
        if change is not None:
            is_explained[_changed_events(graph.graph, change)["event"].to_numpy()] = True
    ns = pl.col("end_ns") - pl.col("start_ns")
    times = events.select("op", ns=ns, explained_ns=ns * pl.Series(is_explained))
    by_op = times.group_by("op").agg(share=pl.col("explained_ns").sum() / pl.col("ns").sum())
    explained = by_op.filter(pl.col("share") > MIN_EXPLAINED_SHARE)["op"]
    return set(explained.drop_nulls().cast(pl.String))


def _precision(context: Context) -> Iterator[Finding]:
    """Yield the findings about types: TF32 first, which keeps the model as it is, then 16 bits."""
    narrow = [context.predict(change) for change in NARROW]
    further = next((predicted for predicted in narrow if predicted is not None), None)
    first = list(_finding(context, "precision", "tf32", case="tf32"))
    if first and further is not None:
        evidence = {**first[0].evidence, "further": further.change, "further_ns": further.saves_ns}
        first = [msgspec.structs.replace(first[0], evidence=evidence)]
    yield from first
    if not first and further is not None:
        yield from _finding(context, "precision", further.change, case="narrow")
    yield from _finding(context, "precision", "fp32", case="fp64")
    yield from _finding(context, "precision", "cast once")


def _finding(
    context: Context, code: str, change: str, *, case: str | None = None
) -> Iterator[Finding]:
    """Yield the finding of one change, if it saves enough."""
    graph = context.analysis.replay_graph
    if graph is None or select_remedies(graph.graph, change).is_empty():
        return
    predicted = context.predict(change)
    if predicted is None or (predicted.saves_ns or 0) < MIN_SAVED_SHARE * _step_ns(predicted):
        return
    work = _changed_work(context, change)
    if code == "unfused" and change == FUSE and work.events < MIN_FUSED_KERNELS:
        return
    evidence: dict[str, EvidenceValue] = {
        "work_ns": round(work.ns),
        "kernels_per_step": round(work.events),
        "what": ", ".join(work.whats) or None,
        "op": work.op,
        "module": work.module,
        "framework": context.framework,
        "vendor": context.vendor,
        "change_to": change,
    }
    yield Finding(
        code=code,
        case=(work.whats[0] if work.whats else "") if case is None else case,
        cost_ns=round(work.ns),
        share=context.share(work.ns),
        where=_places(context, graph.graph, change),
        evidence=evidence,
        change=change,
        saves_ns=predicted.saves_ns,
        saves_range_ns=_saved_range_ns(code, predicted),
        certain="bounded",
    )


def _saved_range_ns(code: str, predicted: ChangedStep) -> tuple[int, int] | None:
    """Return what a change saves at least and at most.

    Other processes take as much of a core as they need at the moment: how much they took during the
    recording bounds what they take otherwise.
    """
    if code == "busy_cpu":
        return 0, max(predicted.saves_ns or 0, 0)
    return predicted.saves_range_ns


def _step_ns(predicted: ChangedStep) -> int:
    """Return the step that a saving is a part of: without the profiler where that is known."""
    return predicted.measured_ns if predicted.free_ns is None else predicted.free_ns


def _changed_work(context: Context, change: str) -> _Changed:
    """Return the GPU work that a change concerns."""
    graph = context.analysis.replay_graph
    if graph is None:
        raise ValueError("the run's events were not kept")
    events = graph.graph.events
    remedies = _changed_events(graph.graph, change)
    rank_steps = max(graph.graph.measured_bounds.height, 1)
    described = remedies.select(
        "what", "ns", *(events[name].gather(remedies["event"]) for name in ("op", "module"))
    )
    described = described.group_by("what", "op", "module").agg(pl.col("ns").sum())
    described = described.cast({pl.Categorical(): pl.String})
    return _Changed(
        ns=float(remedies["ns"].sum()) / rank_steps,
        events=remedies.height / rank_steps,
        whats=tuple(_longest(described, "what")),
        op=next(iter(_longest(described, "op")), None),
        module=next(iter(_longest(described, "module")), None),
    )


def _changed_events(graph: EventGraph, change: str) -> pl.DataFrame:
    """Return the remedies of a change but those that spare the host alone, or make something slower."""
    is_changed = pl.col("what").is_in([HOST_ALONE, SLOWER_OPERATORS]).fill_null(value=False).not_()
    return select_remedies(graph, change).filter(is_changed)


def _places(context: Context, graph: EventGraph, change: str) -> tuple[Place, ...]:
    """Return the stretches of GPU work in a row that a change concerns, those with most work first.

    They are named by the operator, or kernel, that takes longest in them.
    """
    remedies = _changed_events(graph, change).unique("event").sort("event")
    facts = ("rank", "step", "start_ns", "end_ns", "name", "op")
    changed = graph.events.select(facts)[remedies["event"]].with_columns(
        remedies["ns"],
        # Rows of a rank are in order of time: among rows in a row, the row less its place here is the same.
        stretch=remedies["event"] - pl.int_range(remedies.height, eager=True),
    )
    longest_first = changed.sort("ns", descending=True, maintain_order=True)
    stretches = longest_first.group_by("rank", "step", "stretch", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.coalesce(pl.col("op", "name").cast(pl.String)).first().alias("what"),
        pl.col("ns").sum(),
    )
    most = stretches.sort("ns", "start_ns", descending=[True, False]).head(MAX_PLACES_PER_FINDING)
    clocks = context.analysis.clocks
    recorded = {
        name: clocks.to_recorded_each(most["rank"].to_numpy(), most[name].to_numpy())
        for name in ("start_ns", "end_ns")
    }
    return places_of(
        most.with_columns(**recorded).select("rank", "step", "start_ns", "end_ns", "what")
    )


def _longest(described: pl.DataFrame, column: str) -> list[str]:
    """Return the values of a column of remedies' sums, that with most time first."""
    ns_by_value: dict[str, int] = {}
    for value, ns in described.select(column, "ns").iter_rows():
        if value is not None:
            ns_by_value[value] = ns_by_value.get(value, 0) + ns
    return sorted(ns_by_value, key=lambda value: (-ns_by_value[value], value))
