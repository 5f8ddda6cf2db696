"""What sqlite's file format says of files, pages and rows, as far as it is read here: sqlite.org/fileformat2.html."""

from __future__ import annotations

import numpy as np

MAGIC = b"SQLite format 3\x00"
HEADER = 100
"""Bytes of the file's header, on its first page."""
LOCK_BYTE = 1 << 30
"""The page that holds this byte of the file is never used."""

INTERIOR, LEAF = 0x05, 0x0D
"""The first byte of a page of a table with rowids."""
INTERIOR_HEADER, LEAF_HEADER = 12, 8
"""Bytes of a page before the places of its cells."""
DEEPEST = 20
"""sqlite follows no tree deeper than this."""

SMALLEST_CELL = 6
"""Bytes of a page that a row takes at least, with its place."""
LARGEST_ROW = 1_000_000_000
"""Bytes of the longest row that sqlite takes, unless it is built otherwise."""
SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1])
"""Type of a value → its bytes: null, integers, a real, 0 and 1; the last two are sqlite's own."""
NUMBER, TEXT, BLOB, KEY = range(4)
"""What a column is read as: integers and nulls, text or bytes (none where there is no value), or the rowid."""
SPAN_BITS = 32
"""A text or bytes among numbers: where it begins on the pages, and in this many low bits how long it is."""
UNUSUAL = -1
"""Instead of a number of rows: these are left to sqlite."""
