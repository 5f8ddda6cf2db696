"""Memory of one scanning thread: the scanner, its buffers, and the columns it has filled."""

import mmap
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._loops.event_columns import EventColumn
from tracekit._loops.json_scanner import (
    FIXED_TEXTS,
    GAP_FIELDS,
    GAP_ROWS,
    NULL,
    NULL32,
    Level,
    Scanner,
    Status,
    Target,
)
from tracekit._util.arrays import Ints
from tracekit.parsers.kineto.vocabulary import KEYS, MEMORY_COLUMNS, UNASKED_OPERATORS

ROWS_PER_CHUNK = 1 << 14
ROWS_PER_TILE = 1 << 8
MEMORY_ROWS = 1 << 12
# bytes mapped at once for a column: few values must not take megabytes
FIRST_PAGES = 1 << 16
MAX_PAGES = 2 << 20
FIRST_TEXTS = 1 << 10
FIRST_TEXT_BYTES = 1 << 20
# Of rows with a value, up to which a column is stored as row numbers and values.
MAX_SPARSE_SHARE = 1 / 8


class ColumnPart(NamedTuple):
    """Values of one column in a chunk, in 32 bits if they fit."""

    values: npt.NDArray[np.int32 | np.int64]
    rows: npt.NDArray[np.int32 | np.int64] | None
    """Rows of the chunk that the values belong to; None if every row has one (``NULL``, ``NULL32``
    stand for null)."""
    has_nulls: bool

    @property
    def is_null(self) -> npt.NDArray[np.bool_]:
        """Which values stand for null."""
        return np.equal(self.values, NULL32 if self.values.dtype == np.int32 else NULL)


@dataclass(slots=True)
class TextChunk:
    """Consecutive rows of one worker; a column without any value is missing."""

    worker: int
    rows: int
    columns: dict[EventColumn, ColumnPart]


@dataclass(slots=True)
class ScannedPart:
    """Rows of one stretch of events, and counts of all it held."""

    chunks: list[TextChunk] = field(default_factory=list)
    status: Status = Status.MORE
    position: int = 0
    """Where in the buffer the scan stopped."""
    events: int = 0
    complete: int = 0
    bad: int = 0
    bad_values: int = 0
    python_frames: int = 0
    """Python frames that were left out."""
    memory: list[Ints] = field(default_factory=list)
    """Events of the allocator, columns as in ``MEMORY_COLUMNS``."""
    phases: Ints = field(default_factory=lambda: np.zeros(256, np.int64))
    """Events that are not complete ones, by phase (see ``Scanner``)."""


