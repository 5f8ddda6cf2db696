"""Replays of a pipeline against the simulator."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.pipeline.against_ideal.replay import CellGraph, weight_gradient_share
from tracekit.pipeline.schedules import Times, generate, names, simulate
from tracekit.pipeline.schedules.registry import describe

ALL = [name for name in names() if describe(name).pipeline]


def graph(plan):
    return CellGraph.of(simulate(plan).cells.rename({"rank": "position"}))


@pytest.mark.parametrize("name", ALL)
def test_a_replay_is_the_simulators(name):
    pp, microbatches = {"dualpipev": (2, 6)}.get(name, (4, 8))
    plan = generate(name, pp=pp, microbatches=microbatches)
    simulation = simulate(plan, Times(F=3, I=2, W=1, FB=5))
    replayed = graph(plan)
    start, end = replayed.run(simulation.end - simulation.start)
    assert start.tolist() == simulation.start.tolist()
    assert end.max() == simulation.makespan
    assert replayed.peak_activations == simulation.peak_activations
    idle = replayed.table.idle_by_phase(start, end)
    assert [sum(parts) for parts in idle] == simulation.bubble
    assert replayed.broken == 0


def test_delays_and_early_outputs_are_replayed():
    cells = graph(generate("1f1b", pp=2, microbatches=1))
    duration = np.array([4, 4, 4, 4])
    assert cells.run(duration)[1].max() == 16
    delay = np.array([0, 0, 3, 0])  # rank 1's forward starts 3 late
    assert cells.run(duration, delay)[1].max() == 19
    # Its forward started while rank 0's ran.
    start, end = (
        np.array([0, 10, 2, 6]),
        np.array([4, 14, 6, 10]),
    )
    ready, early = cells.find_ready_times(start, end)
    assert ready.tolist() == [0, 10, 2, 6]
    assert cells.run(duration, None, early)[0].tolist() == start.tolist()


def test_cells_that_wait_for_each_other_are_let_go_and_counted():
    cells = pl.DataFrame(
        {
            "position": [0, 0, 1, 1],
            "op": ["B", "F", "F", "B"],
            "stage": [0, 0, 1, 1],
            "microbatch": [0] * 4,
        },
    ).with_columns(b_stage=pl.lit(None, pl.Int32), b_microbatch=pl.lit(None, pl.Int32))
    ring = CellGraph.of(cells)
    assert ring.broken > 0
    assert len(ring.order) == 4


def test_weight_gradients_take_at_most_nine_tenths_of_a_backward():
    assert weight_gradient_share(np.array([95]), np.array([100])) == pytest.approx(0.9)
    assert weight_gradient_share(np.array([85]), np.array([100])) == pytest.approx(0.85)
