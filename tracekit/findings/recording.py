"""Findings about what a recording lacks, and what that would answer."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.errors import Notice
from tracekit.findings.context import Context
from tracekit.findings.finding import Finding
from tracekit.parsers.source_refs import missing_ranks

MAX_MISSING_NAMED = 64
"""Missing ranks that are looked for to be named."""


def is_about_unnamed_peers(notice: Notice) -> bool:
    """Return whether waits are unknown because messages do not name their peers."""
    return notice.code == "wait-unknown" and notice.values.get("case") in (
        "unnamed",
        "peers_unnamed",
    )


def recording_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding if waits are unknown because ranks are missing or messages and groups are not named."""
    analysis = context.analysis
    total = analysis.total
    unknown = [
        label
        for label, ns in total.wait_ns.items()
        if ns is None and total.budget.exposed_ns.get(label)
    ]
    if not unknown:
        return
    ranks = [result.rank for result in analysis.rank_results if result.whole.budget.span_ns]
    count, first = missing_ranks(ranks, analysis.world_size or 0, most=MAX_MISSING_NAMED)
    unnamed_peers = any(is_about_unnamed_peers(notice) for notice in analysis.notices)
    unnamed_groups = bool(analysis.tables["operations"]["group"].is_null().all())
    cases = [  # the first that holds decides
        (bool(count), "ranks"),
        (unnamed_peers, "peers"),
        (unnamed_groups, "groups"),
        (True, "sides"),
    ]
    case = next(name for holds, name in cases if holds)
    cost_ns = sum(context.step.budget.exposed_ns.get(label, 0) for label in unknown)
    yield Finding(
        code="recording",
        case=case,
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=tuple(first),
        evidence={
            "labels": ", ".join(unknown),
            "missing_ranks": count,
            "given_ranks": len(ranks),
            "world_size": analysis.world_size,
        },
        certain="possible",
    )
