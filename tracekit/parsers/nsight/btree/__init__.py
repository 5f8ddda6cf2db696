"""Rows of a table straight from the pages of an sqlite file: a tenth of what asking sqlite for each row costs.

sqlite's file format is public and does not change. Read here is what exports consist of: tables with rowids, and in
their wanted columns integers and nulls, text, or bytes. All else is left to sqlite, which knows it all: wherever a byte
is not as expected ``read_columns`` raises ``UnusualError``, and nothing that it read is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit._util.native import Native
from tracekit.parsers.nsight.btree.columns import BytesColumn, NumberColumn
from tracekit.parsers.nsight.btree.layout import BLOB, KEY, NUMBER, SMALLEST_CELL, TEXT
from tracekit.parsers.nsight.btree.pages import Bytes, Numbers, PageFile, UnusualError
from tracekit.parsers.nsight.btree.schema import Stored, find_stored

__all__ = ["BLOB", "NUMBER", "TEXT", "Stored", "UnusualError", "find_stored", "read_columns"]

THREADS = 2
BLOCK_BYTES = 1 << 22
"""Of the file, read at once by each thread."""

_decode = Native(
    "int64(uint8[::1], int64, int64[:,::1], int64[:,::1], uint8[:,::1], int64[::1])",
    "tracekit.parsers.nsight.btree.cells:decode",
    Path(__file__).parent,
)
_gather = Native(
    "void(uint8[::1], int64[::1], uint8[::1])", "tracekit.parsers.nsight.btree.cells:gather", Path(__file__).parent
)


def read_columns(path: Path, table: Stored, wanted: Mapping[str, int]) -> pl.DataFrame:
    """Return columns as what each is *wanted*: ``NUMBER`` as Int64; ``TEXT`` and ``BLOB`` as Binary, empty for null."""
    # The compiled loop goes through a row from left to right.
    ordered = sorted(wanted, key=table.places.__getitem__)
    plan = np.array([[table.places[name] for name in ordered], [_form(table, name, wanted[name]) for name in ordered]])
    try:
        with PageFile(path) as pages:
            leaves = pages.leaves(table.root)
            threads = THREADS if len(leaves) * pages.size > 2 * BLOCK_BYTES else 1
        with ThreadPoolExecutor(threads) as pool:
            runs = list(pool.map(lambda run: _read_run(path, run, plan), np.array_split(leaves, threads)))
    except OSError as error:
        raise UnusualError("cannot be read") from error
    rowids = [ends for run in runs for ends in run.rowids]
    if any(before[1] >= after[0] for before, after in pairwise(rowids)):
        raise UnusualError("rows out of order")
    joined = {}
    for name in ordered:  # one after the other, and its parts are gone: so not all columns are there twice
        parts: list[Any] = [run.columns.pop(0) for run in runs]
        joined[name] = parts[0].join(parts)
    return pl.DataFrame({name: joined[name] for name in wanted})


def _form(table: Stored, name: str, wanted: int) -> int:
    if wanted == NUMBER and name == table.key:
        return KEY
    if name == table.key or (wanted == NUMBER and name not in table.numbers):
        raise UnusualError("a column of something else")
    return wanted


class _Run(NamedTuple):
    """What one thread has read: columns, and the first and the last rowid of each block."""

    columns: list[NumberColumn | BytesColumn]
    rowids: list[list[int]]


def _read_run(path: Path, leaves: Numbers, plan: Numbers) -> _Run:
    """Return the rows of *leaves*, a block at a time, decoded in memory that is used again for the next."""
    run = _Run([BytesColumn() if form in (TEXT, BLOB) else NumberColumn() for form in plan[1]], [])
    with PageFile(path) as pages:
        size, step = pages.size, max(1, BLOCK_BYTES // pages.size)
        raw = np.empty(min(step, len(leaves)) * size, np.uint8)
        values, present = _room(len(plan[0]), 0)
        rowids = np.empty(2, np.int64)
        for at in range(0, len(leaves), step):
            data = pages.read(leaves[at : at + step], raw)
            rows = _count_rows(data, size)
            if rows > values.shape[1]:
                values, present = _room(len(plan[0]), rows * 9 // 8)
            if _decode(data, size, plan, values, present, rowids) != rows:
                raise UnusualError("a row that is left to sqlite")
            run.rowids.append(rowids.tolist())
            expected = rows * (len(leaves) // step + 1) * 9 // 8
            for i, column in enumerate(run.columns):
                if isinstance(column, NumberColumn):
                    column.add(values[i, :rows], present[i, :rows], expected)
                else:
                    column.add(data, values[i, :rows], _gather)
    return run


def _room(columns: int, rows: int) -> tuple[Numbers, Bytes]:
    return np.empty((columns, rows), np.int64), np.ones((columns, rows), np.uint8)


def _count_rows(data: Bytes, size: int) -> int:
    """Return how many rows leaves say they hold."""
    cells = data[3::size].astype(np.int64) << 8 | data[4::size]
    if cells.max() > size // SMALLEST_CELL:
        raise UnusualError("more rows than a page can hold")
    return int(cells.sum())
