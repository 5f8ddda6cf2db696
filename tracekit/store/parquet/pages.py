"""The pages of one column of one group of rows: one with its distinct values, where it has such, and those of its rows.

A page is a header and a body. The body of rows says which of them are null (definition levels, behind their length) and
then holds the values that are there. Either all pages are compressed or none, depending on what a part of them gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from zlib_ng import zlib_ng

from tracekit.errors import OutputError
from tracekit.store.parquet.thrift import Structure, structure

PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8
UNCOMPRESSED, GZIP = 0, 2
_DATA, _DICTIONARY = 0, 2
"""Encodings, codecs and kinds of pages, as ``parquet.thrift`` numbers them."""

LEVEL = 1
"""Of gzip: what encoding leaves hardly becomes smaller at a higher one."""
_GZIP_HEADER = 31
LEAST_BYTES = 64
"""What is shorter is never compressed: gzip's frame alone takes 18."""
PROBE_BYTES = 1 << 13
"""Of the first page, compressed to see what it gives."""
MOST_BYTES = (1 << 31) - 1
"""A page's header says how many it has, in 32 bits."""
WORTH = 0.8
"""Compressed where less than this share of the probe is left, since a reader has to undo it."""


class Rows(NamedTuple):
    """What one page of rows holds."""

    size: int
    levels: bytes
    values: bytes


class Pages(NamedTuple):
    """All pages one behind the other."""

    codec: int
    data: bytes
    dictionary_bytes: int
    """How many of them are the page of distinct values; 0 without one."""
    uncompressed_bytes: int


def pages(encoding: int, rows: Sequence[Rows], distinct: tuple[int, bytes] | None = None) -> Pages:
    r"""Return pages of rows, behind a page of the *distinct* values if their number and bytes are given.

    >>> made = pages(PLAIN, [Rows(1, b"\2\1", b"data")])
    >>> made.codec, made.data[-10:], made.dictionary_bytes
    (0, b'\x02\x00\x00\x00\x02\x01data', 0)
    """
    bodies = [len(page.levels).to_bytes(4, "little") + page.levels + page.values for page in rows]
    values = b"" if distinct is None else distinct[1]
    codec = _codec(bodies[0] if sum(map(len, bodies)) >= len(values) else values)
    made = [
        _page(codec, body, _DATA, {5: _of_rows(page.size, encoding)}) for page, body in zip(rows, bodies, strict=True)
    ]
    first = 0
    if distinct is not None:
        made.insert(0, _page(codec, values, _DICTIONARY, {7: {1: distinct[0], 2: PLAIN}}))
        first = len(made[0][0])
    return Pages(codec, b"".join(page for page, _ in made), first, sum(size for _, size in made))


def _page(codec: int, body: bytes, kind: int, about: dict[int, Any]) -> tuple[bytes, int]:
    """Return a page, and how many bytes it would be if it were not compressed."""
    if len(body) > MOST_BYTES:
        raise OutputError(
            f"the texts of one column take {len(body) / 1e9:.1f} GB, and a page of Parquet holds 2",
            hint="analyze the trace itself, or record it with shorter names",
        )
    packed = zlib_ng.compress(body, LEVEL, _GZIP_HEADER) if codec == GZIP else body
    header = structure({1: kind, 2: len(body), 3: len(packed), **about})
    return header + packed, len(header) + len(body)


@lru_cache(maxsize=256)
def _of_rows(size: int, encoding: int) -> Structure:
    """Return what a header says about rows: most pages have as many."""
    return structure({1: size, 2: encoding, 3: RLE, 4: RLE})


def _codec(body: bytes) -> int:
    """Return how a column is best kept whose larger part, rows or distinct values, begins with *body*."""
    probe = body[:PROBE_BYTES]
    pays = len(probe) >= LEAST_BYTES and len(zlib_ng.compress(probe, LEVEL, _GZIP_HEADER)) < WORTH * len(probe)
    return GZIP if pays else UNCOMPRESSED
