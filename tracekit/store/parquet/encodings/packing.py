# ruff: noqa: PLR0917
# Compiled loops: plain indexes, and many arguments because nothing may be allocated.
"""The loops over values, compiled. Importing it needs numba.

Parquet packs numbers of a fixed count of bits one behind the other, the lowest bit of a byte first, which is what words
of 64 bits hold on any machine of today. So everything is written here as bits behind bits, headers too: ``at`` counts
bits, and all bits of the word that ``at`` is in are zero from there on. A column is written page by page, each ending
with a whole byte: *ends* says where the values of each page end, and *sizes* receives where its bytes do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import as_bytes, as_shorts, as_words, called, inlined
from tracekit.store.parquet.encodings.layout import BLOCK, MINIBLOCK, RUN_BITS, RUN_BYTES

_WORD = 64
# Numbers with a type: numba compiles a function anew for every plain number that it is passed.
_START, _BYTE = np.int64(0), np.int64(8)
_SPREAD = 0x9E3779B97F4A7C15  # the golden ratio of 64 bits: products with it lie far apart, however near the numbers


@inlined
def _put(out: Any, at: Any, value: Any, width: Any) -> Any:
    """Write the *width* bits of a value; return where they end."""
    place, used = at >> 6, at & 63
    out[place] |= value << np.uint64(used)
    if used + width >= _WORD:  # shifted twice, because no number can be shifted by all its bits
        out[place + 1] = value >> np.uint64(1) >> np.uint64(_WORD - 1 - used)
    return at + width


@inlined
def _varint(out: Any, at: Any, value: Any) -> Any:
    """Write a number of any length, seven bits to a byte, the lowest first; the eighth says that more follow."""
    while value >= np.uint64(128):
        at = _put(out, at, value & np.uint64(127) | np.uint64(128), _BYTE)
        value >>= np.uint64(7)
    return _put(out, at, value, _BYTE)


@inlined
def _zigzag(value: Any) -> Any:
    """Turn a signed number into one that is small where it is near 0: 0, -1, 1, -2 into 0, 1, 2, 3."""
    signed = np.int64(value)
    return np.uint64(signed << 1) ^ np.uint64(signed >> 63)


@inlined
def _pack(out: Any, at: Any, values: Any, start: Any, end: Any, width: Any) -> Any:
    """Write the *width* bits of each of many values; return where they end."""
    place, used = at >> 6, at & 63
    word = out[place]
    for i in range(start, end):
        value = values[i]
        word |= value << np.uint64(used)
        used += width
        if used >= _WORD:
            out[place] = word
            place += 1
            used -= _WORD
            word = value >> np.uint64(1) >> np.uint64(width - used - 1)
    out[place] = word
    return (place << 6) + used


@inlined
def _repeats(values: Any, start: Any, end: Any) -> Any:
    """How often a value is repeated from *start* on, before *end*."""
    i = start + 1
    while i < end and values[i] == values[start]:
        i += 1
    return i - start


def dense(memory: Any, itemsize: int, valid: Any, step: int, out: Any, ends: Any) -> None:
    """Put those values side by side whose bit in *valid* is set; *ends*: where pages of *step* rows end among them.

    *memory* holds words of 64 or 32 bits, and may be *out*. Where no bit is set it is not touched.
    """
    wide, narrow, bits = as_words(memory.ctypes.data), as_shorts(memory.ctypes.data), as_bytes(valid.ctypes.data)
    target, count, size = as_words(out.ctypes.data), 0, len(memory) // itemsize
    for page in range(len(ends)):
        end = min((page + 1) * step, size)
        for k in range(page * step >> 3, end >> 3):
            byte = bits[k]
            if byte:
                for j in range(8):  # what is not there is written too, and the next over it
                    target[count] = wide[8 * k + j] if itemsize == 8 else np.uint64(narrow[8 * k + j])
                    count += byte >> j & 1
        for i in range(end >> 3 << 3, end):
            target[count] = wide[i] if itemsize == 8 else np.uint64(narrow[i])
            count += bits[i >> 3] >> (i & 7) & 1
        ends[page] = count


def number(values: Any, keys: Any, codes: Any, first: Any, out: Any) -> int:
    """Number the values in the order they are first seen, and note in *first* where; -1 where *first* is too short.

    *keys* and *codes* are a table with room for more: where a value is looked for, and its number (0: none is there).
    """
    source, target = as_words(values.ctypes.data), as_words(out.ctypes.data)
    held, numbers = as_words(keys.ctypes.data), as_words(codes.ctypes.data)
    count, mask = 0, len(keys) - 1
    for i in range(len(values)):
        value = source[i]
        place = np.int64(value * np.uint64(_SPREAD) >> np.uint64(40)) & mask
        code = numbers[place]
        while code and held[place] != value:
            place = (place + 1) & mask
            code = numbers[place]
        if not code:
            if count == len(first):
                return -1
            first[count] = i
            count += 1
            code = np.uint64(count)
            held[place] = value
            numbers[place] = code
        target[i] = code - np.uint64(1)
    return count


@called
def _hybrid(values: Any, start: Any, stop: Any, width: Any, out: Any, at: Any) -> Any:
    least = max(8, RUN_BITS // width)
    i = start
    while i < stop:
        end = i
        while end < stop and (end + least > stop or _repeats(values, end, end + least) < least):
            end += 8
        if end > i:
            at = _varint(out, at, np.uint64((end - i) >> 3 << 1 | 1))
            at = _pack(out, at, values, i, min(end, stop), width)
            for _ in range(stop, end):
                at = _put(out, at, np.uint64(0), width)
            i = end
        if i < stop:
            run = _repeats(values, i, stop)
            at = _varint(out, at, np.uint64(run << 1))
            at = _put(out, at, values[i], (width + 7) >> 3 << 3)
            i += run
    return at


def hybrid(indices: Any, ends: Any, width: int, packed: Any, sizes: Any) -> None:
    """Write values of *width* bits as runs of one value and, where none is long enough to pay, packed by eights."""
    values, out = as_words(indices.ctypes.data), as_words(packed.ctypes.data)
    at = start = _START
    out[0] = np.uint64(0)
    for page in range(len(ends)):
        at = _hybrid(values, start, ends[page], width, out, at)
        start, sizes[page] = ends[page], at >> 3


@called
def _levels(bits: Any, start: Any, rows: Any, out: Any, at: Any) -> Any:
    i, whole, size = start >> 3, rows >> 3, (rows + 7) >> 3
    while i < size:
        end = i
        while end < size:
            alike = (bits[end] == 0 or bits[end] == 255) and end + RUN_BYTES <= whole
            if alike and _repeats(bits, end, end + RUN_BYTES) == RUN_BYTES:
                break
            end += 1
        if end > i:
            at = _varint(out, at, np.uint64((end - i) << 1 | 1))
            for k in range(i, end):
                there = bits[k] if k < whole else bits[k] & ((1 << (rows & 7)) - 1)  # of the last byte, those of rows
                at = _put(out, at, np.uint64(there), _BYTE)
            i = end
        if i < size:
            run = _repeats(bits, i, whole)
            at = _varint(out, at, np.uint64(run << 4))
            at = _put(out, at, np.uint64(bits[i] & 1), _BYTE)
            i += run
    return at


def levels(valid: Any, rows: int, step: int, packed: Any, sizes: Any) -> None:
    """Write bits as ``hybrid`` writes values of one bit: they are packed already, and runs are found in whole bytes."""
    bits, out = as_bytes(valid.ctypes.data), as_words(packed.ctypes.data)
    at = _START
    out[0] = np.uint64(0)
    for page in range(len(sizes)):
        at = _levels(bits, page * step, min((page + 1) * step, rows), out, at)
        sizes[page] = at >> 3


@inlined
def _lower(values: Any, start: Any, least: Any, guess: Any) -> Any:
    """Take *least* from the values of a miniblock; return how many bits the greatest then has, from a *guess* on."""
    every = np.uint64(0)
    for k in range(start, start + MINIBLOCK):
        value = values[k] - least
        values[k] = value
        every |= value
    width = guess
    while width < _WORD and every >> np.uint64(width):
        width += 1
    while width and not every >> np.uint64(width - 1):
        width -= 1
    return width


@called
def _delta(values: Any, start: Any, stop: Any, room: Any, out: Any, at: Any) -> Any:
    at = _varint(out, at, np.uint64(BLOCK))
    at = _varint(out, at, np.uint64(BLOCK // MINIBLOCK))
    at = _varint(out, at, np.uint64(stop - start))
    at = _varint(out, at, _zigzag(values[start] if start < stop else np.uint64(0)))
    width = _START
    for i in range(start + 1, stop, BLOCK):
        count = min(BLOCK, stop - i)
        least = np.int64(values[i] - values[i - 1])
        for k in range(count):
            difference = values[i + k] - values[i + k - 1]
            room[k] = difference
            least = min(least, np.int64(difference))
        for k in range(count, BLOCK):
            room[k] = np.uint64(least)
        at = _varint(out, at, _zigzag(np.uint64(least)))
        widths = at
        for low in range(0, BLOCK, MINIBLOCK):
            width = _lower(room, low, np.uint64(least), width)
            at = _put(out, at, np.uint64(width), _BYTE)
        for low in range(0, count, MINIBLOCK):
            noted = widths + 8 * (low // MINIBLOCK)
            used = np.int64(out[noted >> 6] >> np.uint64(noted & 63) & np.uint64(255))
            if used:
                at = _pack(out, at, room, low, low + MINIBLOCK, used)
    return at


def delta(numbers: Any, ends: Any, block: Any, packed: Any, sizes: Any) -> None:
    """Write values as their differences, each less the least of its block, packed as narrow as its miniblock allows.

    Differences wrap around, and so do the sums that a reader takes. *block* is room for the differences of one.
    """
    values, room, out = as_words(numbers.ctypes.data), as_words(block.ctypes.data), as_words(packed.ctypes.data)
    at = start = _START
    out[0] = np.uint64(0)
    for page in range(len(ends)):
        at = _delta(values, start, ends[page], room, out, at)
        start, sizes[page] = ends[page], at >> 3
