"""Reader of one Perfetto trace of PyTorch's profiler."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import polars as pl

from tracekit._loops import warn_if_uncompiled
from tracekit._util.text import counted, verb
from tracekit.errors import InputError, Notice, NoticeValue
from tracekit.parsers.kineto.inputs import is_asked
from tracekit.parsers.kineto.reader import (
    count_kinds,
    keep_one_gpu,
    process_id,
    refuse_several_processes,
)
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.kineto.table import EventTable, TableBuilder, build_memory
from tracekit.parsers.long_names import long_name_notice
from tracekit.parsers.perfetto.packets import MAX_PACKET_BYTES, Packets, scan_packets
from tracekit.parsers.perfetto.state import TraceState, decode_state
from tracekit.parsers.perfetto.table import UNKNOWN_NAME_KEY, ResolvedRows, RowResolver, decode_text
from tracekit.parsers.source_refs import rank_in_name
from tracekit.parsers.steps import assign_steps
from tracekit.schema import DAMAGED, UNTIMED, RankEvents, Source

UNKNOWN_PACKETS = "packets of other kinds"
UNKNOWN_TYPES = "track events of other types"
_PERFETTO_DAMAGE_CODES = ("truncated", "bad-events", "bad-text", "unnamed")


def read(
    source: str | Path | BinaryIO,
    *,
    rank: int | None = None,
    stacks: bool = False,
    lenient: bool = True,
) -> RankEvents:
    """Read a Perfetto trace (``.pftrace``, plain or gzip, or an open binary file) into one rank's events.

    Slices and the render stages of a GPU become rows; the rest is counted in ``source.skipped``.
    Python frames are read only with *stacks*. The file says neither its rank nor the size of its
    run: *rank* counts when its name gives no rank. Damage is stepped over and counted in
    ``source.notices``; with ``lenient=False`` it is an error.

    >>> import io
    >>> begin = bytes([10, 16, 64, 2, 90, 12, 72, 1, 88, 7, 186, 1, 5]) + b"step1"
    >>> end = bytes([10, 8, 64, 9, 90, 4, 72, 2, 88, 7])
    >>> events = read(io.BytesIO(begin + end), rank=3).events
    >>> events["rank"][0], events["name"][0], events["start_ns"][0], events["end_ns"][0]
    (3, 'step1', 2, 9)
    """
    warn_if_uncompiled()
    with Stream(source) as stream:
        packets = scan_packets(stream)
        _refuse_other_files(stream.name, packets)
        state = decode_state(packets.state)
        rows = RowResolver(packets, state).resolve(stacks=stacks)
        number, rank_from = _rank(stream.name, rank)
        base_ns = state.real_time_offset()
        table = TableBuilder([rows.part], [rows.texts], decode=decode_text).build(
            rank=number, base_ns=base_ns
        )
        refuse_several_processes(stream.name, table.events)
        memory = build_memory([rows.part], rank=number, base_ns=base_ns)
        one_gpu, elsewhere = keep_one_gpu(stream.name, table.events)
        events = assign_steps(_drop_unasked_inputs(one_gpu))
        notices = _notices(stream, packets, state, rows, table)
        damage = [notice for notice in notices if notice.code in _PERFETTO_DAMAGE_CODES]
        if damage and not lenient:
            hint = "re-record this rank, or read leniently to use what is there"
            raise InputError("is damaged", path=stream.name, hint=hint, notice=damage[0])
        rank_source = Source(
            path=stream.name,
            reader="perfetto",
            rank=number,
            rank_from=rank_from,
            record_shapes=_record_shapes(events),
            counts=count_kinds(events),
            pid=process_id(events),
            clock_base_ns=base_ns,
            skipped={**_skipped(packets, state, rows, table), **elsewhere},
            notices=tuple(notices),
        )
        return RankEvents(events, rank_source, memory)


def _refuse_other_files(name: str, packets: Packets) -> None:
    """Raise an error if the file is not a Perfetto trace, or holds no event that is read."""
    if not packets.rows and not packets.state and not packets.unknown:
        hint = "give the .pftrace that the profiler wrote"
        raise InputError("not a Perfetto trace", path=name, hint=hint)


def _rank(name: str, option: int | None) -> tuple[int, str]:
    """Return the rank and where it comes from: the file's name or the caller."""
    if (rank := rank_in_name(name.rpartition("/")[2])) is not None:
        return rank, "name"
    return (0, "only file") if option is None else (option, "option")


