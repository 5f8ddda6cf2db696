"""Compact encoding of tables for the page's scripts: columns of integers, deflated, as base64.

``assets/columns.js`` reads them. A column is written as planes (the lowest byte of every value,
then the next byte of every value): the upper planes are mostly zeros, which deflate well. Signs go
into the lowest bit, so that negative numbers near 0 stay small.
"""

import base64
import json
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np
import polars as pl

from tracekit.documents.page import PackedColumns

MAX_VALUE = (1 << 31) - 1


def pack_columns(
    table: pl.DataFrame, *, differences: Collection[str] = (), unit_ns: int = 1
) -> PackedColumns:
    r"""Return columns of integers as base64 of deflated planes.

    *differences* are stored as steps from row to row.

    >>> packed = pack_columns(pl.DataFrame({"row": [3, 4]}), differences=["row"])
    >>> packed.count, packed.columns, zlib.decompress(base64.b64decode(packed.data))
    (2, [('row', 1, True)], b'\x06\x02')
    """
    planes = []
    header = []
    for column in table:
        numbers = column.to_numpy().astype(np.int64)
        steps = np.diff(numbers, prepend=0) if column.name in differences else numbers
        # 0, -1, 1, -2 … become 0, 1, 2, 3 …
        folded = ((steps << 1) ^ (steps >> 63)).astype("<u4")
        width = max(1, (int(folded.max(initial=0)).bit_length() + 7) // 8)
        planes.append(folded.view(np.uint8).reshape(table.height, 4).T[:width].tobytes())
        header.append((column.name, width, column.name in differences))
    return PackedColumns(table.height, header, unit_ns, _deflated(b"".join(planes)))


def pack_intervals(table: pl.DataFrame) -> PackedColumns:
    """Return intervals (``start_ns``, ``end_ns``), sorted by start, and further columns.

    Times that do not fit are in units of several nanoseconds.
    """
    start_ns = table["start_ns"].to_numpy()
    end_ns = table["end_ns"].to_numpy()
    longest_step_ns = int(np.diff(start_ns, prepend=0).max(initial=0))
    longest_ns = int((end_ns - start_ns).max(initial=0))
    unit_ns = max(longest_step_ns, longest_ns) // MAX_VALUE + 1
    start = pl.col("start_ns") // unit_ns
    end = pl.col("end_ns") // unit_ns
    columns = table.select(
        start.alias("start"), (end - start).alias("length"), pl.exclude("start_ns", "end_ns")
    )
    return pack_columns(columns, differences=["start"], unit_ns=unit_ns)


def pack_json(value: Any) -> str:
    """Return plain data as base64 of deflated JSON."""
    return _deflated(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode()
