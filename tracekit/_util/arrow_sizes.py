"""Sizes of Arrow tables once they are unpacked, from the headers of their messages.

Buffers of a record batch may be compressed, and each begins with its size unpacked: a file of
100 kB can hold gigabytes. Readers of Arrow unpack without asking, so files of strangers are asked
first. The layout is that of ``Message.fbs`` and FlatBuffers (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
from pyarrow import ipc

_FILE_MAGIC = b"ARROW1\0\0"
"""Beginning of the file format; a stream follows it."""
_DICTIONARY_BATCH = 2
"""Type of a message that holds a record batch in its second field."""
_RECORD_BATCH = 3
"""Type of a message that is a record batch."""
MIN_BYTES_OF_A_VALUE = 4
"""Least bytes that a value of a table takes in memory once its columns have types of ours: columns of
type null have a length and no bytes at all."""


class _FlatBufferTable:
    """A table of a FlatBuffer: fields by number."""

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position
        self._fields = position - struct.unpack_from("<i", data, position)[0]

    def field(self, number: int) -> int | None:
        """Return where a field lies; None if it has its default."""
        (size,) = struct.unpack_from("<H", self.data, self._fields)
        entry = 4 + 2 * number
        if entry >= size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, self._fields + entry)
        return self.position + offset if offset else None

    def pointer(self, number: int) -> int | None:
        """Return where the value that a field points to lies."""
        field = self.field(number)
        if field is None:
            return None
        return field + int(struct.unpack_from("<I", self.data, field)[0])


def unpacked_bytes(content: Any) -> int:
    """Return how many bytes the buffers of an Arrow stream or file take once they are unpacked.

    Args:
        content: The bytes, or a memory map that stands where the stream begins.

    Raises:
        ValueError: The stream is damaged.

    >>> table = pa.table({"ns": [0] * 1000})
    >>> sink = pa.BufferOutputStream()
    >>> with ipc.new_stream(sink, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as stream:
    ...     stream.write_table(table)
    >>> unpacked_bytes(sink.getvalue()) >= 8000
    True
    """
    source = pa.BufferReader(content) if isinstance(content, bytes | pa.Buffer) else content
    start = source.tell()
    if source.read(len(_FILE_MAGIC)) != _FILE_MAGIC:
        source.seek(start)
    try:
        return sum(map(_unpacked_bytes, ipc.MessageReader.open_stream(source)))
    except (struct.error, IndexError, OSError, pa.ArrowException) as error:
        raise ValueError("the header of a batch is damaged") from error


def _unpacked_bytes(message: Any) -> int:
    """Return the bytes of a message's buffers once they are unpacked; 0 of a schema."""
    metadata = memoryview(message.metadata)
    header = _FlatBufferTable(metadata, struct.unpack_from("<I", metadata)[0])
    type_field = header.field(1)
    position = header.pointer(2)
    if type_field is None or position is None or message.body is None:
        return 0
    batch = _FlatBufferTable(metadata, position)
    if metadata[type_field] == _DICTIONARY_BATCH:
        inner = batch.pointer(1)
        if inner is None:
            return 0
        batch = _FlatBufferTable(metadata, inner)
    elif metadata[type_field] != _RECORD_BATCH:
        return 0
    values = 0
    nodes = batch.pointer(1)
    if nodes is not None:
        (count,) = struct.unpack_from("<I", metadata, nodes)
        for length, _nulls in struct.iter_unpack(
            "<qq", metadata[nodes + 4 : nodes + 4 + 16 * count]
        ):
            values += max(0, length)
    buffers = batch.pointer(2)
    body = memoryview(message.body)
    if buffers is None or batch.field(3) is None:  # nothing is compressed
        return max(len(body), values * MIN_BYTES_OF_A_VALUE)
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for offset, length in struct.iter_unpack(
        "<qq", metadata[buffers + 4 : buffers + 4 + 16 * count]
    ):
        # -1 stands for a buffer that is not compressed.
        size = struct.unpack_from("<q", body, offset)[0] if length else 0
        total += length if size < 0 else size
    return max(total, values * MIN_BYTES_OF_A_VALUE)
