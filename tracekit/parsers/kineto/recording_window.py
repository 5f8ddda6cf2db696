"""Time over which a PyTorch trace was recorded, from the marks at its end, without parsing its events."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

GZIP_SIGNATURE = b"\x1f\x8b"
PIECE_BYTES = 1 << 20
"""Bytes that are read and decompressed at once."""
TAIL_BYTES = 1 << 16
"""Bytes at the end of a trace in which its marks are looked for; the profiler writes them last."""
_TIME = rb'[^{}]*?"ts":\s*([0-9]{1,16}(?:\.[0-9]{0,9})?)(?![0-9.])'
_START_MARK = re.compile(rb'"Iteration Start: PyTorch Profiler"' + _TIME)
_END_MARK = re.compile(rb'"Record Window End"' + _TIME)
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*([0-9]{1,19})(?![0-9])')


def recording_window(path: str | Path) -> tuple[int, int] | None:
    """Return when the recording in a trace begins and ends, in ns since 1970.

    None if its marks are not there.

    The events are not parsed: of a compressed trace it takes decompressing, of another a look at
    its ends.

    >>> start_ns, end_ns = recording_window("sample_traces/compile/rank0.pt.trace.json.gz")
    >>> end_ns - start_ns
    27602658
    """
    try:
        head, tail = _ends(Path(path))
    except (OSError, zlib.error):
        return None
    start = _START_MARK.search(tail)
    end = _END_MARK.search(tail)
    if start is None or end is None:
        return None
    base = _BASE.search(head) or _BASE.search(tail)
    base_ns = int(base[1]) if base is not None else 0
    return base_ns + _as_ns(start[1]), base_ns + _as_ns(end[1])


def _as_ns(microseconds: bytes) -> int:
    whole, _, fraction = microseconds.decode().partition(".")
    return int(whole or 0) * 1000 + int(fraction[:3].ljust(3, "0"))


def _ends(path: Path) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a trace, decompressed."""
    with path.open("rb") as file:
        first = file.read(PIECE_BYTES)
        if not first.startswith(GZIP_SIGNATURE):
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return first, file.read()
        head = tail = b""
        stream = zlib.decompressobj(wbits=31)
        piece = first
        while piece:
            text = stream.decompress(piece)
            head = head or text[:PIECE_BYTES]
            tail = (tail + text)[-TAIL_BYTES:]
            piece = stream.unused_data or file.read(PIECE_BYTES)
            if stream.eof and piece:  # a file of several compressed parts
                stream = zlib.decompressobj(wbits=31)
        return head, tail
