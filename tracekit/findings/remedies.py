"""Findings of the catalogue of alternatives: their cost is the GPU work that an entry's change concerns.

What each change would make of the work was found rank by rank (``metrics.alternatives``); what it saves is
what the replay of all ranks with that change predicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import ClassVar

import msgspec
import numpy as np
import polars as pl

from tracekit._util.text import join_with_and, short_ms
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, Place
from tracekit.findings.context import Context, places_of
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import or_unknown, switch
from tracekit.graph.change import Remedied
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.remedies import REMEDY_CHANGES, select_remedies
from tracekit.metrics.alternatives import ALTERNATIVES, Alternative
from tracekit.metrics.alternatives.remedy import HOST_ALONE, SLOWER_OPERATORS
from tracekit.metrics.attainable import USUAL, rates_of_gpu

MIN_EXPLAINED_SHARE = 0.5
"""Share of an operator's time that has a remedy, above which its rate is no finding of its own."""


class ChangedWork(msgspec.Struct, frozen=True):
    """GPU work that a change concerns, per rank and step."""

    ns: float
    events: float
    whats: tuple[str, ...]
    """What is changed, that with most time first."""
    op: str | None
    """Operator that takes most of the time."""
    module: str | None


class ChangeOfWork(FindingKind, frozen=True, kw_only=True):
    """GPU work that an entry of the catalogue would spare."""

    entry: ClassVar[Alternative]
    names_vendor = True

    work_ns: int
    kernels_per_step: int
    what: str | None
    op: str | None
    module: str | None
    framework: str | None
    change_to: str
    further: str | None = None
    """Change that would save more of the same work."""
    further_ns: int | None = None
    rates: str | None = None
    """Whose rates its price rests on, where the run itself does not show them."""

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        entry = cls.entry
        graph = context.analysis.graph
        if graph is None or select_remedies(graph.graph, entry.change).is_empty():
            return
        found = [finding.entry for finding in context.found if isinstance(finding, ChangeOfWork)]
        if any(entry.change in other.further for other in found):
            return
        is_known = entry.change in REMEDY_CHANGES
        change = Remedied(entry.change, None if is_known else entry.rests_on)
        predicted = context.predict(change)
        if predicted is None or (predicted.saves_ns or 0) < entry.min_saved_share * _step_ns(
            predicted
        ):
            return
        work = changed_work(context, entry.change)
        if work.events < entry.min_kernels:
            return
        saves_range_ns = predicted.saves_range_ns
        if entry.is_bound:
            saves_range_ns = (0, max(predicted.saves_ns or 0, 0))
        further = [context.predict(Remedied(other)) for other in entry.further]
        most = next((other for other in further if other is not None), None)
        case = work.whats[0] if entry.case_is_what and work.whats else ""
        yield kind_of_alternative(entry, case)(
            variant=case,
            cost_ns=round(work.ns),
            share=context.share(work.ns),
            where=longest_places(context, graph.graph, entry.change),
            work_ns=round(work.ns),
            kernels_per_step=round(work.events),
            what=", ".join(work.whats) or None,
            op=work.op,
            module=work.module,
            framework=context.framework,
            change_to=entry.change,
            further=None if most is None else most.change,
            further_ns=None if most is None else most.saves_ns,
            rates=_rates_of(context) if entry.rests_on_rates else None,
            change=change,
            saves_ns=predicted.saves_ns,
            saves_range_ns=saves_range_ns,
            certain="bounded",
        )

    def text(self) -> str:
        return self.entry.text(self)

    def advice(self) -> str:
        return self.entry.advice(self)

    @property
    def is_inference(self) -> bool:
        """Whether the program only runs its model forward."""
        return self.run.is_inference

    @property
    def generates(self) -> bool:
        """Whether it generates tokens for sequences."""
        return self.run.generates

    def switch(self, topic: str) -> str:
        """Return what to switch on, in the words of the run's framework and of its GPUs' vendor."""
        return switch(topic, framework=self.framework, vendor=self.run.vendor)

    @property
    def figures(self) -> Mapping[str, str]:
        """Figures that an entry's sentence may hold (``FIGURES_IN_SENTENCES``)."""
        gpu_time = short_ms(self.work_ns)
        work = f"{gpu_time} of GPU time"
        if self.saves_ns is not None and self.saves_ns > self.work_ns:
            work += ", and the CPU's to launch them"
        kernels_per_step = f"{self.kernels_per_step:,}"
        return {
            "work_ns": gpu_time,
            "work": work,
            "kernels": f"{kernels_per_step} kernels {self.run.per_step}",
            "kernels_per_step": kernels_per_step,
            "per_step": self.run.per_step,
            "what": or_unknown(self.what),
            "op": or_unknown(self.op),
        }


@cache
def kind_of_alternative(alternative: Alternative, of_case: str = "") -> type[ChangeOfWork]:
    """Return the class of the findings of an entry of the catalogue; *of_case* where a case has words of its own."""

    class OfAlternative(ChangeOfWork, frozen=True, kw_only=True):
        entry = alternative
        code = alternative.code
        case = of_case if of_case in alternative.cases else alternative.case
        title = alternative.title
        training_only = alternative.training_only
        label_of_kernels = alternative.label_of_kernels
        section = alternative.section
        is_about_operator = alternative.is_about_operator

    return OfAlternative


