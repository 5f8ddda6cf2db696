"""The critical path in the terminal: its longest segments, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from rich.console import Group, RenderableType

from tracekit._util.text import bare_ms, counted, percent
from tracekit.report.terminal.table import note, table
from tracekit.report.view import View

LONGEST = 10
"""Segments that are listed."""
_WIDEST = 44


def critical(view: View, width: int) -> RenderableType | None:
    """List the longest segments of the slowest step's path, and sum up the whole."""
    path = view.analysis.critical
    if path is None or path.segments.is_empty():
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    spans = path.segments.group_by("step", maintain_order=True).agg(span=length.sum())
    step, span = spans.sort("span", descending=True).row(0)
    shown = path.segments.filter(pl.col("step").eq_missing(step)).with_columns(ns=length)
    begin = shown["start_ns"].min()
    made = table("from ms", "ms", "of step", "rank", "kind", "label", "what", left=("kind", "label", "what"))
    longest = shown.sort("ns", descending=True).head(LONGEST).sort("start_ns")
    for row in longest.iter_rows(named=True):
        peer = f", rank {row['peer']} came last" if row["peer"] is not None else ""
        until = "until it launched " if row["kind"] == "host" and row["what"] else ""
        what = f"{until}{(row['what'] or '')[: max(12, min(_WIDEST, width - 56))]}{peer}"
        times = (bare_ms(row["start_ns"] - begin), bare_ms(row["ns"]), percent(row["ns"], span))
        made.add_row(*times, str(row["rank"]), row["kind"], row["label"] or "", what)
    where = f" of step {step}, the slowest of {len(spans)}" if len(spans) > 1 else ""
    covered = int(longest["ns"].sum())
    totals = path.totals()
    lines = [
        f"the {len(longest)} longest of {counted(len(shown), 'segment')}{where}: {percent(covered, span)} of the step",
        f"in all: {_shares(totals['by_label'])}",
        f"by rank: {_shares(totals['by_rank'])}",
    ]
    return Group(made, *(note(line) for line in lines))


def _shares(parts: Mapping[str, int], most: int = 6) -> str:
    whole = sum(parts.values())
    shown = [f"{name} {percent(ns, whole)}" for name, ns in list(parts.items())[:most] if ns * 200 >= whole]
    return ", ".join(shown)
