"""Comparison with an ideal at its limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.pipeline.against_ideal.comparison import StepComparison


@pytest.mark.parametrize(("work_ns", "is_slow"), [(125, False), (126, True)])
def test_a_cell_is_slow_above_one_and_a_quarter_of_its_usual_work(work_ns, is_slow):
    ones = np.array([0])
    usual_ns = np.array([100])
    graph = SimpleNamespace(table=SimpleNamespace(stage=ones, microbatch=ones), op=["F"])
    replays = SimpleNamespace(
        graph=graph, typical=usual_ns, balanced=usual_ns, work=np.array([work_ns])
    )
    pipeline = SimpleNamespace(detail=pl.DataFrame({"rank": [0]}))
    step = SimpleNamespace(replays=replays, pipeline=pipeline)
    slow_cells = StepComparison.measure_imbalance(step).slow_cells
    assert bool(slow_cells) is is_slow
