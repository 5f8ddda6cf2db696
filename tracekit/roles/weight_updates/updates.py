"""Weight updates measured over all ranks, and compared with the two-buffer ideal.

The ideal (``two_buffers``) is simulated with the measured time of each round and bucket. A
broadcast lasts from the arrival of its last member to its last end: before that end some rank does
not have the bucket yet, whatever the time that the source itself was busy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.text import joined
from tracekit.documents.roles import BucketCell, WeightUpdate
from tracekit.errors import Notice, NoticeValues
from tracekit.intervals import Intervals, union
from tracekit.pipeline.schedules.two_buffers import BUFFER_LANES, simulate_buckets
from tracekit.roles.weight_updates.buckets import RankBuckets, match_buckets, split_updates
from tracekit.roles.weight_updates.transfers import UpdateProcess

INT64_MAX = np.iinfo(np.int64).max
MAX_RANKS_WITH_CELLS = 64
"""Ranks up to which the operations of an update are listed one by one."""


def find_weight_updates(
    processes: Sequence[UpdateProcess],
) -> tuple[list[WeightUpdate], list[Notice]]:
    """Return the weight updates of a run in order of time, and what could not be matched.

    >>> import polars as pl
    >>> phases = pl.DataFrame(schema={"phase": pl.String, "start_ns": pl.Int64})
    >>> def process(role, *rows):
    ...     columns = ["rank", "lane", "start_ns", "end_ns", "bytes"]
    ...     return UpdateProcess(role, 0, phases, pl.DataFrame(list(rows), schema=columns, orient="row"))
    >>> server = process("server", (0, "h2d", 0, 4, 8), (0, "broadcast", 6, 8, 8))
    >>> worker = process("worker", (0, "reload", 9, 10, 8))
    >>> (update,), notices = find_weight_updates([server, worker])
    >>> update.measured_ns, update.ideal_ns, update.gap_ns["host_and_rpc"]
    (10, 7, 3)
    """
    servers = _servers(processes)
    workers = {process.rank: process for process in processes if len(process.lane("reload"))}
    if not servers:
        return [], []
    notices: list[Notice] = []
    if not workers and any(len(process.lane("h2d")) for process in servers):
        notices.append(
            Notice(
                "role-missing",
                (
                    "no process that takes the weights is recorded: reloads, "
                    "their overlap and the ideal of the weight update are "
                    "unknown; record the inference engine too, and name both: "
                    "--role server=PATH --role worker=PATH"
                ),
                values={"case": "inference"},
            )
        )
    transfers_of_servers = [split_updates(server, workers.get(server.rank)) for server in servers]
    counts = Counter(len(transfers) for transfers in transfers_of_servers)
    update_count = counts.most_common(1)[0][0]
    if len(counts) > 1:
        values: NoticeValues = {
            "case": "numbers",
            "numbers": tuple(sorted(counts)),
            "counted": update_count,
        }
        notices.append(
            Notice(
                "weight-updates-differ",
                (
                    "ranks have different numbers of weight updates ("
                    f"{joined(tuple(sorted(counts)))}): only ranks with "
                    f"{update_count} are counted"
                ),
                values=values,
            )
        )
    # The k-th update of one rank is the k-th of another only if both have the same number.
    complete = [
        (server, transfers)
        for server, transfers in zip(servers, transfers_of_servers, strict=True)
        if len(transfers) == update_count
    ]
    updates = []
    for number in range(update_count):
        ranks = _match_update(complete, workers, number)
        update = _measure(ranks, servers[0].role, workers)
        if update is not None:
            updates.append(update)
    for update in updates:
        if update.reloaded_bytes not in (None, update.bytes) and not _is_padding(update):
            values = {
                "case": "not_reloaded",
                "reloaded_bytes": update.reloaded_bytes,
                "bytes": update.bytes,
            }
            notices.append(
                Notice(
                    "weight-updates-differ",
                    (
                        f"workers took {update.reloaded_bytes:,} of "
                        f"{update.bytes:,} bytes: part of the update was not "
                        "recorded, or not applied"
                    ),
                    values=values,
                )
            )
            break  # the first such update stands for all
    return updates, notices


def _match_update(
    servers: Sequence[tuple[UpdateProcess, Sequence[pl.DataFrame]]],
    workers: Mapping[int, UpdateProcess],
    number: int,
) -> list[RankBuckets]:
    """Return the part of each rank in one update.

    Args:
        servers: Processes that broadcast weights, with the transfers of each of their updates.
        workers: Process that takes the weights, by rank.
        number: Position of the update.
    """
    # A rank's recording may lack the last buckets: only those that all ranks have can be matched.
    sizes_by_rank = [
        transfers[number].filter(lane="broadcast")["bytes"].to_numpy() for _, transfers in servers
    ]
    sizes = max(sizes_by_rank, key=len)  # of all buckets
    bucket_count = min(map(len, sizes_by_rank))  # those that can be matched
    ranks = []
    for server, transfers in servers:
        is_last = number + 1 == len(transfers)
        next_start_ns = INT64_MAX if is_last else int(transfers[number + 1]["start_ns"][0])
        buckets = match_buckets(
            server,
            workers.get(server.rank),
            transfers[number],
            sizes,
            bucket_count=bucket_count,
            until_ns=next_start_ns,
        )
        ranks.append(buckets)
    return ranks


def _is_padding(update: WeightUpdate) -> bool:
    """Return whether the bytes that were not reloaded may be the padding between tensors of a bucket."""
    missing = update.bytes - (update.reloaded_bytes or 0)
    return 0 <= missing < update.bytes // 100


def _servers(processes: Sequence[UpdateProcess]) -> list[UpdateProcess]:
    """Return the processes that broadcast weights: of the role that copies from the host, else of the largest."""
    broadcasting = [process for process in processes if len(process.lane("broadcast"))]
    votes = Counter[str]()
    for process in broadcasting:
        votes[process.role] += 1
        if len(process.lane("h2d", "stage")):
            # One process with copies from the host outweighs all without.
            votes[process.role] += len(broadcasting)
    if not votes:
        return []
    role, _ = votes.most_common(1)[0]
    return [process for process in broadcasting if process.role == role]


def _measure(
    ranks: Sequence[RankBuckets], server: str | None, workers: dict[int, UpdateProcess]
) -> WeightUpdate | None:
    """Measure one update over its ranks.

    Args:
        ranks: The part of each rank in the update.
        server: Role that broadcasts the weights.
        workers: Process that takes the weights, by rank; ranks without a recorded one are missing.

    Returns:
        The update, with times as means over the ranks; None if its broadcasts carry no weights
        (nothing is copied or taken).
    """
    update_bytes = sum(ranks[0].bucket_bytes)  # every rank takes part in the same broadcasts
    window = _find_window(ranks)
    if window is None:
        return None
    start, end = window
    whole = union([start], [end])
    busy = _busy_times(ranks, whole)
    sources = _sources(ranks)
    late_intervals, wait_by_rank = _late_arrivals(ranks)
    late_rank = None
    if any(wait_by_rank.values()):
        late_rank, _ = wait_by_rank.most_common(1)[0]
    # Without reloads there is nothing to simulate, and no gap to split.
    reload_ns = None
    ideal: list[tuple[str, int, int, int]] = []
    gap_ns = None
    if any(part.reload for part in ranks):
        has_worker = pl.col("rank").is_in(list(workers))
        reload_ns = _mean_ns(busy.filter(has_worker)["reload_ns"])
        ideal = _ideal(ranks, sources)
        gap_ns = _gap_by_cause(ranks, whole, late_intervals, ideal)
    with_worker = [part for part in ranks if part.rank in workers]
    reloaded_bytes = {part.reloaded_bytes for part in with_worker}
    worker = workers[with_worker[0].rank].role if with_worker else None
    cells: Sequence[BucketCell] = ()
    if len(ranks) <= MAX_RANKS_WITH_CELLS:
        cells = _cells(ranks, sources)
    return WeightUpdate(
        start_ns=start,
        end_ns=end,
        bytes=update_bytes,
        buckets=len(sources),
        h2d_ns=_mean_ns(busy["h2d_ns"]),
        broadcast_ns=_mean_ns(busy["broadcast_ns"]),
        reload_ns=reload_ns,
        # While a rank's GPU runs nothing, its host is at work or waits for another process.
        host_ns=_mean_ns(busy["idle_ns"]),
        ideal_ns=_makespan_ns(ideal) if ideal else None,
        gb_s=round(update_bytes / max(end - start, 1), 3),  # bytes per ns are GB per s
        server=server or None,  # a run without roles has one role without a name
        worker=worker or None,
        # Unknown if the ranks disagree.
        reloaded_bytes=reloaded_bytes.pop() if len(reloaded_bytes) == 1 else None,
        sources=sources,
        gap_ns=gap_ns,
        late_rank=late_rank,
        ideal=tuple(ideal),
        cells=tuple(cells),
    )


def _busy_times(ranks: Sequence[RankBuckets], whole: Intervals) -> pl.DataFrame:
    """Return how long each rank copied, broadcast, reloaded and ran nothing in the update *whole*, a row per rank."""
    rows = []
    for part in ranks:
        broadcast = union(part.broadcast_start, part.broadcast_end)
        rows.append(
            {
                "rank": part.rank,
                "h2d_ns": _union(part.h2d).total_ns,
                "broadcast_ns": broadcast.total_ns,
                "reload_ns": _union(part.reload.values()).total_ns,
                "idle_ns": (whole - part.busy).total_ns,
            }
        )
    return pl.DataFrame(rows)


def _mean_ns(times_ns: pl.Series) -> int:
    """Return the mean of times, rounded to nanoseconds."""
    values: list[int] = times_ns.to_list()
    return round(mean(values))


def _makespan_ns(ideal: Iterable[tuple[str, int, int, int]]) -> int:
    """Return when the last operation of the simulated update ends."""
    return max(end for _op, _bucket, _start, end in ideal)


def _find_window(ranks: Sequence[RankBuckets]) -> tuple[int, int] | None:
    """Return start and end of an update; None if nothing is copied to a GPU or taken by a worker.

    It begins with the first copy from a host, if there is one, else with the first broadcast.
    """
    copy_starts: list[int] = []
    reload_ends: list[int] = []
    broadcast_starts: list[int] = []
    broadcast_ends: list[int] = []
    for part in ranks:
        copy_starts += [start for start, _ in part.h2d]
        reload_ends += [end for _, end in part.reload.values()]
        broadcast_starts.append(int(part.broadcast_start[0]))
        broadcast_ends.append(int(part.broadcast_end[-1]))
    if not copy_starts and not reload_ends:
        return None
    return min(copy_starts or broadcast_starts), max(reload_ends + broadcast_ends)


def _union(spans: Iterable[tuple[int, int]]) -> Intervals:
    """Return the time covered by spans, each with start and end."""
    return union(*np.array([*spans], np.int64).reshape(-1, 2).T)


def _sources(ranks: Sequence[RankBuckets]) -> tuple[int | None, ...]:
    """Return the rank that broadcasts each bucket: the one that staged it, else the last to copy one from its host."""
    sources: dict[int, int] = {}
    for part in ranks:
        sources |= dict.fromkeys(part.staged, part.rank)
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
        if source is None:
            rounds.append(rounds[-1] if rounds else 0)
        else:
            rounds.append(counts[source])
            counts[source] += 1
    return rounds


def _late_arrivals(ranks: Sequence[RankBuckets]) -> tuple[Intervals, Counter[int]]:
    """Return when ranks wait in a broadcast for its last member, and for how long each rank is waited for."""
    starts = np.stack([part.broadcast_start for part in ranks])
    first = starts.min(axis=0)
    last = starts.max(axis=0)
    waits: Counter[int] = Counter()
    for row, wait in zip(starts.argmax(axis=0).tolist(), (last - first).tolist(), strict=True):
        waits[ranks[row].rank] += wait
    return union(first, last), waits


def _broadcast_times(ranks: Sequence[RankBuckets]) -> tuple[Ints, Ints]:
    """Return when the last member entered each broadcast, and when it ended on the last."""
    starts = np.stack([part.broadcast_start for part in ranks]).max(axis=0)
    ends = np.stack([part.broadcast_end for part in ranks]).max(axis=0)
    return starts, np.maximum(starts, ends)


def _ideal(
    ranks: Sequence[RankBuckets], sources: Sequence[int | None]
) -> list[tuple[str, int, int, int]]:
    """Simulate the two-buffer ideal with the measured times of each round and bucket.

    All ranks copy at once, so a round's copy lasts as long as the slowest. A broadcast lasts from
    the arrival of its last member to its last end. A reload is the median over ranks.
    """
    rounds = _rounds(sources)
    h2d = [0] * (max(rounds) + 1)
    for part in ranks:
        for number, (first, last) in enumerate(part.h2d[: len(h2d)]):
            h2d[number] = max(h2d[number], last - first)
    starts, ends = _broadcast_times(ranks)
    broadcast_ns = (ends - starts).tolist()
    buckets = [
        (round_index, broadcast_ns[bucket], _median_reload_ns(ranks, bucket))
        for bucket, round_index in enumerate(rounds)
    ]
    return simulate_buckets(h2d, buckets)


def _median_reload_ns(ranks: Sequence[RankBuckets], bucket: int) -> int:
    """Return the median time over ranks of a bucket's reload; 0 if no rank recorded it."""
    durations = []
    for part in ranks:
        if bucket in part.reload:
            start, end = part.reload[bucket]
            durations.append(end - start)
    return round(median(durations)) if durations else 0


