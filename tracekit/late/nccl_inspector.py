"""Reader of NCCL Inspector logs: one file per process, a JSON object per completed operation and line.

A process may have several communicators. The Inspector numbers operations per communicator and kind
of operation, and leaves out messages below a size (8,192 bytes by default) and operations without
GPU timing, so that gaps in the numbers are usual. With ``NCCL_INSPECTOR_DUMP_VERBOSE=1`` a line has
the host's and the kernels' times; without it only the duration and the moment at which the line was
written, some time after the operation had completed.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl

from tracekit._util.inflation import GZIP, inflated_limit, inflation_error
from tracekit._util.text import counted, joined, verb
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.parsers.collective_names import operation_name, valid_int64
from tracekit.schema import COLLECTIVES, RankCollectives, Recording, conform

KNOWN_VERSIONS = ("v4", "v5")
"""Major versions of the format that are read; others are tried, with a notice."""
MAX_LINE_BYTES = 1 << 20
"""Longest line: an operation on 64 channels takes 16 KB."""
GPU_TIMINGS = ("kernel_gpu", "kernel_cpu")
"""Sources of a duration that is the kernel's. ``collective_cpu`` is the time of the host's call."""
_HOW_TO_RECORD = "record it with NCCL_INSPECTOR_ENABLE=1 and NCCL_INSPECTOR_DUMP_VERBOSE=1"


class _InspectorHeader(msgspec.Struct):
    id: str
    comm_name: str | None = None
    rank: int | None = None
    n_ranks: int | None = None


class _Metadata(msgspec.Struct):
    inspector_output_format_version: str | None = None
    dump_timestamp_us: int | None = None
    hostname: str | None = None
    pid: int | None = None


class _KernelTimes(msgspec.Struct):
    kernel_start_ts: int | None = None
    kernel_stop_ts: int | None = None


class _InspectorTimes(msgspec.Struct):
    coll_start_ts: int | None = None
    p2p_start_ts: int | None = None
    kernel_events: list[_KernelTimes] = []


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int | None = None
    coll_msg_size_bytes: int | None = None
    coll_exec_time_us: int | None = None
    coll_timing_source: str | None = None
    event_trace_ts: _InspectorTimes | None = None


class _InspectorMessage(msgspec.Struct):
    p2p: str
    p2p_sn: int | None = None
    p2p_peer: int | None = None
    p2p_msg_size_bytes: int | None = None
    p2p_exec_time_us: int | None = None
    p2p_timing_source: str | None = None
    event_trace_ts: _InspectorTimes | None = None


class _InspectorLine(msgspec.Struct):
    header: _InspectorHeader
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _InspectorMessage | None = None


def read(path: str | Path, *, rank: int | None = None, name: str | None = None) -> RankCollectives:
    """Read the log of one process, compressed by gzip or not.

    The log has the process's rank within each communicator only: peers are counted within their
    communicator too, until the logs of a run are put together.

    Args:
        path: The file.
        rank: Rank of the process, if the file's name tells.
        name: What to call it in errors; by default the path.

    """
    shown = name or str(path)
    columns: dict[str, list[Any]] = {
        column: [] for column in COLLECTIVES if column not in ("rank", "source", "step")
    }
    group_ranks: dict[str, int] = {}
    group_sizes: dict[str, int] = {}
    problems: Counter[str] = Counter()
    metadata: _Metadata | None = None
    processes = set()
    decoder = msgspec.json.Decoder(_InspectorLine)
    for raw_line in _lines(Path(path), shown):
        try:
            line = decoder.decode(raw_line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            problems["cut_lines" if not raw_line.endswith(b"}") else "damaged_lines"] += 1
            continue
        metadata = metadata or line.metadata
        processes.add((line.metadata.hostname, line.metadata.pid))
        header = line.header
        if (
            header.rank is not None
            and header.n_ranks is not None
            and 0 <= header.rank < header.n_ranks
        ):
            group_ranks[header.id] = header.rank
            group_sizes[header.id] = header.n_ranks
        _add_row(columns, line)
    if metadata is None:
        raise InputError("has no line of an NCCL Inspector log", path=shown, hint=_HOW_TO_RECORD)
    if len(processes) > 1:
        raise InputError(
            f"holds lines of {len(processes)} processes",
            path=shown,
            hint="name one log per process",
        )
    columns["rank"] = [rank] * len(columns["id"])
    columns["source"] = ["nccl_inspector"] * len(columns["id"])
    source = Recording(
        str(path),
        "nccl_inspector",
        rank=rank,
        rank_from="name",
        version=metadata.inspector_output_format_version,
        group_ranks=group_ranks,
        group_sizes=group_sizes,
        host=metadata.hostname,
        pid=valid_int64(metadata.pid),
        notices=_notices(shown, problems, metadata.inspector_output_format_version),
    )
    return RankCollectives(conform(pl.DataFrame(columns, strict=False), COLLECTIVES), source)


def _notices(shown: str, problems: Counter[str], version: str | None) -> tuple[Notice, ...]:
    notices = []
    if not (version or "").startswith(KNOWN_VERSIONS):
        values: NoticeValues = {
            "case": "inspector",
            "file": shown,
            "version": version,
            "known": KNOWN_VERSIONS,
        }
        notices.append(
            Notice(
                "recorder-version",
                (
                    f"{shown}: version {version} of the Inspector's log is not one "
                    f"of {joined(KNOWN_VERSIONS)}"
                ),
                values=values,
            )
        )
    for problem, count in problems.items():
        damage = "cut off" if problem == "cut_lines" else "damaged"
        values = {"case": problem, "file": shown, "count": count}
        message = f"{shown}: {counted(count, 'line')} {verb(count, 'is', 'are')} {damage}"
        notices.append(Notice("bad-events", message, values=values))
    return tuple(notices)


def _lines(path: Path, shown: str) -> Iterator[bytes]:
    """Yield the lines of a log that are not empty.

    Of a longer line only its first part, which does not decode. Lines are read in blocks: a line
    of one byte costs next to nothing.
    """
    rest = b""
    for block in _blocks(path, shown):
        *lines, rest = (rest + block).split(b"\n")
        for line in filter(None, map(bytes.strip, lines)):
            yield line[:MAX_LINE_BYTES]
        if len(rest) >= MAX_LINE_BYTES:
            yield rest
            rest = b""
    if line := rest.strip():
        yield line


def _blocks(path: Path, shown: str) -> Iterator[bytes]:
    """Yield the content of a log in blocks, inflated if it is compressed."""
    try:
        with path.open("rb") as raw:
            is_compressed = raw.read(2) == GZIP
            raw.seek(0)
            size = path.stat().st_size
            file: IO[bytes] = gzip.GzipFile(fileobj=raw) if is_compressed else raw  # type: ignore[assignment]
            total = 0
            while block := file.read(MAX_LINE_BYTES):
                total += len(block)
                if is_compressed and total > inflated_limit(size):
                    raise inflation_error(shown, size)
                yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError("is a damaged gzip file", path=shown, hint="copy it again") from error
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=shown, hint="check its permissions"
        ) from error


def _add_row(columns: dict[str, list[Any]], line: _InspectorLine) -> None:
    """Add an operation to the columns."""
    collective = line.coll_perf
    message = line.p2p_perf
    if collective is not None:
        op = operation_name(collective.coll)
        sequence = collective.coll_sn
        peer = None
        size = collective.coll_msg_size_bytes
        duration_us = collective.coll_exec_time_us
        timing = collective.coll_timing_source
        times = collective.event_trace_ts
        enqueued_us = times.coll_start_ts if times is not None else None
    elif message is not None:
        op = operation_name(message.p2p)
        sequence = message.p2p_sn
        peer = message.p2p_peer
        size = message.p2p_msg_size_bytes
        duration_us = message.p2p_exec_time_us
        timing = message.p2p_timing_source
        times = message.event_trace_ts
        enqueued_us = times.p2p_start_ts if times is not None else None
    else:
        return
    kernels = times.kernel_events if times is not None else []
    starts = [kernel.kernel_start_ts for kernel in kernels if kernel.kernel_start_ts]
    stops = [kernel.kernel_stop_ts for kernel in kernels if kernel.kernel_stop_ts]
    is_gpu_time = timing is None or timing in GPU_TIMINGS
    is_possible_peer = peer is not None and 0 <= peer < 2**31
    columns["id"].append(len(columns["id"]))
    columns["group"].append(line.header.id)
    columns["sequence"].append(valid_int64(sequence))
    columns["op"].append(op)
    columns["is_message"].append(message is not None and collective is None)
    columns["peer"].append(peer if is_possible_peer else None)
    columns["bytes"].append(valid_int64(size))
    columns["dtype"].append(None)
    columns["enqueued_ns"].append(_nanoseconds(enqueued_us))
    columns["started_ns"].append(_nanoseconds(min(starts, default=None)))
    columns["completed_ns"].append(_nanoseconds(max(stops, default=None)))
    columns["completed_by_ns"].append(_nanoseconds(line.metadata.dump_timestamp_us))
    columns["duration_ns"].append(_nanoseconds(duration_us) if is_gpu_time else None)
    columns["state"].append("completed")


def _nanoseconds(microseconds: int | None) -> int | None:
    """Return a time in nanoseconds; None where it is not recorded (0) or no possible time."""
    return valid_int64(microseconds * 1_000) if microseconds else None
