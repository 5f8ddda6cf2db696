"""Top-level keys of a trace: those before the list of events and those after it."""

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tracekit._util.text import counted
from tracekit.errors import InputError, Notice
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.rank_numbers import valid_rank
from tracekit.schema import ProcessGroup, Source

HEAD_LIMIT = 64 << 20
"""A header longer than this is not a header: process groups of ten thousand ranks take a tenth of
it."""

TAIL_LIMIT = 16 << 20
INTEL_MAX_MODELS = ("1100", "1350", "1450", "1550")
"""Models of Intel's Data Center GPU Max series."""
LATEST_BASE_NS = 1 << 61
"""No clock starts beyond this (the year 2043): a larger number is damage."""
FIRST_READ = 1 << 18

_DECODER = json.JSONDecoder(strict=False)
_BEFORE_KEY = re.compile(r'[\s,]*(?=")')
_COLON = re.compile(r"\s*:\s*")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_PHASE = re.compile(rb'"ph"\s*:')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*([^\s,}]{1,60})')
_VERSION = re.compile(
    r"(cuda_driver|cuda_runtime|cupti|hip_driver|hip_runtime|roctracer|rocprofiler|nccl|rccl|torch|pytorch|kineto)_version"
)


def may_start_trace(text: bytes) -> bool:
    r"""Return whether a PyTorch profiler trace may start with *text*: an object with keys, or a list of objects.

    >>> may_start_trace(b'{"schemaVersion": 1, "traceEvents": ['), may_start_trace(b"\x89PNG"), may_start_trace(b"")
    (True, False, False)
    """
    first = text[:1]
    second = text[1:].lstrip()[:1]
    return (first == b"{" and second in (b'"', b"", b"}")) or (
        first == b"[" and second in (b"{", b"", b"]")
    )


def find_events(stream: Stream) -> tuple[bytes, int, dict[str, Any]]:
    """Read up to the first event.

    Returns the bytes read, the index where the events start, and the keys before.
    """
    data = b""
    size = FIRST_READ
    while True:
        more = stream.read(size)
        data += more
        is_last = len(more) < size
        if is_last and stream.cut_short and data.strip() and not _EVENTS.search(data):
            raise InputError(
                "is cut off: its gzip data ends before the first event",
                path=stream.name,
                hint="copy it again, or record this rank again",
            )
        start_and_keys = _search(data, stream.name, is_last=is_last)
        if start_and_keys is not None:
            return data, *start_and_keys
        if len(data) > HEAD_LIMIT:
            raise _not_a_trace(stream.name, f"no traceEvents in the first {HEAD_LIMIT >> 20} MB")
        size = len(data)


def _not_a_trace(name: str, why: str) -> InputError:
    return InputError(
        f"not a PyTorch profiler trace: {why}",
        path=name,
        hint="give the .json or .json.gz the profiler wrote",
    )


def _search(data: bytes, name: str, *, is_last: bool) -> tuple[int, dict[str, Any]] | None:
    """Return the index where the events start and the keys before them.

    None if that takes more bytes.
    """
    lead = len(data) - len(data.removeprefix(b"\xef\xbb\xbf").lstrip())
    if lead == len(data):
        if is_last or lead > 1 << 20:
            raise InputError("the file is empty", path=name, hint="re-record this rank")
        return None
    if not may_start_trace(data[lead : lead + 4096]):
        raise _not_a_trace(name, "it does not start as JSON")
    if data[lead : lead + 1] == b"[":
        return lead + 1, {}
    # Bytes outside ASCII would shift positions between text and bytes; latin-1 keeps them equal.
    keys, end, state = _parse_keys(data.decode("latin-1"), lead + 1)
    if state == "events":
        return end, keys
    events = _EVENTS.search(data, end)
    if events:  # a value before the events is not JSON; its key is lost
        return events.end(), keys
    if state == "closed" or is_last:
        raise _not_a_trace(name, "no traceEvents")
    return None


def _parse_keys(text: str, i: int) -> tuple[dict[str, Any], int, str]:
    """Return the top-level keys from *i*, the index behind them, and why they end.

    That is "events" if the list of events starts, "closed" if the object ends, and "open" if the
    text is not JSON.
    """
    keys: dict[str, Any] = {}
    while True:
        quote = _BEFORE_KEY.match(text, i)
        if not quote:
            rest = text[i:].lstrip(", \t\r\n")
            return keys, i, "closed" if rest[:1] == "}" else "open"
        try:
            key, start = _DECODER.raw_decode(text, quote.end())
            colon = _COLON.match(text, start)
            if not colon:
                return keys, i, "open"
            if key == "traceEvents" and text[colon.end() : colon.end() + 1] == "[":
                return keys, colon.end() + 1, "events"
            keys[key], i = _DECODER.raw_decode(text, colon.end())
        except (ValueError, RecursionError):
            return keys, i, "open"


def parse_tail(tail: bytes) -> tuple[dict[str, Any], int]:
    """Return the keys after the events, and the number of events there.

    *tail* starts behind the closing bracket.

    Such events are not read. They are left there by a stray bracket that closed the list too early,
    by a second list or by a second trace.

    >>> parse_tail(b', "baseTimeNanoseconds": 5, "traceName": "x"}')
    ({'baseTimeNanoseconds': 5, 'traceName': 'x'}, 0)
    >>> parse_tail(b', {"ph": "X", "ts": 1}, {"ph": "X", "ts": 2}]}')
    ({}, 2)
    """
    keys, end, _ = _parse_keys(tail.decode("latin-1"), 0)
    if "baseTimeNanoseconds" not in keys and (match := _BASE.search(tail)):
        keys["baseTimeNanoseconds"] = match.group(1).decode("latin-1")
    return keys, len(_PHASE.findall(tail, end))


