# ruff: noqa: PLR0911, PLR0912, PLR0915, PLR0917, PLR1714, SIM109
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""The byte scanner: JSON events in a buffer to rows of integers, compiled with numba.

One call walks one buffer. It never reads past ``end`` plus ``PAD`` bytes, which the caller must own, and never
writes past the rows and the dictionary it was given: when either is full it stops before an event, says so, and
is called again from there. Nothing here trusts the bytes: an event that is no JSON is counted and stepped over.

All compiled code stays in this one file, because numba's cache looks at one file to see whether it is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit
from numba import types as numba_types

from tracekit.parsers.kineto.columns import (
    ARGS,
    FIRST_TEXT,
    KEY_BYTES,
    MIX,
    NULL,
    PHASE,
    SLOT_WIDTH,
    SLOTS,
    TEXTS,
    WIDTH,
    Column,
)

PAD = 64
"""Bytes a buffer must own after ``end``; the scanner reads eight at a time."""

MORE, END, PARTIAL, ROWS_FULL, TEXT_FULL = range(5)
"""How a scan stops: clean at ``end``, after the closing bracket, before an event that ``end`` cuts in two, before
an event there is no row for, before an event whose text the dictionary has no room for."""

# Where the counters stand in the state array.
(
    POS,
    ROWS,
    EVENTS,
    COMPLETE,
    BAD,
    FIRST_BAD,
    BAD_VALUES,
    FIRST_BAD_VALUE,
    TEXT_COUNT,
    TEXT_BYTES,
    PYTHON,
    SEEN,
    ODD,
    LOST,
) = range(14)
PHASES = 16
STATE = PHASES + 256

types: Any = numba_types  # numba's own annotations are those of Python, not of what it compiles
intrinsic: Any = extending.intrinsic

_INT = types.int64
_BYTES = types.CPointer(types.uint8)
_WORDS = types.CPointer(types.uint64)
_INTS = types.CPointer(types.int64)

_BLANK, _QUOTE, _COMMA, _COLON, _MINUS, _PLUS, _POINT = b' ",:-+.'
_BRACKET, _BRACKET_END, _BRACE, _BRACE_END = b"[]{}"
_ZERO, _NINE, _E, _E_BIG, _N, _U, _T, _F, _X = b"09eEnutfX"

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_FOLD = np.uint64(0xDFDFDFDFDFDFDFDF)  # clears the bit that parts "{" from "[" and "}" from "]"
_OPENS = np.uint64(0x5B5B5B5B5B5B5B5B)
_CLOSES = np.uint64(0x5D5D5D5D5D5D5D5D)
_COMMAS = np.uint64(0x2C2C2C2C2C2C2C2C)
_BLANKS = np.uint64(0x2121212121212121)  # one more than the last blank
_ZEROS = np.uint64(0x3030303030303030)
_NINES = np.uint64(0x7676767676767676)  # lifts everything above nine over the high bit
_POWERS = SLOTS * SLOT_WIDTH  # of ten, behind the keys
_MIX = np.uint64(MIX)
_1, _8, _16, _29, _32, _57, _64 = np.array([1, 8, 16, 29, 32, 57, 64], np.uint64)
_PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_TENS, _HUNDREDS, _MYRIADS = np.uint64(2561), np.uint64(6553601), np.uint64(42949672960001)
_LIMIT = 922337203685477580  # a tenth of the greatest int64

_TS, _DUR, _TID, _ID = int(Column.TS), int(Column.DUR), int(Column.TID), int(Column.ID)
_CAT = int(Column.CAT)
_CUT, _BROKEN = -1, -2  # results of a step: the buffer ended; no JSON (minus the position)
_PYTHON = np.frombuffer(b"python_function\0", "<u8")
_PYTHON_A, _PYTHON_B = _PYTHON
_STREAM = np.frombuffer(b"stream \0", "<u8")[0]


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return compiled


