"""The smaller sections of the terminal report: bubbles, stragglers, steps, copies, reload, warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, percent
from tracekit.analysis import Analysis
from tracekit.report.html.fleet import few_alike
from tracekit.report.terminal.budget import MANY, SHOWN, note, table
from tracekit.schema import IDLE_CAUSES, PHASES


def bubbles(analysis: Analysis, width: int) -> RenderableType | None:
    """Split each rank's bubble: why it was idle, where it waited, in which phase."""
    total = analysis.total
    if not total.budget.span_ns or (total.idle_known and not (total.budget.idle_ns or total.bubble.least_wait_ns)):
        return None
    phased = "pp_comm" in total.label_ns and any(one.phases for one in analysis.ranks)
    shown = _shown_causes(analysis)
    columns = ["rank", "idle ms", *(IDLE_CAUSES[cause] for cause in shown)]
    columns += ["pp wait ms", "bubble"] if total.pipeline else []
    made = table(*columns, *(PHASES if phased and width >= 96 else []))
    ranks = sorted(analysis.ranks, key=lambda one: -(one.whole.bubble_fraction or one.whole.budget.idle_ns))
    for one in ranks if len(ranks) <= MANY else ranks[:SHOWN]:
        whole, idle = one.whole, one.whole.budget.idle_ns
        causes = [percent(one.idle_causes.get(cause), idle) for cause in shown]
        row = [
            str(one.rank),
            bare_ms(idle if whole.idle_known else None),
            *causes,
            *([bare_ms(whole.bubble.wait_ns), whole.bubble_words] if total.pipeline else []),
        ]
        if len(made.columns) > len(columns):
            row += [bare_ms(_in_phase(one.phases, phase)) for phase in PHASES]
        made.add_row(*row)
    notes = [f"{', '.join(IDLE_CAUSES[cause] for cause in shown)}: shares of idle"]
    if len(made.columns) > len(columns):
        notes.append("phases: bubble in ms")
    if len(ranks) > MANY:
        notes.append(f"the {SHOWN} worst of {len(ranks)} ranks")
    return Group(made, note("; ".join(notes)))


def _shown_causes(analysis: Analysis) -> list[str]:
    """Return the causes of idle time worth a column: the usual two, and others that there are."""
    usual = ("launch_bound", "dependency")
    return [c for c in IDLE_CAUSES if c in usual or any(one.idle_causes.get(c) for one in analysis.ranks)]


def _in_phase(phases: Sequence[Mapping[str, Any]], name: str) -> int | None:
    rows = [p for p in phases if p["phase"] == name]
    if not rows or any(p["idle_ns"] is None for p in rows):
        return None
    return sum(int(p["idle_ns"]) + int(p["wait_ns"] or 0) for p in rows)


def stragglers(analysis: Analysis, width: int) -> RenderableType | None:
    """Name the ranks that arrive last, by the waiting they cause."""
    found = analysis.tables["stragglers"]
    if found.is_empty():
        return None
    made = table("rank", "label", "others waited ms", "operations", left=("label",))
    for row in found.head(SHOWN).iter_rows(named=True):
        made.add_row(str(row["rank"]), row["label"], bare_ms(row["caused_ns"]), f"{row['operations']:,}")
    residual = analysis.clocks.residual_ns
    moved = analysis.clocks.table.filter(pl.col("offset_ns") != 0)
    text = "the rank that starts a matched operation last; others' wait in it, summed over ranks"
    if residual is not None:
        text += f". Matched ends agree to {residual / 1e3:.1f} µs (median)"
        text += f"; {len(moved)} clocks were corrected" if len(moved) else ""
    return Group(made, note(text))


