"""The critical path: its longest segments, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.names import short_kernel

LONGEST = 10
"""Segments that are listed."""


class PathRow(msgspec.Struct, frozen=True):
    """One segment of the critical path."""

    from_ns: int
    """From the step's start."""
    ns: int
    share: float | None
    """Of the step."""
    rank: int
    kind: str
    label: str | None
    what: str
    peer: int | None
    """The rank that came last, where the path goes on."""

    def name(self) -> str:
        """Return what ran, in short; of the host's work, what it came before.

        >>> PathRow(0, 5, 0.5, 1, "host", None, "aten::mm", None).name()
        'until aten::mm'
        """
        until = "until " if self.kind == "host" and self.what else ""
        return f"{until}{short_kernel(self.what)}"


class PathView(msgspec.Struct, frozen=True):
    """The critical path of the slowest step."""

    step: int | None
    rows: tuple[PathRow, ...]
    """The longest segments, in order of time."""
    notes: tuple[str, ...]
    """What the rows cover, and the whole path by label and by rank."""


def path_view(analysis: Analysis) -> PathView | None:
    """Return the path of the slowest step; None where it was not asked for or there is none."""
    path = analysis.critical
    if path is None or path.segments.is_empty():
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    spans = path.segments.group_by("step", maintain_order=True).agg(span=length.sum())
    step, span = spans.sort("span", descending=True).row(0)
    shown = path.segments.filter(pl.col("step").eq_missing(step)).with_columns(ns=length)
    begin = int(shown["start_ns"].to_numpy().min())
    longest = shown.sort("ns", descending=True).head(LONGEST).sort("start_ns")
    where = f" of step {step}, the longest of {len(spans)}" if len(spans) > 1 else ""
    over = f" {counted(len(spans), 'step')}" if len(spans) > 1 else ""
    whole = ", from the first rank's start to the last one's end" if len(analysis.rank_results) > 1 else ""
    covered = percent(int(longest["ns"].sum()), span)
    totals = path.totals()
    ranks = {f"rank {key}" if key.isdigit() else key: ns for key, ns in totals["by_rank"].items()}
    notes = (
        f"the {len(longest)} longest of {counted(len(shown), 'segment')}{where}: "
        f"{covered} of the step's {ms(span)}{whole}",
        f"in all{over}: {_shares(totals['by_label'])}",
        f"by rank: {_shares(ranks)}",
    )
    rows = (
        PathRow(
            row["start_ns"] - begin, row["ns"], row["ns"] / span if span else None, row["rank"], row["kind"],
            row["label"], row["what"] or "", row["peer"],
        )
        for row in longest.iter_rows(named=True)
    )  # fmt: skip
    return PathView(step, tuple(rows), notes)


def _shares(parts: Mapping[str, int], most: int = 6) -> str:
    whole = sum(parts.values())
    shown = [f"{name} {percent(ns, whole)}" for name, ns in list(parts.items())[:most] if ns * 200 >= whole]
    return ", ".join(shown)
