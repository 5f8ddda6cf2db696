"""Payloads that NCCL attaches to its NVTX ranges: communicator, size, peer, rank.

They are exported as JSON text, or as bytes whose layout is in the table NVTX_PAYLOAD_SCHEMA_ENTRIES: a header of four
64-bit numbers (domain, schema, payload size, total size), then the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
"""Names of payload fields that are read, and the columns they fill."""
_NUMPY_TYPES = {3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 17: "<i8", 18: "<u8", 22: "<u8"}
"""Field type → numpy type: short, int, long long, int64, uint64, size_t, signed and unsigned."""
_HEADER_BYTES = 32
_SCHEMA = pl.Schema(
    {
        "_row": pl.UInt32(),
        "communicator": pl.String(),
        **dict.fromkeys(["bytes", "peer", "ranks", "own_rank"], pl.Int64()),
    }
)

Layouts = dict[int, list[tuple[str, str, int]]]
"""Schema id → (column, numpy type, offset in bytes) of each field that is read."""


def payload_layouts(export: Export) -> Layouts:
    """Return the layout of each payload schema in the file."""
    entries = read_table(export, "NVTX_PAYLOAD_SCHEMA_ENTRIES", ["schemaId", "type", "name", "offset"])
    layouts: Layouts = {}
    for schema_id, field_type, name, offset in entries.unique().rows():
        if name in FIELDS and field_type in _NUMPY_TYPES:
            layouts.setdefault(schema_id, []).append((FIELDS[name], _NUMPY_TYPES[field_type], offset or 0))
    return layouts


def decode_payloads(ranges: pl.DataFrame, layouts: Layouts) -> pl.DataFrame:
    """Decode ``jsonText`` or ``binaryData`` of the rows that have one; ``_row`` is the position in *ranges*."""
    rows = ranges.with_row_index("_row")
    parts = [_decode_json(rows.filter(pl.col("jsonText").is_not_null()).select("_row", "jsonText"))]
    binary = rows.filter(pl.col("jsonText").is_null(), pl.col("binaryData").is_not_null())
    if binary.height and layouts:
        parts.append(_decode_bytes(binary.select("_row", "binaryData"), layouts))
    return pl.concat(parts)


def _decode_json(rows: pl.DataFrame) -> pl.DataFrame:
    """Decode each distinct text once."""
    fields = {text: _json_fields(text) for text in rows["jsonText"].unique()}
    table = [{"jsonText": text, **values} for text, values in fields.items() if values]
    schema = pl.Schema({"jsonText": pl.String(), **{k: v for k, v in _SCHEMA.items() if k != "_row"}})
    return rows.join(pl.DataFrame(table, schema=schema), on="jsonText", how="inner").select(_SCHEMA.names())


def _json_fields(text: str) -> dict[str, Any]:
    """Return the fields of a JSON payload by column; a communicator as the text of its number.

    >>> _json_fields('{"NCCL communicator ID": 7, "Message size [bytes]": 4194304, "Peer rank": 1}')
    {'communicator': '7', 'bytes': 4194304, 'peer': 1}
    """
    values: dict[str, Any] = {}
    for name, number in payload_numbers(text):
        if FIELDS[name] == "communicator":
            values["communicator"] = str(number)
        elif abs(number) < 1 << 63:
            values[FIELDS[name]] = number
    return values


def payload_numbers(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and number of each field that is read, anywhere in a JSON payload.

    >>> list(payload_numbers('{"Peer rank": 1, "token": "secret", "p": {"Rank": "0x2"}}'))
    [('Peer rank', 1), ('Rank', 2)]
    """
    try:
        pending: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            for name, value in item.items():
                number = _as_number(value)
                if name in FIELDS and number is not None:
                    yield name, number
                else:
                    pending.append(value)


def _as_number(value: Any) -> int | None:
    """Return a number or the number in a text, None if it is none of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(str(value), 0)
    except ValueError:
        return None
    return number if abs(number) < 1 << 64 else None


def _decode_bytes(rows: pl.DataFrame, layouts: Layouts) -> pl.DataFrame:
    """Decode payloads, all of one length and schema at a time."""
    rows = rows.select("_row", blob=_as_bytes(rows["binaryData"])).filter(pl.col("blob").bin.size() > _HEADER_BYTES)
    parts = [_SCHEMA.to_frame()]
    for _, group in rows.group_by(pl.col("blob").bin.size()):
        blob_bytes = len(group["blob"][0])
        # One row per payload; the schema id is the second number of the header.
        matrix = np.frombuffer(b"".join(group["blob"]), dtype=np.uint8).reshape(-1, blob_bytes)
        schema_ids = matrix[:, 8:12].copy().view("<u4").ravel()
        for schema_id in np.unique(schema_ids):
            has_schema = schema_ids == schema_id
            fields = {}
            for column, numpy_type, offset in layouts.get(int(schema_id), []):
                start = _HEADER_BYTES + offset
                end = start + np.dtype(numpy_type).itemsize
                if end <= blob_bytes:
                    fields[column] = matrix[has_schema, start:end].copy().view(numpy_type).ravel()
            if fields:
                parts.append(_payload_frame(group["_row"].filter(pl.Series(has_schema)), fields))
    return pl.concat(parts)


def _as_bytes(data: pl.Series) -> pl.Series:
    """Return the bytes of payloads; formats that hold them as text write hex or base64."""
    if data.dtype == pl.Binary:
        return data
    return data.str.decode("hex", strict=False).fill_null(data.str.decode("base64", strict=False))


def _payload_frame(rows: pl.Series, fields: dict[str, np.ndarray[Any, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame({"_row": rows, **fields})
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype, strict=False).alias(name)
        for name, dtype in _SCHEMA.items()
    )
