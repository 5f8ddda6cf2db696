"""Findings about the host: the GPU is idle because of what the host does.

Once a synchronisation, an allocation or a slow loader is gone, the host runs ahead of the GPU
again. So a saving is not the time of the offending calls: it is what the replay of all ranks
without them predicts. Where no events were kept for it, the step would take between the GPU's own
work and the host's own time without them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.documents.analysis import Budget
from tracekit.documents.findings import (
    MAX_PLACES_PER_FINDING,
    MIN_SHARE_TO_SHOW,
    EvidenceValue,
    Finding,
    Place,
)
from tracekit.findings.context import Context, places_of, saved_range_ns
from tracekit.findings.synchronisations import runs_operator, who_waits
from tracekit.graph.changes import HOST_CHANGES, NO_LAUNCH_DELAY
from tracekit.graph.constants import HOST_VARIATION
from tracekit.graph.remedies import KNOWN_SHAPES, select_remedies
from tracekit.metrics.remedies.work import PATTERNS
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

OFFENCES = (
    "compile",
    "data_loading",
    "unused_parameters",
    "pageable_copy",
    "allocator",
    "host_sync",
    "host_compute",
    "python",
)
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


class _StepMeans:
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
    for result in context.analysis.rank_results:
        for timed in result.timed_steps:
            if timed.step in context.usual_steps and timed.time_ns is not None:
                budgets.append(timed.budget)
    return budgets


def exposed_pageable_share(context: Context) -> float:
    """Return the share of the exposed time of copies that is of pageable memory, 0 to 1."""
    if context.analysis.tables["host_time"].is_empty():
        return 0.0
    means = _StepMeans(context)
    return means.pageable_ns / means.copied_ns if means.copied_ns else 0.0


def host_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each activity of the host that leaves the GPU idle."""
    if not context.analysis.total.idle_known or context.analysis.tables["host_time"].is_empty():
        return
    means = _StepMeans(context)
    if not means.time_ns:
        return
    own_ns = means.time_ns - sum(means.value(code, "host_ns") for code in OFFENCES)
    # What the host needs at least, even if nothing ever stopped it: more than the GPU's work is its
    # own limit.
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
        finding = None
        if host_ns:  # else only in steps that stand out
            finding = _offence(context, means, code, cost_ns + copied_ns, means.gpu_ns - copied_ns)
        # Idle time behind an activity that the step without it still has is launching.
        confirmed_ns = 0 if finding is None else finding.cost_ns
        launch_cost_ns += min(max(idle_ns + copied_ns - confirmed_ns, 0.0), idle_after_ns)
        if finding is None and host_ns and code == "unused_parameters":
            finding = _unused_parameters(context, means)
        if finding is not None:
            stops_to_wait |= code == "host_sync" and finding.share >= MIN_SHARE_TO_SHOW
            yield finding
    if launch_cost_ns > 0:
        yield _launch_bound(context, means, launch_cost_ns, stops_to_wait=stops_to_wait)


def _offence(
    context: Context, means: _StepMeans, code: str, cost_ns: float, gpu_ns: float
) -> Finding | None:
    """Return the finding about one activity; None if it costs nothing."""
    if cost_ns <= 0:
        return None
    change = HOST_CHANGES[code]
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
        saves_range_ns = saved_range_ns(predicted)
        # Idle time behind the activity is its cost only as far as the replay without it saves it.
        idle_ns = means.value(code, "idle_ns")
        copied_ns = means.gpu_ns - gpu_ns
        cost_ns = min(cost_ns, max(idle_ns + copied_ns, saves_ns))
    row = means.rows[code]
    evidence: dict[str, EvidenceValue] = {
        "host_ns": round(row["host_ns"]),
        "idle_ns": round(row["idle_ns"]),
        "idle_after_ns": max(round(cost_ns - row["idle_ns"]), 0),
        "calls_per_step": round(row["count"], 2),
        "steps_marked": context.step.is_marked,
        "gpu_work_ns": round(gpu_ns),
        "name": row["name"],
        "op": row["op"],
    }
    if not context.runs_pytorch:
        evidence["is_pytorch"] = False
    case = _case(context, code, row)
    if case == "no_operators":
        evidence["vendor"] = context.vendor
    is_made_by_unknown = case in ("explicit", "in_range") and context.has_unread_stacks
    if case == "stacks_not_read" or is_made_by_unknown:
        evidence["stacks_not_read"] = True
    return Finding(
        code=code,
        case=case,
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        where=_places(context, code),
        evidence=evidence,
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="bounded",
    )


def _unused_parameters(context: Context, means: _StepMeans) -> Finding:
    """Return the finding that DDP looks for unused parameters, where its walk leaves the GPU no time idle.

    The message in which ranks tell each other which parameters they used costs something, and is not
    recorded apart: the finding is listed last, without a saving.
    """
    row = means.rows["unused_parameters"]
    host_ns = round(row["host_ns"])
    cost_ns = max(round(row["idle_ns"]), 1)
    return Finding(
        code="unused_parameters",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        where=_places(context, "unused_parameters"),
        evidence={"host_ns": host_ns, "calls_per_step": round(row["count"], 2)},
        certain="possible",
    )


def _case(context: Context, code: str, row: dict[str, object]) -> str:
    """Return the variant of a finding that its texts are chosen by."""
    name = str(row["name"] or "")
    if code == "host_sync":
        op = None if row["op"] is None else str(row["op"])
        case = who_waits(context, op, name, float(str(row["count"])))
        waits = [wait for wait in _places(context, code) if wait.name == name]
        is_in_range = bool(waits) and waits[0].is_in_range
        return "in_range" if case == "explicit" and is_in_range else case
    if code == "allocator" and not context.step.is_marked:
        return "start_up"
    if code == "data_loading":
        return "workers" if "MultiProcessing" in name else "no_workers"
    return _python_case(context) if code == "python" else ""