def spread(analysis: Analysis, width: int) -> RenderableType | None:
    """Show how much steps differ, where there are several."""
    steps = analysis.tables["steps"].filter(pl.col("step").is_not_null())
    if steps["step"].n_unique() < 2:
        return None
    by_step = (
        steps.group_by("step")
        .agg(
            low=pl.col("span_ns").min(),
            middle=pl.col("span_ns").median(),
            high=pl.col("span_ns").max(),
            slowest=pl.col("rank").sort_by("span_ns").last(),
            partial=pl.col("partial").any(),
        )
        .sort("middle", descending=True)
    )
    made = table("step", "median ms", "fastest rank", "slowest rank", "which", "")
    for row in by_step.head(SHOWN).iter_rows(named=True):
        times = (bare_ms(row[name]) for name in ("middle", "low", "high"))
        made.add_row(str(row["step"]), *times, str(row["slowest"]), "partial" if row["partial"] else "")
    middle = by_step["middle"]
    low, high = middle.min(), middle.max()
    return Group(made, note(f"{len(by_step)} steps, slowest first: {bare_ms(low)} to {bare_ms(high)} ms"))  # type: ignore[arg-type]


def copies(analysis: Analysis, width: int) -> RenderableType | None:
    """Report offload, onload and other copies: bytes, bandwidth, hidden share, stalls."""
    found = (
        analysis.tables["copies"]
        .filter(pl.col("bytes").is_not_null())
        .group_by("label", maintain_order=True)
        .agg(pl.col("count", "bytes", "ns", "hidden_ns", "stall_ns", "stalls").sum())
        .filter(pl.col("ns") * 200 > analysis.total.budget.span_ns)
        .sort("stall_ns", descending=True)
    )
    if found.is_empty():
        return None
    made = table("label", "copies", "MB", "GB/s", "hidden", "stall ms", "stalls", left=("label",))
    for row in found.iter_rows(named=True):
        rates = (f"{row['bytes'] / 1e6:,.1f}", f"{row['bytes'] / row['ns']:,.1f}", percent(row["hidden_ns"], row["ns"]))
        made.add_row(row["label"], f"{row['count']:,}", *rates, bare_ms(row["stall_ns"]), f"{row['stalls']:,}")
    return Group(
        made, note("all ranks; GB/s: bytes / union of the copies' time; stall: exposed time charged to the copy")
    )


def reload(analysis: Analysis, width: int) -> RenderableType | None:
    """Show a weight update against the two-buffer ideal."""
    found = analysis.reload
    if found is None:
        return None
    sources = ", ".join("?" if s is None else str(s) for s in found.sources[:16]) + (" …" if found.buckets > 16 else "")
    made = table("lane", "copies", "MB", "ms a rank", "GB/s", left=("lane",))
    for row in (
        found.lanes.group_by("lane", maintain_order=True)
        .agg(pl.col("count", "bytes", "ns").sum(), ranks=pl.len())
        .iter_rows(named=True)
    ):
        rate = f"{row['bytes'] / row['ns']:,.1f}" if row["bytes"] and row["ns"] else "–"
        size = f"{row['bytes'] / 1e6:,.1f}" if row["bytes"] is not None else "–"
        made.add_row(row["lane"], f"{row['count']:,}", size, bare_ms(row["ns"] / row["ranks"]), rate)
    hidden = found.hidden["reload_under_broadcast"].mean()
    ahead = found.hidden["h2d_under_others"].mean()
    lines = [
        f"{found.rounds} rounds, {found.buckets} buckets, broadcast by rank {sources}",
        f"{percent(hidden)} of reload runs under a broadcast, {percent(ahead)} of H2D under other work",  # type: ignore[arg-type]
        f"took {bare_ms(found.measured_ns)} ms; with two buffers and no waiting {bare_ms(found.ideal_ns)} ms "
        f"(H2D {bare_ms(found.h2d_ns)}, broadcast {bare_ms(found.broadcast_ns)}, reload {bare_ms(found.reload_ns)})",
    ]
    return Group(made, *(note(line, style="") for line in lines))


def warnings(analysis: Analysis, width: int) -> RenderableType | None:
    """List what was lost, missing or chosen on the way."""
    if not analysis.notices:
        return None
    lines = []
    for said in few_alike(analysis.notices):
        body = textwrap.fill(said.message, max(40, width - 4), subsequent_indent="    ")
        lines.append(Text(f"  ! {body}", style="yellow"))
    return Group(*lines)
