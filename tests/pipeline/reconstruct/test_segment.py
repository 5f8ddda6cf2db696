"""Segments of a rank's work that named kernels cover."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.pipeline.reconstruct import segment


@pytest.mark.parametrize(("named_ns", "is_covered"), [(90, True), (89, False)])
def test_ranges_decide_if_they_hold_nine_tenths_of_the_time(named_ns, is_covered):
    duration_ns = np.array([named_ns, 100 - named_ns])
    is_named = np.array([True, False])
    is_forward = np.array([True, True])
    assert segment.are_parts_covered(duration_ns, is_named, is_forward) is is_covered
