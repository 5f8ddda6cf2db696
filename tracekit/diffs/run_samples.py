"""Samples of one run: one value per step for every metric, and the facts that make runs comparable.

Everything is read from the plain data of an analysis (``format: tracekit.analysis/1``), so that a saved JSON file and a
trace analysed just now give the same samples. Rates, copies and memory have one sample per run; a figure that is null
in the analysis, or a range, gives none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tracekit.align.steps import step_times
from tracekit.diffs.metrics import Metric
from tracekit.errors import InputError
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

FORMAT = "tracekit.analysis/1"
LABEL_SETS = {"communication": COMMUNICATION_LABELS, "copy": COPY_LABELS}
Samples = dict[str, tuple[float, ...]]
Rows = Sequence[Mapping[str, Any]]
Record = Mapping[str, Any]
"""One rank and step of an analysis: ``span_ns``, ``budget_ns``, ``label_ns``, ``overlap``, ``bubble``."""


class Run(msgspec.Struct, frozen=True):
    """One run: its samples by metric name, its facts, and the tables that explain a change.

    >>> Run("baseline", {"step_ms": (10.0, 10.2)}).steps
    2
    """

    name: str
    samples: Mapping[str, tuple[float, ...]]
    facts: Mapping[str, Any] = {}  # compared by ``comparability``
    tables: Mapping[str, Any] = {}  # kernels, modules, cells and timeline, as far as the input has them
    document: Mapping[str, Any] | None = None  # the analysis; None for a run read from a baseline file
    roles: Mapping[str, Run] = {}  # the other roles of a run whose ranks have several processes

    @property
    def steps(self) -> int:
        """Number of measured steps."""
        return len(self.samples.get("step_ms", ()))

    def values(self, metric: Metric) -> tuple[float, ...]:
        """Return the samples of *metric*, empty if this run does not have it."""
        if metric.name in self.samples:
            return self.samples[metric.name]
        if metric.rank is None or self.document is None:
            return ()
        ranks = [rank for rank in self.document["ranks"] if rank["rank"] == metric.rank]
        return _per_step_samples(ranks).get(metric.name.split("@", maxsplit=1)[0], ())


def from_analysis(document: Mapping[str, Any], *, name: str, cells: Rows = (), timeline: Rows = ()) -> Run:
    """Return the samples of one analysis; *cells* and *timeline* are its pipeline cells, where it has a pipeline.

    >>> step = {"span_ns": 2_000_000, "budget_ns": {"compute": 1_500_000, "exposed": {"pp_comm": 300_000},
    ...     "idle": 200_000}, "label_ns": {"pp_comm": 400_000}, "overlap": {"pp_comm": 0.25},
    ...     "bubble": {"idle_ns": 200_000, "wait_ns": None, "fraction": 0.1}}
    >>> rank = {"rank": 0, "steps": [2], **step, "per_step": [{"step": 2, **step}]}
    >>> run = from_analysis({"format": "tracekit.analysis/1", "source": {}, "ranks": [rank]}, name="demo")
    >>> run.samples["step_ms"], run.samples["overlap.pp_comm"], run.samples["exposed_ms.pp_comm"]
    ((2.0,), (0.25,), (0.3,))
    """
    if document.get("format") != FORMAT:
        raise InputError(f"{name}: format is {document.get('format')!r}, not {FORMAT}", hint="save with analyze --json")
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or not ranks:
        raise InputError(f"{name}: the analysis has no ranks", hint="analyse the trace again")
    try:
        samples = (
            _per_step_samples(ranks) | _label_samples(document) | _schedule_samples(document.get("schedule") or {})
        )
        samples |= rate_samples(document)
        roles = {
            role["name"]: from_analysis(role["analysis"], name=f"{name}:{role['name']}")
            for role in document.get("roles") or ()
            if role["name"] != document["main_role"]
        }
        tables = _tables(document, cells, timeline)
        return Run(name, samples, comparability_facts(document), tables, document, roles)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: the analysis lacks {error}", hint="analyse the trace again") from error


def comparability_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that must agree before two runs can be compared, as far as they are known."""
    source = document.get("source") or {}
    schedule = document.get("schedule") or {}
    if schedule.get("exact") is False:
        schedule = {"pp": schedule.get("pp")}  # the name is that of the nearest schedule, which proves no difference
    devices = source.get("devices") or None
    if devices is not None and not isinstance(devices, str):
        devices = " + ".join(sorted(set(devices)))
    facts = {
        "reader": source.get("reader"),
        "world_size": source.get("world_size"),
        "ranks": len(document["ranks"]),
        "gpu": devices,
        "shapes": source.get("shapes") or None,
        "schedule": schedule.get("name"),
        **{key: schedule.get(key) for key in ("pp", "microbatches", "virtual")},
    }
    return {key: value for key, value in facts.items() if value is not None}


