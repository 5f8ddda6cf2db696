# ruff: noqa: PLR1714
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""Bytes, eight at a time: what every step of the scanner is made of. Importing it needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import called, inlined, trailing_zeros, word_at

BLANK, QUOTE, COMMA, COLON, MINUS, PLUS, POINT = b' ",:-+.'
BRACKET, BRACKET_END, BRACE, BRACE_END = b"[]{}"
CUT, BROKEN = -1, -2  # results of a step: the buffer ended; no JSON (minus the position)
ONE = np.uint64(1)

_ONES = np.uint64(0x0101010101010101)
HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_FOLD = np.uint64(0xDFDFDFDFDFDFDFDF)  # clears the bit that parts "{" from "[" and "}" from "]"
_OPENS = np.uint64(0x5B5B5B5B5B5B5B5B)
_CLOSES = np.uint64(0x5D5D5D5D5D5D5D5D)
_COMMAS = np.uint64(0x2C2C2C2C2C2C2C2C)
_BLANKS = np.uint64(0x2121212121212121)  # one more than the last blank
_LOWS = np.uint64(0x7F7F7F7F7F7F7F7F)
_LIFT = np.uint64(0x5F5F5F5F5F5F5F5F)  # lifts everything above a blank over the high bit


@inlined
def zero_bytes(word: Any) -> Any:
    """Return the high bit of each zero byte; exact up to the first, which is all that is used."""
    return (word - _ONES) & ~word & HIGHS


@inlined
def low_bytes(word: Any, count: Any) -> Any:
    """Keep the first *count* (under 8) bytes of a word, the rest zero."""
    return word & ((ONE << np.uint64(count * 8)) - ONE)


@called
def space(buf: Any, i: Any, end: Any) -> Any:
    """Step over blanks and line breaks."""
    if buf[i] > BLANK:
        return i
    if buf[i + 1] > BLANK:
        return i + 1 if i < end else i
    while i < end:
        word = word_at(buf, i)
        others = (((word & _LOWS) + _LIFT) | word) & HIGHS
        if others != 0:
            return min(i + (trailing_zeros(others) >> 3), end)
        i += 8
    return end


@inlined
def text_end(buf: Any, i: Any, end: Any) -> Any:
    """Find the closing quote of the string whose first byte is at *i*."""
    while i < end:
        word = word_at(buf, i)
        hits = zero_bytes(word ^ _QUOTES) | zero_bytes(word ^ _SLASHES)
        if hits == 0:
            i += 8
            continue
        i += trailing_zeros(hits) >> 3
        if i >= end:
            return CUT
        if buf[i] == QUOTE:
            return i
        i += 2
    return CUT


@inlined
def _all_zero_bytes(word: Any) -> Any:
    """Return the high bit of each zero byte, and no other."""
    return ~(((word & _LOWS) + _LOWS) | word | _LOWS)


@called
def skip(buf: Any, i: Any, end: Any) -> Any:
    """Find the place after the array or object at *i*. A quote must be followed by what may follow a string."""
    depth = 0
    while i < end:
        word = word_at(buf, i)
        folded = word & _FOLD
        opens, closes = _all_zero_bytes(folded ^ _OPENS), _all_zero_bytes(folded ^ _CLOSES)
        quotes = zero_bytes(word ^ _QUOTES)
        if quotes != 0:  # only what stands before the string counts
            before = (quotes & (~quotes + ONE)) - ONE
            opens, closes = opens & before, closes & before
        hits = opens | closes
        while hits != 0:
            lowest = hits & (~hits + ONE)
            depth += 1 if opens & lowest else -1
            if depth == 0:
                i += (trailing_zeros(lowest) >> 3) + 1
                return i if i <= end else CUT
            hits ^= lowest
        if quotes == 0:
            i += 8
            continue
        i = text_end(buf, i + (trailing_zeros(quotes) >> 3) + 1, end)
        if i < 0:
            return CUT
        i = space(buf, i + 1, end)
        if i >= end:
            return CUT
        c = buf[i]
        if c != COMMA and c != COLON and c != BRACKET_END and c != BRACE_END:
            return BROKEN - i
    return CUT


@inlined
def scalar_end(buf: Any, i: Any, end: Any) -> Any:
    """Where the bare word or number at *i* ends: at a blank, a comma, or a closing bracket or brace."""
    while i < end:
        word = word_at(buf, i)
        hits = zero_bytes(word ^ _COMMAS) | zero_bytes((word & _FOLD) ^ _CLOSES)
        hits |= (word - _BLANKS) & ~word & HIGHS
        if hits == 0:
            i += 8
            continue
        i += trailing_zeros(hits) >> 3
        return i if i < end else CUT
    return CUT
