"""Reader of the page's packed columns, written from their description and not from the code that packs them."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np


def unpacked(packed):
    """Return the columns by name."""
    raw, offset, columns = zlib.decompress(base64.b64decode(packed["data"])), 0, {}
    for name, width, is_difference in packed["columns"]:
        values = np.zeros(packed["count"], np.int64)
        for plane in range(width):
            block = np.frombuffer(raw, np.uint8, packed["count"], offset)
            values += block.astype(np.int64) << (8 * plane)
            offset += packed["count"]
        signed = np.where(values % 2, -(values + 1) // 2, values // 2)
        columns[name] = np.cumsum(signed) if is_difference else signed
    assert offset == len(raw)
    return columns


def unpacked_json(text):
    """Return the plain data."""
    return json.loads(zlib.decompress(base64.b64decode(text)))
