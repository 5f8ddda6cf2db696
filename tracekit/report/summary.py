"""The answer in a few sentences: what a team lead reads first, the same on the page and in Markdown."""

from __future__ import annotations

import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.result import Measured
from tracekit.compare import ScheduleComparison
from tracekit.schema import GAP_CAUSES, LABEL_WORDS


def sentences(analysis: Analysis) -> list[str]:
    """Say where the step went, and how far it is from its ideal.

    >>> from tracekit import analyze
    >>> sentences(analyze("sample_traces/reload"))[0].split(";")[0]
    'A step takes 104.7 ms (mean of 4 ranks)'
    """
    total = analysis.total
    if not total.budget.span_ns:
        return ["There are no GPU events in these traces."]
    return [
        _spent(analysis),
        *_bubble(total),
        *_waited(analysis),
        *_unknown(total),
        *_reloaded(analysis),
        *_compared(analysis),
    ]


def _spent(analysis: Analysis) -> str:
    total, span, ranks = analysis.total, analysis.total.budget.span_ns, len(analysis.ranks)
    count = max(1, sum(len(one.per_step) for one in analysis.ranks if one.whole.budget.span_ns))
    marked = any(one.steps for one in analysis.ranks)
    over = [counted(ranks, "rank")] if ranks > 1 else []
    steps = len({step for one in analysis.ranks for step in one.steps})
    over += [counted(steps, "step")] if steps > 1 else []
    mean = f" (mean of {' and '.join(over)})" if over else ""
    exposed = sorted(total.budget.exposed_ns.items(), key=lambda item: -item[1])
    parts = [
        f"{percent(ns / span)} is exposed {LABEL_WORDS.get(label, label)} ({label})"
        for label, ns in exposed[:2]
        if ns > 0.01 * span
    ]
    if total.idle_known:
        parts.append(f"{percent(total.budget.idle_ns / span)} is idle")
    rest = (", " + ", ".join(parts[:-1]) if parts[1:] else "") + (f" and {parts[-1]}" if parts else "")
    who = "the GPUs compute" if ranks > 1 else "the GPU computes"
    lead = f"{'A step takes' if marked else 'The trace spans'} {ms(span / count)}{mean}"
    return f"{lead}; {who} for {percent(total.budget.compute_ns / span)} of it{rest}."


def _bubble(total: Measured) -> list[str]:
    """Say how large the bubble is, where it is more than the idle time that was just said."""
    bubble = total.bubble_fraction
    if bubble is None or not total.label_ns.get("pp_comm"):
        return []
    least = "at least " if total.lower_bound else ""
    return [f"The bubble, idle time and exposed pipeline waiting together, is {least}{percent(bubble)} of the span."]


def _waited(analysis: Analysis) -> list[str]:
    """Say whom the ranks wait for, where they wait long."""
    total = analysis.total
    waits = {label: ns for label, ns in total.wait_ns.items() if ns and total.label_ns.get(label)}
    label = max(waits, key=lambda name: waits[name], default=None)
    if label is None or waits[label] < 0.05 * total.budget.span_ns:
        return []
    said = f"{percent(waits[label] / total.label_ns[label])} of the time in {label} is waiting for another rank"
    late = analysis.tables["stragglers"].filter(pl.col("label") == label).sort("caused_ns", descending=True)
    if late.is_empty():
        return [f"{said}."]
    return [f"{said}; rank {late['rank'][0]} keeps the others waiting longest."]


def _unknown(total: Measured) -> list[str]:
    other, span = total.label_ns.get("other", 0), total.budget.span_ns
    if other <= 0.01 * span:
        return []
    return [f"{percent(other / span)} of the span is work that no rule knows (other); it counts as compute."]


def _reloaded(analysis: Analysis) -> list[str]:
    found = analysis.reload
    if found is None:
        return []
    took = f"The weight update takes {ms(found.measured_ns)} for {counted(found.buckets, 'bucket')}"
    took += f" in {counted(found.rounds, 'round')}"
    if found.ideal_ns is None:
        return [f"{took}."]
    return [f"{took}; with two buffers, no waiting and the same times it would take {ms(found.ideal_ns)}."]


def sizes(held: ScheduleComparison) -> str:
    """Say how large a pipeline is: ranks, micro-batches, chunks."""
    chunks = f", {held.virtual} chunks per rank" if held.virtual > 1 else ""
    batches = counted(held.microbatches, "micro-batch")
    return f"{counted(held.pp, 'pipeline rank')}, {batches}{chunks}"


def which(held: ScheduleComparison) -> str:
    """Return which step and pipeline is shown, where there are several; else nothing."""
    runs = {(one.pipeline.ranks, one.pipeline.step) for one in held.all}
    pipelines = len({ranks for ranks, _ in runs})
    steps = len(runs) // max(1, pipelines)
    said = [f"step {held.head.pipeline.step}, the median of {steps}"] if steps > 1 else []
    said += [f"the first of {pipelines} pipelines"] if pipelines > 1 else []
    return ", ".join(said)


def _compared(analysis: Analysis) -> list[str]:
    held = analysis.schedule
    if held is None:
        return []
    how = "exactly" if held.exact else "nearly"
    said = [f"The run follows {held.name} {how}: {sizes(held)}."]
    measured, ideal = held.head.measured_ns, held.head.ideal_ns
    gap = f"It takes {ms(measured)} where its ideal, from its own times, takes {ms(ideal)}"
    causes = {name: ns for name, ns in (held.gap_ns or {}).items() if name != "unexplained"}
    most = max(causes, key=lambda name: causes[name], default=None)
    if most is not None and causes[most] > 0 and measured > ideal:
        gap += f"; of the {ms(measured - ideal)} between them, {ms(causes[most])} is {GAP_CAUSES[most].words}"
    return [*said, gap + "."]
