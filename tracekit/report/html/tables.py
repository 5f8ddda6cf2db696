"""The page's static parts as plain rows: budget bars, what hides what, the gap, stragglers, steps, definitions."""

from __future__ import annotations

from typing import Any

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.analysis.result import Measured, RankResult
from tracekit.metrics.lanes import COMPUTE_SET
from tracekit.report.advice import DEFINITIONS, asked
from tracekit.report.html.fleet import few_alike, page_fleet
from tracekit.report.html.sections import page_sections
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.summary import sizes, which
from tracekit.schema import GAP_CAUSES, LABELS

MOST_RANKS = 64
"""Ranks that all have a bar of their own …"""
FEW_RANKS = 16
"""… and how many of more ranks have one."""
LOUD = 0.01
"""Share of the span above which work of no known label stands out."""
COMPUTE_COLOUR = "#009E73"
SCHEDULE_DEFINITIONS = (
    ("cell", "one op of one stage on one micro-batch: its first kernel's start to its last kernel's end on the rank"),
    ("schedule's bubble", "time a rank is in no cell / (ranks × makespan), so a cell's own stalls are not in it"),
    ("ideal", "the same order simulated with the median time of every op, messages free"),
)


def page_tables(analysis: Analysis) -> dict[str, Any]:
    """Everything the template needs beside the timelines."""
    shown = _shown(analysis)
    return {
        "title": _title(analysis),
        "source": analysis.to_dict()["source"],
        "devices": sorted({device for source in analysis.sources for device in source.devices}),
        "steps_named": steps_named(analysis),
        "bars": [_bar(f"rank {one.rank}", one.whole) for one in shown],
        "hidden_ranks": len(analysis.ranks) - len(shown),
        "mean": _bar("mean", analysis.total, of=len(analysis.ranks)),
        "legend": _legend(analysis.total),
        "labels": _labels(analysis),
        "matrix": _matrix(analysis),
        "schedule": _schedule(analysis),
        **page_sections(analysis),
        "fleet": page_fleet(analysis),
        "warnings": few_alike(analysis.notices),
        "definitions": (*DEFINITIONS, *SCHEDULE_DEFINITIONS) if analysis.schedule is not None else DEFINITIONS,
    }


def _title(analysis: Analysis) -> str:
    ranks = counted(len(analysis.ranks), "rank")
    if analysis.schedule is not None:
        return f"tracekit: {analysis.schedule.name} on {ranks}"
    name = (asked(analysis) or "").rstrip("/").rpartition("/")[2].partition("?")[0]
    return f"tracekit: {name}, {ranks}" if name.strip(".") else f"tracekit: {ranks}"


def steps_named(analysis: Analysis) -> str:
    """Return which steps were analyzed.

    >>> from tracekit import analyze
    >>> steps_named(analyze("sample_traces/reload", schedule="none"))
    'step 2'
    """
    steps = sorted({step for one in analysis.ranks for step in one.steps})
    if not steps:
        return "no step marks"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}"


def _shown(analysis: Analysis) -> list[RankResult]:
    """Every rank of a small run; of a large one a few, evenly spread from the least compute to the most."""
    ranks = list(analysis.ranks)
    if len(ranks) <= MOST_RANKS:
        return ranks
    ordered = sorted(ranks, key=lambda one: one.whole.budget.compute_ns / max(1, one.whole.budget.span_ns))
    return [ordered[round(at * (len(ranks) - 1) / (FEW_RANKS - 1))] for at in range(FEW_RANKS)]


def _bar(name: str, whole: Measured, *, of: int = 1) -> dict[str, Any]:
    """A bar's parts; of a sum over ranks, times are the mean of so many."""
    span = max(1, whole.budget.span_ns)
    parts = [("compute", whole.budget.compute_ns, COMPUTE_COLOUR)]
    parts += [(label, ns, LABEL_COLOURS[label]) for label, ns in whole.budget.exposed_ns.items() if ns]
    if whole.idle_known:
        parts.append(("idle", whole.budget.idle_ns, IDLE_COLOUR))
    if whole.budget.unrecorded_ns:
        parts.append(("not recorded", whole.budget.unrecorded_ns, UNRECORDED_COLOUR))
    return {
        "name": name,
        "span_ns": whole.budget.span_ns / max(1, of),
        "parts": [
            {
                "name": part,
                "ns": ns / max(1, of),
                "share": ns / span,
                "colour": colour,
                "idle": part in ("idle", "not recorded"),
            }
            for part, ns, colour in parts
        ],
        "bubble": whole.bubble_words if whole.pipeline else None,
        "lower_bound": whole.lower_bound,
    }


