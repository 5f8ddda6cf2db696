"""Samples of one run: one value per step for every metric, and the facts that make runs comparable.

Everything is read from the document of an analysis (``documents.analysis``), so that a saved JSON
file and a trace analysed just now give the same samples. Rates, copies and memory have one sample
per run; a figure that is null in the analysis, or a range, gives none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

import msgspec

from tracekit._util.values import sum_if_known, without_none
from tracekit.diffs import stats
from tracekit.diffs.metrics import Metric, resolve
from tracekit.documents import analysis as documents
from tracekit.documents.analysis import StepTime
from tracekit.documents.coding import decode, to_plain_rows
from tracekit.documents.findings import Finding
from tracekit.documents.late import LateDocument
from tracekit.errors import InputError
from tracekit.metrics.step_time import find_unusual
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

_ANALYZE_TRACES_AGAIN = "analyze the traces again"
LABEL_SETS = {"communication": COMMUNICATION_LABELS, "copy": COPY_LABELS}
Samples = dict[str, tuple[float, ...]]
Rows = Sequence[Mapping[str, Any]]
Key = tuple[Any, ...]
"""Fields by which the rows of a table are told apart."""

DAMAGE_NOTICES = frozenset(
    {
        "bad-events",
        "bad-text",
        "bad-values",
        "damaged-rows",
        "damaged-table",
        "gpu-events-lost",
        "no-base-time",
        "no-events",
        "partial-step",
        "rank-failed",
        "repeated-events",
        "step-cut",
        "store-incomplete",
        "truncated",
        "unnamed",
    }
)
"""Notices of runs of which a part is lost: no verdict rests on them unless ``allow`` has
``damage``."""


class Run(msgspec.Struct, frozen=True):
    """One run: its samples by metric name, its facts, and the tables that explain a change.

    >>> Run("baseline", {"step_ms": (10.0, 10.2)}).steps
    2
    """

    name: str
    samples: Mapping[str, tuple[float, ...]]
    facts: Mapping[str, Any] = {}  # compared by ``comparability``
    # Kernels, modules, products, cells and timeline, as far as the input has them.
    tables: Mapping[str, Any] = {}
    # The figures of each rank; empty for a run read from a baseline file.
    ranks: tuple[documents.RankFigures, ...] = ()
    analysis: Any = None  # the Analysis itself, where it is kept for the page of a diff
    # Where ranks have several processes: the role that these figures are of.
    main_role: str | None = None
    roles: Mapping[str, Run] = {}  # … and the other roles
    recorded_steps: int = 0  # steps of dumps and logs, where there is no trace
    # What costs time, and the savings predicted for it; None if that was not kept.
    findings: tuple[Finding, ...] | None = None

    @property
    def steps(self) -> int:
        """Number of measured steps."""
        return len(self.samples.get("step_ms", ()))

    @property
    def recorded_or_measured_steps(self) -> int:
        """Number of measured steps, or of those in dumps and logs where no trace was measured."""
        return self.steps or self.recorded_steps

    def values(self, metric: Metric) -> tuple[float, ...]:
        """Return the samples of *metric*, empty if this run does not have it."""
        if metric.name in self.samples or metric.rank is None:
            return self.samples.get(metric.name, ())
        # Ranks that are never late have no samples of their own.
        if metric.family.name == "late_ms":
            return (0.0,) * len(self.samples.get("late_ms.rank", ()))
        ranks = [rank for rank in self.ranks if rank.rank == metric.rank]
        return per_step_samples(ranks).get(metric.name.split("@", maxsplit=1)[0], ())


def centre_of_runs(runs: Sequence[Run], name: str) -> float | None:
    """Return the centre of a metric over the runs that have it (``stats.centre``).

    None if none has.

    >>> centre_of_runs([Run("a", {"step_ms": (10.0, 12.0)}), Run("b", {})], "step_ms")
    11.0
    """
    metric = resolve(name, names_in_runs=[name])
    values = samples_of_metric(runs, metric)
    return stats.centre(values, metric.family.level) if values else None


def samples_of_metric(runs: Sequence[Run], metric: Metric) -> list[tuple[float, ...]]:
    """Return the samples of each run that has *metric*."""
    samples = []
    for run in runs:
        values = run.values(metric)
        if values:
            samples.append(values)
    return samples


def mean_times(
    runs: Sequence[Run], table: str, keys: Sequence[str]
) -> dict[Key, tuple[float, float]]:
    """Return (milliseconds, count) by key, the mean over the runs that have the table."""
    tables = [run.tables[table] for run in runs if run.tables.get(table)]
    means: dict[Key, tuple[float, float]] = {}
    for rows in tables:
        for row in rows:
            key = tuple(row.get(name) for name in keys)
            ms, count = means.get(key, (0.0, 0.0))
            means[key] = (
                ms + row["ns"] / 1e6 / len(tables),
                count + (row.get("count") or 1) / len(tables),
            )
    return means


def from_analysis(
    document: documents.AnalysisDocument | Mapping[str, Any],
    *,
    name: str,
    cells: Rows = (),
    timeline: Rows = (),
) -> Run:
    """Return the samples of one analysis, given as its document or as plain data.

    Args:
        document: The analysis.
        name: Name of the run.
        cells: Median time of its pipeline cells, where it has a pipeline.
        timeline: Pipeline cells of one step.

    >>> from tracekit import analyze
    >>> run = from_analysis(analyze("sample_traces/reload", schedule="none").to_document(), name="demo")
    >>> run.steps, run.facts["ranks"], run.samples["overlap.broadcast"]
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
        raise InputError(f"{name}: the analysis has no ranks", hint=_ANALYZE_TRACES_AGAIN)
    samples = per_step_samples(document.ranks)
    samples |= _label_samples(document.ranks)
    samples |= rate_samples(document)
    samples |= _lateness_samples(document)
    if isinstance(document.late, LateDocument):
        samples |= whole_run_samples(document.late)
    if document.schedule is not None:
        samples |= _schedule_samples(document.schedule)
    roles = {}
    for role in document.roles or ():
        if role.name != document.main_role:
            roles[role.name] = from_analysis(role.analysis, name=f"{name}:{role.name}")
    return Run(
        name,
        samples,
        comparability_facts(document),
        _tables(document, cells, timeline),
        tuple(document.ranks),
        main_role=document.main_role or None,
        roles=roles,
        findings=tuple(document.findings),
    )


