"""Findings from dumps and logs of the whole run that lie beside the traces: hangs, late ranks and slow links."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.documents.late import Hang, LateRanks, SlowLink
from tracekit.findings.context import Context
from tracekit.findings.finding import EvidenceValue, Finding
from tracekit.whole_run.result import WholeRun

CODES = {"host": "late_host", "gpu": "slow_rank", None: "slow_rank"}
"""Code of a finding by the cause of a rank's lateness."""


def whole_run_findings(context: Context) -> Iterator[Finding]:
    """Yield the hang, the ranks that are late over the whole run, and the links that are slow.

    Ranks that the traces themselves show to be late are left to them; costs are per step of the long record.
    """
    run = context.analysis.whole_run
    if run is None:
        return
    if run.hang is not None and run.hang.certain:
        yield _hang(context, run.hang)
    in_traces = {row.rank for row in context.analysis.stragglers.rows if row.steps and not row.uncertain}
    for fact in run.late:
        if fact.cause != "waited_itself" and not in_traces.intersection(fact.ranks):
            yield _late_ranks(context, fact, run)
    for link in run.slow_links:
        yield _slow_link(context, link, run)


def _hang(context: Context, hang: Hang) -> Finding:
    absent = tuple(sorted([*(state.rank for state in hang.missing), *hang.no_record]))
    different = tuple(state.rank for state in hang.different)
    cost_ns = max(hang.waited_ns or 0, 1)
    return Finding(
        code="hang",
        case=hang.kind,
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=absent or different or hang.waiting,
        steps=() if hang.step is None else (hang.step,),
        evidence={
            "op": hang.op,
            "op_bytes": hang.bytes,
            "sequence": hang.sequence,
            "group": hang.group,
            "waiting_ranks": len(hang.waiting),
        },
    )


def _late_ranks(context: Context, fact: LateRanks, run: WholeRun) -> Finding:
    steps = max(run.steps.count, 1)
    cost_ns = round(fact.cost_ns / steps)
    evidence: dict[str, EvidenceValue] = {
        "late_ns": fact.late_ns,
        "kind": fact.kind,
        "period": fact.period,
        "late_steps": len(fact.steps),
        "recorded_steps": steps,
        "since_step": fact.since_step,
    }
    return Finding(
        code=CODES[fact.cause],
        case="whole_run" if fact.cause is not None else "whole_run_open",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=fact.ranks,
        steps=fact.steps,
        evidence={name: value for name, value in evidence.items() if value is not None},
        certain="possible" if fact.uncertain else "measured",
    )


def _slow_link(context: Context, link: SlowLink, run: WholeRun) -> Finding:
    cost_ns = round(link.cost_ns / max(run.steps.count, 1))
    evidence: dict[str, EvidenceValue] = {
        "op": link.op,
        "op_bytes": link.bytes,
        "group": link.group,
        "slow_ns": link.slow_ns,
        "usual_ns": link.usual_ns,
        "since_step": link.since_step,
    }
    return Finding(
        code="slow_link",
        case=link.kind,
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=link.ranks,
        evidence={name: value for name, value in evidence.items() if value is not None},
    )
