"""Figures of a rank that are called loud."""

from __future__ import annotations

import importlib

import pytest

from tracekit.analysis.measured import make_figures
from tracekit.documents.analysis import Budget, RankFigures

combining = importlib.import_module("tracekit.analysis.combine.combine_ranks")


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


@pytest.mark.parametrize(("other_ns", "is_loud"), [(10, False), (11, True)])
def test_unlabelled_work_is_loud_above_one_percent_of_the_span(other_ns, is_loud):
    assert bool(combining.unlabelled_notices([measured(other=other_ns)])) is is_loud


@pytest.mark.parametrize(("weak", "is_loud"), [(9, False), (10, True)])
def test_weak_labels_are_loud_above_one_percent_of_gpu_time(weak, is_loud):
    assert bool(combining.weak_label_notices([measured(weak_ns=weak)])) is is_loud
