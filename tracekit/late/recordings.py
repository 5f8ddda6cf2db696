"""All dumps and logs of a run: read, one table per rank and recorder, with the ranks that logs do not say themselves.

A flight-recorder dump may be there as pickle and as JSON, and several times; entries of one rank
are put together. An Inspector log says the rank of its process within each communicator: the
process's own rank is that of a communicator that all processes are in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl
from msgspec import structs

from tracekit._util.text import counted
from tracekit.errors import InputError, Notice, NoticeValues, TracekitError
from tracekit.late import flight_recorder, nccl_inspector
from tracekit.late.recording_checks import without_contradictions
from tracekit.parsers import remote
from tracekit.parsers.file_type import FLIGHT_RECORDER, NCCL_INSPECTOR
from tracekit.parsers.source_refs import SourceRef, file_listing, name_before_number
from tracekit.schema import COLLECTIVE_STATES, COLLECTIVES, ProcessGroup, RankCollectives, Recording

RECORDING_READERS: Mapping[str, Callable[..., RankCollectives]] = {
    FLIGHT_RECORDER: flight_recorder.read,
    NCCL_INSPECTOR: nccl_inspector.read,
}
"""The function of each reader of collectives."""

_NAME_ONE_RUN = "name the dumps of one run"


@dataclass(frozen=True, eq=False)
class Recordings:
    """The dumps and logs of a run: one entry per rank and recorder, ordered by recorder and rank."""

    parts: tuple[RankCollectives, ...]
    notices: tuple[Notice, ...] = ()

    @property
    def collectives(self) -> pl.DataFrame:
        """The tables of all ranks and recorders, one below the other (``COLLECTIVES``)."""
        if not self.parts:
            return COLLECTIVES.to_frame()
        return pl.concat([part.collectives for part in self.parts])

    @property
    def sources(self) -> tuple[Recording, ...]:
        """Origins of the tables."""
        return tuple(part.source for part in self.parts)


def read_recordings(refs: Iterable[SourceRef]) -> Recordings:
    """Read dumps and logs of one run.

    Files that cannot be read are left out with a notice, unless all are.

    Raises:
        InputError: No file can be read, the rank of a dump is not known, or the files are of
            several runs.

    """
    parts = []
    failures = []
    for ref in refs:
        try:
            parts.append(read_recording(ref))
        except TracekitError as error:
            failures.append((ref, error))
    if failures and not parts:
        raise failures[0][1]
    notices = [_failure_notice(ref, error) for ref, error in failures]
    for part in parts:
        notices += part.source.notices
    dumps = [part for part in parts if part.source.recorder == FLIGHT_RECORDER]
    logs = [part for part in parts if part.source.recorder == NCCL_INSPECTOR]
    _check_groups(dumps)
    merged_dumps, dump_notices = without_contradictions(_merge_dumps(dumps))
    ranked_logs, log_notices = _assign_ranks(logs)
    ranked_logs, contradiction_notices = without_contradictions(ranked_logs)
    notices += [*dump_notices, *log_notices, *contradiction_notices]
    return Recordings((*merged_dumps, *ranked_logs), tuple(notices))


def read_recording(ref: SourceRef) -> RankCollectives:
    """Read one dump or log."""
    with remote.fetch_to_local(ref.path) as local:
        part = RECORDING_READERS[ref.reader](local, rank=ref.rank, name=ref.path)
    return replace(part, source=structs.replace(part.source, path=ref.path))


def _failure_notice(ref: SourceRef, error: TracekitError) -> Notice:
    values: NoticeValues = {"case": "recording", "path": ref.path, "error": error.message}
    if ref.rank is None:
        return Notice("rank-failed", (f"a recording is left out: {error.message}"), values=values)
    return Notice(
        "rank-failed",
        f"rank {ref.rank} is left out: {error.message}",
        ranks=(ref.rank,),
        values=values | {"case": "rank"},
    )


# Flight-recorder dumps


def _check_groups(dumps: Sequence[RankCollectives]) -> None:
    """Raise if a group has other members in one dump than in another: the dumps are of different runs."""
    first_dump: dict[str, tuple[ProcessGroup, str]] = {}
    for dump in dumps:
        for group in dump.source.groups:
            name = group.name.partition(" [")[0]
            if name != "0":  # names of other groups may repeat: ranks number the groups they are in
                continue
            first_group, path = first_dump.setdefault(name, (group, dump.source.path))
            if first_group.ranks != group.ranks:
                first_size = f"{len(first_group.ranks)} ranks in {path}"
                sizes = f"{first_size}, {len(group.ranks)} in {dump.source.path}"
                raise InputError(f"these dumps are of different runs: {sizes}", hint=_NAME_ONE_RUN)


def _merge_dumps(dumps: Sequence[RankCollectives]) -> list[RankCollectives]:
    """Return one entry per rank, ordered by rank."""
    by_rank: dict[int, list[RankCollectives]] = defaultdict(list)
    unknown = []
    for dump in dumps:
        if dump.source.rank is None:
            unknown.append(dump.source.path)
        else:
            by_rank[dump.source.rank].append(dump)
    if unknown:
        problem = f"{counted(len(unknown), 'dump')} {'does' if len(unknown) == 1 else 'do'} not say the rank"
        hint = "put the rank at the end of their names: nccl_trace_rank_0, nccl_trace_rank_1, …"
        raise InputError(f"{problem}{file_listing(unknown)}", hint=hint)
    return [_merge_rank(by_rank[rank]) for rank in sorted(by_rank)]


def _merge_rank(dumps: Sequence[RankCollectives]) -> RankCollectives:
    """Put the dumps of one rank together.

    An operation in several of them counts once, in its latest state.
    """
    if len(dumps) == 1:
        return dumps[0]
    table = pl.concat([dump.collectives for dump in dumps])
    times_of_entry = table.group_by("id").agg(pl.col("enqueued_ns").n_unique())
    if (times_of_entry["enqueued_ns"] > 1).any():
        raise _different_dumps_error([dump.source for dump in dumps])
    progress_order = (
        pl.col("state")
        .cast(pl.String)
        .replace_strict(
            {state: number for number, state in enumerate(COLLECTIVE_STATES)},
            default=-1,
            return_dtype=pl.Int8,
        )
    )
    table = (
        table.with_columns(progress=progress_order)
        .sort("id", "progress", maintain_order=True)
        .unique(subset="id", keep="last", maintain_order=True)
        .drop("progress")
    )
    latest = max(dumps, key=lambda dump: dump.collectives["id"].max() or 0)
    return RankCollectives(table, latest.source)


def _different_dumps_error(sources: Sequence[Recording]) -> InputError:
    """Return the error about dumps that differ and are of the same rank."""
    origin = "several runs"
    hint = f"{_NAME_ONE_RUN}; of a run that was restarted, those of one start"
    if len({name_before_number(source.path) for source in sources}) > 1:
        origin += ", or of hosts that each count from 0"
        hint += "; of several hosts, put the rank of the run at the end of the names"
    files = file_listing([source.path for source in sources])
    return InputError(f"rank {sources[0].rank} has dumps of {origin}{files}", hint=hint)


# Inspector logs


def _assign_ranks(logs: Sequence[RankCollectives]) -> tuple[list[RankCollectives], list[Notice]]:
    """Return the logs with the ranks of their processes, and of the peers of their messages.

    Ordered by rank.
    """
    if not logs:
        return [], []
    _check_one_start(logs)
    ranks, notices = _process_ranks([log.source for log in logs])
    _check_unique(logs, ranks)
    # Members of each communicator: the process's rank by its rank within the communicator.
    members: dict[str, dict[int, int]] = defaultdict(dict)
    for log, rank in zip(logs, ranks, strict=True):
        for group, group_rank in log.source.group_ranks.items():
            members[group][group_rank] = rank
    ranked = []
    for log, rank in zip(logs, ranks, strict=True):
        groups = []
        for group, size in log.source.group_sizes.items():
            group_members = members[group]
            # A log may say any size: count the members that are recorded, not those it claims.
            recorded_ranks = [
                member for number, member in sorted(group_members.items()) if 0 <= number < size
            ]
            groups.append(ProcessGroup(group, None, tuple(recorded_ranks)))
        source = structs.replace(log.source, rank=rank, groups=tuple(groups))
        ranked.append(RankCollectives(_with_ranks(log.collectives, rank, members), source))
    ranked.sort(key=lambda log: log.source.rank or 0)
    return ranked, notices


_OF_ONE_START = "name the logs of one run; of a run that was restarted, those of one start"


def _check_unique(logs: Sequence[RankCollectives], ranks: Sequence[int]) -> None:
    """Raise if two processes have the same rank."""
    paths_of_rank: dict[int, list[str]] = defaultdict(list)
    for log, rank in zip(logs, ranks, strict=True):
        paths_of_rank[rank].append(log.source.path)
    for rank, paths in sorted(paths_of_rank.items()):
        if len(paths) > 1:
            problem = f"rank {rank} has logs of several processes{file_listing(paths)}"
            raise InputError(problem, hint=_OF_ONE_START)


def _check_one_start(logs: Sequence[RankCollectives]) -> None:
    """Raise if logs are of several runs, or of several starts of one run.

    Two processes cannot be the same member of a communicator. Processes that share communicators,
    directly or through others, ran together; of several such sets in one run, none ends before
    another begins.
    """
    first_path: dict[tuple[str, int], str] = {}
    for log in logs:
        for member in log.source.group_ranks.items():
            path = first_path.setdefault(member, log.source.path)
            if path != log.source.path:
                files = file_listing([path, log.source.path])
                raise InputError(
                    f"two logs are of rank {member[1]} of one communicator{files}",
                    hint=_OF_ONE_START,
                )
    spans: list[tuple[int, int, str]] = []  # start, end, and the path of one log
    for together in _connected(logs):
        times = (
            pl.concat([log.collectives["completed_by_ns"] for log in together])
            .drop_nulls()
            .to_list()
        )
        if times:
            spans.append((min(times), max(times), together[0].source.path))
    spans.sort()
    latest_end, latest_path = spans[0][1:] if spans else (0, "")
    for start, end, path in spans:
        if start > latest_end:
            files = file_listing([latest_path, path])
            raise InputError(
                f"these logs are of several runs, one after the other{files}", hint=_OF_ONE_START
            )
        if end > latest_end:
            latest_end = end
            latest_path = path


def _connected(logs: Sequence[RankCollectives]) -> list[list[RankCollectives]]:
    """Return the logs in sets that share communicators, directly or through others."""
    sets: list[tuple[set[str], list[RankCollectives]]] = []
    for log in logs:
        groups = set(log.source.group_ranks)
        members = [log]
        apart = []
        for other_groups, other_members in sets:
            if groups & other_groups:
                groups |= other_groups
                members = [*other_members, *members]
            else:
                apart.append((other_groups, other_members))
        sets = [*apart, (groups, members)]
    return [members for _, members in sets]


def _process_ranks(sources: Sequence[Recording]) -> tuple[list[int], list[Notice]]:
    """Return the rank of each process, from its log's name, else from a communicator that all processes are in."""
    named = [source.rank for source in sources if source.rank is not None]
    if len(named) == len(sources):
        return named, []
    shared_groups = set.intersection(*(set(source.group_ranks) for source in sources))
    for group in sorted(shared_groups, key=lambda group: -sources[0].group_sizes[group]):
        ranks = [source.group_ranks[group] for source in sources]
        if len(set(ranks)) == len(ranks):
            return ranks, []
    if len(sources) == 1:
        return [_rank_in_largest_group(sources[0])], []

    order = sorted(
        range(len(sources)),
        key=lambda i: (sources[i].host or "", sources[i].pid or 0, sources[i].path),
    )
    ranks = [0] * len(sources)
    for number, i in enumerate(order):
        ranks[i] = number
    largest_groups = [max(source.group_sizes.values(), default=0) for source in sources]
    first = sources[order[0]]
    values: NoticeValues = {
        "case": "processes",
        "processes": len(sources),
        "largest_group": max(largest_groups),
        "first_host": first.host,
        "first_pid": first.pid,
    }
    return ranks, [
        Notice(
            "ranks-by-order",
            (
                f"no communicator has all {len(sources)} processes (the largest "
                f"has {max(largest_groups)}), so ranks are numbered by host and "
                f"process: rank 0 is {first.host} process {first.pid}"
            ),
            values=values,
        )
    ]


def _rank_in_largest_group(source: Recording) -> int:
    """Return the rank of a process in its largest communicator; 0 if it is in none."""
    if not source.group_ranks:
        return 0
    largest = max(source.group_ranks, key=lambda group: source.group_sizes[group])
    return source.group_ranks[largest]


def _with_ranks(
    table: pl.DataFrame, rank: int, members: Mapping[str, Mapping[int, int]]
) -> pl.DataFrame:
    """Return a log's table with its rank, and with peers counted over all processes instead of in their group."""
    table = table.with_columns(rank=pl.lit(rank, COLLECTIVES["rank"]))
    if not table["is_message"].any():
        return table
    rows: list[tuple[str, int, int]] = []
    for group, rank_by_number in members.items():
        rows += [(group, number, member) for number, member in rank_by_number.items()]
    ranks_of_groups = pl.DataFrame(
        rows, schema={"group": pl.String, "peer": pl.Int32, "member": pl.Int32}, orient="row"
    ).with_columns(pl.col("group").cast(COLLECTIVES["group"]))
    joined = table.join(ranks_of_groups, on=["group", "peer"], how="left", maintain_order="left")
    return joined.with_columns(peer=pl.col("member")).select(table.columns)
