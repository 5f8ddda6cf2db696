"""Direction of a pass by threads and by sums of gradients."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.classify import pass_direction


@pytest.mark.parametrize(("products", "added"), [(1, 1), (2, 2), (3, 2)])
def test_a_sum_belongs_to_the_two_products_before_it(products, added):
    is_sum = np.array([False] * products + [True])
    sums = pass_direction.sums_of_products(~is_sum, is_sum, np.zeros(len(is_sum), np.int64))
    assert (sums >= 0).tolist() == [False] * (products - added) + [True] * added + [False]


@pytest.mark.parametrize(("engine_kernels", "is_told"), [(20, True), (21, False)])
def test_a_thread_that_launches_a_tenth_as_much_tells_which_one_runs_the_backward(
    engine_kernels, is_told
):
    """Thread 0 launches two forward kernels, thread 1 the backward."""
    thread = np.array([0, 0] + [1] * engine_kernels)
    every = np.ones(len(thread), bool)
    on_engine = pass_direction.on_engine_threads(
        SimpleNamespace(thread=thread),
        every,
        named_backward=thread == 1,
        named_forward=thread == 0,
        named_optimizer=~every,
    )
    assert on_engine.tolist() == ((thread == 1) & is_told).tolist()