def _tables(document: Mapping[str, Any], cells: Rows, timeline: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Return the non-empty tables that ``changes`` and ``explanation`` compare."""
    kernels = list(document.get("kernels") or ())
    modules = [{k: row[k] for k in ("module", "label", "ns")} for row in kernels if row.get("module")]
    tables = {"kernels": kernels, "modules": modules, "cells": list(cells), "timeline": list(timeline)}
    return {name: rows for name, rows in tables.items() if rows}


def _per_step_samples(ranks: Sequence[Mapping[str, Any]]) -> Samples:
    """Return one value per step that every rank has; an analysis without per-step figures is one sample."""
    records = [{step["step"]: step for step in rank.get("per_step") or ()} for rank in ranks]
    if not ranks:
        return {}
    if all(records):
        spans = {i: {step: record["span_ns"] for step, record in by_step.items()} for i, by_step in enumerate(records)}
        rows = [
            {**_step_values([by_step[step] for by_step in records]), "step_ms": ns / 1e6}
            for step, (ns, _) in step_times(spans).items()
        ]
    else:
        rows = [_step_values(ranks, steps=max(len(ranks[0].get("steps") or ()), 1))]
    samples: Samples = {}
    for name in {name: None for row in rows for name in row}:
        # A label missing in a step took no time in it. A share of no time is undefined, and its step is left out.
        steps = rows if "_ms" in name else [row for row in rows if name in row]
        samples[name] = tuple(row.get(name, 0.0) for row in steps)
    return samples


def _step_values(records: Sequence[Record], *, steps: int = 1) -> dict[str, float]:
    """Return every per-step metric of one step (module ``metrics`` says which is a mean, a maximum or a ratio).

    Args:
        records: The record of this step of each rank.
        steps: Number of steps that a record covers; times are divided by it.
    """
    span = sum(record["span_ns"] for record in records)
    ms = 1e6 * steps * len(records)  # divides a sum of nanoseconds over ranks to give the mean milliseconds per step
    budgets = [record["budget_ns"] for record in records]
    compute = sum(budget["compute"] for budget in budgets)
    exposed_ns = _sum_by_label(budget["exposed"] for budget in budgets)
    label_ns = _sum_by_label(record["label_ns"] for record in records)
    values = {
        "step_ms": max(record["span_ns"] for record in records) / 1e6 / steps,
        "compute_ms": compute / ms,
        **{f"exposed_ms.{label}": ns / ms for label, ns in exposed_ns.items()},
        **_exposed_by_cause(records, ms),
        **{f"label_ms.{label}": ns / ms for label, ns in label_ns.items() if label not in LABEL_SETS},
    }
    bubbles = [record.get("bubble") or {} for record in records]
    if all(bubble.get("wait_ns") is not None for bubble in bubbles):
        values["wait_ms"] = sum(bubble["wait_ns"] for bubble in bubbles) / ms
    if all(budget["idle"] is not None for budget in budgets):  # None where the trace lacks work that ran
        values["idle_ms"] = sum(budget["idle"] for budget in budgets) / ms
    if span:
        values["compute_fraction"] = compute / span
        if "idle_ms" in values:
            values["idle_fraction"] = values["idle_ms"] * ms / span
        values["other_fraction"] = values.get("label_ms.other", 0.0) * ms / span
        # A lower bound can show that a limit is broken, but never that it holds: it gives no sample.
        if all(bubble.get("fraction") is not None and not bubble.get("lower_bound") for bubble in bubbles):
            bubble_ns = sum(b["fraction"] * record["span_ns"] for b, record in zip(bubbles, records, strict=True))
            values["bubble_fraction"] = bubble_ns / span
            values["bubble_ms"] = values["bubble_fraction"] * span / ms
    return values | _overlaps(records)


def _exposed_by_cause(records: Sequence[Record], ms: float) -> dict[str, float]:
    """Return exposed time by label and cause; empty for an analysis saved by a version without causes."""
    values: defaultdict[str, float] = defaultdict(float)
    for record in records:
        for label, causes in (record.get("exposed_because_ns") or {}).items():
            for cause, ns in causes.items():
                values[f"exposed_ms.{label}.{cause}"] += ns / ms
    return values


def _sum_by_label(tables: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sum numbers by label over *tables*, and add the sums of the label sets (communication, copy)."""
    total: defaultdict[str, float] = defaultdict(int)
    for table in tables:
        for label, value in table.items():
            if isinstance(value, int | float) and label not in ("communication", "copy", "compute"):
                total[label] += value
    for set_name, labels in LABEL_SETS.items():
        present = [total[label] for label in labels if label in total]
        if present:
            total[set_name] = sum(present)
    return total


def _overlaps(records: Sequence[Record]) -> dict[str, float]:
    """Return hidden time / label time, both summed over ranks."""
    hidden: defaultdict[str, float] = defaultdict(float)
    total: defaultdict[str, float] = defaultdict(float)
    for record in records:
        label_ns = {**_sum_by_label([record["label_ns"]]), **(record.get("set_ns") or {})}
        for key, share in (record.get("overlap") or {}).items():
            if share is not None and label_ns.get(key):
                hidden[key] += share * label_ns[key]
                total[key] += label_ns[key]
    return {f"overlap.{key}": hidden[key] / total[key] for key in total}


def _label_samples(document: Mapping[str, Any]) -> Samples:
    """Return the number of events per label, and the time each compute label hides, both per step."""
    ranks = document["ranks"]
    steps = max(len(ranks[0].get("steps") or ()), 1)
    values: defaultdict[str, float] = defaultdict(float)
    for rank in ranks:
        for label, count in (rank.get("label_count") or {}).items():
            values[f"label_count.{label}"] += count / steps
        for label, hidden_ns in (rank.get("hidden_ns") or {}).items():
            for compute, ns in hidden_ns.items():
                if isinstance(ns, int | float):
                    values[f"hidden_ms.{label}.{compute}"] += ns / 1e6 / steps / len(ranks)
    return {name: (value,) for name, value in values.items()}


def _schedule_samples(schedule: Mapping[str, Any]) -> Samples:
    """Return makespan and gap of every step; of several pipelines in a step, those of the slowest."""
    slowest: dict[Any, Mapping[str, Any]] = {}
    for pipeline in schedule.get("pipelines") or ():
        current = slowest.setdefault(pipeline["step"], pipeline)
        if pipeline["measured_ns"] > current["measured_ns"]:
            slowest[pipeline["step"]] = pipeline
    measured, ideal = schedule.get("measured") or {}, schedule.get("ideal") or {}
    whole_run = {
        "measured_ns": measured.get("makespan_ns"),
        "ideal_ns": ideal.get("makespan_ns"),
        "gap_ns": schedule.get("gap_ns"),
    }
    samples: defaultdict[str, list[float]] = defaultdict(list)
    for pipeline in list(slowest.values()) or [whole_run]:
        gap_ns = pipeline.get("gap_ns") or {}
        times = {"makespan_ms": pipeline["measured_ns"], "ideal_makespan_ms": pipeline["ideal_ns"]}
        times |= {f"gap_ms.{cause}": ns for cause, ns in gap_ns.items()}
        if gap_ns:
            times["gap_ms.total"] = sum(gap_ns.values())
        for name, ns in times.items():
            if ns is not None:
                samples[name].append(ns / 1e6)
    outside_cells = measured.get("outside_cells", measured.get("bubble_fraction"))  # older versions wrote the second
    if outside_cells is not None:
        samples["outside_cells"] = [outside_cells]
    return {name: tuple(values) for name, values in samples.items()}


def rate_samples(document: Mapping[str, Any]) -> Samples:
    """Return one sample per run of rates, copies and memory; empty for an analysis saved by an older version.

    >>> rate_samples({"rates": {"tflop_s": 180.5, "utilisation": None}, "memory": {"peak_bytes": 2_000_000_000}})
    {'tflop_s.total': (180.5,), 'peak_gb': (2.0,)}
    """
    rates, memory = document.get("rates") or {}, document.get("memory") or {}
    values: dict[str, float | None] = {
        "tflop_s.total": rates.get("tflop_s"),
        **{f"tflop_s.{row['label']}": row.get("tflop_s") for row in rates.get("by_label") or ()},
        "utilisation": rates.get("utilisation"),
        **_bus_bandwidths(rates.get("communication") or ()),
        **_copy_bandwidths(document.get("copies") or ()),
        **_expert_values(document, rates),
        "peak_gb": None if memory.get("peak_bytes") is None else memory["peak_bytes"] / 1e9,
        **_phase_peaks(memory.get("ranks") or ()),
    }
    return {name: (float(value),) for name, value in values.items() if value is not None}


def _group_by_key(rows: Iterable[Mapping[str, Any]], key: str) -> dict[Any, list[Mapping[str, Any]]]:
    groups: defaultdict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row.get(key)].append(row)
    return groups


