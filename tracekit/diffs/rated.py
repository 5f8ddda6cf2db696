"""Samples of how fast a run was and what it held, from an analysis' ``rates``, ``copies`` and ``memory``.

All are known once a run. What is null in the analysis, or a range, is no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Samples = dict[str, tuple[float, ...]]


def rated_samples(document: Mapping[str, Any]) -> Samples:
    """Return the metrics of rates, copies and memory that an analysis has; one saved by an older version has none.

    >>> rated_samples({"rates": {"tflop_s": 180.5, "utilisation": None}, "memory": {"peak_bytes": 2_000_000_000}})
    {'tflop_s.total': (180.5,), 'peak_gb': (2.0,)}
    """
    rates, memory = document.get("rates") or {}, document.get("memory") or {}
    values: dict[str, float | None] = {
        "tflop_s.total": rates.get("tflop_s"),
        **{f"tflop_s.{row['label']}": row.get("tflop_s") for row in rates.get("by_label") or ()},
        "utilisation": rates.get("utilisation"),
        **_bus(rates.get("communication") or ()),
        **_copies(document.get("copies") or ()),
        **_experts(document, rates),
        "peak_gb": _gb(memory.get("peak_bytes")),
        **_phases(memory.get("ranks") or ()),
    }
    return {name: (float(value),) for name, value in values.items() if value is not None}


def _gb(count: float | None) -> float | None:
    return None if count is None else count / 1e9


def _bus(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return bus bandwidth by label, weighed by transfer time; a label with an operation of unknown factor has none."""
    moved: dict[str, float | None] = {}
    took: dict[str, float] = {}
    for row in rows:
        label, bus, known = row["label"], row.get("bus_gb_s"), moved.get(row["label"], 0.0)
        moved[label] = None if bus is None or known is None else known + bus * row["transfer_ns"]
        took[label] = took.get(label, 0.0) + row["transfer_ns"]
    return {f"bus_gb_s.{k}": None if v is None or not took[k] else v / took[k] for k, v in moved.items()}


def _copies(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return GB/s of offload and onload over all ranks; a rank without bytes leaves them unknown."""
    found: dict[str, float | None] = {}
    every = list(rows)
    for label in ("offload", "onload"):
        own = [row for row in every if row.get("label") == label]
        ns = sum(row["ns"] for row in own)
        if ns and all(row.get("bytes") is not None for row in own):
            found[f"copy_gb_s.{label}"] = sum(row["bytes"] for row in own) / ns
    return found


def _experts(document: Mapping[str, Any], rates: Mapping[str, Any]) -> dict[str, float | None]:
    shares = [row["over_mean"] for row in rates.get("experts") or () if row.get("over_mean") is not None]
    cost = rates.get("expert_cost") or {}
    steps = max((len(rank.get("steps") or ()) for rank in document.get("ranks") or ()), default=0) or 1
    felt = cost.get("step_ns")
    return {
        "expert_over_mean": max(shares, default=None),
        "expert_cost_ms": None if felt is None else felt / 1e6 / steps,
    }


def _phases(ranks: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the fullest rank's peak in each phase, where it is no range."""
    peaks: dict[str, list[Mapping[str, int]]] = {}
    for rank in ranks:
        for phase, peak in (rank.get("by_phase") or {}).items():
            peaks.setdefault(phase, []).append(peak)
    found: dict[str, float | None] = {}
    for phase, held in peaks.items():
        low, high = max(peak["at_least"] for peak in held), max(peak["at_most"] for peak in held)
        found[f"phase_gb.{phase}"] = _gb(low) if low == high else None
    return found
