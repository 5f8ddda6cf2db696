"""What ran: kernels, copies, weight updates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.view.reasons import Why, reasons

MOST_ROWS = 32
"""Rows of a table with one or more per rank."""
MOST_KERNELS = 20
LEAST_COPIES = 200
"""Copies shorter than the span over this say nothing."""


class CopyRow(msgspec.Struct, frozen=True):
    """Copies of one label, on one rank or (rank None) on all."""

    rank: int | None
    label: str
    count: int
    bytes: int | None
    ns: int
    hidden: float | None
    stall_ns: int
    stalls: int
    link_gb_s: float | None = None
    """What the link to the host carries in one direction, where it is known and they use it."""

    @property
    def of_link(self) -> float | None:
        """Share of the link; None above it, where the link is not what it seems."""
        share = self.gb_s / self.link_gb_s if self.gb_s is not None and self.link_gb_s else None
        return share if share is not None and share <= 1 else None

    @property
    def gb_s(self) -> float | None:
        """Bytes over the union of the copies' time."""
        return self.bytes / self.ns if self.bytes is not None and self.ns else None


class Copies(msgspec.Struct, frozen=True):
    """Copies between host and device and into weights."""

    by_rank: tuple[CopyRow, ...]
    more: int
    total: tuple[CopyRow, ...]
    """Those that take more than a two-hundredth of the span, by label."""


class Kernel(msgspec.Struct, frozen=True):
    """A kernel in a step, mean over ranks."""

    name: str
    label: str
    module: str | None
    colour: str
    count: float
    ns: float
    share: float
    """Of the span."""
    command: str | None
    """Explains its label, rule by rule."""
    why: Why | None = None
    """What decided its label, and where it ran."""


class ReloadView(msgspec.Struct, frozen=True):
    """A weight update in words and by lane."""

    facts: tuple[tuple[str, str], ...]
    lanes: tuple[Mapping[str, object], ...]
    more: int


def kernels(analysis: Analysis, asked: str | None) -> tuple[Kernel, ...]:
    """Return the kernels that took longest in a step, as a mean over ranks."""
    steps = max(1, sum(len(one.per_step) for one in analysis.rank_results))
    span = max(1.0, analysis.total.budget.span_ns / steps)
    table = analysis.tables["kernels"].sort("ns", descending=True).head(MOST_KERNELS)
    why = reasons(analysis)
    return tuple(
        Kernel(
            row["name"], row["label"], row["module"], LABEL_COLOURS[row["label"]], row["count"], row["ns"],
            row["ns"] / span, _explain(row["name"], asked), why.get((row["name"], row["label"], row["module"])),
        )
        for row in table.to_dicts()
    )  # fmt: skip


def _explain(name: str, asked: str | None) -> str | None:
    return None if asked is None else f"tracekit analyze {shlex.quote(asked)} --explain {shlex.quote(name)}"


def copies(analysis: Analysis) -> Copies | None:
    """Return copies between host and device and into weights; memsets and moves on the device are in the budget."""
    table = analysis.tables["copies"].sort("stall_ns", descending=True)
    named = table.filter(pl.col("label") != "memory")
    sums = (
        table.filter(pl.col("bytes").is_not_null())
        .group_by("label", maintain_order=True)
        .agg(
            pl.col("count", "bytes", "ns", "hidden_ns", "stall_ns", "stalls").sum(),
            pl.when(pl.col("link_gb_s").n_unique() == 1).then(pl.col("link_gb_s").first()).alias("link_gb_s"),
        )
        .filter(pl.col("ns") * LEAST_COPIES > analysis.total.budget.span_ns)
        .sort("stall_ns", descending=True)
        .with_columns(rank=pl.lit(None, pl.Int64), hidden=pl.col("hidden_ns") / pl.col("ns"))
    )
    if named.is_empty() and sums.is_empty():
        return None
    shown = named.head(MOST_ROWS).sort("rank", "label", maintain_order=True)
    return Copies(_rows(shown), max(0, len(named) - MOST_ROWS), _rows(sums))


def _rows(table: pl.DataFrame) -> tuple[CopyRow, ...]:
    names = ("rank", "label", "count", "bytes", "ns", "hidden", "stall_ns", "stalls", "link_gb_s")
    return tuple(CopyRow(*(row[name] for name in names)) for row in table.iter_rows(named=True))


def reload_view(analysis: Analysis) -> ReloadView | None:
    """Return the facts of a weight update and its lanes."""
    found = analysis.reload
    if found is None:
        return None
    sizes = (counted(found.rounds, "round"), counted(found.buckets, "bucket"), counted(found.owners, "owner"))
    sources = ["?" if rank is None else str(rank) for rank in found.sources]
    hidden, ahead = found.hidden["reload_under_broadcast"].mean(), found.hidden["h2d_under_others"].mean()
    facts = (
        ("rounds and buckets", ", ".join(sizes)),
        ("broadcast from ranks", " ".join(sources[:64]) + (" …" if len(sources) > 64 else "")),
        ("measured", ms(found.measured_ns)),
        ("two-buffer ideal", ms(found.ideal_ns)),
        ("reload hidden under broadcast", percent(hidden)),  # type: ignore[arg-type]
        ("H2D hidden under other work", percent(ahead)),  # type: ignore[arg-type]
    )
    lanes = tuple(found.to_dict()["lanes"])
    return ReloadView(facts, lanes[:MOST_ROWS], max(0, len(lanes) - MOST_ROWS))
