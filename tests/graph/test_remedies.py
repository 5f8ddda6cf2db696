"""Host time that remains when launches go."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit._loops.critical_path import NO_LIMIT
from tracekit.graph.remedies import host_factors


def remaining(*rows):
    """What remains of launches: since the launch before, time in which the host waited, share that remains."""
    since, blocked, shares = map(np.array, zip(*rows, strict=True))
    count = len(rows)
    launch = np.zeros(2 * count, np.int64)
    launch[1::2] = since  # each event is launched that long after one at 0
    before = np.full(2 * count, -1)
    before[1::2] = np.arange(0, 2 * count, 2)
    waited = np.zeros(2 * count, np.int64)
    waited[1::2] = blocked
    graph = SimpleNamespace(
        launch=launch, events=pl.DataFrame({"launch_before": before, "blocked_ns": waited})
    )
    remedies = pl.DataFrame(
        {"event": np.arange(1, 2 * count, 2), "host_share": shares.astype(float)}
    )
    return host_factors(graph, remedies).tolist()


@pytest.mark.parametrize(
    ("rows", "factors"),
    [
        ([(100, 0, 0)], [0.0]),  # the launch goes, with the time before it
        ([(100, 0, 0.25)], [0.25]),
        ([(100, 40, 0)], [0.0]),
        ([(100, 100, 0)], [1.0]),  # the host did nothing but wait
        ([(100, 120, 0)], [1.0]),
        # Of 1,001 ns before one, where others take 100, the rest is other work.
        ([(100, 0, 0)] * 3 + [(1_000, 0, 0)], [0.0] * 4),
        ([(100, 0, 0)] * 3 + [(1_001, 0, 0)], [0.0] * 3 + [pytest.approx(901 / 1_001)]),
        ([(100, 0, 0)] * 3 + [(2_000, 0, 0.5)], [0.0] * 3 + [0.5]),
    ],
)  # fmt: skip
def test_a_launch_that_goes_takes_no_more_of_the_hosts_time_than_such_launches_usually_do(
    rows, factors
):
    assert remaining(*rows) == factors


@pytest.mark.parametrize(("before", "launch"), [(-1, 100), (0, NO_LIMIT)])
def test_nothing_of_the_host_goes_where_the_launch_before_is_not_known(before, launch):
    graph = SimpleNamespace(
        launch=np.array([0, launch]),
        events=pl.DataFrame({"launch_before": [-1, before], "blocked_ns": [0, 0]}),
    )
    remedies = pl.DataFrame({"event": [1], "host_share": [0.0]})
    assert host_factors(graph, remedies).tolist() == [1.0]
