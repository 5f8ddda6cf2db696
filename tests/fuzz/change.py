"""Bytes changed here and there, as every target that reads bytes changes them."""

from __future__ import annotations

import random

from tests.parsers.tokens import TOKENS


def changed(raw: bytes, choose: random.Random, *, times: int) -> bytes:
    """The bytes after some changes: another byte, a token, a hole, a copy of a stretch, a cut, or noise."""
    data = bytearray(raw)
    for _ in range(times):
        offset, kind = choose.randrange(len(data) + 1), choose.randrange(6)
        if kind == 0:
            data[offset : offset + 1] = choose.randbytes(1)
        elif kind == 1:
            data[offset:offset] = choose.choice(TOKENS)
        elif kind == 2:
            del data[offset : offset + choose.randrange(1, 40)]
        elif kind == 3:
            other = choose.randrange(len(data) + 1)
            data[offset:offset] = data[other : other + choose.randrange(1, 200)]
        elif kind == 4:
            del data[offset:]
        else:
            data[offset:offset] = choose.randbytes(choose.randrange(1, 9))
        data = data or bytearray(b"{")
    return bytes(data)
