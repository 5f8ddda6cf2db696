"""Copies between host and device, and weight updates."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.table import Column, Table, make_table

MAX_COPY_ROWS = 32
"""Rows of a table with one or more rows per rank."""
MIN_COPY_SHARE = 1 / 200
"""Share of the span below which the copies of a label have no row."""
MAX_LANES = 8
"""Lanes of a weight update that are listed."""
MAX_SOURCES = 64
"""Source ranks of a weight update that are listed."""
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