def _gap_by_cause(
    ranks: Sequence[RankBuckets],
    window: Intervals,
    late_intervals: Intervals,
    ideal: Sequence[tuple[str, int, int, int]],
) -> dict[str, int]:
    """Split measured minus ideal time into causes that sum to it.

    Every moment of the update counts once, over all ranks: a broadcast that all members have
    entered, else a copy from a host, else waiting for a late rank, else a reload, else the host.
    The ideal is divided in the same way.
    """
    copies = []
    reloads = []
    for part in ranks:
        copies += list(part.h2d)
        reloads += list(part.reload.values())
    kinds = {  # the first that holds decides
        "broadcast": union(*_broadcast_times(ranks)),
        "serial_h2d": _union(copies),
        "late_rank": late_intervals,
        "reload_not_overlapped": _union(reloads),
    }
    rest = window
    measured = {}
    for cause, intervals in kinds.items():
        measured[cause] = (rest & intervals).total_ns
        rest -= intervals
    expected = Counter[str]()
    for op, _, first, last in ideal:
        expected[op] += last - first
    expected_reload = _makespan_ns(ideal) - expected["H2D"] - expected["BROADCAST"]
    return {
        "serial_h2d": measured["serial_h2d"] - expected["H2D"],
        "host_and_rpc": rest.total_ns,
        "late_rank": measured["late_rank"],
        "reload_not_overlapped": measured["reload_not_overlapped"] - expected_reload,
    }


def _cells(ranks: Sequence[RankBuckets], sources: Sequence[int | None]) -> list[BucketCell]:
    """Return the operations of every device, and how long each holds its buffer."""
    cells = []
    for part in ranks:
        own = [bucket for bucket, source in enumerate(sources) if source == part.rank]
        for number, (first, last) in enumerate(part.h2d):
            bucket = own[number] if number < len(own) else number
            held_until_ns = part.staged.get(bucket, last)
            cells.append(
                BucketCell(
                    part.rank, BUFFER_LANES[0], "H2D", None, bucket, first, last, held_until_ns
                )
            )
        for bucket, source in enumerate(sources):
            lane = BUFFER_LANES[1 + bucket % 2]
            reload = part.reload.get(bucket)
            role = None if source is None else "source" if source == part.rank else "destination"
            start = int(part.broadcast_start[bucket])
            end = int(part.broadcast_end[bucket])
            reloaded_ns = None if reload is None else reload[1]
            cells.append(
                BucketCell(part.rank, lane, "BROADCAST", role, bucket, start, end, reloaded_ns)
            )
            if reload is not None:
                cells.append(
                    BucketCell(part.rank, lane, "RELOAD", None, bucket, *reload, reload[1])
                )
    return cells
