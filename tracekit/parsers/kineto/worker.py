"""One scanning thread's memory: its rows, its dictionary of text, and what it has counted."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit.parsers.kineto import scanner
from tracekit.parsers.kineto.scanner import state as at
from tracekit.parsers.kineto.scanner.columns import (
    MEMORY_COLUMNS,
    NARROW,
    NOTHING,
    NULL32,
    SPARSE,
    WIDE,
    WIDTH,
    key_table,
)

ROWS = 1 << 14
TILE = 1 << 8  # rows that stay in the fastest memory until they are written to columns
FIRST_SLAB, SLAB = 1 << 16, 2 << 20  # of a column's memory: few values must not take a page of megabytes
FIRST_TEXTS = 1 << 13
FIRST_BYTES = 1 << 20

Ints = npt.NDArray[np.int64]
_NO_PIECE = (NOTHING, 0, 0)

Values = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class Piece(NamedTuple):
    """One column of a chunk, in 32 bits where it fits; if it is sparse, only the rows that have a value."""

    how: int
    """``NARROW`` or ``WIDE``, and maybe ``SPARSE``."""
    size: int
    """How many values it has."""
    address: int
    where: int
    """Address of the rows that the values are of, if it is sparse."""
    room: npt.NDArray[np.uint8]
    """The memory that holds both."""

    @property
    def narrow(self) -> bool:
        """Whether it is kept in 32 bits."""
        return self.how & ~SPARSE == NARROW

    @property
    def values(self) -> Values:
        """The values."""
        values: Values = self._view(self.address, np.int32 if self.narrow else np.int64)
        return values

    @property
    def rows(self) -> npt.NDArray[np.int32] | None:
        """The rows of the chunk that the values are of; None: all."""
        return self._view(self.where, np.int32) if self.where else None

    def _view(self, address: int, dtype: type[np.int32 | np.int64]) -> Any:
        start = address - self.room.ctypes.data
        return self.room[start : start + self.size * np.dtype(dtype).itemsize].view(dtype)


class Chunk(msgspec.Struct):
    """Rows of one scan, by column; None where no row has a value."""

    worker: int
    rows: int
    columns: list[Piece | None]


@dataclass(slots=True)
class Part:
    """What one stretch of events gave: its rows, and counts of all it held."""

    chunks: list[Chunk] = field(default_factory=list)
    status: int = scanner.MORE
    position: int = 0
    events: int = 0
    complete: int = 0
    bad: int = 0
    first_bad: int = 0
    bad_values: int = 0
    first_bad_value: int = 0
    python: int = 0
    memory: list[Ints] = field(default_factory=list)
    """Events of the allocator: rows as ``MEMORY_COLUMNS`` lists them."""
    phases: Ints = field(default_factory=lambda: np.zeros(256, np.int64))


class Worker:
    """Runs the scanner over buffers, harvests its rows, and gives it room when it asks for it."""

    def __init__(self, index: int, *, stacks: bool) -> None:
        scanner.warm_up()
        self.index = index
        self.stacks = stacks
        self._keys = key_table()
        self._tile = np.empty((TILE + 1, WIDTH), np.int64)
        self._columns = np.empty((WIDTH, ROWS), np.int64)
        self._bounds = np.zeros((3, WIDTH), np.int64)
        self._slots = np.zeros(2 * FIRST_TEXTS, np.int64)
        self._starts = np.zeros(FIRST_TEXTS + 1, np.int64)
        self._heap = np.empty(FIRST_BYTES + scanner.PAD, np.uint8)
        self._state = np.zeros(at.STATE, np.int64)
        self._memory = np.empty((ROWS, len(MEMORY_COLUMNS)), np.int64)
        self._slabs = [_Slab() for _ in range(WIDTH)]

    def run(self, buffer: npt.NDArray[np.uint8], start: int, end: int, *, trust: bool) -> Part:
        """Scan ``buffer[start:end]``, of which the caller owns ``PAD`` bytes more."""
        if not 0 <= start <= end <= len(buffer) - scanner.PAD:
            raise ValueError("the buffer is not padded")
        state, part = self._state, Part()
        texts = state[[at.TEXT_COUNT, at.TEXT_BYTES]]
        state[:] = 0
        state[[at.TEXT_COUNT, at.TEXT_BYTES]] = texts
        position = start
        while True:
            part.status = scanner.scan(
                buffer, position, end, self._keys, self._tile, self._columns, self._bounds, self._slots, self._starts,
                self._heap, state, self._memory, trust, self.stacks,
            )  # fmt: skip
            position = int(state[at.POS])
            self._harvest(part)
            if part.status == scanner.TEXT_FULL:
                self._grow(end - position)
            elif part.status != scanner.ROWS_FULL:
                break
        part.position = position
        part.events, part.complete = int(state[at.EVENTS]), int(state[at.COMPLETE])
        part.bad, part.first_bad = int(state[at.BAD]), int(state[at.FIRST_BAD])
        part.bad_values, part.first_bad_value = int(state[at.BAD_VALUES]), int(state[at.FIRST_BAD_VALUE])
        part.python = int(state[at.PYTHON])
        part.phases = state[at.PHASES :].copy()
        return part

    def texts(self) -> list[bytes]:
        """Return the dictionary: text by code, as it stands in the file. The worker is done."""
        for slab in self._slabs:
            slab.release()
        count = int(self._state[at.TEXT_COUNT])
        heap = self._heap[: self._starts[count]].tobytes()
        bounds = self._starts[: count + 1].tolist()
        return [heap[a:b] for a, b in pairwise(bounds)]

    def _harvest(self, part: Part) -> None:
        if kept := int(self._state[at.MEMORY]):
            part.memory.append(self._memory[:kept].copy())
            self._state[at.MEMORY] = 0
        count = int(self._state[at.ROWS])
        if not count:
            return
        bounds = zip(self._slabs, *self._bounds.tolist(), strict=True)
        columns = [_piece(slab, count, low, high, present) for slab, low, high, present in bounds]
        plan = [_NO_PIECE if piece is None else (piece.how, piece.address, piece.where) for piece in columns]
        scanner.pack(self._columns, count, np.array(plan, np.int64))
        part.chunks.append(Chunk(self.index, count, columns))
        self._state[at.ROWS] = 0

    def _grow(self, longest: int) -> None:
        """Double the dictionary, with room for the longest text that can still come."""
        slots = np.zeros(2 * len(self._slots), np.int64)
        scanner.regrow(self._slots, slots)
        self._slots = slots
        self._starts = np.concatenate([self._starts, np.zeros(len(self._starts) - 1, np.int64)])
        used = int(self._state[at.TEXT_BYTES])
        heap = np.empty(max(2 * len(self._heap), used + longest) + scanner.PAD, np.uint8)
        heap[:used] = self._heap[:used]
        self._heap = heap


def _piece(slab: _Slab, rows: int, low: int, high: int, present: int) -> Piece | None:
    """Make room for a column of *rows*, of which *present* have a value."""
    if not present:
        return None
    how, size = (NARROW, 4) if low > NULL32 and high < 2**31 else (WIDE, 8)
    if present * 8 >= rows:
        return Piece(how, rows, *slab.take(rows * size), slab.room)
    values, where = slab.take(present * size, present * 4)
    return Piece(how + SPARSE, present, values, where, slab.room)


class _Slab:
    """Room for one column's values, mapped for itself, so that a column given up goes back to the system at once.

    Many small arrays would come from the heap, which keeps what is freed below its top: a third more at the peak.
    """

    def __init__(self) -> None:
        self._used, self._start, self.room = 0, 0, np.empty(0, np.uint8)

    def take(self, first: int, second: int = 0) -> tuple[int, int]:
        """Return two addresses (0: none) with room for that many bytes in ``room``, a new slab if the last is full."""
        middle = -(-first // 8) * 8
        size = middle + -(-second // 8) * 8
        if self._used + size > len(self.room):
            room = max(min(2 * len(self.room), SLAB), FIRST_SLAB, size)
            self.room = np.frombuffer(mmap.mmap(-1, room), np.uint8)
            self._start, self._used = self.room.ctypes.data, 0
        at = self._start + self._used
        self._used += size
        return at, at + middle if second else 0

    def release(self) -> None:
        """Release the slab itself; pieces keep what they need."""
        self._used, self._start, self.room = 0, 0, np.empty(0, np.uint8)
