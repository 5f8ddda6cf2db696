"""What was recorded, as findings ask for it."""

from __future__ import annotations

import pytest

from tracekit.findings.recorded import has_host_calls
from tracekit.schema import Source


def source(**facts):
    return Source("rank0.json", "kineto", 0, "name", **facts)


@pytest.mark.parametrize(
    ("counts", "has_calls"),
    [({"runtime": 1}, True), ({"driver": 1}, True), ({"kernel": 9}, False), ({}, False)],
)
def test_one_call_shows_that_calls_were_recorded(counts, has_calls):
    assert has_host_calls(source(counts=counts)) is has_calls