def _call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile as a function of its own: for what is rare or long."""
    compiled: Callable[..., Any] = njit(nogil=True, error_model="numpy")(function)
    return compiled


def _cast(pointer: Any) -> Any:
    """Make the compiled conversion of an address to *pointer*: unlike an array it is not counted at each call."""

    def cast(_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return pointer(address), emit

    return intrinsic(cast)


def _load(_context: Any, buf: Any, at: Any) -> Any:
    """Eight bytes from any address: a plain 64-bit index would promise the compiler an alignment we do not have."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        address = builder.gep(args[0], [args[1]], source_etype=ir.IntType(8))
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1, typ=ir.IntType(64))

    return types.uint64(_BYTES, types.int64), emit


def _count_zeros(_context: Any, value: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), emit


_as_bytes, _as_words, _as_ints = _cast(_BYTES), _cast(_WORDS), _cast(_INTS)
_word: Any = intrinsic(_load)
_trailing_zeros: Any = intrinsic(_count_zeros)


@_jit
def _zero_bytes(word: Any) -> Any:
    """Return the high bit of each zero byte; exact up to the first, which is all that is used."""
    return (word - _ONES) & ~word & _HIGHS


@_jit
def _low_bytes(word: Any, count: Any) -> Any:
    """Keep the first *count* (under 8) bytes of a word, the rest zero."""
    return word & ((_1 << np.uint64(count * 8)) - _1)


@_jit
def _space(buf: Any, i: Any, end: Any) -> Any:
    while i < end and buf[i] <= _BLANK:
        i += 1
    return i


@_jit
def _text_end(buf: Any, i: Any, end: Any) -> Any:
    """Find the closing quote of the string whose first byte is at *i*."""
    while i < end:
        word = _word(buf, i)
        found = _zero_bytes(word ^ _QUOTES) | _zero_bytes(word ^ _SLASHES)
        if found == 0:
            i += 8
            continue
        i += _trailing_zeros(found) >> 3
        if i >= end:
            return _CUT
        if buf[i] == _QUOTE:
            return i
        i += 2
    return _CUT


@_call
def _skip(buf: Any, i: Any, end: Any) -> Any:
    """Find the place after the array or object at *i*. A quote must be followed by what may follow a string."""
    depth = 0
    while i < end:
        word = _word(buf, i)
        folded = word & _FOLD
        found = _zero_bytes(word ^ _QUOTES)
        found |= _zero_bytes(folded ^ _OPENS) | _zero_bytes(folded ^ _CLOSES)
        if found == 0:
            i += 8
            continue
        i += _trailing_zeros(found) >> 3
        if i >= end:
            return _CUT
        c = buf[i]
        i += 1
        if c == _QUOTE:
            i = _text_end(buf, i, end)
            if i < 0:
                return _CUT
            i = _space(buf, i + 1, end)
            if i >= end:
                return _CUT
            c = buf[i]
            if c != _COMMA and c != _COLON and c != _BRACKET_END and c != _BRACE_END:
                return _BROKEN - i
        elif c == _BRACKET or c == _BRACE:
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return i
    return _CUT


@_jit
def _scalar_end(buf: Any, i: Any, end: Any) -> Any:
    """Where the bare word or number at *i* ends: at a blank, a comma, or a closing bracket or brace."""
    while i < end:
        word = _word(buf, i)
        found = _zero_bytes(word ^ _COMMAS) | _zero_bytes((word & _FOLD) ^ _CLOSES)
        found |= (word - _BLANKS) & ~word & _HIGHS
        if found == 0:
            i += 8
            continue
        i += _trailing_zeros(found) >> 3
        return i if i < end else _CUT
    return _CUT


@_jit
def _digits(buf: Any, i: Any) -> Any:
    """How many of the eight bytes at *i* are digits before the first that is none, and the number they make."""
    word = _word(buf, i) ^ _ZEROS
    other = ((word + _NINES) | word) & _HIGHS
    count = 8 if other == 0 else _trailing_zeros(other) >> 3
    if count == 0:
        return 0, 0
    word <<= np.uint64(64 - 8 * count)
    word = (word * _TENS) >> _8 & _PAIRS
    word = (word * _HUNDREDS) >> _16 & _FOURS
    return count, np.int64((word * _MYRIADS) >> _32)


