"""Findings about a pipeline: its gap to the ideal by cause, and the bubble that its schedule has by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import EvidenceValue, Finding
from tracekit.findings.communication import Remedy, longest_operations
from tracekit.findings.context import Context

NOT_REMOVABLE = ("unexplained", "early_output")
"""Parts of a gap that no change removes."""
COMMUNICATION_CAUSES = ("exposed_ep", "exposed_comm")
"""Parts of a gap that are findings of their own, about the exposed label."""
MIN_BUBBLE_SHARE = 0.05
"""Share of ranks × makespan outside cells from which a schedule's own bubble is a finding."""
EARLIER_HOST = "no host delay"
CHANGES = {"imbalance": "balance", "host": EARLIER_HOST}
"""Change that removes a part of the gap, for its predicted saving; messages have several."""
HIDDEN_MESSAGES = "hide pp_comm"
FASTER_MESSAGES = "pp_comm x0.5"


def schedule_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each part of the gap to the ideal, and for the bubble of the schedule."""
    schedule = context.analysis.schedule
    if schedule is None:
        return
    gap_ns = schedule.gap_ns or {}
    for cause, part_ns in gap_ns.items():
        if part_ns <= 0 or cause in NOT_REMOVABLE or cause in COMMUNICATION_CAUSES:
            continue
        if cause == "p2p":
            yield _messages(context, gap_ns)
        else:
            yield _gap_part(context, gap_ns, cause)
    head = schedule.head
    if head.match.exact and head.gap_ns is not None and head.ideal_bubble > MIN_BUBBLE_SHARE:
        bubble_ns = round(head.ideal_bubble * head.ideal_ns)
        yield Finding(
            code="schedule_gap",
            case="own_bubble",
            cost_ns=bubble_ns,
            share=context.share(bubble_ns),
            evidence={
                "gap_part": "own_bubble",
                "bubble_share": round(head.ideal_bubble, 4),
                "schedule": schedule.compared_with,
            },
            certain="possible",
        )


def _gap_part(context: Context, gap_ns: Mapping[str, int], cause: str) -> Finding:
    """Return the finding about one part of the gap other than messages."""
    cost_ns = _cost(context, gap_ns, cause)
    change = CHANGES.get(cause)
    predicted = context.predict(change) if change is not None else None
    saves_ns = None if predicted is None else _saving(predicted)
    is_host_under_graphs = cause == "host" and context.uses_cuda_graphs
    return Finding(
        code="schedule_gap",
        case="host_under_graphs" if is_host_under_graphs else cause,
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        evidence=_evidence(context, gap_ns, cause),
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=None if saves_ns is None else (0, saves_ns),
        certain="bounded",
    )


def _messages(context: Context, gap_ns: Mapping[str, int]) -> Finding:
    """Return the finding about messages between stages, with what would save most of their time.

    Messages under compute save little where something else takes as long: the hosts, which must then
    be faster as well, or the messages themselves, for which there is too little compute.
    """
    hidden = context.predict(HIDDEN_MESSAGES)
    remedy = Remedy()
    if hidden is not None:
        remedy = _remedy_of_messages(context, hidden)
    cost_ns = _cost(context, gap_ns, "p2p")
    evidence = _evidence(context, gap_ns, "p2p")
    if hidden is not None and remedy.case == "p2p_and_host":
        cost_ns = _cost(context, gap_ns, "p2p", "host")
        evidence["messages_alone_ns"] = _saving(hidden)
    return Finding(
        code="schedule_gap",
        case=remedy.case or "p2p",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        where=longest_operations(context, "pp_comm"),
        evidence=evidence,
        change=remedy.change,
        saves_ns=remedy.saves_ns,
        saves_range_ns=remedy.saves_range_ns,
        certain=remedy.certain,
    )


def _remedy_of_messages(context: Context, hidden: ChangedStep) -> Remedy:
    """Return what to do about messages: the change that shortens what takes longest once they are hidden."""
    saves_ns = _saving(hidden)
    longest = _longest_on_path(hidden)
    other_remedy = None
    if longest == "host":
        other_remedy = _with_earlier_host(context, hidden)
    elif longest == "pp_comm":
        other_remedy = _faster_messages(context, saves_ns)
    return other_remedy or Remedy(HIDDEN_MESSAGES, saves_ns, (0, saves_ns), case="p2p")


def _with_earlier_host(context: Context, hidden: ChangedStep) -> Remedy | None:
    """Return what hidden messages and earlier launches save together; None unless it is more than both do alone."""
    host = context.predict(EARLIER_HOST)
    both = context.predict(HIDDEN_MESSAGES, EARLIER_HOST)
    if host is None or both is None:
        return None
    alone_ns = (hidden.saves_ns or 0) + (host.saves_ns or 0)
    if (both.saves_ns or 0) <= alone_ns:
        return None
    saves_ns = _saving(both)
    return Remedy(both.change, saves_ns, (0, saves_ns), case="p2p_and_host")


def _faster_messages(context: Context, hidden_saves_ns: int) -> Remedy | None:
    """Return what messages twice as fast save; None if hiding them saves as much."""
    faster = context.predict(FASTER_MESSAGES)
    saves_ns = 0 if faster is None else _saving(faster)
    if saves_ns <= hidden_saves_ns:
        return None
    return Remedy(FASTER_MESSAGES, saves_ns, (0, saves_ns), "possible", case="p2p_transfer")


def _longest_on_path(predicted: ChangedStep) -> str | None:
    """Return what takes longest on the critical path of a changed step: a label, or the host."""
    by_label: dict[str, int] = {}
    for part in predicted.critical_path:
        label = part.label or "host"
        by_label[label] = by_label.get(label, 0) + part.ns
    return max(by_label, key=lambda label: by_label[label], default=None)


def _cost(context: Context, gap_ns: Mapping[str, int], *causes: str) -> int:
    """Return what parts of the gap cost in a step without the profiler.

    The gap is of the recording: what the profiler adds is late launches and waiting for messages.
    """
    free_shares = {
        "host": context.free_idle_share,
        "p2p": context.free_exposed_share("pp_comm"),
    }
    cost_ns = 0.0
    for cause in causes:
        cost_ns += max(gap_ns.get(cause, 0), 0) * free_shares.get(cause, 1.0)
    return min(round(cost_ns), context.step_ns)


def _saving(predicted: ChangedStep) -> int:
    """Return the predicted saving; 0 if the step would take longer."""
    return max(predicted.saves_ns or 0, 0)


def _evidence(context: Context, gap_ns: Mapping[str, int], cause: str) -> dict[str, EvidenceValue]:
    """Return what a finding about a part of the gap rests on."""
    schedule = context.analysis.schedule
    return {
        "gap_ns": sum(gap_ns.values()),
        "gap_part": cause,
        "part_ns": gap_ns[cause],
        "schedule": None if schedule is None else schedule.compared_with,
        "framework": context.framework,
        "is_recorded_time": bool(context.step.profiler_ns),
    }
