"""The answer in five lines: where the step went, what was exposed and why, the schedule, the waiting, what to do.

A line that would say nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tracekit._util.text import at_least, counted, join_with_and, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.advice import of_the_gap
from tracekit.report.remedies import BECAUSE
from tracekit.report.view.budget import LabelRow, kind_of
from tracekit.report.view.pace import Pace, pace
from tracekit.report.view.pipeline import ScheduleView
from tracekit.report.view.ranks import Straggler
from tracekit.schema import LABEL_WORDS

WORTH_SAYING = 0.01
"""Share of the span from which an exposed label is named."""
APART = 0.05
"""Share of the span from which the time between steps is worth a word: no step's own time holds it."""
AS_LATE = 0.1
"""Ranks that cause nearly as much waiting as the first, up to this share less, are named with it …"""
MOST_LATE = 2
"""… where they are no more than these: else none stands out."""
_NO_SCHEDULE = ("order-unknown", "schedule-other", "step-cut", "ranks-unknown", "pipeline-size-unknown")
"""Notices that say why a pipeline has no schedule."""


class Line(msgspec.Struct, frozen=True):
    """One line of the answer: what it is about, what it says, and the section that says more."""

    topic: str
    text: str
    target: str


class Advice(msgspec.Struct, frozen=True):
    """One thing to do next, and the whole command to copy where there is one."""

    text: str
    command: str | None = None


def answer(
    analysis: Analysis,
    *,
    labels: Sequence[LabelRow],
    schedule: ScheduleView | None,
    stragglers: Sequence[Straggler],
    advice: Sequence[Advice],
    pipeline: bool,
) -> tuple[Line, ...]:
    """Return the lines, the most important first."""
    if not analysis.total.budget.span_ns:
        said = [Line("Time", "There are no GPU events in these traces.", "warnings")]
    else:
        found = pace(analysis)
        said = [
            _spent(analysis, found),
            *_exposed(analysis, labels, pipeline=pipeline, steps=found.steps),
            *_schedule(analysis, schedule),
            *_reload(analysis),
            *_waited(analysis, stragglers),
        ]
    return (*said, *(Line("Next", one.text, "next") for one in advice[:1]))


def elsewhere(analysis: Analysis, rank: int | None) -> str:
    """Return which pipeline a rank is in, where another one is shown; else nothing.

    A story that names a rank which its picture does not show has to say where that rank is to be seen.
    """
    found = analysis.schedule
    if found is None or rank is None or rank in found.head.pipeline.ranks:
        return ""
    number = next((at for at, ranks in enumerate(found.pipelines) if rank in ranks), None)
    return "" if number is None else f"in pipeline {number}: `--pipeline {number}` shows it"


def _spent(analysis: Analysis, found: Pace) -> Line:
    total, span = analysis.total, analysis.total.budget.span_ns
    marked = any(one.steps for one in analysis.rank_results)
    apart = found.between_ns * (found.steps - 1) > APART * span / max(1, found.ranks)
    about = [said for said in (found.compared(), elsewhere(analysis, found.slowest)) if said]
    about += [f"mean of {counted(found.steps, 'step')}"] if found.steps > 1 else []
    about += [f"{ms(found.between_ns)} pass between two"] if apart else []
    lead = f"{'A step takes' if marked else 'The trace spans'} {ms(found.ns)}"
    lead += f" ({'; '.join(about)})" if about else ""
    text = f"{lead}: {join_with_and(_parts(analysis))}{', the time between steps included' if apart else ''}"
    other = total.label_ns.get("other", 0)
    if other > WORTH_SAYING * span:
        text += f"; {percent(other, span)} of the span is work that no rule knows (other), counted as compute"
    return Line("Time", f"{text}.", "budget")


def _parts(analysis: Analysis) -> list[str]:
    """Return what the span is made of, without what is not there."""
    total, span = analysis.total, analysis.total.budget.span_ns
    kinds = {kind_of(label) for label, ns in total.budget.exposed_ns.items() if ns}
    what = {"communication": "communication", "copy": "copies"}
    exposed = " or ".join(word for kind, word in what.items() if kind in kinds)
    parts = [(total.budget.compute_ns, "compute"), (sum(total.budget.exposed_ns.values()), f"exposed {exposed}")]
    said = [f"{percent(ns, span)} {name}" for ns, name in parts if ns]
    said += ["idle not known"] if not total.idle_known else []
    said += [f"{percent(total.budget.idle_ns, span)} idle"] if total.idle_known else []
    lost = total.budget.unrecorded_ns
    return [*said, *([f"{percent(lost, span)} not recorded"] if lost else [])]


