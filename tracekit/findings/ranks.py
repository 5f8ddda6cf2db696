"""Findings about ranks that others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tracekit._util.values import without_none
from tracekit.analysis.combine.stragglers import MIN_LATE_SHARE, SlowGpu
from tracekit.documents.analysis import Straggler, WaitCause
from tracekit.documents.findings import EvidenceValue, Finding
from tracekit.findings.communication import free_wait_share
from tracekit.findings.context import Context, saved_range_ns

CODES = {
    "slow_gpu": "slow_rank",
    "more_work": "uneven_work",
    "host_late": "late_host",
    "slow_link": "slow_link",
}
"""Code of a finding by the cause of a rank's lateness."""
SAME_TIME_SHARE = 0.95
"""Waiting without the profiler over the recorded one, from which they are the same to a reader."""


def rank_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each rank that is certainly late for a known reason; a rank once.

    Ranks that are late together for the same reason have one: mending one of them saves little.

    Stages of a pipeline wait for each other, and unequal stages are a part of the gap to the ideal:
    there only a slow GPU or a late host counts, with the part of the waiting that it explains.

    A slow GPU that makes no step of the run longer still makes its own steps longer: of a rank that
    nobody waits for, and of one of several replicas, for which only its own replica waits.
    """
    analysis = context.analysis
    slow_gpus = {gpu.rank: gpu for gpu in analysis.stragglers.slow_gpus}
    seen: set[int] = set()
    for row in analysis.stragglers.rows:  # those that cause most waiting first
        in_pipeline = row.label == "pp_comm"  # the times that prove its causes need no clock
        if row.rank in seen or not row.steps or (row.uncertain and not in_pipeline):
            continue
        cause = _main_cause(context, row)
        if cause is None or cause.cause not in CODES:
            continue
        ranks = _late_together(context, row, cause, seen)
        finding = _late_rank(context, row, cause, ranks)
        if finding.saves_ns == 0 and row.rank in slow_gpus:
            continue  # below, with what its own steps lose
        seen.update(ranks)
        yield finding
    for rank, gpu in slow_gpus.items():
        own_steps = None if rank in seen else _slow_alone(context, gpu)
        if own_steps is not None:
            yield own_steps


def _slow_alone(context: Context, gpu: SlowGpu) -> Finding | None:
    """Return the finding about a slow GPU that costs only the steps of its own rank.

    None if these are as long as those of the other ranks: who waits for it is then unknown.
    """
    step_ns_by_rank = context.step.by_rank
    own_ns = step_ns_by_rank.get(gpu.rank, 0)
    others_ns = [ns for rank, ns in step_ns_by_rank.items() if rank != gpu.rank]
    if not others_ns:
        return None
    cost_ns = min(round(own_ns - median(others_ns)), gpu.slower_ns)
    if context.share(cost_ns) < MIN_LATE_SHARE:
        return None
    evidence: dict[str, EvidenceValue] = {
        "slower_by_ns": cost_ns,
        "own_step_ns": own_ns,
        "ratio": gpu.evidence.ratio,
        "multiprocessors": gpu.evidence.multiprocessors,
        "multiprocessors_of_others": gpu.evidence.multiprocessors_of_others,
    }
    return Finding(
        code="slow_rank",
        case="own_steps",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=(gpu.rank,),
        evidence=without_none(evidence),
        saves_ns=cost_ns,
        saves_range_ns=(cost_ns, cost_ns),
        certain="measured",
    )


def _main_cause(context: Context, row: Straggler) -> WaitCause | None:
    """Return the largest known cause of a rank's lateness; None if none is known."""
    if row.label == "pp_comm":
        cause = context.analysis.stragglers.pipeline_cause(row.rank)
        return cause if cause is not None and cause.cause in ("slow_gpu", "host_late") else None
    known_causes = [cause for cause in row.why if cause.cause != "unknown"]
    return max(known_causes, key=lambda cause: cause.ns, default=None)


def _late_together(
    context: Context, row: Straggler, cause: WaitCause, named: set[int]
) -> tuple[int, ...]:
    """Return the rank and those that are late together with it for the same reason, ascending.

    Ranks that have a finding (*named*) are left out.
    """
    ranks = [row.rank]
    for other in context.analysis.stragglers.rows:
        is_together = other.rank in row.late_with and row.rank in other.late_with
        if not is_together or other.label != row.label or other.rank in named:
            continue
        if not other.steps or other.uncertain:
            continue
        cause_of_other = _main_cause(context, other)
        if cause_of_other is not None and cause_of_other.cause == cause.cause:
            ranks.append(other.rank)
    return tuple(sorted(ranks))


def _late_rank(
    context: Context, row: Straggler, cause: WaitCause, ranks: tuple[int, ...]
) -> Finding:
    """Return the finding about a late rank, or about *ranks* that are late together, of which it is the latest."""
    largest = max(row.why, key=lambda part: part.ns)
    is_all = largest is cause and row.label != "pp_comm"
    explained_share = 1.0 if is_all else cause.ns / max(row.caused_ns, 1)
    recorded_ns: float = row.late_ns
    if row.label == "pp_comm":  # stages also wait by design: only what is explained counts
        recorded_ns *= explained_share
        explained_share = 1.0
    free_share = free_wait_share(context, row.label)
    late_ns = recorded_ns * free_share
    steps_share = len(row.steps) / max(len(context.step.per_step), 1)
    cost_ns = late_ns * explained_share * steps_share
    names = ", ".join(str(rank) for rank in ranks)
    change = f"{'rank' if len(ranks) == 1 else 'ranks'} {names} like others"
    if cause.cause == "slow_link":
        change = f"links of {change}"
    # The change is made in every step: it says nothing of a rank that is late in one of them.
    predicted = None if row.kind == "one_off" else context.predict(change)
    saves_ns = None
    saves_range_ns = None
    if predicted is not None:
        saves_ns = max(predicted.saves_ns or 0, 0)
        saves_range_ns = saved_range_ns(predicted)
    evidence: dict[str, EvidenceValue] = {
        "late_ns": round(late_ns),
        "recorded_late_ns": None if free_share >= SAME_TIME_SHARE else round(recorded_ns),
        "explained_share": round(explained_share, 4),
        "late_steps": len(row.steps),
        "recorded_steps": len(context.step.per_step),
        "label": row.label,
        "ratio": cause.evidence.ratio,
        "multiprocessors": cause.evidence.multiprocessors,
        "multiprocessors_of_others": cause.evidence.multiprocessors_of_others,
        "tokens": cause.evidence.tokens,
        "tokens_of_others": cause.evidence.tokens_of_others,
    }
    case = "fewer_multiprocessors" if cause.evidence.multiprocessors else ""
    return Finding(
        code=CODES[cause.cause],
        case="together" if len(ranks) > 1 else case,
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        ranks=ranks,
        steps=tuple(step for step in row.steps if step is not None),
        evidence=without_none(evidence),
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="measured",
    )
