"""Peers of all ranks' messages as ranks of the run: from communicators, else from the order along the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from tracekit._util.text import listing, percent
from tracekit.align.peers import MESSAGES, Named, along_pipelines, by_communicator
from tracekit.errors import Notice
from tracekit.reconstruct.rank import RankPipeline
from tracekit.reconstruct.roles import mesh_lines
from tracekit.schema import conform


def name_peers(
    ranks: Sequence[RankPipeline], layout: str | Mapping[str, int] | None = None
) -> tuple[list[RankPipeline], tuple[Notice, ...]]:
    """Return the ranks with the peers of their messages as ranks of the run, and a notice where order gave them."""
    local = [r for r in ranks if r.peers_local and r.messages.height]
    if not local:
        return list(ranks), ()
    table = pl.concat([r.messages.with_columns(rank=pl.lit(r.rank, pl.Int32)) for r in local])
    table = conform(table, MESSAGES).with_columns(peer=by_communicator(conform(table, MESSAGES)))
    silent = [r.rank for r in local if not r.messages["peer"].is_not_null().any()]
    notices: tuple[Notice, ...] = ()
    asked = pl.col("rank").is_in(silent)
    if len(silent) > 1:
        mute = table.filter(asked)
        named = along_pipelines(mute, None if layout is None else mesh_lines(silent, layout))
        if named.lines:
            notices = (_by_order(named, len(mute)),)
            table = pl.concat([table.filter(~asked), mute.with_columns(named.peer)])
    by_rank = table.partition_by("rank", as_dict=True, maintain_order=True)
    ordered = frozenset(silent) if notices else frozenset[int]()
    return [_with(r, by_rank[r.rank,]["peer"], ordered) if r in local else r for r in ranks], notices


def _with(rank: RankPipeline, peers: pl.Series, ordered: frozenset[int]) -> RankPipeline:
    return replace(
        rank, messages=rank.messages.with_columns(peers), peers_local=False, peers_by_order=rank.rank in ordered
    )


def _by_order(named: Named, count: int) -> Notice:
    lines = "; ".join(listing(map(str, line), most=8) for line in named.lines[:4])
    more = f" and {len(named.lines) - 4} more" if len(named.lines) > 4 else ""
    text = (
        f"messages do not name their peers: along the pipeline of ranks {lines}{more} the k-th send meets the "
        f"k-th receive, and {percent(named.met, digits=0)} of the {count:,} ran at the same time as their other side"
    )
    return Notice("peers-by-order", f"{text}; waiting rests on that match (override with --layout)")
