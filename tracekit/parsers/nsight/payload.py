"""Payloads that NCCL attaches to its NVTX ranges: communicator, size, peer, rank.

They are exported as JSON text, or as bytes laid out by the file's NVTX_PAYLOAD_SCHEMA_ENTRIES: a header of four
64-bit numbers (domain, schema, payload size, total size), then the fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from tracekit.parsers.nsight.tables import Export, read_table

FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "Peer rank": "peer",
    "No. of ranks": "ranks",
    "Rank": "own_rank",
}
_DTYPES = {3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 17: "<i8", 18: "<u8", 22: "<u8"}
"""Field type → how its bytes read: short, int, long long, int64, uint64, size_t, signed and unsigned."""
_HEADER = 32
_SCHEMA = pl.Schema(
    {
        "_row": pl.UInt32(),
        "communicator": pl.String(),
        **dict.fromkeys(["bytes", "peer", "ranks", "own_rank"], pl.Int64()),
    }
)

Layout = dict[int, list[tuple[str, str, int]]]
"""Schema id → (field, numpy type, offset) of the fields that are understood."""


def layouts(export: Export) -> Layout:
    """How each payload schema of the file lays out the fields that are understood."""
    entries = read_table(export, "NVTX_PAYLOAD_SCHEMA_ENTRIES", ["schemaId", "type", "name", "offset"])
    by_schema: Layout = {}
    for schema, kind, name, offset in entries.unique().rows():
        if name in FIELDS and kind in _DTYPES:
            by_schema.setdefault(schema, []).append((FIELDS[name], _DTYPES[kind], offset or 0))
    return by_schema


def decode(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """Decode ``jsonText`` or ``binaryData`` of the rows that have one; ``_row`` names the row."""
    rows = frame.with_row_index("_row")
    parts = [_from_json(rows.filter(pl.col("jsonText").is_not_null()).select("_row", "jsonText"))]
    binary = rows.filter(pl.col("jsonText").is_null(), pl.col("binaryData").is_not_null())
    if binary.height and layout:
        parts.append(_from_bytes(binary.select("_row", "binaryData"), layout))
    return pl.concat(parts)


def _from_json(rows: pl.DataFrame) -> pl.DataFrame:
    texts = rows["jsonText"].unique()
    known = {text: fields for text in texts if (fields := _json_fields(text))}
    table = [{"jsonText": text, **fields} for text, fields in known.items()]
    schema = pl.Schema({"jsonText": pl.String(), **{k: v for k, v in _SCHEMA.items() if k != "_row"}})
    return rows.join(pl.DataFrame(table, schema=schema), on="jsonText", how="inner").select(_SCHEMA.names())


def _json_fields(text: str) -> dict[str, Any]:
    """Find the fields anywhere in one JSON payload; communicators as the text of their number.

    >>> _json_fields('{"NCCL communicator ID": 7, "Message size [bytes]": 4194304, "Peer rank": 1}')
    {'communicator': '7', 'bytes': 4194304, 'peer': 1}
    """
    values: dict[str, Any] = {}
    try:
        todo: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return values
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            for name, value in item.items():
                number, field = _number(value), FIELDS.get(name)
                if field == "communicator" and number is not None:
                    values[field] = str(number)
                elif field is not None and number is not None and abs(number) < 1 << 63:
                    values[field] = number
                else:
                    todo.append(value)
        elif isinstance(item, list):
            todo.extend(item)
    return values


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(str(value), 0)
    except ValueError:
        return None
    return number if abs(number) < 1 << 64 else None


def _from_bytes(rows: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """Decode blobs, all blobs of one length and schema at a time."""
    rows = rows.select("_row", blob=_blobs(rows["binaryData"])).filter(pl.col("blob").bin.size() > _HEADER)
    parts = [_SCHEMA.to_frame()]
    for _, group in rows.group_by(pl.col("blob").bin.size()):
        size = len(group["blob"][0])
        matrix = np.frombuffer(b"".join(group["blob"]), dtype=np.uint8).reshape(-1, size)
        schemas = matrix[:, 8:12].copy().view("<u4").ravel()
        for schema in np.unique(schemas):
            same = schemas == schema
            fields = {
                field: matrix[same, _HEADER + at : _HEADER + at + np.dtype(kind).itemsize].copy().view(kind).ravel()
                for field, kind, at in layout.get(int(schema), [])
                if _HEADER + at + np.dtype(kind).itemsize <= size
            }
            if fields:
                parts.append(_frame(group["_row"].filter(pl.Series(same)), fields))
    return pl.concat(parts)


def _blobs(data: pl.Series) -> pl.Series:
    """Undo what text columns do to bytes: they hold hex or base64."""
    if data.dtype == pl.Binary:
        return data
    return data.str.decode("hex", strict=False).fill_null(data.str.decode("base64", strict=False))


def _frame(rows: pl.Series, fields: dict[str, np.ndarray[Any, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame({"_row": rows, **fields})
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype, strict=False).alias(name)
        for name, dtype in _SCHEMA.items()
    )
