"""What this run's ops took, GPU and host, by kind and stage; and what they would take in a model cut another way."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.compare.predict.engine import Launches
from tracekit.compare.predict.machine import MIDDLE, Machine
from tracekit.compare.predict.programs import POST, RUN, Program
from tracekit.intervals import union
from tracekit.schedules import Schedule

Floats = npt.NDArray[np.float64]

SPLIT_WORK = ((1.0, 1.0), (1.05, 1.2), (1.1, 1.4))
"""GPU time of I and of W in a run that splits its backwards over what the labels of whole ones say, at least, likely
and at most: what both halves need (a norm's statistics, say) runs twice."""

SPLIT_HOST = ((0.55, 1.0), (0.6, 1.3), (0.75, 2.2))
"""Host time of I and of W over that of a whole backward where only whole ones ran, at least, likely and at most.

PyTorch calls its engine once for every group of parameters, so splitting costs the host more than the GPU; no run that
does not split shows by how much (docs/whatif.md has the runs these are from).
"""

QUANTILES = (0.25, 0.5, 0.75)

MOST_WEIGHT = 0.9


class Ran(msgspec.Struct, frozen=True, eq=False):
    """Times in nanoseconds, one per stage of this run."""

    work: Mapping[str, Floats]  # F, I, W and B with nothing beside them and the host in time
    launch: Mapping[str, Floats]  # the host's time for launching one
    between_ns: float  # the host's time between two ops
    post_ns: float  # and for posting a kernel of messages
    tail_ns: float  # from the launch of an op's last kernel to the op's end, where the host was the limit
    cells: Mapping[tuple[str, int, int], float]  # what each one took, by kind, stage and micro-batch
    overlap: float | None  # time of an FB over that of its F and B apart; None: never ran one
    split_known: bool  # I and W ran, or kernels are labelled
    split_ran: bool

    @property
    def stages(self) -> int:
        """Number of stages of this run."""
        return len(self.work["F"])

    def times(self, table: Mapping[str, Floats], stages: int) -> dict[str, Floats]:
        """Return times by kind for a model cut into so many stages."""
        return {kind: recut(values, stages) for kind, values in table.items()}

    def work_of(self, program: Program, schedule: Schedule) -> list[float]:
        """Return the time of each piece: what pieces like it took."""
        times = self.times(self.work, schedule.stages)
        return [float(times[p.kind][p.stage]) for p in program.pieces]

    def own_work(self, program: Program) -> list[float]:
        """Return the time that each piece of the run's own program took."""
        usual = self.work
        return [self.cells.get((p.kind, p.stage, p.microbatch), float(usual[p.kind][p.stage])) for p in program.pieces]

    def launches_of(
        self, program: Program, schedule: Schedule, *, begins: Floats | None = None, factor: float = 1.0
    ) -> Launches:
        """Return when every rank's host has launched each piece, and posted each kernel."""
        times = self.times(self.launch, schedule.stages)
        first, last = np.zeros((2, len(program.pieces)))
        posts = np.zeros(len(program.kernels))
        for rank, steps in enumerate(program.steps):
            now = 0.0 if begins is None else float(begins[rank])
            for code, which in steps:
                if code == RUN:
                    piece = program.pieces[which]
                    first[which] = now
                    now += float(times[piece.kind][piece.stage]) * factor
                    last[which] = now + self.tail_ns
                    now += self.between_ns * factor
                elif code == POST:
                    posts[which] = now
                    now += self.post_ns * factor
        return Launches(first, last, posts)


def recut(values: Floats, stages: int) -> Floats:
    """Return times of a model cut into *stages*, from those of the stages it was cut into.

    What the first and the last stage take beyond the others (an embedding, a head) stays at the end it is at.

    >>> recut(np.array([4.0, 4.0, 4.0, 5.0]), 8).tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0]
    >>> recut(np.array([2.0, 4.0, 2.0, 2.0]), 2).tolist()
    [6.0, 4.0]
    """
    own = len(values)
    if own == stages:
        return values
    body = values.copy()
    extra = np.zeros(2)
    if own > 2:
        usual = float(np.median(values[1:-1]))
        extra = np.maximum(values[[0, -1]] - usual, 0.0)
        body[[0, -1]] -= extra
    edges = np.concatenate([[0.0], np.cumsum(body)])
    at = np.interp(np.linspace(0, own, stages + 1), np.arange(own + 1), edges)
    cut: Floats = np.diff(at)
    cut[0] += extra[0]
    cut[-1] += extra[1]
    return cut


def ran(
    cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame], machine: Machine, *, stages: int, level: int = MIDDLE
) -> Ran:
    """Return what *cells* (``Pipeline.detail``) took; *messages* are each position's, on the cells' clock.

    *level* says whether it is the lower quartile of like cells, their median or their upper quartile.
    """
    rows = cells.with_columns(pl.col("op").cast(pl.String)).with_columns(
        beside=_beside(cells, messages), kind=pl.col("op"), place=pl.col("stage").fill_null(0).cast(pl.Int64)
    )
    slow = {op: 1 - 1 / factor for op, factor in machine.slowdown.items()}
    lost = pl.col("op").replace_strict(slow, default=0.0, return_dtype=pl.Float64) * pl.col("beside")
    rows = rows.with_columns(
        took=(pl.col("end_ns") - pl.col("start_ns") - pl.col("host_ns") - lost).clip(0),
        host=(pl.col("last_ns") - pl.col("launch_ns")).clip(0),
    )
    work, overlap, known = _by_kind(rows, "took", stages, level, dearer=SPLIT_WORK[level])
    launch, _, _ = _by_kind(rows, "host", stages, level, of_split=SPLIT_HOST[level])
    between, post = _host_gaps(rows, messages)
    named = rows.select("op", "place", pl.col("microbatch").fill_null(-1), "took").rows()
    took_by_op = {(op, stage, microbatch): took for op, stage, microbatch, took in named}
    limited = rows.filter(pl.col("end_ns") - pl.col("last_ns") < pl.col("took"))
    tail = limited.select((pl.col("end_ns") - pl.col("last_ns")).clip(0).median()).item() if limited.height else 0
    return Ran(
        work, launch, between, post, float(tail or 0), took_by_op, overlap, known, bool((rows["op"] == "W").any())
    )


