"""Reader of PyTorch's flight recorder: dumps of the last collectives of one rank, as pickle or JSON.

The recorder keeps a ring of entries, one per operation that the host enqueued. A dump does not say
its rank: it follows from the messages of the rank, else from the file's name. ``time_created_ns``
is the host's time of the call. The times ``time_discovered_…`` are the watchdog's, which looks at
the GPU now and then: they are bounds.

Messages that were batched are entries of their own that stay "scheduled"; what became of the batch
is known of the entry ``coalesced`` behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracekit._util.inflation import GZIP, inflate_whole
from tracekit._util.text import verb
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.parsers.collective_names import (
    group_identity,
    message_ranks,
    operation_name,
    parse_ranks,
    tensor_bytes,
    valid_int64,
)
from tracekit.parsers.plain_pickle import is_pickle, load_plain_pickle
from tracekit.parsers.rank_numbers import valid_rank
from tracekit.schema import (
    COLLECTIVE_STATES,
    COLLECTIVES,
    GroupProgress,
    ProcessGroup,
    RankCollectives,
    Recording,
    conform,
)

MAJOR_VERSION = 2
"""Version of the format that is read."""
NEWEST_MINOR_VERSION = 10
"""Newest minor version that was tried; later ones only add fields."""
MAX_STACK_FRAMES = 32
"""Frames that are kept of the stack of a dump's last operation."""
MAX_DURATION_MS = 1e12
"""Longest duration that is believed, 30 years: more is damage."""
_TYPES_OF_COLUMNS = {
    name: dtype for name, dtype in COLLECTIVES.items() if dtype in (pl.Int64, pl.Boolean)
}
_DUMP_AGAIN = "dump it again with torch._C._distributed_c10d._dump_nccl_trace()"


class _RecordedEntry(msgspec.Struct, gc=False):
    """An entry of a dump; every field may be missing in some version."""

    record_id: int | None = None
    process_group: tuple[str, str] | None = None
    pg_name: str | None = None  # version 2.0
    pg_id: int | None = None
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    profiling_name: str = ""
    time_created_ns: int | None = None
    duration_ms: float | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: str | None = None
    is_p2p: bool | None = None
    retired: bool | None = None
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None


def read(path: str | Path, *, rank: int | None = None, name: str | None = None) -> RankCollectives:
    """Read a dump, compressed by gzip or not.

    Args:
        path: The file.
        rank: Rank of the dump, if its name tells; what the content tells comes first.
        name: What to call it in errors; by default the path.

    """
    shown = name or str(path)
    data = _read_bytes(Path(path), shown)
    dump = load_plain_pickle(data, name=shown) if is_pickle(data) else _load_json(data, shown)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list | tuple):
        raise InputError("is not a flight-recorder dump", path=shown, hint=_DUMP_AGAIN)
    version, notices = _check_version(dump.get("version"), shown)
    raw_entries = dump.get("entries", ())
    entries, damaged = _read_entries(raw_entries)
    if damaged:
        notices.append(
            Notice(
                "bad-events",
                (f"{shown}: {damaged:,} {verb(damaged, 'entry', 'entries')} cannot be read"),
                values={"case": "entries", "file": shown, "count": damaged},
            )
        )
    groups = _read_groups(dump.get("pg_config"))
    columns, content_rank = _columns(entries, groups)
    rank_from = "content" if content_rank is not None else "name"
    rank = content_rank if content_rank is not None else rank
    frame = pl.DataFrame(columns, schema_overrides=_TYPES_OF_COLUMNS, strict=False).with_columns(
        rank=pl.lit(rank, COLLECTIVES["rank"]),
        source=pl.lit("flight_recorder", COLLECTIVES["source"]),
    )
    frame = conform(frame, COLLECTIVES)
    source = Recording(
        str(path),
        "flight_recorder",
        rank=rank,
        rank_from=rank_from,
        version=version,
        groups=tuple(groups.values()),
        progress=_read_progress(dump.get("pg_status"), entries, groups),
        last_stack=_last_stack(raw_entries),
        last_ns=_last_time(entries),
        notices=tuple(notices),
    )
    return RankCollectives(frame, source)


