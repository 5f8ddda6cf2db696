"""Labels that rest on weak evidence."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.label_intervals import weak_ns


@pytest.mark.parametrize(("confidence", "ns"), [(0.64, 5), (0.65, 0)])
def test_evidence_below_the_line_is_weak(confidence, ns):
    event = {"label": ["forward"], "confidence": [confidence], "start_ns": [0], "end_ns": [5]}
    assert weak_ns(pl.DataFrame(event)) == (ns,)
