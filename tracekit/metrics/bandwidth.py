"""Bandwidth of communication over its transfer time, without waiting.

Algorithm bandwidth is an operation's bytes / its transfer time. Bus bandwidth scales it by the
share of the bytes that each rank's link must carry, so that it can be compared with the link
whatever the number of ranks.
"""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from tracekit.classify.messages import parse_group_ranks
from tracekit.documents.analysis import Bandwidth, Copy
from tracekit.documents.coding import table_schema
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.measured_collectives import RankGpu, find_common_gpu, measured_ns
from tracekit.metrics.peaks import link_gb_s
from tracekit.schema import COPY_LABELS, conform

BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    **dict.fromkeys(("allreduce", "all_reduce"), lambda ranks: 2 * (ranks - 1) / ranks),
    **dict.fromkeys(
        ("allgather", "reducescatter", "reduce_scatter", "alltoall", "all_to_all"),
        lambda ranks: (ranks - 1) / ranks,
    ),
    **dict.fromkeys(("p2p", "broadcast"), lambda ranks: 1.0),
}
"""Share of an operation's bytes that a rank's link carries, by the beginning of the operation's
name; others have no bus bandwidth."""

IN_NODE = "in node"
ACROSS_NODES = "across nodes"

BANDWIDTH = table_schema(Bandwidth)

_UNIT_OF_POWER = ((10, "kB"), (20, "MB"), (30, "GB"), (40, "TB"))
"""Powers of two of the units."""


def bucket(size: int) -> str:
    """Return the bucket of a number of bytes; each bucket reaches to four times its lower bound.

    >>> [bucket(n) for n in (0, 900, 1024, 3 << 20, 5 << 30)]
    ['below 1 kB', 'below 1 kB', '1–4 kB', '1–4 MB', '4–16 GB']
    """
    if size < 1024:
        return "below 1 kB"
    # Largest power of four up to the size, as a power of two.
    power = (size.bit_length() - 1) // 2 * 2
    unit_power, unit = next(unit for unit in reversed(_UNIT_OF_POWER) if unit[0] <= power)
    low = 1 << (power - unit_power)
    return f"{low}–{4 * low} {unit}"


