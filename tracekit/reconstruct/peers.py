"""Peers of all ranks' messages as ranks of the run: from communicators, else from the order along the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from tracekit._util.text import listing, percent
from tracekit.align.peers import MESSAGES, Named, along_pipelines, by_communicator
from tracekit.errors import Notice
from tracekit.reconstruct.parallel_groups import mesh_lines
from tracekit.reconstruct.rank_pipeline import RankPipeline
from tracekit.schema import conform


def name_peers(
    ranks: Sequence[RankPipeline], layout: str | Mapping[str, int] | None = None
) -> tuple[list[RankPipeline], tuple[Notice, ...]]:
    """Return the ranks with the peers of their messages as ranks of the run.

    A notice comes with them if the order of messages gave the peers.
    """
    local = {rank.rank: rank for rank in ranks if rank.peers_local and rank.messages.height}
    if not local:
        return list(ranks), ()
    table = pl.concat([rank.messages.with_columns(rank=pl.lit(rank.rank, pl.Int32)) for rank in local.values()])
    table = conform(table, MESSAGES)
    table = table.with_columns(peer=by_communicator(table))
    notices: tuple[Notice, ...] = ()
    without_peers = [rank.rank for rank in local.values() if rank.messages["peer"].is_null().all()]
    if len(without_peers) > 1:
        is_unnamed = pl.col("rank").is_in(without_peers)
        unnamed = table.filter(is_unnamed)
        named = along_pipelines(unnamed, None if layout is None else mesh_lines(without_peers, layout))
        if named.lines:
            notices = (_order_notice(named, len(unnamed)),)
            table = pl.concat([table.filter(~is_unnamed), unnamed.with_columns(named.peer)])
    named_messages = table.partition_by("rank", as_dict=True, maintain_order=True)
    for number, rank in local.items():
        messages = rank.messages.with_columns(named_messages[number,]["peer"])
        by_order = bool(notices) and number in without_peers
        local[number] = replace(rank, messages=messages, peers_local=False, peers_by_order=by_order)
    return [local.get(rank.rank, rank) for rank in ranks], notices


def _order_notice(named: Named, count: int) -> Notice:
    lines = "; ".join(listing(map(str, line), most=8) for line in named.lines[:4])
    more = f" and {len(named.lines) - 4} more" if len(named.lines) > 4 else ""
    text = (
        f"messages do not name their peers: along the pipeline of ranks {lines}{more} the k-th send meets the "
        f"k-th receive, and {percent(named.met, digits=0)} of the {count:,} ran at the same time as their other side"
    )
    return Notice("peers-by-order", f"{text}; waiting rests on that match (override with --layout)")
