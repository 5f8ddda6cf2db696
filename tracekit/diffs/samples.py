"""One run as the gate sees it: one value per step for every metric, and what makes runs comparable.

Everything is read from the plain data of an analysis (``format: tracekit.analysis/1``), so a saved JSON and a trace
analysed a moment ago are the same to the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tracekit.align.steps import step_times
from tracekit.diffs.metrics import Metric
from tracekit.diffs.rated import rated_samples
from tracekit.errors import InputError
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

FORMAT = "tracekit.analysis/1"
SETS = {"communication": COMMUNICATION_LABELS, "copy": COPY_LABELS}
Rows = Sequence[Mapping[str, Any]]
Record = Mapping[str, Any]
"""One rank and step of an analysis: ``span_ns``, ``budget_ns``, ``label_ns``, ``overlap``, ``bubble``."""


class Run(msgspec.Struct, frozen=True):
    """One run: its samples by metric name, its facts, and the tables that explain a change.

    >>> Run("mine", {"step_ms": (10.0, 10.2)}).steps
    2
    """

    name: str
    samples: Mapping[str, tuple[float, ...]]
    facts: Mapping[str, Any] = {}
    tables: Mapping[str, Any] = {}  # kernels, modules, cells, timeline: what the input held
    document: Mapping[str, Any] | None = None

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return len(self.samples.get("step_ms", ()))

    def values(self, metric: Metric) -> tuple[float, ...]:
        """Return the samples of *metric*, empty when this run does not have it."""
        if metric.name in self.samples:
            return self.samples[metric.name]
        if metric.rank is None or self.document is None:
            return ()
        alone = [r for r in self.document["ranks"] if r["rank"] == metric.rank]
        return _per_step(alone).get(metric.name.split("@", maxsplit=1)[0], ())


def from_analysis(document: Mapping[str, Any], *, name: str, cells: Rows = (), timeline: Rows = ()) -> Run:
    """Read the samples of one analysis.

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
        samples = {**_per_step(ranks), **_per_run(document), **_of_schedule(document.get("schedule") or {})}
        samples |= rated_samples(document)
        return Run(name, samples, facts(document), _tables(document, cells, timeline), document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: the analysis lacks {error}", hint="analyse the trace again") from error


def facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must agree before two runs can be compared."""
    source = document.get("source") or {}
    schedule = document.get("schedule") or {}
    if schedule.get("exact") is False:
        schedule = {"pp": schedule.get("pp")}  # the nearest name is a guess, and a guess is no reason to refuse
    known = {
        "reader": source.get("reader"),
        "world_size": source.get("world_size"),
        "ranks": len(document["ranks"]),
        "gpu": _joined(source.get("devices")),
        "shapes": source.get("shapes") or None,
        "schedule": schedule.get("name"),
        **{key: schedule.get(key) for key in ("pp", "microbatches", "virtual")},
    }
    return {key: value for key, value in known.items() if value is not None}


def _joined(devices: Iterable[str] | str | None) -> str | None:
    if not devices:
        return None
    return devices if isinstance(devices, str) else " + ".join(sorted(set(devices)))


def _tables(document: Mapping[str, Any], cells: Rows, timeline: Rows) -> dict[str, list[Mapping[str, Any]]]:
    kernels = list(document.get("kernels") or ())
    modules = [{k: row[k] for k in ("module", "label", "ns")} for row in kernels if row.get("module")]
    tables = {"kernels": kernels, "modules": modules, "cells": list(cells), "timeline": list(timeline)}
    return {name: rows for name, rows in tables.items() if rows}


def _per_step(ranks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    """One value per step that every rank has; an analysis without steps is one sample."""
    by_rank = [{s["step"]: s for s in r["per_step"]} if r.get("per_step") else {} for r in ranks]
    if by_rank and all(by_rank):
        times = step_times({at: {step: s["span_ns"] for step, s in by.items()} for at, by in enumerate(by_rank)})
        rows = [{**step_values([by[step] for by in by_rank]), "step_ms": ns / 1e6} for step, (ns, _) in times.items()]
    else:
        count = max(len(ranks[0].get("steps") or ()), 1) if ranks else 1
        rows = [step_values(ranks, steps=count)] if ranks else []
    names = {n: None for row in rows for n in row}
    # A label that is missing in a step took no time in it; a share of nothing is unknown and is left out.
    return {
        n: tuple(row.get(n, 0.0) for row in rows) if "_ms" in n else tuple(row[n] for row in rows if n in row)
        for n in names
    }


def step_values(records: Sequence[Record], *, steps: int = 1) -> dict[str, float]:
    """Every per-step metric of one step from the ranks' records of it (see ``metrics`` for what is averaged how)."""
    count, span = len(records), sum(r["span_ns"] for r in records)
    ms = 1e6 * steps * count
    budgets = [r["budget_ns"] for r in records]
    compute = sum(b["compute"] for b in budgets)
    values = {
        "step_ms": max(r["span_ns"] for r in records) / 1e6 / steps,
        "compute_ms": compute / ms,
        **{f"exposed_ms.{k}": v / ms for k, v in _summed(b["exposed"] for b in budgets).items()},
        **_causes(records, ms),
        **{f"label_ms.{k}": v / ms for k, v in _summed(r["label_ns"] for r in records).items() if k not in SETS},
    }
    bubbles = [r.get("bubble") or {} for r in records]
    if all(b.get("wait_ns") is not None for b in bubbles):
        values["wait_ms"] = sum(b["wait_ns"] for b in bubbles) / ms
    if all(b["idle"] is not None for b in budgets):  # not known where work ran that the trace does not show
        values["idle_ms"] = sum(b["idle"] for b in budgets) / ms
    if span:
        values["compute_fraction"] = compute / span
        if "idle_ms" in values:
            values["idle_fraction"] = values["idle_ms"] * ms / span
        values["other_fraction"] = values.get("label_ms.other", 0.0) * ms / span
        # A lower bound can show that a limit is broken and never that it holds: it is no sample.
        if all(b.get("fraction") is not None and not b.get("lower_bound") for b in bubbles):
            values["bubble_fraction"] = (
                sum(b["fraction"] * r["span_ns"] for b, r in zip(bubbles, records, strict=True)) / span
            )
            values["bubble_ms"] = values["bubble_fraction"] * span / ms
    return values | _overlaps(records)


def _causes(records: Sequence[Record], ms: float) -> dict[str, float]:
    """Exposed time by label and cause; an analysis saved before causes were known has none."""
    total: dict[str, float] = {}
    for record in records:
        for label, causes in (record.get("exposed_because_ns") or {}).items():
            for cause, ns in causes.items():
                name = f"exposed_ms.{label}.{cause}"
                total[name] = total.get(name, 0.0) + ns / ms
    return total


def _summed(tables: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sum by label, with the two sets that the labels form."""
    total: dict[str, float] = {}
    for table in tables:
        for label, value in table.items():
            if isinstance(value, int | float) and label not in ("communication", "copy", "compute"):
                total[label] = total.get(label, 0) + value
    for name, members in SETS.items():
        present = [total[m] for m in members if m in total]
        if present:
            total[name] = sum(present)
    return total


def _overlaps(records: Sequence[Record]) -> dict[str, float]:
    """Hidden over total, summed over ranks: each rank's share weighs by how long the label ran there."""
    hidden: dict[str, float] = {}
    total: dict[str, float] = {}
    for record in records:
        weights = {**_summed([record["label_ns"]]), **(record.get("set_ns") or {})}
        for key, share in (record.get("overlap") or {}).items():
            if share is not None and weights.get(key):
                hidden[key] = hidden.get(key, 0.0) + share * weights[key]
                total[key] = total.get(key, 0.0) + weights[key]
    return {f"overlap.{k}": hidden[k] / total[k] for k in total}


def _per_run(document: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    ranks = document["ranks"]
    steps = max(len(ranks[0].get("steps") or ()), 1)
    values: dict[str, float] = {}
    for rank in ranks:
        for label, count in (rank.get("label_count") or {}).items():
            values[f"label_count.{label}"] = values.get(f"label_count.{label}", 0) + count / steps
        for label, by in (rank.get("hidden_ns") or {}).items():
            for compute, ns in by.items():
                if isinstance(ns, int | float):
                    name = f"hidden_ms.{label}.{compute}"
                    values[name] = values.get(name, 0.0) + ns / 1e6 / steps / len(ranks)
    return {name: (value,) for name, value in values.items()}


def _of_schedule(schedule: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Makespan and gap of every step; of several pipelines, the slowest one's."""
    by_step: dict[Any, Mapping[str, Any]] = {}
    for line in schedule.get("pipelines") or ():
        slowest = by_step.get(line["step"])
        if slowest is None or line["measured_ns"] > slowest["measured_ns"]:
            by_step[line["step"]] = line
    lines = list(by_step.values()) or [
        {"measured_ns": (schedule.get("measured") or {}).get("makespan_ns"),
         "ideal_ns": (schedule.get("ideal") or {}).get("makespan_ns"), "gap_ns": schedule.get("gap_ns")}
    ]  # fmt: skip
    samples: dict[str, list[float]] = {}
    for line in lines:
        gap = line.get("gap_ns") or {}
        times = {"makespan_ms": line["measured_ns"], "ideal_makespan_ms": line["ideal_ns"],
                 **{f"gap_ms.{cause}": ns for cause, ns in gap.items()}}  # fmt: skip
        if gap:
            times["gap_ms.total"] = sum(gap.values())
        for name, ns in times.items():
            if ns is not None:
                samples.setdefault(name, []).append(ns / 1e6)
    measured = schedule.get("measured") or {}
    share = measured.get("outside_cells", measured.get("bubble_fraction"))  # the second: saved by an older version
    extra = {} if share is None else {"outside_cells": (share,)}
    return {**{name: tuple(values) for name, values in samples.items()}, **extra}
