"""What a rank's events cannot tell, said once and plainly."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import polars as pl

from tracekit.errors import Notice
from tracekit.schema import GPU_KINDS


def rank_notices(
    events: pl.DataFrame, counts: Mapping[str, int], rank: int, *, world: Collection[str] = ()
) -> list[Notice]:
    """Return what a rank's events, *counts* of each kind, leave open; *world* names communicators of the whole job."""
    gpu = sum(counts.get(kind, 0) for kind in GPU_KINDS)
    notices = []
    if not gpu:
        notices.append(Notice("no-gpu-events", f"rank {rank}: nothing ran on a GPU here, or CUDA was not traced"))
    if graphs := counts.get("graph", 0):
        notices.append(
            Notice(
                "graph-mode",
                f"rank {rank}: {graphs:,} CUDA graph launches were recorded whole, without their kernels; "
                "record with --cuda-graph-trace=node to see inside",
            )
        )
    notices += _launches(events, gpu, rank)
    if not counts.get("cpu_op") and not counts.get("annotation"):
        notices.append(
            Notice(
                "no-ranges",
                f"rank {rank}: no NVTX ranges, so labels come from kernel names alone; "
                "record with --trace=cuda,nvtx under torch.autograd.profiler.emit_nvtx()",
            )
        )
    notices += _peers(events, rank, world)
    return notices


def _launches(events: pl.DataFrame, gpu: int, rank: int) -> list[Notice]:
    """GPU events whose launch is not in the file: normal in a recording of a window, but it costs evidence."""
    kind = pl.col("kind")
    calls = pl.col("correlation").filter(kind.is_in(["runtime", "driver"]))
    known = events.select(calls.unique())["correlation"]
    launched = pl.col("correlation").is_in(known.implode()).fill_null(False)
    lost = events.select((kind.is_in(GPU_KINDS) & ~launched).sum()).item()
    if not lost:
        return []
    text = f"rank {rank}: {lost:,} of {gpu:,} GPU events have no launch in the file; these are labelled by name alone"
    return [Notice("no-launch", text)]


def _peers(events: pl.DataFrame, rank: int, world: Collection[str]) -> list[Notice]:
    sent = events.filter(pl.col("kind") == "cpu_op", pl.col("collective").cast(pl.String).is_in(["send", "recv"]))
    with_peer = sent.filter(pl.col("peer").is_not_null())
    if with_peer.height:
        elsewhere = with_peer.filter(~pl.col("group").cast(pl.String).is_in(list(world)).fill_null(False))
        text = f"rank {rank}: peers are numbered within their communicator, which may not be the whole job"
        return [Notice("peers-in-communicator", text)] if elsewhere.height else []
    if not sent.height:
        return []
    return [
        Notice(
            "no-peers",
            f"rank {rank}: sends and receives do not name their peer: the export has no NCCL payloads "
            "(export again with --include-json=true, or --include-blobs=true)",
        )
    ]
