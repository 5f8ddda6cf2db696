# ruff: noqa: PLR0911, PLR0912, PLR0915, PLR0917, PLR1714, SIM109
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""One event: an object whose wanted keys become a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import called
from tracekit.parsers.kineto.scanner.columns import (
    FIRST_TEXT,
    NULL,
    PHASE,
    START,
    WIDTH,
    Column,
)
from tracekit.parsers.kineto.scanner.gaps import CLOSED, known_gap, next_value
from tracekit.parsers.kineto.scanner.numbers import common_number, lawful, quoted_number, read_number
from tracekit.parsers.kineto.scanner.state import COLUMN, HELD, LEVEL, LOST, ODD, SEEN, SLOT
from tracekit.parsers.kineto.scanner.words import (
    BLANK,
    BRACE,
    BRACKET,
    BROKEN,
    CUT,
    QUOTE,
    scalar_end,
    skip,
    space,
    text_end,
)

_PLAIN = 1  # the level of arguments, see ``columns.key_table``
_N = ord("n")
_TS, _DUR = int(Column.TS), int(Column.DUR)


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
    slot: Any
    level: Any
    column: Any
    phase, odd, lost, held = 0, 0, 0, 0
    level = np.int64(0)  # and not just 0: for each type that an argument has a function is compiled again
    plain = args == _PLAIN  # only then: what is behind a key of the event depends on which arguments are asked for
    slot = np.int64(START)
    i = start + 1
    while True:
        at = known_gap(buf, i, end, slot, keys) if plain else -1
        if at >= 0:
            gap = np.int64(keys[at])
            i += gap & 0xFF
            column, level, slot = (gap >> 32) - 2, gap >> 24 & 0xFF, gap >> 8 & 0xFFFF
        else:
            i = next_value(buf, i, end, slot, level, args, slot != START, keys, state, plain)
            if i < 0:
                return i
            column, level, slot = state[COLUMN], state[LEVEL], state[SLOT]
        if column == CLOSED:
            break
        if column >= 0:
            held |= 1 << (column & 63)
        c = buf[i]
        if c <= BLANK:  # behind a gap that was known without it
            i = space(buf, i, end)
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
    state[HELD] |= held
    state[SEEN] = phase
    state[ODD] = odd
    state[LOST] = lost
    return i
