"""Prediction of the run without one cause of its gap."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.compare.predict.machine import MIDDLE
from tracekit.compare.predict.predictor import Prediction, Predictor
from tracekit.compare.predict.rank_programs import Program

StallInsideCells = Mapping[tuple[str, int, int], float]
"""Time, in nanoseconds, for which a cause stopped a cell, by op kind, stage and micro-batch."""


def predict_without(predictor: Predictor, cause: str, stalls: StallInsideCells) -> Prediction | None:
    """Predict the run's own schedule without *cause*.

    Returns:
        The prediction; None if the cause has no effect, or the run cannot be simulated.
    """
    program = predictor.own_program
    base_work = predictor.ops[MIDDLE].own_work(program)
    work = _work_without(cause, program, predictor, base_work, stalls)
    if work == base_work and cause not in ("p2p", "host"):
        return None
    machine = predictor.machine.machines[MIDDLE].with_free_messages() if cause == "p2p" else None
    base = predictor.simulate(program, predictor.own, work=base_work)
    changed = predictor.simulate(program, predictor.own, machine=machine, work=work, host=cause != "host")
    if base is None or changed is None or not base.makespan:
        return None
    return predictor.predict_change(base, changed)


def _work_without(
    cause: str, program: Program, predictor: Predictor, base_work: list[float], stalls: StallInsideCells
) -> list[float]:
    """Return the duration of each piece without *cause*."""
    ops = predictor.ops[MIDDLE]
    if cause in ("p2p", "host"):  # the machine and the launches change, not the pieces
        return base_work
    if cause == "variation":
        return ops.typical_work(program, predictor.own)
    pieces = zip(program.pieces, base_work, strict=True)
    if cause == "imbalance":
        mean = {kind: float(np.mean(times)) for kind, times in ops.gpu_ns.items()}
        return [max(0.0, ns - float(ops.gpu_ns[p.kind][p.stage]) + mean[p.kind]) for p, ns in pieces]
    return [max(0.0, ns - stalls.get((p.kind, p.stage, p.microbatch), 0.0)) for p, ns in pieces]
