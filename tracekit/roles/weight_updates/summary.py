"""Summary of a weight update by rank and lane, where the same processes broadcast and reload (JSON ``reload``).

Times and the ideal are those of the update itself (``updates``); this module adds how much each
rank moved in each lane and how much of its reloads ran beside broadcasts.
"""

from collections.abc import Sequence
from statistics import median

import polars as pl

from tracekit.documents.analysis import Reload, ReloadHidden, ReloadLane
from tracekit.documents.roles import WeightUpdate
from tracekit.intervals import union_of
from tracekit.metrics.overlap import ratio
from tracekit.roles.weight_updates.transfers import TRANSFER_LANES, UpdateProcess
from tracekit.roles.weight_updates.updates import find_weight_updates


def summarize_longest_update(processes: Sequence[UpdateProcess]) -> Reload | None:
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
    >>> [rank.reload_under_broadcast for rank in summary.hidden]
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


def _summarize(update: WeightUpdate, processes: Sequence[UpdateProcess]) -> Reload:
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
    return Reload(
        rounds=rounds,
        buckets=update.buckets,
        owners=max(1, round(update.buckets / rounds)),
        sources=list(update.sources),
        lanes=_measure_lanes(pl.concat(by_rank)),
        hidden=hidden,
        time_ns={op: round(median(times)) for op, times in durations.items()},
        measured_ns=update.measured_ns,
        ideal_ns=update.ideal_ns,
    )


def _ideal_durations(update: WeightUpdate) -> dict[str, list[int]]:
    """Return how long each operation takes in the ideal, which has the measured times, by kind of operation."""
    durations: dict[str, list[int]] = {"H2D": [], "BROADCAST": [], "RELOAD": []}
    for op, _bucket, start, end in update.ideal:
        durations[op].append(end - start)
    return durations


def _measure_lanes(transfers: pl.DataFrame) -> list[ReloadLane]:
    """Return count, bytes, union time and bandwidth by rank and lane.

    Bytes are unknown where any event lacks them.
    """
    lanes = []
    for (rank, lane), events in transfers.group_by("rank", "lane", maintain_order=True):
        ns = union_of(events).total_ns
        size = None if events["bytes"].null_count() else int(events["bytes"].sum())
        lanes.append(
            ReloadLane(
                rank=int(rank),
                lane=str(lane),
                count=len(events),
                bytes=size,
                ns=ns,
                bandwidth_gb_s=None if size is None else ratio(size, ns),  # bytes per ns are GB/s
            )
        )
    return sorted(lanes, key=lambda lane: (lane.rank, TRANSFER_LANES.index(lane.lane)))


def _measure_hidden(transfers: pl.DataFrame) -> ReloadHidden:
    """Return the share of a rank's reloads under broadcasts, and of its copies under broadcasts and reloads."""
    h2d = union_of(transfers.filter(lane="h2d"))
    broadcast = union_of(transfers.filter(lane="broadcast"))
    reload = union_of(transfers.filter(lane="reload"))
    return ReloadHidden(
        rank=int(transfers["rank"][0]),
        reload_under_broadcast=ratio((reload & broadcast).total_ns, reload.total_ns),
        h2d_under_others=ratio((h2d & (broadcast | reload)).total_ns, h2d.total_ns),
    )
