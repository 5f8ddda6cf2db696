"""Split of the model's layers over stages: the present one, and the one with the smallest makespan."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.compare.predict.engine import Floats
from tracekit.compare.predict.machine import MIDDLE
from tracekit.compare.predict.predictor import Prediction, Predictor

MIN_SAVED_SHARE_TO_PROPOSE = 0.01
"""Share of the makespan that another split must save to be proposed."""


class LayerSplit(msgspec.Struct, frozen=True):
    """Number of layers of every stage, and the prediction for the run with them."""

    layers: tuple[int, ...]
    prediction: Prediction

    def megatron_layout(self) -> str:
        """Return the value of Megatron-Core's ``--pipeline-model-parallel-layout``.

        >>> LayerSplit((3, 4, 4, 1), Prediction(0, 0, 0, 0.0)).megatron_layout()
        'Et*3|t*4|t*4|tL'
        """
        stages = ["t" if layers == 1 else f"t*{layers}" for layers in self.layers]
        return f"E{'|'.join(stages)}L"


def layers_per_stage(cells: pl.DataFrame, stages: int) -> Ints | None:
    """Return the number of layers of each stage; None if less than half of the stages show it.

    A stage whose kernels do not divide into layers (one with a head, for example) gets the median of the others.
    """
    forwards = cells.filter((pl.col("op").cast(pl.String) == "F") & pl.col("stage").is_not_null())
    medians = forwards.group_by("stage").agg(pl.col("layers").median()).drop_nulls("layers").rows()
    layers = {int(stage): round(count) for stage, count in medians if 0 <= stage < stages and round(count) > 1}
    if not layers or len(layers) * 2 < stages:
        return None
    usual = int(np.median(list(layers.values())))
    return np.array([layers.get(stage, usual) for stage in range(stages)], np.int64)


def best_split(layer_ns: Floats, additional_ns: Floats, layers: int) -> list[int]:
    """Return the number of layers per stage that makes the slowest stage fastest.

    Args:
        layer_ns: Time per layer on each stage.
        additional_ns: Time of each stage besides its layers.
        layers: Number of layers in all; every stage gets at least one.

    >>> best_split(np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0, 2.0]), 14)
    [4, 4, 4, 2]
    """
    counts = np.ones(len(layer_ns), np.int64)
    for _ in range(layers - len(layer_ns)):
        # The next layer goes to the stage that is fastest with it.
        counts[int(np.argmin((counts + 1) * layer_ns + additional_ns))] += 1
    return [int(count) for count in counts]


def propose_split(predictor: Predictor, cells: pl.DataFrame) -> LayerSplit | None:
    """Return the best split of the run's layers; None if the present one is about as good, or not known."""
    own, ops = predictor.own, predictor.ops[MIDDLE]
    layers = layers_per_stage(cells, own.stages)
    if layers is None or own.stages < 2:
        return None
    stage_ns = ops.gpu_ns["F"] + ops.gpu_ns["B"]
    layer_ns, additional_ns = _time_per_layer(stage_ns, layers)
    counts = best_split(layer_ns, additional_ns, int(layers.sum()))
    if counts == layers.tolist():
        return None
    program = predictor.own_program
    stage_factor = (np.array(counts) * layer_ns + additional_ns) / np.maximum(stage_ns, 1.0)
    typical = ops.typical_work(program, own)
    work = [ns * float(stage_factor[piece.stage]) for piece, ns in zip(program.pieces, typical, strict=True)]
    base, changed = predictor.simulate(program, own), predictor.simulate(program, own, work=work)
    if base is None or changed is None or changed.makespan > (1 - MIN_SAVED_SHARE_TO_PROPOSE) * base.makespan:
        return None
    return LayerSplit(tuple(counts), predictor.predict_change(base, changed))


def _time_per_layer(stage_ns: Floats, layers: Ints) -> tuple[Floats, Floats]:
    """Return the time per layer on each stage, and the time of the first and the last stage besides their layers.

    A layer of the first or last stage is taken to need as long as one of the stages between them.
    """
    layer_ns = stage_ns / layers
    additional_ns = np.zeros(len(stage_ns))
    if len(stage_ns) > 2:
        usual_ns = float(np.median(layer_ns[1:-1]))
        for stage in (0, len(stage_ns) - 1):
            additional_ns[stage] = max(0.0, float(stage_ns[stage]) - usual_ns * float(layers[stage]))
            layer_ns[stage] = (stage_ns[stage] - additional_ns[stage]) / layers[stage]
    return layer_ns, additional_ns
