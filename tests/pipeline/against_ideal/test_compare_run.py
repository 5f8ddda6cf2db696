"""Ranks that begin a step late."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.pipeline.against_ideal import compare_run as lines


@pytest.mark.parametrize(("late_ns", "is_loud"), [(10, False), (11, True)])
def test_a_rank_that_begins_late_by_more_than_a_hundredth_is_named(late_ns, is_loud):
    replays = SimpleNamespace(
        graph=SimpleNamespace(table=SimpleNamespace(rank=np.array([0, 0]))),
        before={"host": np.array([late_ns, 0])},
        makespan=1_000,
    )
    pipeline = SimpleNamespace(step=0, ranks=[4])
    assert bool(lines.late_start_notices(pipeline, replays)) is is_loud
