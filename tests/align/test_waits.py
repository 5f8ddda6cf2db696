"""Waits by arrival: when they are certain enough."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.align import waits


@pytest.mark.parametrize(("certain_ns", "is_bound"), [(51, False), (49, True)])
def test_half_of_a_labels_waiting_must_be_longer_than_clocks_are_off(certain_ns, is_bound):
    """The second wait is shorter than its clocks are off: only the first is certain."""
    wait_ns = np.array([certain_ns, 100 - certain_ns])
    uncertainty_ns = np.array([10, 100])
    nothing = np.zeros(2, np.int64)
    bound = waits.is_uncertain_wait(pl.Series(["dp_comm"] * 2), wait_ns, uncertainty_ns, nothing)
    assert bound.tolist() == [is_bound] * 2


@pytest.mark.parametrize(("error_ns", "is_bound"), [(5, False), (6, True)])
def test_clocks_that_were_set_may_change_a_twentieth_of_the_waiting(error_ns, is_bound):
    bound = waits.is_uncertain_wait(
        pl.Series(["dp_comm"]), np.array([100]), np.array([10]), np.array([error_ns])
    )
    assert bound.tolist() == [is_bound]
