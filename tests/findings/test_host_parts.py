"""What activities of the host cost and save, from their means per step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import polars as pl
import pytest

from tracekit.documents.analysis import ChangedStep
from tracekit.findings import host


class Means:
    """A step of 1,000 ns with 600 of GPU work; each activity's host time, idle time and idle time behind it."""

    def __init__(
        self, activities, *, time_ns=1_000, gpu_ns=600, pageable_ns=0, launching_idle_ns=0
    ):
        self.time_ns = time_ns
        self.gpu_ns = gpu_ns
        self.pageable_ns = pageable_ns
        self.launching_idle_ns = launching_idle_ns
        names = ("host_ns", "idle_ns", "idle_after_ns")
        self.rows = {
            code: {**dict(zip(names, figures, strict=True)), "count": 1.0, "name": "n", "op": None}
            for code, figures in activities.items()
        }

    def value(self, code, column):
        return float(self.rows[code][column]) if code in self.rows else 0.0


class Cost(NamedTuple):
    code: str
    cost_ns: int

    @property
    def share(self):
        return self.cost_ns / 1_000


def costs(monkeypatch, means, *, idle_known=True, confirmed_ns=None):
    """What each finding costs; at most *confirmed_ns* of an activity are what the replay without it saves."""
    monkeypatch.setattr(host, "StepMeans", lambda context: means)
    monkeypatch.setattr(
        host.LaunchBound, "of", lambda context, means, ns, **_: Cost("launch_bound", round(ns))
    )
    unused_parameters = Cost("unused_parameters", 0)
    monkeypatch.setattr(host.SearchBesideWork, "of", lambda context, means: unused_parameters)

    def offence(context, means, code, ns, gpu_ns):
        cost_ns = ns if confirmed_ns is None else min(ns, confirmed_ns)
        return Cost(code, round(cost_ns)) if cost_ns > 0 else None

    monkeypatch.setattr(host, "find_activity", offence)
    analysis = SimpleNamespace(
        total=SimpleNamespace(idle_known=idle_known), tables={"host_time": pl.DataFrame({"a": [1]})}
    )
    return dict(host.HostFinding.find(SimpleNamespace(analysis=analysis)))


@pytest.mark.parametrize(
    ("activities", "options", "found"),
    [
        ({"compile": (100, 80, 0)}, {}, {"compile": 80}),
        ({"compile": (0, 80, 0)}, {}, {}),  # only in steps that stand out
        ({"compile": (100, 0, 0)}, {}, {}),
        # 60 ns of idle time while launching follow from two activities, two to one.
        (
            {"compile": (200, 10, 40), "data_loading": (200, 10, 20)},
            {"launching_idle_ns": 60},
            {"compile": 50, "data_loading": 30},
        ),
        # More than follows from them is launching's own.
        (
            {"compile": (400, 10, 40)},
            {"launching_idle_ns": 100},
            {"compile": 50, "launch_bound": 60},
        ),
        # A batch costs no more than the wait for it.
        ({"data_loading": (30, 40, 0)}, {}, {"data_loading": 30}),
        ({"compile": (30, 40, 0)}, {}, {"compile": 40}),
        ({"pageable_copy": (30, 40, 0)}, {"pageable_ns": 25}, {"pageable_copy": 65}),
        ({"compile": (30, 40, 0)}, {"pageable_ns": 25}, {"compile": 40}),
        ({"unused_parameters": (30, 0, 0)}, {}, {"unused_parameters": 0}),
        ({"compile": (100, 80, 0)}, {"time_ns": 0}, {}),
    ],
)
def test_an_activity_costs_its_idle_time_and_its_share_of_what_follows(
    monkeypatch, activities, options, found
):
    assert costs(monkeypatch, Means(activities, **options)) == found


@pytest.mark.parametrize(
    ("confirmed_ns", "found"),
    [
        (50, {"compile": 50, "launch_bound": 60}),
        (30, {"compile": 30, "launch_bound": 80}),
        (0, {"launch_bound": 100}),
    ],
)
def test_idle_time_behind_an_activity_that_is_left_without_it_is_launching(
    monkeypatch, confirmed_ns, found
):
    """Of 100 ns of idle time while launching 40 follow from the activity, in which the GPU is idle for 10."""
    means = Means({"compile": (400, 10, 40)}, launching_idle_ns=100)
    assert costs(monkeypatch, means, confirmed_ns=confirmed_ns) == found


def test_a_host_that_is_slower_than_the_gpu_by_itself_is_bound_by_launching(monkeypatch):
    """It needs 990 ns for itself, 600 for the GPU's work: whatever else it does, launching is the limit."""
    means = Means({"compile": (10, 5, 40)}, launching_idle_ns=300)
    assert costs(monkeypatch, means) == {"compile": 5, "launch_bound": 300}


def test_nothing_is_said_where_idle_time_is_not_known(monkeypatch):
    assert costs(monkeypatch, Means({"compile": (100, 80, 0)}), idle_known=False) == {}


def offence(monkeypatch, cost_ns, *, can_replay=False, saves=None, gpu_ns=600):
    monkeypatch.setattr(host, "longest_places", lambda context, code: ())
    predicted = None
    if saves is not None:
        predicted = ChangedStep("a", ("a",), 1_000, saves_ns=saves, saves_range_ns=(0, 0))
    context = SimpleNamespace(
        predict=lambda change: predicted,
        can_replay=can_replay,
        runs_pytorch=True,
        has_unread_stacks=False,
        step=SimpleNamespace(marked=True),
        share=lambda ns: ns / 1_000,
    )
    means = Means({"compile": (300, 80, 0)})
    found = host.find_activity(context, means, "compile", cost_ns, gpu_ns)
    return found and (
        found.cost_ns,
        found.saves_ns,
        found.saves_range_ns,
        found.idle_after_ns,
    )


def test_without_a_prediction_the_rest_of_the_step_bounds_what_is_saved(monkeypatch):
    """Without 300 of 1,000 ns at least 700 are left, and 600 of GPU work in any case."""
    assert offence(monkeypatch, 0) is None
    assert offence(monkeypatch, 200) == (200, None, (200, 200), 120)
    assert offence(monkeypatch, 350) == (350, None, (300, 350), 270)
    assert offence(monkeypatch, 500) == (500, None, (300, 400), 420)
    assert offence(monkeypatch, 500, gpu_ns=800) == (500, None, (200, 200), 420)


def test_what_never_holds_a_launch_back_costs_nothing(monkeypatch):
    assert offence(monkeypatch, 200, can_replay=True) is None


@pytest.mark.parametrize(
    ("saves", "cost", "saved"), [(150, 150, 150), (50, 80, 50), (300, 200, 300), (-5, 80, 0)]
)
def test_idle_time_behind_an_activity_counts_as_far_as_it_is_saved(monkeypatch, saves, cost, saved):
    """Of 200 ns are 80 idle in it."""
    found = offence(monkeypatch, 200, saves=saves)
    assert found[:2] == (cost, saved)
