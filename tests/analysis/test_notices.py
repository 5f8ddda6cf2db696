"""Notices of a run, at their limits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tracekit.analysis.combine.notices import bound_notices
from tracekit.analysis.measured import make_figures
from tracekit.documents.analysis import Budget, RankFigures


def measured(*, weak_ns=0, lower_bound=False, **label_ns):
    """A rank that computes for 900 of 1,000 ns."""
    figures = make_figures(
        budget=Budget(compute_ns=900, exposed_ns={}, idle=100),
        label_ns={"other": 0, **label_ns},
        set_ns={},
        label_count={},
        hidden_ns={},
        hidden_by_ns={},
        wait_ns={},
        wait_open_ns={},
        weak_ns=weak_ns,
        because_ns={},
        blocking_ns={},
        exposed_wait_ns=None,
        least_wait_ns=0,
        lower_bound=lower_bound,
        pipeline=True,
    )
    return RankFigures(
        rank=0,
        steps=(),
        **figures,
        phases=(),
        idle_host_ns=None,
        idle_host=(),
        inside_launch_ns=0,
        idle_causes=None,
        per_step=(),
    )


@pytest.mark.parametrize(("outside", "is_loud"), [(0.2, False), (0.21, True)])
def test_a_bound_is_called_low_below_half_of_what_the_table_shows(monkeypatch, outside, is_loud):
    """FAR: the bubble's bound is 10 %."""
    held = SimpleNamespace(exact=True, head=SimpleNamespace(measured_bubble=outside))
    assert bool(bound_notices([measured(lower_bound=True)], held)) is is_loud
