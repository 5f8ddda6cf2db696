# ruff: noqa: PLR0911, PLR0912, PLR0915, PLR0917
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""The walk over a buffer's events, and the rows and the dictionary of text that it fills."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import as_bytes, as_ints, as_words, called, inlined, word_at
from tracekit.parsers.kineto.scanner.columns import (
    FIRST_TEXT,
    KEY_BYTES,
    MEMORY_COLUMNS,
    MEMORY_NAME,
    MIX,
    NULL,
    TEXTS,
    WIDTH,
    Column,
)
from tracekit.parsers.kineto.scanner.event import read_event
from tracekit.parsers.kineto.scanner.gaps import slot_of
from tracekit.parsers.kineto.scanner.pieces import forget, spill
from tracekit.parsers.kineto.scanner.state import (
    BAD,
    BAD_VALUES,
    COMPLETE,
    END,
    EVENTS,
    FILLED,
    FIRST_BAD,
    FIRST_BAD_VALUE,
    HELD,
    LOST,
    MEMORY,
    MORE,
    ODD,
    PAD,
    PARTIAL,
    PHASES,
    POS,
    PYTHON,
    ROWS,
    ROWS_FULL,
    SEEN,
    TEXT_BYTES,
    TEXT_COUNT,
    TEXT_FULL,
    WASTE,
)
from tracekit.parsers.kineto.scanner.words import (
    BLANK,
    BRACE,
    BRACE_END,
    BRACKET_END,
    BROKEN,
    COMMA,
    CUT,
    QUOTE,
    low_bytes,
    space,
    text_end,
)

_MIX = np.uint64(MIX)
_29, _32 = np.uint64(29), np.uint64(32)
_X, _I = ord("X"), ord("i")
_EVENTS, _PLAIN, _OF_MEMORY = np.arange(3)  # levels of keys, see ``columns.key_table``
_TS, _ID, _CAT, _EVENT = int(Column.TS), int(Column.ID), int(Column.CAT), int(Column.EVENT)
_ALWAYS = 1 << _ID | 1 << _EVENT | 1 << _TS  # columns that rows have whatever the file says
_NAME, _BYTES = int(Column.NAME), int(Column.BYTES)
_KEPT = tuple(int(column) for column in MEMORY_COLUMNS.values())
_MEMORY = np.frombuffer(MEMORY_NAME.encode(), "<u8")[0]
_PYTHON_A, _PYTHON_B = np.frombuffer(b"python_function\0", "<u8")


@called
def next_event(buf: Any, i: Any, end: Any, keys: Any) -> Any:
    """Find the next place after *i* that looks like the start of an event, ``, {"ph"`` in any spacing, or -1."""
    begin = i
    while i < end:
        if buf[i] != BRACE:
            i += 1
            continue
        back = i - 1
        while back >= begin and buf[back] <= BLANK:
            back -= 1
        if back >= begin and buf[back] == COMMA:
            k = space(buf, i + 1, end)
            if k < end and buf[k] == QUOTE:
                last = text_end(buf, k + 1, min(end, k + 2 + KEY_BYTES))
                if last > 0 and slot_of(buf, k + 1, last - k - 1, _EVENTS, keys) >= 0:
                    return i
        i += 1
    return -1


@called
def array_end(buf: Any, i: Any, end: Any) -> Any:
    """Find the bracket that closes the list of events: ``}``, ``]``, then a comma, a brace or nothing. Else *end*."""
    while i < end:
        if buf[i] == BRACE_END:
            k = space(buf, i + 1, end)
            if k < end and buf[k] == BRACKET_END:
                after = space(buf, k + 1, end)
                if after >= end or buf[after] == COMMA or buf[after] == BRACE_END:
                    return k
        i += 1
    return end


@called
def _count_bad(state: Any) -> Any:
    if state[BAD] == 0:
        state[FIRST_BAD] = state[EVENTS]
    state[BAD] += 1


