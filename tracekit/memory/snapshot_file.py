"""Reader of memory snapshots, the pickles that ``torch.cuda.memory._dump_snapshot`` writes.

A snapshot holds the segments that the allocator has reserved with the blocks in them, and, if the
history was recorded, every event of the allocator with its stack. Its times are those of the host
in microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from tracekit._util.inflation import GZIP, inflate_whole
from tracekit._util.text import counted
from tracekit._util.values import seeded_key
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.memory.snapshot_checks import check_segments, history_contradiction
from tracekit.parsers.plain_pickle import cycle_collection_paused, load_plain_pickle
from tracekit.schema import (
    ALLOCATOR_ACTIONS,
    ALLOCATOR_BLOCKS,
    ALLOCATOR_EVENTS,
    ALLOCATOR_SEGMENTS,
    SNAPSHOT_ANNOTATIONS,
    Frame,
    MemorySnapshot,
)

SNAPSHOT_KEYS = ("segments", "device_traces")
"""Keys that every memory snapshot has, and no other pickle that tracekit reads."""
MAX_GPUS_PER_SNAPSHOT = 128
"""GPUs that one process may use, by PyTorch's own limit (``C10_COMPILE_TIME_MAX_GPUS``). Each has a fixed cost."""
_NULLABLE_COLUMNS = ("stack", "device_free")
_FRAME_VALUES = itemgetter("name", "filename", "line")
_WRITE_AGAIN = "write the snapshot again"


def read_memory_snapshot(path: str | Path, *, name: str | None = None) -> MemorySnapshot:
    """Read a memory snapshot, compressed by gzip or not: the GPU with most events.

    Args:
        path: The file.
        name: What to call it in messages; by default its path.

    Raises:
        InputError: The file is no memory snapshot, or is damaged.

    """
    shown = str(path) if name is None else name
    content = _load(path, shown)
    snapshot = parse_memory_snapshot(content, name=shown)
    return _checked(snapshot)


def read_memory_snapshots(path: str | Path, *, name: str | None = None) -> list[MemorySnapshot]:
    """Read a memory snapshot as ``read_memory_snapshot`` does: each GPU that the process used."""
    shown = str(path) if name is None else name
    content = _load(path, shown)
    first = parse_memory_snapshot(content, name=shown)
    devices = used_devices(content)
    if len(devices) > MAX_GPUS_PER_SNAPSHOT:
        problem = f"names {len(devices):,} GPUs, and a process has at most {MAX_GPUS_PER_SNAPSHOT}"
        raise InputError(problem, path=shown, hint=_WRITE_AGAIN)
    others = [device for device in devices if device != first.device]
    if not others:
        return [_checked(first)]
    snapshots = [first]
    snapshots += [parse_memory_snapshot(content, name=shown, device=device) for device in others]
    checked = []
    for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.device):
        notices = tuple(
            notice for notice in snapshot.notices if notice.code != "memory-several-devices"
        )
        checked.append(_checked(replace(snapshot, notices=notices)))
    return checked


def used_devices(content: object) -> list[int]:
    """Return the numbers of the GPUs of an unpickled file that have events or segments."""
    assert isinstance(content, dict), "it is parsed before"
    numbers = {
        seeded_key(number): number
        for number, history in enumerate(content["device_traces"])
        if history
    }
    for segment in content["segments"]:
        device = segment.get("device", 0)
        if isinstance(device, int) and device >= 0:
            numbers[seeded_key(device)] = device
    return sorted(numbers.values())