@_jit
def _common_number(buf: Any, i: Any, end: Any, thousands: Any, keys: Any) -> Any:
    """Read the number at *i* in the ways real files write it, up to 16 digits before the point; returns where it ends.

    Anything else (signs, exponents, longer numbers, words) returns an end of -1 and is left to ``_number``.
    """
    count, value = _digits(buf, i)
    if count == 0:
        return -1, 0
    i += count
    if count == 8:
        count, more = _digits(buf, i)
        value = value * np.int64(keys[_POWERS + count]) + more
        i += count
        if value > 9_000_000_000_000_000:  # a thousand times this no longer fits
            return -1, 0
    shift = 3 if thousands else 0
    if buf[i] == _POINT:
        count, more = _digits(buf, i + 1)
        if count == 0 or count > 3 or shift == 0:
            return -1, 0
        value = value * 1000 + more * np.int64(keys[_POWERS + 3 - count])
        shift = 0
        i += 1 + count
    c = buf[i]
    if i >= end or (c > _BLANK and c != _COMMA and c != _BRACE_END and c != _BRACKET_END):
        return -1, 0
    return i, value * 1000 if shift else value


@_jit
def _lawful(buf: Any, i: Any) -> Any:
    """Whether a bare word starts as JSON allows: a number, true, false or null. ``NaN``, ``inf``, ``N/A`` do not."""
    c = buf[i]
    if c == _MINUS:
        c = buf[i + 1]
    if _ZERO <= c <= _NINE:
        return True
    if c == _N:
        return buf[i + 1] == _U
    return c == _T or c == _F


@_call
def _number(buf: Any, i: Any, end: Any, thousands: Any) -> Any:
    """Read the number in ``buf[i:end]``, all of it, times 1 or 1000, cut to an integer; NULL if none or too big."""
    negative = buf[i] == _MINUS
    if negative:
        i += 1
    value: Any
    exponent: Any
    value, digits, fraction, exponent = 0, 0, 0, 0
    while i < end:
        c = np.int64(buf[i]) - _ZERO
        if c < 0 or c > 9:
            break
        if value > _LIMIT - 1:
            return NULL
        value = value * 10 + c
        digits += 1
        i += 1
    if digits == 0:
        return NULL
    if i < end and buf[i] == _POINT:
        i += 1
        while i < end:
            c = np.int64(buf[i]) - _ZERO
            if c < 0 or c > 9:
                break
            if value <= _LIMIT - 1 and fraction < 18:
                value = value * 10 + c
                fraction += 1
            i += 1
    if i < end and (buf[i] == _E or buf[i] == _E_BIG):
        i += 1
        down = i < end and buf[i] == _MINUS
        if down or (i < end and buf[i] == _PLUS):
            i += 1
        if i >= end:
            return NULL
        while i < end:
            c = np.int64(buf[i]) - _ZERO
            if c < 0 or c > 9:
                return NULL
            exponent = min(exponent * 10 + c, 99)
            i += 1
        if down:
            exponent = -exponent
    if i != end:
        return NULL
    shift = exponent - fraction + (3 if thousands else 0)
    while shift < 0 and value > 0:
        value //= 10
        shift += 1
    while shift > 0 and value > 0:
        if value > _LIMIT - 1:
            return NULL
        value *= 10
        shift -= 1
    return -value if negative else value


@_call
def _quoted_number(buf: Any, i: Any, end: Any, column: Any) -> Any:
    """Read a number written as a string; of a thread, "stream 7" counts too (files of 2021)."""
    if column == _TID and end - i > 7 and _low_bytes(_word(buf, i), 7) == _STREAM:
        i += 7
    if i >= end:
        return NULL
    return _number(buf, i, end, column == _TS or column == _DUR)