def _bus_bandwidths(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean bus bandwidth by label, weighted by transfer time; none if an operation's is unknown."""
    values = {}
    for label, group in _group_by_key(rows, "label").items():
        transfer_ns = sum(row["transfer_ns"] for row in group)
        if transfer_ns and all(row.get("bus_gb_s") is not None for row in group):
            values[f"bus_gb_s.{label}"] = sum(row["bus_gb_s"] * row["transfer_ns"] for row in group) / transfer_ns
    return values


def _copy_bandwidths(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return GB/s of offload and onload over all ranks; none if a rank's bytes are unknown."""
    values = {}
    groups = _group_by_key(rows, "label")
    for label in ("offload", "onload"):
        group = groups.get(label, [])
        ns = sum(row["ns"] for row in group)
        if ns and all(row.get("bytes") is not None for row in group):
            values[f"copy_gb_s.{label}"] = sum(row["bytes"] for row in group) / ns  # bytes per ns = GB/s
    return values


def _expert_values(document: Mapping[str, Any], rates: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the largest load of a rank's experts over the mean, and what the imbalance costs a step."""
    loads = [row["over_mean"] for row in rates.get("experts") or () if row.get("over_mean") is not None]
    cost_ns = (rates.get("expert_cost") or {}).get("step_ns")
    steps = max((len(rank.get("steps") or ()) for rank in document.get("ranks") or ()), default=0) or 1
    return {
        "expert_over_mean": max(loads, default=None),
        "expert_cost_ms": None if cost_ns is None else cost_ns / 1e6 / steps,
    }


def _phase_peaks(ranks: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the largest peak of any rank in each phase, in GB, where it is known exactly."""
    peaks: defaultdict[str, list[Mapping[str, int]]] = defaultdict(list)
    for rank in ranks:
        for phase, peak in (rank.get("by_phase") or {}).items():
            peaks[phase].append(peak)
    values = {}
    for phase, rank_peaks in peaks.items():
        low = max(peak["at_least"] for peak in rank_peaks)
        if low == max(peak["at_most"] for peak in rank_peaks):
            values[f"phase_gb.{phase}"] = low / 1e9
    return values
