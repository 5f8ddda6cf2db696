"""Detection of a file's type and rank from its first and last bytes, without parsing and whatever its name."""

import json
import re
import zlib
from typing import Any

import msgspec

from tracekit._util.inflation import GZIP
from tracekit.parsers.foreign_formats import SQLITE, created_tables, find_foreign_format
from tracekit.parsers.plain_pickle import is_pickle
from tracekit.parsers.rank_numbers import valid_rank

HEAD_BYTES = 1 << 18
TAIL_BYTES = 1 << 16

ARROW = (b"\xff\xff\xff\xff", b"ARROW1")
SIGNATURES = {SQLITE: "nsight", **dict.fromkeys(ARROW, "nsight")}
"""Reader by the first bytes of a file; a file with none of them is checked for being a PyTorch
trace."""

NSIGHT_SUFFIXES = (".sqlite", ".parquetdir", ".arrowdir", ".arrow", ".nsys-rep")
"""Nsight Systems exports, in the order of preference where a report was exported several times.
sqlite comes first because a folder of many ranks usually has it for all of them; a .nsys-rep report
must be exported before it is read."""

_TRACE_KEYS = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|traceName)"\s*:'
)
_EVENT_KEYS = re.compile(
    rb'^\[\s*(?:\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s|cname)"\s*:|\])'
)
_DISTRIBUTED_INFO = re.compile(r'"distributedInfo"\s*:\s*(?=\{)')
_EVENTS_OF_OTHER_USE = (
    (
        re.compile(rb'"name"\s*:\s*"(?:forward|backward)-(?:compute|send|recv)"'),
        "is a timeline of operations; read it with tracekit.pipeline.against_ideal.compare_timeline",
    ),
    (
        # Its tracks repeat events, which would count twice.
        re.compile(rb'"otherData"\s*:\s*\{\s*"tracekit"\s*:'),
        "was written by tracekit for ui.perfetto.dev; name the traces it was made from",
    ),
)
"""Marks of files with events that are not those of one rank's profiler, and what they are."""
_MARKED_BYTES = 1 << 14
"""First bytes of a file in which such a mark is looked for: several events."""

ROCM = "rocm"
"""Reader of what ROCm's profilers write."""
_ROCPROFV3_JSON = re.compile(rb'^\s*\{\s*"rocprofiler-sdk-tool"\s*:')
MERGED = "merged"
"""Reader of PyTorch traces of several ranks in one file."""
MERGED_WHAT = "holds several ranks merged into one file"
MERGED_HINT = (
    "name the files of the ranks that it was made from (SGLang writes them beside it, as "
    "…-TP-0.trace.json.gz)"
)
LABELLED_PROCESS = re.compile(
    rb'"pid"\s{0,4}:\s{0,4}"\[((?:TP|DP|PP|EP|Unknown)[-\w]{0,40})\] (-?\d{1,10})"'
)
"""A process id behind the label of its rank, as SGLang's merger writes it."""
_NAMED_AFTER_RANK = re.compile(
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"rank[ _#-]{0,2}\d{1,7}\b', re.IGNORECASE
)
_RAW_PROCESS = re.compile(rb'"pid_raw"\s*:')  # a process id from before traces were merged
_MERGED_MARKS = (LABELLED_PROCESS, _RAW_PROCESS, _NAMED_AFTER_RANK)
FLIGHT_RECORDER = "flight_recorder"
NCCL_INSPECTOR = "nccl_inspector"
MEMORY_SNAPSHOT = "memory_snapshot"
RECORDINGS = {
    FLIGHT_RECORDER: "flight-recorder dump",
    NCCL_INSPECTOR: "NCCL Inspector log",
    MEMORY_SNAPSHOT: "memory snapshot",
}
"""Readers of files that may lie beside a run's traces and are not traces, with what a file is
called."""

