"""From documents to the runs that diff and gate compare.

Everything is read from the document of an analysis (``documents.analysis``), so that a saved JSON
file and a trace analysed just now give the same samples. Rates, copies and memory have one sample
per run; a figure that is null in the analysis, or a range, gives none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from tracekit._util.values import sum_if_known, without_none
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples, per_step_samples
from tracekit.documents import analysis as documents
from tracekit.documents.baseline import CellTime, ModuleTime
from tracekit.documents.coding import decode
from tracekit.documents.diff import Facts, TimelineCell
from tracekit.documents.late import LateDocument
from tracekit.errors import InputError

_ANALYZE_TRACES_AGAIN = "analyze the traces again"
Value = TypeVar("Value")

DAMAGE_NOTICES = frozenset(
    {
        "bad-events",
        "copied-ranks",
        "gpu-events-lost",
        "no-events",
        "partial-step",
        "rank-failed",
        "repeated-events",
        "store-incomplete",
        "truncated",
        "unnamed",
        "zero-durations",
    }
)
"""Notices of runs of which a part is lost: no verdict rests on them unless ``allow`` has
``damage``."""


def from_analysis(
    document: documents.AnalysisDocument | Mapping[str, Any],
    *,
    name: str,
    cells: Sequence[CellTime] = (),
    timeline: Sequence[TimelineCell] = (),
) -> Run:
    """Return the samples of one analysis, given as its document or as plain data.

    Args:
        document: The analysis.
        name: Name of the run.
        cells: Median time of its pipeline cells, where it has a pipeline.
        timeline: Pipeline cells of one step.

    >>> from tracekit import analyze
    >>> run = from_analysis(analyze("sample_traces/reload", schedule="none").to_document(), name="demo")
    >>> run.steps, run.facts.ranks, run.values("overlap.broadcast")
    (1, 4, (0.0,))
    """
    if not isinstance(document, documents.AnalysisDocument):
        document = decode(
            msgspec.json.encode(document),
            documents.AnalysisDocument,
            name,
            hint=_ANALYZE_TRACES_AGAIN,
        )
    if not document.ranks:
        raise InputError("the analysis has no ranks", path=name, hint=_ANALYZE_TRACES_AGAIN)
    values_of_run = _label_values(document.ranks) | rate_values(document)
    if document.step.free_ns is not None:
        values_of_run["free_step_ms"] = document.step.free_ns / 1e6
    if isinstance(document.late, LateDocument):
        values_of_run |= whole_run_values(document.late)
    tables = [
        per_step_samples(document.ranks),
        _make_samples_of_run(values_of_run),
        *_lateness_samples(document),
    ]
    if document.schedule is not None:
        tables += _schedule_samples(document.schedule)
    roles = {
        role.name: from_analysis(role.analysis, name=f"{name}:{role.name}")
        for role in document.roles or ()
        if role.name != document.main_role
    }
    kernels = document.kernels
    return Run(
        name,
        pl.concat(tables),
        comparability_facts(document),
        kernels=kernels,
        modules=[ModuleTime(row.module, row.label, row.ns) for row in kernels if row.module],
        products=() if document.rates is None else document.rates.products,
        cells=cells,
        timeline=timeline,
        ranks=tuple(document.ranks),
        main_role=document.main_role or None,
        roles=roles,
        findings=tuple(document.findings),
    )


def from_whole_run(document: LateDocument, *, name: str) -> Run:
    """Return the samples of dumps and logs alone.

    >>> from tracekit import late
    >>> run = from_whole_run(late("sample_traces/always-on/late").to_document(), name="nightly")
    >>> round(run.values("run_late_ms")[0])
    10
    """
    facts = Facts(world_size=_known(document.world_size), ranks=len(document.ranks) or UNSET)
    samples = samples_of_whole_run(document)
    return Run(name, samples, facts, recorded_steps=document.steps.count)


def samples_of_whole_run(document: LateDocument) -> pl.DataFrame:
    """Return the figures of a whole run that are known, one sample each."""
    return _make_samples_of_run(whole_run_values(document))


def whole_run_values(document: LateDocument) -> dict[str, float]:
    """Return the figures of a whole run that are known."""
    steps = document.steps.count
    values: dict[str, float | None] = {
        "run_step_ms": None if document.steps.time_ns is None else document.steps.time_ns / 1e6,
        "run_late_fraction": document.lost_share,
    }
    if steps and document.lost_ns is not None:
        values["run_late_ms"] = document.lost_ns / 1e6 / steps
    if steps and document.transfers:
        values["run_slow_link_ms"] = sum(link.cost_ns for link in document.slow_links) / 1e6 / steps
    # Dumps that may have been written while an operation ran do not tell whether it hangs.
    has_dumps = any(record.recorder == "flight_recorder" for record in document.records)
    if has_dumps and (document.hang is None or document.hang.certain):
        values["run_hangs"] = 0.0 if document.hang is None else 1.0
    return without_none(values)


def _make_samples_of_run(values: Mapping[str, float]) -> pl.DataFrame:
    """Return one sample per metric."""
    return make_samples({name: [value] for name, value in values.items()})


def comparability_facts(document: documents.AnalysisDocument) -> Facts:
    """Return the facts that two runs are compared by, as far as they are known.

    Tokens and TFLOP, both per step, are amounts of work (``diffs.comparability``); the others must
    agree.
    """
    source = document.source
    schedule = document.schedule
    rates = document.rates
    steps = _step_count(document.ranks)
    counted_flop = None if rates is None or rates.lower_bound else rates.model_flop
    free_range_ns = document.step.free_range_ns
    # Without an exact match the name is that of the nearest schedule, which proves no difference.
    exact = schedule if schedule is not None and schedule.exact else None
    # Nor does a name where the ranks at hand have the order of several.
    is_named = exact is not None and not exact.ambiguous_with
    return Facts(
        reader=source.reader,
        world_size=_known(source.world_size),
        ranks=len(document.ranks) or UNSET,
        gpu=" + ".join(sorted(set(source.devices))) or UNSET,
        shapes=list(source.shapes) or UNSET,
        options=UNSET if source.options is None else " + ".join(source.options) or "none",
        free_ms=UNSET if document.step.free_ns is None else document.step.free_ns / 1e6,
        free_range_ms=UNSET
        if free_range_ns is None
        else (free_range_ns[0] / 1e6, free_range_ns[1] / 1e6),
        tokens=_known(source.tokens_per_step),
        tflop=counted_flop / 1e12 / steps if counted_flop else UNSET,
        steps_not_common=[step.step for step in document.step.not_common] or UNSET,
        damage=sorted({notice.code for notice in document.warnings} & DAMAGE_NOTICES) or UNSET,
        schedule=exact.name if exact is not None and is_named else UNSET,
        pp=UNSET if schedule is None else _known(schedule.pp),
        microbatches=UNSET if exact is None else _known(exact.microbatches),
        virtual=UNSET if exact is None else _known(exact.virtual),
    )


def _known(value: Value | None) -> Value | UnsetType:
    """Return a value for a field that is only present where it is known."""
    return UNSET if value is None else value


def _step_count(ranks: Sequence[documents.RankFigures]) -> int:
    """Return the steps of the rank that has most of them, at least 1."""
    return max((len(rank.steps) for rank in ranks), default=0) or 1


def _label_values(ranks: Sequence[documents.RankFigures]) -> dict[str, float]:
    """Return the number of events per label, and the time each compute label hides, both per step."""
    steps = max(len(ranks[0].steps), 1)
    values: defaultdict[str, float] = defaultdict(float)
    for rank in ranks:
        for label, count in rank.label_count.items():
            values[f"label_count.{label}"] += count / steps
        for label, hidden_by_ns in rank.hidden_by_ns.items():
            for compute, ns in hidden_by_ns.items():
                values[f"hidden_ms.{label}.{compute}"] += ns / 1e6 / steps / len(ranks)
    return dict(values)


def _lateness_samples(document: documents.AnalysisDocument) -> list[pl.DataFrame]:
    """Return the lateness of the latest rank and of each late rank by step, and the cost of unequal work by step."""
    tables = []
    if document.lateness is not None:
        late_ms = {}
        for row in document.lateness.ranks:
            late_ms[f"late_ms.rank@{row.rank}"] = [ns / 1e6 for ns in row.late_ns]
        on_time = [0.0] * len(document.lateness.steps)
        latest_ms = [max(by_rank) for by_rank in zip(on_time, *late_ms.values(), strict=True)]
        tables.append(
            make_samples({"late_ms.rank": latest_ms, **late_ms}, steps=document.lateness.steps)
        )
    if document.imbalance is not None:
        share_of_step: dict[int | None, float] = {}
        for step in document.imbalance.steps:
            share_of_step[step.step] = max(step.share, share_of_step.get(step.step, 0.0))
        shares = {"imbalance": list(share_of_step.values())}
        tables.append(make_samples(shares, steps=list(share_of_step)))
    return tables


def _schedule_samples(schedule: documents.ComparedSchedule) -> list[pl.DataFrame]:
    """Return makespan and gap of every step.

    Of several pipelines in a step, those of the slowest.
    """
    slowest: dict[int | None, documents.PipelineStep] = {}
    for pipeline in schedule.pipelines:
        current = slowest.setdefault(pipeline.step, pipeline)
        if pipeline.measured_ns > current.measured_ns:
            slowest[pipeline.step] = pipeline
    tables = []
    for pipeline in slowest.values():
        gap_ns = pipeline.gap_ns or {}
        times = {"makespan_ms": pipeline.measured_ns, "ideal_makespan_ms": pipeline.ideal_ns}
        for cause, ns in gap_ns.items():
            times[f"gap_ms.{cause}"] = ns
        if gap_ns:
            times["gap_ms.total"] = sum(gap_ns.values())
        values = {name: [ns / 1e6] for name, ns in times.items()}
        tables.append(make_samples(values, steps=[pipeline.step]))
    return [*tables, _make_samples_of_run({"outside_cells": schedule.measured.outside_cells})]


def rate_values(document: documents.AnalysisDocument) -> dict[str, float]:
    """Return the rates, copies and memory of a run that are known.

    >>> from tracekit import analyze
    >>> list(rate_values(analyze("sample_traces/memory", schedule="none").to_document()))[-2:]
    ['phase_gb.backward', 'phase_gb.optimizer']
    """
    values: dict[str, float | None] = {}
    if document.rates is not None:
        values |= _rates_of_labels(document.rates, _step_count(document.ranks))
    values |= _copy_bandwidths(document.copies)
    if document.memory is not None:
        values |= _memory_values(document.memory)
    return without_none(values)


def _rates_of_labels(rates: documents.Rates, steps: int) -> dict[str, float | None]:
    """Return the rates of products and communication, and the balance of experts."""
    values: dict[str, float | None] = {"tflop_s.total": rates.tflop_s}
    for row in rates.by_label:
        values[f"tflop_s.{row.label}"] = row.tflop_s
    values["utilisation"] = rates.utilisation
    values |= _bus_bandwidths(rates.communication)
    loads = [row.over_mean for row in rates.experts if row.over_mean is not None]
    values["expert_over_mean"] = max(loads, default=None)
    if rates.expert_cost is not None:
        values["expert_cost_ms"] = rates.expert_cost.step_ns / 1e6 / steps
    return values


def _bus_bandwidths(rows: Sequence[documents.Bandwidth]) -> dict[str, float]:
    """Return the mean bus bandwidth by label, weighted by transfer time.

    None if an operation's is unknown.
    """
    rows_by_label: dict[str, list[documents.Bandwidth]] = {}
    for row in rows:
        rows_by_label.setdefault(row.label, []).append(row)
    values = {}
    for label, rows_of_label in rows_by_label.items():
        transfer_ns = sum(row.transfer_ns for row in rows_of_label)
        # GB/s are bytes per nanosecond.
        moved_bytes = sum_if_known(
            None if row.bus_gb_s is None else row.bus_gb_s * row.transfer_ns
            for row in rows_of_label
        )
        if transfer_ns and moved_bytes is not None:
            values[f"bus_gb_s.{label}"] = moved_bytes / transfer_ns
    return values


def _copy_bandwidths(rows: Sequence[documents.Copy]) -> dict[str, float]:
    """Return GB/s of offload and onload over all ranks; none if a rank's bytes are unknown."""
    values = {}
    for label in ("offload", "onload"):
        group = [row for row in rows if row.label == label]
        ns = sum(row.ns for row in group)
        size = sum_if_known(row.bytes for row in group)
        if ns and size is not None:
            values[f"copy_gb_s.{label}"] = size / ns  # bytes per ns = GB/s
    return values