def _load(path: str | Path, shown: str) -> object:
    """Return the content of a file, without building any object but plain values."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=shown, hint="check its permissions"
        ) from error
    if data.startswith(GZIP):
        data = inflate_whole(data, shown)
    return load_plain_pickle(data, name=shown)


def _checked(snapshot: MemorySnapshot) -> MemorySnapshot:
    """Return the snapshot, without a history that contradicts it; raise if it contradicts itself."""
    check_segments(snapshot.segments, snapshot.blocks, snapshot.path)
    return _without_contradicting_history(snapshot)


CONTRADICTIONS = {
    "times": "the times of its events do not ascend",
    "twice": "memory is allocated or freed twice in a row at one address",
    "sizes": "memory is freed with another size than it was allocated with",
    "end": "what its events leave behind is not what its segments hold",
    "reserved": "its events hold more than is reserved",
}
"""How the events of a snapshot contradict each other or its segments (``snapshot_checks``), in words."""


def _without_contradicting_history(snapshot: MemorySnapshot) -> MemorySnapshot:
    """Return the snapshot without its events, and with a notice, if they contradict each other or the segments."""
    problem = history_contradiction(snapshot.events, snapshot.segments, snapshot.blocks)
    if problem is None:
        return snapshot
    values: NoticeValues = {
        "case": "contradiction",
        "file": snapshot.path,
        "problem": problem,
        "events": len(snapshot.events),
    }
    notice = Notice(
        "memory-snapshot-failed",
        (
            f"{snapshot.path} contradicts itself: "
            f"{CONTRADICTIONS[problem]}. Its "
            f"{counted(len(snapshot.events), 'event')} are not used, and its "
            "segments may be incomplete: write the snapshot again"
        ),
        values=values,
    )
    return replace(snapshot, events=snapshot.events.clear(), notices=(*snapshot.notices, notice))


def parse_memory_snapshot(
    content: object, *, name: str, device: int | None = None
) -> MemorySnapshot:
    """Return the snapshot that an unpickled file holds.

    Args:
        content: The file's content.
        name: What to call the file in messages.
        device: Number of the GPU; by default that with most events.

    """
    if not isinstance(content, dict) or not _has_lists(content, SNAPSHOT_KEYS):
        hint = "torch.cuda.memory._dump_snapshot writes one"
        raise InputError("is not a memory snapshot", path=name, hint=hint)
    with cycle_collection_paused():
        return _parse_content(content, name, device)


def _parse_content(content: Mapping[str, Any], name: str, device: int | None) -> MemorySnapshot:
    """Return what ``parse_memory_snapshot`` does, of a dict with the keys of a snapshot."""
    stacks = StackNumbers(name)
    histories = [_dicts(history, f"{name}: device_traces") for history in content["device_traces"]]
    segments = _dicts(content["segments"], f"{name}: segments")
    if device is None:
        device = _busiest_device(histories, segments)
    history = histories[device] if device < len(histories) else []
    own_segments = [segment for segment in segments if segment.get("device", 0) == device]
    settings = content.get("allocator_settings")
    is_expandable = isinstance(settings, Mapping) and bool(settings.get("expandable_segments"))
    return MemorySnapshot(
        path=name,
        device=device,
        events=_event_table(history, stacks, name),
        segments=_segment_table(own_segments, name),
        blocks=_block_table(own_segments, stacks, name),
        annotations=_annotation_table(content.get("external_annotations") or [], device, name),
        stacks=stacks.stacks,
        expandable=is_expandable or any(segment.get("is_expandable") for segment in own_segments),
        notices=_notices(histories, history, device, stacks),
    )


def _has_lists(content: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """Return whether there is a list under each key."""
    return all(isinstance(content.get(key), list) for key in keys)


def _busiest_device(
    histories: Sequence[Sequence[object]], segments: Iterable[Mapping[str, Any]]
) -> int:
    """Return the number of the GPU with most events.

    Without events, the one with most reserved memory.
    """
    counts = [len(history) for history in histories]
    if any(counts):
        return counts.index(max(counts))
    reserved: dict[str, int] = {}  # by the GPU's number
    for segment in segments:
        device = segment.get("device", 0)
        size = segment.get("total_size")
        if isinstance(device, int) and isinstance(size, int):
            key = seeded_key(device)
            reserved[key] = reserved.get(key, 0) + size
    most = max(reserved.items(), key=lambda item: (item[1], -int(item[0])), default=("0", 0))
    return int(most[0])


class StackNumbers:
    """Stacks by number: the same frames in the same order are one stack."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stacks: list[tuple[Frame, ...]] = []
        self.number_of_stack: dict[tuple[str, ...], int] = {}
        """Numbers by the texts of frames, whose hashes have a seed: a file could choose line numbers
        for one place of a dict."""
        self._by_objects: dict[tuple[int, ...], int] = {}
        """Numbers by the identities of frames: PyTorch writes each frame once, and stacks refer to
        it. The content that is read keeps them alive."""
        self._text_by_object: dict[int, str] = {}

    @property
    def stacks(self) -> tuple[tuple[Frame, ...], ...]:
        """The stacks by their numbers, from 0."""
        return tuple(self._stacks)

    def number(self, frames: object) -> int | None:
        """Return the number of a stack; None if no frames were recorded."""
        if not frames:
            return None
        try:
            objects = tuple(map(id, frames))  # type: ignore[call-overload]
            known_number = self._by_objects.get(objects)
            if known_number is not None:
                return known_number
            stack: tuple[Frame, ...] = tuple(map(_FRAME_VALUES, frames))  # type: ignore[call-overload]
        except (TypeError, KeyError, IndexError):
            raise self._frame_error() from None
        for identity, frame in zip(objects, stack, strict=True):
            if identity not in self._text_by_object:
                self._check(frame)
                self._text_by_object[identity] = repr(frame)
        texts = tuple(map(self._text_by_object.__getitem__, objects))
        number = self.number_of_stack.setdefault(texts, len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(stack)
        self._by_objects[objects] = number
        return number

    def _check(self, frame: Frame) -> None:
        function, file, line = frame
        if not (isinstance(function, str) and isinstance(file, str) and isinstance(line, int)):
            raise self._frame_error()

    def _frame_error(self) -> InputError:
        problem = "has a frame without name, file or line"
        return InputError(problem, path=self._name, hint=_WRITE_AGAIN)


def _dicts(values: object, where: str) -> list[dict[str, Any]]:
    """Return a list of dicts; raise if it is anything else."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InputError(f"{where} is not a list of dicts", hint=_WRITE_AGAIN)
    return values


def _event_table(
    history: Sequence[Mapping[str, Any]], stacks: StackNumbers, name: str
) -> pl.DataFrame:
    """Return the events of the allocator; those of unknown kinds are left out."""
    known_events = [event for event in history if event.get("action") in ALLOCATOR_ACTIONS]
    columns = [
        [event.get("time_us") for event in known_events],
        [event["action"] for event in known_events],
        [
            event.get("addr", 0) for event in known_events
        ],  # an event of memory that ran out has none
        [event.get("size") for event in known_events],
        [event.get("stream", 0) for event in known_events],
        [stacks.number(event.get("frames")) for event in known_events],
        [event.get("device_free") for event in known_events],
    ]
    table = _table_of_columns(columns, ALLOCATOR_EVENTS, f"{name}: device_traces")
    return table.with_columns(pl.col("at_ns") * 1000)


def _segment_table(segments: Sequence[Mapping[str, Any]], name: str) -> pl.DataFrame:
    rows = []
    for segment in segments:
        row = (
            segment.get("address"),
            segment.get("total_size"),
            segment.get("allocated_size"),
            segment.get("active_size"),
            segment.get("stream", 0),
            str(segment.get("segment_type", "")),
            str(segment.get("segment_pool_id", (0, 0))),
        )
        rows.append(row)
    return _table(rows, ALLOCATOR_SEGMENTS, f"{name}: segments").sort("address")


def _block_table(
    segments: Sequence[Mapping[str, Any]], stacks: StackNumbers, name: str
) -> pl.DataFrame:
    rows: list[tuple[Any, ...]] = []
    for segment in segments:
        address = segment.get("address")
        for block in _dicts(segment.get("blocks", []), f"{name}: blocks"):
            # Snapshots of PyTorch before 2.1 give blocks no address: they lie in the segment one
            # after the other.
            block_address = block.get("address", address)
            size = block.get("size")
            stack = stacks.number(block.get("frames"))
            state = str(block.get("state", ""))
            stream = segment.get("stream", 0)
            rows.append(
                (
                    segment.get("address"),
                    block_address,
                    size,
                    block.get("requested_size", size),
                    stream,
                    state,
                    stack,
                )
            )
            if isinstance(block_address, int) and isinstance(size, int):
                address = block_address + size
    return _table(rows, ALLOCATOR_BLOCKS, f"{name}: blocks")


def _annotation_table(annotations: object, device: int, name: str) -> pl.DataFrame:
    rows = []
    for annotation in _dicts(annotations, f"{name}: external_annotations"):
        if annotation.get("device", device) == device:
            text = str(annotation.get("name", ""))
            rows.append((annotation.get("time_us"), text, annotation.get("stage") == "START"))
    table = _table(rows, SNAPSHOT_ANNOTATIONS, f"{name}: external_annotations")
    return table.with_columns(pl.col("at_ns") * 1000)


def _table(rows: Sequence[tuple[Any, ...]], schema: pl.Schema, where: str) -> pl.DataFrame:
    """Return a table of numbers and texts; raise if a value is missing or of another type.

    Args:
        rows: Values in the order of the schema's columns.
        schema: Columns of the table.
        where: What the table is read from, for messages.

    """
    columns = [[row[i] for row in rows] for i in range(len(schema))]
    return _table_of_columns(columns, schema, where)


def _table_of_columns(columns: Sequence[list[Any]], schema: pl.Schema, where: str) -> pl.DataFrame:
    """Return what ``_table`` does, of the values of each column."""
    series = []
    try:
        for (name, dtype), values in zip(schema.items(), columns, strict=True):
            series.append(pl.Series(name, values, dtype, strict=True))
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{where} has a value that is no number or too large", hint=_WRITE_AGAIN
        ) from error
    table = pl.DataFrame(series)
    for name in schema:
        if name not in _NULLABLE_COLUMNS and table[name].null_count():
            raise InputError(f"{where} has an entry without {name}", hint=_WRITE_AGAIN)
    for name in ("bytes", "allocated", "active", "requested", "device_free"):
        if name not in schema:
            continue
        if (table[name] < 0).any() or (table[name] > MAX_BYTES).any():
            raise InputError(f"{where} has an impossible size", hint=_WRITE_AGAIN)
    if "at_ns" in schema and ((table["at_ns"] < 0) | (table["at_ns"] > MAX_TIME_US)).any():
        raise InputError(f"{where} has an impossible time", hint=_WRITE_AGAIN)
    return table


MAX_BYTES = 1 << 50
"""Largest size of a block or segment: no GPU has a pebibyte, and sums of sizes must not
overflow."""
MAX_TIME_US = 1 << 53
"""Latest time in µs (the year 2255): as nanoseconds it must not overflow."""


def _notices(
    histories: Sequence[Sequence[object]],
    history: Sequence[Mapping[str, Any]],
    device: int,
    stacks: StackNumbers,
) -> tuple[Notice, ...]:
    """Return notices about what the snapshot lacks."""
    notices = []
    others = [number for number, events in enumerate(histories) if events and number != device]
    if others:
        notices.append(
            Notice(
                "memory-several-devices",
                (
                    f"the snapshot has events of {counted(len(others) + 1, 'GPU')}: those of "
                    f"GPU {device} are used"
                ),
                values={"gpus": len(others) + 1, "device": device},
                severity="note",
            )
        )
    if not history:
        notices.append(
            Notice(
                "memory-history-short",
                (
                    "the snapshot has no history of allocations: it shows only "
                    "what was allocated when it was written"
                ),
                values={"case": "none"},
            )
        )
    elif not stacks.stacks:
        notices.append(
            Notice(
                "memory-no-stacks", ("the snapshot has no stacks: nothing is known by source line")
            )
        )
    unknown = sum(event.get("action") not in ALLOCATOR_ACTIONS for event in history)
    if unknown:
        notices.append(
            Notice(
                "bad-events",
                (f"{counted(unknown, 'event')} of unknown kinds were left out"),
                values={"case": "unknown_kind", "events": unknown},
            )
        )
    return tuple(notices)
