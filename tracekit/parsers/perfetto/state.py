"""Names, tracks and clocks of a Perfetto trace, from the packets that describe others."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from tracekit._util.values import seeded_key
from tracekit.parsers.perfetto.messages import (
    DamagedMessageError,
    Value,
    fields,
    numbers_and_texts,
    signed,
)
from tracekit.schema import LATEST_NS

BOOT_CLOCK = 6
"""Clock of times in packets that name none."""
REAL_CLOCK = 1
"""Clock that counts from 1970."""


class Names(IntEnum):
    """Tables of numbered names: their fields in ``InternedData``."""

    CATEGORY = 1
    EVENT = 2
    STAGE = 24
    KERNEL = 1000


@dataclass(frozen=True, slots=True)
class NumberedName:
    """A name and the number that stands for it in the packets of one writer from *packet* on."""

    table: Names
    writer: int
    period: int
    """How often the writer's names had been forgotten before."""
    packet: int
    number: int
    name: bytes


@dataclass(frozen=True, slots=True)
class Track:
    """Where slices are drawn: a process, a thread, or a line below one of them."""

    parent: int | None = None
    pid: int | None = None
    tid: int | None = None
    name: str = ""


_NO_TRACK = Track()


@dataclass(slots=True)
class TraceState:
    """Everything that packets say about other packets.

    Writers, tracks and clocks are the ``seeded_key`` of their numbers as the scanner has them: 64
    bits, signed.
    """

    names: list[NumberedName] = field(default_factory=list)
    forgotten: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By writer: packets at which its names are forgotten."""
    tracks: dict[str, Track] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    """Times that clocks showed at one moment."""
    default_clock: dict[str, int] = field(default_factory=dict)
    """By writer."""
    default_track: dict[str, int] = field(default_factory=dict)
    """By writer."""
    damaged: int = 0
    """Packets that are not protobuf inside."""
    threads_by_number: dict[str, Track] = field(default_factory=dict)
    """Results of ``find_thread``, which is asked when all packets are read."""

    def real_time_offset(self) -> int:
        """Return what to add to the trace's times for nanoseconds since 1970.

        0 where the trace does not say.
        """
        real_ns = self.clocks.get(seeded_key(REAL_CLOCK))
        boot_ns = self.clocks.get(seeded_key(BOOT_CLOCK))
        return 0 if real_ns is None or boot_ns is None else real_ns - boot_ns

    def clock_offset(self, clock: int) -> int | None:
        """Return what to add to times of *clock* for the trace's own.

        None if the trace does not relate them.
        """
        if clock == BOOT_CLOCK:
            return 0
        time_ns = self.clocks.get(seeded_key(clock))
        boot_ns = self.clocks.get(seeded_key(BOOT_CLOCK))
        return None if time_ns is None or boot_ns is None else boot_ns - time_ns

    def find_thread(self, number: int) -> Track:
        """Return the process and thread of a track, which may be those of a track above it."""
        chain = []
        seen: set[str] = set()
        key: str | None = seeded_key(number)
        while key in self.tracks and key not in self.threads_by_number:
            if key in seen:
                break
            seen.add(key)
            chain.append(key)
            parent = self.tracks[key].parent
            key = None if parent is None else seeded_key(parent)
        # From the top down, so that each track is looked at once, however many lie below it.
        above = _NO_TRACK if key is None else self.threads_by_number.get(key, _NO_TRACK)
        for track_key in reversed(chain):
            track = self.tracks[track_key]
            above = Track(
                None,
                above.pid if track.pid is None else track.pid,
                above.tid if track.tid is None else track.tid,
                above.name or track.name,
            )
            self.threads_by_number[track_key] = above
        return above


def decode_state(packets: Iterable[tuple[int, bytes]]) -> TraceState:
    """Return what *packets* say, each given with its number."""
    state = TraceState()
    for number, packet in packets:
        try:
            _decode_packet(state, number, packet)
        except DamagedMessageError:
            state.damaged += 1
    return state


def _decode_packet(state: TraceState, packet_number: int, packet: bytes) -> None:
    parts: dict[int, Value] = numbers_and_texts(packet)
    writer = signed(_integer(parts.get(10)) or 0)  # as the scanner has it
    flags = _integer(parts.get(13)) or 0
    if flags & 1 or parts.get(41):
        state.forgotten[seeded_key(writer)].append(packet_number)
    if isinstance(interned := parts.get(12), bytes):
        _decode_names(state, writer, packet_number, interned)
    if isinstance(descriptor := parts.get(60), bytes):
        _decode_track(state, descriptor)
    if isinstance(snapshot := parts.get(6), bytes) and not state.clocks:
        _decode_clocks(state, snapshot)
    if isinstance(defaults := parts.get(59), bytes):
        _decode_defaults(state, writer, defaults)


def _decode_names(state: TraceState, writer: int, packet: int, interned: bytes) -> None:
    period = len(state.forgotten[seeded_key(writer)])
    tables = {table.value: table for table in Names}
    for number, _, entry in fields(interned):
        if number not in tables or not isinstance(entry, bytes):
            continue
        values = numbers_and_texts(entry)
        iid = _integer(values.get(1))
        # A kernel has a mangled name (2), a readable one (3), or both.
        name = values.get(3, values.get(2)) if number == Names.KERNEL else values.get(2)
        if iid is not None and isinstance(name, bytes):
            state.names.append(
                NumberedName(tables[number], writer, period, packet, signed(iid), name)
            )


def _decode_track(state: TraceState, descriptor: bytes) -> None:
    values = numbers_and_texts(descriptor)
    uuid = _integer(values.get(1)) or 0
    parent = _integer(values.get(5))
    pid = tid = None
    name = _text(values.get(2)) or _text(values.get(10))
    if isinstance(process := values.get(3), bytes):
        process_values = numbers_and_texts(process)
        pid = _integer(process_values.get(1))
        name = name or _text(process_values.get(6))
    if isinstance(thread := values.get(4), bytes):
        thread_values = numbers_and_texts(thread)
        pid = _integer(thread_values.get(1))
        tid = _integer(thread_values.get(2))
        name = name or _text(thread_values.get(5))
    state.tracks[seeded_key(signed(uuid))] = Track(
        parent=None if parent is None else signed(parent),
        pid=None if pid is None else signed(pid),
        tid=None if tid is None else signed(tid),
        name=name,
    )


def _decode_clocks(state: TraceState, snapshot: bytes) -> None:
    for number, _, clock in fields(snapshot):
        if number == 1 and isinstance(clock, bytes):
            values = numbers_and_texts(clock)
            clock_id = _integer(values.get(1))
            time = _integer(values.get(2))
            # Not incremental, and in nanoseconds.
            is_plain = not values.get(3) and values.get(4, 1) == 1
            if clock_id is not None and time is not None and time < LATEST_NS and is_plain:
                state.clocks[seeded_key(signed(clock_id))] = time


def _decode_defaults(state: TraceState, writer: int, defaults: bytes) -> None:
    values = numbers_and_texts(defaults)
    if (clock := _integer(values.get(58))) is not None:
        state.default_clock[seeded_key(writer)] = signed(clock)
    if isinstance(event := values.get(11), bytes):
        track = _integer(numbers_and_texts(event).get(11))
        if track is not None:
            state.default_track[seeded_key(writer)] = signed(track)


def _integer(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Value | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
