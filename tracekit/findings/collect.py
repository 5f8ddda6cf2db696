"""The registry of findings, and the list that it gives for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tracekit.analysis import Analysis
from tracekit.documents.findings import Finding
from tracekit.findings.communication import exposed_findings, repeated_reductions
from tracekit.findings.context import Context
from tracekit.findings.host import host_findings
from tracekit.findings.kernels import kernel_findings
from tracekit.findings.memory import memory_findings
from tracekit.findings.pipeline import schedule_findings
from tracekit.findings.ranks import rank_findings
from tracekit.findings.recording import recording_findings
from tracekit.findings.remedies import remedy_findings
from tracekit.findings.steps import step_findings
from tracekit.findings.whole_run import whole_run_findings

REGISTRY: Mapping[str, Callable[[Context], Iterator[Finding]]] = {
    "host": host_findings,
    "steps": step_findings,
    "repeated_reduction": repeated_reductions,
    "exposed": exposed_findings,
    "ranks": rank_findings,
    "whole_run": whole_run_findings,
    "pipeline": schedule_findings,
    "remedies": remedy_findings,
    "kernels": kernel_findings,
    "memory": memory_findings,
    "recording": recording_findings,
}
"""What makes findings, by the part of the run that it looks at."""


def find(analysis: Analysis) -> tuple[Finding, ...]:
    """Return all findings of a run, those with the largest predicted saving first.

    >>> from tracekit import analyze
    >>> [finding.code for finding in find(analyze("sample_traces/slow-ddp"))][:2]
    ['exposed_comm', 'slow_rank']
    """
    context = Context(analysis)
    if not context.step_ns:
        return ()
    findings: list[Finding] = []
    for make in REGISTRY.values():
        findings += make(context)
    listed = [finding for finding in findings if _is_worth_listing(finding)]
    return tuple(sorted(listed, key=_order))


def _is_worth_listing(finding: Finding) -> bool:
    """Return whether a finding costs something, and its change is not predicted to save nothing."""
    costs_something = finding.cost_ns > 0 or bool(finding.cost_bytes)
    return costs_something and finding.saves_ns != 0


def _order(finding: Finding) -> tuple[int, int, int]:
    """Return the key by which findings are ordered: the largest saving, then cost in time, then in memory first."""
    return -(finding.saves_ns or 0), -finding.cost_ns, -(finding.cost_bytes or 0)
