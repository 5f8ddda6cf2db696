"""Reader of Nsight Systems exports, and of reports, which only Nsight's own ``nsys export`` can read.

The result is one events table per rank of the file.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from tracekit._util.text import listing
from tracekit.errors import InputError, Notice, OptionError
from tracekit.parsers.nsight import nccl, tables
from tracekit.parsers.nsight.cuda import api_events, gpu_events
from tracekit.parsers.nsight.exports import ArrowExport, SqliteExport
from tracekit.parsers.nsight.names import Strings
from tracekit.parsers.nsight.nvtx import nvtx_events
from tracekit.parsers.nsight.tables import IDENTIFYING_TABLES, NsightExport
from tracekit.parsers.process_ranks import (
    PID_MASK,
    ProcessRank,
    keep_rank_events,
    number_ranks,
    rank_events,
    rank_notices,
    refuse_many_ranks,
)
from tracekit.parsers.torch_ranges import link_autograd, parse_ops
from tracekit.schema import UNTIMED, RankEvents, Source

SQLITE_MAGIC = b"SQLite format 3\x00"


def read(
    path: str | os.PathLike[str],
    *,
    rank: int | None = None,
    nsys: str | None = None,
    lenient: bool = True,
) -> list[RankEvents]:
    """Read an export or, through ``nsys export``, a report.

    Args:
        path: An sqlite, parquetdir, arrowdir or arrow export, or a report.
        rank: Number of the file's first rank.
        nsys: Program that exports reports.
        lenient: Report damage in a notice instead of an error.

    Returns:
        One item per rank.

    >>> rank_events, = read("sample_traces/nsys-1f1b/rank0.sqlite")
    >>> rank_events.source.rank, rank_events.source.counts["kernel"]
    (0, 643)
    """
    path = Path(path)
    if not path.exists():
        raise InputError("there is no such file", path=path, hint="check the path")
    if path.suffix in SUFFIXES:
        with export_report(path, nsys) as export_path:
            return _read_ranks(open_export(export_path), path, rank, lenient)
    return _read_ranks(open_export(path), path, rank, lenient)


def open_export(path: Path) -> NsightExport:
    """Open an export of any format; the error says why *path* is not one."""
    export = ArrowExport(path) if path.is_dir() else _open_file(path)
    if not export.tables & IDENTIFYING_TABLES:
        tables = listing(sorted(export.tables), most=4)
        shown = f"; it has {tables}" if tables else ""
        hint = "name a recording: what torch.profiler, `nsys export`, rocprofv3 or rpd wrote"
        raise InputError(f"holds no table of a profiler{shown}", path=path, hint=hint)
    return export


def _open_file(path: Path) -> NsightExport:
    try:
        with path.open("rb") as file:
            magic = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=path, hint="check the path"
        ) from error
    if not magic:
        raise InputError(
            "is empty", path=path, hint="export the report again: nsys export --type sqlite REPORT"
        )
    if magic == SQLITE_MAGIC:
        return SqliteExport(path)
    if path.suffix == ".arrow":
        return ArrowExport(path)
    hint = "export the report: nsys export --type sqlite REPORT.nsys-rep"
    raise InputError(
        "is not an Nsight Systems export (neither sqlite nor Arrow)", path=path, hint=hint
    )


def _read_ranks(
    export: NsightExport, path: Path, first_rank: int | None, lenient: bool
) -> list[RankEvents]:
    """Read the ranks of an export; *path* is the file that the user gave."""
    session_start_ns = tables.session_start_ns(export)
    base_ns = session_start_ns or 0
    strings = Strings(export)
    calls = api_events(export, strings, base_ns)
    gpu, untimed = gpu_events(export, strings, base_ns)
    ranges, threads = nvtx_events(export, strings, base_ns, tables.session_duration_ns(export))
    ranges = nccl.decode_payloads(ranges, nccl.payload_layouts(export))
    communicators = nccl.created_communicators(ranges)
    ranges = parse_ops(ranges)
    ranges = ranges.with_columns(strings.shorten(ranges["name"]))
    ranges = nccl.add_communication(link_autograd(ranges))

    # GPU events without a process belong to the only process that made CUDA calls, if there is one.
    processes = calls["process"].unique().drop_nulls()
    default_process = processes[0] if len(processes) == 1 else 0
    gpu = gpu.with_columns(pl.col("process").fill_null(default_process))
    gpu, pairs, skipped = keep_rank_events(gpu)
    refuse_many_ranks(pairs, path)
    if not pairs:
        pairs = [(_busiest_process([calls, ranges], path, damaged=bool(export.notices)), None)]
    ranks = number_ranks(
        pairs, path, first=first_rank, communicators=communicators, threads=threads
    )
    if export.notices and not lenient:
        hint = "export the report again, or allow damaged files"
        raise InputError("is damaged", path=path, hint=hint, notice=export.notices[0])
    if untimed:
        skipped = skipped | {UNTIMED: untimed}
    notices = [
        *dict.fromkeys(export.notices),
        *tables.profiler_warnings(export),
        *strings.notices(),
    ]
    if session_start_ns is None:
        notices.append(
            Notice(
                "no-clock",
                "the file does not say when it was recorded: times count from 0, ranks align by events",
                severity="note",
            )
        )
    file_source = Source(
        path=str(path),
        reader="nsight",
        rank=0,
        rank_from="",
        world_size=max(communicators["ranks"].to_list(), default=None),
        versions=tables.versions(export),
        skipped=skipped,
        notices=tuple(notices),
    )
    largest = communicators.filter(pl.col("ranks") == pl.col("ranks").max())
    # Communicators as large as the largest that was created.
    world = tuple(largest["communicator"].drop_nulls())
    gpus = tables.find_gpus(export)
    result = []
    for process, group in groupby(
        ranks, key=lambda rank: rank.process
    ):  # pairs are sorted by process
        ranks_of_process = list(group)
        calls_of_process = calls.filter(process=process)
        ranges_of_process = ranges.filter(process=process)
        events_of_ranks = rank_events(
            nccl.add_to_kernels(
                gpu.filter(process=process),
                calls_of_process.filter(pl.col("kind").is_in(["runtime", "driver"])),
                ranges_of_process.filter(
                    pl.col("kind") == "cpu_op", pl.col("collective").is_not_null()
                ),
            ),
            calls_of_process,
            ranges_of_process,
            {rank.device: rank.number for rank in ranks_of_process},
        )
        for rank, events in zip(ranks_of_process, events_of_ranks, strict=True):
            gpu_of_rank = (
                gpus.get((process & PID_MASK, rank.device))
                or gpus.get((-1, rank.device))
                or tables.RecordedGpu()
            )
            result.append(
                RankEvents(events, _describe_rank(file_source, rank, events, gpu_of_rank, world))
            )
    return result


def _describe_rank(
    file_source: Source,
    rank: ProcessRank,
    events: pl.DataFrame,
    gpu: tables.RecordedGpu,
    world: tuple[str, ...],
) -> Source:
    """Return the source of a rank: that of its file, with what the rank's own events tell."""
    counts = dict(sorted(events["kind"].value_counts().rows()))
    return replace(
        file_source,
        rank=rank.number,
        rank_from=rank.number_from,
        devices=(gpu.name,) if gpu.name else (),
        multiprocessors=gpu.multiprocessors,
        memory_bytes=gpu.memory_bytes,
        record_shapes=bool(events["shapes"].is_not_null().any()) if counts.get("cpu_op") else None,
        counts=counts,
        notices=(*file_source.notices, *rank_notices(events, counts, world=world)),
    )


