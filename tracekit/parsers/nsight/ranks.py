"""Which ranks one file holds: a rank is a (process, device) that ran something on a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

_IN_NAME = re.compile(r"(?<![a-z])rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_PAIR = ["process", "device"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One rank of the file. ``device`` is None when the process ran nothing on a GPU."""

    process: int
    device: int | None
    rank: int
    rank_from: str


def with_process(gpu: list[pl.DataFrame], calls: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Give GPU events that name no process the one process of the file, or, where there are several, none of them."""
    named = {process for frame in calls for process in frame["process"].unique().drop_nulls()}
    process = named.pop() if len(named) == 1 else 0
    return [
        frame.with_columns(pl.col("process").fill_null(process)) if frame["process"].null_count() else frame
        for frame in gpu
    ]


def find_pairs(gpu: list[pl.DataFrame]) -> tuple[list[tuple[int, int | None]], dict[str, int]]:
    """Find the (process, device) pairs that are ranks, in order, and count the events of others.

    A process that runs kernels on one device and only touches another is a rank of the first alone.
    """
    counted = [_count(frame) for frame in gpu]
    if not counted:
        return [], {}
    pairs = pl.concat(counted).group_by(_PAIR).agg(pl.col("n").sum(), pl.col("ran").any())
    pairs = pairs.with_columns(ranks=pl.col("ran") | ~pl.col("ran").any().over("process")).sort(_PAIR, nulls_last=True)
    left_out = int(pairs.filter(~pl.col("ranks"))["n"].sum())
    kept = pairs.filter("ranks").select(_PAIR).rows()
    return kept, {"events on other devices": left_out} if left_out else {}


def _count(frame: pl.DataFrame) -> pl.DataFrame:
    """Count the events of each pair; ``ran`` is whether they are work, not copies."""
    ran = pl.lit(frame["kind"][0] in ("kernel", "graph")).alias("ran")
    same = all(frame[name].min() == frame[name].max() and not frame[name].null_count() for name in _PAIR)
    if same:  # one pair, as most files have: no need to group millions of rows
        return frame.head(1).select(*_PAIR, pl.lit(frame.height, dtype=pl.Int64).alias("n"), ran)
    return frame.group_by(_PAIR).agg(pl.len().cast(pl.Int64).alias("n")).with_columns(ran)


def number(
    pairs: list[tuple[int, int | None]],
    path: Path,
    *,
    rank: int | None,
    communicators: pl.DataFrame,
    threads: pl.DataFrame,
) -> list[Owner]:
    """Give each pair its number: as asked, else by what NCCL or MPI said, else by file name or by order in the file."""
    if rank is not None:
        return [Owner(*pair, rank + i, "option") for i, pair in enumerate(pairs)]
    processes = [process for process, _ in pairs]
    known = _nccl_ranks(communicators) | _mpi_ranks(threads)
    numbers = [known[process] for process in processes if process in known]
    if len(numbers) == len(pairs) and len(set(numbers)) == len(set(processes)) == len(pairs):
        return [Owner(*pair, known[pair[0]], "content") for pair in pairs]
    if len(pairs) > 1:
        return [Owner(*pair, i, "content") for i, pair in enumerate(pairs)]
    named = _IN_NAME.findall(path.name)
    return [Owner(*pair, int(named[-1]), "name") if named else Owner(*pair, 0, "only file") for pair in pairs]


def _nccl_ranks(communicators: pl.DataFrame) -> dict[int, int]:
    """Each process's rank in the largest communicator of the file, where that is one number."""
    if not communicators.height:
        return {}
    widest = communicators.filter(pl.col("ranks") == pl.col("ranks").max())
    one = widest.group_by("process").agg(pl.col("own_rank").unique()).filter(pl.col("own_rank").list.len() == 1)
    return {process: ranks[0] for process, ranks in one.rows()}


def _mpi_ranks(threads: pl.DataFrame) -> dict[int, int]:
    """Nsight names a thread ``MPI Rank N`` when it sees MPI start."""
    number = pl.col("name").str.extract(r"^MPI Rank (\d+)$").cast(pl.Int64)
    return dict(threads.select("process", number.alias("rank")).drop_nulls().unique("process").rows())
