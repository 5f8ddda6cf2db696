"""Memory of the allocators, copies between host and device, and weight updates."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import UNKNOWN, counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import AllocatorMemory
from tracekit.memory.measures import MEMORY_PHASES
from tracekit.report.table import MAX_MEMORY_RANKS, Column, Table, make_table
from tracekit.report.text import gb, gb_range

MAX_COPY_ROWS = 32
"""Rows of a table with one or more rows per rank."""
MIN_COPY_SHARE = 1 / 200
"""Share of the span below which the copies of a label have no row."""
MAX_LANES = 8
"""Lanes of a weight update that are listed."""
MAX_SOURCES = 64
"""Source ranks of a weight update that are listed."""
SHOWN_PHASES = tuple(dict.fromkeys(MEMORY_PHASES.values()))
HOST_TIME_NOTE = (
    "memory is allocated when the host launches, so phases are the host's; "
    "a range: allocated while two phases overlap"
)

_COPY_COLUMNS = (
    Column("rank", "rank"),
    Column("label", "label"),
    Column("copies", "count", value="count"),
    Column("moved", "MB", value="bytes"),
    Column("GB/s", "rate", note="bytes over the union of the copies' time", value="gb_s"),
    Column("of link", "share", value="of_link"),
    Column("time", "ms", 3, value="ns"),
    Column("hidden", "share"),
    Column("stalled", "ms", note="exposed time charged to the copy", value="stall_ns"),
    Column("stalls", "count", 2),
)


class ReloadView(msgspec.Struct, frozen=True):
    """A weight update: a table of its facts in words, and one of its lanes by rank."""

    facts: Table
    lanes: Table | None


def copy_table(analysis: Analysis, *, by_rank: bool = False) -> Table | None:
    """Return the copies to and from the host and into weights: sums over ranks, with those of each rank above.

    Memsets and copies on the device are in the budget.

    Args:
        analysis: The result.
        by_rank: Whether each rank of several has rows, above the sums.
    """
    table = analysis.tables["copies"].sort("stall_ns", descending=True)
    of_ranks = table.filter(pl.col("label") != "memory")
    totals = (
        table.filter(pl.col("bytes").is_not_null())
        .group_by("label", maintain_order=True)
        .agg(
            pl.col("count", "bytes", "ns", "hidden_ns", "stall_ns", "stalls").sum(),
            # The bandwidth of the link is known for the sum only if all ranks have the same.
            pl.when(pl.col("link_gb_s").n_unique() == 1)
            .then(pl.col("link_gb_s").first())
            .alias("link_gb_s"),
        )
        .filter(pl.col("ns") > MIN_COPY_SHARE * analysis.total.budget.span_ns)
        .sort("stall_ns", descending=True)
        .with_columns(rank=pl.lit("all"), hidden=pl.col("hidden_ns") / pl.col("ns"))
    )
    # Bytes per nanosecond are GB/s.
    too_fast = (
        table.filter(pl.col("bytes") / pl.col("ns") > pl.col("link_gb_s"))
        .select("rank", "label")
        .rows()
    )
    links = sorted({gb_s for gb_s in totals["link_gb_s"].to_list() if gb_s})
    notes = [
        f"link: {gb_s:g} GB/s one way between GPU and host; processes of one GPU share it"
        for gb_s in links
    ]
    if too_fast:
        names = listing(f"{label} of rank {rank}" for rank, label in too_fast)
        notes.append(
            f"faster than that link, so that it is not the one they used, or sizes are wrong: {names}"
        )
    if not by_rank or of_ranks.is_empty() or len(analysis.rank_results) == 1:
        return make_table(_COPY_COLUMNS[1:], _with_rates(totals), notes=notes)
    if len(of_ranks) > MAX_COPY_ROWS:
        notes.append(
            f"{counted(len(of_ranks) - MAX_COPY_ROWS, 'row')} with shorter stalls in the JSON"
        )
    shown = _with_rates(of_ranks.head(MAX_COPY_ROWS).sort("rank", "label", maintain_order=True))
    rows = [*shown, *_with_rates(totals)]
    return make_table(_COPY_COLUMNS, rows, notes=notes, totals=range(len(shown), len(rows)))


def _with_rates(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows with their rate in GB/s (``gb_s``) and its share of the link (``of_link``)."""
    # Bytes per nanosecond are GB/s. A share of the link above 1 means that the link is not the one
    # assumed.
    gb_s = pl.when(pl.col("ns") > 0).then(pl.col("bytes") / pl.col("ns"))
    share = pl.when(pl.col("link_gb_s") > 0).then(gb_s / pl.col("link_gb_s"))
    return table.with_columns(gb_s=gb_s, of_link=pl.when(share <= 1).then(share)).rows(named=True)


