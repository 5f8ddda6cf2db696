"""Copies between host and device."""

from typing import Any

import polars as pl

from tracekit._util.text import counted, listing
from tracekit.analysis import Analysis
from tracekit.report.section import Section
from tracekit.report.table import Column, Table, make_table

MAX_COPY_ROWS = 32
"""Rows of a table with one or more rows per rank."""
MIN_COPY_SHARE = 1 / 200
"""Share of the span below which the copies of a label have no row."""
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


def copy_table(analysis: Analysis) -> Table | None:
    """Return the copies to and from the host and into weights: sums over ranks, with those of each rank above.

    Memsets and copies on the device are in the budget. A terminal shows the sums of many rows.
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
    if of_ranks.is_empty() or len(analysis.ranks) == 1:
        return make_table(_COPY_COLUMNS[1:], _with_rates(totals), notes=notes)
    if len(of_ranks) > MAX_COPY_ROWS:
        notes.append(
            f"{counted(len(of_ranks) - MAX_COPY_ROWS, 'row')} with shorter stalls in the JSON"
        )
    shown = _with_rates(of_ranks.head(MAX_COPY_ROWS).sort("rank", "label", maintain_order=True))
    rows = [*shown, *_with_rates(totals)]
    sums = range(len(shown), len(rows))
    return make_table(
        _COPY_COLUMNS,
        rows,
        notes=notes,
        totals=sums,
        short=sums,
        short_note=f"sums over {counted(len(analysis.ranks), 'rank')}",
    )


def _with_rates(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows with their rate in GB/s (``gb_s``) and its share of the link (``of_link``)."""
    # Bytes per nanosecond are GB/s. A share of the link above 1 means that the link is not the one
    # assumed.
    gb_s = pl.when(pl.col("ns") > 0).then(pl.col("bytes") / pl.col("ns"))
    share = pl.when(pl.col("link_gb_s") > 0).then(gb_s / pl.col("link_gb_s"))
    return table.with_columns(gb_s=gb_s, of_link=pl.when(share <= 1).then(share)).rows(named=True)


COPIES_SECTION = Section(
    id="copies",
    tab="Kernels",
    title="Copies",
    name="Copies",
    build=lambda analysis: [copy_table(analysis)],
)
