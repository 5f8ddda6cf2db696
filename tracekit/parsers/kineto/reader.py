"""Reader of one PyTorch profiler file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._loops import warn_if_uncompiled
from tracekit._util.text import counted, listing, verb
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.parsers.clock_jumps import undo_clock_jumps
from tracekit.parsers.kineto.blocks import (
    OtherLayoutError,
    Scanned,
    find_separator,
    scan_in_order,
    scan_parallel,
)
from tracekit.parsers.kineto.header import TAIL_LIMIT, find_events, parse_header, parse_tail
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.kineto.table import EventTable, TableBuilder, build_memory
from tracekit.parsers.long_names import long_name_notice
from tracekit.parsers.source_refs import rank_in_name
from tracekit.parsers.steps import assign_steps, renumbering_notices
from tracekit.schema import DAMAGED, EVENTS, GPU_KINDS, ON_OTHER_GPUS, UNTIMED, RankEvents, Source

# September 2001: no PyTorch trace is older, so a smaller time counts from some other start.
_MIN_TIME_SINCE_1970_NS = 10**18
_DAMAGE_CODES = ("truncated", "bad-events", "bad-text")


def read(
    source: str | Path | BinaryIO,
    *,
    rank: int | None = None,
    stacks: bool = False,
    lenient: bool = True,
) -> RankEvents:
    """Read a PyTorch profiler trace (``.json``, ``.json.gz``, or an open binary file) into one rank's events.

    Complete events become rows; the rest is counted in ``source.skipped``. Python frames are read
    only with *stacks*. *rank* counts when neither the content nor the name of the file gives one.
    Damage inside events is stepped over and counted in ``source.notices``; with ``lenient=False``
    it is an error.

    >>> import io
    >>> text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": 2}]}'
    >>> events = read(io.BytesIO(text), rank=3).events
    >>> events["rank"][0], events["name"][0], events["start_ns"][0], events["end_ns"][0]
    (3, 'aten::mm', 1500, 3500)
    """
    warn_if_uncompiled()
    with Stream(source) as stream:
        file = scan_file(stream, stacks=stacks, lenient=lenient)
    refuse_several_processes(file.name, file.events)
    number, rank_from = _rank(file.own_rank, file.name, rank)
    return rank_of_file(file, file.events, file.memory, number=number, rank_from=rank_from)


@dataclass(frozen=True, eq=False)
class ScannedFile:
    """What a file holds, of all of its processes."""

    name: str
    events: pl.DataFrame
    """Columns: ``EVENTS``; the rank is 0, and steps are not assigned."""
    memory: pl.DataFrame
    """Columns: ``MEMORY``; the rank is 0."""
    own_rank: int | None
    """The rank that the header says."""
    header: Source
    """What the header says, and notices about the file, without rank and what its events tell."""


def scan_file(stream: Stream, *, stacks: bool, lenient: bool) -> ScannedFile:
    """Return the events of a file; with ``lenient=False``, damage is an error."""
    scanned, keys = scan_stream(stream, stacks=stacks)
    keys_behind, unread = parse_tail(scanned.tail)
    own_rank, base_ns, header = parse_header({**keys, **keys_behind})
    table = TableBuilder(scanned.parts, (worker.finish() for worker in scanned.workers)).build(
        rank=0, base_ns=base_ns
    )
    memory = build_memory(scanned.parts, rank=0, base_ns=base_ns)
    notices = _notices(stream, scanned, table, unread=unread, base_ns=base_ns)
    damage = [notice for notice in notices if notice.code in _DAMAGE_CODES]
    if damage and not lenient:
        hint = "re-record this rank, or read leniently to use what is there"
        raise InputError("is damaged", path=stream.name, hint=hint, notice=damage[0])
    source = replace(
        header,
        path=stream.name,
        clock_base_ns=base_ns,
        skipped=_skipped(scanned, table, memory, unread),
        notices=(*notices, *header.notices),
    )
    return ScannedFile(stream.name, table.events, memory, own_rank, source)


def rank_of_file(
    file: ScannedFile, events: pl.DataFrame, memory: pl.DataFrame, *, number: int, rank_from: str
) -> RankEvents:
    """Return a rank: all events of its file, or those of its processes."""
    events, elsewhere = keep_one_gpu(file.name, events)
    if number:
        rank = pl.lit(number, EVENTS["rank"])
        events = events.with_columns(rank=rank)
        memory = memory.with_columns(rank=rank)
    events, memory, jumps = undo_clock_jumps(events, memory)
    events = assign_steps(events)
    source = replace(
        file.header,
        rank=number,
        rank_from=rank_from,
        record_shapes=_record_shapes(file.header.record_shapes, events),
        skipped={**file.header.skipped, **elsewhere},
        counts=count_kinds(events),
        pid=process_id(events),
        notices=(*file.header.notices, *jumps, *renumbering_notices(events)),
    )
    return RankEvents(events, source, memory)


def count_kinds(events: pl.DataFrame) -> dict[str, int]:
    """Return the number of events of each kind, the most frequent first."""
    counts = {}
    for kind, count in events["kind"].value_counts(sort=True).iter_rows():
        counts[str(kind)] = count
    return counts


def process_id(events: pl.DataFrame) -> int | None:
    """Return the process that called the runtime; None if none or several did."""
    calls = events["pid"].filter(events["kind"].is_in(["cpu_op", "runtime"])).drop_nulls().unique()
    return calls.item() if len(calls) == 1 else None


def scan_stream(stream: Stream, *, stacks: bool) -> tuple[Scanned, dict[str, Any]]:
    """Scan the events; also returns the keys before them."""
    head, start, keys = find_events(stream)
    separator = find_separator(head, start)
    scanned = None
    if separator is not None:
        try:
            scanned = scan_parallel(stream, head, start, separator, stacks=stacks)
        except OtherLayoutError:
            stream.restart()
            head = stream.read(len(head))
    if scanned is None:
        scanned = scan_in_order(stream, head, start, stacks=stacks)
    total = sum(part.events for part in scanned.parts)
    without_time = sum(part.bad + int(part.phases[0]) for part in scanned.parts)
    is_bare_list = head[:start].lstrip(b"\xef\xbb\xbf \t\r\n") == b"["
    if is_bare_list and not total:
        raise InputError(
            "the list of events is empty", path=stream.name, hint="re-record this rank"
        )
    if total and total == without_time:
        hint = "give the .json or .json.gz the profiler wrote"
        raise InputError(
            "not a PyTorch profiler trace: no event has a time", path=stream.name, hint=hint
        )
    return scanned, keys


def refuse_several_processes(name: str, events: pl.DataFrame) -> None:
    """Raise an error if processes that each launch kernels were merged into one file: they are not one rank."""
    # GPU events show their GPU as process; where a merger told ranks apart by it, devices repeat.
    kernels = events.filter(pl.col("kind") == "kernel")
    devices = _distinct(kernels["device"])
    calls = events.filter(pl.col("kind").is_in(["runtime", "driver"]))
    processes = _distinct(calls["pid"])
    is_launch = pl.col("correlation").is_in(kernels["correlation"].drop_nulls().implode())
    launching = _distinct(calls.filter(is_launch)["pid"])
    has_several_gpus = max(len(devices), len(_distinct(kernels["pid"]))) > 1
    if not (has_several_gpus and len(processes) > 1) and len(launching) < 2:
        return
    shown = f"GPUs {listing(map(str, devices))}, processes {listing(map(str, processes))}"
    hint = "give the file that each rank's profiler wrote"
    raise InputError(
        f"holds several processes with a GPU each ({shown}), which are not one rank",
        path=name,
        hint=hint,
    )


MIN_SHARE_OF_A_GPU = 0.01
"""Share of a process's kernel time from which a further GPU is one that it computes on. A few kernels on
another, as by a tensor that was made there, are no second GPU."""


def keep_one_gpu(name: str, events: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the events without those of GPUs on which the process does not compute, and their number by reason.

    Raises:
        InputError: The process computes on several GPUs.
    """
    kernels = events.filter(pl.col("kind") == "kernel").drop_nulls("device")
    # As floats: sums of damaged times may exceed 64 bits.
    time_ns = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64).sum()
    by_gpu = kernels.group_by("device").agg(kernels=pl.len(), time_ns=time_ns).sort("device")
    if len(by_gpu) < 2:
        return events, {}
    share = pl.col("time_ns") / pl.max_horizontal(pl.col("time_ns").sum(), 1.0)
    computing = by_gpu.filter(share >= MIN_SHARE_OF_A_GPU)
    if len(computing) != 1:
        counts = by_gpu.select("device", "kernels").rows()
        shown = listing(f"GPU {device}: {counted(count, 'kernel')}" for device, count in counts)
        hint = "record with one GPU per process (`torchrun`, DistributedDataParallel), or with all on one GPU"
        raise InputError(
            f"one process computes on {len(by_gpu)} GPUs ({shown}), and a rank has one",
            path=name,
            hint=hint,
        )
    is_elsewhere = pl.col("kind").is_in(GPU_KINDS) & (pl.col("device") != computing["device"][0])
    elsewhere = events.filter(is_elsewhere)
    # Their launches stay as calls that took time, but launch nothing that is missing.
    launches_elsewhere = pl.col("kind").is_in(["runtime", "driver"]) & pl.col("correlation").is_in(
        elsewhere["correlation"].drop_nulls().implode()
    )
    kept = events.filter(~is_elsewhere.fill_null(False)).with_columns(
        correlation=pl.when(~launches_elsewhere.fill_null(False)).then("correlation")
    )
    return kept, {ON_OTHER_GPUS: len(elsewhere)}


