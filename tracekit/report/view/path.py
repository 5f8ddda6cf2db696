"""The critical path of the slowest step, and the step times that changes would lead to."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import bare_ms, counted, ms, percent, signed
from tracekit.analysis import Analysis
from tracekit.critical_path.changes import Lane
from tracekit.documents.analysis import ChangedStep
from tracekit.report.names import short_kernel
from tracekit.report.table import Column, Table, make_table
from tracekit.report.view.blocking import gpu_busy_ns, innermost_operators
from tracekit.report.view.copies import gb_range

MAX_SEGMENTS = 10
"""Segments that are listed, the longest."""
MAX_PARTS = 6
"""Labels or ranks that are named in a sum."""
MIN_PART_SHARE = 1 / 200
"""Share of the path from which a label or rank is named in a sum."""

MAX_RANKS_DRAWN = 8
"""Ranks whose lanes are drawn."""
MAX_PARTS_NAMED = 3
"""Parts of the new critical path that are named."""


class PathView(msgspec.Struct, frozen=True):
    """The critical path of the slowest step."""

    step: int | None
    rows: tuple[dict[str, Any], ...]
    """The longest segments, in order of time: ``from_ns`` after the step's start, ``ns`` and its ``share`` of the step,
    ``rank``, ``kind``, ``label``, the ``peer`` that came last, and the ``name`` of what ran (for work of the host, of
    what it came before)."""
    notes: tuple[str, ...]
    """The share that the rows cover, the whole path by label and by rank, and what is uncertain about it."""


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
        {
            **row,
            "from_ns": row["start_ns"] - start_ns,
            "share": row["ns"] / span_ns if span_ns else None,
            "name": _segment_name(row),
        }
        for row in longest.iter_rows(named=True)
    )
    of_step, in_steps = "", ""
    if len(steps) > 1:
        of_step = f" of step {step}, the longest of {len(steps)}"
        in_steps = f" {counted(len(steps), 'step')}"
    over_ranks = ", from the first rank's start to the last one's end" if len(analysis.rank_results) > 1 else ""
    totals = path.totals()
    by_rank = {f"rank {key}" if key.isdigit() else key: ns for key, ns in totals["by_rank"].items()}
    notes = [
        f"the {len(longest)} longest of {counted(len(segments), 'segment')}{of_step}: "
        f"{percent(int(longest['ns'].sum()), span_ns)} of the step's {ms(span_ns)}{over_ranks}",
        f"in all{in_steps}: {_shares(totals['by_label'])}",
        f"by rank: {_shares(by_rank)}",
    ]
    hosts = path.pieces.filter(pl.col("kind") == "host").with_columns(ns=length)
    host_ns = int(hosts["ns"].sum())
    if host_ns >= MIN_PART_SHARE * sum(totals["by_kind"].values()):
        busy = percent(int(gpu_busy_ns(analysis, hosts).sum()), host_ns)
        notes.append(
            f"host: the work that follows waited for its launch; the GPU had other work in {busy} of that time"
        )
    if any(row["kind"] == "cell" for row in rows):
        notes.append("a cell is named by stage, op and micro-batch: 0F3 is stage 0's forward of micro-batch 3")
    return PathView(step, rows, (*notes, *(notice.message for notice in path.notices)))


def _segment_name(row: Mapping[str, Any]) -> str:
    """Return what ran in a segment; of work of the host, what it launched at its end."""
    if row["kind"] not in ("host", "launch"):
        return short_kernel(row["what"] or "")
    launched = innermost_operators(row["chain"]) or row["what"]
    return f"{'before' if row['kind'] == 'host' else 'of'} {launched}" if launched else ""


def _shares(parts: Mapping[str, int]) -> str:
    """Return the first parts with their shares of the sum, without small ones."""
    total = sum(parts.values())
    first = list(parts.items())[:MAX_PARTS]
    return ", ".join(f"{name} {percent(ns, total)}" for name, ns in first if ns >= MIN_PART_SHARE * total)


def changes_table(analysis: Analysis) -> Table | None:
    """Return the predicted step times with changes that were asked for, or that would save most; None without any."""
    rows = analysis.changed_steps
    notes = [f"{row.change}: not answered, because {row.why_not}" for row in rows if row.why_not]
    if len(notes) < len(rows):
        step = ms(rows[0].measured_ns)
        saves = "saves: an upper bound of what the change can give"
        several = len(analysis.step_times) > 1
        per_step = (
            "time per step (all steps and the time between them / their number)" if several else "time of the step"
        )
        notes.insert(0, f"{per_step}, {step} as measured; {saves}")
    for row in rows:
        if row.peak_bytes is not None:
            needs = f"{row.change}: the fullest rank needs {gb_range(*row.peak_bytes)} GB"
            notes.append(f"{needs}, which does not fit" if row.fits is False else needs)
    if analysis.graph is not None:  # asked for, not only listed
        notes += dict.fromkeys(text for row in rows for text in row.rests_on)
    return make_table(_COLUMNS, rows, notes=notes)


def changed_lanes(analysis: Analysis) -> Iterator[tuple[str, dict[int, Lane], dict[int, Lane]]]:
    """Yield each change that can be drawn, with the lanes of ranks as measured and as predicted."""
    for row in analysis.changed_steps:
        if analysis.graph is not None and row.saves_ns is not None:
            measured, predicted = (analysis.graph.lanes(c, max_ranks=MAX_RANKS_DRAWN) for c in ((), row.changes))
            yield row.change, measured, predicted


def describe_range(range_ns: Sequence[int] | None) -> str:
    """Return the shortest and the longest predicted time in ms; empty if there is no range.

    >>> describe_range((1_200_000, 3_400_000))
    '1.2 – 3.4'
    """
    return " – ".join(bare_ms(ns, 1) for ns in range_ns or ())


def _longest_parts(row: ChangedStep) -> str:
    """Return the longest parts of the critical path after a change."""
    parts = (
        f"{part.label or 'host'} on rank {part.rank} {percent(part.ns, row.predicted_ns, digits=0)}"
        for part in row.critical_path[:MAX_PARTS_NAMED]
    )
    return ", ".join(parts)


_COLUMNS = (
    Column("change", "name"),
    Column("predicted", "ms", terminal_heading="predicted ms", value="predicted_ns"),
    Column("between ms", "figure", 1, value=lambda row: describe_range(row.predicted_range_ns)),
    Column("saves ms", "figure", value=lambda row: "" if row.saves_ns is None else signed(row.saves_ns / 1e6)),
    Column("of the step", "share", 2, value=lambda row: row.saves_ns and row.saves_ns / max(row.measured_ns, 1)),
    Column("then the longest", "word", 3, value=_longest_parts),
)
