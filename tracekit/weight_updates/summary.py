"""Summary of a weight update by rank and lane, where the same processes broadcast and reload (JSON ``reload``).

Times and the ideal are those of the update itself (``updates``); this module adds how much each
rank moved in each lane and how much of its reloads ran beside broadcasts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl

from tracekit.documents.analysis import ReloadLane
from tracekit.documents.coding import table_schema
from tracekit.documents.roles import WeightUpdate
from tracekit.intervals import union_of
from tracekit.metrics.overlap import ratio
from tracekit.weight_updates.transfers import TRANSFER_LANES, UpdateProcess
from tracekit.weight_updates.updates import find_weight_updates


@dataclass(frozen=True, slots=True)
class ReloadSummary:
    """A measured weight update.

    A share such as ``reload_under_broadcast`` is of the first-named lane's time.

    >>> from tracekit import analyze
    >>> reload = analyze("sample_traces/reload", schedule="none").reload
    >>> reload.rounds, reload.owners
    (2, 4)
    """

    rounds: int
    buckets: int
    owners: int
    """Buckets of a round: each rank that broadcasts owns one."""
    sources: tuple[int | None, ...]
    """Rank that broadcast each bucket."""
    lanes: pl.DataFrame
    """rank, lane, count, bytes, ns, bandwidth_gb_s"""
    hidden: pl.DataFrame
    """rank, reload_under_broadcast, h2d_under_others"""
    h2d_ns: int
    """Median over rounds of the copy from the host, which lasts as long as the slowest rank's."""
    broadcast_ns: int
    """Median over buckets of the broadcast, from the arrival of its last member to its last end."""
    reload_ns: int
    """Median over buckets of the reload, which is itself a median over ranks."""
    measured_ns: int
    """Time from the first copy on any rank to the last reload on any rank."""
    ideal_ns: int | None
    """Time of the two-buffer ideal with the measured time of each round and bucket."""


def summarize_longest_update(processes: Sequence[UpdateProcess]) -> ReloadSummary | None:
    """Return the summary of the longest update among processes that broadcast and reload.

    None if there is none.

    >>> rows = [("h2d", 0, 4), ("broadcast", 4, 6), ("broadcast", 6, 8), ("reload", 6, 7), ("reload", 8, 9)]
    >>> columns = {"lane": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    >>> transfers = pl.DataFrame(rows, schema=columns, orient="row").sort("start_ns")
    >>> transfers = transfers.with_columns(rank=3, bytes=pl.lit(None, pl.Int64))
    >>> phases = pl.DataFrame(schema={"phase": pl.String, "start_ns": pl.Int64})
    >>> summary = summarize_longest_update([UpdateProcess("", 3, phases, transfers)])
    >>> summary.rounds, summary.buckets, summary.measured_ns, summary.ideal_ns
    (1, 2, 9, 9)
    >>> summary.hidden["reload_under_broadcast"].to_list()
    [0.5]
    """
    some_broadcast = any(len(process.lane("broadcast")) for process in processes)
    some_reload = any(len(process.lane("reload")) for process in processes)
    if not (some_broadcast and some_reload):
        return None
    updates, _ = find_weight_updates(processes)
    with_ideal = [update for update in updates if update.ideal_ns is not None]
    if not with_ideal:
        return None
    longest = max(with_ideal, key=lambda update: update.measured_ns)
    return _summarize(longest, processes)


def _summarize(update: WeightUpdate, processes: Sequence[UpdateProcess]) -> ReloadSummary:
    in_update = pl.col("start_ns").is_between(update.start_ns, update.end_ns)
    by_rank = []
    hidden = []
    for process in processes:
        transfers = process.lane(*TRANSFER_LANES).filter(in_update)
        if len(transfers):
            by_rank.append(transfers)
            hidden.append(_measure_hidden(transfers))
    durations = _ideal_durations(update)
    rounds = len(durations["H2D"])
    return ReloadSummary(
        rounds=rounds,
        buckets=update.buckets,
        owners=max(1, round(update.buckets / rounds)),
        sources=update.sources,
        lanes=_measure_lanes(pl.concat(by_rank)),
        hidden=pl.DataFrame(hidden),
        h2d_ns=round(median(durations["H2D"])),
        broadcast_ns=round(median(durations["BROADCAST"])),
        reload_ns=round(median(durations["RELOAD"])),
        measured_ns=update.measured_ns,
        ideal_ns=update.ideal_ns,
    )


def _ideal_durations(update: WeightUpdate) -> dict[str, list[int]]:
    """Return how long each operation takes in the ideal, which has the measured times, by kind of operation."""
    durations: dict[str, list[int]] = {"H2D": [], "BROADCAST": [], "RELOAD": []}
    for op, _bucket, start, end in update.ideal:
        durations[op].append(end - start)
    return durations


def _measure_lanes(transfers: pl.DataFrame) -> pl.DataFrame:
    """Return count, bytes, union time and bandwidth by rank and lane.

    Bytes are null where any event lacks them.
    """
    rows = []
    for (rank, lane), events in transfers.group_by("rank", "lane", maintain_order=True):
        ns = union_of(events).total_ns
        size = None if events["bytes"].null_count() else int(events["bytes"].sum())
        bandwidth_gb_s = None if size is None else ratio(size, ns)  # bytes per ns are GB per s
        rows.append((rank, lane, len(events), size, ns, bandwidth_gb_s))
    lane_order = pl.col("lane").cast(pl.Enum(TRANSFER_LANES))
    return pl.DataFrame(rows, schema=table_schema(ReloadLane), orient="row").sort(
        "rank", lane_order
    )


def _measure_hidden(transfers: pl.DataFrame) -> dict[str, Any]:
    """Return the share of a rank's reloads under broadcasts, and of its copies under broadcasts and reloads."""
    h2d = union_of(transfers.filter(lane="h2d"))
    broadcast = union_of(transfers.filter(lane="broadcast"))
    reload = union_of(transfers.filter(lane="reload"))
    return {
        "rank": int(transfers["rank"][0]),
        "reload_under_broadcast": ratio((reload & broadcast).total_ns, reload.total_ns),
        "h2d_under_others": ratio((h2d & (broadcast | reload)).total_ns, h2d.total_ns),
    }
