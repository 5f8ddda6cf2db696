"""Findings about what a recording lacks, and what that would answer.

What is there is decided by ``recorded``, for these findings and for the doctor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from tracekit._util.values import first_that_holds
from tracekit.documents.findings import Finding
from tracekit.errors import Notice
from tracekit.findings.context import Context
from tracekit.findings.recorded import absent_ranks, lacks_groups
from tracekit.metrics.host.time_by_activity import HOST_CODES

MAX_MISSING_NAMED = 64
"""Missing ranks that are looked for to be named."""


def is_about_unnamed_peers(notice: Notice) -> bool:
    """Return whether waits are unknown because messages do not name their peers."""
    return notice.code == "wait-unknown" and notice.values.get("case") in (
        "unnamed",
        "peers_unnamed",
    )


def capture_findings(context: Context) -> Iterator[Finding]:
    """Yield the one finding about the host and the GPU of a recording that shows how graphs are captured."""
    idle_ns = _idle_ns(context)
    yield Finding(
        code="recording",
        case="capture",
        cost_ns=idle_ns,
        share=context.share(idle_ns),
        evidence={"captured_launches": context.captured_launches},
        certain="possible",
    )


MIN_UNEXPLAINED_IDLE_SHARE = 0.05
"""Share of the step from which idle time that no finding explains is stated."""


def unexplained_idle(context: Context, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding if the GPU is idle for longer than the *findings* about the host explain.

    Idle time of a pipeline is its bubble, which the schedule explains; of several roles, their
    iterations.
    """
    analysis = context.analysis
    is_explained_elsewhere = analysis.total.pipeline or bool(analysis.role_results.roles)
    if is_explained_elsewhere or not analysis.total.idle_known:
        return
    idle_ns = _idle_ns(context)
    explained_ns = sum(finding.cost_ns for finding in findings if finding.code in HOST_CODES)
    unexplained_ns = max(idle_ns - explained_ns - _rounded_idle_ns(context), 0)
    if context.share(unexplained_ns) <= MIN_UNEXPLAINED_IDLE_SHARE:
        return
    yield Finding(
        code="recording",
        case=_idle_case(context),
        cost_ns=unexplained_ns,
        share=context.share(unexplained_ns),
        evidence={
            "idle_ns": idle_ns,
            "unexplained_ns": unexplained_ns,
            "steps_marked": context.step.is_marked,
        },
        certain="possible",
    )


COARSE_RESOLUTION_NS = 1_000
"""Resolution of the times of PyTorch before 2.1."""


def _rounded_idle_ns(context: Context) -> int:
    """Return how much of a step's idle time may be rounding: whole microseconds put one between two events.

    0 where times are finer.
    """
    steps = context.analysis.tables["steps"].select("start_ns", "end_ns")
    is_coarse = pl.all_horizontal((pl.all() % COARSE_RESOLUTION_NS == 0).all())
    if steps.is_empty() or not steps.select(is_coarse).item():
        return 0
    counts = context.analysis.tables["steps"].group_by("rank").len("steps")
    steps_of_rank: int = max(counts["steps"].to_list())
    events = max(sum(result.whole.label_count.values()) for result in context.analysis.rank_results)
    return events * COARSE_RESOLUTION_NS // steps_of_rank


def _idle_case(context: Context) -> str:
    """Return what is known of the host while the GPU is idle."""
    if not context.has_host_calls:
        return "idle_host_unknown"
    has_recorded_stacks = context.has_stacks or context.has_unread_stacks
    return "idle_with_stacks" if has_recorded_stacks else "idle"


def _idle_ns(context: Context) -> int:
    """Return the idle time of the step without the profiler; of the recorded one where that is not known."""
    free = context.step.free
    budget = context.step.budget if free is None or free.budget is None else free.budget
    return budget.idle_ns


def recording_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding if waits are unknown because ranks are missing or messages and groups are not named.

    Its cost is the exposed time of these labels: what could be saved there is not known either.
    """
    analysis = context.analysis
    total = analysis.total
    unknown_waits = [label for label, ns in total.wait_ns.items() if ns is None]
    unknown = [label for label in unknown_waits if total.budget.exposed_ns.get(label)]
    if not unknown:
        return
    count, missing = absent_ranks(analysis.sources, most=MAX_MISSING_NAMED)
    recorded_ranks = sorted({source.rank for source in analysis.sources})
    with_gpu_work = {result.rank for result in analysis.rank_results if result.whole.budget.span_ns}
    without_gpu_work = [rank for rank in recorded_ranks if rank not in with_gpu_work]
    unnamed_peers = any(is_about_unnamed_peers(notice) for notice in analysis.notices)
    groups = analysis.tables["operations"]["group"]
    unnamed_groups = all(
        lacks_groups(source, collectives=len(groups), named=len(groups) - groups.null_count())
        for source in analysis.sources
    )
    no_ranks: list[int] = []
    cases = [  # the first that holds decides: the case, and the ranks that it is about
        (count > 0, ("ranks", missing)),
        (bool(without_gpu_work), ("gpu_work", without_gpu_work)),
        (len(recorded_ranks) == 1, ("one_rank", recorded_ranks)),
        (unnamed_peers, ("peers", no_ranks)),
        (unnamed_groups, ("groups", no_ranks)),
        (True, ("sides", no_ranks)),
    ]
    case, ranks = first_that_holds(cases)
    cost_ns = sum(context.step.budget.exposed_ns.get(label, 0) for label in unknown)
    yield Finding(
        code="recording",
        case=case,
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=tuple(ranks),
        evidence={
            "labels": ", ".join(unknown),
            "exposed_ns": cost_ns,
            "missing_ranks": count,
            "given_ranks": len(recorded_ranks),
            "world_size": analysis.world_size,
        },
        certain="possible",
    )