def _read_bytes(path: Path, shown: str) -> bytes:
    """Return the content of a file, inflated if it is compressed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=shown, hint="check its permissions"
        ) from error
    return inflate_whole(data, shown) if data.startswith(GZIP) else data


def _load_json(data: bytes, shown: str) -> object:
    """Return the content of a dump that was written as JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"is not JSON to its end: {error}", path=shown, hint=_DUMP_AGAIN
        ) from error


def _check_version(version: object, shown: str) -> tuple[str | None, list[Notice]]:
    """Return the version of the format, with a notice if it is newer than those tried.

    Raise if it cannot be read.
    """
    major, _, minor = str(version).partition(".")
    if version is None or not major.isdecimal() or not minor.isdecimal():
        return None, [
            Notice(
                "recorder-version",
                (f"{shown}: does not say the version of its format"),
                values={"case": "unknown", "file": shown},
            )
        ]
    if int(major) != MAJOR_VERSION:
        problem = f"is a flight-recorder dump of version {version}; versions 2.0 and later are read"
        raise InputError(problem, path=shown, hint="dump it with PyTorch 2.5 or later")
    notices = []
    if int(minor) > NEWEST_MINOR_VERSION:
        values: NoticeValues = {
            "case": "newer",
            "file": shown,
            "version": str(version),
            "known": f"{MAJOR_VERSION}.{NEWEST_MINOR_VERSION}",
        }
        notices.append(
            Notice(
                "recorder-version",
                (
                    f"{shown}: version {version!s} of the flight recorder is "
                    f"newer than {f'{MAJOR_VERSION}.{NEWEST_MINOR_VERSION}'}; "
                    "fields it adds are not read"
                ),
                values=values,
            )
        )
    return str(version), notices


def _read_entries(raw_entries: Sequence[Any]) -> tuple[list[_RecordedEntry], int]:
    """Return the entries in the order of recording, and the number of those that cannot be read."""
    try:
        return msgspec.convert(raw_entries, list[_RecordedEntry]), 0
    except msgspec.ValidationError:
        pass
    entries = []
    damaged = 0
    for raw_entry in raw_entries:
        try:
            entries.append(msgspec.convert(raw_entry, _RecordedEntry))
        except msgspec.ValidationError:
            damaged += 1
    return entries, damaged


def _read_groups(config: object) -> dict[str, ProcessGroup]:
    """Return the groups of ``pg_config`` by name, under the name that identifies them in the table."""
    groups: dict[str, ProcessGroup] = {}
    if not isinstance(config, Mapping):
        return groups
    for key, group in config.items():
        if not isinstance(group, Mapping):
            continue
        name = str(group.get("name", key))
        description = group.get("desc")
        ranks = parse_ranks(group.get("ranks"))
        identity = group_identity(name, ranks)
        groups[name] = ProcessGroup(identity, str(description) if description else None, ranks)
    return groups


_ENTRY_COLUMNS = (
    "id",
    "group",
    "sequence",
    "op",
    "is_message",
    "peer",
    "bytes",
    "dtype",
    "enqueued_ns",
    "completed_by_ns",
    "duration_ns",
    "state",
)


