"""What another schedule, or one trouble less, would have bought: the run's own measured times, other assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from tracekit.compare.gap import Replays
from tracekit.compare.identify import Match
from tracekit.errors import ScheduleError
from tracekit.schedules import Schedule, Times, generate, names, simulate
from tracekit.schedules.registry import describe
from tracekit.schema import GAP_CAUSES

SEARCH_LIMIT = 4_000
"""Cells up to which a searched order (zb-1p, zb-2p) is tried."""


SEARCHED = ("zb-1p", "zb-2p")


def too_large_to_search(pp: int, microbatches: int) -> bool:
    """Return whether orders that are searched for are left out.

    >>> too_large_to_search(4, 8), too_large_to_search(64, 1024)
    (False, True)
    """
    return pp * microbatches * 3 > SEARCH_LIMIT


@dataclass(frozen=True)
class WhatIf:
    """One line: what would change, what it would come to, what that takes for granted."""

    change: str  # "schedule" or "without"
    name: str
    virtual: int | None
    makespan_ns: int
    saves_ns: int  # a schedule: against the ideal of the run's own; without a cause: against the measured makespan
    bubble_fraction: float | None
    peak_activations: float | None  # most a rank holds, in micro-batches of all its layers
    assumption: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class StageTimes:
    """What one micro-batch costs one rank, all its layers together."""

    F: int
    I: int  # noqa: E741
    W: int
    overlap: float | None  # time of an FB over that of its F and B apart; None: never ran one
    split_known: bool

    def of_chunks(self, chunks: float) -> Times:
        """Return times of the ops of a schedule that cuts a rank's layers into so many chunks."""
        f, i, w = (max(1, round(t / chunks)) for t in (self.F, self.I, self.W))
        block = f + i + w if self.overlap is None else max(1, round((f + i + w) * self.overlap))
        return Times(F=f, I=i, W=w, B=i + w, FB=block)


def stage_times(r: Replays, cells: pl.DataFrame, pp: int) -> StageTimes:
    """Return the run's balanced times; a backward never split is split by its kernels' labels, else in half."""
    op, stage = r.graph.op, r.graph.stage
    chunks = (int(max(stage.max(initial=0), cells["b_stage"].fill_null(0).to_numpy().max(initial=0))) + 1) / pp
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
    return StageTimes(round(f * chunks), round(i * chunks), round(w * chunks), overlap, known or "W" in mean)


def _weight_share(r: Replays, cells: pl.DataFrame) -> tuple[float, bool]:
    whole = r.graph.op == "B"
    weight = int(cells["wgrad_ns"].to_numpy()[whole].sum())
    total = int(r.work[whole].sum())
    return (min(weight / total, 0.9), True) if weight and total else (0.5, False)


def what_if(r: Replays, cells: pl.DataFrame, pp: int, match: Match) -> list[WhatIf]:
    """Schedules the run could use, best first, then what each trouble costs, dearest first."""
    own, microbatches = match.schedule, match.schedule.microbatches
    times = stage_times(r, cells, pp)
    rows = []
    for schedule in _usable(own, pp, microbatches, times):
        chunks = schedule.stages / pp
        done = simulate(schedule, times.of_chunks(chunks))
        rows.append((schedule, done.makespan, done.bubble_fraction, max(done.peak_activations) / chunks))
    base = next((m for s, m, _, _ in rows if (s.name, s.virtual) == (own.name, own.virtual)), None)
    if base is None:
        base = simulate(own, times.of_chunks(own.stages / pp)).makespan
    lines = [
        WhatIf("schedule", s.name, s.virtual, int(m), int(base - m), b, peak, _assumption(s, own, times))
        for s, m, b, peak in rows
    ]
    lines.sort(key=lambda line: (line.makespan_ns, line.peak_activations or 0))
    return lines + _without(r)


def _usable(own: Schedule, pp: int, microbatches: int, times: StageTimes) -> Iterator[Schedule]:
    for name in names():
        entry = describe(name)
        searched = name in SEARCHED
        if not entry.pipeline or (searched and too_large_to_search(pp, microbatches)):
            continue
        options = sorted({2, own.virtual}) if entry.virtual is None else [None]
        for virtual in options:
            try:
                yield generate(
                    name,
                    pp=pp,
                    microbatches=microbatches,
                    virtual=virtual,
                    times=times.of_chunks(1) if searched else None,
                )
            except ScheduleError:
                continue


def _assumption(schedule: Schedule, own: Schedule, times: StageTimes) -> str:
    said = ["balanced stages, free transfers"]
    chunks, own_chunks = schedule.stages / schedule.pp, own.stages / own.pp
    if chunks != own_chunks:
        said.append(f"a rank's layers cut into {chunks:g} equal chunk{'s' * (chunks != 1)}")
    if any(op.kind == "FB" for op in schedule.ranks[0]):
        said.append(
            "FB takes F + B" if times.overlap is None else f"FB takes {times.overlap:.0%} of F + B, as measured"
        )
    if any(op.kind == "W" for op in schedule.ranks[0]) and not times.split_known:
        said.append("backward halves into I and W")
    if schedule.name in ("dualpipe", "chimera"):
        said.append("every rank holds two stages' weights")
    return "; ".join(said)


def _without(r: Replays) -> list[WhatIf]:
    lines = []
    for cause, words in GAP_CAUSES.items():
        if words.change is None:
            continue
        makespan = r.without(cause)
        saves = r.makespan - makespan
        if saves:
            busy = float(np.sum(r.end - r.start)) / max(1, len(np.unique(r.graph.position)) * makespan)
            outside = max(0.0, 1 - busy)
            lines.append(WhatIf("without", words.change, None, makespan, saves, outside, None, words.assumption))
    return sorted(lines, key=lambda line: -line.saves_ns)