@called
def intern(buf: Any, first: Any, last: Any, slots: Any, mask: Any, starts: Any, heap: Any, state: Any) -> Any:
    """Return the code of ``buf[first:last]``, new or known. Bytes are compared, so a shared hash merges nothing."""
    length = last - first
    h = np.uint64(length) * _MIX
    i = first
    while last - i >= 8:
        h = (h ^ word_at(buf, i)) * _MIX
        h ^= h >> _32
        i += 8
    if i < last:
        h = (h ^ low_bytes(word_at(buf, i), last - i)) * _MIX
        h ^= h >> _32
    h ^= h >> _29
    tag = np.int64(h >> _32) << 32
    slot = np.int64(h >> _32) & mask  # from the tag, so that a table can grow without the text
    while True:
        entry = slots[slot]
        if entry == 0:
            break
        code = (entry & 0xFFFFFFFF) - 1
        begin = starts[code]
        if entry ^ tag == code + 1 and starts[code + 1] - begin == length:
            i = 0
            while length - i >= 8 and word_at(heap, begin + i) == word_at(buf, first + i):
                i += 8
            rest = length - i
            if rest < 8 and (
                rest == 0 or low_bytes(word_at(heap, begin + i), rest) == low_bytes(word_at(buf, first + i), rest)
            ):
                return code
        slot = (slot + 1) & mask
    code = state[TEXT_COUNT]
    begin = starts[code]
    for k in range(length):
        heap[begin + k] = buf[first + k]
    starts[code + 1] = begin + length
    slots[slot] = tag | (code + 1)
    state[TEXT_COUNT] = code + 1
    state[TEXT_BYTES] = begin + length
    return code


@inlined
def is_python(buf: Any, first: Any, last: Any) -> Any:
    """Whether a category is that of Python frames."""
    if last - first != 15:
        return False
    return word_at(buf, first) == _PYTHON_A and low_bytes(word_at(buf, first + 8), 7) == _PYTHON_B


@inlined
def is_memory(buf: Any, first: Any, last: Any) -> Any:
    """Whether a name is that of the allocator's events."""
    return last - first == 8 and word_at(buf, first) == _MEMORY


@called
def keep_memory(buf: Any, i: Any, end: Any, keys: Any, row: Any, ends: Any, state: Any, memory: Any) -> Any:
    """Read the event at *i* again for the allocator's arguments; keeps it and returns 1 if it has a time and a size."""
    read_event(buf, i, end, keys, row, ends, state, _OF_MEMORY)
    if row[_TS] == NULL or state[LOST] == 1 or row[_BYTES] == NULL:
        return 0
    at = state[MEMORY]
    for k in range(len(_KEPT)):
        memory[at * len(_KEPT) + k] = row[_KEPT[k]]
    state[MEMORY] = at + 1
    return 1


@called
def walk(
    buf: Any,
    start: Any,
    end: Any,
    keys: Any,
    out: Any,
    room: Any,
    ends: Any,
    slots: Any,
    mask: Any,
    starts: Any,
    text_room: Any,
    heap: Any,
    byte_room: Any,
    state: Any,
    memory: Any,
    memory_room: Any,
    trust: Any,
    stacks: Any,
) -> Any:
    """Walk events until *room* rows are filled, or until something else stops it."""
    i = start
    while True:
        i = space(buf, i, end)
        state[POS] = i
        if i >= end:
            return MORE
        c = buf[i]
        if c == COMMA:
            i += 1
            continue
        if c == BRACKET_END:
            state[POS] = i + 1
            return END
        if state[FILLED] >= room:
            return ROWS_FULL
        row = as_ints(out + state[FILLED] * WIDTH * 8)
        stop = read_event(buf, i, end, keys, row, ends, state, _PLAIN) if c == BRACE else BROKEN - i
        if stop < 0:
            after = i + 1
            if stop == CUT:
                after = next_event(buf, i + 1, end, keys) if trust else -1
                if after < 0:
                    return PARTIAL
                state[WASTE] -= end - i
            else:
                state[WASTE] -= BROKEN - stop - i
                after = next_event(buf, i + 1, end, keys)
                if after < 0:
                    if not trust:
                        return PARTIAL
                    after = array_end(buf, BROKEN - stop, end)
            if state[WASTE] < 0:
                after = end
            _count_bad(state)
            state[EVENTS] += 1
            i = after
            continue
        phase = state[SEEN]
        if phase != _X and (phase != 0 or row[_TS] == NULL):
            kept = 0
            if phase == _I and row[_NAME] != NULL and is_memory(buf, row[_NAME], ends[_NAME - FIRST_TEXT]):
                if state[MEMORY] >= memory_room:
                    return ROWS_FULL
                kept = keep_memory(buf, i, end, keys, row, ends, state, memory)
            if kept == 0:
                state[PHASES + phase] += 1
        elif (
            not stacks
            and row[_TS] != NULL
            and state[LOST] == 0
            and row[_CAT] != NULL
            and is_python(buf, row[_CAT], ends[_CAT - FIRST_TEXT])
        ):
            state[PYTHON] += 1
            state[COMPLETE] += 1
        else:
            total = 0
            for k in range(TEXTS):
                if row[FIRST_TEXT + k] != NULL:
                    total += ends[k] - row[FIRST_TEXT + k]
            if state[TEXT_COUNT] + TEXTS > text_room or state[TEXT_BYTES] + total > byte_room:
                return TEXT_FULL
            for k in range(TEXTS):
                if row[FIRST_TEXT + k] != NULL:
                    row[FIRST_TEXT + k] = intern(buf, row[FIRST_TEXT + k], ends[k], slots, mask, starts, heap, state)
            row[_ID] = state[COMPLETE]
            row[_EVENT] = state[EVENTS]
            if row[_TS] == NULL or state[LOST] == 1:  # a row all the same: its category tells what was lost
                row[_TS] = NULL
                _count_bad(state)
            else:
                state[COMPLETE] += 1
            state[FILLED] += 1
        if state[ODD] > 0:
            if state[BAD_VALUES] == 0:
                state[FIRST_BAD_VALUE] = state[EVENTS]
            state[BAD_VALUES] += state[ODD]
        state[EVENTS] += 1
        i = stop


