"""Ranks in one file: every (process, device) that runs something on a GPU is a rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

_RANK_IN_FILE_NAME = re.compile(r"(?<![a-z])rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
PAIR = ["process", "device"]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of the file. ``device`` is None if the events name none, or the process ran nothing on a GPU."""

    process: int
    device: int | None
    number: int
    number_from: str


def fill_process(gpu: list[pl.DataFrame], calls: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Give GPU events without a process the only process that made CUDA calls, or process 0 if there are several."""
    processes = {process for frame in calls for process in frame["process"].unique().drop_nulls()}
    process = processes.pop() if len(processes) == 1 else 0
    return [
        frame.with_columns(pl.col("process").fill_null(process)) if frame["process"].null_count() else frame
        for frame in gpu
    ]


def keep_rank_events(
    gpu: list[pl.DataFrame],
) -> tuple[list[pl.DataFrame], list[tuple[int, int | None]], dict[str, int]]:
    """Find the (process, device) pairs that are ranks.

    A process that runs kernels on one device and only copies or clears memory on another is a rank of the first alone.

    Returns:
        The GPU events of ranks, the pairs in order, and the number of events that were dropped, by reason.
    """
    if not gpu:
        return [], [], {}
    runs_code = pl.col("kind").first().is_in(["kernel", "graph"])
    counts = [frame.group_by(PAIR).agg(events=pl.len(), runs_code=runs_code) for frame in gpu]
    pairs = pl.concat(counts).group_by(PAIR).agg(pl.col("events").sum(), pl.col("runs_code").any())
    is_rank = pl.col("runs_code") | ~pl.col("runs_code").any().over("process")
    pairs = pairs.with_columns(is_rank=is_rank).sort(PAIR, nulls_last=True)
    ranks = pairs.filter("is_rank").select(PAIR)
    dropped = int(pairs.filter(~pl.col("is_rank"))["events"].sum())
    if not dropped:
        return gpu, ranks.rows(), {}
    kept = [frame.join(ranks, on=PAIR, how="semi", nulls_equal=True, maintain_order="left") for frame in gpu]
    return [frame for frame in kept if frame.height], ranks.rows(), {"events on other devices": dropped}


def number_ranks(
    pairs: list[tuple[int, int | None]],
    path: Path,
    *,
    first: int | None,
    communicators: pl.DataFrame,
    threads: pl.DataFrame,
) -> list[Rank]:
    """Number the ranks.

    Args:
        pairs: The (process, device) of each rank, in order.
        path: File that was read; its name can hold the number.
        first: Number of the first rank, if the user gave one.
        communicators: Communicators whose creation was recorded.
        threads: Names of threads, by process; Nsight writes a rank of MPI there.
    """
    if first is not None:
        return [Rank(*pair, first + i, "option") for i, pair in enumerate(pairs)]
    processes = [process for process, _ in pairs]
    recorded = _nccl_ranks(communicators) | _mpi_ranks(threads)
    numbers = [recorded[process] for process in processes if process in recorded]
    if len(numbers) == len(pairs) and len(set(numbers)) == len(set(processes)) == len(pairs):
        return [Rank(*pair, number, "content") for pair, number in zip(pairs, numbers, strict=True)]
    if len(pairs) > 1:
        return [Rank(*pair, i, "content") for i, pair in enumerate(pairs)]
    numbers_in_name = _RANK_IN_FILE_NAME.findall(path.name)
    if numbers_in_name:
        return [Rank(*pair, int(numbers_in_name[-1]), "name") for pair in pairs]
    return [Rank(*pair, 0, "only file") for pair in pairs]


def _nccl_ranks(communicators: pl.DataFrame) -> dict[int, int]:
    """Return the rank of each process in the file's largest communicators, where it is unambiguous."""
    if not communicators.height:
        return {}
    largest = communicators.filter(pl.col("ranks") == pl.col("ranks").max())
    ranks = largest.group_by("process").agg(pl.col("own_rank").unique()).filter(pl.col("own_rank").list.len() == 1)
    return {process: own_ranks[0] for process, own_ranks in ranks.rows()}


def _mpi_ranks(threads: pl.DataFrame) -> dict[int, int]:
    """Return the rank of each process in MPI: Nsight names a thread ``MPI Rank N`` when it sees MPI start."""
    rank = pl.col("name").str.extract(r"^MPI Rank (\d+)$").cast(pl.Int64)
    return dict(threads.select("process", rank=rank).drop_nulls().unique("process").rows())
