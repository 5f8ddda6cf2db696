"""Findings from dumps and logs of the whole run that lie beside the traces: hangs, late ranks and slow links."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit._util.values import without_none
from tracekit.documents.findings import EvidenceValue, Finding, Place
from tracekit.documents.late import Hang, LateDocument, LateRanks, SlowLink
from tracekit.findings.context import Context, places_of
from tracekit.findings.ranks import rank_findings

CODES = {"host": "late_host", "gpu": "slow_rank", None: "slow_rank"}
"""Code of a finding by the cause of a rank's lateness."""
MAX_RECORDED_PLACES = 8
"""Places in the traces that a finding lists."""


def whole_run_findings(context: Context) -> Iterator[Finding]:
    """Yield the hang, the ranks that are late over the whole run, and the links that are slow.

    Ranks that a finding of the traces names are left to it; costs are per step of the long record.
    """
    if context.analysis.whole_run is None:
        return
    run = context.analysis.whole_run.document
    if run.hang is not None and run.hang.certain:
        yield _hang(context, run.hang)
    named_ranks: set[int] = set()
    for finding in rank_findings(context):
        if finding.saves_ns != 0:
            named_ranks.update(finding.ranks)
    for fact in run.late:
        if fact.cause != "waited_itself" and not named_ranks.intersection(fact.ranks):
            yield _late_ranks(context, fact, run)
    for link in run.slow_links:
        yield _slow_link(context, link, run)


def _hang(context: Context, hang: Hang) -> Finding:
    missing = tuple(state.rank for state in hang.missing)
    is_unknown = (
        hang.kind == "missing" and not missing
    )  # who did not join may be a rank without a dump
    different = tuple(state.rank for state in hang.different)
    cost_ns = max(hang.waited_ns or 0, 1)
    return Finding(
        code="hang",
        case="no_dump" if is_unknown else hang.kind,
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=missing or hang.no_record or different or hang.waiting,
        steps=() if hang.step is None else (hang.step,),
        evidence={
            "op": hang.op,
            "op_bytes": hang.bytes,
            "sequence": hang.sequence,
            "group": hang.group,
            "waiting_ranks": len(hang.waiting),
        },
        certain="possible" if is_unknown else "measured",
    )


def _late_ranks(context: Context, fact: LateRanks, run: LateDocument) -> Finding:
    steps = max(run.steps.count, 1)
    cost_ns = round(fact.cost_ns / steps)
    evidence: dict[str, EvidenceValue] = {
        "late_ns": fact.late_ns,
        "kind": fact.kind,
        "period": fact.period,
        "late_steps": len(fact.steps),
        "recorded_steps": steps,
        "since_step": fact.since_step,
        "profiled_steps": len(fact.profiled_steps) or None,
    }
    return Finding(
        code=CODES[fact.cause],
        case="whole_run" if fact.cause is not None else "whole_run_open",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        ranks=fact.ranks,
        steps=fact.steps,
        where=_recorded_places(context, fact),
        evidence=without_none(evidence),
        saves_ns=cost_ns,
        saves_range_ns=(0, cost_ns),
        certain="possible" if fact.uncertain else "bounded",
    )


def _recorded_places(context: Context, fact: LateRanks) -> tuple[Place, ...]:
    """Return where the traces show the late steps: the operation, of the kind and size it is late at, of each rank."""
    operations = context.analysis.tables["operations"]
    of_fact = operations.filter(
        pl.col("rank").is_in(fact.ranks)
        & pl.col("step").is_in(fact.profiled_steps)
        & (pl.min_horizontal("bytes", "received") == fact.at.bytes)
    )
    first = of_fact.sort("rank", "step", "start_ns").unique(
        ["rank", "step"], keep="first", maintain_order=True
    )
    rows = first.select("rank", "step", "start_ns", "end_ns", pl.col("what").cast(pl.String)).head(
        MAX_RECORDED_PLACES
    )
    return places_of(rows)


def _slow_link(context: Context, link: SlowLink, run: LateDocument) -> Finding:
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
        evidence=without_none(evidence),
    )
