"""What a file is, and whose, from its first bytes: no parsing, no trust in its name."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import msgspec

from tracekit.parsers.ranks import rank_number

HEAD_BYTES = 1 << 18
TAIL_BYTES = 1 << 16

GZIP = b"\x1f\x8b"
SQLITE = b"SQLite format 3\x00"
ARROW = (b"\xff\xff\xff\xff", b"ARROW1")
SIGNATURES = {SQLITE: "nsight", **dict.fromkeys(ARROW, "nsight")}
"""First bytes that give a reader away; what has none of them is asked whether it is a PyTorch trace."""

NSIGHT_SUFFIXES = (".sqlite", ".parquetdir", ".arrowdir", ".arrow", ".nsys-rep")
"""Nsight Systems exports, the one to read first where a report was exported several times. sqlite leads because
it is the format that a folder of many ranks usually has for all of them; a report has to be exported to be read."""

_TRACE_KEYS = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|traceName)"\s*:'
)
_EVENT_KEYS = re.compile(rb'^\[\s*(?:\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s|cname)"\s*:|\])')
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*(?=\{)')
_OURS = re.compile(rb'"otherData"\s*:\s*\{\s*"tracekit"\s*:')
"""What tracekit draws for ui.perfetto.dev: its tracks repeat the trace's events, so that reading them counts twice."""


class Probe(msgspec.Struct, frozen=True):
    """What the first bytes said. ``reader`` is None where no reader claims the file; ``why`` then says why not."""

    reader: str | None
    rank: int | None = None
    world_size: int | None = None
    why: str = ""


def probe(head: bytes, tail: bytes = b"") -> Probe:
    """Return what a file is from its first bytes, and from its last where they were easy to get.

    >>> probe(b'{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": [')
    Probe(reader='kineto', rank=3, world_size=4, why='')
    >>> probe(b"SQLite format 3" + bytes(1)).reader
    'nsight'
    >>> probe(b'{"answer": 42}').why
    'is JSON but not a trace: it has no "traceEvents"'
    """
    if not head:
        return Probe(None, why="is empty")
    if head.startswith(GZIP):
        inflated = inflate(head)
        if not inflated:
            return Probe(None, why="is a damaged gzip file")
        return _probe_json(inflated, b"")
    known = next((reader for first, reader in SIGNATURES.items() if head.startswith(first)), None)
    return Probe(known) if known else _probe_json(head, tail)


def inflate(head: bytes, limit: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a gzip file whose beginning is *head*; empty if it is not one.

    >>> import gzip
    >>> inflate(gzip.compress(b"hello"))
    b'hello'
    """
    try:
        return zlib.decompressobj(wbits=31).decompress(head, limit)
    except zlib.error:
        return b""


def _probe_json(head: bytes, tail: bytes) -> Probe:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] not in (b"{", b"["):
        return Probe(None, why="is not a trace: neither JSON nor an Nsight Systems export")
    if not (_TRACE_KEYS.search(text) or _EVENT_KEYS.match(text) or _TRACE_KEYS.search(tail)):
        return Probe(None, why='is JSON but not a trace: it has no "traceEvents"')
    if _OURS.search(text[:4096]):
        return Probe(None, why="was written by tracekit for ui.perfetto.dev; name the traces it was made from")
    info = _distributed_info(head) or _distributed_info(tail)
    return Probe("kineto", _integer(info.get("rank")), _integer(info.get("world_size")))


def _distributed_info(raw: bytes) -> dict[str, Any]:
    text = raw.decode("utf-8", "replace")
    match = _DISTRIBUTED.search(text)
    if not match:
        return {}
    try:
        info, _ = json.JSONDecoder(strict=False).raw_decode(text, match.end())
        return info if isinstance(info, dict) else {}
    except (ValueError, RecursionError):
        # Cut off in the middle of a long list of groups: rank and size come before it.
        part = text[match.end() : match.end() + 400].split("pg_config")[0]
        pairs = re.findall(r'"(rank|world_size)"\s*:\s*(\d{1,9})\b', part)
        return {key: int(value) for key, value in pairs}


def _integer(value: object) -> int | None:
    return rank_number(value) if isinstance(value, int) and not isinstance(value, bool) else None
