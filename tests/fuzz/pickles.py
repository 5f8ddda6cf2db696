"""Pickles of opcodes that nobody wrote: plain values of a bounded size, or an error in one line; nothing is called."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

from tests.fuzz.change import changed
from tests.fuzz.others import one_line
from tracekit.errors import InputError
from tracekit.parsers.plain_pickle import (
    MAX_EXPANDED_PER_BYTE,
    MIN_EXPANDED_LIMIT,
    load_plain_pickle,
)

FORBIDDEN = "tracekit-fuzz-pickle-ran"
VALUES = (
    *(b"N", b"\x88", b"\x89", b"]", b"}", b")", b"(", b"K\x07", b"M\x01\x02", b"J\xff\xff\xff\xff"),
    *(
        b"G" + struct.pack(">d", 0.5),
        b"X\x03\x00\x00\x00abc",
        b"\x8c\x02hi",
        b"U\x01x",
        b"C\x01\x00",
    ),
    *(
        b"\x8a\x08" + b"\xff" * 8,
        b"\x8a\x20" + b"\x01" * 32,
        b"\x8b\xff\xff\xff\x7f",
        b"I7\n",
        b"L9L\n",
    ),
)
JOINS = (
    b"\x85",
    b"\x86",
    b"\x87",
    b"t",
    b"l",
    b"d",
    b"e",
    b"u",
    b"a",
    b"s",
    b"0",
    b"1",
    b"2",
    b"\x90",
)
MEMO = (
    b"\x94",
    b"q\x00",
    b"q\x01",
    b"q\xff",
    b"r\xff\xff\xff\xff",
    b"h\x00",
    b"h\x01",
    b"h\x02",
    b"j\x03\x00\x00\x00",
)
CALLS = (
    *(b"cbuiltins\nopen\n", b"\x93", b"R", b"\x81", b"\x92", b"b", b"ibuiltins\nopen\n", b"o"),
    *(
        b"\x82\x01",
        b"P1\n",
        b"Q",
        b"\x97",
        b"\x98",
        b"\x95" + struct.pack("<Q", 2**60),
        b"F1\n",
        b"S'a'\n",
    ),
)
"""Opcodes that name or call something, fetch from outside, or frame the rest."""


class _Runs:
    def __reduce__(self) -> Any:
        return open, (FORBIDDEN, "w")


def _doubling(choose: random.Random) -> bytes:
    """Lists of lists that are shared, each twice as large as the one before."""
    levels = choose.randrange(1, 80)
    body = b"]q\x00"
    for level in range(1, levels):
        inner = b"h" + bytes([level - 1])
        body += b"](" + inner * choose.randrange(1, 11) + b"eq" + bytes([level])
    return body


def make(choose: random.Random) -> bytes:
    """Return opcodes in any order, shared lists, or a sound pickle with bytes changed."""
    kind = choose.randrange(6)
    head = bytes([0x80, choose.randrange(2, 6)])
    if kind == 0:
        return head + _doubling(choose) + b"."
    if kind == 1:
        return head + b")" + b"\x85" * choose.randrange(200) + b"."
    if kind == 2:
        value = {"a": [1, 2.5, None, ("x", b"y")], "b": choose.choice((_Runs(), 7, "é"))}
        return changed(pickle.dumps(value, protocol=head[1]), choose, times=choose.randrange(1, 4))
    pool = choose.choices((VALUES, JOINS, MEMO, CALLS), (10, 6, 4, 1), k=choose.randrange(1, 60))
    return head + b"".join(choose.choice(opcodes) for opcodes in pool) + b"."


def _count(value: Any, limit: int) -> int:
    """Return how many values there are, shared ones counted wherever they appear; more than *limit* end the count."""
    count = 0
    pending = [value]
    while pending and count <= limit:
        inner = pending.pop()
        count += 1
        if isinstance(inner, dict):
            pending += [*inner, *inner.values()]
        elif isinstance(inner, list | tuple):
            pending += inner
        else:
            plain = inner is None or isinstance(inner, bool | int | float | str | bytes)
            assert plain, f"a {type(inner).__name__} was loaded"
    return count


def check(raw: bytes, folder: Path) -> None:
    """Load it."""
    try:
        value = load_plain_pickle(raw, name="dump")
    except InputError as error:
        one_line(error)
    else:
        limit = max(MIN_EXPANDED_LIMIT, MAX_EXPANDED_PER_BYTE * len(raw))
        assert _count(value, limit) <= limit, "a few bytes became many values"
    assert not Path(FORBIDDEN).exists(), "a pickle ran code"