def from_whole_run(document: LateDocument, *, name: str) -> Run:
    """Return the samples of dumps and logs alone.

    >>> from tracekit import late
    >>> run = from_whole_run(late("sample_traces/always-on/late").to_document(), name="nightly")
    >>> round(run.samples["run_late_ms"][0])
    10
    """
    facts = {"world_size": document.world_size, "ranks": len(document.ranks) or None}
    samples = whole_run_samples(document)
    return Run(name, samples, without_none(facts), recorded_steps=document.steps.count)


def whole_run_samples(document: LateDocument) -> Samples:
    """Return the figures of a whole run, one sample each; a figure that is not known gives none."""
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
    return _single_samples(without_none(values))


def _single_samples(values: Mapping[str, float]) -> Samples:
    """Return one sample per metric."""
    return {name: (value,) for name, value in values.items()}


def comparability_facts(document: documents.AnalysisDocument) -> dict[str, Any]:
    """Return the facts that two runs are compared by, as far as they are known.

    Tokens and TFLOP, both per step, are amounts of work (``diffs.comparability``); the others must
    agree.
    """
    source = document.source
    schedule = document.schedule
    rates = document.rates
    steps = _step_count(document.ranks)
    counted_flop = None if rates is None or rates.lower_bound else rates.model_flop
    facts = {
        "reader": source.reader,
        "world_size": source.world_size,
        "ranks": len(document.ranks) or None,
        "gpu": " + ".join(sorted(set(source.devices))) or None,
        "shapes": source.shapes or None,
        "options": None if source.options is None else " + ".join(source.options) or "none",
        "free_ms": None if document.step.free_ns is None else document.step.free_ns / 1e6,
        "free_range_ms": _in_ms(document.step.free_range_ns),
        "tokens": source.tokens_per_step,
        "tflop": counted_flop / 1e12 / steps if counted_flop else None,
        "steps_not_common": [step.step for step in document.step.not_common] or None,
        "damage": sorted({notice.code for notice in document.warnings} & DAMAGE_NOTICES) or None,
    }
    # Without an exact match the name is that of the nearest schedule, which proves no difference.
    if schedule is not None:
        if schedule.exact:
            facts["schedule"] = schedule.name
        facts["pp"] = schedule.pp
        if schedule.exact:
            facts["microbatches"] = schedule.microbatches
            facts["virtual"] = schedule.virtual
    return without_none(facts)


