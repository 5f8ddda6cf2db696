"""The answer in a few sentences: what a team lead reads first, the same on the page and in Markdown."""

from __future__ import annotations

from tracekit.analysis import Analysis
from tracekit.analysis.result import Measured

CAUSES = {
    "order": "another order of ops",
    "imbalance": "imbalance between stages",
    "variation": "variation between micro-batches",
    "early_output": "outputs sent before a block ends",
    "p2p": "pipeline transfer and its wait",
    "exposed_ep": "exposed expert communication",
    "offload": "offload stalls",
    "exposed_comm": "other exposed communication",
    "host": "late launches",
    "other_work": "work outside the pipeline",
    "unexplained": "unexplained",
}
"""The causes of a gap in words."""


def ms(ns: float | None, digits: int = 1) -> str:
    """Nanoseconds as milliseconds.

    >>> ms(1_234_567), ms(None)
    ('1.2 ms', '–')
    """
    return "–" if ns is None else f"{ns / 1e6:,.{digits}f} ms"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as per cent.

    >>> percent(0.1234), percent(None)
    ('12.3 %', '–')
    """
    return "–" if share is None else f"{share:.{digits}%}".replace("%", " %")


def sentences(analysis: Analysis) -> list[str]:
    """Say where the step went, and how far it is from its ideal."""
    total = analysis.total
    if not total.budget.span_ns:
        return ["There are no GPU events in these traces."]
    said = [_spent(total)]
    bubble = total.bubble_fraction
    if bubble is not None:
        least = "at least " if total.lower_bound else ""
        said.append(
            f"The bubble, idle time and exposed pipeline waiting together, is {least}{percent(bubble)} of the span."
        )
    return said + _reloaded(analysis) + _compared(analysis)


def _spent(total: Measured) -> str:
    span = total.budget.span_ns
    exposed = sorted(total.budget.exposed_ns.items(), key=lambda item: -item[1])
    parts = [f"{percent(ns / span)} is exposed {label}" for label, ns in exposed[:2] if ns > 0.01 * span]
    if total.idle_known:
        parts.append(f"{percent(total.budget.idle_ns / span)} is idle")
    listed = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else "no idle is known"
    return f"The GPUs compute for {percent(total.budget.compute_ns / span)} of the time; {listed}."


def _reloaded(analysis: Analysis) -> list[str]:
    found = analysis.reload
    if found is None:
        return []
    took = f"The weight update takes {ms(found.measured_ns)} for {found.buckets} buckets in {found.rounds} rounds"
    return [f"{took}; with two buffers and the same times it would take {ms(found.ideal_ns)}."]


def _compared(analysis: Analysis) -> list[str]:
    held = analysis.schedule
    if held is None:
        return []
    how = "exactly" if held.exact else "nearly"
    chunks = f", {held.virtual} chunks a rank" if held.virtual > 1 else ""
    ranks = f"{held.pp} rank{'s' * (held.pp != 1)}"
    said = [f"The run follows {held.name} {how}: {ranks}, {held.microbatches} micro-batches{chunks}."]
    measured, ideal = held.head.measured_ns, held.head.ideal_ns
    gap = f"It takes {ms(measured)} where its ideal, from its own times, takes {ms(ideal)}"
    causes = {name: ns for name, ns in (held.gap_ns or {}).items() if name != "unexplained"}
    most = max(causes, key=lambda name: causes[name], default=None)
    if most is not None and causes[most] > 0:
        gap += f"; of the {ms(measured - ideal)} between them, {CAUSES.get(most, most)} costs {ms(causes[most])}"
    return [*said, gap + "."]