_DUMP_ENTRIES = re.compile(rb'"entries"\s*:\s*\[')
_DUMP_KEY = re.compile(rb'"(?:profiling_name|pg_config|pg_status)"\s*:')
_PICKLED_DUMP_KEYS = (b"profiling_name", b"pg_config", b"pg_status")
_PICKLED_SNAPSHOT_KEYS = (b"segments", b"device_traces")
_INSPECTOR_KEY = re.compile(rb'"inspector_output_format_version"\s*:')


class FileType(msgspec.Struct, frozen=True):
    """Reader of a file, and its rank and world size if they are easy to find."""

    # "kineto", MERGED, "perfetto", "nsight", ROCM, "store" or one of RECORDINGS; None if it is none of these.
    reader: str | None
    rank: int | None = None
    world_size: int | None = None
    why: str = ""  # reason why the file is not a trace
    hint: str = ""  # what to do, where that depends on what the file is
    is_unreadable: bool = False  # nothing can be read of it: it may be what is left of a trace


def unreadable_file(why: str, hint: str = "") -> FileType:
    """Return the type of a file of which nothing can be read.

    >>> unreadable_file("is empty").reader is None
    True
    """
    return FileType(None, why=why, hint=hint, is_unreadable=True)


def detect_file_type(head: bytes, tail: bytes = b"") -> FileType:
    """Return the type of a file from its first bytes, and from its last bytes where they can be read without inflating.

    >>> head = b'{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": ['
    >>> file = detect_file_type(head)
    >>> file.reader, file.rank, file.world_size
    ('kineto', 3, 4)
    >>> detect_file_type(b"SQLite format 3" + bytes(1)).reader
    'nsight'
    >>> detect_file_type(b'{"answer": 42}').why
    'is JSON but not a trace: it has no "traceEvents"'
    >>> detect_file_type(b'{"entries": [{"profiling_name": "nccl:all_reduce"').reader
    'flight_recorder'
    """
    if not head:
        return unreadable_file("is empty")
    if head.startswith(GZIP):
        inflated = inflate(head)
        if not inflated:
            return unreadable_file("is a damaged gzip file")
        head = inflated
        tail = b""
    if head[_TAR_MAGIC_START:].startswith(b"ustar"):
        return FileType(None, why="is an archive; unpack it and name the folder")
    foreign = find_foreign_format(head, tail)
    if foreign is not None:
        return FileType(None, why=foreign.what, hint=foreign.hint)
    if is_pickle(head):
        return _detect_pickle(head)
    reader = _reader_by_beginning(head)
    return FileType(reader) if reader else _detect_json(head, tail)


def _reader_by_beginning(head: bytes) -> str | None:
    """Return the reader of a file that its first bytes name, None of others."""
    if _is_of_rocm(head):
        return ROCM
    for first_bytes, reader in SIGNATURES.items():
        if head.startswith(first_bytes):
            return reader
    return "perfetto" if starts_with_packet(head) else None


def _is_of_rocm(head: bytes) -> bool:
    """Return whether a file is a database of rpd or rocprofv3, or the JSON of rocprofv3."""
    if head.startswith(SQLITE):
        return any(name.startswith(b"rocpd_") for name in created_tables(head))
    return _ROCPROFV3_JSON.match(head) is not None


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


def _detect_pickle(head: bytes) -> FileType:
    """Return the type of a pickle, from the keys that its first bytes hold as text."""
    if any(key in head for key in _PICKLED_DUMP_KEYS):
        return FileType(FLIGHT_RECORDER)
    if any(key in head for key in _PICKLED_SNAPSHOT_KEYS):
        return FileType(MEMORY_SNAPSHOT)
    return FileType(
        None, why="is a pickle, but neither a flight-recorder dump nor a memory snapshot"
    )


