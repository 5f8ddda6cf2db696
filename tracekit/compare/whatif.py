"""What another schedule, or one trouble less, would have saved: from this run's own times, messages and machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._util.text import percent
from tracekit.compare.alternatives import TWO_WEIGHTS, WhatIf
from tracekit.compare.gap import Replays
from tracekit.compare.identify import Match
from tracekit.compare.predict.curves import by_chunks, by_microbatches
from tracekit.compare.predict.layout import propose, stage_layers
from tracekit.compare.predict.predictor import Prediction, Predictor
from tracekit.compare.predict.without import removed
from tracekit.compare.stages import StageTimes, stage_times
from tracekit.errors import ScheduleError
from tracekit.schedules import Schedule, generate, names, simulate
from tracekit.schedules.registry import describe
from tracekit.schema import GAP_CAUSES

SEARCH_LIMIT = 4_000
"""Cells up to which a searched order is tried."""


def too_large_to_search(pp: int, microbatches: int) -> bool:
    """Return whether orders that are searched for are left out.

    >>> too_large_to_search(4, 8), too_large_to_search(64, 1024)
    (False, True)
    """
    return pp * microbatches * 3 > SEARCH_LIMIT


def what_if(
    r: Replays, cells: pl.DataFrame, pp: int, match: Match, predicted: Predictor | str, *, ideal_ns: int
) -> list[WhatIf]:
    """Return the schedules the run could use, best first, then what each trouble costs, most costly first.

    *predicted* runs other schedules on this run's machine, or says why it cannot: then rows have their ideal alone.
    *ideal_ns* is the ideal the run itself is compared with.
    """
    own = match.schedule
    times = stage_times(r, cells, pp)
    rows = [_schedule_row(schedule, own, times, r, predicted) for schedule in _usable(own, pp, times)]
    rows = [replace(line, ideal_ns=ideal_ns) if line.ran else line for line in rows]
    rows.sort(key=_rank)
    more = [] if isinstance(predicted, str) else [*_layout(predicted, cells), *_curves(predicted, cells, times)]
    return [*rows, *_without(r, predicted), *more]


def _rank(line: WhatIf) -> tuple[bool, int, float]:
    """Best prediction first; those without one after them, by their ideal."""
    by = line.ideal_ns if line.predicted_ns is None else line.predicted_ns
    return line.predicted_ns is None, by or 0, line.peak_activations or 0


def _schedule_row(
    schedule: Schedule, own: Schedule, times: StageTimes, r: Replays, predicted: Predictor | str
) -> WhatIf:
    chunks = schedule.stages / schedule.pp
    done = simulate(schedule, times.of_chunks(chunks))
    is_own = (schedule.name, schedule.virtual) == (own.name, own.virtual)
    common: dict[str, Any] = {
        "change": "schedule",
        "name": schedule.name,
        "virtual": schedule.virtual,
        "ideal_ns": int(done.makespan),
        "peak_activations": max(done.peak_activations) / chunks,
        "least_activations": max(done.least_activations) / chunks,
        "microbatches": schedule.microbatches,
    }
    if is_own:
        busy = float(np.sum(r.end - r.start)) / max(1, schedule.pp * r.makespan)
        return WhatIf(
            **common, predicted_ns=r.makespan, predicted_range_ns=(r.makespan, r.makespan), saves_ns=0, ran=True,
            outside_cells=max(0.0, 1 - busy), rests_on=("this run, measured",),
        )  # fmt: skip
    prediction = predicted if isinstance(predicted, str) else predicted.predict(schedule)
    rests_on, unknown = _basis(schedule, own, times, predicted)
    if isinstance(prediction, str):
        return WhatIf(**common, rests_on=rests_on, unknown=(f"the makespan: {prediction}",))
    return WhatIf(**common, **_numbers(prediction, r.makespan), rests_on=rests_on, unknown=unknown)


def _numbers(prediction: Prediction, measured_ns: int) -> dict[str, Any]:
    return {
        "predicted_ns": prediction.ns,
        "predicted_range_ns": (prediction.low_ns, prediction.high_ns),
        "saves_ns": measured_ns - prediction.ns,
        "outside_cells": prediction.outside,
    }


def _usable(own: Schedule, pp: int, times: StageTimes) -> Iterator[Schedule]:
    for name in names():
        entry = describe(name)
        if not entry.pipeline or (entry.searched and too_large_to_search(pp, own.microbatches)):
            continue
        options = sorted({2, own.virtual} - {1}) if entry.virtual is None else [None]  # one chunk: the plain schedule
        for virtual in options:
            try:
                yield generate(
                    name,
                    pp=pp,
                    microbatches=own.microbatches,
                    virtual=virtual,
                    times=times.of_chunks(1) if entry.searched else None,
                )
            except ScheduleError:
                continue


def _basis(
    schedule: Schedule, own: Schedule, times: StageTimes, predicted: Predictor | str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a row rests on, and what could not be known."""
    rests_on: list[str] = []
    unknown: list[str] = []
    chunks, own_chunks = schedule.stages / schedule.pp, own.stages / own.pp
    if chunks != own_chunks:
        cut = "in one chunk" if chunks == 1 else f"cut into {chunks:g} equal chunks"
        rests_on.append(f"a rank's layers {cut}")
    if any(op.kind == "FB" for op in schedule.ranks[0]):
        apart = times.overlap is None or not isinstance(predicted, str)
        rests_on.append(
            "FB takes F + B" if apart else f"FB takes {percent(times.overlap, digits=0)} of F + B, as measured"
        )
    split = any(op.kind == "W" for op in schedule.ranks[0])
    if split and not times.split_known:
        rests_on.append("backward halves into I and W")
    if schedule.both_ways:
        rests_on.append(TWO_WEIGHTS)
    if not isinstance(predicted, str):
        rests_on.append(predicted.runtime.words())
        unknown += predicted.fitted.unknown
        if split and not predicted.cells[1].split_ran:
            unknown.append("what splitting the backward costs the host: this run did not split it")
    return tuple(rests_on), tuple(unknown)


