"""Buckets of a weight update: the transfers of one rank split into updates and matched with their broadcasts.

A parameter server copies its buckets from the host and broadcasts them one after the other; the
inference engine on the same GPU copies each bucket out of shared memory. The copies of both are
matched with the broadcasts by order and bytes.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.intervals import Intervals, union_of
from tracekit.metrics.process_phases import WEIGHT_SYNC
from tracekit.roles.weight_updates.transfers import UpdateProcess

ALIGNMENT_BYTES = 256
"""Multiple of bytes at which tensors start in a bucket of checkpoint-engine."""


@dataclass(frozen=True, eq=False)
class RankBuckets:
    """One rank's part in an update: a row per bucket, and its copies to the device by round."""

    rank: int
    broadcast_start: Ints
    broadcast_end: Ints
    bucket_bytes: list[int]
    """Size of each bucket; 0 where it is not recorded."""
    staged: dict[int, int]
    """End of the staging copy by bucket."""
    h2d: list[tuple[int, int]]
    """Start and end of the copies of each round."""
    reload: dict[int, tuple[int, int]]
    """Start and end of the reload by bucket, where it is recorded."""
    reloaded_bytes: int
    busy: Intervals
    """All GPU work of the rank's processes in the update."""


def split_updates(server: UpdateProcess, worker: UpdateProcess | None) -> list[pl.DataFrame]:
    """Split the server's transfers into updates: at every other phase of either process.

    If that gives one group, barriers separate updates, provided that each part broadcasts the same
    buckets.
    """
    processes = [server] if worker is None else [server, worker]
    breaks = [
        process.stretches.filter(pl.col("phase") != WEIGHT_SYNC)["start_ns"].to_numpy()
        for process in processes
    ]
    groups = _split_at(server.transfers, np.sort(np.concatenate(breaks)))
    if len(groups) == 1:
        # They move nothing.
        barriers = server.lane("other").filter(pl.col("bytes") == 0)["start_ns"].to_numpy()
        between_barriers = _split_at(server.transfers, barriers)
        sizes = [group.filter(lane="broadcast")["bytes"].to_list() for group in between_barriers]
        # With one bucket in each part the barriers may as well separate the buckets of one update.
        if len(sizes[0]) > 1 and all(size == sizes[0] for size in sizes):
            return between_barriers
    return groups


def _split_at(transfers: pl.DataFrame, times: Ints) -> list[pl.DataFrame]:
    """Return the groups of transfers between *times* that broadcast."""
    number = pl.Series(
        "group", np.searchsorted(times, transfers["start_ns"].to_numpy(), side="right")
    )
    groups = transfers.with_columns(number).partition_by("group", maintain_order=True)
    return [group for group in groups if (group["lane"] == "broadcast").any()]


def match_buckets(
    server: UpdateProcess,
    worker: UpdateProcess | None,
    transfers: pl.DataFrame,
    sizes: Ints,
    *,
    bucket_count: int,
    until_ns: int,
) -> RankBuckets:
    """Match one rank's copies with the first buckets of an update.

    Args:
        server: The process that broadcasts.
        worker: The process of the same rank that takes the weights; None if it is not recorded.
        transfers: The server's transfers in this update.
        sizes: Bytes of all buckets of the update.
        bucket_count: Buckets to match; the recordings of other ranks may lack the last ones.
        until_ns: Start of the next update.
    """
    broadcasts = transfers.filter(lane="broadcast")
    start = broadcasts["start_ns"].to_numpy()
    end = broadcasts["end_ns"].to_numpy()
    stages = transfers.filter(lane="stage")
    h2d = transfers.filter(lane="h2d")
    # A staging copy fills the buffer of the next broadcast, if their sizes agree.
    following = np.searchsorted(start, stages["start_ns"].to_numpy())
    staged = {}
    for bucket, stage_end, size in zip(
        following.tolist(), stages["end_ns"], stages["bytes"], strict=True
    ):
        if bucket < bucket_count and size in (None, sizes[bucket]):
            staged[bucket] = stage_end
    # Copies from the host between two broadcasts belong to one round; those after the last
    # broadcast are not sent.
    rounds = h2d.with_columns(round=pl.Series(np.searchsorted(start, h2d["start_ns"].to_numpy())))
    by_round = (
        rounds.filter(pl.col("round") < bucket_count)
        .group_by("round", maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )
    own = transfers.filter(
        pl.col("start_ns").is_between(min([start[0], *by_round["start_ns"]]), end[bucket_count - 1])
    )
    copies = worker.lane("reload") if worker is not None else transfers.clear()
    if worker is not None:
        limit = min(until_ns, _next_phase_start(worker, int(start[-1])))
        copies = copies.filter(pl.col("start_ns").is_between(int(start[0]), limit))
    copies = copies.with_columns(
        bucket=pl.Series(_buckets_of_copies(copies, end, sizes), dtype=pl.Int64)
    )
    copies = copies.filter(pl.col("bucket") < bucket_count)
    spans = copies.group_by("bucket").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return RankBuckets(
        rank=server.rank,
        broadcast_start=start[:bucket_count],
        broadcast_end=end[:bucket_count],
        bucket_bytes=broadcasts["bytes"].head(bucket_count).fill_null(0).to_list(),
        staged=staged,
        h2d=by_round.select("start_ns", "end_ns").rows(),
        reload={bucket: (first, last) for bucket, first, last in spans.iter_rows()},
        reloaded_bytes=int(copies["bytes"].sum()),
        busy=union_of(own) | union_of(copies),
    )


def _next_phase_start(worker: UpdateProcess, after_ns: int) -> int:
    """Return when the worker's next stretch other than weight synchronisation begins."""
    starts = worker.stretches.filter(
        (pl.col("phase") != WEIGHT_SYNC) & (pl.col("start_ns") > after_ns)
    )["start_ns"]
    return int(starts.min()) if len(starts) else np.iinfo(np.int64).max  # type: ignore[arg-type]


def _buckets_of_copies(copies: pl.DataFrame, broadcast_end: Ints, sizes: Ints) -> Ints:
    """Return the bucket that each copy was taken from: by bytes if they add up to the buckets, else by time.

    The bytes of the copies, each rounded up to the alignment if need be, are laid out one after the
    other: a copy belongs to the bucket in which it starts. By time, it is the last bucket whose
    broadcast ended before the copy.
    """
    taken = copies["bytes"].fill_null(0).to_numpy()
    ends = np.cumsum(sizes)
    starts = copies["start_ns"].to_numpy()
    buckets: Ints = np.maximum(np.searchsorted(np.sort(broadcast_end), starts, side="right") - 1, 0)
    for rounded in (-(-taken // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, taken):
        if len(rounded) and rounded.sum() == ends[-1]:
            buckets = np.searchsorted(ends, np.cumsum(rounded) - rounded, side="right")
    return buckets