def _detect_json(head: bytes, tail: bytes) -> FileType:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] not in (b"{", b"["):
        return unreadable_file(
            "is not a trace: neither JSON nor a Perfetto trace nor an Nsight Systems export"
        )
    recording = _recording_reader(text, tail)
    if recording is not None:
        return FileType(recording)
    if not (_TRACE_KEYS.search(text) or _EVENT_KEYS.match(text) or _TRACE_KEYS.search(tail)):
        return FileType(None, why='is JSON but not a trace: it has no "traceEvents"')
    other_use = next(
        (why for pattern, why in _EVENTS_OF_OTHER_USE if pattern.search(text[:_MARKED_BYTES])), None
    )
    if other_use:
        return FileType(None, why=other_use)
    if any(mark.search(text[:_MARKED_BYTES]) for mark in _MERGED_MARKS) or _NAMED_AFTER_RANK.search(
        tail
    ):
        return FileType(MERGED)
    info = _distributed_info(head) or _distributed_info(tail)
    return FileType("kineto", _integer(info.get("rank")), _integer(info.get("world_size")))


def _recording_reader(text: bytes, tail: bytes) -> str | None:
    """Return the reader of a log or dump, None of other files."""
    if _INSPECTOR_KEY.search(text):
        return NCCL_INSPECTOR
    is_trace = _TRACE_KEYS.search(text) or _EVENT_KEYS.match(text)
    return FLIGHT_RECORDER if not is_trace and _is_dump(text + tail) else None


def _is_dump(text: bytes) -> bool:
    """Return whether JSON is a flight-recorder dump: a list of entries, and behind its start one of their keys.

    Two patterns, one after the other: as one, each start of a list would be tried against all that
    follows it.
    """
    entries = _DUMP_ENTRIES.search(text)
    return entries is not None and _DUMP_KEY.search(text, entries.end()) is not None


_PACKET_TAG = 10  # field 1, a message
_WIRE_TYPES = (0, 1, 2, 5)
_TAR_MAGIC_START = 257  # bytes of a tar header before the name of its format
_MAX_PACKET_FIELD = 1000  # TracePacket has fields up to 138, and 900 for tests


def starts_with_packet(head: bytes) -> bool:
    r"""Return whether a Perfetto trace starts with *head*: its first packet is a whole message, and a packet follows.

    >>> starts_with_packet(b"\x0a\x04\x40\x02\x50\x01\x0a"), starts_with_packet(b"\nhello"), starts_with_packet(b"\n")
    (True, False, False)
    """
    length, start = _varint(head, 1)
    end = start + length
    if head[:1] != bytes([_PACKET_TAG]) or not length or end > len(head):
        return False
    i = start
    while i < end:
        tag, i = _varint(head, i)
        wire_type = tag & 7
        if wire_type not in _WIRE_TYPES or not 0 < tag >> 3 <= _MAX_PACKET_FIELD:
            return False
        if wire_type == 0:
            _, i = _varint(head, i)
        elif wire_type == 2:
            size, i = _varint(head, i)
            i += size
        else:
            i += 8 if wire_type == 1 else 4
    return i == end and head[end : end + 1] in (b"", bytes([_PACKET_TAG]))


def _varint(data: bytes, i: int) -> tuple[int, int]:
    """Return the protobuf number at *i*, cut where *data* ends, and the index behind it."""
    value = shift = 0
    for byte in data[i : i + 10]:
        value |= (byte & 0x7F) << shift
        i += 1
        shift += 7
        if byte < 0x80:
            break
    return value, i


def _distributed_info(raw: bytes) -> dict[str, Any]:
    text = raw.decode("utf-8", "replace")
    match = _DISTRIBUTED_INFO.search(text)
    if not match:
        return {}
    try:
        info, _ = json.JSONDecoder(strict=False).raw_decode(text, match.end())
        return info if isinstance(info, dict) else {}
    except (ValueError, RecursionError):
        # The bytes end inside a long list of groups; rank and world size come before it.
        part = text[match.end() : match.end() + 400].split("pg_config")[0]
        pairs = re.findall(r'"(rank|world_size)"\s*:\s*(\d{1,9})\b', part)
        return {key: int(value) for key, value in pairs}


def _integer(value: object) -> int | None:
    return valid_rank(value) if isinstance(value, int) and not isinstance(value, bool) else None
