"""Scanner of Perfetto traces: protobuf packets to rows of integers.

A trace is a sequence of ``TracePacket`` messages. ``PacketScanner.scan`` walks those in one buffer.
It writes one row for each slice that begins, each instant and each render stage of a GPU, one row
of ``ends`` for each slice that ends, and one row of ``state`` for each packet that says something
about others (names, tracks, clocks): these are few and the caller decodes them. A text is stored
once in a dictionary; rows hold its code.

Perfetto's own Python classes take 13 to 24 µs per event, the reader built on this scanner 2.2 to 5
µs with its table (``benchmarks/pftrace.py``).

Every method reads ``self.buffer`` only between two indexes that ``scan`` checked against the
buffer's length, or that were checked against such indexes. Methods that run once per field
therefore switch Cython's bounds checks off.
"""

from __future__ import annotations

import secrets
from enum import IntEnum

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops.event_columns import EventColumn
from tracekit._loops.json_scanner import NULL

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.tracekit._loops.json_scanner import fold_product


class PacketColumn(IntEnum):
    """Columns of a row behind those of ``json_scanner.EventColumn``."""

    PACKET = len(EventColumn)  # number of its packet, from 0
    TYPE = len(EventColumn) + 1  # ``EventType``
    WRITER = len(EventColumn) + 2  # the sequence of packets to which numbers of names belong
    CLOCK = len(EventColumn) + 3  # of its time; null: the trace's own
    TRACK = len(EventColumn) + 4  # 64 bits, as a signed number
    NAME_ID = len(EventColumn) + 5  # the number of its name
    CATEGORY_ID = len(EventColumn) + 6
    STAGE_ID = len(EventColumn) + 7
    KERNEL_ID = len(EventColumn) + 8
    TRAITS = len(EventColumn) + 9  # a bit for each ``Trait``
    COPY_KIND = len(EventColumn) + 10  # texts from here
    SOURCE_KIND = len(EventColumn) + 11
    TARGET_KIND = len(EventColumn) + 12


class EventType(IntEnum):
    """Types of ``TrackEvent`` that are kept, and render stages."""

    BEGIN = 1
    END = 2
    INSTANT = 3
    STAGE = 16


class Trait(IntEnum):
    """Bits of ``PacketColumn.TRAITS``: arguments that tell what an event is."""

    GRID = 0
    CALLBACK = 1
    MEMORY_KIND = 2
    SYNC_KIND = 3
    PYTHON_ID = 4


class PacketLevel(IntEnum):
    """Sets of known arguments."""

    EVENT = 0
    INSTANT = 1


class PacketStatus(IntEnum):
    """Why a scan stopped."""

    MORE = 0  # at the end of the buffer, between two packets
    PARTIAL = 1  # before a packet that the end of the buffer cuts; ``needed`` bytes hold it
    ROWS_FULL = 2  # before a packet for which there may be no row left
    TEXT_FULL = 3  # before a packet whose texts do not fit into the dictionary
    BROKEN = 4  # before bytes that are not a packet


WIDTH = len(EventColumn) + len(PacketColumn)
FIRST_TRAIT = WIDTH
"""Targets from here on are bits of ``PacketColumn.TRAITS``."""
NO_TARGET = WIDTH + len(Trait)
END_COLUMNS = 5
"""Columns of ``ends``: number of the packet, time, clock, writer, track."""
STATE_COLUMNS = 3
"""Columns of ``state``: number of the packet, and where in the buffer it begins and ends."""

