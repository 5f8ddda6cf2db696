"""The run's own schedule with one trouble removed, on its own machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.compare.predict.predictor import Prediction, Predictor
from tracekit.compare.predict.programs import Program


def removed(predictor: Predictor, cause: str, inside: Mapping[tuple[str, int, int], float]) -> Prediction | None:
    """Return what the run would have taken without *cause*: the measured makespan, less the share the engine saves.

    *inside* is the time for which the cause stopped each cell. None where the cause did nothing, or the run cannot be
    run again.
    """
    own = predictor.own
    program = predictor.runtime.program(own, own)
    cells = predictor.cells[1]
    base_work = cells.own_work(program)
    base = predictor.play(program, own, work=base_work)
    work = _changed(predictor, program, cause, base_work, inside)
    machine = predictor.fitted.machines[1].free() if cause == "p2p" else None
    if base is None or (work == base_work and cause not in ("p2p", "host")):
        return None
    other = predictor.play(program, own, machine=machine, work=work, host=cause != "host")
    if other is None or not base.makespan:
        return None
    took = predictor.measured_ns * other.makespan / base.makespan
    busy = float((other.end - other.start).sum())
    outside = max(0.0, 1 - busy / (own.pp * other.makespan)) if other.makespan else 0.0
    miss = predictor.miss
    return Prediction(round(took), round(took * (1 - miss)), round(took * (1 + miss)), outside)


def _changed(
    predictor: Predictor,
    program: Program,
    cause: str,
    base: list[float],
    inside: Mapping[tuple[str, int, int], float],
) -> list[float]:
    """Return what each piece takes without *cause*."""
    cells = predictor.cells[1]
    if cause == "variation":
        return cells.work_of(program, predictor.own)
    if cause == "imbalance":
        mean = {kind: float(np.mean(times)) for kind, times in cells.work.items()}
        return [
            max(0.0, took - float(cells.work[p.kind][p.stage]) + mean[p.kind])
            for p, took in zip(program.pieces, base, strict=True)
        ]
    if cause in ("p2p", "host"):
        return base
    pieces = zip(program.pieces, base, strict=True)
    return [max(0.0, took - inside.get((p.kind, p.stage, p.microbatch), 0.0)) for p, took in pieces]
