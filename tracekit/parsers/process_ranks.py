"""Ranks of a file and their events: the process's events in the common schema, sorted, with steps, split by device.

Every (process, device) that runs something on a GPU is a rank. All ranks of a process share its CPU
events, so everything that does not depend on the device is done once per process.

Training steps are marked with NVTX: ranges around steps, or instants between them.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.parsers.steps import assign_steps, filter_by_name, find_server_steps
from tracekit.schema import EVENTS, GPU_KINDS, ON_OTHER_GPUS, conform

PID_MASK = 0xFFFFFF
"""Bits of the pid in a process id, which Nsight Systems packs with others."""
_NUMBERED = (
    r"^ProfilerStep#(\d+)$",
    r"(?i)^(?:global[ _]?|train(?:ing)?[ _])?step[ _#:=\[]*(\d+)\]?$",
    r"(?i)^(?:global[ _]?|train(?:ing)?[ _])?iter(?:ation)?[ _#:=\[]*(\d+)\]?$",
)
_UNNUMBERED = r"(?i)(?:^|[.\]:/ ])(?:run_training_batch|train_batch|train_step|training_iteration|train_iteration)$"
"""Ranges that trainers put around each whole step, without its number."""
_PROFILER_CALL = r"^(?:cuda|cu)Profiler(Start|Stop)"
MIN_LAUNCHES_INSIDE = 0.9
"""Minimum share of the launches between the first and the last unnumbered range that must lie
inside one of them."""


def find_steps(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps of one process, ``step, start_ns, end_ns``, or None if nothing marks any.

    Steps of an inference server come first. Ranges are taken as they are. An instant ``step N``
    begins step N and ends the one before, as a profiler's ``step()`` does, so events before the
    first instant are in step N-1.

    >>> instants = pl.DataFrame({"kind": ["mark"], "name": ["step 3"], "start_ns": [50], "end_ns": [50]})
    >>> find_steps(instants, instants.clear()).rows()
    [(2, -9223372036854775808, 50), (3, 50, 9223372036854775807)]
    """
    of_server = find_server_steps(ranges)
    if of_server.height:
        return of_server.select("step", "start_ns", "end_ns")
    for kind in ("annotation", "mark"):
        for pattern in _NUMBERED:
            step = (
                pl.col("name")
                .cast(pl.String)
                .str.extract(pattern)
                .cast(pl.Int64, strict=False)
                .alias("step")
            )
            marks = (
                ranges.filter(pl.col("kind") == kind)
                .select(step, "start_ns", "end_ns")
                .drop_nulls("step")
            )
            if marks.height:
                return (
                    _steps_from_ranges(marks)
                    if kind == "annotation"
                    else _steps_between_instants(marks)
                )
    return _unnumbered_steps(ranges, calls)


