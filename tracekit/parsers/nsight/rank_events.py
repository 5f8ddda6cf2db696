"""Events of each rank: the process's events in the common schema, sorted, with steps, split by device.

All ranks of a process share its CPU events, so everything that does not depend on the device is done once per process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.errors import Notice
from tracekit.parsers.nsight import nccl
from tracekit.parsers.nsight.steps import drop_idle_steps, find_steps
from tracekit.parsers.steps import assign_steps
from tracekit.schema import EVENTS, GPU_KINDS

_TIE_BREAKERS = ("kind", "tid", "correlation", "stream", "name")


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """Frames of one process; the first of ``calls`` holds its CUDA calls."""

    gpu: Sequence[pl.DataFrame]
    calls: Sequence[pl.DataFrame]
    ranges: pl.DataFrame


def split_by_process(
    gpu: Sequence[pl.DataFrame], calls: Sequence[pl.DataFrame], ranges: pl.DataFrame, processes: Collection[int]
) -> dict[int, ProcessEvents]:
    """Split the file's frames by process, each in one pass."""
    gpu_parts = [_partition(frame) for frame in gpu]
    call_parts = [_partition(frame) for frame in calls]
    range_parts = _partition(ranges)
    return {
        process: ProcessEvents(
            gpu=[parts[process] for parts in gpu_parts if process in parts],
            # The frame of CUDA calls stays, even if empty; it is the first.
            calls=[parts.get(process, frame.clear()) for parts, frame in zip(call_parts, calls, strict=True)],
            ranges=range_parts.get(process, ranges.clear()),
        )
        for process in processes
    }


def _partition(frame: pl.DataFrame) -> dict[int, pl.DataFrame]:
    process = frame["process"]
    if frame.height and not process.null_count() and process.min() == process.max():
        return {process[0]: frame}  # the usual case, without a copy of the frame
    return {key: part for (key,), part in frame.partition_by("process", as_dict=True).items()}


def rank_events(process: ProcessEvents, pid: int, ranks: Mapping[int | None, int]) -> Iterator[pl.DataFrame]:
    """Yield the events of each rank of a process.

    Args:
        process: Events of the process.
        pid: Its process id.
        ranks: Device → number of each rank.
    """
    records = process.ranges.filter(pl.col("kind") == "cpu_op", pl.col("collective").is_not_null())
    gpu = [nccl.add_to_kernels(frame, process.calls[0], records) for frame in process.gpu]
    frames = [frame.drop("process") for frame in (*gpu, *process.calls, process.ranges) if frame.height]
    events = assign_steps(_sorted_events(frames, pid=pid), marks=find_steps(process.ranges, process.calls[0]))
    for device, part in _split_by_device(events, list(ranks)):
        numbered = part.with_columns(
            rank=pl.lit(ranks[device], dtype=EVENTS["rank"]), id=pl.int_range(pl.len(), dtype=pl.Int64)
        )
        yield drop_idle_steps(numbered)


def _split_by_device(events: pl.DataFrame, devices: Sequence[int | None]) -> Iterator[tuple[int | None, pl.DataFrame]]:
    """Yield for each device its GPU events together with all CPU events, in the order of *events*."""
    if len(devices) == 1:
        yield devices[0], events
        return
    rows = events.select(row=pl.int_range(pl.len()), device="device", is_gpu=pl.col("kind").is_in(GPU_KINDS))
    cpu_rows = rows.filter(~pl.col("is_gpu"))["row"]
    gpu_rows = rows.filter("is_gpu").partition_by("device", as_dict=True)
    for device in devices:
        yield device, events[pl.concat([cpu_rows, gpu_rows[device,]["row"]]).sort()]


def _sorted_events(frames: list[pl.DataFrame], *, pid: int) -> pl.DataFrame:
    """Return *frames* as one table in the common schema, sorted by start, longest first.

    The order does not depend on the order in the file. ``rank`` and ``id`` are null. The table is built column by
    column, so that no more than one column exists twice.
    """
    height = sum(frame.height for frame in frames)
    order = _sort_order(frames)
    columns: list[pl.Series] = []
    for name, dtype in EVENTS.items():
        if name == "pid":
            columns.append(pl.repeat(pid, height, dtype=dtype, eager=True).alias(name))
        elif not any(name in frame.columns for frame in frames):
            columns.append(pl.repeat(None, height, dtype=dtype, eager=True).alias(name))
        else:
            column = _concat_column(frames, name, dtype)
            columns.append(column if order is None else column.gather(order))
    return pl.DataFrame(columns)


