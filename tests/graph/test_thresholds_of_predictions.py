"""Figures of predictions that were set rather than measured, each on both sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.graph import machine, predictor, rank_programs, schedule_rows
from tracekit.graph.changes import WhatIfGraph
from tracekit.graph.engine import HostTimes
from tracekit.graph.schedule_rows import too_large_to_search
from tracekit.pipeline.schedules import Times, generate


@pytest.mark.parametrize(("kernels", "is_measured"), [(30, True), (29, False)])
def test_thirty_kernels_beside_messages_show_a_slowdown(kernels, is_measured):
    slowdown = machine.slowdown_of_kernels(kernels, beside_ns=200, lost_ns=100)
    assert (slowdown is not None) is is_measured


def test_a_slowdown_is_uncertain_by_a_tenth_of_what_is_above_one():
    """Of 200 ns beside messages 100 are lost: kernels took twice as long."""
    assert machine.slowdown_of_kernels(30, beside_ns=200, lost_ns=100) == pytest.approx(
        (1.9, 2.0, 2.1)
    )


def test_a_slowdown_of_more_than_four_is_an_outlier():
    _, at_most, _ = machine.slowdown_of_kernels(30, beside_ns=100, lost_ns=90)
    assert at_most == 4.0
    _, below, _ = machine.slowdown_of_kernels(30, beside_ns=100, lost_ns=70)
    assert below == pytest.approx(100 / 30)


def margin_ns(replayed_ns=0, *, times_ns=(1_000, 1_000, 1_000), **path_ns):
    """Half width of a range of steps with these times, with this time on the critical path by label."""
    bounds = pl.DataFrame({"step": range(len(times_ns)), "time_ns": times_ns})
    predicting = SimpleNamespace(graph=SimpleNamespace(measured_bounds=bounds), clock_error_ns=0)
    predicting.deviation_of_steps = WhatIfGraph.deviation_of_steps.func(predicting)
    labels = [None if label == "host" else label for label in path_ns]
    parts = pl.DataFrame(
        {"label": labels, "ns": list(path_ns.values())},
        schema={"label": pl.String, "ns": pl.Int64},
    )
    return WhatIfGraph.range_margin_ns(predicting, replayed_ns, parts)


@pytest.mark.parametrize(("measured_ns", "left_ns"), [(400, 160), (600, 240), (700, 340)])
def test_a_graph_of_longer_steps_than_the_runs_takes_off_the_same_share(measured_ns, left_ns):
    """Of the graph's steps of 600 ns the replay leaves 240."""
    graph = SimpleNamespace(measured_step_ns=600, step_ns=lambda _: 240)
    predicting = SimpleNamespace(graph=graph, measured_ns=measured_ns)
    assert WhatIfGraph.replayed_ns(predicting, pl.DataFrame()) == left_ns


def test_a_prediction_is_uncertain_by_a_twentieth_at_least():
    assert margin_ns(1_000) == pytest.approx(50)


def test_one_slow_step_among_four_does_not_widen_the_range_of_the_others():
    assert margin_ns(1_000, times_ns=[1_000, 1_000, 1_000, 10_000]) == pytest.approx(50)
    assert margin_ns(1_000, times_ns=[800, 900, 1_100, 1_200]) == pytest.approx(150)


def test_transfers_vary_by_fifteen_percent_and_hosts_by_twenty():
    assert margin_ns(dp_comm=1_000) == pytest.approx(150)
    assert margin_ns(host=1_000) == pytest.approx(200)
    assert margin_ns(dp_comm=1_000, host=1_000) == pytest.approx(250)  # 3, 4 and 5


@pytest.mark.parametrize(("saves_ns", "is_proposed"), [(10, False), (11, True)])
def test_a_change_that_saves_more_than_a_hundredth_is_proposed(saves_ns, is_proposed):
    row = SimpleNamespace(saves_ns=saves_ns, measured_ns=1_000, free_ns=None)
    predicting = SimpleNamespace(_candidates=lambda: ["balance"], predict=lambda changes: row)
    assert bool(WhatIfGraph.best_changes(predicting)) is is_proposed


@pytest.mark.parametrize(("ops", "is_too_large"), [(4_000, False), (4_001, True)])
def test_schedules_of_up_to_4000_ops_are_simulated(ops, is_too_large):
    schedule = SimpleNamespace(ranks=[range(ops)])
    assert (predictor.why_too_large(schedule) is not None) is is_too_large


def test_orders_of_up_to_4000_units_are_searched_for():
    """A micro-batch has three units of work on each rank."""
    assert not too_large_to_search(pp=1, microbatches=1_333)
    assert too_large_to_search(pp=1, microbatches=1_334)


@pytest.mark.parametrize("is_too_large", [True, False])
def test_of_a_run_too_large_to_search_all_other_schedules_are_shown(monkeypatch, is_too_large):
    monkeypatch.setattr(schedule_rows, "too_large_to_search", lambda *_: is_too_large)
    own = generate("1f1b", pp=2, microbatches=4)
    times = Times(F=1, I=1, W=1)
    shown = {other.name for other in schedule_rows.other_schedules(own, times)}
    assert {"gpipe", "1f1b", "interleaved", "zb-h1"} <= shown
    assert ("zb-2p" in shown) is not is_too_large  # whose order is searched for


@pytest.mark.parametrize(("early_share", "queues"), [(0.10, "compute"), (0.11, "free")])
def test_receives_wait_for_no_compute_if_more_than_a_tenth_begin_early(
    monkeypatch, early_share, queues
):
    monkeypatch.setattr(rank_programs, "share_of_early_receives", lambda *_: early_share)
    assert rank_programs.find_queues({}, pl.DataFrame()) == queues


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
