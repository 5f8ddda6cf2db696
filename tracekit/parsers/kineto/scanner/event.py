# ruff: noqa: PLR0911, PLR0912, PLR0915, PLR0917, PLR1714, SIM109
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""One event: an object whose wanted keys become a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit.parsers.kineto.scanner.columns import (
    ARGS,
    FIRST_TEXT,
    KEY_BYTES,
    MIX,
    NULL,
    PHASE,
    SLOT_WIDTH,
    SLOTS,
    WIDTH,
    Column,
)
from tracekit.parsers.kineto.scanner.numbers import common_number, lawful, quoted_number, read_number
from tracekit.parsers.kineto.scanner.state import LOST, ODD, SEEN
from tracekit.parsers.kineto.scanner.words import (
    BRACE,
    BRACE_END,
    BRACKET,
    BROKEN,
    COLON,
    COMMA,
    CUT,
    QUOTE,
    called,
    low_bytes,
    scalar_end,
    skip,
    space,
    text_end,
    word_at,
)

_MIX = np.uint64(MIX)
_57 = np.uint64(57)
_N = ord("n")
_TS, _DUR = int(Column.TS), int(Column.DUR)


@called
def column_of(buf: Any, i: Any, length: Any, level: Any, keys: Any) -> Any:
    """Find the column of the key at *i*, or -1. Compares the whole key: no two keys are ever taken for each other."""
    if length > KEY_BYTES or length == 0:
        return -1
    tag = np.uint64(length | level << 8)
    first = word_at(buf, i) if length >= 8 else low_bytes(word_at(buf, i), length)
    slot = np.int64(((first ^ tag) * _MIX) >> _57)
    while True:
        at = slot * SLOT_WIDTH
        if keys[at] == 0:
            return -1
        if keys[at] == tag and keys[at + 1] == first:
            rest, k, same = length - 8, 1, True
            while rest > 0 and same:
                word = word_at(buf, i + 8 * k)
                if rest < 8:
                    word = low_bytes(word, rest)
                same = word == keys[at + 1 + k]
                rest -= 8
                k += 1
            if same:
                return np.int64(keys[at + 5])
        slot = (slot + 1) % SLOTS


@called
def read_event(buf: Any, start: Any, end: Any, keys: Any, row: Any, ends: Any, state: Any, args: Any) -> Any:
    """Read the object at *start* into *row*: numbers as they are, of text the first byte (its end goes to *ends*).

    *args* is the level of its arguments' keys. Returns the place after it, or how it failed.
    ``state[SEEN]`` takes the phase (1 when it is no single letter), ``state[ODD]`` how many bare words are not
    JSON, ``state[LOST]`` whether a time is not a number.
    """
    for c in range(WIDTH):
        row[c] = NULL
    phase: Any
    phase, level, odd, lost = 0, 0, 0, 0
    i = start + 1
    while True:
        i = space(buf, i, end)
        if i >= end:
            return CUT
        c = buf[i]
        if c == BRACE_END:
            i += 1
            if level == 0:
                break
            level = 0
            i = space(buf, i, end)
            if i >= end:
                return CUT
            if buf[i] == COMMA:
                i += 1
            elif buf[i] != BRACE_END:
                return BROKEN - i
            continue
        if c != QUOTE:
            return BROKEN - i
        first = i + 1
        i = text_end(buf, first, end)
        if i < 0:
            return CUT
        column = column_of(buf, first, i - first, level, keys)
        i = space(buf, i + 1, end)
        if i >= end:
            return CUT
        if buf[i] != COLON:
            return BROKEN - i
        i = space(buf, i + 1, end)
        if i >= end:
            return CUT
        c = buf[i]
        first = i
        if c == QUOTE:
            first = i + 1
            last = text_end(buf, first, end)
            if last < 0:
                return CUT
            i = last + 1
            if column == PHASE:
                phase = np.int64(buf[first]) if last == first + 1 else 1
            elif column >= FIRST_TEXT and column < WIDTH:
                row[column] = first
                ends[column - FIRST_TEXT] = last
            elif column >= 0 and column < FIRST_TEXT:
                row[column] = quoted_number(buf, first, last, column)
                if (column == _TS and row[column] == NULL) or (column == _DUR and row[column] < 0):
                    lost = 1
        elif c == BRACE or c == BRACKET:
            if column == ARGS and c == BRACE:
                level = args
                i += 1
                continue
            i = skip(buf, i, end)
            if i < 0:
                return i
            if column >= FIRST_TEXT and column < WIDTH:
                row[column] = first
                ends[column - FIRST_TEXT] = i
            elif column == _TS or column == _DUR:
                lost = 1
        else:
            if column >= 0 and column < FIRST_TEXT:
                i, value = common_number(buf, first, end, column == _TS or column == _DUR, keys)
                if i > 0:
                    row[column] = value
                    column = -1
                else:
                    i = scalar_end(buf, first, end)
            else:
                i = scalar_end(buf, first, end)
            if i < 0:
                return CUT
            if i == first:
                return BROKEN - i
            if not lawful(buf, first):
                odd += 1
                if column == _TS or column == _DUR:
                    lost = 1
            elif column >= 0 and column < FIRST_TEXT:
                row[column] = read_number(buf, first, i, column == _TS or column == _DUR)
                if column == _DUR and (row[column] < 0):
                    lost = 1
            elif column >= FIRST_TEXT and column < WIDTH and buf[first] != _N:
                row[column] = first
                ends[column - FIRST_TEXT] = i
        i = space(buf, i, end)
        if i >= end:
            return CUT
        if buf[i] == COMMA:
            i += 1
        elif buf[i] != BRACE_END:
            return BROKEN - i
    state[SEEN] = phase
    state[ODD] = odd
    state[LOST] = lost
    return i
