"""Predictions of other schedules: when there is none."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.graph import predictor
from tracekit.graph.engine import HostTimes
from tracekit.pipeline.schedules import generate


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


@pytest.mark.parametrize(("ops", "is_too_large"), [(4_000, False), (4_001, True)])
def test_schedules_of_up_to_4000_ops_are_simulated(ops, is_too_large):
    schedule = SimpleNamespace(ranks=[range(ops)])
    assert (predictor.why_too_large(schedule) is not None) is is_too_large


def predicted_range(host_ns):
    """Range of a prediction of 1,000 ns of which the host takes *host_ns*, with an exact replay of the run."""

    def simulate(program, schedule, level=None, *, host=True):
        makespan = 1_000.0 if host else 1_000.0 - host_ns
        return SimpleNamespace(makespan=makespan, outside_cells=lambda pp: 0.0)

    of_run = SimpleNamespace(
        machine=SimpleNamespace(machines=[SimpleNamespace(queues="one")] * 3),
        simulate=simulate,
        replay_error=0.0,
    )
    schedule = generate("1f1b", pp=2, microbatches=2)
    prediction = predictor.Predictor.predict(of_run, schedule)
    return prediction.low_ns, prediction.high_ns


def test_a_predicted_schedule_is_uncertain_by_eleven_percent():
    assert predicted_range(host_ns=0) == (890, 1_110)


def test_a_host_may_be_faster_or_slower_by_a_factor_of_one_point_four():
    """700 ns of a host may be 500 or 980: 200 less or 280 more, beside an error of 110."""
    low_ns, high_ns = predicted_range(host_ns=700)
    assert low_ns == round(1_000 - (200**2 + 110**2) ** 0.5)
    assert high_ns == round(1_000 + (280**2 + 110**2) ** 0.5)


def simulated_ns(monkeypatch, *step_ns):
    """Makespan that is returned if the steps of a program would take these times, one after the other."""
    outcomes = [
        SimpleNamespace(makespan=ns, stuck=False, end=np.zeros(1), host_ends=[0]) for ns in step_ns
    ]
    steps = iter(outcomes)
    monkeypatch.setattr(predictor, "run_program", lambda *_: next(steps))
    ops = SimpleNamespace(
        times=lambda *_, **__: [],
        host_times=lambda *_, **__: HostTimes((), ()),
        next_starts=lambda *_: (None, None),
    )
    of_run = SimpleNamespace(
        ops={predictor.MIDDLE: ops},
        machine=SimpleNamespace(machines={predictor.MIDDLE: None}),
    )
    program = SimpleNamespace(rank_pieces=[[0]])
    return predictor.Predictor.simulate(of_run, program, None, predictor.MIDDLE).makespan


def test_three_steps_are_simulated_until_the_host_runs_ahead_as_in_a_long_run(monkeypatch):
    assert simulated_ns(monkeypatch, 1_000, 1_100, 1_200, 1_300) == 1_200


def test_a_step_that_changes_by_a_five_hundredth_is_as_in_a_long_run(monkeypatch):
    assert simulated_ns(monkeypatch, 1_000, 1_002, 1_200) == 1_002
    assert simulated_ns(monkeypatch, 1_000, 1_003, 1_200) == 1_200
