"""How fast communication moved its bytes: over the transfer alone, with waiting apart.

Algorithm bandwidth is an operation's bytes over its transfer time. Bus bandwidth scales it by what each rank's link
must carry for them, so that it can be compared with the link whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from tracekit._util.shapes import parse_list
from tracekit.metrics.peaks import link_gb_s
from tracekit.schema import conform

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "p2p": lambda n: 1.0,
    "broadcast": lambda n: 1.0,
}
"""What a rank's link carries of an operation's bytes, by how its name begins; any other has no bus bandwidth."""

IN_NODE, ACROSS = "in node", "across nodes"

BANDWIDTH = pl.Schema(
    {
        "label": pl.String(),
        "what": pl.String(),  # the collective, or "p2p"
        "group": pl.String(),  # description or name of the process group, where the trace has one
        "ranks": pl.Int64(),  # members of the group
        "where": pl.String(),  # "in node" or "across nodes"; null where that is not known
        "size": pl.String(),  # bucket of bytes per operation: "1–4 MB"
        "count": pl.Int64(),  # operations
        "bytes": pl.Int64(),  # of all of them
        "transfer_ns": pl.Int64(),  # sum of each operation's shortest member
        "wait_ns": pl.Int64(),  # sum over members and operations
        "algorithm_gb_s": pl.Float64(),  # bytes / transfer time
        "bus_gb_s": pl.Float64(),
        "share_of_link": pl.Float64(),  # bus bandwidth over the link's peak, where one is given
    }
)

_STEPS = ((10, "kB"), (20, "MB"), (30, "GB"), (40, "TB"))


def bucket(size: int) -> str:
    """Return the bucket of a number of bytes: four times as much, the next one.

    >>> [bucket(n) for n in (0, 900, 1024, 3 << 20, 5 << 30)]
    ['below 1 kB', 'below 1 kB', '1–4 kB', '1–4 MB', '4–16 GB']
    """
    if size < 1024:
        return "below 1 kB"
    power = (size.bit_length() - 1) // 2 * 2
    shift, unit = next(((s, u) for s, u in reversed(_STEPS) if s <= power), _STEPS[0])
    low = 1 << (power - shift)
    return f"{low}–{4 * low} {unit}"


def bandwidth(members: pl.DataFrame, *, node: int | None = None) -> pl.DataFrame:
    """Return ``BANDWIDTH``: matched operations (*members*: ``MEMBERS``) by what they are and how much they move.

    An operation whose bytes are not known is left out, and so is a kernel that carries several messages. *node* is how
    many consecutive ranks share a machine: an operation is then in a node, or across nodes.

    >>> from tracekit.align.matching import MEMBERS
    >>> rows = [{"match": 0, "rank": rank, "label": "dp_comm", "what": "allreduce", "group": "dp", "bytes": 8_000_000,
    ...          "transfer_ns": 1_000_000, "wait_ns": wait} for rank, wait in ((0, 0), (1, 500))]
    >>> bandwidth(conform(pl.DataFrame(rows), MEMBERS)).select("size", "algorithm_gb_s", "bus_gb_s", "wait_ns").rows()
    [('4–16 MB', 8.0, 8.0, 500)]
    """
    known = members.filter(pl.col("bytes").is_not_null().all().over("match") & (pl.col("transfer_ns") > 0))
    listed = pl.col("group_ranks").cast(pl.String).str.count_matches(",") + 1
    known = known.with_columns(where=_where(known, node))
    matched = known.group_by("match").agg(
        pl.col("label", "what", "group", "where").first(),
        ranks=pl.coalesce(listed.max(), pl.len()).cast(pl.Int64),
        bytes=pl.col("bytes").max(),  # ranks of an uneven exchange move different amounts: the largest takes the time
        transfer_ns=pl.col("transfer_ns").first(),
        wait_ns=pl.col("wait_ns").sum(),
    )
    sizes = {size: bucket(size) for size in matched["bytes"].unique().to_list()}
    matched = matched.with_columns(
        size=pl.col("bytes").replace_strict(sizes, return_dtype=pl.String),
        order=pl.col("bytes").log(4).fill_nan(0).floor(),
    )
    table = (
        matched.group_by("label", "what", "group", "ranks", "where", "size")
        .agg(
            pl.col("bytes", "transfer_ns", "wait_ns").sum(),
            count=pl.len().cast(pl.Int64),
            order=pl.col("order").first(),
        )
        .sort("label", "what", "group", "ranks", "where", "order")
        .with_columns(algorithm_gb_s=pl.col("bytes") / pl.col("transfer_ns"))
    )
    factors = [_factor(what, ranks) for what, ranks in table.select("what", "ranks").iter_rows()]
    bus = pl.col("algorithm_gb_s") * pl.Series(factors, dtype=pl.Float64)
    links = {where: link_gb_s(where) for where in (IN_NODE, ACROSS)}
    peak = pl.col("where").replace_strict(links, default=None, return_dtype=pl.Float64)
    rated = table.with_columns(bus_gb_s=bus, share_of_link=bus / peak)
    return conform(rated, BANDWIDTH)


def _where(members: pl.DataFrame, node: int | None) -> pl.Series:
    """Return of every member whether its operation stays in a node: by the group's ranks, of a message by both ends.

    Members are ranks with a trace; that these share a node says nothing of a group whose ranks are not known.
    """
    if node is None:
        return pl.Series([None], dtype=pl.String).new_from_index(0, len(members))
    texts = members["group_ranks"].cast(pl.String)
    spans = {text: _nodes(text, node) for text in texts.unique().drop_nulls().to_list()}
    own = pl.col("rank").cast(pl.Int64) // node
    table = members.select(
        "match",
        "what",
        own=own,
        other=pl.col("peer").cast(pl.Int64) // node,
        group=texts.replace_strict(spans, default=None, return_dtype=pl.Int64),
    )
    seen = pl.col("own").n_unique().over("match") > 1
    message = pl.col("what") == "p2p"
    return table.select(
        pl.when(seen | (pl.col("group") > 1).fill_null(value=False) & ~message)
        .then(pl.lit(ACROSS))
        .when(message & (pl.col("own") != pl.col("other")))
        .then(pl.lit(ACROSS))
        .when(message | (pl.col("group") == 1))
        .then(pl.lit(IN_NODE))
    ).to_series()


def _nodes(ranks: str, node: int) -> int | None:
    """Return over how many nodes a group reaches; None where its ranks are not listed."""
    listed = parse_list(ranks)
    known = [rank for rank in listed if type(rank) is int and rank >= 0]
    return len({rank // node for rank in known}) if known and len(known) == len(listed) else None


def _factor(what: str | None, ranks: int) -> float | None:
    plain = (what or "").lower().lstrip("_")
    for name in sorted(BUS_FACTORS, key=len, reverse=True):
        if plain.startswith(name):
            return BUS_FACTORS[name](max(ranks, 1))
    return None
