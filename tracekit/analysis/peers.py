"""Peers of all ranks' operations as ranks of the run, so that both sides of a message can be matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from tracekit._util.text import percent
from tracekit.align.peers import by_communicator
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.tables import RankTables
from tracekit.errors import Notice
from tracekit.reconstruct import RankPipeline
from tracekit.reconstruct.peers import name_peers

if TYPE_CHECKING:
    from tracekit.compare import ScheduleComparison


def with_peers(parts: Sequence[RankTables], layout: str | None) -> tuple[list[RankTables], tuple[Notice, ...]]:
    """Return the ranks' tables with every peer that can be named, and notices of how it was found."""
    local = [part for part in parts if part.source.reader == "nsight"]
    if not local:
        return list(parts), ()
    pipelines, notices = name_peers([part.pipeline for part in local if part.pipeline is not None], layout)
    known = {pipeline.rank: pipeline for pipeline in pipelines}
    asked = _exploded(pl.concat([part.operations for part in local]))
    peers = by_communicator(asked)
    asked = asked.with_columns(peers)
    if notices:
        by_order = pl.concat(
            [_placed(p.messages).with_columns(rank=pl.lit(p.rank, pl.Int32)) for p in pipelines if p.peers_by_order]
        )
        asked = asked.join(by_order, on=["rank", "id", "place"], how="left", maintain_order="left").with_columns(
            peer=pl.coalesce("peer", "ordered")
        )
    named = asked.group_by("rank", "id", maintain_order=True).agg(
        named=pl.format("{}:{}", "way", pl.col("peer").cast(pl.String).fill_null("?")).str.join(",")
    )
    return [_part(part, named, known) if part in local else part for part in parts], notices


def _part(part: RankTables, named: pl.DataFrame, known: dict[int, RankPipeline]) -> RankTables:
    operations = part.operations.join(named, on=["rank", "id"], how="left", maintain_order="left")
    operations = operations.with_columns(p2p=pl.coalesce("named", "p2p")).drop("named")
    return replace(part, operations=operations, pipeline=known.get(part.source.rank, part.pipeline))


def _exploded(operations: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each message of the operations, in the order they were issued."""
    way = pl.col("message").str.split(":")
    return (
        operations.filter((pl.col("what") == "p2p") & pl.col("p2p").is_not_null() & pl.col("id").is_not_null())
        .select("rank", "id", "group", pl.col("p2p").str.split(",").alias("message"))
        .explode("message")
        .with_columns(
            way=way.list.get(0),
            send=way.list.get(0) == "send",
            peer=way.list.get(1).cast(pl.Int32, strict=False),
            place=pl.int_range(pl.len()).over("rank", "id"),
        )
        .drop("message")
    )


def _placed(messages: pl.DataFrame) -> pl.DataFrame:
    return messages.select(pl.col("peer").alias("ordered"), id="kernel", place=pl.int_range(pl.len()).over("kernel"))


def without_settled(notices: Sequence[Notice], operations: pl.DataFrame) -> list[Notice]:
    """Return the notices without those about peers that are known by now.

    >>> read = [Notice("peers-in-communicator", "peers are numbered within their communicator")]
    >>> without_settled(read, pl.DataFrame({"p2p": ["send:1"]})), len(without_settled(read, pl.DataFrame({"p2p": "?"})))
    ([], 1)
    """
    if not any(note.code == "peers-in-communicator" for note in notices):
        return list(notices)
    settled = not operations["p2p"].cast(pl.String).str.contains("?", literal=True).any()
    return [note for note in notices if not (settled and note.code == "peers-in-communicator")]


FAR = 2.0
"""Times that the share outside cells must exceed the bubble's bound for a notice."""


def bound_notices(ranks: Sequence[RankResult], compared: ScheduleComparison | None) -> list[Notice]:
    """Return a notice where a bubble's bound is far below the pipeline's own table because waiting is not known."""
    total = Measured.total(result.whole for result in ranks)
    bound = total.bubble_fraction
    if compared is None or not compared.exact or not total.lower_bound or bound is None:
        return []
    outside = compared.head.measured_bubble
    if outside <= FAR * bound:
        return []
    text = (
        f"the bubble's bound of {percent(bound)} counts idle time and known waits alone: ranks of the pipeline were in "
        f"no cell for {percent(outside)} of its time"
    )
    return [Notice("bubble-bound-low", f"{text}; record the peers of messages to know how much of that is bubble")]
