"""Good recordings made worse, one hint at a time: what is then said must be right, a bound, or nothing.

Each mutation takes a run's ranks as the readers return them and gives them back with something
gone. ``MUTATIONS`` lists them by name; ``answer`` analyses what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from tests.kept import by_identity, measured_tables
from tracekit.analysis import Analysis
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.results import AnalysisResult
from tracekit.schema import GPU_KINDS, RankEvents

Ranks = list[RankEvents]
NAME = pl.col("name").cast(pl.String)
ON_GPU = pl.col("kind").is_in(GPU_KINDS)
CALLS = pl.col("kind").is_in(["runtime", "driver"])
_TOLD = ("collective", "group", "group_desc", "group_ranks", "peer", "bytes")
"""What a collective's kernel carries that the profiler took from the operator that issued it."""


_measure = by_identity(measured_tables)
"""Measures a rank once, in however many mutated runs it takes part unchanged."""


def answer(ranks: Ranks) -> Analysis:
    """Label, measure and compare what is left of a run."""
    return combine([_measure(rank) for rank in ranks], schedule="auto", result_type=AnalysisResult)


def each(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Ranks], Ranks]:
    """Return a mutation that changes every rank's events alike."""
    return lambda ranks: [replace(rank, events=change(rank.events)) for rank in ranks]


def _blank(events: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return events.with_columns(pl.lit(None, events.schema[name]).alias(name) for name in columns)


def no_marks(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events without step marks: all steps are one."""
    return _blank(events.filter(~NAME.str.starts_with("ProfilerStep")), "step")


def gpu_only(events: pl.DataFrame) -> pl.DataFrame:
    """Return what ran on the GPU and nothing else; without launches no step is known."""
    return _blank(events.filter(ON_GPU), "step")


def bare_kernels(events: pl.DataFrame) -> pl.DataFrame:
    """Return what ran on the GPU as a profiler without operators records it: names and times."""
    return _blank(gpu_only(events), *_TOLD)


def no_operators(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events without operators and ranges: kernels and the calls that launched them."""
    return _blank(events.filter(ON_GPU | CALLS), "step", *_TOLD)


def no_runtime(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events without API calls: operators and kernels that nothing ties together."""
    kept = events.filter(~CALLS)
    gpu = pl.col("kind").is_in([*GPU_KINDS, "gpu_annotation"])
    return kept.with_columns(step=pl.when(~gpu).then("step"))


def renamed_collectives(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with NCCL's kernels called what no rule knows, and without what NCCL said about them."""
    nccl = ON_GPU & NAME.str.contains("(?i)nccl")
    told = [pl.when(~nccl).then(pl.col(name)).alias(name) for name in _TOLD]
    kernel = (
        pl.when(nccl)
        .then(pl.lit("device_kernel_17"))
        .otherwise(NAME)
        .cast(pl.Categorical)
        .alias("name")
    )
    return events.with_columns(kernel, *told)


def losing(share: float, *, seed: int = 5) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return a mutation that drops so many of the GPU's events, anywhere."""

    def lose(events: pl.DataFrame) -> pl.DataFrame:
        gpu = events.select(ON_GPU).to_series().to_numpy()
        drop = np.random.default_rng(seed).random(len(events)) < share
        return events.filter(pl.Series(~(gpu & drop)))

    return lose


def cut(start: float, end: float) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return a mutation that keeps the GPU's events of a part of the recording, and all that the host did."""

    def keep(events: pl.DataFrame) -> pl.DataFrame:
        gpu = events.filter(ON_GPU)
        low, high = int(gpu["start_ns"].min() or 0), int(gpu["end_ns"].max() or 0)
        first, last = low + start * (high - low), low + end * (high - low)
        return events.filter(~ON_GPU | ((pl.col("start_ns") >= first) & (pl.col("end_ns") <= last)))

    return keep


def one_rank(ranks: Ranks) -> Ranks:
    """Return one rank from the middle of the run."""
    return [ranks[len(ranks) // 2]]


def shifted(ranks: Ranks) -> Ranks:
    """Return the run with every second rank's clock three seconds ahead."""
    times = pl.col("start_ns", "end_ns")
    return [
        replace(r, events=r.events.with_columns(times + 3_000_000_000 * (i % 2)))
        for i, r in enumerate(ranks)
    ]


def drifting(ranks: Ranks) -> Ranks:
    """Return the run with every second rank's clock running fast by ten parts in a million."""
    times = pl.col("start_ns", "end_ns")
    begin = min(int(rank.events["start_ns"].min() or 0) for rank in ranks)
    return [
        replace(
            r,
            events=r.events.with_columns(
                times + ((times - begin) * (1e-5 * (i % 2))).cast(pl.Int64)
            ),
        )
        for i, r in enumerate(ranks)
    ]


MUTATIONS: dict[str, Callable[[Ranks], Ranks]] = {
    "gpu-only": each(gpu_only),
    "bare-kernels": each(bare_kernels),
    "no-operators": each(no_operators),
    "no-runtime": each(no_runtime),
    "renamed": each(renamed_collectives),
    "lost": each(losing(0.01)),
    "cut-start": each(cut(0.3, 1.0)),
    "cut-end": each(cut(0.0, 0.7)),
    "one-rank": one_rank,
    "no-marks": each(no_marks),
    "shifted": shifted,
    "drifting": drifting,
}


def mutants(ranks: Sequence[RankEvents]) -> dict[str, Ranks]:
    """Return the run as every mutation leaves it, by name."""
    return {name: change(list(ranks)) for name, change in MUTATIONS.items()}