def scan(
    block: Any,
    start: Any,
    end: Any,
    key_table: Any,
    tile_rows: Any,
    column_rows: Any,
    bound_rows: Any,
    slot_table: Any,
    start_table: Any,
    heap_bytes: Any,
    state_table: Any,
    memory_rows: Any,
    trust: Any,
    stacks: Any,
) -> Any:
    """Walk events from *start*; returns how it stopped, with the place in ``state[POS]``.

    Rows are written to a few of *tile_rows*, whose last is scratch, and from there to columns, together with their
    bounds. *trust*: an event that runs to *end* is damage when another event starts inside it. *stacks*: keep Python
    frames.
    """
    buf = as_bytes(block.ctypes.data)
    keys = as_words(key_table.ctypes.data)
    out = np.int64(tile_rows.ctypes.data)
    columns, bounds = as_ints(column_rows.ctypes.data), as_ints(bound_rows.ctypes.data)
    slots = as_ints(slot_table.ctypes.data)
    starts = as_ints(start_table.ctypes.data)
    heap = as_bytes(heap_bytes.ctypes.data)
    state = as_ints(state_table.ctypes.data)
    memory, memory_room = as_ints(memory_rows.ctypes.data), memory_rows.shape[0]
    room, mask = column_rows.shape[1], slot_table.shape[0] - 1
    text_room, byte_room = start_table.shape[0] - 1, heap_bytes.shape[0] - PAD
    depth = tile_rows.shape[0] - 1
    tile = as_ints(out)
    ends = as_ints(out + depth * WIDTH * 8)
    if state[ROWS] == 0:
        forget(bounds)
    state[WASTE] = 16 * (end - start) + 1_000_000
    state[HELD] = _ALWAYS
    state[FILLED] = 0
    status = ROWS_FULL
    i = start
    while status == ROWS_FULL and state[ROWS] < room:
        most = min(depth, room - state[ROWS])
        status = walk(
            buf, i, end, keys, out, most, ends, slots, mask, starts, text_room, heap, byte_room, state, memory,
            memory_room, trust, stacks,
        )  # fmt: skip
        i = state[POS]
        spill(tile, state[FILLED], columns, room, state[ROWS], state[HELD], bounds)
        state[ROWS] += state[FILLED]
        if state[FILLED] < most and status == ROWS_FULL:
            break  # not these rows are full, but those of the allocator's events
        state[HELD] = _ALWAYS
        state[FILLED] = 0
    return status


def regrow(old: Any, new: Any) -> Any:
    """Move the entries of a dictionary's slots to a larger, empty table."""
    mask = new.shape[0] - 1
    for k in range(old.shape[0]):
        entry = old[k]
        if entry != 0:
            slot = (entry >> BLANK) & mask
            while new[slot] != 0:
                slot = (slot + 1) & mask
            new[slot] = entry
