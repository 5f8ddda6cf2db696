"""Protobuf's wire format in Python, for the few messages that describe all others."""

import json
import struct
from collections.abc import Iterator

from tracekit._util.text import counted
from tracekit.errors import InputError

MAX_FIELD = 1 << 11
"""Numbers of fields end before this one in all messages that are read. A packet of a million fields
with numbers of their own is one of a few that count."""
MAX_ARGUMENT_DEPTH = 32
"""Nested lists and objects in an argument that are followed; shapes of tensor lists have three
levels."""

Value = int | bytes


class DamagedMessageError(InputError):
    """The bytes are not a protobuf message."""


def fields(message: bytes) -> Iterator[tuple[int, int, Value]]:
    r"""Yield number, wire type and value of each field: an integer, or the bytes of a text or a message.

    >>> list(fields(b"\x08\x96\x01\x12\x02hi"))
    [(1, 0, 150), (2, 2, b'hi')]
    """
    i = 0
    while i < len(message):
        tag, i = _varint(message, i)
        wire_type = tag & 7
        value: Value
        if wire_type == 0:
            value, i = _varint(message, i)
        elif wire_type == 2:
            length, i = _varint(message, i)
            value = message[i : i + length]
            i += length
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
            value = int.from_bytes(message[i : i + length], "little")
            i += length
        else:
            raise DamagedMessageError(f"wire type {wire_type}")
        if i > len(message):
            raise DamagedMessageError(f"{counted(i - len(message), 'byte')} missing")
        yield tag >> 3, wire_type, value


def _varint(message: bytes, i: int) -> tuple[int, int]:
    """Return the number at *i*, and the index behind it."""
    value = shift = 0
    while True:
        if i >= len(message) or shift > 63:
            raise DamagedMessageError("a number does not end")
        byte = message[i]
        i += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, i
        shift += 7


def numbers_and_texts(message: bytes) -> dict[int, Value]:
    """Return the values of a message's fields by their numbers; of a repeated field the last."""
    return {number: value for number, _, value in fields(message) if number < MAX_FIELD}


def signed(value: int) -> int:
    """Return 64 bits as a signed number.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return value - 2**64 if value >= 2**63 else value


def argument_json(message: bytes, *, depth: int = 0) -> str:
    r"""Return the value of a ``DebugAnnotation`` as compact JSON, a text without its quotes at the outermost level.

    PyTorch writes an empty list as an argument without a value.

    >>> argument_json(b"\x52\x01a\x62\x04\x62\x02\x20\x02\x62\x00")
    '[[2],[]]'
    """
    if depth > MAX_ARGUMENT_DEPTH:
        raise DamagedMessageError(f"an argument is nested more than {MAX_ARGUMENT_DEPTH} deep")
    items: list[str] = []
    entries: list[str] = []
    for number, wire_type, value in fields(message):
        if number == 12 and isinstance(value, bytes):  # array_values
            items.append(_quoted_json(value, depth + 1))
        elif number == 11 and isinstance(value, bytes):  # dict_entries
            entries.append(f"{_entry_name(value)}:{_quoted_json(value, depth + 1)}")
        elif (scalar := _scalar(number, wire_type, value)) is not None:
            return scalar
    return "{" + ",".join(entries) + "}" if entries else "[" + ",".join(items) + "]"


def _quoted_json(message: bytes, depth: int) -> str:
    """Return the value of an inner argument as JSON."""
    text = next((value for number, _, value in fields(message) if number == 6), None)
    if isinstance(text, bytes):
        return json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False)
    return argument_json(message, depth=depth)


def _entry_name(message: bytes) -> str:
    name = next((value for number, _, value in fields(message) if number == 10), b"")
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
    return json.dumps(text, ensure_ascii=False)


def _scalar(number: int, wire_type: int, value: Value) -> str | None:
    """Return the value of a field as JSON if it is a number, a text or true or false.

    None for other fields.
    """
    if isinstance(value, bytes):
        # string_value, legacy_json_value.
        return value.decode("utf-8", "replace") if number in (6, 9) else None
    if number == 2:
        return "true" if value else "false"
    if number in (3, 7):  # unsigned, pointer
        return str(value)
    if number == 4:
        return str(signed(value))
    if number == 5 and wire_type == 1:
        return json.dumps(struct.unpack("<d", struct.pack("<Q", value))[0])
    return None
