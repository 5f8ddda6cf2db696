"""Values to bytes, as Parquet's specification of encodings says: levels, dictionary indices and differences.

Definition levels (0: null, 1: there) and indices into a dictionary are runs of one value mixed with values packed by
eights; numbers that rise are their differences, packed in blocks as narrow as they are.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit._util.native import Native
from tracekit.store.parquet.encodings.layout import BLOCK

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
"""One for each row, the lowest of a byte first."""

_LOOPS, _FOLDER = "tracekit.store.parquet.encodings.packing", Path(__file__).parent

_dense = Native("void(uint8[::1], int64, uint8[::1], int64, uint64[::1], int64[::1])", f"{_LOOPS}:dense", _FOLDER)
_number = Native("int64(uint64[::1], uint64[::1], uint64[::1], int64[::1], uint64[::1])", f"{_LOOPS}:number", _FOLDER)
_hybrid = Native("void(uint64[::1], int64[::1], int64, uint64[::1], int64[::1])", f"{_LOOPS}:hybrid", _FOLDER)
_levels = Native("void(uint8[::1], int64, int64, uint64[::1], int64[::1])", f"{_LOOPS}:levels", _FOLDER)
_delta = Native("void(uint64[::1], int64[::1], uint64[::1], uint64[::1], int64[::1])", f"{_LOOPS}:delta", _FOLDER)

DISTINCT = (512, 8192)
"""Values a dictionary is tried with, the smaller table first: it stays in the fastest memory."""


_SHORT = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """Return a number of any length: seven bits to a byte, the lowest first; the eighth says that more follow.

    >>> varint(1).hex(), varint(300).hex()
    ('01', 'ac02')
    """
    if value < 128:
        return _SHORT[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def run(value: int, count: int, width: int = 1) -> bytes:
    """Return a run of one value of *width* bits.

    >>> run(1, 100).hex()
    'c80101'
    """
    return varint(count << 1) + value.to_bytes((width + 7) // 8, "little")


class Encoder:
    """Encodes columns of at most *rows* rows, one after the other, in memory that all of them share.

    What comes back has an item for each page of at most *step* rows, or for each page whose values end at *ends*.

    >>> encoder = Encoder(8)
    >>> [page.hex() for page in encoder.levels(np.array([0b101], np.uint8), 3, 8)]
    ['0305']
    >>> [page.hex() for page in encoder.delta(np.array([1, 2, 3, 4, 5], np.uint64), np.array([5]))]
    ['80010405020200000000']
    """

    def __init__(self, rows: int) -> None:
        self._wide, self._codes = np.empty(rows, np.uint64), np.empty(rows, np.uint64)
        self._block = np.empty(BLOCK, np.uint64)
        self._packed = np.empty(rows + rows // 16 + 64, np.uint64)  # differences as wide as words, and their headers

    def words(self, values: npt.NDArray[Any], valid: Bits | None, step: int) -> tuple[Words, Ints]:
        """Return values as words of 64 bits, without those that are not *valid*, and where pages end among them.

        They are good until the next call.

        >>> Encoder(3).words(np.array([7, 8, 9], np.uint8), np.array([0b101], np.uint8), 8)
        (array([7, 9], dtype=uint64), array([2]))
        """
        ends = np.minimum(np.arange(step, len(values) + step, step), len(values))
        if values.itemsize < 4 or (valid is None and values.itemsize < 8):
            words = self._wide[: len(values)]
            words[:] = values.view(f"u{values.itemsize}")
            values = words
        if valid is None:
            return values.view(np.uint64), ends
        _dense(values.view(np.uint8), values.itemsize, valid, step, self._wide, ends)
        return self._wide[: ends[-1]], ends

    def levels(self, valid: Bits, rows: int, step: int) -> list[bytes]:
        """Return which of the rows are there."""
        sizes = np.empty(-(-rows // step), np.int64)
        _levels(valid, rows, step, self._packed, sizes)
        return self._pages(sizes)

    def delta(self, words: Words, ends: Ints) -> list[bytes]:
        """Return numbers as differences (DELTA_BINARY_PACKED)."""
        sizes = np.empty_like(ends)
        _delta(words, ends, self._block, self._packed, sizes)
        return self._pages(sizes)

    def dictionary(self, words: Words, most: int) -> tuple[Words, Words] | None:
        """Return the distinct values as first seen, and of every value its index; None where they are more than *most*.

        >>> Encoder(4).dictionary(np.array([7, 9, 9, 7], np.uint64), 8)
        (array([7, 9], dtype=uint64), array([0, 1, 1, 0], dtype=uint64))
        """
        for room in dict.fromkeys(min(count, most) for count in (*DISTINCT, most)):
            size = 1 << (2 * room).bit_length()
            first, codes = np.empty(room, np.int64), self._codes[: len(words)]
            count = _number(words, np.empty(size, np.uint64), np.zeros(size, np.uint64), first, codes)
            if count >= 0:
                return words[first[:count]], codes
        return None

    def indices(self, codes: Words, ends: Ints, width: int) -> list[bytes]:
        """Return indices of *width* bits each."""
        sizes = np.empty_like(ends)
        _hybrid(codes, ends, width, self._packed, sizes)
        return self._pages(sizes)

    def _pages(self, sizes: Ints) -> list[bytes]:
        made = self._packed.view(np.uint8)[: sizes[-1]].tobytes()
        return [made[start:end] for start, end in pairwise((0, *sizes.tolist()))]
