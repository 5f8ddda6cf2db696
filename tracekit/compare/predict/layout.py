"""The split of layers over stages that takes least, where stages differ."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.compare.predict.predictor import Prediction, Predictor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WORTH = 0.01
"""Share of the makespan that another split must save to be proposed."""


class Layout(msgspec.Struct, frozen=True):
    """Layers of every stage, and what the run would take with them."""

    layers: tuple[int, ...]
    prediction: Prediction

    def megatron(self) -> str:
        """Return the value of Megatron-Core's ``--pipeline-model-parallel-layout``.

        >>> Layout((3, 4, 4, 1), Prediction(0, 0, 0, 0.0)).megatron()
        'Et*3|t*4|t*4|tL'
        """
        parts = ["t" if n == 1 else f"t*{n}" for n in self.layers]
        return "|".join(["E" + parts[0], *parts[1:]]) + "L"


def stage_layers(cells: pl.DataFrame, stages: int) -> Ints | None:
    """Return how many layers each stage has, None where its forwards do not show it.

    A stage whose kernels do not divide (one with a head, say) has as many as most have.
    """
    forwards = cells.filter((pl.col("op").cast(pl.String) == "F") & pl.col("stage").is_not_null())
    table = forwards.group_by("stage").agg(pl.col("layers").median()).drop_nulls("layers").rows()
    seen = {int(stage): round(n) for stage, n in table if 0 <= stage < stages}
    several = [n for n in seen.values() if n > 1]
    if not several or len(several) * 2 < stages:
        return None
    usual = int(np.median(several))
    return np.array([seen[s] if seen.get(s, 1) > 1 else usual for s in range(stages)], np.int64)


def best_split(per_layer: Floats, extra: Floats, total: int) -> list[int]:
    """Return how many of *total* layers each stage gets so that the slowest is as fast as can be.

    A stage of n layers, one at least, takes n × *per_layer* + *extra*.

    >>> best_split(np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0, 2.0]), 14)
    [4, 4, 4, 2]
    """
    counts = np.ones(len(per_layer), np.int64)
    for _ in range(total - len(per_layer)):
        counts[int(np.argmin((counts + 1) * per_layer + extra))] += 1
    return [int(n) for n in counts]


def propose(predictor: Predictor, cells: pl.DataFrame) -> Layout | None:
    """Return the best split of this run's layers over its stages; None where the present one is best, or not known."""
    own, ran = predictor.own, predictor.cells[1]
    layers = stage_layers(cells, own.stages)
    if layers is None or own.stages < 2:
        return None
    cost = ran.work["F"] + ran.work["B"]
    share, extra = _per_layer(cost, layers)
    counts = best_split(share, extra, int(layers.sum()))
    if counts == layers.tolist():
        return None
    program = predictor.runtime.program(own, own)
    changed = (np.array(counts) * share + extra) / np.maximum(cost, 1.0)
    base = predictor.play(program, own)
    work = [took * float(changed[p.stage]) for p, took in zip(program.pieces, ran.work_of(program, own), strict=True)]
    other = predictor.play(program, own, work=work)
    if base is None or other is None or other.makespan > (1 - WORTH) * base.makespan:
        return None
    took = predictor.measured_ns * other.makespan / base.makespan
    outside = max(0.0, 1 - float((other.end - other.start).sum()) / (own.pp * other.makespan))
    miss = predictor.miss
    return Layout(tuple(counts), Prediction(round(took), round(took * (1 - miss)), round(took * (1 + miss)), outside))


def _per_layer(cost: Floats, layers: Ints) -> tuple[Floats, Floats]:
    """Return each stage's time per layer, and what the first and the last stage take besides their layers."""
    share = cost / layers
    extra = np.zeros(len(cost))
    inner: Sequence[float] = share[1:-1].tolist()
    if inner:
        usual = float(np.median(inner))
        for at in (0, len(cost) - 1):
            extra[at] = max(0.0, float(cost[at]) - usual * float(layers[at]))
            share[at] = (cost[at] - extra[at]) / layers[at]
    return share, extra
