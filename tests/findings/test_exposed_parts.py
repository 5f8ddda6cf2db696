"""Which exposed time is a finding, how much of it is transfer, and what the step is without the profiler."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.findings import communication
from tracekit.findings.communication import (
    ExposedTransfers,
    Remedy,
    exposed_case,
    measure_transfer,
    transfer_rate,
)
from tracekit.findings.context import Context


def found(
    monkeypatch,
    exposed_ns,
    *,
    pageable=0.0,
    free_share=1.0,
    host_copies_ns=0,
    schedule=None,
    **waits,
):
    monkeypatch.setattr(communication, "exposed_pageable_share", lambda context: pageable)
    monkeypatch.setattr(communication, "find_host_copies_ns", lambda context: host_copies_ns)
    monkeypatch.setattr(communication, "exposed_finding", lambda context, label, ns: (label, ns))
    context = SimpleNamespace(
        step=SimpleNamespace(budget_ns=SimpleNamespace(exposed_ns=exposed_ns)),
        analysis=SimpleNamespace(schedule=schedule, total=SimpleNamespace(wait_ns=waits)),
        free_exposed_share=lambda label: free_share,
    )
    return dict(ExposedTransfers.find(context))


GAP = SimpleNamespace(gap_ns=5)
NO_GAP = SimpleNamespace(gap_ns=None)


@pytest.mark.parametrize(
    ("exposed_ns", "options", "findings"),
    [
        ({"dp_comm": 100}, {}, {"dp_comm": 100}),
        ({"dp_comm": 0}, {}, {}),
        ({"dp_comm": 100}, {"free_share": 0.3}, {"dp_comm": 30}),
        ({"dp_comm": 1}, {"free_share": 0.3}, {}),
        ({"dp_comm": 100}, {"dp_comm": None}, {}),  # how much of it is waiting is not known
        ({"dp_comm": 100}, {"dp_comm": 0}, {"dp_comm": 100}),
        ({"onload": 100}, {"onload": None}, {"onload": 100}),  # a copy waits for nobody
        ({"pp_comm": 100}, {"schedule": GAP}, {}),  # the gap to the ideal tells more
        ({"pp_comm": 100}, {"schedule": NO_GAP}, {"pp_comm": 100}),
        ({"dp_comm": 100}, {"schedule": GAP}, {"dp_comm": 100}),
        ({"onload": 100}, {"pageable": 0.6}, {"onload": 40}),
        ({"onload": 100}, {"pageable": 1.0}, {}),
        ({"dp_comm": 100}, {"pageable": 0.6}, {"dp_comm": 100}),
        ({"memory": 100}, {"host_copies_ns": 70}, {"memory": 70}),
        ({"memory": 100}, {"host_copies_ns": 170}, {"memory": 100}),
        ({"memory": 100}, {}, {}),
    ],
)
def test_exposed_time_is_a_finding_where_nothing_tells_more(
    monkeypatch, exposed_ns, options, findings
):
    assert found(monkeypatch, exposed_ns, **options) == findings


@pytest.mark.parametrize(
    ("cause", "remedy", "facts", "case"),
    [
        ("same_stream", Remedy(), {}, "same_stream"),
        ("same_stream", Remedy(case="too_little_compute"), {}, "too_little_compute"),
        ("unknown", Remedy(case="host_takes_as_long"), {}, "host_takes_as_long"),
        ("unknown", Remedy(case="too_little_compute"), {}, "unclear"),
        ("unknown", Remedy(), {"has_host_calls": False}, "unknown"),
        ("launched_late", Remedy(), {"uses_cuda_graphs": True}, "launched_late_under_graphs"),
        ("launched_late", Remedy(), {}, "launched_late"),
        ("same_stream", Remedy(), {"uses_cuda_graphs": True}, "same_stream"),
    ],
)
def test_the_strongest_statement_decides_the_advice(cause, remedy, facts, case):
    context = SimpleNamespace(**{"has_host_calls": True, "uses_cuda_graphs": False, **facts})
    assert exposed_case(context, cause, remedy) == case


@pytest.mark.parametrize(
    ("because_ns", "hidden_ns", "figures"),
    [
        # Of 1,000 ns of compute; figures are per step of four.
        ({"same_stream": 400}, {}, (100, 250, 0)),
        ({"same_stream": 400, "peer_late": 80, "unknown": 40}, {}, (100, 250, 0)),
        ({"same_stream": 400}, {"communication": 500, "copy": 300}, (100, 50, 50)),
        ({"same_stream": 200}, {"communication": 500, "copy": 300}, (50, 50, 0)),
        ({"same_stream": 400}, {"communication": 1_200}, (100, 0, 100)),
    ],
)
def test_what_is_no_waiting_is_transfer_that_free_compute_can_hide(
    monkeypatch, because_ns, hidden_ns, figures
):
    monkeypatch.setattr(communication, "transfer_rate", lambda context, label: None)
    total = SimpleNamespace(hidden_ns=hidden_ns, budget=SimpleNamespace(compute_ns=1_000))
    ranks = [SimpleNamespace(per_step=[None, None])] * 2
    context = SimpleNamespace(analysis=SimpleNamespace(total=total, rank_results=ranks))
    assert measure_transfer(context, "dp_comm", because_ns)[:3] == figures


def context_of(*, recorded=None, free=None, step_ns=1_000):
    """The step's budget as recorded and without the profiler: idle and exposed time."""

    def budget(figures):
        return SimpleNamespace(idle_ns=figures[0], exposed_ns={"dp_comm": figures[1]})

    step = SimpleNamespace(
        reference_ns=step_ns,
        budget_ns=budget(recorded),
        free_budget_ns=budget(free) if free else None,
    )
    return Context(SimpleNamespace(step=step, changed_steps=()))