def _drop_unasked_inputs(events: pl.DataFrame) -> pl.DataFrame:
    """Return events without the concrete inputs and strides of operators that nobody asks about."""
    names = events.filter(pl.col("concrete").is_not_null() | pl.col("strides").is_not_null())
    asked = [name for name in names["name"].unique().drop_nulls().to_list() if is_asked(name)]
    is_kept = pl.col("name").cast(pl.String).is_in(asked)
    return events.with_columns(pl.when(is_kept).then(pl.col("concrete", "strides")))


def _record_shapes(events: pl.DataFrame) -> bool | None:
    """Return whether shapes were recorded; None if the events do not tell."""
    if events["shapes"].null_count() < events.height:
        return True
    return False if (events["kind"] == "cpu_op").any() else None


def _notices(
    stream: Stream, packets: Packets, state: TraceState, rows: ResolvedRows, table: EventTable
) -> list[Notice]:
    """Return what was damaged or left out."""
    notices = []
    values: dict[str, NoticeValue]
    if packets.broken_at is not None:
        notices.append(
            Notice(
                "truncated",
                (f"the file is damaged behind byte {packets.broken_at:,}: the rest was not read"),
                values={"case": "bytes", "position": packets.broken_at},
            )
        )
    elif stream.cut_short:
        values = {"case": "gzip", "cut_event": False}
        notices.append(Notice("truncated", "the gzip data is damaged", values=values))
    elif packets.is_cut:
        notices.append(
            Notice("truncated", ("the file ends inside a packet"), values={"case": "packet"})
        )
    if packets.too_long:
        values = {"case": "long", "count": packets.too_long, "limit_mb": MAX_PACKET_BYTES >> 20}
        notices.append(
            Notice(
                "bad-events",
                (
                    f"{counted(packets.too_long, 'packet')} of more than "
                    f"{MAX_PACKET_BYTES >> 20} MB: not read"
                ),
                values=values,
            )
        )
    if damaged := packets.damaged + state.damaged + sum(table.untimed.values()):
        gpu_events = table.untimed.get(UNTIMED, 0)
        of_gpu = f", of which {gpu_events} ran on the GPU" if gpu_events else ""
        message = (
            f"{counted(damaged, 'damaged packet')} {verb(damaged, 'was', 'were')} lost{of_gpu}"
        )
        values = {"case": "packets", "count": damaged, "gpu_events": gpu_events}
        notices.append(Notice("bad-events", message, values=values))
    if nameless := rows.skipped.get(UNKNOWN_NAME_KEY):
        notices.append(
            Notice(
                "unnamed",
                (
                    f"{counted(nameless, 'event')} without a name: the file does "
                    "not say what its number stands for"
                ),
                values={"case": "events", "count": nameless},
            )
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
    if packets.unnamed_arguments:
        notices.append(
            Notice(
                "unnamed",
                (
                    f"{counted(packets.unnamed_arguments, 'argument')} left out "
                    "whose names are given as numbers"
                ),
                values={"case": "arguments", "count": packets.unnamed_arguments},
            )
        )
    if not table.events.height:
        notices.append(Notice("no-events", "the file holds no complete event"))
    return notices


def _skipped(
    packets: Packets, state: TraceState, rows: ResolvedRows, table: EventTable
) -> Mapping[str, int]:
    """Count what the file held and the table does not, by what it is."""
    counts = {
        **rows.skipped,
        "python": rows.python_frames,
        UNKNOWN_PACKETS: packets.unknown,
        UNKNOWN_TYPES: int(packets.other_types.sum()),
        DAMAGED: packets.damaged + state.damaged + packets.too_long,
        **table.untimed,
    }
    counts.pop(UNKNOWN_NAME_KEY, None)  # these are in the table
    return {key: count for key, count in counts.items() if count}
