"""The columns of a table: what the footer says of each, and how its values are encoded in each group of rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.store.parquet.buffers import Column
from tracekit.store.parquet.encodings import DISTINCT, Encoder, Ints, Words, run
from tracekit.store.parquet.pages import DELTA_BINARY_PACKED, PLAIN, RLE, RLE_DICTIONARY, Rows, pages
from tracekit.store.parquet.thrift import Long

RISING = frozenset(
    ("id", "start_ns", "end_ns", "at_ns", "launch_ns", "correlation", "external_id", "op_id", "sequence",
     "autograd_sequence")
)  # fmt: skip
"""Columns with another value on nearly every row, close to that of the row before. All others repeat few values."""
LIMITS = ("start_ns", "end_ns", "at_ns", "step")
"""Columns whose least and greatest values are noted for each group of rows, so that a reader can pass groups over."""
PAGE_ROWS = 1 << 15
"""Rows that a reader unpacks to get one of them. A group with fewer values than that, or with one, is a single page."""

_INT32, _INT64, _FLOAT, _BYTE_ARRAY = 1, 2, 4, 6
_OPTIONAL, _UTF8 = 1, 0
_STRING: dict[int, Any] = {1: {}}
"""Types as ``parquet.thrift`` numbers them: a column may be null, and bytes are text (in the old and the new way)."""
_KINDS: dict[Any, int] = {
    **{pl.Int32: _INT32, pl.Int64: _INT64, pl.Float32: _FLOAT},
    **{pl.Categorical: _BYTE_ARRAY, pl.Enum: _BYTE_ARRAY},
}


class _Encoded(NamedTuple):
    encoding: int
    values: list[bytes]
    """Of each page."""
    step: int
    """Rows of each page but the last."""
    distinct: Words | None = None


class _Texts(dict[int, bytes]):
    """The texts that a column's numbers stand for, each behind its length; kept for the next group, if they are few."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self._dtype = dtype

    def __missing__(self, code: int) -> bytes:
        text: bytes = self._dtype.categories[code].encode()
        self[code] = len(text).to_bytes(4, "little") + text
        return self[code]


class Field:
    """A column of the table.

    >>> Field("step", pl.Int64()).element()
    {1: 2, 3: 1, 4: 'step'}
    """

    def __init__(self, name: str, dtype: pl.DataType) -> None:
        if dtype.base_type() not in _KINDS:
            raise TypeError(f"{name}: a store has no columns of type {dtype}")
        self.name, self.dtype, self.kind = name, dtype, _KINDS[dtype.base_type()]
        self._texts = _Texts(dtype)

    def element(self) -> dict[int, Any]:
        """Return what the footer's schema says about it."""
        text = {6: _UTF8, 10: _STRING} if self.kind == _BYTE_ARRAY else {}
        return {1: self.kind, 3: _OPTIONAL, 4: self.name, **text}

    def chunk(self, column: Column, encoder: Encoder, place: int) -> tuple[bytes, dict[int, Any]]:
        """Return the column of one group of rows as bytes that go to *place*, and what the footer says about them."""
        rows, there = len(column.values), len(column.values) - column.nulls
        step = PAGE_ROWS if there > PAGE_ROWS else rows
        words, ends = encoder.words(column.values, column.valid, step) if there else (_NONE, _NOWHERE)
        made = self._encoded(words, ends, step, rows, encoder)
        counts = [min(made.step, rows - start) for start in range(0, rows, made.step)]
        if column.valid is None or not there:
            levels = [run(int(there > 0), count) for count in counts]
        else:
            levels = encoder.levels(column.valid, rows, made.step)
        distinct = None if made.distinct is None else (len(made.distinct), self._plain(made.distinct))
        written = pages(made.encoding, [*map(Rows, counts, levels, made.values)], distinct)
        return written.data, {
            1: self.kind,
            2: [RLE, made.encoding, *([] if distinct is None else [PLAIN])],
            3: [self.name],
            4: written.codec,
            5: Long(rows),
            6: Long(written.uncompressed_bytes),
            7: Long(len(written.data)),
            9: Long(place + written.dictionary_bytes),
            11: None if distinct is None else Long(place),
            12: _limits(words, column.nulls) if self.name in LIMITS else None,
        }

    def _encoded(self, words: Words, ends: Ints, step: int, rows: int, encoder: Encoder) -> _Encoded:
        """Encode values: rising ones as differences, others as indices into the distinct ones if these are few.

        Where these are many, numbers of 64 bits are differences too, and all else is kept as it is.
        """
        if not len(words):
            return _Encoded(PLAIN, [b""], rows)
        rising = self.kind == _INT64 and self.name in RISING
        most = max(DISTINCT[-1], len(words) // 2 if self.kind == _BYTE_ARRAY else 0)
        if not rising and (made := encoder.dictionary(words, most)):
            distinct, codes = made
            if len(distinct) == 1:  # its index needs no bits, which not all readers expect
                return _Encoded(RLE_DICTIONARY, [bytes([1]) + run(0, len(words))], rows, distinct)
            width = (len(distinct) - 1).bit_length()
            indices = [bytes([width]) + page for page in encoder.indices(codes, ends, width)]
            return _Encoded(RLE_DICTIONARY, indices, step, distinct)
        if self.kind == _INT64:
            return _Encoded(DELTA_BINARY_PACKED, encoder.delta(words, ends), step)
        return _Encoded(PLAIN, [self._plain(words[start:end]) for start, end in pairwise((0, *ends))], step)

    def _plain(self, words: Words) -> bytes:
        """Return values one behind the other, texts behind their lengths."""
        if self.kind != _BYTE_ARRAY:
            return words.astype(np.uint64 if self.kind == _INT64 else np.uint32).tobytes()
        if len(self._texts) > DISTINCT[-1]:
            self._texts.clear()
        return b"".join(map(self._texts.__getitem__, words.tolist()))


_NONE, _NOWHERE = np.empty(0, np.uint64), np.empty(0, np.int64)


def _limits(words: Words, nulls: int) -> dict[int, Any]:
    """Return the number of nulls, and the greatest and the least value if there are values."""
    if not len(words):
        return {3: Long(nulls)}
    values = words.view(np.int64)
    return {3: Long(nulls), 5: values.max().tobytes(), 6: values.min().tobytes()}