@pytest.mark.parametrize(
    ("recorded", "free", "shares"),
    [
        ((100, 80), (25, 60), (0.25, 0.75)),
        ((100, 80), (150, 90), (1.0, 1.0)),  # no more than recorded
        ((100, 80), None, (1.0, 1.0)),
        ((100, 80), (), (1.0, 1.0)),  # the parts are not known
        ((0, 0), (25, 60), (1.0, 1.0)),
    ],
)
def test_idle_and_exposed_time_are_shares_of_what_was_recorded(recorded, free, shares):
    context = context_of(recorded=recorded, free=free)
    assert (context.free_idle_share, context.free_exposed_share("dp_comm")) == shares
    assert context.free_exposed_share("tp_comm") == 1.0


@pytest.mark.parametrize(("step_ns", "share"), [(1_000, 0.25), (0, 0.0), (None, 0.0)])
def test_a_share_is_of_the_step(step_ns, share):
    assert context_of(recorded=(0, 0), step_ns=step_ns).share(250) == share


@pytest.mark.parametrize(
    ("rows", "gb_per_s"),
    [
        ([("dp_comm", 10.0, 1), ("dp_comm", 20.0, 3)], 17.5),
        ([("dp_comm", 10.0, 1), ("tp_comm", 20.0, 3)], 10.0),
        ([("dp_comm", None, 1), ("dp_comm", 20.0, 3)], 20.0),
        ([("dp_comm", 10.0, 0)], None),
        ([("dp_comm", 10.0, 1)], 10.0),
        ([], None),
    ],
)
def test_the_rate_of_transfers_is_a_mean_by_their_time(rows, gb_per_s):
    schema = {"label": pl.String, "algorithm_gb_s": pl.Float64, "transfer_ns": pl.Int64}
    rates = SimpleNamespace(communication=pl.DataFrame(rows, schema=schema, orient="row"))
    context = SimpleNamespace(analysis=SimpleNamespace(rates=rates))
    assert transfer_rate(context, "dp_comm") == gb_per_s


def test_without_rates_that_of_transfers_is_not_known():
    assert transfer_rate(SimpleNamespace(analysis=SimpleNamespace(rates=None)), "dp_comm") is None