def _concat_column(frames: list[pl.DataFrame], name: str, dtype: pl.DataType) -> pl.Series:
    parts = [
        frame[name].cast(dtype, strict=False)
        if name in frame.columns
        else pl.repeat(None, frame.height, dtype=dtype, eager=True).alias(name)
        for frame in frames
    ]
    # Gathering rows from several chunks takes six times as long as from one.
    return pl.concat(parts).rechunk().alias(name) if parts else pl.Series(name, dtype=dtype)


def _sort_order(frames: list[pl.DataFrame]) -> pl.Series | None:
    """Return the row numbers in order of start; None if the rows are in order already."""
    start = _concat_column(frames, "start_ns", pl.Int64())
    order = None if start.is_sorted() else start.arg_sort()
    sorted_start = start if order is None else start.gather(order)
    equals_previous = (sorted_start == sorted_start.shift(1)).fill_null(False)
    if not equals_previous.any():
        return order
    # Few events start at the same time. Only they are sorted by all keys, and put back at the positions they had.
    row_numbers = pl.int_range(len(start), dtype=pl.UInt32, eager=True)
    order = row_numbers if order is None else order
    tied_positions = row_numbers.filter(equals_previous | equals_previous.shift(-1).fill_null(False))
    tied_rows = order.gather(tied_positions)
    keys = pl.DataFrame([tied_rows.alias("row"), start.gather(tied_rows)]).with_columns(
        _concat_column(frames, "end_ns", pl.Int64()).gather(tied_rows),
        *(_concat_column(frames, name, EVENTS[name]).gather(tied_rows) for name in _TIE_BREAKERS),
    )
    # Names are sorted as text: the codes of categories depend on what was read before.
    keys = keys.with_columns(pl.col("name").cast(pl.String))
    descending = [False, True, *[False] * len(_TIE_BREAKERS)]
    sorted_rows = keys.sort("start_ns", "end_ns", *_TIE_BREAKERS, descending=descending)["row"]
    return order.scatter(tied_positions, sorted_rows)


def rank_notices(
    events: pl.DataFrame, counts: Mapping[str, int], rank: int, *, world: Collection[str] = ()
) -> list[Notice]:
    """Return a notice for everything that a rank's events leave open.

    Args:
        events: Events of the rank.
        counts: Number of its events by kind.
        rank: Number of the rank.
        world: Communicators that hold the whole job.
    """
    gpu_count = sum(counts.get(kind, 0) for kind in GPU_KINDS)
    notices = []
    if not gpu_count:
        notices.append(Notice("no-gpu-events", f"rank {rank}: nothing ran on a GPU here, or CUDA was not traced"))
    if graphs := counts.get("graph", 0):
        notices.append(
            Notice(
                "graph-mode",
                f"rank {rank}: {graphs:,} CUDA graph launches were recorded whole, without their kernels; "
                "record with --cuda-graph-trace=node to see inside",
            )
        )
    if without_launch := _count_without_launch(events):
        notices.append(
            Notice(
                "no-launch",
                f"rank {rank}: {without_launch:,} of {gpu_count:,} GPU events have no launch in the file; "
                "these are labelled by name alone",
            )
        )
    if not counts.get("cpu_op") and not counts.get("annotation"):
        notices.append(
            Notice(
                "no-ranges",
                f"rank {rank}: no NVTX ranges, so labels come from kernel names alone; "
                "record with --trace=cuda,nvtx under torch.autograd.profiler.emit_nvtx()",
            )
        )
    return notices + _peer_notices(events, rank, world)


def _count_without_launch(events: pl.DataFrame) -> int:
    """Count GPU events whose launch is not in the file, as is normal where only a window was recorded."""
    kind = pl.col("kind")
    launches = events.select(pl.col("correlation").filter(kind.is_in(["runtime", "driver"])).unique())["correlation"]
    has_launch = pl.col("correlation").is_in(launches.implode()).fill_null(False)
    return int(events.select((kind.is_in(GPU_KINDS) & ~has_launch).sum()).item())


def _peer_notices(events: pl.DataFrame, rank: int, world: Collection[str]) -> list[Notice]:
    messages = events.filter(pl.col("kind") == "cpu_op", pl.col("collective").cast(pl.String).is_in(["send", "recv"]))
    if not messages.height:
        return []
    with_peer = messages.filter(pl.col("peer").is_not_null())
    if not with_peer.height:
        return [
            Notice(
                "no-peers",
                f"rank {rank}: sends and receives do not name their peer: the export has no NCCL payloads "
                "(export again with --include-json=true, or --include-blobs=true)",
            )
        ]
    if with_peer["group"].cast(pl.String).is_in(list(world)).fill_null(False).all():
        return []
    text = f"rank {rank}: peers are numbered within their communicator, which may not be the whole job"
    return [Notice("peers-in-communicator", text)]