def _in_ms(range_ns: tuple[int, int] | None) -> list[float] | None:
    """Return a range in milliseconds."""
    return None if range_ns is None else [ns / 1e6 for ns in range_ns]


def _step_count(ranks: Sequence[documents.RankFigures]) -> int:
    """Return the steps of the rank that has most of them, at least 1."""
    return max((len(rank.steps) for rank in ranks), default=0) or 1


def _tables(document: documents.AnalysisDocument, cells: Rows, timeline: Rows) -> dict[str, Any]:
    """Return the non-empty tables that ``changes`` and ``explanation`` compare."""
    kernels = to_plain_rows(document.kernels)
    modules = []
    for row in kernels:
        if row["module"]:
            modules.append({"module": row["module"], "label": row["label"], "ns": row["ns"]})
    products = [] if document.rates is None else to_plain_rows(document.rates.products)
    tables = {
        "kernels": kernels,
        "modules": modules,
        "products": products,
        "cells": cells,
        "timeline": timeline,
    }
    return {name: rows for name, rows in tables.items() if rows}


def per_step_samples(ranks: Sequence[documents.RankFigures]) -> Samples:
    """Return one value per step that every rank has and of which the time is known.

    The step time and its parts (compute, exposed, idle) are those of the step's interval, so that
    they sum to it. Shares of the bubble and times of labels are those of the GPU work launched in
    the step.
    """
    if not ranks:
        return {}
    # The figures of each rank, by the position of the rank, of every step.
    records_by_step: defaultdict[int | None, dict[int, documents.StepFigures]] = defaultdict(dict)
    for i, rank in enumerate(ranks):
        for record in rank.per_step:
            if record.time_ns is not None:
                records_by_step[record.step][i] = record
    every_step = []
    whole_steps = []
    for step in sorted(records_by_step, key=lambda step: (step is None, step or 0)):
        records = list(records_by_step[step].values())
        is_on_every_rank = len(records) == len(ranks)
        if is_on_every_rank:
            every_step.append(records)
            if not any(record.partial for record in records):
                whole_steps.append(records)
    # As for the step time of the run: steps that are cut off count only where there are no others.
    rows = [_step_values(records) for records in whole_steps or every_step]
    samples: Samples = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        # A label missing in a step took no time in it. What is not known of a step, such as a wait
        # or a share of no time, is left out.
        if name.startswith(("exposed_ms.", "label_ms.")):
            samples[name] = tuple(row.get(name, 0.0) for row in rows)
        else:
            samples[name] = tuple(row[name] for row in rows if name in row)
    return samples | slow_step_samples(samples.get("step_ms", ()))


def slow_step_samples(step_ms: Sequence[float]) -> Samples:
    """Return the step times again, of which the mean is compared, and by step whether it is slow (1) or not (0)."""
    if not step_ms:
        return {}
    times = [StepTime(index, round(ms * 1e6)) for index, ms in enumerate(step_ms)]
    usual_ns = median([step.time_ns for step in times])
    slow = {step.step for step in find_unusual(times) if step.time_ns > usual_ns}
    is_slow = tuple(float(step.step in slow) for step in times)
    return {"mean_step_ms": tuple(step_ms), "slow_steps": is_slow}