def _unnumbered_steps(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps marked by ranges without a number, or by the program's own starts and stops of the profiler.

    They are steps only if there are several, one after the other, with hardly a launch between
    them: a range around the forward alone is not a step.

    >>> calls = pl.DataFrame({"name": ["cudaLaunchKernel"] * 2, "start_ns": [5, 25], "end_ns": [6, 26]})
    >>> times = {"start_ns": [0, 20], "end_ns": [9, 29]}
    >>> ranges = pl.DataFrame({"kind": "annotation", "name": ["train_step"] * 2, **times})
    >>> _unnumbered_steps(ranges, calls).rows()
    [(0, 0, 9), (1, 20, 29)]
    """
    named = filter_by_name(ranges.filter(pl.col("kind") == "annotation"), _UNNUMBERED).select(
        "start_ns", "end_ns"
    )
    for candidates in (named, _profiler_captures(calls)):
        steps = candidates.unique().sort("start_ns")
        is_disjoint = bool((steps["start_ns"].shift(-1) >= steps["end_ns"]).fill_null(True).all())
        if len(steps) > 1 and is_disjoint and _contain_launches(steps, calls):
            return steps.select(
                pl.int_range(pl.len(), dtype=pl.Int64).alias("step"), "start_ns", "end_ns"
            )
    return None


def _profiler_captures(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the times from each start of the profiler to the stop that follows it."""
    action = pl.col("name").cast(pl.String).str.extract(_PROFILER_CALL)
    profiler_calls = (
        filter_by_name(calls, _PROFILER_CALL).select("start_ns", action=action).sort("start_ns")
    )
    following = profiler_calls.with_columns(
        end_ns=pl.col("start_ns").shift(-1), next_action=pl.col("action").shift(-1)
    )
    return following.filter(action="Start", next_action="Stop").select("start_ns", "end_ns")


def _contain_launches(steps: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Return whether nearly all launches between the first and the last step lie inside a step."""
    first = steps["start_ns"].min()
    last = steps["end_ns"].max()
    launches = filter_by_name(calls, "Launch").select("start_ns").sort("start_ns")
    launches = launches.filter(pl.col("start_ns").is_between(first, last))
    inside = launches.join_asof(steps, on="start_ns").filter(pl.col("start_ns") <= pl.col("end_ns"))
    return bool(launches.height) and inside.height >= MIN_LAUNCHES_INSIDE * launches.height


def _steps_from_ranges(marks: pl.DataFrame) -> pl.DataFrame:
    """Return one range per step, as wide as the ranges of all threads that mark it.

    Overlapping ranges as they are.
    """
    merged = (
        marks.group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
    )
    overlap = (merged["start_ns"] < merged["end_ns"].shift(1)).any()
    return marks.unique().sort("start_ns") if overlap else merged


def _steps_between_instants(marks: pl.DataFrame) -> pl.DataFrame:
    earliest = -(1 << 63)
    latest = (1 << 63) - 1
    marks = marks.select("step", "start_ns").unique().sort("start_ns")
    steps = marks.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(latest))
    first_step, first_start_ns = marks.row(0)
    if first_step <= 0:
        return steps
    before = {"step": [first_step - 1], "start_ns": [earliest], "end_ns": [first_start_ns]}
    return pl.concat([pl.DataFrame(before, schema=steps.schema), steps])


def drop_idle_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Set the step to null where it ran nothing on the GPU: what follows the last instant may not be a step.

    >>> events = pl.DataFrame({"kind": ["kernel", "runtime"], "step": [2, 3]})
    >>> drop_idle_steps(events)["step"].to_list()
    [2, None]
    """
    worked = events.select(
        pl.col("step").filter(pl.col("kind").is_in(GPU_KINDS)).unique().drop_nulls()
    )["step"]
    if not len(worked) or len(worked) == events["step"].n_unique():
        return events
    return events.with_columns(
        pl.when(pl.col("step").is_in(worked.implode())).then("step").alias("step")
    )


MAX_RANKS_PER_REPORT = 128
"""Ranks of a report, which is of one machine: more are damage. Each costs a fixed time to analyze,
however few its events are."""
_RANK_IN_FILE_NAME = re.compile(r"(?<![a-z])rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
PROCESS_AND_DEVICE = ["process", "device"]
Pair = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """One rank of the file.

    ``device`` is None if the events name none, or the process ran nothing on a GPU.
    """

    process: int
    device: int | None
    number: int
    number_from: str


def keep_rank_events(gpu: pl.DataFrame) -> tuple[pl.DataFrame, list[Pair], dict[str, int]]:
    """Find the (process, device) pairs that are ranks.

    A process that runs kernels on one device and only copies or clears memory on another is a rank
    of the first alone.

    Returns:
        The GPU events of ranks, the pairs in order, and the number of events that were dropped, by
        reason.
    """
    pairs = gpu.group_by(PROCESS_AND_DEVICE).agg(
        events=pl.len(), runs_code=pl.col("kind").is_in(["kernel", "graph"]).any()
    )
    is_rank = pl.col("runs_code") | ~pl.col("runs_code").any().over("process")
    pairs = pairs.with_columns(is_rank=is_rank).sort(PROCESS_AND_DEVICE, nulls_last=True)
    ranks = pairs.filter("is_rank").select(PROCESS_AND_DEVICE)
    dropped = int(pairs.filter(~pl.col("is_rank"))["events"].sum())
    if not dropped:
        return gpu, ranks.rows(), {}
    kept = gpu.join(
        ranks, on=PROCESS_AND_DEVICE, how="semi", nulls_equal=True, maintain_order="left"
    )
    return kept, ranks.rows(), {ON_OTHER_GPUS: dropped}


def refuse_many_ranks(pairs: Sequence[Pair], path: Path) -> None:
    """Raise InputError if a report has more ranks than a machine."""
    if len(pairs) > MAX_RANKS_PER_REPORT:
        problem = f"{len(pairs):,} pairs of process and GPU ran something"
        limit = f"a report has at most {MAX_RANKS_PER_REPORT} ranks"
        raise InputError(
            f"{problem}, and {limit}", path=path, hint="export the report of one machine again"
        )


def number_ranks(
    pairs: list[Pair],
    path: Path,
    *,
    first: int | None,
    communicators: pl.DataFrame,
    threads: pl.DataFrame,
) -> list[ProcessRank]:
    """Number the ranks.

    Args:
        pairs: The (process, device) of each rank, in order.
        path: File that was read; its name can hold the number.
        first: Number of the first rank, if the user gave one.
        communicators: Communicators whose creation was recorded.
        threads: Names of threads, by process; Nsight writes a rank of MPI there.
    """
    recorded = _nccl_ranks(communicators) | _mpi_ranks(threads)
    recorded_numbers = [recorded[process] for process, _ in pairs if process in recorded]
    distinct_processes = {process for process, _ in pairs}
    is_one_process_each = len(distinct_processes) == len(pairs)
    are_numbers_distinct = len(set(recorded_numbers)) == len(pairs) == len(recorded_numbers)
    numbers_in_name = _RANK_IN_FILE_NAME.findall(path.name)
    if first is not None:
        numbers = list(range(first, first + len(pairs)))
        number_from = "option"
    elif is_one_process_each and are_numbers_distinct:
        numbers = recorded_numbers
        number_from = "content"
    elif len(pairs) > 1:
        numbers = list(range(len(pairs)))
        number_from = "content"
    elif numbers_in_name:
        numbers = [int(numbers_in_name[-1])] * len(pairs)
        number_from = "name"
    else:
        numbers = [0] * len(pairs)
        number_from = "only file"
    return [
        ProcessRank(*pair, number, number_from) for pair, number in zip(pairs, numbers, strict=True)
    ]


def _nccl_ranks(communicators: pl.DataFrame) -> dict[int, int]:
    """Return the rank of each process in the file's largest communicators, where it is unambiguous."""
    if not communicators.height:
        return {}
    largest = communicators.filter(pl.col("ranks") == pl.col("ranks").max())
    ranks = (
        largest.group_by("process")
        .agg(pl.col("own_rank").unique())
        .filter(pl.col("own_rank").list.len() == 1)
    )
    return {process: own_ranks[0] for process, own_ranks in ranks.rows()}


def _mpi_ranks(threads: pl.DataFrame) -> dict[int, int]:
    """Return the rank of each process in MPI: Nsight names a thread ``MPI Rank N`` when it sees MPI start."""
    rank = pl.col("name").str.extract(r"^MPI Rank (\d+)$").cast(pl.Int64)
    return dict(threads.select("process", rank=rank).drop_nulls().unique("process").rows())


def rank_events(
    gpu: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, ranks: Mapping[int | None, int]
) -> Iterator[pl.DataFrame]:
    """Yield the events of each rank of a process.

    Args:
        gpu: GPU events of the process.
        calls: Its calls of the GPU's library, synchronisations and profiler overhead.
        ranges: Its ranges and instants.
        ranks: Device → number of each rank.
    """
    library_calls = calls.filter(pl.col("kind").is_in(["runtime", "driver"]))
    events = _sorted_events([frame for frame in (gpu, calls, ranges) if frame.height])
    events = assign_steps(events, marks=find_steps(ranges, library_calls))
    for device, part in _split_by_device(events, list(ranks)):
        numbered = part.with_columns(
            rank=pl.lit(ranks[device], dtype=EVENTS["rank"]),
            id=pl.int_range(pl.len(), dtype=pl.Int64),
        )
        yield drop_idle_steps(numbered)


def _split_by_device(
    events: pl.DataFrame, devices: Sequence[int | None]
) -> Iterator[tuple[int | None, pl.DataFrame]]:
    """Yield for each device its GPU events together with all CPU events, in the order of *events*."""
    if len(devices) == 1:
        yield devices[0], events
        return
    rows = events.select(
        row=pl.int_range(pl.len()), device="device", is_gpu=pl.col("kind").is_in(GPU_KINDS)
    )
    cpu_rows = rows.filter(~pl.col("is_gpu"))["row"]
    gpu_rows = rows.filter("is_gpu").partition_by("device", as_dict=True)
    for device in devices:
        yield device, events[pl.concat([cpu_rows, gpu_rows[device,]["row"]]).sort()]


def _sorted_events(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return *frames* as one table in the common schema, sorted by start, longest first.

    The order does not depend on the order in the file. ``rank`` and ``id`` are null.
    """
    typed = []
    for frame in frames:
        with_pid = frame.with_columns(pid=pl.col("process") & PID_MASK)
        columns = [
            pl.col(name).cast(dtype, strict=False)
            for name, dtype in EVENTS.items()
            if name in with_pid.columns
        ]
        typed.append(with_pid.select(columns))
    events = pl.concat(typed, how="diagonal")
    # Categories are sorted as their texts.
    order: list[str | pl.Expr] = ["start_ns", -pl.col("end_ns")]
    order += [name for name in ("kind", "tid", "correlation", "stream") if name in events.columns]
    order.append("name")
    return conform(events.sort(order), EVENTS)


def rank_notices(
    events: pl.DataFrame, counts: Mapping[str, int], *, world: Collection[str] = ()
) -> list[Notice]:
    """Return a notice for everything that a rank's events leave open.

    Args:
        events: Events of the rank.
        counts: Number of its events by kind.
        world: Communicators that hold the whole job.
    """
    gpu_count = sum(counts.get(kind, 0) for kind in GPU_KINDS)
    launches = counts.get("graph", 0)
    without_launch = _count_without_launch(events)
    notices = []
    if not gpu_count:
        notices.append(
            Notice(
                "no-gpu-events",
                ("nothing ran on a GPU here, or CUDA was not traced"),
                values={"case": "nothing_ran"},
            )
        )
    if launches:
        notices.append(
            Notice(
                "graphs-whole",
                (
                    f"{launches:,} CUDA graph launches were recorded whole, "
                    "without their kernels; record with --cuda-graph-trace=node "
                    "to see inside"
                ),
                values={"case": "recorded", "launches": launches},
            )
        )
    if without_launch:
        notices.append(
            Notice(
                "no-launches",
                (
                    f"{without_launch:,} of {gpu_count:,} GPU events have no "
                    "launch in the file; these are labelled by name alone"
                ),
                values={"case": "labelled_by_name", "count": without_launch, "total": gpu_count},
            )
        )
    if not counts.get("cpu_op") and not counts.get("annotation"):
        notices.append(
            Notice(
                "no-ranges",
                (
                    "no NVTX ranges, so labels come from kernel names alone; "
                    "record with --trace=cuda,nvtx under "
                    "torch.autograd.profiler.emit_nvtx()"
                ),
            )
        )
    messages = events.filter(
        pl.col("kind") == "cpu_op", pl.col("collective").cast(pl.String).is_in(["send", "recv"])
    )
    with_peer = messages.drop_nulls("peer")
    if messages.height and not with_peer.height:
        notices.append(
            Notice(
                "no-peers",
                (
                    "sends and receives do not name their peer: the export has no "
                    "NCCL payloads (export again with --include-json=true, or "
                    "--include-blobs=true)"
                ),
                values={"case": "not_exported"},
            )
        )
    elif not with_peer["group"].cast(pl.String).is_in(list(world)).fill_null(False).all():
        notices.append(
            Notice(
                "peers-in-communicator",
                ("peers are numbered within their communicator, which may not be the whole job"),
            )
        )
    return notices


def _count_without_launch(events: pl.DataFrame) -> int:
    """Count GPU events whose launch is not in the file, as is normal where only a window was recorded."""
    kind = pl.col("kind")
    launches = events.select(
        pl.col("correlation").filter(kind.is_in(["runtime", "driver"])).unique()
    )["correlation"]
    has_launch = pl.col("correlation").is_in(launches.implode()).fill_null(False)
    return int(events.select((kind.is_in(GPU_KINDS) & ~has_launch).sum()).item())
