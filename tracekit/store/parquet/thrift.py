"""Thrift's compact protocol, as far as Parquet's footer and page headers take it.

A structure is a dict from the numbers of its fields, ascending, to their values. What a value is says its type: a dict
is a structure again, a list holds values of one type, text and bytes are the same, and an integer has 32 bits unless it
is a ``Long``. Each field begins with a byte: how far its number is from the one before, and its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracekit.store.parquet.encodings import varint


class Long(int):
    """An integer of 64 bits."""


class Structure(bytes):
    """A structure that is encoded already."""


_TRUE, _FALSE, _INT, _LONG, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12
_STOP = b"\0"
_LONG_LIST = 15
_BYTES = [bytes([number]) for number in range(256)]


def structure(fields: dict[int, Any]) -> Structure:
    """Return a structure as bytes; fields that are None are left out.

    >>> structure({1: 1, 2: None, 4: "a", 5: [Long(1), Long(2)], 6: True}).hex()
    '1502380161192602041100'
    """
    parts: list[bytes] = []
    before = 0
    for number, value in fields.items():
        if value is not None:
            kind, data = _ENCODED[type(value)](value)
            parts += (_BYTES[number - before << 4 | kind], data)
            before = number
    parts.append(_STOP)
    return Structure(b"".join(parts))


def _zigzag(value: int) -> bytes:
    """Return a signed integer as one that is small where it is near 0."""
    return varint(value << 1 ^ value >> 63)


def _binary(value: bytes) -> tuple[int, bytes]:
    return _BINARY, varint(len(value)) + value


def _list(values: list[Any]) -> tuple[int, bytes]:
    """Return the items of a list behind their type and number; they are of one type."""
    kind, size, parts = _STRUCT, len(values), []
    for value in values:
        kind, data = _ENCODED[type(value)](value)
        parts.append(data)
    head = _BYTES[min(size, _LONG_LIST) << 4 | kind]
    return _LIST, b"".join([head, varint(size) if size >= _LONG_LIST else b"", *parts])


_ENCODED: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    bool: lambda value: (_TRUE if value else _FALSE, b""),
    int: lambda value: (_INT, _zigzag(value)),
    Long: lambda value: (_LONG, _zigzag(value)),
    str: lambda value: _binary(value.encode()),
    bytes: _binary,
    list: _list,
    dict: lambda value: (_STRUCT, structure(value)),
    Structure: lambda value: (_STRUCT, value),
}
"""The type of a value, and its bytes."""
