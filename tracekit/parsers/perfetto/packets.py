"""Scan of a whole Perfetto trace: a block of packets at a time, in one thread."""

from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from tracekit._loops.json_scanner import NULL
from tracekit._loops.packet_scanner import (
    END_COLUMNS,
    NO_TARGET,
    STATE_COLUMNS,
    WIDTH,
    PacketLevel,
    PacketScanner,
    PacketStatus,
)
from tracekit._util.arrays import Ints
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.perfetto.messages import DamagedMessageError, argument_json
from tracekit.parsers.perfetto.vocabulary import PACKET_TARGETS

BLOCK_BYTES = 4 << 20
MAX_PACKET_BYTES = 256 << 20
"""Longer packets are passed over without holding them. All names of a trace are in one packet: they
take a tenth."""
_ROWS_PER_SCAN = 1 << 13
_FIRST_TEXT_COUNT = 1 << 12
_FIRST_TEXT_BYTES = 1 << 20
_EVENT_TYPES = 8


@dataclass(slots=True)
class Packets:
    """Contents of a trace."""

    chunks: list[dict[int, Ints]] = field(default_factory=list)
    """Rows of events, a part at a time: the columns that have a value, by ``EventColumn`` or
    ``PacketColumn``."""
    row_counts: list[int] = field(default_factory=list)
    """Rows of each part."""
    ends: list[Ints] = field(default_factory=list)
    """Slices that end: packet, time, clock, writer and track."""
    state: list[tuple[int, bytes]] = field(default_factory=list)
    """Packets that describe others, with their numbers."""
    texts: list[bytes] = field(default_factory=list)
    """Text by code."""
    is_cut: bool = False
    """The file ends inside a packet."""
    broken_at: int | None = None
    """Byte behind which the file is not made of packets."""
    too_long: int = 0
    """Packets that were passed over because of their length."""
    damaged: int = 0
    """Packets that are not protobuf inside, and values of arguments that are not."""
    unknown: int = 0
    """Packets of kinds that are not read."""
    unnamed_arguments: int = 0
    """Arguments whose names are given as numbers."""
    other_types: Ints = field(default_factory=lambda: np.zeros(_EVENT_TYPES, np.int64))
    """Track events that are neither slices nor instants, by type."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(self.row_counts)

    def column(self, column: int) -> Ints:
        """Return one column of all rows, ``NULL`` where there is no value."""
        values = np.full(self.rows, NULL, np.int64)
        first = 0
        for chunk, count in zip(self.chunks, self.row_counts, strict=True):
            if column in chunk:
                values[first : first + count] = chunk[column]
            first += count
        return values


def scan_packets(stream: Stream) -> Packets:
    """Return the contents of a trace."""
    return _Scan(stream).run()


class _Scan:
    """One scan: the scanner, its arrays and what it has found so far."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rows = np.empty((_ROWS_PER_SCAN, WIDTH), np.int64)
        self._ends = np.empty((_ROWS_PER_SCAN, END_COLUMNS), np.int64)
        self._state = np.empty((_ROWS_PER_SCAN, STATE_COLUMNS), np.int64)
        self._packets = Packets()
        keys = list(
            dict.fromkeys(chain.from_iterable(PACKET_TARGETS[level] for level in PacketLevel))
        )
        targets = []
        for level in PacketLevel:
            targets.append([PACKET_TARGETS[level].get(key, NO_TARGET) for key in keys])
        self._scanner = PacketScanner(
            np.array(targets, np.int32).data,
            self._rows.data,
            self._ends.data,
            self._state.data,
            self._packets.other_types.data,
        )
        self._starts = np.zeros(1, np.int64)
        self._heap = np.empty(0, np.uint8)
        self._is_message = np.empty(0, np.uint8)
        self._resize_dictionary(_FIRST_TEXT_COUNT, _FIRST_TEXT_BYTES)
        for key in keys:
            self._scanner.add_text(memoryview(key.encode()))

    def run(self) -> Packets:
        """Scan all blocks."""
        buffer = bytearray(BLOCK_BYTES)
        end = 0
        passed = 0
        while True:
            filled = self._stream.fill(memoryview(buffer)[end:])
            end += filled
            is_last = end < len(buffer)
            status = self._scan_block(memoryview(buffer), end)
            position = self._scanner.position
            needed = self._scanner.needed
            if status == PacketStatus.BROKEN:
                self._packets.broken_at = passed + position
                break
            if status == PacketStatus.PARTIAL and needed > MAX_PACKET_BYTES:
                self._packets.too_long += 1
                missing = needed - (end - position)
                skipped = self._skip(missing)
                if skipped < missing:
                    self._packets.is_cut = True
                    break
                passed += position + needed
                end = 0
                continue
            if is_last:
                self._packets.is_cut = status == PacketStatus.PARTIAL
                break
            rest = buffer[position:end]
            passed += position
            if needed > len(buffer):
                buffer = bytearray(needed)
            end = len(rest)
            buffer[:end] = rest
        self._finish()
        return self._packets

    def _scan_block(self, buffer: memoryview, end: int) -> PacketStatus:
        """Scan ``buffer[:end]`` as far as whole packets go, moving rows away as the arrays fill."""
        position = 0
        while True:
            status = PacketStatus(self._scanner.scan(buffer, position, end))
            position = self._scanner.position
            self._take_rows(buffer)
            if status == PacketStatus.TEXT_FULL:
                # The next packet's texts fit for certain: they are no longer than what is left of
                # the buffer.
                self._resize_dictionary(2 * len(self._starts), 2 * len(self._heap) + end - position)
            elif status != PacketStatus.ROWS_FULL:
                return status

    def _skip(self, count: int) -> int:
        """Pass over that many bytes of the stream; return how many there were."""
        scratch = memoryview(bytearray(min(count, BLOCK_BYTES)))
        skipped = 0
        while skipped < count:
            filled = self._stream.fill(scratch[: min(len(scratch), count - skipped)])
            if not filled:
                break
            skipped += filled
        return skipped

    def _take_rows(self, buffer: memoryview) -> None:
        """Move the rows of the scanner to the result."""
        scanner = self._scanner
        packets = self._packets
        if scanner.row_count:
            rows = self._rows[: scanner.row_count]
            has_values = (rows != NULL).any(axis=0)
            packets.chunks.append(
                {column: rows[:, column].copy() for column in np.flatnonzero(has_values).tolist()}
            )
            packets.row_counts.append(scanner.row_count)
        if scanner.end_count:
            packets.ends.append(self._ends[: scanner.end_count].copy())
        for number, first, last in self._state[: scanner.state_count].tolist():
            packets.state.append((number, bytes(buffer[first:last])))
        scanner.clear_rows()

    def _finish(self) -> None:
        """Take over the texts and the counts."""
        scanner = self._scanner
        packets = self._packets
        packets.damaged = scanner.bad
        packets.unknown = scanner.unknown
        packets.unnamed_arguments = scanner.unnamed_arguments
        starts = self._starts[: scanner.text_count + 1].tolist()
        heap = self._heap[: starts[-1]].tobytes()
        for code, (start, end) in enumerate(pairwise(starts)):
            text = heap[start:end]
            packets.texts.append(self._render(text) if self._is_message[code] else text)

    def _render(self, message: bytes) -> bytes:
        """Return the value of an argument that is not a text as JSON; damage as an empty text."""
        try:
            return argument_json(message).encode()
        except (DamagedMessageError, UnicodeEncodeError):
            self._packets.damaged += 1
            return b""

    def _resize_dictionary(self, texts: int, text_bytes: int) -> None:
        """Make room in the dictionary for that many texts and bytes."""
        self._starts = np.concatenate(
            [self._starts, np.zeros(texts + 1 - len(self._starts), np.int64)]
        )
        self._heap = np.concatenate([self._heap, np.zeros(text_bytes - len(self._heap), np.uint8)])
        self._is_message = np.concatenate(
            [self._is_message, np.zeros(texts - len(self._is_message), np.uint8)]
        )
        # A power of two, at most half full.
        slots = np.zeros(1 << (2 * texts).bit_length(), np.uint64)
        self._scanner.set_dictionary(
            slots.data, self._starts.data, self._heap.data, self._is_message.data
        )
