"""Boxes on rows, packed small for the page: columns of integers, deflated."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import polars as pl

BOXES = pl.Schema(
    {
        "row": pl.UInt16(),
        "kind": pl.UInt8(),
        "half": pl.UInt8(),  # 0 the whole height, 1 its upper half, 2 its lower half
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "stage": pl.Int16(),
        "microbatch": pl.Int16(),
    }
)
WAITING = pl.Schema(
    {
        "cause": pl.Int8(),  # what held the cell up once its inputs were there: an index of the causes; -1 nothing
        "wait_ns": pl.Int64(),
        "after": pl.Int32(),  # the cell it waited for last: an index of the cells' names; -1 none
        "path_ns": pl.Int64(),  # its time on the critical path
    }
)


def last_ns(table: pl.DataFrame) -> int:
    """Return the last end in a table, 1 where it is empty."""
    return int(table["end_ns"].to_numpy().max(initial=1))


def pack(boxes: pl.DataFrame) -> dict[str, Any]:
    r"""Return boxes as base64 of deflated little-endian columns; starts are differences, which deflate well.

    >>> one = pl.DataFrame({name: [1] for name in BOXES}, schema=BOXES).with_columns(end_ns=pl.lit(4))
    >>> packed = pack(one)
    >>> packed["count"], zlib.decompress(base64.b64decode(packed["data"]))[:2]
    (1, b'\x01\x00')
    """
    schema = {**BOXES, **(WAITING if "after" in boxes.columns else {})}
    boxes = boxes.select(pl.col(name).cast(dtype) for name, dtype in schema.items()).sort("row", "start_ns")
    start, length = boxes["start_ns"].to_numpy(), (boxes["end_ns"] - boxes["start_ns"]).to_numpy()
    unit = max(1, -(-last_ns(boxes) // (1 << 30)))
    columns = [
        boxes["row"].to_numpy().astype("<u2"),
        boxes["kind"].to_numpy().astype("<u1"),
        boxes["half"].to_numpy().astype("<u1"),
        np.diff(start // unit, prepend=0).astype("<i4"),
        (length // unit).astype("<i4"),
        boxes["stage"].fill_null(-1).to_numpy().astype("<i2"),
        boxes["microbatch"].fill_null(-1).to_numpy().astype("<i2"),
    ]
    if "after" in boxes.columns:
        columns += [
            boxes["cause"].fill_null(-1).to_numpy().astype("<i1"),
            (boxes["wait_ns"].fill_null(0).to_numpy() // unit).astype("<i4"),
            boxes["after"].fill_null(-1).to_numpy().astype("<i4"),
            (boxes["path_ns"].fill_null(0).to_numpy() // unit).astype("<i4"),
        ]
    raw = b"".join(column.tobytes() for column in columns)
    about = {"count": len(boxes), "unit_ns": unit, "waiting": "after" in boxes.columns}
    return {**about, "data": base64.b64encode(zlib.compress(raw, 9)).decode()}