def _step_values(records: Sequence[documents.StepFigures]) -> dict[str, float]:
    """Return every per-step metric of one step (module ``metrics`` says which is a mean, a median or a ratio).

    *records* are the figures of this step on each rank.
    """
    ranks_step_ns = [record.time_ns or 0 for record in records]
    sums_ns = _sums_over_ranks(records)
    # A sum of nanoseconds over ranks, divided by this, is their mean in milliseconds.
    ns_per_mean_ms = 1e6 * len(records)
    values = {"step_ms": median(ranks_step_ns) / 1e6}
    if len(records) > 1:
        values["slowest_rank_ms"] = max(ranks_step_ns) / 1e6
    for metric, ns in sums_ns.items():
        values[metric] = ns / ns_per_mean_ms
    values |= _exposed_by_cause(records, ns_per_mean_ms)
    values |= _shares(sums_ns, ("compute_ms", "idle_ms"), of_ns=sum(ranks_step_ns))
    # Bubbles and labels lie in the span of the step's GPU work, which may be shorter than the step.
    span_ns = sum(record.span_ns for record in records)
    values |= _shares(sums_ns, ("bubble_ms",), of_ns=span_ns)
    if span_ns:
        values["other_fraction"] = sums_ns.get("label_ms.other", 0) / span_ns
    else:
        values.pop("bubble_ms", None)  # there was no work that could have one
    return values | _overlaps(records)


def _sums_over_ranks(records: Sequence[documents.StepFigures]) -> dict[str, float]:
    """Return the times of one step in nanoseconds, summed over ranks, under the names of their metrics in milliseconds.

    A time that is not known on a rank, such as waits without the peers' traces, is left out.
    """
    budgets = [record.time_budget for record in records]
    sums_ns: dict[str, float] = {"compute_ms": sum(budget.compute_ns for budget in budgets)}
    for label, ns in _sum_by_label(budget.exposed_ns for budget in budgets).items():
        sums_ns[f"exposed_ms.{label}"] = ns
    for label, ns in _sum_by_label(record.label_ns for record in records).items():
        if label not in LABEL_SETS:
            sums_ns[f"label_ms.{label}"] = ns
    where_known = {
        "wait_ms": sum_if_known(record.bubble.wait_ns for record in records),
        "idle_ms": sum_if_known(budget.idle for budget in budgets),
        "bubble_ms": sum_if_known(_bubble_ns(record) for record in records),
    }
    for metric, known_ns in where_known.items():
        if known_ns is not None:
            sums_ns[metric] = known_ns
    return sums_ns


def _shares(
    sums_ns: Mapping[str, float], metrics: Sequence[str], *, of_ns: int
) -> dict[str, float]:
    """Return times as shares of a time, under the metrics' names with ``_fraction``; none of no time."""
    shares = {}
    for metric in metrics:
        if of_ns and metric in sums_ns:
            shares[f"{metric.removesuffix('_ms')}_fraction"] = sums_ns[metric] / of_ns
    return shares


def _bubble_ns(record: documents.Figures) -> float | None:
    """Return the bubble of one rank's step; None if it is unknown, or a lower bound.

    A lower bound can show that a limit is broken, but never that it holds: it gives no sample.
    """
    bubble = record.bubble
    if bubble.fraction is None or bubble.lower_bound:
        return None
    return bubble.fraction * record.span_ns


def _exposed_by_cause(
    records: Sequence[documents.Figures], ns_per_mean_ms: float
) -> dict[str, float]:
    """Return exposed time by label and cause, the mean of ranks in milliseconds."""
    values: defaultdict[str, float] = defaultdict(float)
    for record in records:
        for label, causes in record.because_ns.items():
            for cause, ns in causes.items():
                values[f"exposed_ms.{label}.{cause}"] += ns / ns_per_mean_ms
    return values