_NULL = cython.declare(cython.longlong, NULL)
_WIDTH = cython.declare(cython.Py_ssize_t, WIDTH)
_FIRST_TEXT = cython.declare(cython.int, EventColumn.NAME.value)
_LAST_TEXT = cython.declare(cython.int, EventColumn.STRIDES.value)
_FIRST_EXTRA_TEXT = cython.declare(cython.int, PacketColumn.COPY_KIND.value)
_FIRST_TRAIT = cython.declare(cython.int, FIRST_TRAIT)
_NO_TARGET = cython.declare(cython.int, NO_TARGET)
_TS = cython.declare(cython.int, EventColumn.TS.value)
_DUR = cython.declare(cython.int, EventColumn.DUR.value)
_DEVICE = cython.declare(cython.int, EventColumn.DEVICE.value)
_NAME = cython.declare(cython.int, EventColumn.NAME.value)
_CAT = cython.declare(cython.int, EventColumn.CAT.value)
_PACKET = cython.declare(cython.int, PacketColumn.PACKET.value)
_TYPE = cython.declare(cython.int, PacketColumn.TYPE.value)
_WRITER = cython.declare(cython.int, PacketColumn.WRITER.value)
_CLOCK = cython.declare(cython.int, PacketColumn.CLOCK.value)
_TRACK = cython.declare(cython.int, PacketColumn.TRACK.value)
_NAME_ID = cython.declare(cython.int, PacketColumn.NAME_ID.value)
_CATEGORY_ID = cython.declare(cython.int, PacketColumn.CATEGORY_ID.value)
_STAGE_ID = cython.declare(cython.int, PacketColumn.STAGE_ID.value)
_KERNEL_ID = cython.declare(cython.int, PacketColumn.KERNEL_ID.value)
_TRAITS = cython.declare(cython.int, PacketColumn.TRAITS.value)
_BEGIN = cython.declare(cython.longlong, EventType.BEGIN.value)
_END = cython.declare(cython.longlong, EventType.END.value)
_INSTANT = cython.declare(cython.longlong, EventType.INSTANT.value)
_STAGE = cython.declare(cython.longlong, EventType.STAGE.value)
_GRID_BIT = cython.declare(cython.longlong, 1 << Trait.GRID.value)
_EVENT_LEVEL = cython.declare(cython.int, PacketLevel.EVENT.value)
_INSTANT_LEVEL = cython.declare(cython.int, PacketLevel.INSTANT.value)
_LARGEST_LENGTH = cython.declare(cython.ulonglong, 2**62)
_MAX_BEFORE_DIGIT = cython.declare(cython.longlong, (2**63 - 1) // 10 - 1)
_64_BITS = cython.declare(cython.ulonglong, 2**64 - 1)
_32_BITS = cython.declare(cython.ulonglong, 2**32 - 1)
_SEED = secrets.randbits(64)
"""Random number of this process, so that no file can be made whose texts all lie in one place of the
hash table; what is read does not depend on it."""
# 2**64 / golden ratio: spreads hashes over the table.
_MIX = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)

# Results of methods that return an index or a status.
_CUT = cython.declare(cython.int, -1)  # the message ends inside a field
_FULL = cython.declare(cython.int, -2)  # the dictionary has no room

# Wire types of protobuf.
_VARINT = cython.declare(cython.int, 0)
_FIXED64 = cython.declare(cython.int, 1)
_BYTES = cython.declare(cython.int, 2)
_FIXED32 = cython.declare(cython.int, 5)

# What an argument's value is.
_ABSENT = cython.declare(cython.int, 0)
_NUMBER = cython.declare(cython.int, 1)
_STRING = cython.declare(cython.int, 2)
_OTHER = cython.declare(cython.int, 3)


