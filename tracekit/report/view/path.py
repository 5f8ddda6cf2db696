"""The critical path of the slowest step: its longest segments, and its time by label and rank."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.names import short_kernel

MAX_SEGMENTS = 10
"""Segments that are listed, the longest."""
MAX_PARTS = 6
"""Labels or ranks that are named in a sum."""
MIN_PART_SHARE = 1 / 200
"""Share of the path from which a label or rank is named in a sum."""


class PathRow(msgspec.Struct, frozen=True):
    """One segment of the critical path."""

    from_ns: int
    """Time from the start of the step."""
    ns: int
    share: float | None
    """Share of the step."""
    rank: int
    kind: str
    label: str | None
    what: str
    peer: int | None
    """The rank that came last, where the path goes on."""

    def name(self) -> str:
        """Return the short name of what ran; for work of the host, of what it came before.

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
    """The share that the rows cover, and the whole path by label and by rank."""


def path_view(analysis: Analysis) -> PathView | None:
    """Return the path of the slowest step; None if it was not asked for or there is none."""
    path = analysis.critical
    if path is None or path.segments.is_empty():
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    steps = path.segments.group_by("step", maintain_order=True).agg(span=length.sum())
    step, span_ns = steps.sort("span", descending=True).row(0)
    segments = path.segments.filter(pl.col("step").eq_missing(step)).with_columns(ns=length)
    start_ns = int(segments["start_ns"].to_numpy().min())
    longest = segments.sort("ns", descending=True).head(MAX_SEGMENTS).sort("start_ns")
    rows = tuple(
        PathRow(
            from_ns=row["start_ns"] - start_ns,
            ns=row["ns"],
            share=row["ns"] / span_ns if span_ns else None,
            rank=row["rank"],
            kind=row["kind"],
            label=row["label"],
            what=row["what"] or "",
            peer=row["peer"],
        )
        for row in longest.iter_rows(named=True)
    )
    of_step, in_steps = "", ""
    if len(steps) > 1:
        of_step = f" of step {step}, the longest of {len(steps)}"
        in_steps = f" {counted(len(steps), 'step')}"
    over_ranks = ", from the first rank's start to the last one's end" if len(analysis.rank_results) > 1 else ""
    totals = path.totals()
    by_rank = {f"rank {key}" if key.isdigit() else key: ns for key, ns in totals["by_rank"].items()}
    notes = (
        f"the {len(longest)} longest of {counted(len(segments), 'segment')}{of_step}: "
        f"{percent(int(longest['ns'].sum()), span_ns)} of the step's {ms(span_ns)}{over_ranks}",
        f"in all{in_steps}: {_shares(totals['by_label'])}",
        f"by rank: {_shares(by_rank)}",
    )
    return PathView(step, rows, notes)


def _shares(parts: Mapping[str, int]) -> str:
    """Return the first parts with their shares of the sum, without small ones."""
    total = sum(parts.values())
    first = list(parts.items())[:MAX_PARTS]
    return ", ".join(f"{name} {percent(ns, total)}" for name, ns in first if ns >= MIN_PART_SHARE * total)