def _legend(total: Measured) -> list[tuple[str, str]]:
    exposed = [(f"exposed {label}", LABEL_COLOURS[label]) for label, ns in total.budget.exposed_ns.items() if ns]
    idle = [("idle", IDLE_COLOUR)] if total.idle_known else []
    lost = [("not recorded", UNRECORDED_COLOUR)] if total.budget.unrecorded_ns else []
    return [("compute", COMPUTE_COLOUR), *exposed, *idle, *lost]


def _labels(analysis: Analysis) -> list[dict[str, Any]]:
    """What ran, as a mean over ranks."""
    total, ranks = analysis.total, max(1, len(analysis.ranks))
    span = max(1, total.budget.span_ns)
    return [
        {
            "label": label,
            "colour": LABEL_COLOURS[label],
            "ns": total.label_ns[label] / ranks,
            "share": total.label_ns[label] / span,
            "count": total.label_count.get(label, 0) / ranks,
            "overlap": None if label in COMPUTE_SET else total.overlap.get(label),
            "wait_ns": None if (wait := total.wait_ns.get(label)) is None else wait / ranks,
            "loud": label == "other" and total.label_ns[label] > LOUD * span,
        }
        for label in LABELS
        if total.label_ns.get(label)
    ]


def _matrix(analysis: Analysis) -> dict[str, Any] | None:
    total = analysis.total
    rows = {label: by for label, by in total.hidden_by_ns.items() if total.label_ns.get(label)}
    columns = [label for label in LABELS if any(by.get(label) for by in rows.values())]
    if not rows:
        return None
    return {
        "columns": columns,
        "rows": [
            {
                "label": label,
                "ns": total.label_ns[label] / max(1, len(analysis.ranks)),
                "cells": [by.get(column, 0) / total.label_ns[label] for column in columns],
                "exposed": 1 - (total.overlap.get(label) or 0.0),
            }
            for label, by in rows.items()
        ],
    }


def _schedule(analysis: Analysis) -> dict[str, Any] | None:
    held = analysis.schedule
    if held is None:
        return None
    found = held.to_dict()
    return {
        **found,
        "waterfall": _waterfall(held.head.ideal_ns, held.head.measured_ns, held.gap_ns),
        "orders": list(zip(found["pipeline_ranks"], found["ranks"], strict=True)),
        "sizes": sizes(held),
        "which": which(held) or ("" if held.head.pipeline.step is None else f"step {held.head.pipeline.step}"),
        "differing": [_difference(found["pipeline_ranks"], one) for one in found["differences"]],
    }


def _difference(ranks: list[int], one: dict[str, Any]) -> str:
    ran, want = (" ".join(one[side]) or "nothing" for side in ("measured", "expected"))
    return f"rank {ranks[one['rank']]}, cell {one['position']}: ran {ran}, the schedule has {want}"


def _waterfall(ideal_ns: int, measured_ns: int, gap_ns: Any) -> list[dict[str, Any]] | None:
    """Bars from the ideal to the measured makespan, in shares of the widest."""
    if gap_ns is None:
        return None
    bars: list[dict[str, Any]] = [{"name": "ideal", "from": 0, "to": ideal_ns, "ns": ideal_ns, "kind": "total"}]
    at = ideal_ns
    for cause, ns in sorted(gap_ns.items(), key=lambda item: (item[0] == "unexplained", -item[1])):
        if ns:
            low, high = sorted((at, at + ns))
            bars.append(
                {
                    "name": GAP_CAUSES[cause].words,
                    "from": low,
                    "to": high,
                    "ns": ns,
                    "kind": "more" if ns > 0 else "less",
                }
            )
            at += ns
    bars.append({"name": "measured", "from": 0, "to": measured_ns, "ns": measured_ns, "kind": "total"})
    gap = measured_ns - ideal_ns
    for bar in bars:
        bar["share"] = bar["ns"] / gap if bar["kind"] != "total" and gap > 0 else None
    widest = max(int(bar["to"]) for bar in bars) or 1
    return [{**bar, "left": bar["from"] / widest, "width": (bar["to"] - bar["from"]) / widest} for bar in bars]