class Worker:
    """One thread's scanner with its memory, which grows as needed."""

    def __init__(self, index: int, *, stacks: bool) -> None:
        self.index = index
        self._stacks = stacks
        texts = len(EventColumn) - EventColumn.NAME
        self._columns = np.empty((len(EventColumn), ROWS_PER_CHUNK), np.int64)
        self._bounds = np.zeros((3, len(EventColumn)), np.int64)
        self._memory_rows = np.empty((MEMORY_ROWS, len(EventColumn) - texts), np.int64)
        self._phases = np.zeros(256, np.int64)
        self._pages = {column: _ColumnPages() for column in EventColumn}
        keys = dict.fromkeys(FIXED_TEXTS)
        for level in Level:
            keys |= dict.fromkeys(KEYS[level])
        targets = []
        for level in Level:
            targets.append([KEYS[level].get(key, Target.NONE) for key in keys])
        self._scanner = Scanner(
            np.array(targets, np.int32).data,
            np.empty((ROWS_PER_TILE, len(EventColumn) + texts), np.int64).data,
            self._columns.data,
            self._bounds.data,
            self._memory_rows.data,
            self._phases.data,
            np.zeros((GAP_ROWS, GAP_FIELDS), np.uint64).data,
            len(UNASKED_OPERATORS),
        )
        self._starts = np.zeros(1, np.int64)
        self._heap = np.empty(0, np.uint8)
        first_texts = (*keys, *UNASKED_OPERATORS)
        self._resize_dictionary(
            len(first_texts) + FIRST_TEXTS, sum(map(len, first_texts)) + FIRST_TEXT_BYTES
        )
        for text in first_texts:
            self._scanner.add_text(memoryview(text.encode()))

    def scan(self, buffer: memoryview, start: int, end: int, *, is_last: bool) -> ScannedPart:
        """Scan ``buffer[start:end]`` (see ``Scanner.scan``)."""
        scanner = self._scanner
        part = ScannedPart(position=start)
        scanner.reset()
        while True:
            status = scanner.scan(
                buffer, part.position, end, is_last=is_last, keep_stacks=self._stacks
            )
            part.status = Status(status)
            part.position = scanner.position
            self._take_rows(part)
            if part.status == Status.TEXT_FULL:
                self._grow_dictionary(end - part.position)
            elif part.status != Status.ROWS_FULL:
                break
        part.events = scanner.events
        part.complete = scanner.complete
        part.python_frames = scanner.python_frames
        part.bad = scanner.bad
        part.bad_values = scanner.bad_values
        part.phases = self._phases.copy()
        return part

    def finish(self) -> list[bytes]:
        """Return the dictionary, text by code as written in the file, and release what only scanning needs."""
        for pages in self._pages.values():
            pages.release()
        starts = self._starts[: self._scanner.text_count + 1].tolist()
        heap = self._heap[: starts[-1]].tobytes()
        return [heap[start:end] for start, end in pairwise(starts)]

    def _take_rows(self, part: ScannedPart) -> None:
        """Move the rows of the scanner to a new chunk of *part*."""
        scanner = self._scanner
        if scanner.memory_count:
            part.memory.append(
                self._memory_rows[: scanner.memory_count, list(MEMORY_COLUMNS.values())]
            )
        if scanner.row_count:
            columns: dict[EventColumn, ColumnPart] = {}
            for column, (least, greatest, count) in zip(
                EventColumn, self._bounds.T.tolist(), strict=True
            ):
                # The number of an event in its part, which nobody needs.
                if count and column != EventColumn.EVENT:
                    fits = least > NULL32 and greatest < 2**31
                    columns[column] = self._store(
                        column, scanner.row_count, count, np.int32 if fits else np.int64
                    )
            part.chunks.append(TextChunk(self.index, scanner.row_count, columns))
        scanner.clear_rows()

    def _store(
        self, column: EventColumn, rows: int, count: int, dtype: type[np.int32 | np.int64]
    ) -> ColumnPart:
        """Store the first *rows* rows of a column, *count* of which have a value."""
        values = self._columns[column, :rows]
        row_numbers = None
        pages = self._pages[column]
        if count < rows * MAX_SPARSE_SHARE:
            present = np.flatnonzero(values != NULL)
            values = values[present]
            row_numbers = pages.copy(present, np.int32)
        return ColumnPart(
            pages.copy(values, dtype), row_numbers, row_numbers is None and count < rows
        )

    def _grow_dictionary(self, rest_bytes: int) -> None:
        """Make room in the dictionary for the texts of the next event, in a buffer of which *rest_bytes* are left.

        Codes and bytes grow apart, each only where it is short: many short texts need few bytes.
        """
        has_code_for_each = self._scanner.text_count + len(EventColumn) - EventColumn.NAME < len(
            self._starts
        )
        if has_code_for_each:
            # The event's texts are no longer than what is left of the buffer.
            self._resize_dictionary(len(self._starts), 2 * len(self._heap) + rest_bytes)
        else:
            self._resize_dictionary(2 * len(self._starts), len(self._heap))

    def _resize_dictionary(self, texts: int, text_bytes: int) -> None:
        """Make room in the dictionary for that many texts and bytes."""
        self._starts = np.concatenate([self._starts, np.zeros(texts - len(self._starts), np.int64)])
        self._heap = np.concatenate([self._heap, np.zeros(text_bytes - len(self._heap), np.uint8)])
        # A power of two, at most half full.
        slots = np.zeros(1 << (2 * texts).bit_length(), np.uint64)
        self._scanner.set_dictionary(slots.data, self._starts.data, self._heap.data)


class _ColumnPages:
    """Memory for the values of one column, mapped apart from the heap.

    It returns to the system as soon as the column is no longer needed. The heap would keep what
    many small arrays leave: a third more memory at the peak.
    """

    def __init__(self) -> None:
        self.release()

    def release(self) -> None:
        """Drop the pages; arrays in them keep what they need."""
        self._pages: mmap.mmap | bytes = b""
        self._used = 0

    def copy(
        self, values: npt.NDArray[np.int64], dtype: type[np.int32 | np.int64]
    ) -> npt.NDArray[np.int32 | np.int64]:
        """Return a copy of *values*, cast to *dtype*, in these pages."""
        # Rounded up, so that all arrays are aligned.
        size = -(-len(values) * np.dtype(dtype).itemsize // 8) * 8
        if self._used + size > len(self._pages):
            self._pages = mmap.mmap(
                -1, max(min(2 * len(self._pages), MAX_PAGES), FIRST_PAGES, size)
            )
            self._used = 0
        copied: npt.NDArray[np.int32 | np.int64] = np.frombuffer(
            self._pages, dtype, len(values), self._used
        )
        self._used += size
        np.copyto(copied, values, casting="unsafe")
        return copied
