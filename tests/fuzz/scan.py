"""Bytes nobody wrote for the scanner and the header alone: no table is built, so a second takes hundreds of them."""

from __future__ import annotations

import io
import random
from functools import cache

from tests.fuzz import kineto
from tests.fuzz.change import changed
from tests.fuzz.listed import count_listed
from tests.fuzz.memory import small_memory
from tests.fuzz.others import one_line
from tracekit.errors import InputError
from tracekit.parsers.kineto.header import parse_header, parse_tail
from tracekit.parsers.kineto.reader import scan_stream
from tracekit.parsers.kineto.stream import Stream

POOL = 512


@cache
def _start(number: int) -> bytes:
    """One of the traces that inputs are made of: the same ones in every run."""
    choose = random.Random(f"start {number}")
    return kineto.valid(choose)[0] if number % 2 else kineto.odd(choose)


def make(choose: random.Random) -> bytes:
    """A small trace with up to six changes, or none."""
    return changed(_start(choose.randrange(POOL)), choose, times=choose.randrange(7))


def check(raw: bytes, folder: object) -> None:
    """Scan an input; raise where a count cannot be, or is not that of the independent reader."""
    expected = count_listed(raw)
    try:
        with small_memory(), Stream(io.BytesIO(raw)) as stream:
            scanned, keys = scan_stream(stream, stacks=True)
            parse_header({**keys, **parse_tail(scanned.tail)[0]})
    except InputError as error:
        one_line(error)
        return
    for block in scanned.parts:
        assert 0 <= block.bad <= block.events, "more damaged events than events"
        assert 0 <= block.complete <= block.events, "more complete events than events"
        assert sum(chunk.rows for chunk in block.chunks) <= block.complete + block.bad, (
            "a row of no event"
        )
    if expected is not None:
        assert sum(block.events for block in scanned.parts) == expected, (
            "another count than the independent reader's"
        )
