"""Time over which a rank was recorded, and GPU events that cannot have run in it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import polars as pl

from tracekit.schema import GPU_KINDS, UNTIMED, RankEvents

MIN_TIME_AROUND_RECORDING_NS = 1_000_000_000
"""Time before the host's first event and behind its last one within which GPU work is believed; at least as long as
the host was recorded: work that was queued runs on, and the GPU's clock may be off."""
_HOST_KINDS = ("cpu_op", "runtime", "driver", "annotation", "python")
_ON_GPU = (*GPU_KINDS, "gpu_annotation")


def leave_out_impossible_times(rank: RankEvents) -> RankEvents:
    """Return a rank without GPU events outside of its recording or longer than it.

    They are counted among those without usable times. A rank without host events has nothing to hold them against.

    >>> from tracekit.schema import EVENTS, Source, conform
    >>> call = {"kind": "runtime", "name": "cudaLaunchKernel", "start_ns": 10**18, "end_ns": 10**18 + 9}
    >>> kernel = {"kind": "kernel", "name": "k", "start_ns": 0, "end_ns": 5}
    >>> events = conform(pl.DataFrame([call, kernel]), EVENTS)
    >>> left = leave_out_impossible_times(RankEvents(events, Source("a.json", "kineto", 0, "name")))
    >>> left.events.height, left.source.skipped[UNTIMED]
    (1, 1)
    """
    host = rank.events.filter(pl.col("kind").is_in(_HOST_KINDS))
    if host.is_empty():
        return rank
    begin_ns, end_ns = host.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    margin_ns = max(end_ns - begin_ns, MIN_TIME_AROUND_RECORDING_NS)
    is_impossible = pl.col("kind").is_in(_ON_GPU) & (
        (pl.col("start_ns") < begin_ns - margin_ns)
        | (pl.col("end_ns") > end_ns + margin_ns)
        | (pl.col("end_ns") - pl.col("start_ns") > margin_ns)
    )
    impossible = rank.events.select("kind", is_impossible.alias("impossible")).filter("impossible")
    if impossible.is_empty():
        return rank
    skipped = dict(rank.source.skipped)
    events_lost = int(impossible["kind"].is_in(GPU_KINDS).sum())
    skipped[UNTIMED] = skipped.get(UNTIMED, 0) + events_lost
    source = msgspec.structs.replace(rank.source, skipped=skipped)
    return replace(rank, events=rank.events.filter(~is_impossible), source=source)