def _exposed(analysis: Analysis, labels: Sequence[LabelRow], *, pipeline: bool, steps: int) -> list[Line]:
    total = analysis.total
    worst = sorted((row for row in labels if row.exposed_share > WORTH_SAYING), key=lambda row: -row.exposed_ns)
    said = [f"{LABEL_WORDS.get(row.label, row.label)} ({row.label}) {_cost(row, steps)}" for row in worst[:2]]
    text = "; ".join(said)
    if pipeline and total.bubble_fraction is not None:
        bubble = at_least(percent(total.bubble_fraction), total.lower_bound)
        text += f"{'. ' if text else ''}Bubble (idle and exposed pipeline waiting): {bubble} of the span"
    return [Line("Exposed", f"{text[:1].upper()}{text[1:]}.", "overlap")] if text else []


def _cost(row: LabelRow, steps: int) -> str:
    """Return what one exposed label costs, and why as far as that is known."""
    said = f"{ms(row.exposed_ns / steps)} per rank{' and step' * (steps > 1)}, {percent(row.exposed_share)} of the span"
    for cause, share in row.causes(most=1):
        said += f", {percent(share, digits=0)} of that because {BECAUSE[cause]}"
    return said


def _schedule(analysis: Analysis, found: ScheduleView | None) -> list[Line]:
    if found is None:
        why = [note.message for note in analysis.notices if note.code in _NO_SCHEDULE]
        return [Line("Schedule", f"Not named: {why[0]}.", "warnings")] if why else []
    measured, ideal = found.measured.makespan_ns, found.ideal.makespan_ns
    text = f"{found.name}{'' if found.exact else ', nearly'} ({found.sizes})"
    text += f": {ms(measured)} where its ideal takes {ms(ideal)}"
    causes = [rung for rung in found.gap or () if rung.kind == "more" and rung.name != "unexplained"]
    if measured > ideal and causes:
        worst = max(causes, key=lambda rung: rung.ns)
        text += f"; {of_the_gap(worst.ns, measured - ideal, 'between them', worst.name)}"
    return [Line("Schedule", f"{text}.", "schedule")]


def _reload(analysis: Analysis) -> list[Line]:
    found = analysis.reload
    if found is None:
        return []
    took = f"The weight update takes {ms(found.measured_ns)} for {counted(found.buckets, 'bucket')}"
    took += f" in {counted(found.rounds, 'round')}"
    if found.ideal_ns is not None:
        took += f"; with two buffers, no waiting and the same times it would take {ms(found.ideal_ns)}"
    return [Line("Reload", f"{took}.", "reload")]


def _waited(analysis: Analysis, stragglers: Sequence[Straggler]) -> list[Line]:
    """Name whom the ranks wait for, where they wait long."""
    total = analysis.total
    waits = {label: ns for label, ns in total.wait_ns.items() if ns and total.label_ns.get(label)}
    label = max(waits, key=lambda name: waits[name], default=None)
    if label is None or waits[label] < WORTH_SAYING * total.budget.span_ns:
        return []
    said = f"{percent(waits[label], total.label_ns[label])} of the time in {label} is waiting for another rank"
    late = [one for one in stragglers if one.label == label]
    alike = [one for one in late if one.caused_ns >= (1 - AS_LATE) * late[0].caused_ns]
    named = [
        f"rank {one.rank} ({ms(one.caused_ns)} in {counted(one.operations, 'operation')}"
        + (f"; {where})" if (where := elsewhere(analysis, one.rank)) else ")")
        for one in alike
    ]
    if 0 < len(named) <= MOST_LATE:
        said += f"; the others wait longest for {join_with_and(named)}"
    elif named:
        most, least = ms(late[0].caused_ns), ms(late[len(named) - 1].caused_ns)
        said += f"; {len(named)} ranks are waited for alike ({least} to {most} each)"
    return [Line("Waits", f"{said}.", "stragglers")]