def _memory_values(memory: documents.Memory) -> dict[str, float | None]:
    """Return what the fullest rank held, and what the rank that leaks most leaves behind in a step."""
    reserved: list[int] = []
    leaked: list[int] = []
    for rank in memory.ranks:
        leaked_bytes = _leaked_bytes(rank)
        if rank.reserved_bytes is not None:
            reserved.append(rank.reserved_bytes)
        if leaked_bytes is not None:
            leaked.append(leaked_bytes)
    leaks_are_known = len(leaked) == len(memory.ranks)
    return {
        "peak_gb": memory.peak_bytes / 1e9,
        "peak_bytes": memory.peak_bytes,
        "reserved_bytes": max(reserved, default=None),
        "leaked_bytes": max(leaked) if leaks_are_known else None,
        **_phase_peaks(memory.ranks),
    }


MIN_STEPS_TO_TELL_LEAKS = 4
"""Steps from which a run without leaks is known to have none: two that could leave something, and
two after each."""


def _leaked_bytes(rank: documents.AllocatorMemory) -> int | None:
    """Return what a step of a rank leaves behind; None if too few steps were seen."""
    if rank.contents is None or len(rank.contents.steps) < MIN_STEPS_TO_TELL_LEAKS:
        return None
    return sum(leak.bytes_per_step for leak in rank.contents.leaks)


def _phase_peaks(ranks: Iterable[documents.AllocatorMemory]) -> dict[str, float]:
    """Return the largest peak of any rank in each phase, in GB, where it is known exactly."""
    at_least: defaultdict[str, int] = defaultdict(int)
    at_most: defaultdict[str, int] = defaultdict(int)
    for rank in ranks:
        for phase, peak in rank.by_phase.items():
            at_least[phase] = max(at_least[phase], peak.at_least)
            at_most[phase] = max(at_most[phase], peak.at_most)
    return {
        f"phase_gb.{phase}": low / 1e9 for phase, low in at_least.items() if low == at_most[phase]
    }
