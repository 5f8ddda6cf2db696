"""Sizes of messages."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.metrics.alternatives.messages import bytes_per_ns


@pytest.mark.parametrize(("count", "bandwidth"), [(4, 20.0), (3, 4_000 / 300)])
def test_four_messages_of_a_size_tell_the_time_of_the_bytes_between_two(count, bandwidth):
    """From 1,000 bytes in 150 ns to 4,000 in 300: 3,000 more in 150 ns, without the latency of both."""
    sizes = np.array([1_000.0, 4_000.0])
    shortest_ns = np.array([150.0, 300.0])
    assert bytes_per_ns(sizes, shortest_ns, np.array([count, 4])) == bandwidth