def _python_case(context: Context) -> str:
    """Return what is known of the Python code in which the host is."""
    if any(longest.source for longest in _places(context, "python")):
        return "with_source"
    if not context.has_operators:
        return "no_operators"
    if context.has_unread_stacks:
        return "stacks_not_read"
    return "outside_stacks" if context.has_stacks else ""


def asks_for_stacks(finding: Finding) -> bool:
    """Return whether stacks that were recorded and not read would name a function of the finding.

    >>> asks_for_stacks(Finding(code="python", cost_ns=1, share=0.1, evidence={"stacks_not_read": True}))
    True
    """
    is_worth_it = finding.effect_share >= MIN_SHARE_TO_SHOW
    return is_worth_it and bool(finding.evidence.get("stacks_not_read"))


def _launch_bound(
    context: Context, means: _StepMeans, cost_ns: float, *, stops_to_wait: bool
) -> Finding:
    """Return the finding that the host only launches, and is slower at it than the GPU works.

    *stops_to_wait*: whether waits for the GPU cost time of their own. No graph holds these, nor is one
    worth much between two that follow each other soon.
    """
    waits = means.value("host_sync", "count")
    stops_to_wait |= _follow_each_other_soon(waits, means.time_ns)
    events = 0
    transfers = 0
    for result in context.analysis.rank_results:
        events += sum(result.whole.label_count.values())
        transfers += sum(result.whole.label_count.get(label, 0) for label in COMMUNICATION_LABELS)
    rank_steps = max(len(context.step.per_step), 1) * context.ranks
    events_per_step = events / rank_steps
    # A kernel of communication takes as long as it waits: that is no work of the GPU.
    works_per_step = (events - transfers) / rank_steps
    predicted = context.predict(NO_LAUNCH_DELAY)
    saves_ns = None if predicted is None else max(predicted.saves_ns or 0, 0)
    # The replay keeps the time between kernels, which those of a CUDA graph do not have.
    most_ns = max(round(context.longest_free_share * cost_ns), saves_ns or 0)
    new_shapes = _on_new_shapes(context)
    on_known_shapes = context.predict(KNOWN_SHAPES) if new_shapes else None
    if on_known_shapes is not None:
        new_shapes_ns = on_known_shapes.saves_ns or 0
        if new_shapes_ns >= MIN_SHARE_OF_LAUNCH_DELAY * (saves_ns or 0):
            return Finding(
                code="launch_bound",
                case="new_shapes",
                cost_ns=round(cost_ns),
                share=context.share(cost_ns),
                where=_places(context, "launch_bound"),
                evidence={"steps_marked": context.step.is_marked, **new_shapes},
                change=KNOWN_SHAPES,
                saves_ns=new_shapes_ns,
                saves_range_ns=saved_range_ns(on_known_shapes),
                certain="bounded",
            )
    return Finding(
        code="launch_bound",
        case="under_graphs" if context.uses_cuda_graphs else "",
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        where=_places(context, "launch_bound"),
        evidence={
            **({} if context.runs_pytorch else {"is_pytorch": False}),
            "gpu_work_ns": round(means.gpu_ns),
            "events_per_step": round(events_per_step),
            "steps_marked": context.step.is_marked,
            "mean_event_ns": round((means.compute_ns + means.copied_ns) / max(works_per_step, 1)),
            "waits_per_step": round(waits, 2),
            "stops_to_wait": stops_to_wait,
            "has_fused_optimizer": runs_operator(context, PATTERNS["fused_optimizer"]),
            **new_shapes,
        },
        change=None if predicted is None else NO_LAUNCH_DELAY,
        saves_ns=saves_ns,
        saves_range_ns=(0, most_ns),
        certain="bounded",
    )


def _follow_each_other_soon(waits: float, time_ns: float) -> bool:
    """Return whether waits of a step leave no room for graphs between them; one alone may lie at its end.

    >>> _follow_each_other_soon(630, 50e6), _follow_each_other_soon(8, 170e6), _follow_each_other_soon(1, 0.9e6)
    (True, False, False)
    """
    return waits > 1 and time_ns < waits * MIN_NS_BETWEEN_WAITS


def _on_new_shapes(context: Context) -> dict[str, EvidenceValue]:
    """Return the operator that takes much longer on each new shape, and how long; nothing if there is none."""
    graph = context.analysis.replay_graph
    if graph is None:
        return {}
    remedies = select_remedies(graph.graph, KNOWN_SHAPES)
    if remedies.is_empty():
        return {}
    # A single slow step may be the first of all, whose operators are slow on every shape.
    steps = graph.graph.events["step"]
    slow_steps = steps.gather(remedies["event"]).n_unique()
    if slow_steps < max(MIN_STEPS_ON_NEW_SHAPES, steps.n_unique() / 2):
        return {}
    predicted = context.predict(KNOWN_SHAPES)
    saves_ns = 0 if predicted is None else predicted.saves_ns or 0
    if context.share(saves_ns) < MIN_SHARE_ON_NEW_SHAPES:
        return {}
    of_op = remedies.group_by("what").agg(removed=(1 - pl.col("host_share")).sum())
    op = of_op.sort(-pl.col("removed"), "what")["what"].first()
    return {"new_shapes_op": str(op), "new_shapes_ns": saves_ns}


def _places(context: Context, code: str) -> tuple[Place, ...]:
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
