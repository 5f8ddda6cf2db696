"""Rows of a what-if: other schedules, layer splits and sizes.

Predicted makespans are simulated with the run's own ops, messages and machine; ideals with its mean
op times and free messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._util.arrays import Floats, Ints
from tracekit._util.text import percent
from tracekit.documents.analysis import WhatIf
from tracekit.errors import ScheduleError
from tracekit.graph.constants import (
    CHUNKS_TO_TRY,
    MAX_OPS_OF_CURVE_POINT,
    MAX_UNITS_TO_SEARCH,
    MICROBATCHES_PER_RANK_TO_TRY,
    MIDDLE,
    MIN_SAVED_SHARE_TO_PROPOSE,
)
from tracekit.graph.predictor import Prediction, Predictor
from tracekit.pipeline.against_ideal.identify import count_ops
from tracekit.pipeline.against_ideal.replay import StageTimes, StepReplays, measure_stage_times
from tracekit.pipeline.schedules import Schedule, Times, generate, names, simulate
from tracekit.pipeline.schedules.registry import describe


def layers_per_stage(cells: pl.DataFrame, stages: int) -> Ints | None:
    """Return the number of layers of each stage; None if less than half of the stages show it.

    A stage whose kernels do not divide into layers (one with a head, for example) gets the median
    of the others.
    """
    forwards = cells.filter((pl.col("op").cast(pl.String) == "F") & pl.col("stage").is_not_null())
    medians = forwards.group_by("stage").agg(pl.col("layers").median()).drop_nulls("layers").rows()
    layers = {
        int(stage): round(count)
        for stage, count in medians
        if 0 <= stage < stages and round(count) > 1
    }
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


def _time_per_layer(stage_ns: Floats, layers: Ints) -> tuple[Floats, Floats]:
    """Return the time per layer on each stage, and the time of the first and the last stage besides their layers.

    A layer of the first or last stage is taken to need as long as one of the stages between them.
    """
    layer_ns = stage_ns / layers
    additional_ns = np.zeros(len(stage_ns))
    if len(stage_ns) > 2:
        usual_ns = float(np.median(layer_ns[1:-1]))
        for stage in (0, len(stage_ns) - 1):
            additional_ns[stage] = max(
                0.0, float(stage_ns[stage]) - usual_ns * float(layers[stage])
            )
            layer_ns[stage] = (stage_ns[stage] - additional_ns[stage]) / layers[stage]
    return layer_ns, additional_ns


FASTER_ALONE = "ranks share a GPU and compute faster while others wait, so that a prediction may be below the ideal"


def too_large_to_search(pp: int, microbatches: int) -> bool:
    """Return whether schedules whose order is searched for are left out.

    >>> too_large_to_search(4, 8), too_large_to_search(64, 1024)
    (False, True)
    """
    return pp * microbatches * 3 > MAX_UNITS_TO_SEARCH


def what_if_rows(
    replays: StepReplays,
    cells: pl.DataFrame,
    own: Schedule,
    predictor: Predictor | str,
    *,
    ideal_ns: int,
) -> list[WhatIf]:
    """Return all rows: schedules, best first; the layer split; the curves.

    Args:
        replays: The step.
        cells: Cells of the step (``DETAILED``).
        own: Schedule of the run.
        predictor: Predictor, or the reason why there is none; then rows have only their ideal.
        ideal_ns: Ideal of the run itself.
    """
    times = measure_stage_times(replays, cells, own.pp)
    rows = []
    for schedule in other_schedules(own, times.for_chunks(1)):
        if (schedule.name, schedule.virtual) == (own.name, own.virtual):
            rows.append(_own_row(schedule, times, replays, ideal_ns))
        else:
            rows.append(_schedule_row(schedule, own, times, replays.makespan, predictor))
    # Best prediction first; rows without one after them, by their ideal.
    rows.sort(
        key=lambda row: (
            row.predicted_ns is None,
            (row.ideal_ns if row.predicted_ns is None else row.predicted_ns) or 0,
            row.peak_activations or 0,
        )
    )
    if not isinstance(predictor, str):
        split = _layer_split_row(predictor, cells)
        rows += [*([] if split is None else [split]), *curve_rows(predictor, cells, times)]
    return rows


def other_schedules(own: Schedule, whole_stage_times: Times) -> Iterator[Schedule]:
    """Yield the schedules that the run could use, its own among them."""
    for name in names():
        entry = describe(name)
        if not entry.pipeline or (entry.searched and too_large_to_search(own.pp, own.microbatches)):
            continue
        # An interleaved schedule with one chunk is the plain one.
        chunk_counts = sorted({2, own.virtual} - {1}) if entry.virtual is None else [None]
        for virtual in chunk_counts:
            times = whole_stage_times if entry.searched else None
            yield from _generate(name, own.pp, own.microbatches, virtual, times)


def _generate(
    name: str, pp: int, microbatches: int, virtual: int | None, times: Times | None = None
) -> Iterator[Schedule]:
    """Yield the schedule if it exists in this size."""
    try:
        yield generate(name, pp=pp, microbatches=microbatches, virtual=virtual, times=times)
    except ScheduleError:
        return


def _ideal_figures(schedule: Schedule, times: StageTimes) -> dict[str, Any]:
    """Return the fields of a row that come from the ideal of a schedule."""
    chunks = schedule.stages / schedule.pp
    simulation = simulate(schedule, times.for_chunks(chunks))
    return {
        "name": schedule.name,
        "virtual": schedule.virtual,
        "ideal_ns": int(simulation.makespan),
        "peak_activations": max(simulation.peak_activations) / chunks,
        "least_activations": max(simulation.least_activations) / chunks,
        "microbatches": schedule.microbatches,
    }


def _predicted_figures(prediction: Prediction, measured_ns: int) -> dict[str, Any]:
    """Return the fields of a row that come from a prediction."""
    return {
        "predicted_ns": prediction.ns,
        "predicted_range_ns": (prediction.low_ns, prediction.high_ns),
        "saves_ns": measured_ns - prediction.ns,
        "slower": prediction.ns > measured_ns,
        "outside_cells": prediction.outside_cells,
    }


def _own_row(schedule: Schedule, times: StageTimes, replays: StepReplays, ideal_ns: int) -> WhatIf:
    """Return the row of the run's own schedule, as measured."""
    makespan = replays.makespan
    figures = _ideal_figures(schedule, times) | {"ideal_ns": ideal_ns}
    return WhatIf(
        "schedule",
        **figures,
        predicted_ns=makespan,
        predicted_range_ns=(makespan, makespan),
        saves_ns=0,
        ran=True,
        outside_cells=max(
            0.0, 1 - float(np.sum(replays.end - replays.start)) / max(1, schedule.pp * makespan)
        ),
        rests_on=("this run, measured",),
    )


