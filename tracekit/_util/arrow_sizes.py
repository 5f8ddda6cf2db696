"""Sizes of Arrow tables once they are unpacked, from the headers of their messages.

Buffers of a record batch may be compressed, and each begins with its size unpacked: a file of
100 kB can hold gigabytes. Readers of Arrow unpack without asking, so files of strangers are asked
first. The layout is that of ``Message.fbs`` and FlatBuffers (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_CONTINUATION = -1
"""Begins a message, before the length of its metadata; files of old writers leave it out."""
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
        if self._fields < 0:  # struct would count from the end
            raise ValueError("a table of a message lies before its beginning")

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


class _ArrowMessage(NamedTuple):
    """One message of a stream."""

    metadata: memoryview
    header: _FlatBufferTable
    body: memoryview


def unpacked_bytes(content: Any) -> int:
    """Return how many bytes the buffers of an Arrow stream or file take once they are unpacked.

    Args:
        content: The bytes, or another buffer of them, from where the stream begins.

    Raises:
        ValueError: The stream is damaged.

    >>> import io
    >>> import polars as pl
    >>> sink = io.BytesIO()
    >>> pl.DataFrame({"ns": [0] * 1000}).write_ipc_stream(sink, compression="zstd")
    >>> len(sink.getvalue()) < 8000 <= unpacked_bytes(sink.getvalue())
    True
    """
    try:
        return sum(map(_unpacked_bytes, _messages(memoryview(content))))
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError("the header of a batch is damaged") from error


def _messages(content: memoryview) -> Iterator[_ArrowMessage]:
    """Yield the messages of a stream up to its end."""
    position = len(_FILE_MAGIC) if content[: len(_FILE_MAGIC)] == _FILE_MAGIC else 0
    while position < len(content):
        (length,) = struct.unpack_from("<i", content, position)
        position += 4
        if length == _CONTINUATION:
            (length,) = struct.unpack_from("<i", content, position)
            position += 4
        if length == 0:  # marks the end
            return
        metadata = _cut(content, position, length)
        position += length
        header = _FlatBufferTable(metadata, struct.unpack_from("<I", metadata)[0])
        body_field = header.field(3)
        body_bytes = 0 if body_field is None else struct.unpack_from("<q", metadata, body_field)[0]
        yield _ArrowMessage(metadata, header, _cut(content, position, body_bytes))
        position += body_bytes


def _cut(content: memoryview, start: int, length: int) -> memoryview:
    """Return *length* bytes from *start*; raise ``ValueError`` if they are not there."""
    if not 0 <= length <= len(content) - start:
        raise ValueError("a message ends behind the stream")
    return content[start : start + length]


def _unpacked_bytes(message: _ArrowMessage) -> int:
    """Return the bytes of a message's buffers once they are unpacked; 0 of a schema."""
    metadata = message.metadata
    body = message.body
    type_field = message.header.field(1)
    position = message.header.pointer(2)
    if type_field is None or position is None:
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