def _distinct(numbers: pl.Series) -> list[int]:
    return numbers.drop_nulls().unique().sort().to_list()


def _rank(own: int | None, name: str, option: int | None) -> tuple[int, str]:
    """Return the rank and where it comes from: the content, the file's name or the caller."""
    if own is not None:
        return own, "content"
    if (rank := rank_in_name(name.rpartition("/")[2])) is not None:
        return rank, "name"
    return (0, "only file") if option is None else (option, "option")


def _notices(
    stream: Stream, scanned: Scanned, table: EventTable, *, unread: int, base_ns: int
) -> list[Notice]:
    """Return what was damaged or left out; *unread* events lie behind the list of events."""
    notices = []
    events = table.events
    bad = sum(part.bad for part in scanned.parts) + table.out_of_range
    bad_values = sum(part.bad_values for part in scanned.parts)
    if stream.cut_short or not scanned.is_closed:
        if scanned.is_event_cut:
            bad -= 1
        case = "list"
        damage = "the file ends before its list of events does"
        if scanned.is_closed:
            case = "gzip"
            damage = "the gzip data is damaged"
        cut_event = "1 event was cut in two: " if scanned.is_event_cut else ""
        values: NoticeValues = {"case": case, "cut_event": scanned.is_event_cut}
        notices.append(Notice("truncated", f"{cut_event}{damage}", values=values))
        has_no_epoch = (
            events.height and not base_ns and events["start_ns"][0] < _MIN_TIME_SINCE_1970_NS
        )
        if has_no_epoch:
            notices.append(
                Notice(
                    "no-base-time",
                    ("the start of the clock was lost with the end of the file"),
                    values={"case": "lost"},
                )
            )
    if bad:
        # GPU events without a time; others have keys of their own.
        gpu_events = table.untimed.get(UNTIMED, 0)
        of_gpu = f", of which {gpu_events} ran on the GPU" if gpu_events else ""
        message = f"{counted(bad, 'damaged event')} {verb(bad, 'was', 'were')} lost{of_gpu}"
        values = {"case": "lost", "count": bad, "gpu_events": gpu_events}
        notices.append(Notice("bad-events", message, values=values))
    if unread:
        notices.append(
            Notice(
                "bad-events",
                (f"{counted(unread, 'event')} behind the end of the list of events: not read"),
                values={"case": "behind", "count": unread},
            )
        )
    if bad_values:
        message = (
            f"{counted(bad_values, 'value')} left out that no JSON can hold (such as inf or N/A)"
        )
        notices.append(
            Notice("bad-events", message, values={"case": "values", "count": bad_values})
        )
    if table.bad_texts:
        notices.append(
            Notice(
                "bad-text",
                (f"{counted(table.bad_texts, 'name')} repaired after invalid bytes or escapes"),
                values={"case": "invalid", "count": table.bad_texts},
                severity="note",
            )
        )
    if table.long_names:
        notices.append(long_name_notice(table.long_names))
    if len(scanned.tail) >= TAIL_LIMIT:
        notices.append(
            Notice(
                "bad-events",
                ("the keys after the events were too long to read"),
                values={"case": "keys"},
            )
        )
    if not events.height:
        notices.append(Notice("no-events", "the file holds no complete event"))
    return notices


