"""Sizes of products that padding makes faster."""

from __future__ import annotations

import pytest

from tracekit.metrics.padding import padded_share


@pytest.mark.parametrize(
    ("shapes", "share"),
    [
        ("[[100,8],[8,16]]", None),  # rows do not count
        ("[[100,32],[32,7]]", 64 / 7),
        ("[[100,65],[65,64]]", 128 / 65),
        ("[[100,60],[60,60]]", (64 / 60) ** 2),
        ("[[100,0],[0,7]]", None),
        ("[[100,7]]", None),
        ("[[3],[100,32],[32,7]]", 64 / 7),
    ],
)
def test_sizes_that_are_no_multiple_of_8_are_padded_to_64(shapes, share):
    assert padded_share(shapes) == (None if share is None else pytest.approx(share))
