"""Integers of a table straight from the pages of an sqlite file: a tenth of what asking sqlite for each row costs.

sqlite's file format is public and does not change. Read here is what exports consist of, tables with rowids whose
wanted columns hold integers and nulls. All else is left to sqlite, which knows it all: ``read_integers`` raises
``UnusualError`` wherever a byte is not as expected, and nothing that it read is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._util.native import Native
from tracekit.parsers.nsight.btree.layout import SMALLEST_CELL
from tracekit.parsers.nsight.btree.pages import Bytes, Numbers, PageFile, UnusualError
from tracekit.parsers.nsight.btree.schema import Stored, find_stored

__all__ = ["Stored", "UnusualError", "find_stored", "read_integers"]

THREADS = 2
BLOCK_BYTES = 1 << 22
"""Of the file, read at once by each thread."""

_decode = Native(
    "int64(uint8[::1], int64, int64[::1], int64[:,::1], uint8[:,::1], int64[::1])",
    "tracekit.parsers.nsight.btree.cells:decode",
    Path(__file__).parent,
)


def read_integers(path: Path, table: Stored, columns: Sequence[str]) -> Any:
    """Return *columns* as an Arrow table of 64-bit integers, in the order of the rows."""
    import pyarrow as pa

    if any(name not in table.places for name in columns):
        raise UnusualError("a column of something else")
    # The compiled loop goes through a row from left to right.
    ordered = sorted(columns, key=table.places.__getitem__)
    places = np.array([table.places[name] for name in ordered])
    try:
        with PageFile(path) as pages:
            leaves = pages.leaves(table.root)
            threads = THREADS if len(leaves) * pages.size > 2 * BLOCK_BYTES else 1
        with ThreadPoolExecutor(threads) as pool:
            runs = list(pool.map(lambda run: _read_run(path, run, places), np.array_split(leaves, threads)))
    except OSError as error:
        raise UnusualError("cannot be read") from error
    parts = [part for run in runs for part in run]
    if any(before.last >= after.first for before, after in pairwise(parts)):
        raise UnusualError("rows out of order")
    joined = {name: _joined([part.columns.pop(0) for part in parts]) for name in ordered}
    return pa.table({name: joined[name] for name in columns})


class _Column(NamedTuple):
    """The values of a column, and which of them are none where any is."""

    values: npt.NDArray[np.int64]
    present: npt.NDArray[np.uint8] | None


class _Part(NamedTuple):
    """The columns of one block of leaves, and the first and the last rowid."""

    columns: list[_Column]
    first: int
    last: int


def _joined(parts: list[_Column]) -> Any:
    """Return the parts of one column as an Arrow array in one piece: to gather from many takes six times as long."""
    import pyarrow as pa

    values = np.concatenate([np.empty(0, np.int64), *(part.values for part in parts)])
    bits = None
    if any(part.present is not None for part in parts):
        present = [np.ones(len(p.values), np.uint8) if p.present is None else p.present for p in parts]
        bits = pa.py_buffer(np.packbits(np.concatenate(present), bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(values)])


def _read_run(path: Path, leaves: Numbers, places: Numbers) -> list[_Part]:
    """Return the rows of *leaves*, a block at a time, in memory that is used again for the next."""
    parts = []
    with PageFile(path) as pages:
        size, step = pages.size, max(1, BLOCK_BYTES // pages.size)
        raw = np.empty(min(step, len(leaves)) * size, np.uint8)
        values, present = _room(len(places), 0)
        rowids = np.empty(2, np.int64)
        for at in range(0, len(leaves), step):
            data = pages.read(leaves[at : at + step], raw)
            rows = _count_rows(data, size)
            if rows > values.shape[1]:
                values, present = _room(len(places), rows * 9 // 8)
            if _decode(data, size, places, values, present, rowids) != rows:
                raise UnusualError("a row that is left to sqlite")
            columns = [_taken(values[i, :rows], present[i, :rows]) for i in range(len(places))]
            parts.append(_Part(columns, *rowids.tolist()))
    return parts


def _room(columns: int, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    return np.empty((columns, rows), np.int64), np.ones((columns, rows), np.uint8)


def _count_rows(data: Bytes, size: int) -> int:
    """Return how many rows leaves say they hold."""
    cells = data[3::size].astype(np.int64) << 8 | data[4::size]
    if cells.max() > size // SMALLEST_CELL:
        raise UnusualError("more rows than a page can hold")
    return int(cells.sum())


def _taken(values: npt.NDArray[np.int64], present: npt.NDArray[np.uint8]) -> _Column:
    """Return a copy of a column, and *present* as it was before, all ones."""
    gaps = None
    if not present.all():
        gaps = present.copy()
        present.fill(1)
    return _Column(values.copy(), gaps)
