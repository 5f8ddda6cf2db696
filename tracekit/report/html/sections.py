"""The page's smaller tables as plain rows: idle time, hiders, phases, kernels, copies, stragglers, steps, reload."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.palette import LABEL_COLOURS
from tracekit.schema import IDLE_CAUSES, PHASES

MOST_ROWS = 32
"""Rows of a table with one or more a rank."""
MOST_IDLE = 16
MOST_KERNELS = 20
MOST_STEPS = 100
MOST_BESIDE = 4
"""Compute labels named beside one label."""
LANE_PHASES = (*PHASES, "FB")


def page_sections(analysis: Analysis) -> dict[str, Any]:
    """Every section that may have nothing to say; then it is empty."""
    return {
        "idle": _idle(analysis),
        "beside": beside(analysis),
        "phases": _phases(analysis),
        "stragglers": _stragglers(analysis),
        "steps": _steps(analysis),
        "copies": _copies(analysis),
        "kernels": _kernels(analysis),
        "reload": _reload(analysis),
    }


def _idle(analysis: Analysis) -> list[dict[str, Any]]:
    """Why each rank was idle, the largest bubble first."""
    known = [one for one in analysis.ranks if one.whole.idle_known and one.whole.budget.span_ns]
    known.sort(key=lambda one: -(one.whole.bubble_fraction or 0.0))
    rows = []
    for one in known[:MOST_IDLE]:
        idle = one.whole.budget.idle_ns
        causes = {name: (one.idle_causes.get(name, 0) / idle if idle else None) for name in IDLE_CAUSES}
        bubble = {"bubble": one.whole.bubble_words, "lower_bound": one.whole.lower_bound}
        rows.append({"rank": one.rank, "ns": idle, "wait_ns": one.whole.bubble.wait_ns, **causes, **bubble})
    return rows if any(row["ns"] or row["wait_ns"] for row in rows) else []


def beside(analysis: Analysis, *, most: int = MOST_BESIDE) -> list[dict[str, Any]]:
    """What ran beside each label and pass: the compute label and module, the largest first.

    >>> from tracekit import analyze
    >>> beside(analyze("sample_traces/1f1b"))[0]["beside"]
    'attention forward 1.3 %'
    """
    found = analysis.tables["hidden"].filter("detail", pl.col("step").is_null())
    keys = ["label", "pass"]
    times = found.unique(["rank", *keys]).group_by(keys).agg(pl.col("of_ns").sum())
    sums = (
        found.group_by(*keys, "by", "by_module", maintain_order=True)
        .agg(pl.col("ns").sum())
        .join(times, on=keys, nulls_equal=True, maintain_order="left")
        .filter(pl.col("ns") > 0, pl.col("ns") * 100 >= pl.col("of_ns"))
    )
    rows = []
    for part in sums.partition_by(keys, maintain_order=True):
        top = part.sort("ns", descending=True).head(most).rows(named=True)
        said = [f"{' '.join(filter(None, (r['by_module'], r['by'])))} {percent(r['ns'] / r['of_ns'])}" for r in top]
        mean = top[0]["of_ns"] / max(1, len(analysis.ranks))
        rows.append({"label": top[0]["label"], "pass": top[0]["pass"], "ns": mean, "beside": ", ".join(said)})
    return rows


def _phases(analysis: Analysis) -> list[dict[str, Any]]:
    """Share of expert communication and copies that compute hides, phase by phase."""
    if analysis.schedule is None:
        return []
    lanes = analysis.schedule.lanes.filter(pl.col("label").is_in(["ep_dispatch", "ep_combine", "offload", "onload"]))
    rows = []
    for (label, way), part in lanes.group_by("label", "pass", maintain_order=True):
        sums = [part.filter(phase=phase).select(pl.col("hidden_ns", "total_ns").sum()).row(0) for phase in LANE_PHASES]
        shares = [hidden / total if total else None for hidden, total in sums]
        rows.append({"name": f"{label} {way or ''}".strip(), "shares": shares})
    return sorted(rows, key=lambda row: str(row["name"]))


def _kernels(analysis: Analysis) -> list[dict[str, Any]]:
    """The kernels that took longest, in a step, as a mean over ranks."""
    steps = max(1, sum(len(one.per_step) for one in analysis.ranks))
    span = max(1.0, analysis.total.budget.span_ns / steps)
    table = analysis.tables["kernels"].sort("ns", descending=True).head(MOST_KERNELS)
    return [{**row, "colour": LABEL_COLOURS[row["label"]], "share": row["ns"] / span} for row in table.to_dicts()]


def _reload(analysis: Analysis) -> dict[str, Any] | None:
    """Facts of a weight update and its lanes."""
    if analysis.reload is None:
        return None
    found = analysis.reload.to_dict()
    shares = [one["reload_under_broadcast"] for one in found["hidden"] if one["reload_under_broadcast"] is not None]
    sizes = (counted(found["rounds"], "round"), counted(found["buckets"], "bucket"), counted(found["owners"], "owner"))
    sources = ["?" if rank is None else str(rank) for rank in found["sources"]]
    facts = [
        ("rounds and buckets", ", ".join(sizes)),
        ("broadcast from ranks", " ".join(sources[:64]) + (" …" if len(sources) > 64 else "")),
        ("measured", ms(found["measured_ns"])),
        ("two-buffer ideal", ms(found["ideal_ns"])),
        ("reload hidden under broadcast", percent(sum(shares) / len(shares)) if shares else "–"),
    ]
    return {"facts": facts, "lanes": found["lanes"][:MOST_ROWS], "more": max(0, len(found["lanes"]) - MOST_ROWS)}


def _copies(analysis: Analysis) -> dict[str, Any] | None:
    """Copies between host and device and into weights; memsets and moves on the device are in the budget."""
    table = analysis.tables["copies"].filter(pl.col("label") != "memory").sort("stall_ns", descending=True)
    if table.is_empty():
        return None
    shown = table.head(MOST_ROWS).sort("rank", "label", maintain_order=True).to_dicts()
    return {"rows": shown, "more": max(0, len(table) - MOST_ROWS)}


def _stragglers(analysis: Analysis) -> list[dict[str, Any]]:
    rows = analysis.tables["stragglers"].sort("caused_ns", descending=True).head(10).to_dicts()
    worst = max((row["caused_ns"] for row in rows), default=0) or 1
    return [{**row, "share": row["caused_ns"] / worst} for row in rows if row["caused_ns"]]


def _steps(analysis: Analysis) -> dict[str, Any] | None:
    """The spread of each step over ranks; nothing where there is one step."""
    table = analysis.tables["steps"]
    if table["step"].n_unique() < 2:
        return None
    spans = table.group_by("step").agg(
        pl.col("span_ns").min().alias("least"),
        pl.col("span_ns").median(),
        pl.col("span_ns").max().alias("most"),
        pl.col("partial").any(),
    )
    widest = int(spans["most"].to_numpy().max(initial=1))
    shown = spans.sort("step").head(MOST_STEPS).to_dicts()
    rows = [{**row, "share": row["span_ns"] / widest} for row in shown]
    return {"rows": rows, "more": max(0, len(spans) - MOST_STEPS), "one": table["rank"].n_unique() == 1}