def bandwidth(
    members: pl.DataFrame, *, node: int | None = None, gpus: Mapping[int, RankGpu] | None = None
) -> pl.DataFrame:
    """Return ``BANDWIDTH``: matched operations by kind, group, location and size.

    Operations whose bytes are unknown are left out, and so are kernels that carry several messages.

    Args:
        members: Matched operations (``align.matching.MEMBERS``), with the ``dtype`` of reductions if
            it is known.
        node: Number of consecutive ranks on one machine; None if unknown.
        gpus: GPU of each rank, where collectives were measured on such GPUs.

    >>> from tracekit.align.matching import MEMBERS
    >>> rows = [{"match": 0, "rank": rank, "label": "dp_comm", "what": "allreduce", "group": "dp", "bytes": 8_000_000,
    ...          "transfer_ns": 1_000_000, "wait_ns": wait} for rank, wait in ((0, 0), (1, 500))]
    >>> bandwidth(conform(pl.DataFrame(rows), MEMBERS)).select("size", "algorithm_gb_s", "bus_gb_s", "wait_ns").rows()
    [('4–16 MB', 8.0, 8.0, 500)]

    """
    if members.is_empty():
        return BANDWIDTH.to_frame()
    sized = members.filter(
        pl.col("bytes").is_not_null().all().over("match") & (pl.col("transfer_ns") > 0)
    )
    groups = parse_group_ranks(sized["group_ranks"])
    listed_ranks = groups.filter("all_listed").select(
        "group_ranks", listed=pl.col("members").list.len()
    )
    if "dtype" not in sized.columns:
        sized = sized.with_columns(dtype=pl.lit(None, pl.String))
    operations = (
        sized.with_columns(
            pl.col("group_ranks").cast(pl.String), where=_locate(sized, groups, node)
        )
        .join(listed_ranks, on="group_ranks", how="left", maintain_order="left")
        .group_by("match")
        .agg(
            pl.col("label", "what", "group", "where").first(),
            pl.col("dtype").cast(pl.String).first(),
            recorded_ranks=pl.col("rank").sort(),
            ranks=pl.coalesce(pl.col("listed").max(), pl.len()).cast(pl.Int64),
            bytes=pl.col("bytes").max(),  # of an uneven exchange the largest amount takes the time
            transfer_ns=pl.col("transfer_ns").first(),
            wait_ns=pl.col("wait_ns").sum(),
        )
    )
    operations = add_measured_times(operations, gpus or {})
    buckets = {size: bucket(size) for size in operations["bytes"].unique().to_list()}
    table = (
        operations.with_columns(
            size=pl.col("bytes").replace_strict(buckets, return_dtype=pl.String),
            size_order=pl.col("bytes").log(4).fill_nan(0).floor(),
        )
        .group_by("label", "what", "group", "ranks", "where", "size")
        .agg(
            pl.col("bytes", "transfer_ns", "wait_ns").sum(),
            pl.first("size_order"),
            measured_ns=_sum_if_all_known("measured_ns"),
            gpu_link_gb_s=pl.when(pl.col("gpu_link_gb_s").is_not_null().all()).then(
                pl.col("gpu_link_gb_s").min()
            ),
            count=pl.len().cast(pl.Int64),
        )
        .sort("label", "what", "group", "ranks", "where", "size_order")
    )
    factors = [
        _bus_factor(what, ranks) for what, ranks in table.select("what", "ranks").iter_rows()
    ]
    # Bytes per nanosecond are GB per second.
    algorithm_gb_s = pl.col("bytes") / pl.col("transfer_ns")
    bus_gb_s = algorithm_gb_s * pl.Series(factors, dtype=pl.Float64)
    peaks = {where: link_gb_s(where) for where in (IN_NODE, ACROSS_NODES)}
    peak_gb_s = pl.col("where").replace_strict(peaks, default=None, return_dtype=pl.Float64)
    rated = table.with_columns(
        algorithm_gb_s=algorithm_gb_s,
        bus_gb_s=bus_gb_s,
        share_of_link=bus_gb_s / peak_gb_s,
        measured_bus_gb_s=bus_gb_s * pl.col("transfer_ns") / pl.col("measured_ns"),
        share_of_measured=pl.col("measured_ns") / pl.col("transfer_ns"),
    )
    return conform(rated, BANDWIDTH)


def _sum_if_all_known(column: str) -> pl.Expr:
    """Return the sum of a column, null if any of its values is."""
    return pl.when(pl.col(column).is_not_null().all()).then(pl.col(column).sum())


def add_measured_times(operations: pl.DataFrame, gpus: Mapping[int, RankGpu]) -> pl.DataFrame:
    """Add ``measured_ns``, the time that each operation took where it was measured on such GPUs, and their link's peak.

    Both are null where the GPUs are not known, are shared or are on several machines.

    Args:
        operations: One row per operation, with ``what``, ``dtype``, ``ranks``, ``recorded_ranks``,
            ``where`` and ``bytes``.
        gpus: GPU of each rank, as far as it is known.
    """
    times_ns = np.full(len(operations), np.nan)
    links_gb_s = np.full(len(operations), np.nan)
    keys = ("what", "dtype", "ranks", "recorded_ranks", "where")
    rows_of_kind = operations.with_row_index("row").group_by(keys).agg("row", "bytes")
    for what, dtype, ranks, recorded_ranks, where, rows, sizes in rows_of_kind.iter_rows():
        in_node = None if where is None else where == IN_NODE
        gpu = find_common_gpu(gpus, recorded_ranks, group_size=ranks, in_node=in_node)
        if gpu is None:
            continue
        links_gb_s[rows] = gpu.link_gb_s
        kind_ns = measured_ns(what or "", np.array(sizes), gpu=gpu.name, ranks=ranks, dtype=dtype)
        if kind_ns is not None:
            times_ns[rows] = kind_ns
    return operations.with_columns(
        measured_ns=pl.Series(times_ns).fill_nan(None),
        gpu_link_gb_s=pl.Series(links_gb_s).fill_nan(None),
    )


