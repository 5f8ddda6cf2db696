"""Small damage to recordings, of which the true answer is known: shared by tests of many packages.

Profilers lose kernels, or what belongs to them; clocks of machines differ and drift; ranks enter a
step at different times. Each function takes a run's ranks as the readers return them and returns
the run with one such change. Nothing else changes, so that what is said about everything else must
stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from tests.kept import by_identity
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


_classify = by_identity(classify)
"""Labels the events of a rank once, however many of its kernels are changed in turn."""


def read_run(folder: str | Path) -> Ranks:
    """Return the ranks of a run, as ``tracekit.load`` reads them."""
    trace = load(folder)
    return [trace.rank(rank) for rank in trace.ranks]


def communication_kernels(ranks: Ranks, *, label: str | None = None) -> list[Kernel]:
    """Return the communication kernels within steps of a run, of one *label* or of all, by rank and start."""
    kernels = []
    for rank in ranks:
        labelled = _classify(rank.events).filter(pl.col("label").is_in(COMMUNICATION_LABELS))
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


def repeat_rank(ranks: Ranks, rank: int, as_rank: int) -> Ranks:
    """Return the run in which *as_rank* does what *rank* did, at the same times."""
    original = next(each for each in ranks if each.source.rank == rank)
    events = original.events.with_columns(rank=pl.lit(as_rank, original.events["rank"].dtype))
    copy = replace(
        original, events=events, source=msgspec.structs.replace(original.source, rank=as_rank)
    )
    return [copy if each.source.rank == as_rank else each for each in ranks]


def save_in_longest_gap(
    ranks: Ranks, rank: int, *, copies: int, copied_share: float, in_step_before: bool = False
) -> Ranks:
    """Return the run in which *rank* copies its weights to the host while its GPU was idle for longest.

    The gap is divided into as many parts as there are copies. Each begins with a copy from the GPU
    to pageable memory, during which the host is in the call, and ends with the host writing a file.
    *in_step_before* makes them part of the step before the gap.
    """

    def save(events: pl.DataFrame) -> pl.DataFrame:
        on_gpu = events.filter(ON_GPU & pl.col("step").is_not_null()).sort("start_ns")
        gaps = on_gpu.with_columns(gap_ns=pl.col("start_ns") - pl.col("end_ns").cum_max().shift(1))
        after = gaps.sort("gap_ns", nulls_last=True, descending=True).row(0, named=True)
        call = events.filter(CALLS & (pl.col("correlation") == after["correlation"]))
        call = call.row(0, named=True)
        length_ns = after["gap_ns"] // copies
        first_id = int(events["id"].max()) + 1
        first_correlation = int(events["correlation"].max()) + 1
        rows = []
        for i in range(copies):
            start_ns = after["start_ns"] - after["gap_ns"] + i * length_ns
            end_ns = start_ns + round(copied_share * length_ns)
            times = {"start_ns": start_ns, "end_ns": end_ns, "bytes": None, "shapes": None}
            times["step"] = after["step"] - 1 if in_step_before else after["step"]
            times |= {"correlation": first_correlation + i, "external_id": None}
            copy = {"id": first_id + 2 * i, "kind": "memcpy"}
            copy |= {"name": "Memcpy DtoH (Device -> Pageable)"}
            rows.append(after | times | copy)
            host = {"id": first_id + 2 * i + 1, "kind": "runtime", "name": "cudaMemcpyAsync"}
            rows.append(call | times | host)
        added = pl.DataFrame([{name: row[name] for name in events.columns} for row in rows])
        return pl.concat([events, added.cast(events.schema)])

    return _change_rank(ranks, rank, save)


def _change_rank(ranks: Ranks, rank: int, change) -> Ranks:
    return [
        replace(each, events=change(each.events)) if each.source.rank == rank else each
        for each in ranks
    ]
