"""Machine of a prediction: shared GPUs and slowdown beside messages."""

from __future__ import annotations

import pytest

from tracekit.graph import machine
from tracekit.graph.machine import Machine


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
