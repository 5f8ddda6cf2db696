# ruff: noqa: PLR0917
# Compiled loops: plain indexes, and many arguments because nothing may be allocated.
"""Rows to columns, columns to pieces of memory as small as they can be, and the pieces of all chunks to one column."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit._util.compiled import as_bytes, as_ints, as_shorts, called
from tracekit.parsers.kineto.scanner.columns import NARROW, NULL, NULL32, SPARSE, WIDTH

_MOST = 2**63 - 1


@called
def spill(tile: Any, count: Any, columns: Any, room: Any, at: Any, held: Any, bounds: Any) -> Any:
    """Write *count* rows behind the first *at* of the columns, and note of each its least, its greatest and how many.

    *held* has the bit of each column that may have a value. A column that had none yet is not written at all.
    """
    for c in range(WIDTH):
        there = bounds[2 * WIDTH + c]
        column = c * room
        if held >> c & 1 == 0:
            if there > 0:
                for r in range(count):
                    columns[column + at + r] = NULL
            continue
        if there == 0:
            for r in range(at):
                columns[column + r] = NULL
        least, most = bounds[c], bounds[WIDTH + c]
        for r in range(count):
            value = tile[r * WIDTH + c]
            columns[column + at + r] = value
            least = min(least, _MOST if value == NULL else value)
            most = max(most, value)
            there += 0 if value == NULL else 1
        bounds[c], bounds[WIDTH + c], bounds[2 * WIDTH + c] = least, most, there


@called
def forget(bounds: Any) -> Any:
    """Start the bounds anew."""
    for c in range(WIDTH):
        bounds[c], bounds[WIDTH + c], bounds[2 * WIDTH + c] = _MOST, NULL, 0


def pack(columns: Any, count: Any, plan: Any) -> Any:
    """Copy the first *count* rows of each column as *plan* says: how it is kept, and where its values and rows go."""
    room = columns.shape[1]
    source = np.int64(columns.ctypes.data)
    for c in range(WIDTH):
        values = as_ints(source + c * room * 8)
        narrow, wide, where = as_shorts(plan[c, 1]), as_ints(plan[c, 1]), as_shorts(plan[c, 2])
        how = plan[c, 0]
        if how == NARROW:
            for r in range(count):
                narrow[r] = values[r]
        elif how == NARROW + 1:
            for r in range(count):
                wide[r] = values[r]
        elif how > SPARSE:
            k = 0
            for r in range(count):
                if values[r] != NULL:
                    where[k] = r
                    if how == SPARSE + NARROW:
                        narrow[k] = values[r]
                    else:
                        wide[k] = values[r]
                    k += 1


def gather(pieces: Any, column: Any) -> Any:
    """Put a column together, ``NULL`` where there is nothing.

    A piece is its first row, how many rows and how many values it has, how it is kept and where, and its first code.
    """
    start = np.int64(column.ctypes.data)
    for p in range(pieces.shape[0]):
        out, rows, count, how = as_ints(start + 8 * pieces[p, 0]), pieces[p, 1], pieces[p, 2], pieces[p, 3]
        narrow, wide, where = as_shorts(pieces[p, 4]), as_ints(pieces[p, 4]), as_shorts(pieces[p, 5])
        if how == NARROW:
            for r in range(rows):
                value = np.int64(narrow[r])
                out[r] = NULL if value == NULL32 else value
            continue
        if how == NARROW + 1:
            for r in range(rows):
                out[r] = wide[r]
            continue
        for r in range(rows):
            out[r] = NULL
        for k in range(count):
            out[where[k]] = narrow[k] if how == SPARSE + NARROW else wide[k]


def mark(pieces: Any, used: Any) -> Any:
    """Mark which of the codes of text a column uses; all pieces are narrow."""
    for p in range(pieces.shape[0]):
        codes, marks = as_shorts(pieces[p, 4]), as_bytes(np.int64(used.ctypes.data) + pieces[p, 6])
        for k in range(pieces[p, 2]):
            if codes[k] != NULL32:
                marks[codes[k]] = 1


def translate(pieces: Any, numbers: Any, column: Any) -> Any:
    """Put a column of text together: *numbers* has what stands for each code, and last what stands for none."""
    start, none = np.int64(column.ctypes.data), np.int32(numbers[numbers.shape[0] - 1])
    for p in range(pieces.shape[0]):
        out, rows, count, how = as_shorts(start + 4 * pieces[p, 0]), pieces[p, 1], pieces[p, 2], pieces[p, 3]
        table = as_shorts(np.int64(numbers.ctypes.data) + 4 * pieces[p, 6])
        codes, where = as_shorts(pieces[p, 4]), as_shorts(pieces[p, 5])
        if how == NARROW:
            for r in range(rows):
                out[r] = none if codes[r] == NULL32 else table[codes[r]]
            continue
        for r in range(rows):
            out[r] = none
        for k in range(count):
            out[where[k]] = table[codes[k]]
