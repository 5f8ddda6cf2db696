"""All-to-alls among NCCL's own ranges: NCCL has no such call, so a library sends to and receives from every member.

Sends and receives of one all-to-all stand in one group, right between its ``ncclGroupStart`` and ``ncclGroupEnd``.
Point-to-point messages that are launched together stand in a group of their own each, inside a common one.
"""

from __future__ import annotations

import polars as pl

_P2P = ("send", "recv")
_GROUP = ("ncclGroupStart", "ncclGroupEnd")
_COUNT = "ncclCommCount"  # asked for right before an all-to-all: over how many members it goes
EXCHANGE = "all_to_allv"
PART = "part"
"""What the other calls of an all-to-all are: no operation of their own."""
_THREAD = ["process", "tid"]


def join_exchanges(calls: pl.DataFrame) -> pl.DataFrame:
    """Return NCCL's *calls* with each all-to-all as one: its first call stands for it, the others ask for nothing.

    *calls* have ``name``, ``collective``, ``communicator``, ``peer``, ``bytes``, times and thread. An all-to-all's
    bytes are those it sends.

    >>> names = ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclSend", "ncclRecv", "ncclGroupEnd"]
    >>> calls = pl.DataFrame({"name": names, "collective": [None, "send", "recv", "send", "recv", None],
    ...     "communicator": "7", "peer": [None, 0, 0, 1, 1, None], "bytes": [None, 4, 4, 8, 8, None],
    ...     "start_ns": range(6), "end_ns": range(1, 7), "process": 1, "tid": 1})
    >>> join_exchanges(calls).drop_nulls("collective").select("collective", "peer", "bytes", "end_ns").rows()[:2]
    [('all_to_allv', None, 12, 5), ('part', None, 4, 3)]
    """
    if not calls["collective"].is_in(_P2P).any():
        return calls
    edge = pl.col("name").is_in(_GROUP)
    ordered = calls.sort(*_THREAD, "start_ns", maintain_order=True).with_columns(
        _part=edge.cum_sum().over(_THREAD), _counted=(pl.col("name") == _COUNT)
    )
    # The count is asked for before the group is opened: one part earlier than the messages.
    asked = ordered.group_by(*_THREAD, _part=pl.col("_part") + 1).agg(
        _counted=pl.col("_counted").any() & (pl.col("collective").is_in(_P2P).sum() == 0)
    )
    matched = ordered.drop("_counted").join(asked, on=[*_THREAD, "_part"], how="left", maintain_order="left")
    part = [*_THREAD, "_part"]
    sends, receives = pl.col("collective") == "send", pl.col("collective") == "recv"
    several = (sends.sum() >= 2) & (sends.sum() == receives.sum())
    whole = several & (_members(sends) & _members(receives) | pl.col("peer").is_null().all())
    exchange = (whole | pl.col("_counted").fill_null(False).any()).over(part) & pl.col("collective").is_in(_P2P)
    first = exchange & (exchange.cum_sum().over(part) == 1)
    joined = matched.with_columns(_exchange=exchange, _first=first)
    return joined.with_columns(
        collective=pl.when("_first")
        .then(pl.lit(EXCHANGE))
        .when("_exchange")
        .then(pl.lit(PART))
        .otherwise("collective"),
        peer=pl.when(~pl.col("_exchange")).then("peer"),
        bytes=pl.when("_first").then(_sum(pl.col("bytes").filter(sends)).over(part)).otherwise("bytes"),
        end_ns=pl.when("_first").then(pl.col("end_ns").filter(sends | receives).max().over(part)).otherwise("end_ns"),
    ).drop("_part", "_counted", "_exchange", "_first")


def _sum(sizes: pl.Expr) -> pl.Expr:
    return pl.when(sizes.count() > 0).then(sizes.sum())


def _members(way: pl.Expr) -> pl.Expr:
    """Whether the messages of one direction go to members 0, 1, … in any order: to everyone, oneself among them."""
    peers = pl.col("peer").filter(way & pl.col("peer").is_not_null())
    return (peers.n_unique() == way.sum()) & (peers.min() == 0) & (peers.max() == way.sum() - 1)