@_call
def _column(buf: Any, i: Any, length: Any, level: Any, keys: Any) -> Any:
    """Find the column of the key at *i*, or -1. Compares the whole key: no two keys are ever taken for each other."""
    if length > KEY_BYTES or length == 0:
        return -1
    tag = np.uint64(length | level << 8)
    first = _word(buf, i) if length >= 8 else _low_bytes(_word(buf, i), length)
    slot = np.int64(((first ^ tag) * _MIX) >> _57)
    while True:
        at = slot * SLOT_WIDTH
        if keys[at] == 0:
            return -1
        if keys[at] == tag and keys[at + 1] == first:
            rest, k, same = length - 8, 1, True
            while rest > 0 and same:
                word = _word(buf, i + 8 * k)
                if rest < 8:
                    word = _low_bytes(word, rest)
                same = word == keys[at + 1 + k]
                rest -= 8
                k += 1
            if same:
                return np.int64(keys[at + 5])
        slot = (slot + 1) % SLOTS


@_call
def _event(buf: Any, start: Any, end: Any, keys: Any, row: Any, ends: Any, state: Any) -> Any:
    """Read the object at *start* into *row*: numbers as they are, of text the first byte (its end goes to *ends*).

    Returns the place after it, or how it failed. ``state[SEEN]`` takes the phase (1 when it is no single letter),
    ``state[ODD]`` how many bare words are no JSON, ``state[LOST]`` whether a time is no number.
    """
    for c in range(WIDTH):
        row[c] = NULL
    phase: Any
    phase, level, odd, lost = 0, 0, 0, 0
    i = start + 1
    while True:
        i = _space(buf, i, end)
        if i >= end:
            return _CUT
        c = buf[i]
        if c == _BRACE_END:
            i += 1
            if level == 0:
                break
            level = 0
            i = _space(buf, i, end)
            if i >= end:
                return _CUT
            if buf[i] == _COMMA:
                i += 1
            elif buf[i] != _BRACE_END:
                return _BROKEN - i
            continue
        if c != _QUOTE:
            return _BROKEN - i
        first = i + 1
        i = _text_end(buf, first, end)
        if i < 0:
            return _CUT
        column = _column(buf, first, i - first, level, keys)
        i = _space(buf, i + 1, end)
        if i >= end:
            return _CUT
        if buf[i] != _COLON:
            return _BROKEN - i
        i = _space(buf, i + 1, end)
        if i >= end:
            return _CUT
        c = buf[i]
        first = i
        if c == _QUOTE:
            first = i + 1
            last = _text_end(buf, first, end)
            if last < 0:
                return _CUT
            i = last + 1
            if column == PHASE:
                phase = np.int64(buf[first]) if last == first + 1 else 1
            elif column >= FIRST_TEXT and column < WIDTH:
                row[column] = first
                ends[column - FIRST_TEXT] = last
            elif column >= 0 and column < FIRST_TEXT:
                row[column] = _quoted_number(buf, first, last, column)
                if column <= _DUR and row[column] == NULL:
                    lost = 1
        elif c == _BRACE or c == _BRACKET:
            if column == ARGS and c == _BRACE:
                level = 1
                i += 1
                continue
            i = _skip(buf, i, end)
            if i < 0:
                return i
            if column >= FIRST_TEXT and column < WIDTH:
                row[column] = first
                ends[column - FIRST_TEXT] = i
        else:
            if column >= 0 and column < FIRST_TEXT:
                i, value = _common_number(buf, first, end, column == _TS or column == _DUR, keys)
                if i > 0:
                    row[column] = value
                    column = -1
                else:
                    i = _scalar_end(buf, first, end)
            else:
                i = _scalar_end(buf, first, end)
            if i < 0:
                return _CUT
            if i == first:
                return _BROKEN - i
            if not _lawful(buf, first):
                odd += 1
                if column == _TS or column == _DUR:
                    lost = 1
            elif column >= 0 and column < FIRST_TEXT:
                row[column] = _number(buf, first, i, column == _TS or column == _DUR)
                if column == _DUR and (row[column] < 0):
                    lost = 1
            elif column >= FIRST_TEXT and column < WIDTH and buf[first] != _N:
                row[column] = first
                ends[column - FIRST_TEXT] = i
        i = _space(buf, i, end)
        if i >= end:
            return _CUT
        if buf[i] == _COMMA:
            i += 1
        elif buf[i] != _BRACE_END:
            return _BROKEN - i
    state[SEEN] = phase
    state[ODD] = odd
    state[LOST] = lost
    return i


