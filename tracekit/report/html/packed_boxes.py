"""Compact encoding of boxes on rows for the page's scripts: columns of integers, deflated, as base64.

``unpack`` in ``assets/boxes.js`` reads what ``pack_boxes`` writes: the columns of ``BOX_COLUMNS`` and, if the boxes
have them, of ``CELL_COLUMNS``, one after the other without padding.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import polars as pl

MAX_TIME = 1 << 30
"""Largest time in packed units: above it in nanoseconds, the unit is several nanoseconds."""

# name → (type in the file, value for null); times are in packed units, ``start`` as differences between boxes.
BOX_COLUMNS = {
    "row": ("<u2", 0),
    "kind": ("<u1", 0),  # index of the colour and the legend entry
    "part": ("<u1", 0),  # 0 the whole height of the row, 1 its upper half, 2 its lower half
    "start_ns": ("<i4", 0),
    "end_ns": ("<i4", 0),  # packed as length
    "stage": ("<i2", -1),
    "microbatch": ("<i2", -1),
}
CELL_COLUMNS = {
    "cause": ("<i1", -1),  # index of the cause that held the cell up once its inputs were ready
    "wait_ns": ("<i4", 0),  # how long it did
    "after": ("<i4", -1),  # index of the cell whose output it waited for last
    "path_ns": ("<i4", 0),  # its time on the critical path
}


def pack_boxes(boxes: pl.DataFrame) -> dict[str, Any]:
    r"""Return boxes, sorted by row and start, as base64 of deflated little-endian columns.

    >>> boxes = pl.DataFrame({name: [1] for name in BOX_COLUMNS}).with_columns(end_ns=pl.lit(4))
    >>> packed = pack_boxes(boxes)
    >>> packed["count"], zlib.decompress(base64.b64decode(packed["data"]))[:2]
    (1, b'\x01\x00')
    """
    has_cells = "after" in boxes.columns
    columns = {**BOX_COLUMNS, **(CELL_COLUMNS if has_cells else {})}
    boxes = boxes.sort("row", "start_ns", "part").with_columns(
        pl.col(name).fill_null(null_value) for name, (_, null_value) in columns.items()
    )
    unit_ns = max(1, -(-last_end_ns(boxes) // MAX_TIME))
    arrays = {name: boxes[name].to_numpy() for name in columns}
    packed = {
        **arrays,
        # Differences of starts deflate better than starts.
        "start_ns": np.diff(arrays["start_ns"] // unit_ns, prepend=0),
        "end_ns": (arrays["end_ns"] - arrays["start_ns"]) // unit_ns,
        **{name: arrays[name] // unit_ns for name in ("wait_ns", "path_ns") if has_cells},
    }
    raw = b"".join(packed[name].astype(dtype).tobytes() for name, (dtype, _) in columns.items())
    data = base64.b64encode(zlib.compress(raw, 9)).decode()
    return {"count": len(boxes), "unit_ns": unit_ns, "waiting": has_cells, "data": data}


def last_end_ns(boxes: pl.DataFrame) -> int:
    """Return the last end of the boxes, 1 if there are none."""
    return int(boxes["end_ns"].to_numpy().max(initial=1))
