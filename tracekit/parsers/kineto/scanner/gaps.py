# ruff: noqa: PLR0911, PLR0912, PLR0917
# A compiled loop: calls with arrays in them and tuples to compare with cost more than they tidy.
"""From one value to the next: the key between them, read byte by byte or known from before.

A profiler writes the same bytes between two values again and again: ``, "tid": `` behind a process, or a line break and
``"args": {`` behind a duration. So what was once read between two values is remembered with the key it stands behind,
and where the same bytes stand there again, they need not be read. Nothing else decides: all bytes are compared, and
what they mean depends on them and on the level alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import called, inlined, word_at
from tracekit.parsers.kineto.scanner.columns import (
    ARGS,
    GAP_LEAST,
    GAP_MOST,
    GAP_WAYS,
    GAP_WIDTH,
    GAPS,
    KEY_BYTES,
    MIX,
    SLOT_WIDTH,
    SLOTS,
    UNKNOWN,
)
from tracekit.parsers.kineto.scanner.state import COLUMN, LEVEL, SLOT
from tracekit.parsers.kineto.scanner.words import (
    BRACE,
    BRACE_END,
    BROKEN,
    COLON,
    COMMA,
    CUT,
    QUOTE,
    low_bytes,
    space,
    text_end,
)

CLOSED = -2  # in place of a column: the event ends here
_MIX = np.uint64(MIX)
_57 = np.uint64(57)
_REPLACE = GAP_WIDTH - 1  # of a key's first entry: which of them is replaced next


@called
def slot_of(buf: Any, i: Any, length: Any, level: Any, keys: Any) -> Any:
    """Find the key at *i*, or -1. Compares the whole key: no two keys are ever taken for each other."""
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
                return slot
        slot = (slot + 1) % SLOTS


@inlined
def known_gap(buf: Any, i: Any, end: Any, slot: Any, keys: Any) -> Any:
    """Return where the bytes at *i* are remembered among those behind the key in *slot*, or -1."""
    at = GAPS + slot * (GAP_WAYS * GAP_WIDTH)
    first = word_at(buf, i)
    for _ in range(GAP_WAYS):
        length = np.int64(keys[at]) & 0xFF
        if keys[at + 1] == first and length != 0 and i + length < end and word_at(buf, i + length - 8) == keys[at + 2]:
            k = 1
            while 8 * k < length - 8 and word_at(buf, i + 8 * k) == keys[at + 2 + k]:
                k += 1
            if 8 * k >= length - 8:
                return at
        at += GAP_WIDTH
    return -1


@called
def _remember(buf: Any, i: Any, after: Any, before: Any, slot: Any, level: Any, column: Any, keys: Any) -> None:
    """Remember ``buf[i:after]`` behind the key in slot *before*, in place of the bytes that were remembered longest."""
    length = after - i
    if length < GAP_LEAST or length > GAP_MOST:
        return
    base = GAPS + before * (GAP_WAYS * GAP_WIDTH)
    way = np.int64(keys[base + _REPLACE])
    keys[base + _REPLACE] = np.uint64((way + 1) % GAP_WAYS)
    at = base + way * GAP_WIDTH
    keys[at] = np.uint64(length | slot << 8 | level << 24 | (column + 2) << 32)
    keys[at + 1] = word_at(buf, i)
    keys[at + 2] = word_at(buf, after - 8)
    k = 1
    while 8 * k < length - 8:
        keys[at + 2 + k] = word_at(buf, i + 8 * k)
        k += 1


@called
def next_value(
    buf: Any, i: Any, end: Any, before: Any, level: Any, args: Any, started: Any, keys: Any, state: Any, learn: Any
) -> Any:
    """Find the next value from *i*, behind the value of the key in slot *before*, or behind the brace of the event.

    Returns its place, or the end of the event, or how it failed. ``state`` takes the column, the slot and the level.
    """
    begin = i
    while True:
        i = space(buf, i, end)
        if i >= end:
            return CUT
        if started:
            if buf[i] == COMMA:
                i = space(buf, i + 1, end)
                if i >= end:
                    return CUT
            elif buf[i] != BRACE_END:
                return BROKEN - i
        if buf[i] == BRACE_END:
            i += 1
            if level == 0:
                if learn:
                    _remember(buf, begin, i, before, level, level, np.int64(CLOSED), keys)
                state[COLUMN] = CLOSED
                return i
            level = np.int64(0)
            started = True
            continue
        if buf[i] != QUOTE:
            return BROKEN - i
        first = i + 1
        i = text_end(buf, first, end)
        if i < 0:
            return CUT
        slot = slot_of(buf, first, i - first, level, keys)
        column = np.int64(keys[slot * SLOT_WIDTH + 5]) if slot >= 0 else np.int64(-1)
        i = space(buf, i + 1, end)
        if i >= end:
            return CUT
        if buf[i] != COLON:
            return BROKEN - i
        i = space(buf, i + 1, end)
        if i >= end:
            return CUT
        if column == ARGS and buf[i] == BRACE:
            level = args
            i += 1
            started = False
            continue
        if slot < 0:
            slot = UNKNOWN + level
        if learn and column != ARGS:  # whether those are read on or skipped depends on what follows
            _remember(buf, begin, i, before, slot, level, column, keys)
        state[COLUMN], state[SLOT], state[LEVEL] = column, slot, level
        return i
