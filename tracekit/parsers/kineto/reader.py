"""``read``: one PyTorch profiler file to one rank's events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import polars as pl

from tracekit._util.text import counted
from tracekit.errors import InputError, Notice
from tracekit.parsers.kineto.header import Header, find_events, tail_events, tail_keys, understand
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.refs import rank_in_name
from tracekit.parsers.steps import assign_steps
from tracekit.schema import DAMAGED, UNTIMED, RankEvents, Source

if TYPE_CHECKING:
    from tracekit.parsers.kineto.blocks import Scanned
    from tracekit.parsers.kineto.table import EventTable


def read(
    source: str | Path | BinaryIO, *, rank: int | None = None, stacks: bool = False, lenient: bool = True
) -> RankEvents:
    """Read a PyTorch profiler trace (``.json``, ``.json.gz``, or an open binary file) into one rank's events.

    Complete events become rows; the rest is counted in ``source.skipped``. Python frames are read only with *stacks*.
    *rank* counts when neither the content nor the name of the file gives one. Damage inside events is stepped over
    and counted in ``source.notices``; with ``lenient=False`` it is an error.

    >>> import io
    >>> text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": 2}]}'
    >>> events = read(io.BytesIO(text), rank=3).events
    >>> events["rank"][0], events["name"][0], events["start_ns"][0], events["end_ns"][0]
    (3, 'aten::mm', 1500, 3500)
    """
    from tracekit.parsers.kineto.table import build_events, build_memory

    with Stream(source) as stream:
        scanned, keys = _scan(stream, stacks=stacks)
        keys = {**keys, **tail_keys(scanned.tail)}
        header = understand(keys)
        if not lenient:
            _refuse(stream, scanned)
        number, number_from = _rank(header, stream.name, rank)
        table = build_events(scanned, rank=number, base_ns=header.base_ns)
        if table.first_bad_text is not None and not lenient:
            raise InputError(
                f"{stream.name}: event {table.first_bad_text} holds text that is not valid JSON", hint=_HINT
            )
        if table.out_of_range and not lenient:
            raise InputError(f"{stream.name}: {table.out_of_range} events have impossible times", hint=_HINT)
        events = assign_steps(table.events)
        memory = build_memory(scanned.parts, rank=number, base_ns=header.base_ns)
        return RankEvents(
            events,
            Source(
                path=stream.name,
                reader="kineto",
                rank=number,
                rank_from=number_from,
                world_size=header.world_size,
                devices=header.devices,
                multiprocessors=header.multiprocessors,
                memory_bytes=header.memory_bytes,
                versions=header.versions,
                groups=header.groups,
                record_shapes=_record_shapes(header, events),
                counts=_counts(events),
                skipped=_skipped(scanned, table, memory),
                notices=(*_notices(stream, scanned, table, events, header.base_ns), *header.notices),
            ),
            memory,
        )


_EPOCH_NS = 10**18  # September 2001: no PyTorch trace is older, so a smaller time counts from some other start
_HINT = "re-record this rank, or read leniently to use what is there"


def _scan(stream: Stream, *, stacks: bool) -> tuple[Scanned, dict[str, Any]]:
    from tracekit.parsers.kineto.blocks import OtherLayoutError, find_separator, scan_in_order, scan_parallel

    head, at, keys = find_events(stream)
    mark = find_separator(head, at)
    scanned = None
    if mark is not None:
        try:
            scanned = scan_parallel(stream, head, at, mark, stacks=stacks)
        except OtherLayoutError:
            stream.restart()
            head = stream.read(len(head))
    if scanned is None:
        scanned = scan_in_order(stream, head, at, stacks=stacks)
    total = sum(part.events for part in scanned.parts)
    junk = sum(part.bad + int(part.phases[0]) for part in scanned.parts)
    bare = head[:at].lstrip(b"\xef\xbb\xbf \t\r\n") == b"["
    if bare and not total:
        raise InputError(f"{stream.name}: the list of events is empty", hint="re-record this rank")
    if total and total == junk:
        raise InputError(
            f"{stream.name}: not a PyTorch profiler trace: no event has a time",
            hint="give the .json or .json.gz the profiler wrote",
        )
    return scanned, keys


def _rank(header: Header, name: str, option: int | None) -> tuple[int, str]:
    if header.rank is not None:
        return header.rank, "content"
    if (named := rank_in_name(name.rpartition("/")[2])) is not None:
        return named, "name"
    return (0, "only file") if option is None else (option, "option")


def _refuse(stream: Stream, scanned: Scanned) -> None:
    """Raise for the first damage, naming the event."""
    before = 0
    for part in scanned.parts:
        if part.bad or part.bad_values:
            last = scanned.is_event_cut and part is scanned.parts[-1] and part.bad == 1
            if last and not part.bad_values:
                raise InputError(f"{stream.name}: ends inside event {before + part.events - 1}", hint=_HINT)
            first = min(
                part.first_bad if part.bad else part.events, part.first_bad_value if part.bad_values else part.events
            )
            raise InputError(f"{stream.name}: event {before + first} is not valid JSON", hint=_HINT)
        before += part.events
    if behind := tail_events(scanned.tail):
        raise InputError(f"{stream.name}: {counted(behind, 'event')} behind the end of the list of events", hint=_HINT)
    if stream.cut_short or not scanned.is_closed:
        raise InputError(f"{stream.name}: ends after event {before - 1}, before the list of events does", hint=_HINT)


def _notices(stream: Stream, scanned: Scanned, table: EventTable, events: pl.DataFrame, base_ns: int) -> list[Notice]:
    rows = events.height
    relative = rows and not base_ns and events["start_ns"][0] < _EPOCH_NS
    notices = []
    bad = sum(part.bad for part in scanned.parts) + table.out_of_range
    behind = tail_events(scanned.tail)
    values = sum(part.bad_values for part in scanned.parts)
    if stream.cut_short or not scanned.is_closed:
        lost = 1 if scanned.is_event_cut else 0
        bad -= lost
        notices.append(
            Notice("truncated", f"{lost} event was cut in two: the file ends before its list of events does")
        )
        if relative:
            notices.append(Notice("no-base-time", "the start of the clock was lost with the end of the file"))
    if bad:
        gpu = table.untimed.get(UNTIMED, 0)
        ran = f", of which {gpu} ran on the GPU" if gpu else ""
        notices.append(
            Notice("bad-events", f"{counted(bad, 'damaged event')} {'was' if bad == 1 else 'were'} lost{ran}")
        )
    if behind:
        notices.append(
            Notice("bad-events", f"{counted(behind, 'event')} behind the end of the list of events: not read")
        )
    if values:
        notices.append(Notice("bad-values", f"{values} values are not JSON (such as inf or N/A) and were left out"))
    if table.bad_texts:
        notices.append(Notice("bad-text", f"{table.bad_texts} names hold invalid bytes or escapes and were repaired"))
    if scanned.is_tail_cut:
        notices.append(Notice("unread-keys", "the keys after the events were too long to read"))
    if not rows:
        notices.append(Notice("no-events", "the file holds no complete event"))
    return notices


def _record_shapes(header: Header, events: pl.DataFrame) -> bool | None:
    if header.record_shapes is not None:
        return header.record_shapes
    if events["shapes"].null_count() < events.height:
        return True
    return False if (events["kind"] == "cpu_op").any() else None


def _counts(events: pl.DataFrame) -> Mapping[str, int]:
    return {str(kind): count for kind, count in events["kind"].value_counts(sort=True).iter_rows()}


def _skipped(scanned: Scanned, table: EventTable, memory: pl.DataFrame) -> Mapping[str, int]:
    """Count what the file holds and the table does not; an event cut by the end of the file does not count."""
    phases = np.sum([part.phases for part in scanned.parts], axis=0)
    phases[ord("i")] += sum(len(rows) for part in scanned.parts for rows in part.memory) - memory.height
    names = {0: "no phase", 1: "unknown phase"}
    skipped = {names.get(k, chr(k)): int(phases[k]) for k in np.flatnonzero(phases).tolist()}
    python = sum(part.python_frames for part in scanned.parts)
    unreadable = sum(part.bad for part in scanned.parts) - scanned.is_event_cut
    unreadable -= sum(table.untimed.values()) - table.out_of_range
    unreadable += tail_events(scanned.tail)
    more = {"python": python, DAMAGED: unreadable, **table.untimed}
    return {**skipped, **{key: count for key, count in more.items() if count}}
