"""tests/metrics/test_attainable.py"""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.attainable import Share
from tracekit.metrics.speeds import measured_share


def calls(count, *, flop, ns=100):
    return pl.DataFrame({"flop": [float(flop)] * count, "ns": [ns] * count})


@pytest.mark.parametrize(
    ("of", "share"),
    [
        (calls(3, flop=500), None),
        (calls(4, flop=500), Share(0.425, 0.5, 0.575)),
        (calls(4, flop=950), Share(0.8075, 0.95, 1.0)),
        (calls(4, flop=1000), Share(0.85, 1.0, 1.0)),
        (calls(4, flop=1001), None),  # faster than the peak: it is another type
        (calls(4, flop=0), None),
    ],
)
def test_four_calls_at_a_peak_of_ten_flop_per_ns_measure_a_share(of, share):
    assert measured_share(of, 10.0) == (None if share is None else pytest.approx(share))