def _sum_by_label(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum numbers by label over *tables*, and add the sums of the label sets (communication, copy)."""
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    for set_name, labels in LABEL_SETS.items():
        if not total.keys().isdisjoint(labels):
            total[set_name] = sum(total[label] for label in labels)
    return total


def _overlaps(records: Sequence[documents.Figures]) -> dict[str, float]:
    """Return hidden time / label time, both summed over ranks."""
    hidden: defaultdict[str, float] = defaultdict(float)
    total: defaultdict[str, float] = defaultdict(float)
    for record in records:
        label_ns = {**_sum_by_label([record.label_ns]), **record.set_ns}
        for key, share in record.overlap.items():
            if share is not None and label_ns.get(key):
                hidden[key] += share * label_ns[key]
                total[key] += label_ns[key]
    return {f"overlap.{key}": hidden[key] / total[key] for key in total}


def _label_samples(ranks: Sequence[documents.RankFigures]) -> Samples:
    """Return the number of events per label, and the time each compute label hides, both per step."""
    steps = max(len(ranks[0].steps), 1)
    values: defaultdict[str, float] = defaultdict(float)
    for rank in ranks:
        for label, count in rank.label_count.items():
            values[f"label_count.{label}"] += count / steps
        for label, hidden_by_ns in rank.hidden_by_ns.items():
            for compute, ns in hidden_by_ns.items():
                values[f"hidden_ms.{label}.{compute}"] += ns / 1e6 / steps / len(ranks)
    return _single_samples(values)


def _lateness_samples(document: documents.AnalysisDocument) -> Samples:
    """Return the lateness of the latest rank and of each late rank by step, and the cost of unequal work by step."""
    samples: Samples = {}
    if document.lateness is not None:
        late_ms_by_rank = {}
        for row in document.lateness.ranks:
            late_ms_by_rank[row.rank] = [ns / 1e6 for ns in row.late_ns]
        on_time = [0.0] * len(document.lateness.steps)
        by_step = zip(on_time, *late_ms_by_rank.values(), strict=True)
        samples["late_ms.rank"] = tuple(max(late_ms) for late_ms in by_step)
        for rank, values in late_ms_by_rank.items():
            samples[f"late_ms.rank@{rank}"] = tuple(values)
    if document.imbalance is not None:
        share_of_step: dict[int | None, float] = {}
        for step in document.imbalance.steps:
            share_of_step[step.step] = max(step.share, share_of_step.get(step.step, 0.0))
        samples["imbalance"] = tuple(share_of_step.values())
    return samples


def _schedule_samples(schedule: documents.ComparedSchedule) -> Samples:
    """Return makespan and gap of every step.

    Of several pipelines in a step, those of the slowest.
    """
    slowest: dict[int | None, documents.PipelineStep] = {}
    for pipeline in schedule.pipelines:
        current = slowest.setdefault(pipeline.step, pipeline)
        if pipeline.measured_ns > current.measured_ns:
            slowest[pipeline.step] = pipeline
    samples: defaultdict[str, list[float]] = defaultdict(list)
    for pipeline in slowest.values():
        gap_ns = pipeline.gap_ns or {}
        times = {"makespan_ms": pipeline.measured_ns, "ideal_makespan_ms": pipeline.ideal_ns}
        for cause, ns in gap_ns.items():
            times[f"gap_ms.{cause}"] = ns
        if gap_ns:
            times["gap_ms.total"] = sum(gap_ns.values())
        for name, ns in times.items():
            samples[name].append(ns / 1e6)
    samples["outside_cells"] = [schedule.measured.outside_cells]
    return {name: tuple(values) for name, values in samples.items()}


def rate_samples(document: documents.AnalysisDocument) -> Samples:
    """Return one sample per run of rates, copies and memory.

    >>> from tracekit import analyze
    >>> list(rate_samples(analyze("sample_traces/memory", schedule="none").to_document()))[-2:]
    ['phase_gb.backward', 'phase_gb.optimizer']
    """
    values: dict[str, float | None] = {}
    if document.rates is not None:
        values |= _rate_values(document.rates, _step_count(document.ranks))
    values |= _copy_bandwidths(document.copies)
    if document.memory is not None:
        values |= _memory_values(document.memory)
    return {name: (float(value),) for name, value in without_none(values).items()}


def _rate_values(rates: documents.Rates, steps: int) -> dict[str, float | None]:
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
        moved_bytes = sum_if_known(_moved_bytes(row) for row in rows_of_label)
        if transfer_ns and moved_bytes is not None:
            values[f"bus_gb_s.{label}"] = moved_bytes / transfer_ns
    return values


def _moved_bytes(row: documents.Bandwidth) -> float | None:
    """Return the bytes that operations moved on the bus; GB/s are bytes per nanosecond."""
    return None if row.bus_gb_s is None else row.bus_gb_s * row.transfer_ns


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
    peaks = {}
    for phase, low in at_least.items():
        if low == at_most[phase]:
            peaks[f"phase_gb.{phase}"] = low / 1e9
    return peaks
