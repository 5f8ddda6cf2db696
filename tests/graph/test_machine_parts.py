"""What a machine does to a message, and what remains of the host's time before a launch that goes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit._loops.critical_path import NO_LIMIT
from tracekit.graph import predictor
from tracekit.graph.machine import Machine
from tracekit.graph.rank_programs import ScheduleWriter
from tracekit.graph.remedies import host_factors


@pytest.mark.parametrize(
    ("costs", "is_shared"),
    [({}, False), ({"other_cost": 0.1}, True), ({"compute_cost": 0.1}, True)],
)
def test_ranks_share_a_gpu_if_the_compute_of_others_costs_time(costs, is_shared):
    assert Machine(1.0, 1.0, 1.0, **costs).ranks_share_gpu is is_shared


def test_messages_slow_down_all_kinds_of_operations_by_their_mean():
    assert Machine(1.0, 1.0, 1.0).pooled_slowdown == 1.0
    assert Machine(1.0, 1.0, 1.0, slowdown={"F": 1.5, "B": 1.1}).pooled_slowdown == pytest.approx(
        1.3
    )


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


@pytest.mark.parametrize(
    ("counts", "exact", "stages_from", "reason"),
    [
        ((2, 2), True, "peers", None),
        ((1, 1), True, "peers", "a single rank sends no messages"),
        ((3, 2), True, "peers", "traces of some of the pipeline's ranks are missing"),
        ((2, 2), False, "peers", "the run's own order is not that of a known schedule"),
        ((2, 2), True, "nothing", "the run's own order is not that of a known schedule"),
    ],
)
def test_a_prediction_needs_all_ranks_and_a_known_order(
    monkeypatch, counts, exact, stages_from, reason
):
    ranks, recorded = counts
    monkeypatch.setattr(predictor, "why_too_large", lambda own: None)
    pipeline = SimpleNamespace(
        ranks=range(ranks), positions=dict.fromkeys(range(recorded)), stages_from=stages_from
    )
    assert predictor.why_not_predicted(pipeline, None, exact=exact) == reason


@pytest.fixture
def writer(monkeypatch):
    """Three stages, of which ranks 0, 1 and 1 hold one each, with one micro-batch."""
    schedule = SimpleNamespace(ranks=[(), ()], stage_ranks=np.array([[0], [1], [1]]), stages=3)
    writer = ScheduleWriter(schedule)
    monkeypatch.setattr(writer, "message", lambda output, source, target: (source, target))
    return writer


@pytest.mark.parametrize(
    ("output", "needed"),
    [
        (None, None),
        (("forward", 0, 0), None),
        (("forward", 1, 0), ("forward", 0, 0)),
        (("forward", 2, 0), ("forward", 1, 0)),
        (("backward", 2, 0), None),
        (("backward", 0, 0), ("backward", 1, 0)),
    ],
)
def test_a_piece_needs_the_output_of_the_stage_before_it_in_its_direction(writer, output, needed):
    assert writer.input_of(SimpleNamespace(output=output)) == needed


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, None),
        (("forward", 0, 0), (0, 1)),
        (("forward", 1, 0), None),  # the same rank needs it
        (("forward", 2, 0), None),  # the last stage
        (("backward", 1, 0), (1, 0)),
        (("backward", 0, 0), None),
    ],
)
def test_a_message_carries_what_another_rank_needs(writer, output, message):
    assert writer.message_of(output) == message
