"""Noise that was known beforehand."""

from __future__ import annotations

import pytest

from tracekit.diffs.noise_thresholds import Noise


def test_what_was_known_beforehand_counts_like_four_runs():
    """PRIOR_DEGREES_OF_FREEDOM: two runs' worth of noise 1 with four of noise 2."""
    pooled = Noise(1.0, 2).with_prior(2.0)
    assert (pooled.df, pooled.deviation**2) == (6, pytest.approx((2 * 1 + 4 * 4) / 6))
