"""Weight updates: buckets matched between the process that broadcasts them and the one that takes them.

A parameter server copies its buckets from the host (H2D) and broadcasts them one after the other; the inference engine
on the same GPU copies each bucket out of shared memory (reload). Buckets are matched by order and bytes. Every update
is compared with the two-buffer ideal (``schedules.weight_reload``), simulated with the measured time of each bucket.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.documents.roles import BucketCell, WeightUpdate
from tracekit.errors import Notice
from tracekit.intervals import Intervals, union, union_of
from tracekit.metrics.process_phases import WEIGHT_SYNC
from tracekit.roles.processes import Process
from tracekit.schedules.weight_reload import LANES, simulate_buckets

ALIGNMENT_BYTES = 256
"""Multiple of bytes at which tensors start in a bucket of checkpoint-engine."""
MAX_RANKS_WITH_CELLS = 64
"""Ranks up to which the operations of an update are listed one by one."""


@dataclass(frozen=True, eq=False)
class _RankPart:
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


def find_weight_updates(processes: Sequence[Process]) -> tuple[list[WeightUpdate], list[Notice]]:
    """Return the weight updates of a run in order of time, and what could not be matched."""
    servers = [process for process in processes if len(process.lane("broadcast"))]
    workers = {process.rank: process for process in processes if len(process.lane("reload"))}
    server_role = _broadcasting_role(servers)
    servers = [process for process in servers if process.role == server_role]
    if not servers:
        return [], []
    notices: list[Notice] = []
    if not workers and any(len(process.lane("h2d")) for process in servers):
        text = (
            "no process that takes the weights is recorded: reloads, their overlap and the ideal of the weight update "
            "are unknown; record the inference engine too, and name both: --role server=PATH --role worker=PATH"
        )
        notices.append(Notice("role-missing", text))
    updates_by_rank = [(process, _split(process, workers.get(process.rank))) for process in servers]
    counts = Counter(len(transfers) for _, transfers in updates_by_rank)
    update_count = counts.most_common(1)[0][0]
    if len(counts) > 1:
        text = f"ranks have different numbers of weight updates ({', '.join(map(str, sorted(counts)))})"
        notices.append(Notice("weight-updates-differ", f"{text}: only ranks with {update_count} are counted"))
    # The k-th update of one rank is the k-th of another only if both have the same number.
    updates_by_rank = [(process, transfers) for process, transfers in updates_by_rank if len(transfers) == update_count]
    updates = []
    for number in range(update_count):
        # A rank's recording may lack the last buckets: only those that all ranks have can be matched.
        sizes_by_rank = [
            transfers[number].filter(lane="broadcast")["bytes"].to_numpy() for _, transfers in updates_by_rank
        ]
        sizes, bucket_count = max(sizes_by_rank, key=len), min(map(len, sizes_by_rank))  # of all buckets; the matched
        ranks = []
        for process, transfers in updates_by_rank:
            until = int(transfers[number + 1]["start_ns"][0]) if number + 1 < update_count else np.iinfo(np.int64).max
            worker = workers.get(process.rank)
            ranks.append(
                _rank_part(process, worker, transfers[number], sizes, bucket_count=bucket_count, until_ns=until)
            )
        update = _measure(ranks, server_role, workers)
        if update is not None:
            updates.append(update)
    short = [update for update in updates if update.reloaded_bytes not in (None, update.bytes)]
    if short and not all(_is_padding(update) for update in short):
        text = f"workers took {short[0].reloaded_bytes:,} of {short[0].bytes:,} bytes"
        notices.append(Notice("weights-not-reloaded", f"{text}: part of the update was not recorded, or not applied"))
    return updates, notices


def _is_padding(update: WeightUpdate) -> bool:
    """Return whether the bytes that were not reloaded may be the padding between tensors of a bucket."""
    missing = update.bytes - (update.reloaded_bytes or 0)
    return 0 <= missing < update.bytes // 100


def _broadcasting_role(servers: Sequence[Process]) -> str | None:
    """Return the role that broadcasts weights: with copies from the host, else with the most processes."""
    votes = Counter[str]()
    for process in servers:
        # One process with copies from the host outweighs all without.
        votes[process.role] += 1 + (len(servers) if len(process.lane("h2d", "stage")) else 0)
    return votes.most_common(1)[0][0] if votes else None


def _split(server: Process, worker: Process | None) -> list[pl.DataFrame]:
    """Split the server's transfers into updates: at every other phase of either process.

    If that gives one group, barriers separate updates, provided that each part broadcasts the same buckets.
    """
    processes = [server] if worker is None else [server, worker]
    breaks = [process.stretches.filter(pl.col("phase") != WEIGHT_SYNC)["start_ns"].to_numpy() for process in processes]
    groups = _split_at(server.transfers, np.sort(np.concatenate(breaks)))
    if len(groups) == 1:
        barriers = server.lane("other").filter(pl.col("bytes") == 0)["start_ns"].to_numpy()  # they move nothing
        between_barriers = _split_at(server.transfers, barriers)
        sizes = [group.filter(lane="broadcast")["bytes"].to_list() for group in between_barriers]
        # With one bucket in each part the barriers may as well separate the buckets of one update.
        if len(sizes[0]) > 1 and all(size == sizes[0] for size in sizes):
            return between_barriers
    return groups


def _split_at(transfers: pl.DataFrame, times: Ints) -> list[pl.DataFrame]:
    """Return the groups of transfers between *times* that broadcast."""
    number = pl.Series("group", np.searchsorted(times, transfers["start_ns"].to_numpy(), side="right"))
    groups = transfers.with_columns(number).partition_by("group", maintain_order=True)
    return [group for group in groups if (group["lane"] == "broadcast").any()]


def _rank_part(
    server: Process, worker: Process | None, transfers: pl.DataFrame, sizes: Ints, *, bucket_count: int, until_ns: int
) -> _RankPart:
    """Match one rank's copies with the first *bucket_count* buckets of an update.

    *sizes* are the bytes of all its buckets; *until_ns* is the start of the next update.
    """
    broadcasts = transfers.filter(lane="broadcast")
    start, end = broadcasts["start_ns"].to_numpy(), broadcasts["end_ns"].to_numpy()
    stages, h2d = transfers.filter(lane="stage"), transfers.filter(lane="h2d")
    # A staging copy fills the buffer of the next broadcast, if their sizes agree.
    following = np.searchsorted(start, stages["start_ns"].to_numpy())
    staged = {
        bucket: stage_end
        for bucket, stage_end, size in zip(following.tolist(), stages["end_ns"], stages["bytes"], strict=True)
        if bucket < bucket_count and size in (None, sizes[bucket])
    }
    # Copies from the host between two broadcasts belong to one round; those after the last broadcast are not sent.
    rounds = h2d.with_columns(round=pl.Series(np.searchsorted(start, h2d["start_ns"].to_numpy())))
    by_round = (
        rounds.filter(pl.col("round") < bucket_count)
        .group_by("round", maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )
    own = transfers.filter(pl.col("start_ns").is_between(min([start[0], *by_round["start_ns"]]), end[bucket_count - 1]))
    copies = worker.lane("reload") if worker is not None else transfers.clear()
    if worker is not None:
        limit = min(until_ns, _next_phase_start(worker, int(start[-1])))
        copies = copies.filter(pl.col("start_ns").is_between(int(start[0]), limit))
    copies = copies.with_columns(bucket=pl.Series(_buckets_of_copies(copies, end, sizes), dtype=pl.Int64))
    copies = copies.filter(pl.col("bucket") < bucket_count)
    spans = copies.group_by("bucket").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return _RankPart(
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


def _next_phase_start(worker: Process, after_ns: int) -> int:
    """Return when the worker's next stretch other than weight synchronisation begins."""
    starts = worker.stretches.filter((pl.col("phase") != WEIGHT_SYNC) & (pl.col("start_ns") > after_ns))["start_ns"]
    return int(starts.min()) if len(starts) else np.iinfo(np.int64).max  # type: ignore[arg-type]


