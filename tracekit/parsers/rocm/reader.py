"""Reader of ROCm's profilers. The result is one events table per rank of the file."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace as replace_fields
from itertools import groupby
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from tracekit._util.inflation import GZIP, inflate_whole
from tracekit.errors import InputError, Notice
from tracekit.parsers.foreign_formats import SQLITE, created_tables
from tracekit.parsers.process_ranks import (
    PID_MASK,
    ProcessRank,
    keep_rank_events,
    number_ranks,
    rank_events,
    rank_notices,
    refuse_many_ranks,
)
from tracekit.parsers.rocm.recording import RocmRecording, usable_gpu_work, usable_host_events
from tracekit.parsers.rocm.rocpd import TEXTS, is_stored_table, read_rocpd
from tracekit.parsers.rocm.rocprofv3_json import read_rocprofv3_json
from tracekit.parsers.rocm.rpd import RPD_TABLES, TABLES_OF_RPD_READ, read_rpd
from tracekit.parsers.sqlite_tables import SqliteFormat, SqliteTables
from tracekit.parsers.torch_ranges import link_autograd, parse_ops
from tracekit.schema import UNTIMED, RankEvents, Source

_FIRST_BYTES = 1 << 18
"""Bytes at the beginning of a database in which its tables are declared."""


def _database_format(is_read: Callable[[str], bool]) -> SqliteFormat:
    return SqliteFormat(
        is_read=is_read,
        texts=TEXTS,
        write_again="record again, or copy the file again",
        finish="wait until the profiler has finished, or read a copy",
    )


_NO_COMMUNICATORS = pl.DataFrame(
    schema={"process": pl.Int64(), "ranks": pl.Int64(), "own_rank": pl.Int64()}
)
_NO_THREADS = pl.DataFrame(schema={"process": pl.Int64(), "name": pl.String()})


def read(
    path: str | os.PathLike[str], *, rank: int | None = None, lenient: bool = True
) -> list[RankEvents]:
    """Read a recording of rpd or rocprofv3.

    Args:
        path: A database, or JSON, either of them also compressed with gzip.
        rank: Number of the file's first rank.
        lenient: Report damage in a notice instead of an error.

    Returns:
        One item per rank.
    """
    path = Path(path)
    recording = _read_file(path)
    if recording.notices and not lenient:
        hint = "record again, or allow damaged files"
        raise InputError("is damaged", path=path, hint=hint, notice=recording.notices[0])
    return _split_by_rank(recording, path, rank)


def _read_file(path: Path) -> RocmRecording:
    content = _first_bytes(path, len(SQLITE))
    if content.startswith(GZIP):
        inflated = inflate_whole(path.read_bytes(), str(path))
        if not inflated.startswith(SQLITE):
            return read_rocprofv3_json(inflated, path)
        with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
            database = Path(folder) / path.name.removesuffix(".gz")
            database.write_bytes(inflated)
            return _read_database(database, path)
    if content.startswith(SQLITE):
        return _read_database(path, path)
    return read_rocprofv3_json(path.read_bytes(), path)


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=path, hint="check the path"
        ) from error


def _read_database(database: Path, path: Path) -> RocmRecording:
    """Read a database; *path* is the file that the user gave."""
    # Databases of rocprofv3 have views with the names of rpd's tables.
    declared = created_tables(_first_bytes(database, _FIRST_BYTES))
    if set(map(bytes.decode, declared)) >= RPD_TABLES:
        tables = SqliteTables(database, _database_format(TABLES_OF_RPD_READ.__contains__))
        recording = read_rpd(tables)
    else:
        tables = SqliteTables(database, _database_format(is_stored_table))
        if not any(map(is_stored_table, tables.tables)):
            raise InputError(
                "holds no table of operations that rpd or rocprofv3 write",
                path=path,
                hint="record again, or copy the file again",
            )
        recording = read_rocpd(tables)
    return replace_fields(recording, notices=tuple(tables.notices))


def _split_by_rank(
    recording: RocmRecording, path: Path, first_rank: int | None
) -> list[RankEvents]:
    gpu, untimed = usable_gpu_work(recording.gpu)
    calls, call_notices = usable_host_events(recording.calls, "calls", path.name)
    ranges, range_notices = usable_host_events(recording.ranges, "ranges", path.name)
    ranges = _with_operators(ranges)
    # Work without a launch in the file belongs to the only process that launched any.
    processes = calls["process"].unique().drop_nulls()
    default_process = processes[0] if len(processes) == 1 else 0
    gpu = gpu.with_columns(pl.col("process").fill_null(default_process))
    gpu, pairs, skipped = keep_rank_events(gpu)
    refuse_many_ranks(pairs, path)
    if not pairs:
        raise InputError(
            "holds no work of a GPU",
            path=path,
            hint="record with: rocprofv3 --sys-trace --output-format json",
        )
    ranks = number_ranks(
        pairs, path, first=first_rank, communicators=_NO_COMMUNICATORS, threads=_NO_THREADS
    )
    if untimed:
        skipped = skipped | {UNTIMED: untimed}
    if recording.other_operations:
        skipped = skipped | {"barriers": recording.other_operations}
    notices = (
        *recording.notices,
        *call_notices,
        *range_notices,
        Notice(
            "no-clock",
            "the file does not say when it was recorded: times count from 0, ranks align by events",
            severity="note",
        ),
    )
    result = []
    for process, group in groupby(ranks, key=lambda each: each.process):
        ranks_of_process = list(group)
        events_of_ranks = rank_events(
            gpu.filter(process=process),
            calls.filter(process=process),
            ranges.filter(process=process),
            {each.device: each.number for each in ranks_of_process},
        )
        for each, events in zip(ranks_of_process, events_of_ranks, strict=True):
            source = _source(recording, path, each, events)
            found = (*notices, *rank_notices(events, source.counts))
            result.append(RankEvents(events, replace(source, skipped=skipped, notices=found)))
    return result


def _with_operators(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges with PyTorch's operators among them, as ``torch.autograd.profiler.emit_nvtx`` writes them."""
    in_order = ranges.with_columns(domain=pl.lit(None, pl.String), domain_id=pl.lit(0)).sort(
        "process", "tid", "start_ns", "end_ns", descending=[False, False, False, True]
    )
    return link_autograd(parse_ops(in_order))


def _source(
    recording: RocmRecording, path: Path, rank: ProcessRank, events: pl.DataFrame
) -> Source:
    counts = dict(sorted(events["kind"].value_counts().rows()))
    gpu = None if rank.device is None else recording.gpus.get(rank.device)
    return Source(
        path=str(path),
        reader="rocm",
        rank=rank.number,
        rank_from=rank.number_from,
        devices=(gpu,) if gpu else (),
        versions={"profiler": recording.tool},
        record_shapes=bool(events["shapes"].is_not_null().any()) if counts.get("cpu_op") else None,
        counts=counts,
        pid=rank.process & PID_MASK,
    )