def _columns(
    entries: Sequence[_RecordedEntry], groups: Mapping[str, ProcessGroup]
) -> tuple[dict[str, list[Any]], int | None]:
    """Return the columns of the table, and the rank that messages tell."""
    ops: dict[str, tuple[str, tuple[int, int] | None]] = {}
    bytes_of_tensors: dict[str, int | None] = {}  # by the text of sizes and types: see seeded_key
    for entry in entries:  # names and sizes repeat from step to step: each is read once
        if entry.profiling_name not in ops:
            ops[entry.profiling_name] = (
                operation_name(entry.profiling_name),
                message_ranks(entry.profiling_name),
            )
        tensors = _tensors(entry)
        if repr(tensors) not in bytes_of_tensors:
            bytes_of_tensors[repr(tensors)] = _smaller_side(*tensors)
    names = [_group_name(entry) for entry in entries]
    is_message = _find_messages(entries, ops)
    peers, content_rank = _find_peers(entries, names, groups, ops)
    columns: dict[str, list[Any]] = {name: [] for name in _ENTRY_COLUMNS}
    for position, entry in enumerate(entries):
        name = names[position]
        sequence = entry.p2p_seq_id if is_message[position] else entry.collective_seq_id
        number = position if entry.record_id is None else entry.record_id
        row: dict[str, Any] = {
            "id": valid_int64(number),
            "group": groups[name].name if name in groups else name,
            "sequence": valid_int64(sequence),
            "op": ops[entry.profiling_name][0],
            "is_message": is_message[position],
            "peer": peers[position],
            "bytes": bytes_of_tensors[repr(_tensors(entry))],
            "dtype": entry.input_dtypes[0] if entry.input_dtypes else None,
            "enqueued_ns": valid_int64(entry.time_created_ns),
            "completed_by_ns": valid_int64(entry.time_discovered_completed_ns or None),
            "duration_ns": _duration_ns(entry.duration_ms),
            "state": _state(entry),
        }
        for column, value in row.items():
            columns[column].append(value)
    _spread_states(columns)
    return columns, content_rank


_Ops = Mapping[str, tuple[str, tuple[int, int] | None]]
"""Operation and, of a message, own rank and peer in the group, by the name of the entry."""


def _find_messages(entries: Sequence[_RecordedEntry], ops: _Ops) -> list[bool]:
    """Return which entries are messages, or batches of messages.

    A batch says nothing about its contents: it follows them, with their sequence number.
    """
    is_message: list[bool] = []
    for position, entry in enumerate(entries):
        op, message = ops[entry.profiling_name]
        if op == "coalesced":
            follows_message = bool(is_message) and is_message[-1]
            is_same = follows_message and entries[position - 1].p2p_seq_id == entry.p2p_seq_id
            is_message.append(is_same)
        elif entry.is_p2p is None:
            is_message.append(message is not None)
        else:
            is_message.append(entry.is_p2p)
    return is_message


def _find_peers(
    entries: Sequence[_RecordedEntry],
    names: Sequence[str],
    groups: Mapping[str, ProcessGroup],
    ops: _Ops,
) -> tuple[list[int | None], int | None]:
    """Return the peers of messages, None for other operations, and the rank that the first message tells."""
    peers: list[int | None] = [None] * len(entries)
    content_rank: int | None = None
    for position, entry in enumerate(entries):
        message = ops[entry.profiling_name][1]
        if message is not None:
            group = groups.get(names[position])
            peers[position] = _global_rank(group, message[1])
            if content_rank is None:
                content_rank = _global_rank(group, message[0])
    return peers, content_rank


def _state(entry: _RecordedEntry) -> str | None:
    """Return how far an operation had come.

    One that was given up before it completed has timed out.
    """
    if entry.retired and entry.state in ("scheduled", "started"):
        return "timed_out"
    return entry.state if entry.state in COLLECTIVE_STATES else None


class _StackFrame(msgspec.Struct, gc=False):
    name: str = "?"
    filename: str = "?"
    line: int | None = None


def _last_stack(raw_entries: Sequence[Any]) -> tuple[str, ...]:
    """Return the frames of the last entry as text, the innermost first.

    Empty if stacks were not recorded.
    """
    last = raw_entries[-1] if raw_entries else None
    raw_frames = last.get("frames") if isinstance(last, Mapping) else None
    if not isinstance(raw_frames, list | tuple):
        return ()
    try:
        frames = msgspec.convert(raw_frames[:MAX_STACK_FRAMES], list[_StackFrame])
    except msgspec.ValidationError:
        return ()
    return tuple(f"{frame.name} ({frame.filename}:{frame.line})" for frame in frames)


