"""One scanning thread's memory: its rows, its dictionary of text, and what it has counted."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracekit.parsers.kineto import scanner
from tracekit.parsers.kineto.scanner import state as at
from tracekit.parsers.kineto.scanner.columns import MEMORY_COLUMNS, NULL, NULL32, WIDTH, key_table

ROWS = 1 << 14
SLAB = 2 << 20
FIRST_TEXTS = 1 << 13
FIRST_BYTES = 1 << 20

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(slots=True)
class Piece:
    """One column of a chunk: narrow where it fits; with *where* only the rows that have a value."""

    values: Values
    where: npt.NDArray[np.intp] | None = None
    full: bool = False  # every row has a value


@dataclass(slots=True)
class Chunk:
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
        self._rows = np.empty((ROWS + 1, WIDTH), np.int64)
        self._columns = np.empty((WIDTH, ROWS), np.int64)
        self._low, self._high, self._present = np.empty((3, WIDTH), np.int64)
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
                buffer, position, end, self._keys, self._rows, self._slots, self._starts, self._heap, state,
                self._memory, trust, self.stacks,
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
        scanner.split(self._rows, count, self._columns, self._low, self._high, self._present)
        bounds = zip(self._columns, self._low.tolist(), self._high.tolist(), self._present.tolist(), strict=True)
        columns = [
            self._piece(slab, values[:count], low, high, present)
            for slab, (values, low, high, present) in zip(self._slabs, bounds, strict=True)
        ]
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

    def _piece(self, slab: _Slab, values: Ints, low: int, high: int, present: int) -> Piece | None:
        if not present:
            return None
        where = np.flatnonzero(values != NULL) if present * 8 < len(values) else None
        kept = values if where is None else values[where]
        narrow = low > NULL32 and high < 2**31
        return Piece(slab.keep(kept.astype(np.int32) if narrow else kept), where, present == len(values))


class _Slab:
    """Room for one column's values, mapped for itself, so that a column given up goes back to the system at once.

    Many small arrays would come from the heap, which keeps what is freed below its top: a third more at the peak.
    """

    def __init__(self) -> None:
        self._used, self._room = 0, np.empty(0, np.uint8)

    def keep(self, values: Values) -> Values:
        """Return a copy of *values* in the slab, or in the next when it is full."""
        if self._used + values.nbytes > len(self._room):
            self._room = np.frombuffer(mmap.mmap(-1, max(SLAB, values.nbytes)), np.uint8)
            self._used = 0
        copy: Values = self._room[self._used : self._used + values.nbytes].view(values.dtype)
        copy[:] = values
        self._used += -(-values.nbytes // 8) * 8
        return copy

    def release(self) -> None:
        """Release the slab itself; pieces keep what they need."""
        self._used, self._room = 0, np.empty(0, np.uint8)
