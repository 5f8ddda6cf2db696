# ruff: noqa: PLR0911, PLR0912, PLR1714, SIM109
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""Numbers: integers, and microseconds with a fraction, to integers, never by way of a float."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import called, inlined, trailing_zeros, word_at
from tracekit.parsers.kineto.scanner.columns import NULL, POWERS, Column
from tracekit.parsers.kineto.scanner.words import (
    BLANK,
    BRACE_END,
    BRACKET_END,
    COMMA,
    HIGHS,
    MINUS,
    PLUS,
    POINT,
    low_bytes,
)

_ZERO, _NINE, _E, _E_BIG, _N, _U, _T, _F = b"09eEnutf"
_ZEROS = np.uint64(0x3030303030303030)
_NINES = np.uint64(0x7676767676767676)  # lifts everything above nine over the high bit
_8, _16, _32 = np.array([8, 16, 32], np.uint64)
_PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_TENS, _HUNDREDS, _MYRIADS = np.uint64(2561), np.uint64(6553601), np.uint64(42949672960001)
_LIMIT = 922337203685477580  # a tenth of the greatest int64
_STREAM = np.frombuffer(b"stream \0", "<u8")[0]
_TS, _DUR, _TID = int(Column.TS), int(Column.DUR), int(Column.TID)


@inlined
def _digits(buf: Any, i: Any) -> Any:
    """How many of the eight bytes at *i* are digits before the first that is not one, and the number they make."""
    word = word_at(buf, i) ^ _ZEROS
    other = ((word + _NINES) | word) & HIGHS
    count = 8 if other == 0 else trailing_zeros(other) >> 3
    if count == 0:
        return 0, 0
    word <<= np.uint64(64 - 8 * count)
    word = (word * _TENS) >> _8 & _PAIRS
    word = (word * _HUNDREDS) >> _16 & _FOURS
    return count, np.int64((word * _MYRIADS) >> _32)


@inlined
def common_number(buf: Any, i: Any, end: Any, thousands: Any, keys: Any) -> Any:
    """Read the number at *i* in the ways real files write it, up to 16 digits before the point; returns where it ends.

    Anything else (signs, exponents, longer numbers, words) returns an end of -1 and is left to ``read_number``.
    """
    count, value = _digits(buf, i)
    if count == 0:
        return -1, 0
    i += count
    if count == 8:
        count, more = _digits(buf, i)
        value = value * np.int64(keys[POWERS + count]) + more
        i += count
        if value > 9_000_000_000_000_000:  # a thousand times this no longer fits
            return -1, 0
    shift = 3 if thousands else 0
    if buf[i] == POINT:
        count, more = _digits(buf, i + 1)
        if count == 0 or count > 3 or shift == 0:
            return -1, 0
        value = value * 1000 + more * np.int64(keys[POWERS + 3 - count])
        shift = 0
        i += 1 + count
    c = buf[i]
    if i >= end or (c > BLANK and c != COMMA and c != BRACE_END and c != BRACKET_END):
        return -1, 0
    return i, value * 1000 if shift else value


@inlined
def lawful(buf: Any, i: Any) -> Any:
    """Whether a bare word starts as JSON allows: a number, true, false or null. ``NaN``, ``inf``, ``N/A`` do not."""
    c = buf[i]
    if c == MINUS:
        c = buf[i + 1]
    if _ZERO <= c <= _NINE:
        return True
    if c == _N:
        return buf[i + 1] == _U
    return c == _T or c == _F


@called
def read_number(buf: Any, i: Any, end: Any, thousands: Any) -> Any:
    """Read the number in ``buf[i:end]``, all of it, times 1 or 1000, cut to an integer; NULL if none or too big."""
    negative = buf[i] == MINUS
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
    if i < end and buf[i] == POINT:
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
        down = i < end and buf[i] == MINUS
        if down or (i < end and buf[i] == PLUS):
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


@called
def quoted_number(buf: Any, i: Any, end: Any, column: Any) -> Any:
    """Read a number written as a string; of a thread, "stream 7" counts too (files of 2021)."""
    if column == _TID and end - i > 7 and low_bytes(word_at(buf, i), 7) == _STREAM:
        i += 7
    if i >= end:
        return NULL
    return read_number(buf, i, end, column == _TS or column == _DUR)
