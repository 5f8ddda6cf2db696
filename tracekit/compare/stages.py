"""What one micro-batch costs a rank of the run: with these times its ideal, and any other schedule, is simulated."""

from __future__ import annotations

import msgspec
import polars as pl

from tracekit.compare.gap import Replays
from tracekit.schedules import Times


class StageTimes(msgspec.Struct, frozen=True):
    """What one micro-batch costs one rank, all its layers together."""

    F: int
    I: int  # noqa: E741
    W: int
    overlap: float | None  # time of an FB over that of its F and B apart; None: never ran one
    split_known: bool
    chunks: float
    """Into how many the run cuts a rank's layers."""

    def of_chunks(self, chunks: float | None = None) -> Times:
        """Return times of the ops of a schedule that cuts a rank's layers into so many chunks; the run's without."""
        chunks = chunks or self.chunks
        f, i, w = (max(1, round(t / chunks)) for t in (self.F, self.I, self.W))
        block = f + i + w if self.overlap is None else max(1, round((f + i + w) * self.overlap))
        return Times(F=f, I=i, W=w, B=i + w, FB=block)


def stage_times(r: Replays, cells: pl.DataFrame, pp: int) -> StageTimes:
    """Return the run's balanced times; a backward never split is split by its kernels' labels, else in half."""
    op = r.graph.op
    chunks = (int(max(stages.max(initial=0) for stages in (r.graph.stage, r.graph.b_stage))) + 1) / pp
    mean = {kind: int(r.balanced[op == kind][0]) for kind in ("F", "I", "W", "B", "FB") if (op == kind).any()}
    whole = mean.get("B") or (mean["I"] + mean["W"] if "I" in mean and "W" in mean else None)
    block = mean.get("FB")
    share, known = _weight_share(r, cells)
    if whole is None:
        whole = round((block or 3) * 2 / 3)
    f = mean.get("F") or (block - whole if block and block > whole else round(whole / 2))
    w = mean.get("W", round(whole * share))
    i = mean.get("I", whole - w)
    overlap = block / (f + i + w) if block else None
    f, i, w = (round(time * chunks) for time in (f, i, w))
    return StageTimes(f, i, w, overlap, known or "W" in mean, chunks)


def _weight_share(r: Replays, cells: pl.DataFrame) -> tuple[float, bool]:
    whole = r.graph.op == "B"
    weight = int(cells["wgrad_ns"].to_numpy()[whole].sum())
    total = int(r.work[whole].sum())
    return (min(weight / total, 0.9), True) if weight and total else (0.5, False)