@_call
def _next_event(buf: Any, i: Any, end: Any, keys: Any) -> Any:
    """Find the next place after *i* that looks like the start of an event, ``, {"ph"`` in any spacing, or -1."""
    begin = i
    while i < end:
        if buf[i] != _BRACE:
            i += 1
            continue
        back = i - 1
        while back >= begin and buf[back] <= _BLANK:
            back -= 1
        if back >= begin and buf[back] == _COMMA:
            k = _space(buf, i + 1, end)
            if k < end and buf[k] == _QUOTE:
                last = _text_end(buf, k + 1, min(end, k + 2 + KEY_BYTES))
                if last > 0 and _column(buf, k + 1, last - k - 1, 0, keys) >= 0:
                    return i
        i += 1
    return -1


@_call
def _array_end(buf: Any, i: Any, end: Any) -> Any:
    """Find the bracket that closes the list of events: ``}``, ``]``, then a comma, a brace or nothing. Else *end*."""
    while i < end:
        if buf[i] == _BRACE_END:
            k = _space(buf, i + 1, end)
            if k < end and buf[k] == _BRACKET_END:
                after = _space(buf, k + 1, end)
                if after >= end or buf[after] == _COMMA or buf[after] == _BRACE_END:
                    return k
        i += 1
    return end


@_call
def _count_bad(state: Any) -> Any:
    if state[BAD] == 0:
        state[FIRST_BAD] = state[EVENTS]
    state[BAD] += 1