CHANGES_OF_WORK: tuple[type[ChangeOfWork], ...] = tuple(
    kind_of_alternative(entry) for entry in ALTERNATIVES if entry.code
)
"""What looks for changes of the GPU's work, in order."""
_OF_CASES = [kind_of_alternative(entry, case) for entry in ALTERNATIVES for case in entry.cases]


def operators_with_remedy(context: Context, findings: Collection[FindingKind]) -> set[str]:
    """Return the operators most of whose time *findings* explain, and say how to save."""
    graph = context.analysis.graph
    changes = {finding.change for finding in findings if isinstance(finding, ChangeOfWork)}
    if graph is None or not changes:
        return set()
    events = graph.graph.events
    is_explained = np.zeros(events.height, np.bool_)
    for change in changes:
        if change is not None:
            is_explained[_changed_events(graph.graph, str(change))["event"].to_numpy()] = True
    ns = pl.col("end_ns") - pl.col("start_ns")
    times = events.select("op", ns=ns, explained_ns=ns * pl.Series(is_explained))
    by_op = times.group_by("op").agg(share=pl.col("explained_ns").sum() / pl.col("ns").sum())
    explained = by_op.filter(pl.col("share") > MIN_EXPLAINED_SHARE)["op"]
    return set(explained.drop_nulls().cast(pl.String))


def _rates_of(context: Context) -> str:
    """Return in words whose rates prices rest on, where the run itself does not show what its GPU reaches."""
    if context.analysis.advice.rates is not None:
        return "a table of one's own"
    devices = [name for source in context.analysis.sources for name in source.devices]
    names = {rates_of_gpu(device).name for device in devices} or {USUAL}
    if USUAL in names:
        return "usual shares of the vendor's peak"
    return f"measured on {join_with_and(sorted(names))}"


def _step_ns(predicted: ChangedStep) -> int:
    """Return the step that a saving is a part of: without the profiler where that is known."""
    return predicted.measured_ns if predicted.free_ns is None else predicted.free_ns


def changed_work(context: Context, change: str) -> ChangedWork:
    """Return the GPU work that a change concerns."""
    graph = context.analysis.graph
    if graph is None:
        raise ValueError("the run's events were not kept")
    events = graph.graph.events
    remedies = _changed_events(graph.graph, change)
    rank_steps = max(graph.graph.measured_bounds.height, 1)
    described = remedies.select(
        "what", "ns", *(events[name].gather(remedies["event"]) for name in ("op", "module"))
    )
    described = described.group_by("what", "op", "module").agg(pl.col("ns").sum())
    described = described.cast({pl.Categorical(): pl.String})
    return ChangedWork(
        ns=float(remedies["ns"].sum()) / rank_steps,
        events=remedies.height / rank_steps,
        whats=tuple(_longest(described, "what")),
        op=next(iter(_longest(described, "op")), None),
        module=next(iter(_longest(described, "module")), None),
    )


def _changed_events(graph: EventGraph, change: str) -> pl.DataFrame:
    """Return the remedies of a change but those that spare the host alone, or make something slower."""
    is_changed = pl.col("what").is_in([HOST_ALONE, SLOWER_OPERATORS]).fill_null(value=False).not_()
    return select_remedies(graph, change).filter(is_changed)


def longest_places(context: Context, graph: EventGraph, change: str) -> tuple[Place, ...]:
    """Return the stretches of GPU work in a row that a change concerns, those with most work first.

    They are named by the operator, or kernel, that takes longest in them.
    """
    remedies = _changed_events(graph, change).unique("event").sort("event")
    facts = ("rank", "step", "start_ns", "end_ns", "name", "op")
    changed = graph.events.select(facts)[remedies["event"]].with_columns(
        remedies["ns"],
        # Rows of a rank are in order of time: among rows in a row, the row less its place here is the same.
        stretch=remedies["event"] - pl.int_range(remedies.height, eager=True),
    )
    longest_first = changed.sort("ns", descending=True, maintain_order=True)
    stretches = longest_first.group_by("rank", "step", "stretch", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.coalesce(pl.col("op", "name").cast(pl.String)).first().alias("what"),
        pl.col("ns").sum(),
    )
    most = stretches.sort("ns", "start_ns", descending=[True, False]).head(MAX_PLACES_PER_FINDING)
    clocks = context.analysis.clocks
    recorded = {
        name: clocks.to_recorded_each(most["rank"].to_numpy(), most[name].to_numpy())
        for name in ("start_ns", "end_ns")
    }
    return places_of(
        most.with_columns(**recorded).select("rank", "step", "start_ns", "end_ns", "what")
    )


def _longest(described: pl.DataFrame, column: str) -> list[str]:
    """Return the values of a column of remedies' sums, that with most time first."""
    ns_by_value: dict[str, int] = {}
    for value, ns in described.select(column, "ns").iter_rows():
        if value is not None:
            ns_by_value[value] = ns_by_value.get(value, 0) + ns
    return sorted(ns_by_value, key=lambda value: (-ns_by_value[value], value))
