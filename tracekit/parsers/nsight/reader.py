"""Nsight Systems exports into the events table: one rank for each process and GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.parsers.nsight import about, emit, nccl
from tracekit.parsers.nsight.api import api_events
from tracekit.parsers.nsight.build import events_table
from tracekit.parsers.nsight.gpu import gpu_events
from tracekit.parsers.nsight.marks import step_marks, unnumbered_steps, used_steps
from tracekit.parsers.nsight.names import Strings
from tracekit.parsers.nsight.notices import rank_notices
from tracekit.parsers.nsight.nvtx import nvtx_events
from tracekit.parsers.nsight.opening import open_export
from tracekit.parsers.nsight.payload import layouts
from tracekit.parsers.nsight.ranks import Owner, find_pairs, number, with_process
from tracekit.parsers.nsight.report import SUFFIXES as REPORTS
from tracekit.parsers.nsight.report import exported
from tracekit.parsers.nsight.tables import Export
from tracekit.parsers.steps import assign_steps
from tracekit.schema import EVENTS, UNTIMED, RankEvents, Source, conform


def read(
    path: str | os.PathLike[str], *, rank: int | None = None, nsys: str | None = None, lenient: bool = True
) -> list[RankEvents]:
    """Read an export (sqlite, parquetdir, arrowdir, arrow) or, through ``nsys``, a report: one item per rank.

    *rank* numbers the file's first rank; *nsys* is the exporter to use for reports; with *lenient* off a damaged
    file is an error instead of a notice.

    >>> one, = read("sample_traces/nsys-1f1b/rank0.sqlite")
    >>> one.source.rank, one.source.counts["kernel"]
    (0, 643)
    """
    asked = Path(path)
    if not asked.exists():
        raise InputError(f"{asked}: there is no such file", hint="check the path")
    if asked.suffix in REPORTS:
        with exported(asked, nsys) as export_path:
            return _read(export_path, asked, rank, lenient)
    return _read(asked, asked, rank, lenient)


def _read(path: Path, asked: Path, rank: int | None, lenient: bool) -> list[RankEvents]:
    export = open_export(path)
    try:
        return _ranks(export, asked, rank, lenient)
    finally:
        export.close()


@dataclass(frozen=True, slots=True)
class _File:
    """What one export holds for all its ranks."""

    asked: Path
    gpu: list[pl.DataFrame]
    calls: list[pl.DataFrame]
    nvtx: pl.DataFrame
    world: tuple[str, ...]  # communicators as wide as the widest whose creation was recorded
    world_size: int | None
    versions: Mapping[str, str]
    gpus: Mapping[tuple[int, int | None], about.Gpu]
    skipped: Mapping[str, int]
    notices: tuple[Notice, ...]


def _ranks(export: Export, asked: Path, rank: int | None, lenient: bool) -> list[RankEvents]:
    began = about.session_start(export)
    strings = Strings(export)
    calls = api_events(export, strings, began or 0)
    ran, untimed = gpu_events(export, strings, began or 0)
    gpu = with_process(ran, calls)
    nvtx, threads = nvtx_events(export, strings, began or 0, about.session_length(export))
    layout = layouts(export)
    created = nccl.communicators(nvtx, layout)
    nvtx = nccl.add_communication(emit.link_autograd(emit.parse_ops(nvtx)), layout)
    pairs, skipped = find_pairs(gpu)
    processes = pairs or _without_gpu([*calls, nvtx], asked, damaged=bool(export.notices))
    owners = number(processes, asked, rank=rank, communicators=created, threads=threads)
    if export.notices and not lenient:
        raise InputError(export.notices[0].message, hint="export the report again, or allow damaged files")
    file = _File(
        asked=asked,
        gpu=gpu,
        calls=calls,
        nvtx=nvtx,
        world=tuple(created.filter(pl.col("ranks") == pl.col("ranks").max())["communicator"].drop_nulls()),
        world_size=max(created["ranks"].to_list(), default=None),
        versions=about.versions(export),
        gpus=about.find_gpus(export),
        skipped=skipped | ({UNTIMED: untimed} if untimed else {}),
        notices=(*export.notices, *about.lost_events(export), *strings.notices(), *_clock(began)),
    )
    return [_rank(owner, file) for owner in owners]


def _without_gpu(frames: list[pl.DataFrame], asked: Path, *, damaged: bool) -> list[tuple[int, int | None]]:
    """Name the process of a file without GPU events: of several, the one that did most. The others are not ranks."""
    rows = [frame.select(pl.col("process").cast(pl.Int64)) for frame in frames]
    busiest = pl.concat(rows).drop_nulls()["process"].mode().sort().to_list()[:1] if rows else []
    if not busiest and damaged:
        raise InputError(f"{asked}: is damaged; no event could be read", hint="export the report again")
    if not busiest:
        raise InputError(
            f"{asked}: holds no GPU events, no CUDA calls and no NVTX ranges",
            hint="record with: nsys profile --trace=cuda,nvtx",
        )
    return [(process, None) for process in busiest]


def _rank(owner: Owner, file: _File) -> RankEvents:
    gpu = [_of(frame, process=owner.process, device=owner.device) for frame in file.gpu]
    calls = [_of(frame, process=owner.process) for frame in file.calls]
    nvtx = _of(file.nvtx, process=owner.process)
    if calls:
        records = nvtx.filter(pl.col("kind") == "cpu_op", pl.col("collective").is_not_null())
        gpu = [nccl.on_kernels(frame, calls[0], records) for frame in gpu]
    frames = [frame.drop("process") for frame in (*gpu, *calls, nvtx) if frame.height]
    pid = owner.process & 0xFFFFFF
    events = events_table(frames, rank=owner.rank, pid=pid)
    marks = step_marks(nvtx)
    if marks is None:
        marks = unnumbered_steps(nvtx, calls[0])
    events = used_steps(assign_steps(events, marks=marks))
    kinds = dict(sorted(events["kind"].value_counts().rows()))
    its_gpu = file.gpus.get((pid, owner.device)) or file.gpus.get((-1, owner.device))
    source = Source(
        path=str(file.asked),
        reader="nsight",
        rank=owner.rank,
        rank_from=owner.rank_from,
        world_size=file.world_size,
        devices=(its_gpu.name,) if its_gpu and its_gpu.name else (),
        multiprocessors=its_gpu.multiprocessors if its_gpu else None,
        memory_bytes=its_gpu.memory_bytes if its_gpu else None,
        versions=dict(file.versions),
        record_shapes=nvtx["shapes"].is_not_null().any() if kinds.get("cpu_op") else None,
        counts=kinds,
        skipped=dict(file.skipped),
        notices=(*file.notices, *rank_notices(events, kinds, owner.rank, world=file.world)),
    )
    return RankEvents(conform(events, EVENTS), source)


def _of(frame: pl.DataFrame, *, process: int, device: int | None = None) -> pl.DataFrame:
    """Return the rows of one process (and device); the frame itself, uncopied, when they are all."""
    wanted = {"process": process} | ({"device": device} if device is not None else {})
    for column, value in wanted.items():
        if frame[column].min() != value or frame[column].max() != value or frame[column].null_count():
            frame = frame.filter(pl.col(column) == value)
    return frame


def _clock(began: int | None) -> list[Notice]:
    if began is not None:
        return []
    return [Notice("no-clock", "the file does not say when it was recorded: times count from 0, ranks align by events")]
