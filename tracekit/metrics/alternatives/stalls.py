"""Alternatives of a host that stands still: before launches that it would make at once otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit.intervals import Intervals
from tracekit.metrics.alternatives.entry import Alternative, WorkFound
from tracekit.metrics.alternatives.remedy import REMEDIES
from tracekit.metrics.rank_work import RankWork

MIN_HOST_SHARE = 1e-3
"""Share of the host's time before a launch that is left without its stalls, at least."""


class FreeCpu(Alternative, frozen=True, kw_only=True):
    """Short operators stand still for milliseconds: other processes share the host's cores."""

    change = "free cpu"
    rests_on = "nothing else runs on the cores of the host's threads"
    code = "busy_cpu"
    title = "busy CPU"
    is_bound = True
    """Other processes take as much of a core as they need at the moment: how much they took during the recording
    bounds what they take otherwise."""
    says = (
        "operators that usually take microseconds stand still for milliseconds again and again: other processes "
        "share the CPU"
    )
    advises = (
        "give the loop cores of its own: fewer DataLoader workers and threads (`OMP_NUM_THREADS`), other jobs "
        "elsewhere, no limit of CPU time"
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        yield from without_stalls(rank, rank.stalls, self.change)

    def advice(self, work: WorkFound) -> str:
        if not work.is_inference:
            return super().advice(work)
        program = "server" if work.generates else "program"
        return (
            f"give the {program} cores of its own: fewer threads (`OMP_NUM_THREADS`), other jobs elsewhere, no "
            "limit of CPU time"
        )


class KnownShapes(Alternative, frozen=True, kw_only=True):
    """Operators take many times their usual time on the host whenever their inputs have a new shape."""

    change = "known shapes"
    rests_on = "operators take no longer on new shapes than on known ones"
    code = ""
    title = "launching"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        for op, slow in rank.on_new_shapes.items():
            yield from without_stalls(rank, slow, self.change, what=op)


def without_stalls(
    rank: RankWork, stalls: Intervals | None, change: str, *, what: str | None = None
) -> Iterator[pl.DataFrame]:
    """Yield the remedies of launches before which the host stood still, which it would not with *change*."""
    if stalls is None or not stalls.total_ns:
        return
    launched = rank.events.drop_nulls("launch_ns").sort("launch_ns")
    launch_ns = launched["launch_ns"].to_numpy()
    since_ns = np.concatenate([launch_ns[:1], launch_ns[:-1]])
    stalled_ns = stalls.covered_ns(since_ns, launch_ns)
    host_share = 1 - stalled_ns / np.maximum(launch_ns - since_ns, 1)
    remedies = launched.select(
        "row",
        change=pl.lit(change),
        what=pl.lit(what, pl.String()),
        low_ns="ns",
        likely_ns="ns",
        high_ns="ns",
        host_share=pl.Series(host_share).clip(MIN_HOST_SHARE, 1.0),
        waits=pl.lit(True),
    )
    yield remedies.filter(pl.Series(stalled_ns) > 0).cast(REMEDIES)