class PacketScanner:
    """Scanner with its dictionary of texts, the rows it fills, and counts of what it has seen.

    The arrays belong to the caller, who passes ``memoryview`` objects, and calls ``set_dictionary``
    first.

    Args:
        targets: EventColumn, trait or ``NO_TARGET`` by ``PacketLevel`` and by the code of the argument's
            key.
        rows: Rows of events, ``[rows, WIDTH]``.
        ends: Rows of slices that end, ``[rows, END_COLUMNS]``.
        state: Rows of packets that the caller decodes, ``[rows, STATE_COLUMNS]``.
        types: Number of track events that were not kept, by type; the last counts all higher types.

    """

    def __init__(
        self,
        targets: cython.int[:, ::1],
        rows: cython.longlong[:, ::1],
        ends: cython.longlong[:, ::1],
        state: cython.longlong[:, ::1],
        types: cython.longlong[::1],
    ) -> None:
        self.seed = _SEED
        self.targets = targets
        self.rows = rows
        self.ends = ends
        self.state = state
        self.types = types
        self.text_count = 0
        self.position = 0
        self.needed = 0
        self.packets = 0
        self.bad = 0
        self.unknown = 0
        self.unnamed_arguments = 0
        self.time = 0
        self.clock = 0
        self.writer = 0
        self.tag = 0
        self.value = 0
        self.number = 0
        self.first = 0
        self.clear_rows()

    def clear_rows(self) -> None:
        """Forget the rows, which the caller has copied."""
        self.row_count = 0
        self.end_count = 0
        self.state_count = 0

    def set_dictionary(
        self,
        slots: cython.ulonglong[::1],
        starts: cython.longlong[::1],
        heap: cython.uchar[::1],
        is_message: cython.uchar[::1],
    ) -> None:
        """Use these arrays for the dictionary: a hash table of zeros, and copies of the old texts."""
        code: cython.Py_ssize_t
        self.slots = slots
        self.starts = starts
        self.heap = heap
        self.is_message = is_message
        self.buffer = heap  # _hash reads it
        for code in range(self.text_count):
            self._insert(self._hash(starts[code], starts[code + 1], is_message[code]), code)

    def add_text(self, text: cython.const[cython.uchar][::1]) -> int:
        """Return the code of a text, which is added if it is new.

        -2 if the dictionary has no room for it.
        """
        self.buffer = text
        return int(self._intern(0, text.shape[0], 0))

    def scan(
        self,
        buffer: cython.const[cython.uchar][::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> int:
        """Scan the packets in ``buffer[start:end]`` and return the ``PacketStatus``.

        ``position``: where it stopped.
        """
        i: cython.Py_ssize_t
        tag: cython.ulonglong
        length: cython.ulonglong
        if not 0 <= start <= end <= buffer.shape[0]:
            raise ValueError(f"bytes {start} to {end} are not in a buffer of {buffer.shape[0]}")
        self.buffer = buffer
        self.position = start
        while True:
            i = self.position
            self.needed = 0
            if i >= end:
                return 0  # MORE
            i = self._varint(i, end)
            tag = self.value
            if i < 0:
                return 4 if end - self.position >= 10 else 1  # BROKEN, or PARTIAL
            if tag >> 3 == 0 or tag & 7 > 5 or tag & 7 == 3 or tag & 7 == 4:
                return 4  # BROKEN
            if tag & 7 != 2:
                i = self._skip(i, end, tag & 7)
                if i < 0:
                    return 1  # PARTIAL
                self.position = i
                continue
            i = self._varint(i, end)
            length = self.value
            if i < 0:
                return 4 if end - self.position >= 20 else 1  # BROKEN, or PARTIAL
            if length > cython.cast(cython.ulonglong, end - i):
                length = min(length, _LARGEST_LENGTH)
                self.needed = cython.cast(cython.longlong, length) + (i - self.position)
                return 1  # PARTIAL
            if tag >> 3 == 1:
                if (
                    self.row_count >= self.rows.shape[0]
                    or self.end_count >= self.ends.shape[0]
                    or self.state_count >= self.state.shape[0]
                ):
                    return 2  # ROWS_FULL
                if self._read_packet(i, i + cython.cast(cython.Py_ssize_t, length)) == _FULL:
                    return 3  # TEXT_FULL
                self.packets += 1
            self.position = i + cython.cast(cython.Py_ssize_t, length)

    def _read_packet(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.int:
        """Read the packet in ``buffer[first:last]``.

        Returns 0, or ``_FULL`` before anything was kept of it.
        """
        i: cython.Py_ssize_t = first
        event: cython.Py_ssize_t = -1
        event_end: cython.Py_ssize_t = -1
        stage: cython.Py_ssize_t = -1
        stage_end: cython.Py_ssize_t = -1
        field: cython.ulonglong
        is_state: cython.bint = False
        done: cython.int = 0
        self.time = _NULL
        self.clock = _NULL
        self.writer = 0
        while i < last:
            i = self._field(i, last)
            if i < 0:
                self.bad += 1
                return 0
            field = self.tag >> 3
            if field == 8:  # timestamp
                self.time = self.number
            elif field == 58:  # timestamp_clock_id
                self.clock = self.number
            elif field == 10:  # trusted_packet_sequence_id
                self.writer = self.number
            elif field == 13:  # sequence_flags; 1: names are forgotten
                is_state = is_state or self.number & 1 != 0
            elif field == 11 and self.tag & 7 == 2:  # track_event
                event = self.first
                event_end = i
            elif field == 53 and self.tag & 7 == 2:  # gpu_render_stage_event
                stage = self.first
                stage_end = i
            elif field == 12 or field == 60 or field == 6 or field == 59 or field == 41:
                # interned_data, track_descriptor, clock_snapshot, trace_packet_defaults,
                # incremental_state_cleared
                is_state = True
        if event >= 0:
            done = self._read_track_event(event, event_end)
        elif stage >= 0:
            done = self._read_stage(stage, stage_end)
        elif not is_state:
            self.unknown += 1
        if done == _FULL:
            return _FULL
        if done == _CUT:
            self.bad += 1
        if is_state:
            self.state[self.state_count, 0] = self.packets
            self.state[self.state_count, 1] = first
            self.state[self.state_count, 2] = last
            self.state_count += 1
        return 0

    @cython.boundscheck(False)  # there is a row left, and columns are constants below _WIDTH
    def _read_track_event(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.int:
        """Read a ``TrackEvent`` into the next row; returns 0, ``_CUT`` or ``_FULL``."""
        i: cython.Py_ssize_t = first
        row: cython.Py_ssize_t = self.row_count
        field: cython.ulonglong
        kind: cython.longlong = 0
        code: cython.longlong
        done: cython.int
        self._clear_row()
        while i < last:
            i = self._field(i, last)
            if i < 0:
                return _CUT
            field = self.tag >> 3
            if field == 9:  # type
                kind = self.number
            elif field == 11:  # track_uuid
                self.rows[row, _TRACK] = self.number
            elif field == 10:  # name_iid
                self.rows[row, _NAME_ID] = self.number
            elif field == 3 and self.rows[row, _CATEGORY_ID] == _NULL:
                # category_iids: the first counts.
                if self.tag & 7 == 2:
                    if self._varint(self.first, i) < 0:
                        return _CUT
                    self.number = cython.cast(cython.longlong, self.value)
                self.rows[row, _CATEGORY_ID] = self.number
            elif (field == 23 or field == 22) and self.tag & 7 == 2:  # name, categories
                code = self._intern(self.first, i, 0)
                if code < 0:
                    return _FULL
                if field == 23:
                    self.rows[row, _NAME] = code
                elif self.rows[row, _CAT] == _NULL:
                    self.rows[row, _CAT] = code
        if kind == _END:
            self._keep_end(self.rows[row, _TRACK])
            return 0
        if kind != _BEGIN and kind != _INSTANT:
            self.types[min(max(kind, 0), self.types.shape[0] - 1)] += 1
            return 0
        i = first
        while i < last:
            i = self._field(i, last)
            if self.tag >> 3 == 4 and self.tag & 7 == 2:  # debug_annotations
                done = self._read_argument(
                    self.first, i, _INSTANT_LEVEL if kind == _INSTANT else _EVENT_LEVEL
                )
                if done < 0:
                    return done
        self.rows[row, _TYPE] = kind
        self._keep_row()
        return 0

    @cython.boundscheck(False)  # as in _read_track_event
    def _read_stage(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.int:
        """Read a ``GpuRenderStageEvent`` into the next row; returns 0, ``_CUT`` or ``_FULL``."""
        i: cython.Py_ssize_t = first
        row: cython.Py_ssize_t = self.row_count
        field: cython.ulonglong
        code: cython.longlong
        done: cython.int
        self._clear_row()
        self.rows[row, _DUR] = 0
        while i < last:
            i = self._field(i, last)
            if i < 0:
                return _CUT
            field = self.tag >> 3
            if field == 2:  # duration
                self.rows[row, _DUR] = self.number
            elif field == 11:  # gpu_id
                self.rows[row, _DEVICE] = self.number
            elif field == 14:  # stage_iid
                self.rows[row, _STAGE_ID] = self.number
            elif field == 19:  # kernel_iid
                self.rows[row, _KERNEL_ID] = self.number
            elif field == 20:  # name_iid
                self.rows[row, _NAME_ID] = self.number
            elif field == 21:  # launch
                self.rows[row, _TRAITS] |= _GRID_BIT
            elif field == 17 and self.tag & 7 == 2:  # name
                code = self._intern(self.first, i, 0)
                if code < 0:
                    return _FULL
                self.rows[row, _NAME] = code
            elif field == 6 and self.tag & 7 == 2:  # extra_data
                done = self._read_extra(self.first, i)
                if done < 0:
                    return done
        self.rows[row, _TYPE] = _STAGE
        self._keep_row()
        return 0

    def _read_argument(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, level: cython.int
    ) -> cython.int:
        """Read a ``DebugAnnotation`` into the next row; returns 0, ``_CUT`` or ``_FULL``."""
        i: cython.Py_ssize_t = first
        key: cython.Py_ssize_t = -1
        key_end: cython.Py_ssize_t = -1
        text: cython.Py_ssize_t = -1
        text_end: cython.Py_ssize_t = -1
        field: cython.ulonglong
        value: cython.int = _ABSENT
        number: cython.longlong = _NULL
        while i < last:
            i = self._field(i, last)
            if i < 0:
                return _CUT
            field = self.tag >> 3
            if field == 10 and self.tag & 7 == 2:  # name
                key = self.first
                key_end = i
            elif field == 2 or field == 3 or field == 4 or field == 7:
                # Bool, unsigned, signed, pointer.
                value = _NUMBER
                number = self.number
            elif field == 6 and self.tag & 7 == 2:  # string_value
                value = _STRING
                text = self.first
                text_end = i
            elif field != 1:
                value = _OTHER
        if key < 0:
            self.unnamed_arguments += 1
            return 0
        return self._keep_argument(
            self._target(key, key_end, level), value, number, text, text_end, first, last
        )

    def _read_extra(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.int:
        """Read an ``ExtraData`` into the next row; returns 0, ``_CUT`` or ``_FULL``."""
        i: cython.Py_ssize_t = first
        key: cython.Py_ssize_t = -1
        key_end: cython.Py_ssize_t = -1
        text: cython.Py_ssize_t = -1
        text_end: cython.Py_ssize_t = -1
        while i < last:
            i = self._field(i, last)
            if i < 0:
                return _CUT
            if self.tag == (1 << 3 | 2):  # name
                key = self.first
                key_end = i
            elif self.tag == (2 << 3 | 2):  # value
                text = self.first
                text_end = i
        if key < 0 or text < 0:
            return 0
        return self._keep_argument(
            self._target(key, key_end, _EVENT_LEVEL), _STRING, _NULL, text, text_end, first, last
        )

    @cython.boundscheck(False)  # as in _read_track_event: targets below _FIRST_TRAIT are columns
    def _keep_argument(
        self,
        target: cython.int,
        value: cython.int,
        number: cython.longlong,
        text: cython.Py_ssize_t,
        text_end: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
    ) -> cython.int:
        """Write an argument's value to its column; returns 0 or ``_FULL``.

        A list or another value that is neither a number nor a text is stored as its whole message.
        """
        row: cython.Py_ssize_t = self.row_count
        code: cython.longlong
        if target == _NO_TARGET:
            return 0
        if target >= _FIRST_TRAIT:
            self.rows[row, _TRAITS] |= cython.cast(cython.longlong, 1) << (target - _FIRST_TRAIT)
            return 0
        if _FIRST_TEXT <= target <= _LAST_TEXT or target >= _FIRST_EXTRA_TEXT:
            code = (
                self._intern(text, text_end, 0)
                if value == _STRING
                else self._intern(first, last, 1)
            )
            if code < 0:
                return _FULL
            self.rows[row, target] = code
        elif value == _NUMBER:
            self.rows[row, target] = number
        elif value == _STRING:
            self.rows[row, target] = self._decimal(text, text_end)
        return 0

    @cython.boundscheck(False)  # scan checked that there is a row left
    def _keep_end(self, track: cython.longlong) -> cython.int:
        """Keep the end of a slice."""
        self.ends[self.end_count, 0] = self.packets
        self.ends[self.end_count, 1] = self.time
        self.ends[self.end_count, 2] = self.clock
        self.ends[self.end_count, 3] = self.writer
        self.ends[self.end_count, 4] = track
        self.end_count += 1
        return 0

    @cython.boundscheck(False)  # scan checked that there is a row left
    def _keep_row(self) -> cython.int:
        """Keep the row with what its packet says of it."""
        row: cython.Py_ssize_t = self.row_count
        self.rows[row, _TS] = self.time
        self.rows[row, _PACKET] = self.packets
        self.rows[row, _WRITER] = self.writer
        self.rows[row, _CLOCK] = self.clock
        self.row_count += 1
        return 0

    @cython.boundscheck(False)  # the caller checked that there is a row left
    def _clear_row(self) -> cython.int:
        """Set all columns of the next row to null."""
        column: cython.Py_ssize_t
        for column in range(_WIDTH):
            self.rows[self.row_count, column] = _NULL
        self.rows[self.row_count, _TRAITS] = 0
        return 0

    @cython.boundscheck(False)  # i < last is checked before every read
    def _field(self, i: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Read the field at *i*: ``tag``, and ``number`` or where its bytes begin, ``first``.

        Returns the index behind it, or ``_CUT`` if it does not end before *last*.
        """
        kind: cython.int
        if i < last and self.buffer[i] < 0x80:  # one byte, as most tags are
            self.tag = self.buffer[i]
            i += 1
        else:
            i = self._varint(i, last)
            if i < 0:
                return _CUT
            self.tag = self.value
        kind = cython.cast(cython.int, self.tag & 7)
        self.number = _NULL
        self.first = i
        if kind == _VARINT:
            i = self._varint(i, last)
            self.number = self._signed(self.value)
            return i
        if kind == _BYTES:
            if i < last and self.buffer[i] < 0x80:
                self.value = self.buffer[i]
                i += 1
            else:
                i = self._varint(i, last)
            if i < 0 or self.value > cython.cast(cython.ulonglong, last - i):
                return _CUT
            self.first = i
            return i + cython.cast(cython.Py_ssize_t, self.value)
        return self._skip(i, last, kind)

    def _skip(
        self, i: cython.Py_ssize_t, last: cython.Py_ssize_t, kind: cython.int
    ) -> cython.Py_ssize_t:
        """Return the index behind a number of the wire type *kind* at *i*, or ``_CUT``."""
        if kind == _VARINT:
            return self._varint(i, last)
        if kind == _FIXED64:
            i += 8
        elif kind == _FIXED32:
            i += 4
        else:
            return _CUT
        return i if i <= last else _CUT

    def _signed(self, value: cython.ulonglong) -> cython.longlong:
        """Return 64 bits as a signed number."""
        if cython.compiled:
            return cython.cast(cython.longlong, value)
        return value - 2**64 if value >= 2**63 else value

    @cython.boundscheck(False)  # i < last is checked before every read
    def _varint(self, i: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Read the number at *i* into ``value``; returns the index behind it, or ``_CUT``.

        It has at most ten bytes, each with seven bits of it, the lowest first; of the last byte only
        one bit is left within 64. A longer one is damage, and counts as cut.
        """
        shift: cython.int = 0
        byte: cython.ulonglong
        self.value = 0
        while i < last and shift < 70:
            byte = self.buffer[i]
            i += 1
            self.value = (self.value | (byte & 0x7F) << shift) & _64_BITS
            if byte < 0x80:
                return i
            shift += 7
        return _CUT

    @cython.boundscheck(False)  # first <= i < last
    def _decimal(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.longlong:
        """Return the whole number that ``buffer[first:last]`` spells, null if it spells none that fits."""
        i: cython.Py_ssize_t = first
        value: cython.longlong = 0
        is_negative: cython.bint = first < last and self.buffer[first] == ord("-")
        if is_negative:
            i += 1
        if i >= last:
            return _NULL
        while i < last:
            if not ord("0") <= self.buffer[i] <= ord("9") or value > _MAX_BEFORE_DIGIT:
                return _NULL
            value = value * 10 + (self.buffer[i] - ord("0"))
            i += 1
        return -value if is_negative else value

    @cython.boundscheck(False)  # codes below targets.shape[1] are columns of it
    def _target(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, level: cython.int
    ) -> cython.int:
        """Return what the argument with the key ``buffer[first:last]`` is used for."""
        code: cython.Py_ssize_t = self._lookup(first, last, 0, self._hash(first, last, 0))
        return self.targets[level, code] if 0 <= code < self.targets.shape[1] else _NO_TARGET

    def _intern(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, is_message: cython.uchar
    ) -> cython.Py_ssize_t:
        """Return the code of ``buffer[first:last]``, which is added if it is new.

        ``_FULL`` if there is no room.
        """
        hashed: cython.ulonglong = self._hash(first, last, is_message)
        code: cython.Py_ssize_t = self._lookup(first, last, is_message, hashed)
        begin: cython.Py_ssize_t
        k: cython.Py_ssize_t
        if code >= 0:
            return code
        code = self.text_count
        if (
            code + 1 >= self.starts.shape[0]
            or self.starts[code] + last - first > self.heap.shape[0]
        ):
            return _FULL
        begin = self.starts[code]
        for k in range(last - first):
            self.heap[begin + k] = self.buffer[first + k]
        self.starts[code + 1] = begin + last - first
        self.is_message[code] = is_message
        self.text_count += 1
        self._insert(hashed, code)
        return code

    @cython.boundscheck(False)  # the mask keeps every slot inside the table
    def _lookup(
        self,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        is_message: cython.uchar,
        hashed: cython.ulonglong,
    ) -> cython.Py_ssize_t:
        """Return the code of ``buffer[first:last]``, or -1 if the dictionary does not have it."""
        mask: cython.ulonglong = self.slots.shape[0] - 1
        slot: cython.ulonglong = (hashed >> 32) & mask
        entry: cython.ulonglong = self.slots[slot]
        code: cython.Py_ssize_t
        while entry != 0:
            code = cython.cast(cython.Py_ssize_t, entry & _32_BITS) - 1
            if (
                entry >> 32 == hashed >> 32
                and self.is_message[code] == is_message
                and self._equals(first, last, code)
            ):
                return code
            slot = (slot + 1) & mask
            entry = self.slots[slot]
        return -1

    def _insert(self, hashed: cython.ulonglong, code: cython.Py_ssize_t) -> cython.int:
        """Add a code to the hash table."""
        mask: cython.ulonglong = self.slots.shape[0] - 1
        slot: cython.ulonglong = (hashed >> 32) & mask
        while self.slots[slot] != 0:
            slot = (slot + 1) & mask
        self.slots[slot] = (hashed >> 32 << 32) | (code + 1)
        return 0

    @cython.boundscheck(False)  # both texts lie inside their arrays
    def _equals(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, code: cython.Py_ssize_t
    ) -> cython.bint:
        """Return whether ``buffer[first:last]`` is the text of *code*."""
        begin: cython.Py_ssize_t = self.starts[code]
        length: cython.Py_ssize_t = last - first
        if self.starts[code + 1] - begin != length:
            return False
        if cython.compiled:
            return (
                length == 0
                or memcmp(
                    cython.address(self.buffer[first]), cython.address(self.heap[begin]), length
                )
                == 0
            )
        return bytes(self.buffer[first:last]) == bytes(self.heap[begin : begin + length])

    @cython.boundscheck(False)  # eight bytes follow i
    def _word(self, i: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the eight bytes from *i*, which must be there, as a number."""
        word: cython.ulonglong = 0
        if cython.compiled:
            memcpy(cython.address(word), cython.address(self.buffer[i]), 8)
        else:
            word = int.from_bytes(self.buffer[i : i + 8], "little")
        return word

    @cython.boundscheck(False)  # first <= i < last
    def _hash(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, is_message: cython.uchar
    ) -> cython.ulonglong:
        """Return the hash of ``buffer[first:last]``."""
        hashed: cython.ulonglong = self._mix(self.seed ^ ((last - first) * 2 + is_message))
        word: cython.ulonglong = 0
        i: cython.Py_ssize_t = first
        while last - i > 8:
            hashed = self._mix(hashed ^ self._word(i))
            i += 8
        if last - first >= 8:
            word = self._word(last - 8)  # some bytes may be hashed twice
        else:
            while i < last:
                word = (word << 8) | self.buffer[i]
                i += 1
        return self._mix(hashed ^ word)

    def _mix(self, a: cython.ulonglong) -> cython.ulonglong:
        """Return both halves of a product of 128 bits, xored: every bit of it depends on every bit of *a*.

        *a* depends on the seed: nobody who does not know it can choose texts with the same hash.
        """
        product: cython.ulonglong
        if cython.compiled:
            product = fold_product(a, _MIX)
        else:
            full = a * _MIX
            product = (full ^ (full >> 64)) & _64_BITS
        return product