def _locate(members: pl.DataFrame, groups: pl.DataFrame, node: int | None) -> pl.Series:
    """Return for every member whether its operation stays in a node: by the group's ranks, for a message by both ends.

    *groups* lists the ranks of the groups (``GROUP_MEMBERS``). Members are ranks with a trace. That
    these share a node proves nothing for a group whose ranks are not listed.
    """
    if node is None:
        return pl.repeat(None, len(members), dtype=pl.String, eager=True)
    node_count = pl.col("members").list.eval(pl.element() // node).list.n_unique()
    nodes_of_group = groups.filter("all_listed").select(
        "group_ranks", group_nodes=node_count.cast(pl.Int64)
    )
    members = members.with_columns(pl.col("group_ranks").cast(pl.String))
    table = members.join(
        nodes_of_group, on="group_ranks", how="left", maintain_order="left"
    ).select(
        "match",
        "group_nodes",
        is_message=pl.col("what") == "p2p",
        own_node=pl.col("rank").cast(pl.Int64) // node,
        peer_node=pl.col("peer").cast(pl.Int64) // node,
    )
    is_message = pl.col("is_message")
    members_across = pl.col("own_node").n_unique().over("match") > 1
    group_across = ~is_message & (pl.col("group_nodes") > 1).fill_null(value=False)
    message_across = is_message & (pl.col("own_node") != pl.col("peer_node"))
    is_across = members_across | group_across | message_across.fill_null(value=False)
    stays = is_message | (pl.col("group_nodes") == 1)
    return table.select(
        pl.when(is_across).then(pl.lit(ACROSS_NODES)).when(stays).then(pl.lit(IN_NODE))
    ).to_series()


def _bus_factor(what: str | None, ranks: int) -> float | None:
    """Return the bus factor of an operation; None if it has none."""
    name = (what or "").lower().lstrip("_")
    return next(
        (factor(max(ranks, 1)) for start, factor in BUS_FACTORS.items() if name.startswith(start)),
        None,
    )


# ---- Copies: bytes, bandwidth, hidden share, and the stalls they cause.


COPIES = pl.Schema({key: dtype for key, dtype in table_schema(Copy).items() if key != "rank"})
"""``of_link`` is null above 1: the figure of the link is then wrong."""

HOST_LINK_LABELS = ("offload", "onload")
"""Copies over the link between a GPU and its host."""


def copies(
    times: pl.DataFrame, exposed: Mapping[str, Intervals], *, link_gb_s: float | None = None
) -> pl.DataFrame:
    """Return one row per copy label (``COPIES``).

    Args:
        times: Table of ``metrics.overlap.label_times``, of one part.
        exposed: Exposed time by label (``Lanes.exposed``); its intervals are the stalls.
        link_gb_s: Bandwidth of the link to the host in one direction; None if unknown.

    >>> from tracekit.metrics.label_intervals import Lanes
    >>> from tracekit.metrics.overlap import label_times
    >>> events = pl.DataFrame({"label": ["forward", "offload"], "start_ns": [0, 50], "end_ns": [100, 150],
    ...                        "bytes": [None, 5000]})
    >>> lanes = Lanes.of(events)
    >>> table = copies(label_times(events, lanes), lanes.exposed, link_gb_s=63)
    >>> table.select("bandwidth_gb_s", pl.col("of_link").round(2), "hidden", "stall_ns").rows()
    [(50.0, 0.79, 0.5, 50)]

    """
    table = times.filter(pl.col("label").is_in(COPY_LABELS))
    stalls = [exposed.get(label, EMPTY) for label in table["label"]]
    busy_ns = pl.when(pl.col("ns") > 0).then("ns")
    rate = pl.col("bytes") / busy_ns  # bytes per nanosecond are GB per second
    link = pl.when(pl.col("label").is_in(HOST_LINK_LABELS)).then(pl.lit(link_gb_s, pl.Float64))
    return conform(
        table.with_columns(
            bandwidth_gb_s=rate,
            link_gb_s=link,
            of_link=pl.when(rate <= link).then(rate / link),
            hidden=pl.col("hidden_ns") / busy_ns,
            stall_ns=pl.Series([of_row.total_ns for of_row in stalls], dtype=pl.Int64),
            stalls=pl.Series(map(len, stalls), dtype=pl.Int64),
        ),
        COPIES,
    )
