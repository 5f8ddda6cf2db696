"""The page's static parts as plain rows: budget bars, what hides what, the gap, stragglers, steps, definitions."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.analysis import Analysis
from tracekit.analysis.result import Measured
from tracekit.metrics.lanes import COMPUTE_SET
from tracekit.report.page_fleet import few_alike, page_fleet
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.summary import CAUSES, ms, percent
from tracekit.report.terminal import DEFINITIONS
from tracekit.schema import LABELS

MOST_RANKS = 64
"""Ranks with a bar of their own; of more, those that differ most are shown."""
MOST_KERNELS = 20
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
        "bars": [_bar(f"rank {one.rank}", one.whole) for one in shown],
        "hidden_ranks": len(analysis.ranks) - len(shown),
        "all_ranks": _bar("all ranks", analysis.total),
        "legend": _legend(analysis.total),
        "labels": _labels(analysis.total),
        "matrix": _matrix(analysis.total),
        "schedule": _schedule(analysis),
        "stragglers": _stragglers(analysis),
        "steps": _steps(analysis),
        "copies": _copies(analysis),
        "kernels": _kernels(analysis),
        "reload": _reload(analysis),
        "fleet": page_fleet(analysis),
        "warnings": few_alike(analysis.notices),
        "definitions": (*DEFINITIONS, *SCHEDULE_DEFINITIONS) if analysis.schedule is not None else DEFINITIONS,
    }


def _title(analysis: Analysis) -> str:
    held = analysis.schedule
    what = f"{held.name} on {_ranks(held.pp)}" if held is not None else _ranks(len(analysis.ranks))
    return f"tracekit: {what}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _shown(analysis: Analysis) -> list[Any]:
    """Every rank of a small run; of a large one, those furthest from the median share of compute."""
    ranks = list(analysis.ranks)
    if len(ranks) <= MOST_RANKS:
        return ranks
    share = pl.Series([one.whole.budget.compute_ns / max(1, one.whole.budget.span_ns) for one in ranks])
    far = (share - share.median()).abs().arg_sort(descending=True)[:MOST_RANKS].sort()
    return [ranks[int(i)] for i in far]


def _bar(name: str, whole: Measured) -> dict[str, Any]:
    span = max(1, whole.budget.span_ns)
    parts = [("compute", whole.budget.compute_ns, COMPUTE_COLOUR)]
    parts += [(label, ns, LABEL_COLOURS[label]) for label, ns in whole.budget.exposed_ns.items() if ns]
    if whole.idle_known:
        parts.append(("idle", whole.budget.idle_ns, IDLE_COLOUR))
    return {
        "name": name,
        "span_ns": whole.budget.span_ns,
        "parts": [
            {"name": part, "ns": ns, "share": ns / span, "colour": colour, "idle": part == "idle"}
            for part, ns, colour in parts
        ],
        "bubble": whole.bubble_fraction,
        "lower_bound": whole.lower_bound,
        "wait_ns": whole.bubble.wait_ns,
    }


def _legend(total: Measured) -> list[tuple[str, str]]:
    exposed = [(f"exposed {label}", LABEL_COLOURS[label]) for label, ns in total.budget.exposed_ns.items() if ns]
    return [("compute", COMPUTE_COLOUR), *exposed, ("idle", IDLE_COLOUR)]


def _labels(total: Measured) -> list[dict[str, Any]]:
    span = max(1, total.budget.span_ns)
    return [
        {
            "label": label,
            "colour": LABEL_COLOURS[label],
            "ns": total.label_ns[label],
            "share": total.label_ns[label] / span,
            "count": total.label_count.get(label, 0),
            "overlap": None if label in COMPUTE_SET else total.overlap.get(label),
            "wait_ns": total.wait_ns.get(label),
        }
        for label in LABELS
        if total.label_ns.get(label)
    ]


def _matrix(total: Measured) -> dict[str, Any] | None:
    rows = {label: by for label, by in total.hidden_by_ns.items() if total.label_ns.get(label)}
    columns = [label for label in LABELS if any(by.get(label) for by in rows.values())]
    if not rows:
        return None
    return {
        "columns": columns,
        "rows": [
            {
                "label": label,
                "ns": total.label_ns[label],
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
        "what_if": found["what_if"],
    }


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
                    "name": CAUSES.get(cause, cause),
                    "from": low,
                    "to": high,
                    "ns": ns,
                    "kind": "more" if ns > 0 else "less",
                }
            )
            at += ns
    bars.append({"name": "measured", "from": 0, "to": measured_ns, "ns": measured_ns, "kind": "total"})
    widest = max(int(bar["to"]) for bar in bars) or 1
    return [{**bar, "left": bar["from"] / widest, "width": (bar["to"] - bar["from"]) / widest} for bar in bars]


def _kernels(analysis: Analysis) -> list[dict[str, Any]]:
    """The kernels that took longest, as a mean over ranks."""
    table = analysis.tables["kernels"].sort("ns", descending=True).head(MOST_KERNELS)
    return [{**row, "colour": LABEL_COLOURS[row["label"]]} for row in table.to_dicts()]


def _reload(analysis: Analysis) -> dict[str, Any] | None:
    """Facts of a weight update and its lanes."""
    if analysis.reload is None:
        return None
    found = analysis.reload.to_dict()
    shares = [one["reload_under_broadcast"] for one in found["hidden"] if one["reload_under_broadcast"] is not None]
    facts = [
        ("rounds and buckets", f"{found['rounds']} rounds, {found['buckets']} buckets, {found['owners']} owners"),
        ("broadcast from", " ".join(map(str, found["sources"][:64]))),
        ("measured", ms(found["measured_ns"])),
        ("two-buffer ideal", ms(found["ideal_ns"])),
        ("reload hidden under broadcast", percent(sum(shares) / len(shares)) if shares else "–"),
    ]
    return {"facts": facts, "lanes": found["lanes"][:MOST_RANKS]}


def _copies(analysis: Analysis) -> list[dict[str, Any]]:
    """Copies between host and device and into weights; memsets and moves on the device are in the budget."""
    table = analysis.tables["copies"].filter(pl.col("label") != "memory")
    return table.head(MOST_RANKS).to_dicts()


def _stragglers(analysis: Analysis) -> list[dict[str, Any]]:
    rows = analysis.tables["stragglers"].sort("caused_ns", descending=True).head(10).to_dicts()
    worst = max((row["caused_ns"] for row in rows), default=0) or 1
    return [{**row, "share": row["caused_ns"] / worst} for row in rows if row["caused_ns"]]


def _steps(analysis: Analysis) -> list[dict[str, Any]]:
    """The spread of each step over ranks; nothing where there is one step."""
    table = analysis.tables["steps"]
    if table["step"].n_unique() < 2:
        return []
    spans = table.group_by("step").agg(
        pl.col("span_ns").min().alias("least"), pl.col("span_ns").median(), pl.col("span_ns").max().alias("most")
    )
    widest = int(spans["most"].to_numpy().max(initial=1))
    return [{**row, "share": row["span_ns"] / widest} for row in spans.sort("step").to_dicts()]