@_call
def _intern(buf: Any, first: Any, last: Any, slots: Any, mask: Any, starts: Any, heap: Any, state: Any) -> Any:
    """Return the code of ``buf[first:last]``, new or known. Bytes are compared, so a shared hash merges nothing."""
    length = last - first
    h = np.uint64(length) * _MIX
    i = first
    while last - i >= 8:
        h = (h ^ _word(buf, i)) * _MIX
        h ^= h >> _32
        i += 8
    if i < last:
        h = (h ^ _low_bytes(_word(buf, i), last - i)) * _MIX
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
            while length - i >= 8 and _word(heap, begin + i) == _word(buf, first + i):
                i += 8
            rest = length - i
            if rest < 8 and (
                rest == 0 or _low_bytes(_word(heap, begin + i), rest) == _low_bytes(_word(buf, first + i), rest)
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


@_jit
def _is_python(buf: Any, first: Any, last: Any) -> Any:
    return last - first == 15 and _word(buf, first) == _PYTHON_A and _low_bytes(_word(buf, first + 8), 7) == _PYTHON_B


def _scan(
    block: Any,
    start: Any,
    end: Any,
    key_table: Any,
    rows: Any,
    slot_table: Any,
    start_table: Any,
    heap_bytes: Any,
    state_table: Any,
    trust: Any,
    stacks: Any,
) -> Any:
    """Walk events from *start*; returns how it stopped, with the place in ``state[POS]``.

    *trust*: an event that runs to *end* is damage when another event starts inside it. *stacks*: keep Python frames.
    """
    buf = _as_bytes(block.ctypes.data)
    keys = _as_words(key_table.ctypes.data)
    out = np.int64(rows.ctypes.data)
    slots = _as_ints(slot_table.ctypes.data)
    starts = _as_ints(start_table.ctypes.data)
    heap = _as_bytes(heap_bytes.ctypes.data)
    state = _as_ints(state_table.ctypes.data)
    room, mask = rows.shape[0] - 1, slot_table.shape[0] - 1
    text_room, byte_room = start_table.shape[0] - 1, heap_bytes.shape[0] - PAD
    ends = _as_ints(out + room * WIDTH * 8)  # the last row is scratch
    waste = 16 * (end - start) + 1_000_000
    i = start
    while True:
        i = _space(buf, i, end)
        state[POS] = i
        if i >= end:
            return MORE
        c = buf[i]
        if c == _COMMA:
            i += 1
            continue
        if c == _BRACKET_END:
            state[POS] = i + 1
            return END
        if state[ROWS] >= room:
            return ROWS_FULL
        row = _as_ints(out + state[ROWS] * WIDTH * 8)
        stop = _event(buf, i, end, keys, row, ends, state) if c == _BRACE else _BROKEN - i
        if stop < 0:
            after = i + 1
            if stop == _CUT:
                after = _next_event(buf, i + 1, end, keys) if trust else -1
                if after < 0:
                    return PARTIAL
                waste -= end - i
            else:
                waste -= _BROKEN - stop - i
                after = _next_event(buf, i + 1, end, keys)
                if after < 0:
                    if not trust:
                        return PARTIAL
                    after = _array_end(buf, _BROKEN - stop, end)
            if waste < 0:
                after = end
            _count_bad(state)
            state[EVENTS] += 1
            i = after
            continue
        phase = state[SEEN]
        if phase != _X and (phase != 0 or row[_TS] == NULL):
            state[PHASES + phase] += 1
        elif row[_TS] == NULL or state[LOST] == 1:
            _count_bad(state)
        elif not stacks and row[_CAT] != NULL and _is_python(buf, row[_CAT], ends[_CAT - FIRST_TEXT]):
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
                    row[FIRST_TEXT + k] = _intern(buf, row[FIRST_TEXT + k], ends[k], slots, mask, starts, heap, state)
            row[_ID] = state[COMPLETE]
            state[COMPLETE] += 1
            state[ROWS] += 1
        if state[ODD] > 0:
            if state[BAD_VALUES] == 0:
                state[FIRST_BAD_VALUE] = state[EVENTS]
            state[BAD_VALUES] += state[ODD]
        state[EVENTS] += 1
        i = stop


def _split(rows: Any, count: Any, columns: Any, low: Any, high: Any, present: Any) -> Any:
    """Turn *count* rows into columns, and note of each the least and greatest value and how many there are."""
    for c in range(WIDTH):
        low[c], high[c], present[c] = np.int64(2**63 - 1), NULL, 0
    for r in range(count):
        for c in range(WIDTH):
            value = rows[r, c]
            columns[c, r] = value
            if value != NULL:
                low[c] = min(low[c], value)
                high[c] = max(high[c], value)
                present[c] += 1


def _regrow(old: Any, new: Any) -> Any:
    """Move the entries of a dictionary's slots to a larger, empty table."""
    mask = new.shape[0] - 1
    for k in range(old.shape[0]):
        entry = old[k]
        if entry != 0:
            slot = (entry >> _BLANK) & mask
            while new[slot] != 0:
                slot = (slot + 1) & mask
            new[slot] = entry


def _compile(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        compiled: Any = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to write the cache: neither beside this file nor in the user's folder
        compiled = njit(**options)(function)
    news = function is _scan and not _cached(compiled)
    if news:
        sys.stderr.write("tracekit: compiling the trace scanner, once; this takes a few seconds...\n")
    compiled.compile(signature)
    compiled.disable_compile()
    return cast("Callable[..., Any]", compiled)


def _cached(dispatcher: Any) -> bool:
    """Say whether numba has the function in its cache; when its insides have changed, say yes and keep quiet."""
    try:
        return bool(dispatcher._cache._cache_file._load_index())
    except AttributeError:
        return True


_ROWS = types.Array(_INT, 2, "C")
_LIST = types.Array(_INT, 1, "C")
_RAW = types.Array(types.uint8, 1, "C")
_SCAN = _INT(
    _RAW, _INT, _INT, types.Array(types.uint64, 1, "C"), _ROWS, _LIST, _LIST, _RAW, _LIST, types.boolean, types.boolean
)
scan = _compile(_scan, _SCAN)
split = _compile(_split, types.void(_ROWS, _INT, _ROWS, _LIST, _LIST, _LIST))
regrow = _compile(_regrow, types.void(_LIST, _LIST))
