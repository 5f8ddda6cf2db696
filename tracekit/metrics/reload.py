"""Weight reload: rounds of host-to-device copy, broadcast and reload, compared with the two-buffer ideal.

In a round every rank copies its own shard to the device. Then each rank in turn stages its shard and broadcasts it, and
all ranks copy what arrived into the weights while the next broadcast runs. With R rounds, N owners and times h (copy),
b (broadcast) and l (reload) the ideal total is R(h + N·b) + l where l ≤ b, and R(h + b + (N−1)·l) + l where
b < l ≤ h + b.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tracekit.documents.analysis import ReloadLane
from tracekit.documents.coding import table_schema
from tracekit.intervals import overlaps_any, union_of
from tracekit.metrics.overlap import ratio
from tracekit.metrics.process_phases import MODEL_LABELS
from tracekit.schema import conform

RELOAD_EVENTS = pl.Schema(
    {
        "rank": pl.Int32(),
        "lane": pl.String(),  # h2d, stage, broadcast, reload or other
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "bytes": pl.Int64(),
    }
)
LANES = ("h2d", "stage", "broadcast", "reload")


@dataclass(frozen=True, slots=True)
class Reload:
    """A measured weight update. A share such as ``reload_under_broadcast`` is of the first-named lane's time.

    >>> from tracekit import analyze
    >>> reload = analyze("sample_traces/reload", schedule="none").reload
    >>> reload.rounds, reload.owners
    (2, 4)
    """

    rounds: int
    buckets: int
    owners: int
    sources: tuple[int | None, ...]  # the rank that broadcast each bucket
    lanes: pl.DataFrame  # rank, lane, count, bytes, ns, bandwidth_gb_s
    hidden: pl.DataFrame  # rank, reload_under_broadcast, h2d_under_others
    h2d_ns: int
    broadcast_ns: int
    reload_ns: int
    measured_ns: int
    ideal_ns: int | None


def two_buffer_ideal(rounds: int, owners: int, h2d: int, broadcast: int, reload: int) -> int | None:
    """Return the ideal total time of a reload; None where the closed form does not hold (reload > h2d + broadcast).

    Args:
        rounds: Number of rounds.
        owners: Number of ranks that broadcast in each round.
        h2d: Time of one copy to the device.
        broadcast: Time of one broadcast.
        reload: Time of one reload.

    >>> two_buffer_ideal(2, 4, h2d=4, broadcast=1, reload=1)
    17
    >>> two_buffer_ideal(1, 4, h2d=4, broadcast=1, reload=2)
    13
    >>> two_buffer_ideal(1, 4, h2d=0, broadcast=1, reload=2) is None
    True
    """
    if reload <= broadcast:
        return rounds * (h2d + owners * broadcast) + reload
    if h2d + broadcast >= reload:
        return rounds * (h2d + broadcast + (owners - 1) * reload) + reload
    return None


def reload_events(labelled: pl.DataFrame, stretches: pl.DataFrame | None = None) -> pl.DataFrame | None:
    """Return the events of one process's part in weight updates (``RELOAD_EVENTS``); None if it has none.

    A device copy of a broadcast's size on the broadcasts' own stream stages a bucket. Other work in the *stretches* of
    weight synchronisation (``metrics.process_phases``) has the lane ``other``.

    >>> rows = [("broadcast", "kernel", "k", 7, 0, 4, 8), ("reload", "memcpy", "copy", 9, 4, 6, 8)]
    >>> columns = ["label", "kind", "name", "stream", "start_ns", "end_ns", "bytes"]
    >>> gpu = pl.DataFrame(rows, schema=columns, orient="row")
    >>> reload_events(gpu)["lane"].to_list()
    ['broadcast', 'reload']
    """
    label, name = pl.col("label"), pl.col("name").cast(pl.String)
    broadcasts = labelled.filter(label == "broadcast")
    if broadcasts.is_empty() and labelled.filter(label == "reload").is_empty():
        return None
    on_broadcast_stream = pl.col("stream").is_in(broadcasts["stream"].unique().to_list())
    broadcast_size = pl.col("bytes").is_null() | pl.col("bytes").is_in(broadcasts["bytes"].unique().to_list())
    is_copy = pl.col("kind") == "memcpy"
    lane = (
        pl.when(label == "broadcast")
        .then(pl.lit("broadcast"))
        .when(is_copy & (label == "onload") & name.str.contains("(?i)HtoD|host.to.device"))
        .then(pl.lit("h2d"))
        .when(is_copy & on_broadcast_stream & broadcast_size & label.is_in(["reload", "memory"]))
        .then(pl.lit("stage"))
        .when(label == "reload")
        .then(pl.lit("reload"))
    )
    if stretches is not None:
        sync = stretches.filter(phase="weight_sync")
        in_sync = overlaps_any(
            *(table[column].to_numpy() for table in (labelled, sync) for column in ("start_ns", "end_ns"))
        )
        lane = lane.when(pl.Series(in_sync) & ~label.is_in(MODEL_LABELS)).then(pl.lit("other"))
    return conform(
        labelled.with_columns(lane=lane).filter(pl.col("lane").is_not_null()).sort("start_ns"), RELOAD_EVENTS
    )


def reload_report(events: Sequence[pl.DataFrame]) -> Reload | None:
    """Summarize a weight update over all its ranks; None if no rank has one.

    >>> rows = [("h2d", 0, 4), ("stage", 4, 4), ("broadcast", 4, 6), ("broadcast", 6, 8), ("reload", 6, 7),
    ...         ("reload", 8, 9)]
    >>> rank = conform(pl.DataFrame(rows, schema=["lane", "start_ns", "end_ns"], orient="row"), RELOAD_EVENTS)
    >>> reload = reload_report([rank.with_columns(rank=pl.lit(3, pl.Int32))])
    >>> reload.rounds, reload.buckets, reload.sources, reload.ideal_ns
    (1, 2, (3, None), 9)
    >>> reload.hidden["reload_under_broadcast"].to_list()
    [0.5]
    """
    events = [of_rank.filter(pl.col("lane") != "other") for of_rank in events]
    if not {"broadcast", "reload"} <= {lane for of_rank in events for lane in of_rank["lane"].unique()}:
        return None
    table = pl.concat(events).with_columns(
        ns=pl.col("end_ns") - pl.col("start_ns"),
        number=pl.int_range(pl.len()).over("rank", "lane"),  # which copy, broadcast or reload of its rank
    )
    counts = dict(table.group_by("lane").agg(pl.col("number").max() + 1).iter_rows())
    rounds, buckets = counts.get("h2d", 1), counts.get("broadcast", 0)
    owners = max(1, round(buckets / rounds))
    # All ranks copy at once, so a round's copy lasts as long as the slowest; a broadcast as its shortest participant.
    by_number = table.group_by("lane", "number").agg(longest=pl.col("ns").max(), shortest=pl.col("ns").min())
    h2d = _median(by_number.filter(lane="h2d")["longest"])
    broadcast = _median(by_number.filter(lane="broadcast")["shortest"])
    reload = _median(table.filter(lane="reload")["ns"])
    spans = table.group_by("rank").agg(ns=pl.col("end_ns").max() - pl.col("start_ns").min())
    return Reload(
        rounds=rounds,
        buckets=buckets,
        owners=owners,
        sources=_find_sources(events, buckets),
        lanes=_measure_lanes(table),
        hidden=pl.DataFrame([_measure_hidden(of_rank) for of_rank in events]),
        h2d_ns=h2d,
        broadcast_ns=broadcast,
        reload_ns=reload,
        measured_ns=int(spans["ns"].max()),  # type: ignore[arg-type]
        ideal_ns=two_buffer_ideal(rounds, owners, h2d, broadcast, reload),
    )


def _find_sources(events: Sequence[pl.DataFrame], buckets: int) -> tuple[int | None, ...]:
    """Return the rank that broadcast each bucket: the one that staged a copy just before that broadcast."""
    sources: dict[int, int] = {}
    for of_rank in events:
        broadcast_starts = of_rank.filter(lane="broadcast")["start_ns"].to_numpy()
        staging_starts = of_rank.filter(lane="stage")["start_ns"].to_numpy()
        for bucket in np.searchsorted(broadcast_starts, staging_starts).tolist():
            sources.setdefault(bucket, int(of_rank["rank"][0]))
    return tuple(sources.get(bucket) for bucket in range(buckets))


def _measure_lanes(table: pl.DataFrame) -> pl.DataFrame:
    """Return count, bytes, union time and bandwidth by rank and lane; bytes are null where any event lacks them."""
    rows = []
    for (rank, lane), events in table.group_by("rank", "lane", maintain_order=True):
        ns, size = union_of(events).total_ns, None if events["bytes"].null_count() else events["bytes"].sum()
        rows.append((rank, lane, len(events), size, ns, size / ns if size is not None and ns else None))
    lane_order = pl.col("lane").cast(pl.Enum(LANES))
    return pl.DataFrame(rows, schema=table_schema(ReloadLane), orient="row").sort("rank", lane_order)


def _measure_hidden(of_rank: pl.DataFrame) -> dict[str, Any]:
    """Return the share of a rank's reloads under broadcasts, and of its copies under broadcasts and reloads."""
    h2d, broadcast, reload = (union_of(of_rank.filter(lane=lane)) for lane in ("h2d", "broadcast", "reload"))
    return {
        "rank": int(of_rank["rank"][0]),
        "reload_under_broadcast": ratio((reload & broadcast).total_ns, reload.total_ns),
        "h2d_under_others": ratio((h2d & (broadcast | reload)).total_ns, h2d.total_ns),
    }


def _median(values: pl.Series) -> int:
    """Return the rounded median; 0 if there are no values."""
    median = values.median()
    return round(median) if isinstance(median, float) else 0