def reload_view(analysis: Analysis) -> ReloadView | None:
    """Return the facts of a weight update and its lanes; None if there is no weight update."""
    reload = analysis.reload
    if reload is None:
        return None
    sizes = (
        counted(reload.rounds, "round"),
        counted(reload.buckets, "bucket"),
        counted(reload.owners, "owner"),
    )
    sources = ["?" if rank is None else str(rank) for rank in reload.sources]
    hidden = [row.reload_under_broadcast for row in reload.hidden]
    ahead = [row.h2d_under_others for row in reload.hidden]
    facts = (
        ("rounds and buckets", ", ".join(sizes)),
        (
            "broadcast from ranks",
            " ".join(sources[:MAX_SOURCES]) + (" …" if len(sources) > MAX_SOURCES else ""),
        ),
        ("measured", ms(reload.measured_ns)),
        ("two-buffer ideal", ms(reload.ideal_ns)),
        ("reload hidden under broadcast", percent(_mean_share(hidden))),
        ("H2D hidden under other work", percent(_mean_share(ahead))),
    )
    columns = (
        Column("rank", "rank"),
        Column("lane", value=lambda lane: "H2D" if lane.lane == "h2d" else lane.lane),
        Column("buckets", "count", value="count"),
        Column("time", "ms", value="ns"),
        Column("GB/s", "rate", value="bandwidth_gb_s"),
    )
    more = len(reload.lanes) - MAX_LANES
    notes = [f"{counted(more, 'more row')} in the JSON"] if more > 0 else ()
    lanes = make_table(columns, reload.lanes[:MAX_LANES], notes=notes)
    return ReloadView(Table((Column(""), Column("")), facts), lanes)


def _mean_share(shares: Sequence[float | None]) -> float | None:
    """Return the mean of the shares that are known; None if none is."""
    known_shares = [share for share in shares if share is not None]
    return fmean(known_shares) if known_shares else None


def memory_table(analysis: Analysis) -> Table | None:
    """Return the memory of the ranks in GB, by phase and per chunk of the schedule.

    None if it was not recorded.
    """
    if analysis.memory is None:
        return None
    ranks = sorted(analysis.memory.figures.ranks, key=lambda rank: -rank.peak_bytes)[
        :MAX_MEMORY_RANKS
    ]
    phases = []
    for phase in SHOWN_PHASES:
        if any(phase in rank.by_phase for rank in ranks):
            phases.append(phase)
    columns = [Column("rank", "rank"), Column("peak", "figure"), Column("reserved", "figure", 2)]
    columns += [Column(phase, "figure") for phase in phases]
    columns += [
        Column("before", "figure", 1),
        Column("a chunk", "figure"),
        Column("chunks", "figure"),
    ]
    rows = [_memory_row(rank, phases) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    return make_table(
        columns,
        rows,
        notes=_memory_notes(analysis, len(ranks)),
        caption="The most each rank held, in GB",
    )


def _memory_row(rank: AllocatorMemory, phases: Sequence[str]) -> tuple[object, ...]:
    in_phases = []
    for phase in phases:
        peak = rank.by_phase.get(phase)
        in_phases.append(UNKNOWN if peak is None else gb_range(peak.at_least, peak.at_most))
    count = UNKNOWN
    if rank.chunks is not None:
        count = str(rank.chunks)
        if rank.ideal_chunks not in (None, rank.chunks):
            count += f" (schedule {rank.ideal_chunks})"
    return (
        rank.rank,
        gb(rank.peak_bytes),
        gb(rank.reserved_bytes),
        *in_phases,
        gb(rank.base_bytes),
        UNKNOWN if rank.chunk_bytes is None else gb_range(*rank.chunk_bytes),
        count,
    )


def _memory_notes(analysis: Analysis, shown: int) -> list[str]:
    recorded = analysis.memory.figures.ranks if analysis.memory is not None else ()
    capacities = sorted(
        {rank.capacity_bytes for rank in recorded if rank.capacity_bytes is not None}
    )
    notes = [
        f"GB of tensors; the GPU has {listing(map(gb, capacities))}"
        if capacities
        else "GB of tensors",
        HOST_TIME_NOTE,
    ]
    if any(rank.chunks is not None for rank in recorded):
        notes.append(
            "before: before the first chunk; a chunk: what memory grows by over a forward cell and falls by over a "
            "backward, their medians; chunks: the most in memory at once"
        )
    if shown < len(recorded):
        notes.append(f"the {shown} fullest of {counted(len(recorded), 'rank')}")
    missing = len(analysis.rank_results) - len(recorded)
    if missing:
        notes.append(f"{missing} of {len(analysis.rank_results)} ranks did not record it")
    return notes
