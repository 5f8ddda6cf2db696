"""Weight reload: rounds of host-to-device copy, broadcast and reload, against the two-buffer ideal.

In a round every rank copies its own shard to the device; then each rank in turn stages it and broadcasts it, and all
copy what arrived into the weights while the next broadcast runs. With R rounds, N owners and times h, b, l the ideal
total is R(h + N·b) + l where l ≤ b, and R(h + b + (N−1)·l) + l where b < l ≤ h + b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.intervals import Intervals, union_of
from tracekit.metrics.overlap import ratio
from tracekit.schema import conform

RELOAD_EVENTS = pl.Schema(
    {
        "rank": pl.Int32(),
        "lane": pl.String(),  # h2d, stage, broadcast or reload
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "bytes": pl.Int64(),
    }
)
LANES = ("h2d", "stage", "broadcast", "reload")


@dataclass(frozen=True, slots=True)
class Reload:
    """A weight update as it ran. Shares are of the first-named lane's time.

    >>> from tracekit import analyze
    >>> found = analyze("sample_traces/reload", schedule="none").reload
    >>> found.rounds, found.owners
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "rounds": self.rounds,
            "buckets": self.buckets,
            "owners": self.owners,
            "sources": list(self.sources),
            "lanes": self.lanes.to_dicts(),
            "hidden": self.hidden.to_dicts(),
            "time_ns": {"H2D": self.h2d_ns, "BROADCAST": self.broadcast_ns, "RELOAD": self.reload_ns},
            "measured_ns": self.measured_ns,
            "ideal_ns": self.ideal_ns,
        }


def two_buffer_ideal(rounds: int, owners: int, h2d: int, broadcast: int, reload: int) -> int | None:
    """Return the ideal total time of a reload; None where the closed form does not hold.

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


def reload_events(labelled: pl.DataFrame) -> pl.DataFrame | None:
    """Return the events of one rank's weight update; None where there is none.

    A device copy on the broadcasts' own stream stages a bucket; one on another stream is the reload.

    >>> rows = [("broadcast", "kernel", "k", 7, 0, 4), ("reload", "memcpy", "copy", 9, 4, 6)]
    >>> gpu = pl.DataFrame(rows, schema=["label", "kind", "name", "stream", "start_ns", "end_ns"], orient="row")
    >>> reload_events(gpu)["lane"].to_list()
    ['broadcast', 'reload']
    """
    label, name = pl.col("label"), pl.col("name").cast(pl.String)
    sends = labelled.filter(label == "broadcast")
    if sends.is_empty() or labelled.filter(label == "reload").is_empty():
        return None
    streams = sends["stream"].unique().to_list()
    copy = pl.col("kind") == "memcpy"
    lane = (
        pl.when(label == "broadcast")
        .then(pl.lit("broadcast"))
        .when(copy & name.str.contains("(?i)HtoD|host.to.device"))
        .then(pl.lit("h2d"))
        .when(copy & pl.col("stream").is_in(streams) & label.is_in(["reload", "memory"]))
        .then(pl.lit("stage"))
        .when(label == "reload")
        .then(pl.lit("reload"))
    )
    return conform(
        labelled.with_columns(lane=lane).filter(pl.col("lane").is_not_null()).sort("start_ns"), RELOAD_EVENTS
    )


def reload_report(events: Sequence[pl.DataFrame]) -> Reload | None:
    """Return the report on a weight update, over all its ranks.

    >>> rows = [("h2d", 0, 4), ("stage", 4, 4), ("broadcast", 4, 6), ("broadcast", 6, 8), ("reload", 6, 7),
    ...         ("reload", 8, 9)]
    >>> rank = conform(pl.DataFrame(rows, schema=["lane", "start_ns", "end_ns"], orient="row"), RELOAD_EVENTS)
    >>> done = reload_report([rank.with_columns(rank=pl.lit(3, pl.Int32))])
    >>> done.rounds, done.buckets, done.sources, done.ideal_ns, done.hidden["reload_under_broadcast"].to_list()
    (1, 2, (3, None), 9, [0.5])
    """
    if not events:
        return None
    table = pl.concat(events)
    ns = pl.col("end_ns") - pl.col("start_ns")
    counts = dict(table.group_by("lane", "rank").agg(n=pl.len()).group_by("lane").agg(pl.col("n").max()).iter_rows())
    rounds, buckets = counts.get("h2d", 1), counts.get("broadcast", 0)
    owners = max(1, round(buckets / rounds))
    nth = table.with_columns(ns=ns, n=pl.int_range(pl.len()).over("rank", "lane"))
    # All copy at once, so a round's copy lasts as long as the slowest; a broadcast as its shortest participant.
    h2d = _median(nth.filter(lane="h2d").group_by("n").agg(pl.col("ns").max()))
    broadcast = _median(nth.filter(lane="broadcast").group_by("n").agg(pl.col("ns").min()))
    reload = _median(nth.filter(lane="reload"))
    spans = table.group_by("rank").agg(ns=pl.col("end_ns").max() - pl.col("start_ns").min())
    return Reload(
        rounds=rounds,
        buckets=buckets,
        owners=owners,
        sources=_sources(events, buckets),
        lanes=_lanes(table),
        hidden=pl.DataFrame([_hidden(of_rank) for of_rank in events]),
        h2d_ns=h2d,
        broadcast_ns=broadcast,
        reload_ns=reload,
        measured_ns=int(spans["ns"].max()),  # type: ignore[arg-type]
        ideal_ns=two_buffer_ideal(rounds, owners, h2d, broadcast, reload),
    )


def _sources(events: Sequence[pl.DataFrame], buckets: int) -> tuple[int | None, ...]:
    """Return each bucket's source: the rank that staged a copy just before that broadcast."""
    source: dict[int, int] = {}
    for of_rank in events:
        starts = of_rank.filter(lane="broadcast")["start_ns"]
        staged = of_rank.filter(lane="stage")["start_ns"]
        for bucket in starts.search_sorted(staged, "left").to_list() if len(staged) else []:
            source.setdefault(bucket, int(of_rank["rank"][0]))
    return tuple(source.get(bucket) for bucket in range(buckets))


def _lanes(table: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for (rank, lane), part in table.group_by("rank", "lane", maintain_order=True):
        total, size = union_of(part).total_ns, part["bytes"].sum() if part["bytes"].null_count() == 0 else None
        rows.append((rank, lane, len(part), size, total, size / total if size is not None and total else None))
    names = ["rank", "lane", "count", "bytes", "ns", "bandwidth_gb_s"]
    order = pl.col("lane").cast(pl.Enum(LANES))
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None).sort("rank", order)


def _hidden(of_rank: pl.DataFrame) -> dict[str, Any]:
    lanes: dict[str, Intervals] = {lane: union_of(of_rank.filter(lane=lane)) for lane in LANES}
    reload, h2d = lanes["reload"], lanes["h2d"]
    return {
        "rank": int(of_rank["rank"][0]),
        "reload_under_broadcast": ratio((reload & lanes["broadcast"]).total_ns, reload.total_ns),
        "h2d_under_others": ratio((h2d & (lanes["broadcast"] | reload)).total_ns, h2d.total_ns),
    }


def _median(frame: pl.DataFrame) -> int:
    value = frame["ns"].median()
    return round(value) if isinstance(value, float) else 0
