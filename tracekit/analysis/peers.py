"""Peers of messages as ranks of the run, so that both sides of a message can be matched.

NCCL in Nsight's traces numbers peers within their communicator. They become ranks of the run through the communicator's
members, or, where these were not recorded, through the order of messages in the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from tracekit.align.peers import by_communicator
from tracekit.analysis.tables import RankTables
from tracekit.errors import Notice
from tracekit.reconstruct import RankPipeline
from tracekit.reconstruct.parallel_groups import name_peers


def with_peers(ranks: Sequence[RankTables], layout: str | None) -> tuple[list[RankTables], tuple[Notice, ...]]:
    """Return the ranks' tables with every peer that can be named, and notices of how peers were found."""
    nsight_ranks = [rank for rank in ranks if rank.source.reader == "nsight"]
    if not nsight_ranks:
        return list(ranks), ()
    pipelines, notices = name_peers([rank.pipeline for rank in nsight_ranks if rank.pipeline is not None], layout)
    messages = _split_messages(pl.concat([rank.operations for rank in nsight_ranks]))
    messages = messages.with_columns(by_communicator(messages))
    if notices:  # some peers follow from the order of messages
        by_order = pl.concat(
            [
                _peers_by_order(pipeline.messages).with_columns(rank=pl.lit(pipeline.rank, pl.Int32))
                for pipeline in pipelines
                if pipeline.peers_by_order
            ]
        )
        messages = messages.join(by_order, on=["rank", "id", "index"], how="left", maintain_order="left").with_columns(
            peer=pl.coalesce("peer", "peer_by_order")
        )
    # The messages of an operation as one text again: "send:1,recv:?".
    named = messages.group_by("rank", "id", maintain_order=True).agg(
        named=pl.format("{}:{}", "direction", pl.col("peer").cast(pl.String).fill_null("?")).str.join(",")
    )
    pipeline_of_rank = {pipeline.rank: pipeline for pipeline in pipelines}
    return [
        _with_named_peers(rank, named, pipeline_of_rank) if rank in nsight_ranks else rank for rank in ranks
    ], notices


def _with_named_peers(rank: RankTables, named: pl.DataFrame, pipeline_of_rank: dict[int, RankPipeline]) -> RankTables:
    operations = rank.operations.join(named, on=["rank", "id"], how="left", maintain_order="left")
    operations = operations.with_columns(p2p=pl.coalesce("named", "p2p")).drop("named")
    return replace(rank, operations=operations, pipeline=pipeline_of_rank.get(rank.source.rank, rank.pipeline))


def _split_messages(operations: pl.DataFrame) -> pl.DataFrame:
    """Return one row per message of the operations, in the order they were issued.

    ``p2p`` holds an operation's messages, such as ``send:1,recv:1``; ``index`` counts them within the operation.
    """
    words = pl.col("message").str.split(":")
    return (
        operations.filter((pl.col("what") == "p2p") & pl.col("p2p").is_not_null() & pl.col("id").is_not_null())
        .select("rank", "id", "group", pl.col("p2p").str.split(",").alias("message"))
        .explode("message")
        .with_columns(
            direction=words.list.get(0),
            send=words.list.get(0) == "send",
            peer=words.list.get(1).cast(pl.Int32, strict=False),
            index=pl.int_range(pl.len()).over("rank", "id"),
        )
        .drop("message")
    )


def _peers_by_order(messages: pl.DataFrame) -> pl.DataFrame:
    return messages.select(peer_by_order="peer", id="kernel", index=pl.int_range(pl.len()).over("kernel"))
