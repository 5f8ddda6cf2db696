# ruff: noqa: PLR0911, PLR0912, PLR0917, PLR1714
# A compiled loop: plain indexes, and every doubt has its own way out.
"""The rows on leaf pages to columns, compiled. Importing it needs numba.

Nothing here trusts the bytes. What is not exactly as sqlite writes such rows is left to sqlite: ``decode`` then returns
``UNUSUAL``, having read nothing outside the pages and written nothing outside the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import as_bytes, inlined, reversed_bytes, word_at
from tracekit.parsers.nsight.btree.layout import (
    BLOB,
    KEY,
    LARGEST_ROW,
    LEAF,
    LEAF_HEADER,
    NUMBER,
    SIZES,
    SMALLEST_CELL,
    SPAN_BITS,
    TEXT,
    UNUSUAL,
)

_PAST = -1  # where a number ends that does not end on its page
_LONG = 12  # from here on a type says how long its value is: bytes where it is even, text where it is odd
_WORD = 8


@inlined
def _short(data: Any, at: Any) -> Any:
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@inlined
def _varint(data: Any, at: Any, end: Any) -> Any:
    """Return the number at *at*, of one to nine bytes, and where it ends."""
    value = np.int64(0)
    for k in range(9):
        if at >= end:
            return value, np.int64(_PAST)
        byte = np.int64(data[at])
        at += 1
        if k == 8:
            return value << 8 | byte, at
        value = value << 7 | (byte & 0x7F)
        if byte < 0x80:
            break
    return value, at


@inlined
def _integer(data: Any, end: Any, length: Any) -> Any:
    """Return the signed number of *length* bytes that ends at *end*. Eight bytes or more of its page stand before."""
    unused = 64 - 8 * length
    return np.int64(reversed_bytes(word_at(data, end - _WORD))) << unused >> unused


@inlined
def _on_page(payload: Any, size: Any) -> Any:
    """How many bytes of a row stand on its leaf page; the rest overflows to pages of its own."""
    if payload <= size - 35:
        return payload
    least = (size - 12) * 32 // 255 - 23
    fitting = least + (payload - least) % (size - 4)
    return fitting if fitting <= size - 35 else least


@inlined
def _row(
    data: Any, at: Any, here: Any, payload: Any, rowid: Any, wanted: Any, values: Any, present: Any, row: Any
) -> Any:
    """Read one row of *payload* bytes at *at*, of which *here* are on its page; return whether it is as usual.

    A row is a header, its own length and the type of each column, and then the values one behind the other.
    """
    header, kind_at = _varint(data, at, at + here)
    if kind_at < 0 or header < 1 or header > here:
        return False
    kinds_end = at + header
    value_end = kinds_end
    column = 0
    for w in range(wanted.shape[1]):
        kind, length = np.int64(0), np.int64(0)
        while column <= wanted[0, w]:
            if kind_at >= kinds_end:
                return False  # written before the column was added
            kind = np.int64(data[kind_at])
            if kind < 0x80:
                kind_at += 1
            else:
                kind, kind_at = _varint(data, kind_at, kinds_end)
                if kind_at < 0 or kind < 0 or kind > 2 * LARGEST_ROW:
                    return False
            length = SIZES[kind] if kind < _LONG else (kind - _LONG) >> 1
            value_end += length
            if length < 0 or value_end > at + payload:
                return False
            column += 1
        form = wanted[1, w]
        if form == NUMBER:
            if kind == 0:
                values[w, row] = 0
                present[w, row] = 0
            elif kind < 7 and value_end <= at + here:
                values[w, row] = _integer(data, value_end, length)
            elif kind == 8 or kind == 9:
                values[w, row] = kind - 8
            else:
                return False
        elif form == KEY and kind == 0:
            values[w, row] = rowid
        elif kind == 0:
            values[w, row] = 0
        elif kind >= _LONG and form == (TEXT if kind & 1 else BLOB) and value_end <= at + here:
            values[w, row] = (value_end - length) << SPAN_BITS | length
        else:
            return False
    return kind_at < kinds_end or value_end == at + payload


def decode(pages: Any, size: Any, wanted: Any, values: Any, present: Any, rowids: Any) -> Any:
    """Fill *values* with the *wanted* columns of all rows on leaf *pages*; return how many rows there are.

    *wanted* has their places in a row, ascending, and below what each is read as. *values* and *present*, which comes
    filled with ones, have room for every row; a null is a zero in both. *rowids* receives the first and the last.
    """
    data = as_bytes(np.int64(pages.ctypes.data))
    rows = 0
    for base in range(0, len(pages) - size + 1, size):
        end = base + size
        cells = _short(data, base + 3)
        first_cell = base + LEAF_HEADER + 2 * cells
        if data[base] != LEAF or cells < 1 or cells > size // SMALLEST_CELL or rows + cells > values.shape[1]:
            return UNUSUAL
        for cell in range(cells):
            at = base + _short(data, base + LEAF_HEADER + 2 * cell)
            if at < first_cell:
                return UNUSUAL
            payload, at = _varint(data, at, end)
            if at < 0 or payload < 1 or payload > LARGEST_ROW:
                return UNUSUAL
            rowid, at = _varint(data, at, end)
            if at < 0 or (rows > 0 and rowid <= rowids[1]):
                return UNUSUAL
            if rows == 0:
                rowids[0] = rowid
            rowids[1] = rowid
            here = _on_page(payload, size)
            if at + here + (4 if here < payload else 0) > end:
                return UNUSUAL
            if not _row(data, at, here, payload, rowid, wanted, values, present, rows):
                return UNUSUAL
            rows += 1
    return rows


def gather(pages: Any, spans: Any, out: Any) -> Any:
    """Copy texts, or bytes, from *pages* to *out*, one behind the other; it has room for all *spans*."""
    data, target = as_bytes(np.int64(pages.ctypes.data)), as_bytes(np.int64(out.ctypes.data))
    k = 0
    for span in spans:
        start = span >> SPAN_BITS
        for i in range(span & ((1 << SPAN_BITS) - 1)):
            target[k + i] = data[start + i]
        k += span & ((1 << SPAN_BITS) - 1)
