"""Copies between host and device, and weight updates."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit._util.text import counted, listing, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.table import Column, Table, make_table

MAX_ROWS = 32
"""Rows of a table with one or more rows per rank."""
MIN_COPY_SHARE = 1 / 200
"""Share of the span below which the copies of a label have no row."""
MAX_SOURCES = 64
"""Source ranks of a weight update that are listed."""

_COLUMNS = (
    Column("rank", "rank"),
    Column("label", "label"),
    Column("copies", "count"),
    Column("moved", "MB"),
    Column("GB/s", "rate", note="bytes over the union of the copies' time"),
    Column("of link", "share"),
    Column("time", "ms", 3),
    Column("hidden", "share"),
    Column("stalled", "ms", note="exposed time charged to the copy"),
    Column("stalls", "count", 2),
)


class Copies(msgspec.Struct, frozen=True):
    """Copies between host and device and into weights."""

    by_rank: Table | None
    """The copies of each rank, then the sums over ranks."""
    total: Table | None
    """Sums over ranks by label."""
    more: int
    """Rows of ranks that are not shown."""


class ReloadView(msgspec.Struct, frozen=True):
    """A weight update: its facts in words, and its lanes."""

    facts: tuple[tuple[str, str], ...]
    lanes: tuple[Mapping[str, object], ...]
    more: int
    """Lanes that are not shown."""


def copies(analysis: Analysis) -> Copies | None:
    """Return the copies to and from the host and into weights; memsets and copies on the device are in the budget."""
    table = analysis.tables["copies"].sort("stall_ns", descending=True)
    by_rank = table.filter(pl.col("label") != "memory")
    totals = (
        table.filter(pl.col("bytes").is_not_null())
        .group_by("label", maintain_order=True)
        .agg(
            pl.col("count", "bytes", "ns", "hidden_ns", "stall_ns", "stalls").sum(),
            # The bandwidth of the link is known for the sum only if all ranks have the same.
            pl.when(pl.col("link_gb_s").n_unique() == 1).then(pl.col("link_gb_s").first()).alias("link_gb_s"),
        )
        .filter(pl.col("ns") > MIN_COPY_SHARE * analysis.total.budget.span_ns)
        .sort("stall_ns", descending=True)
        .with_columns(rank=pl.lit("all"), hidden=pl.col("hidden_ns") / pl.col("ns"))
    )
    if by_rank.is_empty() and totals.is_empty():
        return None
    shown = by_rank.head(MAX_ROWS).sort("rank", "label", maintain_order=True)
    # Bytes per nanosecond are GB/s.
    too_fast = table.filter(pl.col("bytes") / pl.col("ns") > pl.col("link_gb_s")).select("rank", "label").rows()
    links = sorted({gb_s for gb_s in totals["link_gb_s"].to_list() if gb_s})
    notes = [f"link: {gb_s:g} GB/s one way between a GPU and its host; processes of one GPU share it" for gb_s in links]
    if too_fast:
        names = listing(f"{label} of rank {rank}" for rank, label in too_fast)
        notes.append(f"faster than that link, so that it is not the one they used, or sizes are wrong: {names}")
    rank_rows, total_rows = _rows(shown), _rows(totals)
    total = make_table(_COLUMNS[1:], [row[1:] for row in total_rows], notes=notes)
    rows = [*rank_rows, *total_rows]
    both = make_table(_COLUMNS, rows, notes=notes, totals=range(len(rank_rows), len(rows)))
    return Copies(by_rank=both if rank_rows else total, total=total, more=max(0, len(by_rank) - MAX_ROWS))


def _rows(table: pl.DataFrame) -> list[tuple[object, ...]]:
    """Return the cells of ``_COLUMNS``."""
    # Bytes per nanosecond are GB/s. A share of the link above 1 means that the link is not the one assumed.
    gb_s = pl.when(pl.col("ns") > 0).then(pl.col("bytes") / pl.col("ns"))
    share = pl.when(pl.col("link_gb_s") > 0).then(gb_s / pl.col("link_gb_s"))
    return table.select(
        "rank",
        "label",
        "count",
        "bytes",
        gb_s.alias("gb_s"),
        pl.when(share <= 1).then(share).alias("of_link"),
        "ns",
        "hidden",
        "stall_ns",
        "stalls",
    ).rows()


def reload_view(analysis: Analysis) -> ReloadView | None:
    """Return the facts of a weight update and its lanes; None if there is no weight update."""
    reload = analysis.reload
    if reload is None:
        return None
    sizes = (counted(reload.rounds, "round"), counted(reload.buckets, "bucket"), counted(reload.owners, "owner"))
    sources = ["?" if rank is None else str(rank) for rank in reload.sources]
    hidden, ahead = reload.hidden["reload_under_broadcast"].mean(), reload.hidden["h2d_under_others"].mean()
    facts = (
        ("rounds and buckets", ", ".join(sizes)),
        ("broadcast from ranks", " ".join(sources[:MAX_SOURCES]) + (" …" if len(sources) > MAX_SOURCES else "")),
        ("measured", ms(reload.measured_ns)),
        ("two-buffer ideal", ms(reload.ideal_ns)),
        ("reload hidden under broadcast", percent(hidden)),  # type: ignore[arg-type]
        ("H2D hidden under other work", percent(ahead)),  # type: ignore[arg-type]
    )
    lanes = tuple(reload.lanes.to_dicts())
    return ReloadView(facts, lanes[:MAX_ROWS], max(0, len(lanes) - MAX_ROWS))