def _beside(cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame]) -> pl.Series:
    """Time of each cell in which a message kernel ran on its rank."""
    beside_ns = np.zeros(cells.height, np.int64)
    position = cells["position"].to_numpy()
    start, end = cells["start_ns"].to_numpy(), cells["end_ns"].to_numpy()
    for at, table in messages.items():
        at_position = position == at
        busy = union(table["start_ns"].to_numpy(), table["end_ns"].to_numpy())
        beside_ns[at_position] = busy.covered_ns(start[at_position], end[at_position])
    return pl.Series("beside", beside_ns)


def _by_kind(
    rows: pl.DataFrame,
    column: str,
    stages: int,
    level: int,
    *,
    dearer: tuple[float, float] = (1.0, 1.0),
    of_split: tuple[float, float] | None = None,
) -> tuple[dict[str, Floats], float | None, bool]:
    """Return quartiles by kind and stage of F, I, W and B; kinds that did not run are made of those that did.

    A whole backward is *of_split* I and W, or what its kernels' labels say, times *dearer*.
    """
    typical = {kind: _typical(rows, kind, column, stages, level) for kind in ("F", "I", "W", "B")}
    block = rows.filter(pl.col("op") == "FB")
    together = float(block[column].median() or 0) if block.height else None  # type: ignore[arg-type]
    share, known = _weight_share(rows)
    f, whole, i, w = (typical[k] for k in ("F", "B", "I", "W"))
    if whole is None and i is not None and w is not None:
        whole = i / dearer[0] + w / dearer[1] if of_split is None else (i + w) / sum(of_split)
    if whole is None:
        whole = np.full(stages, (together or 3.0) * 2 / 3)
    if f is None:
        f = whole / 2
    if i is None or w is None:
        first, second = ((1 - share) * dearer[0], share * dearer[1]) if of_split is None else of_split
        i, w = whole * first, whole * second
    overlap = together / float(np.mean(f) + np.mean(whole)) if together else None
    return {"F": f, "I": i, "W": w, "B": whole}, overlap, known


def _typical(rows: pl.DataFrame, kind: str, column: str, stages: int, level: int) -> Floats | None:
    """Return one quartile per stage; a stage without any takes the mean of the others. None: this kind never ran."""
    part = rows.filter(pl.col("op") == kind)
    if part.is_empty():
        return None
    table = part.group_by("place").agg(pl.col(column).quantile(QUANTILES[level], "linear")).rows()
    values = np.full(stages, np.mean([v for _, v in table]))
    for stage, value in table:
        if 0 <= stage < stages:
            values[stage] = value
    return values


def _weight_share(rows: pl.DataFrame) -> tuple[float, bool]:
    whole = rows.filter(pl.col("op") == "B")
    weight, total = int(whole["wgrad_ns"].sum()), int(whole["busy_ns"].sum())
    return (min(weight / total, MOST_WEIGHT), True) if weight and total else (0.5, bool((rows["op"] == "W").any()))


def _host_gaps(rows: pl.DataFrame, messages: Mapping[int, pl.DataFrame]) -> tuple[float, float]:
    """Return the host's time between two ops, and for each kernel of messages posted there: a line through medians."""
    gaps, posts = [], []
    for (at,), part in rows.sort("launch_ns").group_by("position", maintain_order=True):
        launches = messages[at]["launch_ns"].unique().sort().to_numpy() if at in messages else np.zeros(0, np.int64)
        first, last = part["launch_ns"].to_numpy(), part["last_ns"].to_numpy()
        low, high = np.searchsorted(launches, last[:-1]), np.searchsorted(launches, first[1:])
        gaps.append(np.maximum(first[1:] - last[:-1], 0))
        posts.append(np.maximum(high - low, 0))
    if not gaps:
        return 0.0, 0.0
    table = pl.DataFrame({"gap": np.concatenate(gaps), "n": np.concatenate(posts)})
    line = table.group_by("n").agg(pl.col("gap").median(), count=pl.len()).sort("n")
    n, gap, count = (line[c].to_numpy().astype(float) for c in ("n", "gap", "count"))
    if len(n) < 2:
        return (float(gap[0]), 0.0) if len(n) and n[0] == 0 else (0.0, float(gap[0] / n[0]) if len(n) else 0.0)
    slope, start = np.polyfit(n, gap, 1, w=np.sqrt(count))
    return max(0.0, float(start)), max(0.0, float(slope))