def parse_header(keys: Mapping[str, Any]) -> tuple[int | None, int, Source]:
    """Return what the analysis needs of the keys, without environment, users, hosts and paths.

    Returns:
        The rank, the start of the clock, and what the keys tell of the source, without its path and
        rank; it has one notice per impossible value.
    """
    info = keys.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    listed = keys.get("deviceProperties")
    devices = []
    if isinstance(listed, list):
        devices = [device for device in listed if isinstance(device, dict)]
    shapes = keys.get("record_shapes")
    recorder = keys.get("tracekit")
    free_step_ns = _integer(recorder.get("free_step_ns")) if isinstance(recorder, dict) else None
    rank = valid_rank(_integer(info.get("rank")))
    world_size = valid_rank(_integer(info.get("world_size")))
    base_ns = _base_time(keys.get("baseTimeNanoseconds"))
    notices = []
    if info.get("rank") is not None and rank is None:
        notices.append(
            Notice(
                "odd-rank",
                (f"rank is {_short(info['rank'])}, which is not a rank: it was left out"),
                values={"case": "rank", "value": _short(info["rank"])},
            )
        )
    if info.get("world_size") is not None and world_size is None:
        notices.append(
            Notice(
                "odd-rank",
                (f"world_size is {_short(info['world_size'])}, which no run has: it was left out"),
                values={"case": "world_size", "value": _short(info["world_size"])},
            )
        )
    if keys.get("baseTimeNanoseconds") is not None and base_ns is None:
        odd_time = _short(keys["baseTimeNanoseconds"])
        notices.append(
            Notice(
                "no-base-time",
                (f"baseTimeNanoseconds is {odd_time}, which is not a time: it was left out"),
                values={"case": "odd", "value": odd_time},
            )
        )
    groups, group_notices = _groups(info.get("pg_config"))
    source = Source(
        path="",
        reader="kineto",
        rank=0,
        rank_from="",
        world_size=world_size,
        devices=tuple(_device_name(device) for device in devices if "name" in device),
        multiprocessors=_common_value(devices, "numSms"),
        memory_bytes=_common_value(devices, "totalGlobalMem"),
        versions=_versions({**keys, "nccl_version": info.get("nccl_version")}),
        groups=groups,
        record_shapes=bool(shapes) if isinstance(shapes, int) else None,
        free_step_ns=free_step_ns if free_step_ns and free_step_ns > 0 else None,
        notices=(*group_notices, *notices),
    )
    return rank, base_ns or 0, source


def _common_value(devices: list[dict[str, Any]], key: str) -> int | None:
    """Return a number that all listed GPUs share; None if they differ or none has it."""
    values = {_integer(device.get(key)) for device in devices}
    return values.pop() if len(values) == 1 else None


def _base_time(value: Any) -> int | None:
    """Return the start of the clock.

    A float counts where it is whole, and what no clock shows does not.

    >>> _base_time(1.7e18), _base_time(17 * 10**18), _base_time("x"), _base_time(0.5)
    (1700000000000000000, None, None, None)
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    number = _integer(value, negative=True)
    return number if number is not None and abs(number) < LATEST_BASE_NS else None


def _short(value: Any) -> str:
    text = " ".join(_text(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"


def _text(value: Any) -> str:
    """Undo the latin-1 reading, which kept positions equal, for what is shown."""
    text = str(value)
    with contextlib.suppress(UnicodeError):
        text = text.encode("latin-1").decode("utf-8")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _integer(value: Any, *, negative: bool = False) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        return None
    return value if negative or value >= 0 else None


def _device_name(device: dict[str, Any]) -> str:
    """Return the name of a GPU; drivers of Intel may give its model's number alone.

    >>> _device_name({"name": "1550"}), _device_name({"name": "NVIDIA H200"})
    ('Intel(R) Data Center GPU Max 1550', 'NVIDIA H200')
    """
    name = _text(device["name"])
    return f"Intel(R) Data Center GPU Max {name}" if name in INTEL_MAX_MODELS else name


def _versions(keys: Mapping[str, Any]) -> dict[str, str]:
    versions = {}
    for key, value in keys.items():
        match = _VERSION.fullmatch(key)
        if (
            match
            and isinstance(value, str | int | float)
            and re.fullmatch(r"[\w.+-]{1,40}", str(value))
        ):
            name = match.group(1)
            versions[name] = str(value)
            if name.startswith("cuda_") and isinstance(value, int):
                versions[name] = f"{value // 1000}.{value % 1000 // 10}"
    return versions


def _groups(config: Any) -> tuple[tuple[ProcessGroup, ...], list[Notice]]:
    """Return the process groups, and one notice for all of those whose members cannot be ranks."""
    entries = (
        [entry for entry in config if isinstance(entry, dict)] if isinstance(config, list) else []
    )
    groups = []
    odd = 0
    for entry in entries:
        ranks = _ranks(entry.get("ranks"))
        description = entry.get("pg_desc")
        odd += "ranks" in entry and ranks is None
        if not isinstance(description, str) or description in ("", "undefined"):
            description = None
        name = _text(entry.get("pg_name", ""))
        groups.append(ProcessGroup(name, description and _text(description), tuple(ranks or ())))
    notices = (
        [
            Notice(
                "odd-rank",
                (
                    f"{odd} of {counted(len(entries), 'process group')} name members that "
                    "are not ranks: they were left out"
                ),
                values={"case": "group", "odd": odd, "groups": len(entries)},
            )
        ]
        if odd
        else []
    )
    return tuple(groups), notices


def _ranks(members: Any) -> list[int] | None:
    are_ranks = isinstance(members, list) and all(
        type(r) is int and valid_rank(r) is not None for r in members
    )
    return members if are_ranks else None
