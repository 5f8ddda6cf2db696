"""Small damage to recordings, of which the true answer is known: shared by tests of many packages.

Profilers lose kernels, or what belongs to them; clocks of machines differ and drift; ranks enter a
step at different times. Each function takes a run's ranks as the readers return them and returns
the run with one such change. Nothing else changes, so that what is said about everything else must
stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from tests.mutate import CALLS, ON_GPU, Ranks
from tracekit.classify import classify
from tracekit.run.load import load
from tracekit.schema import COMMUNICATION_LABELS

RECORDED_ARGS = (
    "collective", "group", "group_desc", "group_ranks", "peer", "bytes", "received", "dtypes", "collective_seq",
)  # fmt: skip
"""Columns of a communication kernel that a profiler writes beside its name and its times."""


@dataclass(frozen=True)
class Kernel:
    """A communication kernel of a run."""

    rank: int
    id: int
    label: str
    step: int | None
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def read_run(folder: str | Path) -> Ranks:
    """Return the ranks of a run, as ``tracekit.load`` reads them."""
    trace = load(folder)
    return [trace.rank(rank) for rank in trace.ranks]


def communication_kernels(ranks: Ranks, *, label: str | None = None) -> list[Kernel]:
    """Return the communication kernels within steps of a run, of one *label* or of all, by rank and start."""
    kernels = []
    for rank in ranks:
        labelled = classify(rank.events).filter(pl.col("label").is_in(COMMUNICATION_LABELS))
        if labelled["step"].null_count() < len(labelled):
            labelled = labelled.filter(pl.col("step").is_not_null())
        rows = labelled.select(
            "rank", "id", pl.col("label").cast(pl.String), "step", "start_ns", "end_ns"
        ).rows()
        kernels += [Kernel(*row) for row in rows]
    return [kernel for kernel in kernels if label in (None, kernel.label)]


def remove_kernel(ranks: Ranks, kernel: Kernel, *, with_launch: bool = False) -> Ranks:
    """Return the run without one kernel, and without the call that launched it if asked."""

    def remove(events: pl.DataFrame) -> pl.DataFrame:
        is_kernel = (pl.col("id") == kernel.id) & ON_GPU
        correlation = events.filter(is_kernel)["correlation"].item()
        is_launch = CALLS & (pl.col("correlation") == correlation).fill_null(False)
        return events.filter(~is_kernel & ~is_launch) if with_launch else events.filter(~is_kernel)

    return _change_rank(ranks, kernel.rank, remove)


def drop_args(ranks: Ranks, kernel: Kernel) -> Ranks:
    """Return the run with one kernel that has a name and times, and nothing else that a profiler records."""

    def drop(events: pl.DataFrame) -> pl.DataFrame:
        is_other = (pl.col("id") != kernel.id) | ~ON_GPU
        return events.with_columns(
            pl.when(is_other).then(pl.col(name)).alias(name) for name in RECORDED_ARGS
        )

    return _change_rank(ranks, kernel.rank, drop)


def move_clock(ranks: Ranks, rank: int, offset_ns: int) -> Ranks:
    """Return the run with the clock of one rank ahead by *offset_ns*."""
    times = pl.col("start_ns", "end_ns") + offset_ns
    moved = _change_rank(ranks, rank, lambda events: events.with_columns(times))
    return [
        replace(r, memory=r.memory.with_columns(pl.col("at_ns") + offset_ns))
        if r.source.rank == rank
        else r
        for r in moved
    ]


def stretch_clock(ranks: Ranks, rank: int, rate: float) -> Ranks:
    """Return the run with the clock of one rank running fast by *rate*, from the rank's first event on."""

    def stretch(events: pl.DataFrame) -> pl.DataFrame:
        begin = events["start_ns"].min()
        times = pl.col("start_ns", "end_ns")
        return events.with_columns(times + ((times - begin) * rate).round().cast(pl.Int64))

    return _change_rank(ranks, rank, stretch)


def enter_step_earlier(ranks: Ranks, rank: int, by_ns: int) -> Ranks:
    """Return the run with one rank that entered its first step earlier, and waited as much longer for the others.

    What the rank did before its first communication kernel happened earlier by *by_ns*; that kernel
    began as much earlier and ended when it did.
    """
    first = communication_kernels([each for each in ranks if each.source.rank == rank])[0]

    def enter(events: pl.DataFrame) -> pl.DataFrame:
        correlation = events.filter((pl.col("id") == first.id) & ON_GPU)["correlation"].item()
        is_first = (pl.col("correlation") == correlation).fill_null(False)
        is_before = pl.col("end_ns") <= first.start_ns
        launch_ns = events.filter(is_first & CALLS)["end_ns"].max()
        is_before |= ~ON_GPU & (pl.col("end_ns") <= launch_ns)
        contains_first = (
            (pl.col("start_ns") <= launch_ns) & (pl.col("end_ns") > launch_ns) & ~ON_GPU
        )
        starts_earlier = is_before | contains_first | is_first
        ends_earlier = is_before | (is_first & CALLS)
        return events.with_columns(
            start_ns=pl.col("start_ns") - pl.when(starts_earlier).then(by_ns).otherwise(0),
            end_ns=pl.col("end_ns") - pl.when(ends_earlier).then(by_ns).otherwise(0),
        )

    return _change_rank(ranks, rank, enter)


def _change_rank(ranks: Ranks, rank: int, change) -> Ranks:
    return [
        replace(each, events=change(each.events)) if each.source.rank == rank else each
        for each in ranks
    ]