def _last_time(entries: Sequence[_RecordedEntry]) -> int | None:
    """Return the latest time in a dump: of a call, or at which the watchdog saw something."""
    latest = 0
    for entry in entries:
        latest = max(
            latest,
            valid_int64(entry.time_created_ns) or 0,
            valid_int64(entry.time_discovered_started_ns) or 0,
            valid_int64(entry.time_discovered_completed_ns) or 0,
        )
    return latest or None


def _group_name(entry: _RecordedEntry) -> str:
    """Return the name of an entry's group as the dump has it."""
    if entry.process_group is not None:
        return entry.process_group[0]
    if entry.pg_name is not None:
        return entry.pg_name
    return "" if entry.pg_id is None else str(entry.pg_id)


def _global_rank(group: ProcessGroup | None, number: int) -> int | None:
    """Return the rank of the *number*-th member of a group.

    A group whose ranks are not known is the whole world.
    """
    if group is None or not group.ranks:
        return valid_rank(number)
    return valid_rank(group.ranks[number]) if number < len(group.ranks) else None


_Tensors = tuple[
    tuple[tuple[int, ...], ...], tuple[str, ...], tuple[tuple[int, ...], ...], tuple[str, ...]
]


def _tensors(entry: _RecordedEntry) -> _Tensors:
    """Return sizes and types of an entry's inputs and outputs."""
    return entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes


def _smaller_side(
    input_sizes: tuple[tuple[int, ...], ...],
    input_dtypes: tuple[str, ...],
    output_sizes: tuple[tuple[int, ...], ...],
    output_dtypes: tuple[str, ...],
) -> int | None:
    """Return the bytes of the input or the output, whichever are fewer: NCCL counts an operation's size so."""
    sides = (tensor_bytes(input_sizes, input_dtypes), tensor_bytes(output_sizes, output_dtypes))
    return min((side for side in sides if side is not None), default=None)


def _duration_ns(duration_ms: float | None) -> int | None:
    if duration_ms is None or not 0 <= duration_ms <= MAX_DURATION_MS:  # false for NaN as well
        return None
    return round(duration_ms * 1e6)


def _spread_states(columns: dict[str, list[Any]]) -> None:
    """Give the members of a batch the state of the batch, whose entry follows them with their sequence number."""
    ops = columns["op"]
    identities = list(
        zip(columns["group"], columns["sequence"], columns["is_message"], strict=True)
    )
    batch: int | None = None
    for row in range(len(ops) - 1, -1, -1):
        if ops[row] == "coalesced":
            batch = row
        elif batch is not None and identities[row] == identities[batch]:
            columns["state"][row] = columns["state"][batch]
            columns["completed_by_ns"][row] = columns["completed_by_ns"][batch]
        else:
            batch = None


def _read_progress(
    status: object, entries: Sequence[_RecordedEntry], groups: Mapping[str, ProcessGroup]
) -> dict[str, GroupProgress]:
    """Return how far each group had come, by the name that identifies it in the table."""
    if not isinstance(status, Mapping):
        return {}
    name_of_id = {
        str(entry.pg_id): _group_name(entry) for entry in entries if entry.pg_id is not None
    }
    progress = {}
    for key, numbers in status.items():
        if not isinstance(numbers, Mapping):
            continue
        name = name_of_id.get(str(key), str(key))
        identity = groups[name].name if name in groups else name
        progress[identity] = GroupProgress(
            _number(numbers.get("last_enqueued_collective")),
            _number(numbers.get("last_started_collective")),
            _number(numbers.get("last_completed_collective")),
        )
    return progress


def _number(value: object) -> int | None:
    """Return a sequence number, which dumps write as text or number.

    None where there is none yet (-1).
    """
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
        else None
    )