def _record_shapes(header_value: bool | None, events: pl.DataFrame) -> bool | None:
    """Return whether shapes were recorded; None if neither the header nor the events tell."""
    if header_value is not None:
        return header_value
    if events["shapes"].null_count() < events.height:
        return True
    return False if (events["kind"] == "cpu_op").any() else None


def _skipped(
    scanned: Scanned, table: EventTable, memory: pl.DataFrame, unread: int
) -> Mapping[str, int]:
    """Count the events that are not in the table, by what they are, without one cut by the end of the file."""
    phases = np.sum([part.phases for part in scanned.parts], axis=0)
    memory_events = 0
    python_frames = 0
    unreadable = unread - scanned.is_event_cut
    for part in scanned.parts:
        memory_events += sum(len(rows) for rows in part.memory)
        python_frames += part.python_frames
        unreadable += part.bad
    phases[ord("i")] += memory_events - memory.height
    unreadable -= sum(table.untimed.values()) - table.out_of_range
    names = {0: "no phase", 1: "unknown phase"}
    skipped = {}
    for phase in np.flatnonzero(phases).tolist():
        skipped[names.get(phase, chr(phase))] = int(phases[phase])
    others = {"python": python_frames, DAMAGED: unreadable, **table.untimed}
    for name, count in others.items():
        if count:
            skipped[name] = count
    return skipped
