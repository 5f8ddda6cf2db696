"""Findings about a pipeline: its gap to the ideal by cause, and the bubble that its schedule has by itself."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.findings.communication import longest_operations
from tracekit.findings.context import Context
from tracekit.findings.finding import Finding

NOT_REMOVABLE = ("unexplained", "early_output")
"""Parts of a gap that no change removes."""
COMMUNICATION_CAUSES = ("exposed_ep", "exposed_comm")
"""Parts of a gap that are findings of their own, about the exposed label."""
MIN_BUBBLE_SHARE = 0.05
"""Share of ranks × makespan outside cells from which a schedule's own bubble is a finding."""
CHANGES = {"p2p": "hide pp_comm", "imbalance": "balance", "host": "no host delay"}
"""Change that removes a part of the gap, for its predicted saving."""


def schedule_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each part of the gap to the ideal, and for the bubble of the schedule."""
    schedule = context.analysis.schedule
    if schedule is None:
        return
    for cause, gap_ns in (schedule.gap_ns or {}).items():
        if gap_ns <= 0 or cause in NOT_REMOVABLE or cause in COMMUNICATION_CAUSES:
            continue
        change = CHANGES.get(cause)
        predicted = context.predict(change) if change is not None else None
        saves_ns = None if predicted is None else min(max(predicted.saves_ns or 0, 0), gap_ns)
        yield Finding(
            code="schedule_gap",
            case="host_under_graphs" if cause == "host" and context.uses_cuda_graphs else cause,
            cost_ns=gap_ns,
            share=context.share(gap_ns),
            where=longest_operations(context, "pp_comm") if cause == "p2p" else (),
            evidence={
                "gap_ns": sum(schedule.gap_ns.values()) if schedule.gap_ns else None,
                "part_ns": gap_ns,
                "schedule": schedule.compared_with,
                "framework": context.framework,
            },
            change=None if predicted is None else change,
            saves_ns=saves_ns,
            saves_range_ns=None if saves_ns is None else (0, saves_ns),
            certain="bounded",
        )
    head = schedule.head
    if head.match.exact and head.gap_ns is not None and head.ideal_bubble > MIN_BUBBLE_SHARE:
        bubble_ns = round(head.ideal_bubble * head.ideal_ns)
        yield Finding(
            code="schedule_gap",
            case="own_bubble",
            cost_ns=bubble_ns,
            share=context.share(bubble_ns),
            evidence={
                "bubble_share": round(head.ideal_bubble, 4),
                "schedule": schedule.compared_with,
            },
            certain="possible",
        )