def _schedule_row(
    schedule: Schedule,
    own: Schedule,
    times: StageTimes,
    measured_ns: int,
    predictor: Predictor | str,
) -> WhatIf:
    """Return the row of another schedule."""
    row = WhatIf(
        "schedule",
        **_ideal_figures(schedule, times),
        rests_on=_assumptions(schedule, own, times, predictor),
    )
    prediction = predictor if isinstance(predictor, str) else predictor.predict(schedule)
    if isinstance(prediction, str):
        return replace(row, unknown=(f"the schedule span: {prediction}",))
    assert isinstance(predictor, Predictor)
    unknown = predictor.machine.unknown
    if count_ops(schedule.ranks[0], "W") and not predictor.ops[MIDDLE].has_split_backwards:
        unknown += ("what splitting the backward costs the host: this run did not split it",)
    return replace(row, **_predicted_figures(prediction, measured_ns), unknown=unknown)


def _assumptions(
    schedule: Schedule, own: Schedule, times: StageTimes, predictor: Predictor | str
) -> tuple[str, ...]:
    """Return the assumptions behind the row of another schedule."""
    assumptions: list[str] = []
    chunks = schedule.stages / schedule.pp
    if chunks != own.stages / own.pp:
        cut = "in one chunk" if chunks == 1 else f"cut into {chunks:g} equal chunks"
        assumptions.append(f"a rank's layers {cut}")
    if count_ops(schedule.ranks[0], "FB"):
        overlap = (
            predictor.ops[MIDDLE].block_factor
            if isinstance(predictor, Predictor)
            else times.overlap
        )
        if times.overlap is None or overlap is None:
            assumptions.append("FB takes F + B")
        else:
            assumptions.append(f"FB takes {percent(overlap, digits=0)} of F + B, as measured")
    if count_ops(schedule.ranks[0], "W") and not times.split_known:
        assumptions.append("backward halves into I and W")
    if schedule.both_ways:
        assumptions.append("every rank holds two stages' weights")
    if isinstance(predictor, Predictor):
        assumptions += _assumed_of_machine(predictor)
    return tuple(assumptions)


def _assumed_of_machine(predictor: Predictor) -> list[str]:
    """Return what every prediction assumes of messages and of the GPU."""
    assumptions = [predictor.messages_in_words()]
    if predictor.machine.machines[MIDDLE].ranks_share_gpu:
        assumptions.append(FASTER_ALONE)
    return assumptions


