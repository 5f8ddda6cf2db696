"""The memory in which polars has a column: its values and which of them are there, without a copy.

Arrow's C interface is how libraries hand each other columns: structures in memory, of a layout that is fixed for good.
Polars offers it without pyarrow, and this is all that is needed of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.store.parquet.encodings import Bits


class _Array(ctypes.Structure):
    """``ArrowArray``: a column, or a table whose columns are its children."""


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    """``ArrowArrayStream``: gives a table's pieces one by one."""


_Stream._fields_ = [
    ("get_schema", ctypes.c_void_p),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

_KINDS: dict[Any, type[np.generic]] = {
    **{pl.Int32: np.int32, pl.Int64: np.int64, pl.Float32: np.float32},
    **{pl.UInt8: np.uint8, pl.UInt16: np.uint16, pl.UInt32: np.uint32},
}
"""What numbers may be: those of a table, and those that stand for texts."""


class Column(NamedTuple):
    """A column's numbers, what stands under a null being anything, and which are there."""

    values: npt.NDArray[Any]
    valid: Bits | None
    """None: all are there."""
    nulls: int


@contextmanager
def columns(frame: pl.DataFrame) -> Iterator[list[Column]]:
    """Give the columns of a table of numbers in one chunk, with rows; their memory is good inside the context.

    >>> with columns(pl.DataFrame({"a": [7, None, 9]})) as (column,):
    ...     column.values[[0, 2]].tolist(), f"{column.valid[0] & 0b111:b}", column.nulls
    ([7, 9], '101', 1)
    """
    capsule = frame.__arrow_c_stream__(None)  # it releases the stream when it goes
    stream, table = _Stream.from_address(_pointer(capsule, b"arrow_array_stream")), _Array()
    if stream.get_next(stream, table):
        raise RuntimeError("polars does not give its columns")
    try:
        if table.length != frame.height:
            raise RuntimeError("polars does not give its columns in one piece")
        kinds = [_KINDS[dtype] for dtype in frame.dtypes]
        yield [_column(table.children[k].contents, np.dtype(kind), table.offset) for k, kind in enumerate(kinds)]
    finally:
        table.release(table)


def _column(array: Any, kind: np.dtype[Any], offset: int) -> Column:
    valid, values = array.buffers[0], array.buffers[1]
    offset, rows = offset + array.offset, array.length
    numbers = np.frombuffer(_memory(values + offset * kind.itemsize, rows * kind.itemsize), kind)
    if not array.null_count:
        return Column(numbers, None, 0)
    skipped = offset % 8
    bits = np.frombuffer(_memory(valid + offset // 8, (skipped + rows + 7) // 8), np.uint8)
    if skipped:
        bits = np.packbits(np.unpackbits(bits, bitorder="little")[skipped : skipped + rows], bitorder="little")
    return Column(numbers, bits, array.null_count)


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)
