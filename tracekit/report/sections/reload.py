"""The weight update of processes that broadcast and reload, beside its two-buffer ideal."""

from collections.abc import Sequence
from statistics import fmean

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.blocks import Block, FactList
from tracekit.report.section import Section
from tracekit.report.table import Column, make_table

MAX_LANES = 8
"""Lanes of a weight update that are listed."""
MAX_SOURCES = 64
"""Source ranks of a weight update that are listed."""


def _build(analysis: Analysis) -> Sequence[Block | None]:
    """Return the facts of a weight update and its lanes; nothing if there is no weight update."""
    reload = analysis.reload
    if reload is None:
        return []
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
    return [FactList(facts), lanes]


def _mean_share(shares: Sequence[float | None]) -> float | None:
    """Return the mean of the shares that are known; None if none is."""
    known_shares = [share for share in shares if share is not None]
    return fmean(known_shares) if known_shares else None


RELOAD_SECTION = Section(
    id="reload",
    tab="Schedule",
    title="Weight reload",
    name="Weight reload",
    build=_build,
)