def _buckets_of_copies(copies: pl.DataFrame, broadcast_end: Ints, sizes: Ints) -> Ints:
    """Return the bucket that each copy was taken from: by bytes if they add up to the buckets, else by time.

    The bytes of the copies, each rounded up to the alignment if need be, are laid out one after the other: a copy
    belongs to the bucket in which it starts. By time, it is the last bucket whose broadcast ended before the copy.
    """
    taken, ends = copies["bytes"].fill_null(0).to_numpy(), np.cumsum(sizes)
    starts = copies["start_ns"].to_numpy()
    buckets: Ints = np.maximum(np.searchsorted(np.sort(broadcast_end), starts, side="right") - 1, 0)
    for rounded in (-(-taken // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, taken):
        if len(rounded) and rounded.sum() == ends[-1]:
            buckets = np.searchsorted(ends, np.cumsum(rounded) - rounded, side="right")
    return buckets


def _measure(ranks: Sequence[_RankPart], server: str | None, workers: dict[int, Process]) -> WeightUpdate | None:
    """Measure one update over its ranks.

    Args:
        ranks: The part of each rank in the update.
        server: Role that broadcasts the weights.
        workers: Process that takes the weights, by rank; ranks without a recorded one are missing.

    Returns:
        The update, with times as means over the ranks; None if its broadcasts carry no weights (nothing is copied or
        taken).
    """
    update_bytes = sum(ranks[0].bucket_bytes)  # every rank takes part in the same broadcasts
    h2d_rounds = [copies for part in ranks for copies in part.h2d]
    reloads = [interval for part in ranks for interval in part.reload.values()]
    if not h2d_rounds and not reloads:
        return None
    start = min([first for first, _ in h2d_rounds] or [int(part.broadcast_start[0]) for part in ranks])
    end = max([last for _, last in reloads] + [int(part.broadcast_end[-1]) for part in ranks])
    window = union([start], [end])
    sources = _sources(ranks)
    late_intervals, wait_by_rank = _late_arrivals(ranks)
    reloaded = {part.reloaded_bytes for part in ranks if part.rank in workers}
    ideal = _ideal(ranks, sources) if reloads else None  # without reloads there is nothing to simulate
    ideal_ns = max(op_end for _op, _bucket, _start, op_end in ideal) if ideal else None
    reload_ns_by_rank = [_union(part.reload.values()).total_ns for part in ranks if part.rank in workers]
    return WeightUpdate(
        start_ns=start,
        end_ns=end,
        bytes=update_bytes,
        buckets=len(sources),
        h2d_ns=round(mean(_union(part.h2d).total_ns for part in ranks)),
        broadcast_ns=round(mean(union(part.broadcast_start, part.broadcast_end).total_ns for part in ranks)),
        reload_ns=round(mean(reload_ns_by_rank)) if reloads else None,
        # While a rank's GPU runs nothing, its host is at work or waits for another process.
        host_ns=round(mean((window - part.busy).total_ns for part in ranks)),
        ideal_ns=ideal_ns,
        gb_s=round(update_bytes / max(end - start, 1), 3),  # bytes per ns are GB per s
        server=server or None,  # a run without roles has one role without a name
        worker=next((workers[part.rank].role for part in ranks if part.rank in workers), None) or None,
        reloaded_bytes=reloaded.pop() if len(reloaded) == 1 else None,  # unknown if the ranks disagree
        sources=sources,
        gap_ns=_gap_by_cause(ranks, window, late_intervals, ideal) if ideal else None,
        late_rank=wait_by_rank.most_common(1)[0][0] if any(wait_by_rank.values()) else None,
        ideal=tuple(ideal or ()),
        cells=tuple(_cells(ranks, sources)) if len(ranks) <= MAX_RANKS_WITH_CELLS else (),
    )


def _union(spans: Iterable[tuple[int, int]]) -> Intervals:
    """Return the time covered by spans, each with start and end."""
    return union(*np.array([*spans], np.int64).reshape(-1, 2).T)


def _sources(ranks: Sequence[_RankPart]) -> tuple[int | None, ...]:
    """Return the rank that broadcasts each bucket: the one that staged it, else the last to copy one from its host."""
    sources = {bucket: part.rank for part in ranks for bucket in part.staged}
    if not sources:
        for part in ranks:
            for first, _ in part.h2d:
                sources[int(np.searchsorted(part.broadcast_start, first))] = part.rank
    return tuple(sources.get(bucket) for bucket in range(len(ranks[0].broadcast_start)))


def _rounds(sources: Sequence[int | None]) -> list[int]:
    """Return the round of each bucket: how many its source broadcast before, all of one round if that is unknown."""
    counts: Counter[int] = Counter()
    rounds: list[int] = []
    for source in sources:
        rounds.append(counts[source] if source is not None else (rounds[-1] if rounds else 0))
        if source is not None:
            counts[source] += 1
    return rounds


def _late_arrivals(ranks: Sequence[_RankPart]) -> tuple[Intervals, Counter[int]]:
    """Return when ranks wait in a broadcast for its last member, and for how long each rank is waited for."""
    starts = np.stack([part.broadcast_start for part in ranks])
    first, last = starts.min(axis=0), starts.max(axis=0)
    waits: Counter[int] = Counter()
    for row, wait in zip(starts.argmax(axis=0).tolist(), (last - first).tolist(), strict=True):
        waits[ranks[row].rank] += wait
    return union(first, last), waits


def _broadcast_times(ranks: Sequence[_RankPart]) -> tuple[Ints, Ints]:
    """Return when the last member entered each broadcast, and when it ended on the last."""
    starts = np.stack([part.broadcast_start for part in ranks]).max(axis=0)
    ends = np.stack([part.broadcast_end for part in ranks]).max(axis=0)
    return starts, np.maximum(starts, ends)


def _ideal(ranks: Sequence[_RankPart], sources: Sequence[int | None]) -> list[tuple[str, int, int, int]]:
    """Simulate the two-buffer ideal with the measured times of each round and bucket.

    All ranks copy at once, so a round's copy lasts as long as the slowest. A broadcast lasts from the arrival of its
    last member to its last end. A reload is the median over ranks.
    """
    rounds = _rounds(sources)
    h2d = [
        max((last - first for part in ranks for first, last in part.h2d[number : number + 1]), default=0)
        for number in range(max(rounds) + 1)
    ]
    starts, ends = _broadcast_times(ranks)
    reloads = []
    for bucket in range(len(sources)):
        spans = [part.reload[bucket] for part in ranks if bucket in part.reload]
        reloads.append(round(median(last - first for first, last in spans)) if spans else 0)
    return simulate_buckets(h2d, list(zip(rounds, (ends - starts).tolist(), reloads, strict=True)))


def _gap_by_cause(
    ranks: Sequence[_RankPart],
    window: Intervals,
    late_intervals: Intervals,
    ideal: Sequence[tuple[str, int, int, int]],
) -> dict[str, int]:
    """Split measured minus ideal time into causes that sum to it.

    Every moment of the update counts once, over all ranks: a broadcast that all members have entered, else a copy from
    a host, else waiting for a late rank, else a reload, else the host. The ideal is divided in the same way.
    """
    kinds = {
        "broadcast": union(*_broadcast_times(ranks)),
        "serial_h2d": _union(span for part in ranks for span in part.h2d),
        "late_rank": late_intervals,
        "reload_not_overlapped": _union(span for part in ranks for span in part.reload.values()),
    }
    rest, measured = window, {}
    for cause, intervals in kinds.items():
        measured[cause] = (rest & intervals).total_ns
        rest -= intervals
    expected = Counter[str]()
    for op, _, first, last in ideal:
        expected[op] += last - first
    makespan = max(last for *_, last in ideal)
    return {
        "serial_h2d": measured["serial_h2d"] - expected["H2D"],
        "host_and_rpc": rest.total_ns,
        "late_rank": measured["late_rank"],
        "reload_not_overlapped": measured["reload_not_overlapped"]
        - (makespan - expected["H2D"] - expected["BROADCAST"]),
    }


def _cells(ranks: Sequence[_RankPart], sources: Sequence[int | None]) -> list[BucketCell]:
    """Return the operations of every device, and how long each holds its buffer."""
    cells = []
    for part in ranks:
        own = [bucket for bucket, source in enumerate(sources) if source == part.rank]
        for number, (first, last) in enumerate(part.h2d):
            bucket = own[number] if number < len(own) else number
            held_until_ns = part.staged.get(bucket, last)
            cells.append(BucketCell(part.rank, LANES[0], "H2D", None, bucket, first, last, held_until_ns))
        for bucket, source in enumerate(sources):
            lane, reload = LANES[1 + bucket % 2], part.reload.get(bucket)
            role = None if source is None else "source" if source == part.rank else "destination"
            start, end = int(part.broadcast_start[bucket]), int(part.broadcast_end[bucket])
            reloaded_ns = None if reload is None else reload[1]
            cells.append(BucketCell(part.rank, lane, "BROADCAST", role, bucket, start, end, reloaded_ns))
            if reload is not None:
                cells.append(BucketCell(part.rank, lane, "RELOAD", None, bucket, *reload, reload[1]))
    return cells