def _layer_split_row(predictor: Predictor, cells: pl.DataFrame) -> WhatIf | None:
    """Return the row with the best split of layers over stages.

    None if the run's is about as good, or not known.
    """
    own = predictor.own
    ops = predictor.ops[MIDDLE]
    layers = layers_per_stage(cells, own.stages)
    if layers is None or own.stages < 2:
        return None
    compute_ns = _compute_per_stage(cells, own.stages) / own.microbatches
    layer_ns, additional_ns = _time_per_layer(compute_ns, layers)
    counts = best_split(layer_ns, additional_ns, int(layers.sum()))
    if counts == layers.tolist():
        return None
    # Compute moves with the layers. Waits inside cells, for experts say, are no work: they stay
    # where they are.
    program = predictor.own_program
    added_ns = np.array(counts) * layer_ns + additional_ns - compute_ns
    slowdowns = np.array([ops.gpu_slowdowns.get(int(rank), 1.0) for rank in own.stage_ranks[:, 0]])
    stage_ns = (ops.gpu_ns["F"] + ops.gpu_ns["B"]) * slowdowns
    stage_factor = np.maximum(1 + added_ns / np.maximum(stage_ns, 1.0), 0.0)
    typical = ops.times(program, own)
    work = [
        op.gpu_ns * float(stage_factor[piece.stage])
        for piece, op in zip(program.pieces, typical, strict=True)
    ]
    base = predictor.simulate(program, own)
    changed = predictor.simulate(program, own, work=work)
    if (
        base is None
        or changed is None
        or changed.makespan > (1 - MIN_SAVED_SHARE_TO_PROPOSE) * base.makespan
    ):
        return None
    return WhatIf(
        "layout",
        "layers per stage " + ",".join(map(str, counts)),
        own.virtual,
        **_predicted_figures(predictor.predict_change(base, changed), predictor.measured_ns),
        layout=megatron_layout(counts),
        rests_on=(
            "layers of a stage take equal time; waits and other work of the first and last stage stay there",
        ),
    )


def _compute_per_stage(cells: pl.DataFrame, stages: int) -> Floats:
    """Return the time in which the cells of each stage compute, in nanoseconds."""
    is_block = pl.col("op").cast(pl.String) == "FB"
    # Of a block, a third is its forward and two thirds are its backward, perhaps of another stage.
    forward_share = pl.when(is_block).then(1 / 3).otherwise(1.0)
    forwards = cells.select("stage", ns=pl.col("busy_ns") * forward_share)
    backwards = cells.filter(is_block).select(stage="b_stage", ns=pl.col("busy_ns") * (2 / 3))
    parts = pl.concat([forwards, backwards]).drop_nulls("stage")
    return np.bincount(parts["stage"].to_numpy(), parts["ns"].to_numpy(), stages).astype(np.float64)


def megatron_layout(layers: Sequence[int]) -> str:
    """Return the value of Megatron-Core's ``--pipeline-model-parallel-layout`` for layers of every stage.

    >>> megatron_layout((3, 4, 4, 1))
    'Et*3|t*4|t*4|tL'
    """
    stages = ["t" if count == 1 else f"t*{count}" for count in layers]
    return f"E{'|'.join(stages)}L"


def curve_rows(predictor: Predictor, cells: pl.DataFrame, times: StageTimes) -> list[WhatIf]:
    """Return rows for the run's schedule over numbers of micro-batches, and for 1F1B over numbers of chunks."""
    own = predictor.own
    points = [("microbatches", schedule) for schedule in _over_microbatches(own)]
    points += [
        ("chunks", schedule) for schedule in _over_chunks(own, layers_per_stage(cells, own.stages))
    ]
    rows = []
    for change, schedule in points:
        if sum(len(order) for order in schedule.ranks) > MAX_OPS_OF_CURVE_POINT:
            continue
        prediction = predictor.predict(schedule)
        if isinstance(prediction, str):
            continue
        figures = _ideal_figures(schedule, times) | _predicted_figures(
            prediction, predictor.measured_ns
        )
        if change == "microbatches":
            # Another amount of work cannot be compared with the run.
            figures |= {
                "saves_ns": None,
                "slower": False,
            }
        assumptions = ("micro-batches of this run's size", *_assumed_of_machine(predictor))
        rows.append(WhatIf(change, **figures, rests_on=assumptions))
    return rows


def with_microbatches(own: Schedule, count: int) -> Schedule:
    """Return the run's schedule with another number of micro-batches.

    Raise if it does not exist in this size.
    """
    virtual = own.virtual if describe(own.name).virtual is None else None
    return generate(own.name, pp=own.pp, microbatches=count, virtual=virtual)


def microbatches_row(own: Schedule, count: int) -> WhatIf:
    """Return the activations that ranks hold with another number of micro-batches, as a row without times."""
    schedule = with_microbatches(own, count)
    simulation = simulate(schedule)
    chunks = schedule.stages / schedule.pp
    return WhatIf(
        "microbatches",
        schedule.name,
        peak_activations=max(simulation.peak_activations) / chunks,
        least_activations=max(simulation.least_activations) / chunks,
        ran=count == own.microbatches,
        microbatches=count,
    )


def _over_microbatches(own: Schedule) -> Iterator[Schedule]:
    """Yield the run's schedule with other numbers of micro-batches, its own among them."""
    for count in sorted({own.pp * n for n in MICROBATCHES_PER_RANK_TO_TRY} | {own.microbatches}):
        with suppress(ScheduleError):
            yield with_microbatches(own, count)


def _over_chunks(own: Schedule, layers: Any) -> Iterator[Schedule]:
    """Yield 1F1B with other numbers of chunks that divide the layers of a rank.

    Up to two if these are not known.
    """
    layers_per_rank = None if layers is None else int(layers.sum()) // own.pp
    for chunks in CHUNKS_TO_TRY:
        if chunks > 2 if layers_per_rank is None else layers_per_rank % chunks:
            continue
        name, virtual = ("interleaved", chunks) if chunks > 1 else ("1f1b", None)
        yield from _generate(name, own.pp, own.microbatches, virtual)