def _busiest_process(frames: list[pl.DataFrame], path: Path, *, damaged: bool) -> int:
    """Return the process with the most events, of a file without GPU events.

    The others are not ranks.
    """
    processes = pl.concat(frame.select(pl.col("process").cast(pl.Int64)) for frame in frames)[
        "process"
    ].drop_nulls()
    if len(processes):
        return int(processes.mode().sort()[0])
    if damaged:
        raise InputError(
            "is damaged; no event could be read", path=path, hint="export the report again"
        )
    hint = "record with: nsys profile --trace=cuda,nvtx"
    raise InputError("holds no GPU events, no CUDA calls and no NVTX ranges", path=path, hint=hint)


SUFFIXES = (".nsys-rep", ".qdrep")
NSYS_VARIABLE = "TRACEKIT_NSYS"
"""Environment variable with the path of nsys; worker processes inherit it."""
_TIMEOUT_S = 3600
_PAYLOAD_OPTIONS = ("--include-json", "--include-blobs")
"""Options that keep payloads of NVTX ranges, such as arguments of NCCL's calls; exporters before
2022 lack them."""


@contextlib.contextmanager
def export_report(path: Path, nsys: str | None) -> Iterator[Path]:
    """Yield an sqlite export of a report, in a temporary folder that is removed afterwards."""
    program = _find_nsys(path, nsys)
    help_process = _run([program, "export", "--help"])
    options_in_help = help_process.stdout + help_process.stderr
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        command = [
            program,
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            f"--output={target}",
        ]
        command += [f"{option}=true" for option in _PAYLOAD_OPTIONS if option in options_in_help]
        process = _run([*command, str(path)])
        if process.returncode or not target.exists():
            hint = f"the exporter must be at least as new as the recording: {_export_command(path)}"
            raise InputError(
                f"`nsys export` could not read it (exit code {process.returncode})",
                path=path,
                hint=hint,
            )
        yield target


def _find_nsys(path: Path, nsys: str | None) -> str:
    nsys = nsys or os.environ.get(NSYS_VARIABLE)
    if nsys:
        program = shutil.which(nsys)
        if program is None:
            raise OptionError(
                "is not a program that can be run", path=nsys, hint="give the path of nsys itself"
            )
        return program
    program = shutil.which("nsys")
    if program is None:
        hint = f"on a machine with Nsight Systems: {_export_command(path)} (or set {NSYS_VARIABLE} to its path)"
        raise InputError(
            "a report must be exported first, and nsys is not on the PATH", path=path, hint=hint
        )
    return program


def _export_command(path: Path) -> str:
    return f"nsys export --type sqlite {path.name}"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = "check it with: nsys --version"
        raise InputError(
            f"did not run ({type(error).__name__})", path=command[0], hint=hint
        ) from error