def _without(r: Replays, predicted: Predictor | str) -> list[WhatIf]:
    """Return what each trouble costs, most costly first; only those that cost anything."""
    measured, rows = r.makespan, []
    for cause, words in GAP_CAUSES.items():
        if words.change is None:
            continue
        if isinstance(predicted, str):
            makespan, outside = _replayed(r, cause)
            between = None  # no engine that was held against this run
            rests = (words.assumption or "", "messages and waiting as in this run")
        else:
            played = removed(predicted, cause, _inside(r, cause))
            if played is None:
                continue
            makespan, between, outside = played.ns, (played.low_ns, played.high_ns), played.outside
            rests = (words.assumption or "", predicted.runtime.words())
        if measured > makespan:
            rows.append(
                WhatIf(
                    "without",
                    words.change,
                    None,
                    None,
                    makespan,
                    between,
                    measured - makespan,
                    outside,
                    rests_on=rests,
                )
            )
    return sorted(rows, key=lambda line: -(line.saves_ns or 0))


def _layout(predicted: Predictor, cells: pl.DataFrame) -> list[WhatIf]:
    """Return the split of layers over stages that would be faster, where there is one."""
    made = propose(predicted, cells)
    if made is None:
        return []
    name = "layers per stage " + ",".join(map(str, made.layers))
    basis = "layers of a stage take equal time; the other work of the first and last stage stays there"
    numbers = _numbers(made.prediction, predicted.measured_ns)
    return [WhatIf("layout", name, predicted.own.virtual, **numbers, layout=made.megatron(), rests_on=(basis,))]


def _curves(predicted: Predictor, cells: pl.DataFrame, times: StageTimes) -> list[WhatIf]:
    """Return the run's schedule over numbers of micro-batches, and 1F1B over numbers of chunks."""
    own = predicted.own
    layers = stage_layers(cells, own.stages)
    layers_per_rank = None if layers is None else int(layers.sum()) // own.pp
    points = [_point("microbatches", s, predicted, times) for s in by_microbatches(own)]
    points += [_point("chunks", s, predicted, times) for s in by_chunks(own, layers_per_rank)]
    return [line for line in points if line is not None]


def _point(change: str, schedule: Schedule, predicted: Predictor, times: StageTimes) -> WhatIf | None:
    made = predicted.predict(schedule)
    if isinstance(made, str):
        return None
    chunks = schedule.stages / schedule.pp
    done = simulate(schedule, times.of_chunks(chunks))
    numbers = _numbers(made, predicted.measured_ns)
    if change == "microbatches":  # another amount of work: nothing to compare it with
        numbers["saves_ns"] = None
    return WhatIf(
        change,
        schedule.name,
        schedule.virtual,
        ideal_ns=int(done.makespan),
        peak_activations=max(done.peak_activations) / chunks,
        least_activations=max(done.least_activations) / chunks,
        microbatches=schedule.microbatches,
        rests_on=("micro-batches of this run's size", predicted.runtime.words()),
        **numbers,
    )


def _replayed(r: Replays, cause: str) -> tuple[int, float]:
    """Return makespan and share outside cells of the run's own order without *cause*."""
    start, end = r.run_without(cause)
    makespan = int(end.max(initial=0))
    ranks = max(1, len(np.unique(r.graph.position)))
    return makespan, max(0.0, 1 - float((end - start).sum()) / max(1, ranks * makespan))


def _inside(r: Replays, cause: str) -> Mapping[tuple[str, int, int], float]:
    """Return the time of each cell that *cause* stopped it for, by kind, stage and micro-batch."""
    if cause not in r.inside:
        return {}
    g = r.graph
    keys = zip(g.op.tolist(), g.stage.tolist(), g.microbatch.tolist(), strict=True)
    return dict(zip(keys, r.inside[cause].astype(float).tolist(), strict=True))
